//! A keeper in waiting: forked by a program that is about to run one thing, before it does anything else.
//!
//! Starting the keeper by `exec` costs as much as starting any program, about a millisecond. A program that has just
//! begun has one thread and nothing in its memory but its arguments and environment; forked at that moment, a keeper
//! that wipes those two is as clean as a new one, and the namespaces are there by the time that the plan is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::keeper::{self, Ahead};
use crate::sys::{self, Fork};

/// A keeper that waits for its plan.
#[derive(Debug)]
pub struct Standby {
    /// Its process, a child of ours.
    pub pid: Pid,
    /// The socket to it. It goes away when this is closed.
    pub socket: OwnedFd,
}

/// Forks a keeper that makes PID 1 and its namespaces at once. To be called first thing in `main`.
///
/// # Errors
/// As `fork(2)`; also if there is a second thread. `Unsupported` where PID 1 has to be born into its cgroup, because
/// there version 2 is all there is.
pub fn stand_by() -> io::Result<Standby> {
    if rustix::fs::access("/sys/fs/cgroup/cgroup.controllers", rustix::fs::Access::EXISTS).is_ok() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match sys::fork()? {
        Fork::Parent(pid) => Ok(Standby { pid, socket: ours }),
        Fork::Child => {
            let status = become_keeper(&theirs).map_or(1, |()| 0);
            sys::exit_now(status)
        }
    }
}

fn become_keeper(socket: &OwnedFd) -> io::Result<()> {
    sys::install(socket.as_fd(), 0)?;
    let _ = keeper::live(Ahead::Namespaces);
    Ok(())
}
