//! This same binary, started again under another name: one thread, no environment, none of our memory.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

/// A child process started in this way. It must be waited for.
#[derive(Debug)]
pub struct Reexecuted {
    /// Its process id.
    pub pid: Pid,
    /// The same, safe against reuse of the number.
    pub pidfd: OwnedFd,
    /// Our end of the socket that is its standard input.
    pub socket: OwnedFd,
}

/// Starts it. Its name tells it what to do.
///
/// # Errors
/// As `fork(2)`, `execve(2)` and `socketpair(2)`.
pub fn start_as(name: &str) -> io::Result<Reexecuted> {
    let (socket, theirs) = socket_pair()?;
    let process = Command::new("/proc/self/exe")
        .arg0(name)
        .env_clear()
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    Ok(Reexecuted { pid, pidfd, socket })
}

/// Two ends of a socket that keeps messages apart and carries descriptors.
///
/// # Errors
/// As `socketpair(2)`.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
