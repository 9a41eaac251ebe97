//! A box in waiting: PID 1 made by the program that is about to run one thing, before it does anything else.
//!
//! A program that has just begun has one thread and little in its memory but its arguments and environment. A PID 1 that
//! is cloned at that moment wipes them where the kernel put them; what the program copied of them is about the box
//! anyway, and nobody inside can read PID 1. Its namespaces are there by the time that the plan is, and nobody stands
//! between it and the program. What a keeper would do when the program dies
//! is done by the kernel, which kills PID 1, and by the [`undertaker`](crate::undertaker), which removes the cgroups.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;

use crate::cloned::{Cloned, Order};
use crate::fault::{Doing, Fault};
use crate::message::{self, Reply};
use crate::plan::CgroupEntry;
use crate::sys::{self, ResourceUse};
use crate::undertaker::Undertaker;

/// A PID 1 that waits for its plan, then one in its box. Dropping it destroys the box.
#[derive(Debug)]
pub struct Standby {
    cloned: Cloned,
    undertaker: Option<Undertaker>,
    /// Ours alone: when we die, however we die, PID 1 sees that its other end has been closed.
    lifeline: Option<OwnedFd>,
}

/// Makes PID 1 and its namespaces. To be called first thing in `main`.
///
/// # Errors
/// As `clone3(2)`; also if there is a second thread. `Unsupported` where PID 1 has to be born into its cgroup, because
/// there version 2 is all there is.
pub fn stand_by() -> io::Result<Standby> {
    if rustix::fs::access("/sys/fs/cgroup/cgroup.controllers", rustix::fs::Access::EXISTS).is_ok() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    sys::keep_dead_children();
    let cloned = Cloned::ahead().map_err(|fault| fault.error())?;
    Ok(Standby { cloned, undertaker: None, lifeline: None })
}

impl Standby {
    /// The process id of PID 1, as its maker knows it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.cloned.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Becomes readable when there is something to hear.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.cloned.socket()
    }

    /// Tells PID 1 what its box is. There must be no other thread yet. Of what is the run's own, PID 1 makes nothing
    /// before [`admit`](Standby::admit).
    ///
    /// # Errors
    /// What was being done, and why it failed. No instruction of the program has run.
    pub fn order(&mut self, order: &Order) -> Result<(), Fault> {
        let (far, near) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).doing(|| "make the lifeline pipe of PID 1")?;
        self.lifeline = Some(near);
        self.cloned.take_over(order, far).map_err(|fault| self.last_words().unwrap_or(fault))?;
        // While PID 1 builds the box. The first thing that an undertaker does is to let go of our end of the lifeline.
        let hired = Undertaker::hire(&order.plan.orphans, self.cloned.pid(), self.cloned.pidfd());
        self.undertaker = Some(hired.doing(|| "start the undertaker")?);
        Ok(())
    }

    /// Lets PID 1 into the box's cgroup, which is there by now and has its limits.
    ///
    /// # Errors
    /// What was being done, and why it failed.
    pub fn admit(&self, cgroup: &CgroupEntry) -> Result<(), Fault> {
        self.cloned.let_into(cgroup).map_err(|fault| self.last_words().unwrap_or(fault))
    }

    /// The next thing that PID 1 says. When it has nothing more to say, it and everything in its box are dead.
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
                Reply::Hired { .. } | Reply::Ready | Reply::Started | Reply::Next | Reply::Failed { .. },
                _,
            )) => Ok(news),
        }
    }

    /// What a PID 1 that is gone already had to say.
    fn last_words(&self) -> Option<Fault> {
        let mut socket = [PollFd::from_borrowed_fd(self.cloned.socket(), PollFlags::IN)];
        poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok().filter(|ready| *ready > 0)?;
        match message::receive(self.cloned.socket()).ok()?? {
            (Reply::Failed { doing, errno }, _) => Some(Fault { doing, errno }),
            _ => None,
        }
    }

    fn bury(&mut self, ended: Option<i32>) -> Reply {
        let (status, used) = self.cloned.end().unwrap_or((libc::SIGKILL, ResourceUse::default()));
        // The mounts are taken apart while the caller reads counters and removes the cgroups.
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

    /// Ends what is left, and waits until it is gone.
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
