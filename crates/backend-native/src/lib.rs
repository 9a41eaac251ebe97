//! The native backend: boxes made by this Linux host's own kernel.

pub mod runtimes;
