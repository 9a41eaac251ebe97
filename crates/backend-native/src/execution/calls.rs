//! System calls of a program that wait for a decision, and kernel memory that its cgroup does not limit.

use std::io;
use std::os::fd::OwnedFd;

use belljar_core::limits::BoxLimits;
use belljar_host::descriptors::Locks;
use belljar_host::rations::Rations;
use belljar_host::sockets::Sockets;
use belljar_jail::seccomp::Listener;
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::cgroup::BoxCgroup;

/// What the kernel holds for a box beyond its memory limit, and the calls that make it hold more.
#[derive(Default)]
pub(super) struct Calls {
    /// Where the calls arrive, while there is a process that can make them.
    listener: Option<Polled>,
    rations: Rations,
    /// Opened when first needed. A box that is just ending may no longer have a process by which to find them.
    sockets: Option<Sockets>,
    locks: Locks,
}

impl Calls {
    /// From now on decides on the calls that this listener hears.
    pub(super) fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        self.listener = Some(Polled::new(listener)?);
        Ok(())
    }

    /// Returns when the state of the listener has changed.
    pub(super) async fn changed(&self) {
        let Some(Polled { state, .. }) = &self.listener else { return std::future::pending().await };
        if state.readable().await.is_ok() {
            // The next change is waited for.
            let unchanged = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = state.try_io(Interest::READABLE, unchanged);
        }
    }

    /// Answers the calls that wait. `true`, once: no process in the box can make any more.
    pub(super) fn answer(&mut self, cgroup: Option<&BoxCgroup>) -> bool {
        let Some(Polled { listener, .. }) = &self.listener else { return false };
        if listener.has_hung_up() {
            self.listener = None;
            return true;
        }
        if self.sockets.is_none() {
            self.sockets = cgroup.and_then(|cgroup| cgroup.sockets().ok());
        }
        // Without a cgroup, memory is not promised, and there is no process by which to find the sockets.
        let (sockets, limited) = (self.sockets.as_ref(), cgroup.is_some());
        let open = || match sockets {
            Some(sockets) => sockets.netlink(),
            None if limited => Ok(usize::MAX),
            None => Ok(0),
        };
        // A call that was not decided on is looked at again by the next tick.
        let _ = self.rations.answer(listener, open);
        false
    }

    /// How much memory the kernel holds for the box beyond its limit.
    pub(super) fn memory_beyond_limit(&mut self, cgroup: &BoxCgroup, limits: &BoxLimits) -> u64 {
        if self.sockets.is_none() {
            self.sockets = cgroup.sockets().ok();
        }
        let sockets = self.sockets.as_ref().and_then(|sockets| sockets.memory().ok()).unwrap_or_default();
        let in_proc = |pid: &Pid| format!("/proc/{}", pid.as_raw_nonzero());
        let processes = || Ok(cgroup.processes()?.iter().map(in_proc).collect());
        // What cannot be counted must not go on.
        let locks = self.locks.memory::<String>(processes).unwrap_or(u64::MAX);
        let buffers = cgroup.memory_beyond_limit(limits).unwrap_or_default();
        buffers.saturating_add(sockets).saturating_add(locks)
    }
}

/// A listener whose state can be waited for.
struct Polled {
    listener: Listener,
    /// The same descriptor. It is no socket; only its state is looked at.
    state: UnixDatagram,
}

impl Polled {
    fn new(descriptor: OwnedFd) -> io::Result<Polled> {
        let state = std::os::unix::net::UnixDatagram::from(descriptor.try_clone()?);
        state.set_nonblocking(true)?;
        Ok(Polled { listener: Listener::new(descriptor), state: UnixDatagram::from_std(state)? })
    }
}
