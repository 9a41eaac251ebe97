//! Programs of this host, for the backends that run them: `runtimes` finds the interpreter of a language, `program`
//! builds its command line and environment, `stdin` feeds it, `collect` collects files, `changes` tells what it did to
//! its workspace, and `state` caches between runs what was found. `reexec` starts this binary as another process. `sockets` and
//! `descriptors` count what the sockets and locks of a box hold, and `rations` decides on what it may have little of.

#![forbid(unsafe_code)]

pub mod changes;
pub mod collect;
pub mod descriptors;
pub mod program;
pub mod rations;
pub mod reexec;
pub mod runtimes;
pub mod sockets;
pub mod state;
pub mod stdin;
