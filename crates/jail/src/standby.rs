//! A keeper in waiting: forked by a program that is about to run one thing.
//!
//! Starting the keeper by `exec` costs as much as starting any program, about a millisecond. A program that has one
//! thread and little in its memory but its arguments and environment can fork it instead; with those two wiped it
//! knows nothing that the box will not be told, and it is there by the time that the plan is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::sys::{self, Fork};
use crate::{Ahead, KEEPER, keeper};

/// A keeper that waits for its plan.
#[derive(Debug)]
pub struct Standby {
    /// Its process, a child of ours.
    pub pid: Pid,
    /// The socket to it. It goes away when this is closed.
    pub socket: OwnedFd,
}

/// Forks a keeper, which may begin with the box at once.
///
/// # Errors
/// As `fork(2)`; also if there is a second thread.
pub fn stand_by(ahead: Ahead) -> io::Result<Standby> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match sys::fork()? {
        Fork::Parent(pid) => Ok(Standby { pid, socket: ours }),
        Fork::Child => {
            let status = become_keeper(&theirs, ahead).map_or(1, |()| 0);
            sys::exit_now(status)
        }
    }
}

fn become_keeper(socket: &OwnedFd, ahead: Ahead) -> io::Result<()> {
    sys::install(socket.as_fd(), 0)?;
    sys::forget_arguments_and_environment(KEEPER)?;
    let _ = keeper::live(ahead);
    Ok(())
}
