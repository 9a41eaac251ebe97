//! A PID 1 that `belljar run` makes before it does anything else.
//!
//! A program that has just started has one thread and little in memory except its arguments and environment. A PID 1
//! that is cloned at that moment wipes them where the kernel put them. What the program copied of them concerns the box
//! anyway, and code inside cannot read PID 1. Its namespaces exist by the time the plan does, and no other process is
//! between it and the program. If the program dies, the kernel kills PID 1, and the [`undertaker`](crate::undertaker)
//! removes the cgroups; otherwise a keeper would do both.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;

use crate::fault::{Doing, Fault};
use crate::init_handle::{InitHandle, Order};
use crate::message::{self, Reply};
use crate::plan::CgroupEntry;
use crate::sys::{self, ResourceUse};
use crate::undertaker::Undertaker;

/// A PID 1 that waits for its plan, and later the one in its box. Dropping it destroys the box.
#[derive(Debug)]
pub struct Standby {
    cloned: InitHandle,
    undertaker: Option<Undertaker>,
    /// Held only by us: when we die, for any reason, PID 1 sees that the other end has been closed.
    lifeline: Option<OwnedFd>,
}

/// Makes PID 1 and its namespaces. Call it first in `main`.
///
/// # Errors
/// As `clone3(2)`; also if there is a second thread. `Unsupported` if only cgroup v2 is there, because PID 1 must then
/// be cloned into its cgroup.
pub fn stand_by() -> io::Result<Standby> {
    if rustix::fs::access("/sys/fs/cgroup/cgroup.controllers", rustix::fs::Access::EXISTS).is_ok() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    sys::keep_dead_children();
    let cloned = InitHandle::ahead().map_err(|fault| fault.error())?;
    Ok(Standby { cloned, undertaker: None, lifeline: None })
}

impl Standby {
    /// The process id of PID 1, as its parent sees it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.cloned.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Becomes readable when there is a message.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.cloned.socket()
    }

    /// Sends PID 1 its plan. There must be no other thread yet. PID 1 makes nothing that belongs to this run before
    /// [`admit`](Standby::admit).
    ///
    /// # Errors
    /// What was being done, and why it failed. No instruction of the program has run.
    pub fn order(&mut self, order: &Order) -> Result<(), Fault> {
        let (far, near) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).doing(|| "make the lifeline pipe of PID 1")?;
        self.lifeline = Some(near);
        self.cloned.take_over(order, far).map_err(|fault| self.last_words().unwrap_or(fault))?;
        // This happens while PID 1 builds the box. An undertaker first closes its copy of our end of the lifeline.
        let hired = Undertaker::hire(&order.plan.orphans, self.cloned.pid(), self.cloned.pidfd());
        self.undertaker = Some(hired.doing(|| "start the undertaker")?);
        Ok(())
    }

    /// Lets PID 1 into the box's cgroup, which must exist and have its limits by now.
    ///
    /// # Errors
    /// What was being done, and why it failed.
    pub fn admit(&self, cgroup: &CgroupEntry) -> Result<(), Fault> {
        self.cloned.let_into(cgroup).map_err(|fault| self.last_words().unwrap_or(fault))
    }

    /// The next message from PID 1. `None` means that it and everything in its box are dead.
    ///
    /// # Errors
    /// As `recvmsg(2)`.
    pub fn hear(&mut self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        match message::receive::<Reply>(self.cloned.socket())? {
            Some((Reply::Ended { status, .. } | Reply::Deserted { status }, _)) => {
                Ok(Some((self.bury(Some(status)), Vec::new())))
            }
            None => Ok(Some((self.bury(None), Vec::new()))),
            news @ Some((
                Reply::Hired { .. }
                | Reply::Ready
                | Reply::Started
                | Reply::Listening
                | Reply::Uplink
                | Reply::Supplied
                | Reply::Template
                | Reply::Failed { .. },
                _,
            )) => Ok(news),
        }
    }

    /// The last message of a PID 1 that is already gone.
    fn last_words(&self) -> Option<Fault> {
        let mut socket = [PollFd::from_borrowed_fd(self.cloned.socket(), PollFlags::IN)];
        poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok().filter(|ready| *ready > 0)?;
        match message::receive(self.cloned.socket()).ok()?? {
            (Reply::Failed { fault }, _) => Some(fault),
            _ => None,
        }
    }

    fn bury(&mut self, ended: Option<i32>) -> Reply {
        let (status, used) = self.cloned.end().unwrap_or((libc::SIGKILL, ResourceUse::default()));
        // The mounts are torn down while the caller reads counters and removes the cgroups.
        if let Some(undertaker) = &self.undertaker {
            undertaker.let_mounts_go();
        }
        let ResourceUse { cpu_micros, max_rss } = used;
        Reply::Ended { status: ended.unwrap_or(status), cpu_micros, max_rss }
    }

    /// Kills everything in the box.
    pub fn kill(&self) {
        self.cloned.kill();
    }

    /// Kills what remains of the box, and waits until it is gone.
    pub fn dismiss(&mut self) {
        self.cloned.end_unless_settled();
        self.undertaker = None;
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.dismiss();
    }
}
