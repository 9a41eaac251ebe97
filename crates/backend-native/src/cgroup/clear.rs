//! Removes everything in a cgroup that was delegated to a server. The server may have made any number of cgroups,
//! nested so deeply that no path reaches them. So the tree is walked from directory to directory, and only for a
//! limited time.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// How long this may take. The next sweep removes what is left.
const PATIENCE: Duration = Duration::from_secs(2);
const A_MOMENT: Duration = Duration::from_millis(1);

/// Kills and removes what is in this directory, as far as time allows.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut here = open(CWD, dir.as_os_str())?;
    let mut way: Vec<CString> = Vec::new();
    loop {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if let Some(name) = first_within(&here)? {
            match open(here.as_fd(), OsStr::from_bytes(name.as_bytes())) {
                Ok(within) => {
                    here = within;
                    way.push(name);
                }
                // Its keeper removed it first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        let Some(name) = way.pop() else { return Ok(()) };
        end_members(here.as_fd());
        let above = open(here.as_fd(), OsStr::new(".."))?;
        match rustix::fs::unlinkat(&above, name.as_c_str(), AtFlags::REMOVEDIR) {
            // Its processes are about to be gone; it is tried again.
            Err(Errno::BUSY) => std::thread::sleep(A_MOMENT),
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        here = above;
    }
}

/// Whether there are cgroups in this one: then waiting does not help.
pub(super) fn holds_others(dir: &Path) -> bool {
    open(CWD, dir.as_os_str()).and_then(|dir| first_within(&dir)).is_ok_and(|within| within.is_some())
}

fn open(from: BorrowedFd<'_>, path: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(from, path, flags, Mode::empty())?)
}

fn first_within(dir: &OwnedFd) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// Checks membership again after opening a pidfd: the number may have been reused.
fn end_members(dir: BorrowedFd<'_>) {
    for pid in members(dir) {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if pid != getpid() && members(dir).contains(&pid) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

fn members(dir: BorrowedFd<'_>) -> Vec<Pid> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(dir, "cgroup.procs", flags, Mode::empty()) else { return Vec::new() };
    let text = io::read_to_string(std::fs::File::from(file)).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}
