//! Programs of this host, for the backends that run them: `runtimes` finds the interpreter of a language, `program`
//! builds its command line and environment, `stdin` feeds it, `collect` collects files, and `state` caches between runs
//! what was found. `anew` starts this binary as another process. `sockets` and
//! `descriptors` count what the sockets and locks of a box hold, and `netlink` decides when it may have one of that family.

#![forbid(unsafe_code)]

pub mod anew;
pub mod collect;
pub mod descriptors;
pub mod netlink;
pub mod program;
pub mod runtimes;
pub mod sockets;
pub mod state;
pub mod stdin;
