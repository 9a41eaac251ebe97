//! The warden: the process from which a server's keepers are forked.
//!
//! A keeper must have one thread and none of its caller's memory. Starting this binary again for each box achieves
//! that, but costs more than building the box. Forking from a process that already has both properties costs a tenth of
//! that. The warden does nothing else. It receives no plan, opens nothing and holds no box. If it dies, the kernel
//! kills its keepers and, with them, their boxes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::process::Signal;

use crate::fault::Fault;
use crate::init_handle::leave_the_callers_world;
use crate::keeper;
use crate::message::{self, Reply, Request};
use crate::seccomp::Filter;
use crate::sys::{self, Fork};

/// The life of the warden. Its standard input is the socket to the caller.
pub(crate) fn live() -> ExitCode {
    let prepared = sys::close_from(3).and_then(|()| leave_the_callers_world());
    let Ok(()) = prepared else { return ExitCode::FAILURE };
    drop_groups();
    sys::forget_dead_children();
    // Every keeper needs both, and inherits them compiled.
    let _ = (Filter::standard(), Filter::reaper());
    while let Ok(Some((request, beside))) = message::receive::<Request>(rustix::stdio::stdin()) {
        match (request, beside.into_iter().next()) {
            (Request::Hire, Some(socket)) => {
                if hire(&socket).is_err() {
                    return ExitCode::FAILURE;
                }
            }
            _ => return ExitCode::FAILURE,
        }
    }
    // The caller is gone. The keepers notice that too, and must kill boxes and remove cgroups before they end.
    while sys::wait_any().is_ok() {}
    ExitCode::SUCCESS
}

/// Gives up the groups of the server, which are for files and sockets of its own: the ledger, Docker's socket. No box needs
/// one. Only a server that was started without rights cannot; it has no groups but its user's.
fn drop_groups() {
    let _ = rustix::thread::set_thread_groups(&[]);
}

/// Forks a keeper whose caller is at the other end of this socket, and reports it to our caller. If the fork fails, the
/// socket is closed, as when a keeper dies.
fn hire(socket: &OwnedFd) -> io::Result<()> {
    let warden = rustix::process::getpid();
    match sys::clone_into(0, None) {
        Ok((Fork::Child, _)) => {
            sys::keep_dead_children();
            let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let orphaned = rustix::process::getppid() != Some(warden);
            if tied.is_ok() && !orphaned && sys::install(socket.as_fd(), 0).is_ok() {
                keeper::live();
            }
            sys::exit_now(0)
        }
        Ok((Fork::Parent(pid), Some(pidfd))) => {
            let hired = Reply::Hired { pid: pid.as_raw_nonzero().get().unsigned_abs() };
            message::send(rustix::stdio::stdin(), &hired, &[pidfd.as_fd()])
        }
        Ok((Fork::Parent(_), None)) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => {
            let failed = Fault::new("fork a keeper", &error).into_reply();
            message::send(rustix::stdio::stdin(), &failed, &[])
        }
    }
}
