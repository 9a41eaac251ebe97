//! Programs of this host, for the backends that run them where they are: `runtimes` finds the interpreter of a language,
//! `program` says with which words and variables it runs the code, `stdin` feeds it, `collect` brings files back, and
//! `state` remembers between runs what was found out. `anew` is this binary as another process.

#![forbid(unsafe_code)]

pub mod anew;
pub mod collect;
pub mod program;
pub mod runtimes;
pub mod state;
pub mod stdin;
