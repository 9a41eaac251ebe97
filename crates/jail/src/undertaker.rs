//! The undertaker: a process that waits for its caller to end, and then removes the cgroups of its box.
//!
//! When the parent of a box dies, the kernel kills everything in it, and its mounts go with its last process; but the
//! directories of cgroups remain. While the caller lives, it removes them itself. Then the undertaker's only task is to
//! be the last process that holds the box's mounts, so that tearing them down delays nobody.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::sys;

/// How long a box may take to die after its caller. The more memory and processes it has, the longer.
const BOX_PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// How long an undertaker may take to end. All it has to do is tear down mounts.
const OWN_PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long to wait before checking again whether a cgroup is empty.
const A_MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

const LET_MOUNTS_GO: u8 = b'm';
const DISMISSED: u8 = b'd';

/// A running undertaker. Dropping it dismisses it, and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Undertaker {
    pid: Pid,
    /// The kernel closes it when the caller ends, for any reason.
    line: OwnedFd,
}

impl Undertaker {
    /// Starts one for the box of this PID 1, whose cgroups these are.
    pub(crate) fn hire(orphans: &[PathBuf], init: Pid, init_pidfd: BorrowedFd<'_>) -> io::Result<Undertaker> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let orphans = orphans.iter().map(|dir| sys::c_path(dir)).collect::<io::Result<Vec<_>>>()?;
        let mounts = sys::c_string(format!("/proc/{}/ns/mnt", init.as_raw_nonzero()).as_bytes())?;
        let task = Task {
            line: reader.as_raw_fd(),
            death: init_pidfd.as_raw_fd(),
            mounts: Box::leak(mounts.into_boxed_c_str()),
            orphans: orphans.leak(),
        };
        let pid = sys::start_beside(move || drop(task.perform()))?;
        Ok(Undertaker { pid, line: writer })
    }

    /// The box is dead.
    pub(crate) fn let_mounts_go(&self) {
        let _ = rustix::io::write(&self.line, &[LET_MOUNTS_GO]);
    }

    /// If it does not end, it is killed, and not waited for any longer.
    fn wait(&self) -> io::Result<()> {
        if sys::wait_shortly(self.pid)?.is_some() {
            return Ok(());
        }
        let pidfd = rustix::process::pidfd_open(self.pid, PidfdFlags::empty())?;
        let mut end = [PollFd::new(&pidfd, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut end, Some(&OWN_PATIENCE)))? == 0 {
            return Ok(rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)?);
        }
        sys::wait_for(self.pid).map(drop)
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.line, &[DISMISSED]);
        let _ = self.wait();
    }
}

/// What an undertaker works with. Its process shares the caller's memory, so none of this is ever freed, and nothing it
/// does may allocate.
#[derive(Clone, Copy)]
struct Task {
    line: RawFd,
    death: RawFd,
    mounts: &'static CStr,
    orphans: &'static [CString],
}

impl Task {
    fn perform(self) -> io::Result<()> {
        // A Ctrl-C at the caller's terminal is not meant for it.
        let _ = rustix::process::setsid();
        let [line, death] = sys::keep_only(sys::adopt([self.line, self.death]))?;
        // If PID 1 does not have its own mount namespace yet, there is nothing to hold.
        let mut mounts = rustix::fs::open(self.mounts, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let mut word = [0];
        while rustix::io::retry_on_intr(|| rustix::io::read(&line, &mut word))? == 1 {
            match word[0] {
                DISMISSED => return Ok(()),
                _ => drop(mounts.take()),
            }
        }
        // The caller has died, and the kernel is about to kill the box, unless something in it has cleared the
        // parent-death signal.
        drop(mounts);
        let _ = rustix::process::pidfd_send_signal(&death, Signal::KILL);
        let mut end = [PollFd::from_borrowed_fd(death.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut end, Some(&BOX_PATIENCE)))?;
        self.orphans.iter().for_each(|dir| remove(dir));
        Ok(())
    }
}

/// The kernel may take a moment to see that a cgroup is empty. Cgroups inside it belong to keepers, which remove them.
fn remove(cgroup: &CStr) {
    for _ in 0..1000 {
        match rustix::fs::unlinkat(CWD, cgroup, AtFlags::REMOVEDIR) {
            Err(Errno::BUSY) => drop(poll(&mut [], Some(&A_MOMENT))),
            _ => return,
        }
    }
}
