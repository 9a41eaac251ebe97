//! The caller's side of the warden, from which a server's keepers are forked.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use belljar_host::reexec::socket_pair;
use belljar_jail::message::{self, Reply, Request};
use rustix::process::Pid;

use crate::keeper::Process;

/// A warden, started when a keeper is first needed, and started again after it has died.
#[derive(Debug, Default)]
pub(crate) struct Warden(Mutex<Option<Process>>);

impl Warden {
    /// A new keeper.
    pub(crate) fn hire(&self) -> io::Result<Process> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(warden) = started.as_ref() {
            match hire_from(warden) {
                Err(error) if is_gone(&error) => *started = None,
                other => return other,
            }
        }
        hire_from(started.insert(Process::start_as(belljar_jail::WARDEN)?))
    }
}

fn hire_from(warden: &Process) -> io::Result<Process> {
    let (ours, theirs) = socket_pair()?;
    message::send(warden.socket()?, &Request::Hire, &[theirs.as_fd()])?;
    match message::receive(warden.socket()?)? {
        Some((Reply::Hired { pid }, beside)) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            let pidfd = beside.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
            Ok(Process::hired(pid, pidfd, ours))
        }
        Some((Reply::Failed { fault }, _)) => Err(fault.error()),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
