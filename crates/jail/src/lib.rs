//! The jail: performs a [`Plan`](plan::Plan), then hands over to the program.
//!
//! This is the only crate with `unsafe`, and the only code that runs between `clone` and `exec`.

#![allow(unsafe_code, reason = "system calls between clone and exec; every block says why it is sound")]
#![deny(missing_docs)]

pub mod codec;
pub mod plan;
pub mod seccomp;
