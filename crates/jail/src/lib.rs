//! The jail: performs a [`Plan`](plan::Plan), then hands over to the program.
//!
//! ```text
//! caller ──plan, descriptors──▶ (keeper) ──clone3──▶ PID 1 ──vfork──▶ the program
//!        ◀─started, next, ended          ◀──reports──      ◀──wait──
//! ```
//!
//! In reading order: [`plan`] is what will be done, as data; [`message`] and [`codec`] carry it. `init_handle` is PID 1 seen
//! from outside, `init` is PID 1 itself; `keeper` is the process between it and a caller with threads; `standby` does
//! without one, with an `undertaker`. `build` performs the plan's steps, [`uplink`] one of them (`late_uplink`: for a box that exists already); `confine` is what the program's own process does
//! to itself before `exec`, `leash` the same for a program without a box, and `helper` for one that Belljar itself
//! needs. [`entry_trampoline`] brings a program from a zygote
//! instead, and `entry_check` inspects it. [`privilege_drop`] takes root's rights from a server and everything it starts. [`landlock`]
//! and [`seccomp`] are two of the steps of confinement; `sys` holds the system calls that have no safe wrapper, and `memory`
//! the allocator of the program.
//!
//! This is the only crate with `unsafe`, and the only code that runs between `clone` and `exec`. It decides
//! nothing: what a plan does not say does not happen.

#![allow(unsafe_code, reason = "system calls between clone and exec; every block says why it is sound")]
#![deny(missing_docs)]

mod build;
pub mod codec;
mod confine;
mod entry_check;
pub mod entry_trampoline;
mod fault;
mod helper;
mod init;
mod init_handle;
mod keeper;
pub mod landlock;
mod late_uplink;
mod leash;
mod memory;
pub mod message;
pub mod plan;
pub mod privilege_drop;
pub mod seccomp;
mod standby;
mod supply;
mod sys;
mod template;
mod undertaker;
pub mod uplink;
mod visit;
mod warden;

use std::ffi::OsStr;
use std::process::ExitCode;

pub use fault::{About, Fault};
pub use helper::{HelperLimits, confine_gateway, confine_helper, confine_parser, renew_cpu_time};
pub use init_handle::Order;
pub use leash::leash;
pub use memory::{Allocator, release_unused};
pub use standby::{Standby, stand_by};
pub use sys::{ResourceUse, acting_as, close_inherited, used_by_children, with_files_of};

/// The name under which the binary starts itself again as the keeper.
pub const KEEPER: &str = "belljar-keeper";

/// `net.ipv4.tcp_rmem` of a box: the least, the first and the largest receive buffer of a connection. The first is what
/// it keeps before it is accepted, which nobody is charged for. It grows as the program reads.
pub const TCP_RECEIVE_BUFFER: &str = "4096 8192 4194304";

/// The name under which it starts itself again as the warden.
pub const WARDEN: &str = "belljar-warden";

/// Runs as a keeper or a warden until the end, if the process has that name. `main` calls this first. The keeper makes
/// one box and outlives it; the warden makes keepers. Standard input is the socket to the process that started it.
#[must_use]
pub fn keep(argv0: Option<&OsStr>) -> Option<ExitCode> {
    match argv0.and_then(OsStr::to_str) {
        Some(KEEPER) => Some(keeper::live()),
        Some(WARDEN) => Some(warden::live()),
        _ => None,
    }
}
