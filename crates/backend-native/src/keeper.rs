//! The caller's side of the keeper: starts it, sends it a plan, hears from it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_jail::message::{self, Reply, Request};
use belljar_jail::plan::Plan;
use belljar_jail::{Standby, codec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

/// A keeper that has been started. Dropping it destroys its box.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: Pid,
    pidfd: OwnedFd,
    /// `None` once we have hung up.
    socket: Option<OwnedFd>,
}

/// The three streams of the program, its ends.
pub(crate) struct ProgramEnds {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Keeper {
    /// Starts this same binary anew as a keeper: one thread, no environment, nothing of ours in its memory. It
    /// begins to load while the caller still plans.
    pub(crate) fn start() -> io::Result<Keeper> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let process = Command::new("/proc/self/exe")
            .arg0(belljar_jail::KEEPER)
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        Keeper::adopt(Standby { pid: pid.ok_or(io::ErrorKind::NotFound)?, socket: ours })
    }

    /// Takes over a keeper that was started before.
    pub(crate) fn adopt(standby: Standby) -> io::Result<Keeper> {
        let Standby { pid, socket } = standby;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Keeper { pid, pidfd, socket: Some(socket) })
    }

    /// Its process id, which is unique among live keepers.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// A second handle on the socket, which must be gone before [`dismiss`](Keeper::dismiss) can hang up.
    pub(crate) fn share_socket(&self) -> io::Result<OwnedFd> {
        self.socket()?.try_clone_to_owned()
    }

    /// Sends the plan, the contents of its files, and the program's ends of its streams.
    pub(crate) fn order(&self, plan: &Plan, contents: &[u8], ends: &ProgramEnds) -> io::Result<()> {
        let mut payload = File::from(rustix::fs::memfd_create("plan", MemfdFlags::CLOEXEC)?);
        payload.write_all(contents)?;
        let plan_offset = payload.stream_position()?;
        let encoded = codec::encode(plan);
        payload.write_all(&encoded)?;
        payload.seek(SeekFrom::Start(0))?;
        let request = Request::Make { plan_offset, plan_length: encoded.len() as u64 };
        let mut beside = vec![payload.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()];
        beside.extend(ends.stdin.as_ref().map(AsFd::as_fd));
        message::send(self.socket()?, &request, &beside)
    }

    /// The next thing that it says; `None` if it has died.
    pub(crate) fn hear(&self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        message::receive(self.socket()?)
    }

    /// Asks it to kill everything in the box.
    pub(crate) fn kill_box(&self) {
        if let Ok(socket) = self.socket() {
            let _ = message::send(socket, &Request::Kill, &[]);
        }
    }

    /// Kills the keeper itself; the kernel then kills the box.
    pub(crate) fn kill(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Hangs up: it may go.
    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Hangs up and waits for it to be gone. It kills its box if that still lives, and removes what is left. One
    /// that does not go (a file server that hangs, say) is killed, and not waited for beyond that.
    pub(crate) fn dismiss(&mut self) {
        self.hang_up();
        for patience in [Duration::from_secs(5), Duration::from_secs(1)] {
            if self.is_gone_within(patience) {
                return;
            }
            self.kill();
        }
    }

    fn is_gone_within(&self, patience: Duration) -> bool {
        if let Ok(patience) = patience.try_into() {
            let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&patience));
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // Nothing to wait for: it was waited for before.
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.dismiss();
    }
}
