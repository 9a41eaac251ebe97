//! The jail: performs a [`Plan`](plan::Plan), then hands over to the program.
//!
//! ```text
//! caller ──plan, descriptors──▶ (keeper) ──clone3──▶ PID 1 ──vfork──▶ the program
//!        ◀─started, next, ended          ◀──reports──      ◀──wait──
//! ```
//!
//! In reading order: [`plan`] is what will be done, as data; [`message`] and [`codec`] carry it; `cloned` is PID 1 seen
//! from outside, `init` from inside; `keeper` is the process between it and a caller with threads, `standby` does without
//! one, with an `undertaker` and the maker of its `network`; `build` performs the plan's steps; `confine` is what the program's own process does to
//! itself before `exec`; [`landlock`] and [`seccomp`] are two of those steps; `sys` holds the system calls that have no
//! safe wrapper.
//!
//! This is the only crate with `unsafe`, and the only code that runs between `clone` and `exec`. It decides
//! nothing: what a plan does not say does not happen.

#![allow(unsafe_code, reason = "system calls between clone and exec; every block says why it is sound")]
#![deny(missing_docs)]

mod build;
mod cloned;
pub mod codec;
mod confine;
mod entrant;
mod fault;
mod init;
mod keeper;
pub mod landlock;
pub mod message;
mod network;
pub mod plan;
pub mod seccomp;
mod standby;
mod sys;
mod undertaker;

use std::ffi::OsStr;
use std::process::ExitCode;

pub use cloned::Order;
pub use fault::Fault;
pub use standby::{Standby, stand_by};
pub use sys::{acting_as, with_files_of};

/// The name under which the binary starts itself anew as the keeper.
pub const KEEPER: &str = "belljar-keeper";

/// Whether a process of this name is to be the keeper: the first question in `main`.
#[must_use]
pub fn is_keeper(argv0: Option<&OsStr>) -> bool {
    argv0 == Some(OsStr::new(KEEPER))
}

/// Is the keeper: makes the one box that it is told to make, and outlives it. Standard input is the socket.
#[must_use]
pub fn keep() -> ExitCode {
    keeper::live()
}
