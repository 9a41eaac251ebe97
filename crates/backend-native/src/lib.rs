//! The native backend: boxes made of namespaces, cgroups, seccomp and Landlock on this Linux host.

pub mod cgroup;
