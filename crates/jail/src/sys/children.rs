//! Waiting for children, and what they used.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::checked;

/// Makes the kernel reap dead children at once: their status is not needed.
pub(crate) fn forget_dead_children() {
    // SAFETY: SIG_IGN is a valid disposition for SIGCHLD; nobody has set another in this process yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Makes the kernel keep dead children until they are waited for, whatever was inherited.
pub(crate) fn keep_dead_children() {
    // SAFETY: SIG_DFL is a valid disposition for SIGCHLD; nobody has set another in this process yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Waits for any child, as PID 1 must. Returns its pid and its raw wait status.
pub(crate) fn wait_any() -> io::Result<(Option<Pid>, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid int that the kernel fills in; no rusage is asked for.
        let waited = checked(unsafe { libc::wait4(-1, &raw mut status, 0, std::ptr::null_mut()) }.into());
        match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(pid) => return Ok((i32::try_from(pid).ok().and_then(Pid::from_raw), status)),
        }
    }
}

/// Whether no child is left, including those that `wait` passes over by default. Children that are already dead are
/// reaped.
pub(crate) fn has_no_children() -> bool {
    loop {
        let options = libc::WNOHANG | libc::__WALL;
        // SAFETY: neither a status nor a rusage is asked for.
        match checked(unsafe { libc::wait4(-1, std::ptr::null_mut(), options, std::ptr::null_mut()) }.into())
        {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.raw_os_error() == Some(libc::ECHILD),
        }
    }
}

/// Waits for one child to end: its raw wait status, and the resources used by it and by every process it waited for.
pub(crate) fn wait_for(pid: Pid) -> io::Result<(i32, ResourceUse)> {
    loop {
        if let Some(ended) = wait_with(pid, 0)? {
            return Ok(ended);
        }
    }
}

/// The same for a child that is about to end. Polls a few times before it blocks, because waking up takes longer than
/// the child's end. `None` if it has not ended by then.
pub(crate) fn wait_shortly(pid: Pid) -> io::Result<Option<(i32, ResourceUse)>> {
    const MOMENT: Duration = Duration::from_micros(300);
    let began = Instant::now();
    while began.elapsed() < MOMENT {
        if let Some(ended) = wait_with(pid, libc::WNOHANG)? {
            return Ok(Some(ended));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

fn wait_with(pid: Pid, options: libc::c_int) -> io::Result<Option<(i32, ResourceUse)>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain C type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: `status` and `usage` are valid for the kernel to fill in.
    match checked(unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) }.into()) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some((status, ResourceUse::from(usage)))),
    }
}

/// The resources that processes used, as the kernel reports them once they were waited for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceUse {
    /// CPU time of all of them.
    pub cpu_micros: u64,
    /// Peak resident memory of the largest, in bytes.
    pub max_rss: u64,
}

/// The resources used by the children of this process that were waited for, and by theirs.
#[must_use]
pub fn used_by_children() -> ResourceUse {
    // SAFETY: an all-zero rusage is a valid value of that plain C type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the kernel to fill in; it cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    usage.into()
}

impl From<libc::rusage> for ResourceUse {
    fn from(usage: libc::rusage) -> ResourceUse {
        let micros =
            |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
        let cpu_micros = micros(usage.ru_utime) + micros(usage.ru_stime);
        ResourceUse { cpu_micros, max_rss: usage.ru_maxrss.cast_unsigned() * 1024 }
    }
}
