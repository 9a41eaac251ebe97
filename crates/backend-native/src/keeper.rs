//! The caller's side of a box: starts its keeper or adopts a PID 1 on standby, sends the plan, receives the reports.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::request::InputFile;
use belljar_host::reexec::{self, Reexecuted};
use belljar_jail::message::{self, Reply, Request};
use belljar_jail::plan::{CgroupEntry, Input, Plan};
use belljar_jail::{Fault, Order, Standby, codec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::MemfdFlags;
use rustix::net::sockopt::Timeout;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

/// How long a keeper may take to end after its socket was closed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The process between us and a box. Dropping it destroys the box.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// A separate process.
    Process(Process),
    /// None: PID 1 is our own child, which `main` made.
    None(Box<Standby>),
}

/// A keeper that has been started, or a warden. Dropping it closes its socket and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    /// `None` once it is closed.
    socket: Option<OwnedFd>,
    /// Whether it is our child, and not the warden's.
    ours: bool,
}

/// The program's ends of its three streams.
pub(crate) struct ProgramEnds {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl ProgramEnds {
    fn try_clone(&self) -> io::Result<ProgramEnds> {
        let ProgramEnds { stdin, stdout, stderr } = self;
        Ok(ProgramEnds {
            stdin: stdin.try_clone()?,
            stdout: stdout.try_clone()?,
            stderr: stderr.try_clone()?,
        })
    }
}

/// Why a box was not ordered.
pub(crate) enum OrderError {
    /// The plan could not be sent.
    Unsent(io::Error),
    /// It could not be carried out.
    Failed(Fault),
}

impl Keeper {
    /// Starts this same binary again as a keeper: one thread, no environment, none of our memory. It loads while the
    /// caller still plans.
    pub(crate) fn start() -> io::Result<Keeper> {
        Process::start_as(belljar_jail::KEEPER).map(Keeper::Process)
    }

    /// A number that no other live box has: the process id of its keeper, or of its PID 1.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Keeper::Process(process) => process.pid.as_raw_nonzero().get().unsigned_abs(),
            Keeper::None(standby) => standby.id(),
        }
    }

    pub(crate) fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Keeper::Process(process) => process.socket(),
            Keeper::None(standby) => Ok(standby.socket()),
        }
    }

    /// A second handle on the socket, which must be closed before [`dismiss`](Keeper::dismiss) can disconnect.
    pub(crate) fn share_socket(&self) -> io::Result<OwnedFd> {
        self.socket()?.try_clone_to_owned()
    }

    /// Sends the plan, the contents of its files, and the program's ends of its streams. This process must not have
    /// started any thread yet.
    pub(crate) fn order(
        &mut self,
        plan: Plan,
        contents: &[u8],
        ends: &ProgramEnds,
        template: Option<&OwnedFd>,
    ) -> Result<(), OrderError> {
        let encoded = codec::encode(&plan);
        let payload = payload(contents, &encoded).map_err(OrderError::Unsent)?;
        let (plan_offset, plan_length) = (contents.len() as u64, encoded.len() as u64);
        let ProgramEnds { stdin, stdout, stderr } = ends.try_clone().map_err(OrderError::Unsent)?;
        let order = Order { plan, plan_offset, plan_length, payload, stdin, stdout, stderr, template: None };
        match self {
            Keeper::Process(process) => process.order(&order, template).map_err(OrderError::Unsent),
            Keeper::None(standby) => standby.order(&order).map_err(OrderError::Failed),
        }
    }

    /// Whether the box waits for [`admit`](Keeper::admit) before it enters its cgroup, so that the cgroup can be made
    /// while the box is built.
    pub(crate) fn waits_for_cgroup(&self) -> bool {
        matches!(self, Keeper::None(_))
    }

    /// The box's cgroup exists, and has its limits.
    pub(crate) fn admit(&self, cgroup: &CgroupEntry) -> Result<(), Fault> {
        match self {
            Keeper::Process(_) => Ok(()),
            Keeper::None(standby) => standby.admit(cgroup),
        }
    }

    /// A zygote's child has entered the box, and is to be inspected.
    pub(crate) fn say_entered(&self) -> io::Result<()> {
        match self {
            Keeper::Process(process) => message::send(process.socket()?, &Request::Entered, &[]),
            Keeper::None(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Has files written into this directory of the box by a process in the box's cgroup. The answer follows.
    pub(crate) fn supply(&self, dir: BorrowedFd<'_>, files: &[InputFile]) -> io::Result<()> {
        let Keeper::Process(process) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let (mut inputs, mut offset) = (Vec::new(), 0);
        let mut payload = File::from(rustix::fs::memfd_create("files", MemfdFlags::CLOEXEC)?);
        for InputFile { path, content, executable } in files {
            payload.write_all(content)?;
            let (path, length) = (path.as_str().into(), content.len() as u64);
            inputs.push(Input { path, offset, length, executable: *executable });
            offset += length;
        }
        let inputs = codec::encode(&inputs);
        payload.write_all(&inputs)?;
        let request = Request::Supply { list_offset: offset, list_length: inputs.len() as u64 };
        message::send(process.socket()?, &request, &[payload.as_fd(), dir])
    }

    /// Asks for an uplink of a box whose program waits for its code. The answer follows.
    pub(crate) fn ask_for_uplink(&self) -> io::Result<()> {
        let Keeper::Process(process) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        message::send(process.socket()?, &Request::Uplink, &[])
    }

    /// The next message; `None` if it has died.
    pub(crate) fn hear(&mut self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        match self {
            Keeper::Process(process) => message::receive(process.socket()?),
            Keeper::None(standby) => standby.hear(),
        }
    }

    /// Has everything in the box killed.
    pub(crate) fn kill_box(&self) {
        match self {
            Keeper::Process(process) => {
                if let Ok(socket) = process.socket() {
                    let _ = message::send(socket, &Request::Kill, &[]);
                }
            }
            Keeper::None(standby) => standby.kill(),
        }
    }

    /// Kills the keeper itself; the kernel then kills the box.
    pub(crate) fn kill(&self) {
        match self {
            Keeper::Process(process) => process.kill(),
            Keeper::None(standby) => standby.kill(),
        }
    }

    /// Whether it is a separate process, which removes the box's cgroups itself when it is dismissed.
    pub(crate) fn is_process(&self) -> bool {
        matches!(self, Keeper::Process(_))
    }

    /// Tells it that it may end, as it is about to when its socket closes.
    pub(crate) fn say_goodbye(&self) {
        if let Keeper::Process(process) = self
            && let Ok(socket) = process.socket()
        {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        }
    }

    /// Disconnects, and waits until it is gone, and its box with it.
    pub(crate) fn dismiss(&mut self) {
        match self {
            Keeper::Process(process) => process.dismiss(),
            Keeper::None(standby) => standby.dismiss(),
        }
    }
}

impl Process {
    /// This same binary, started again under another name.
    pub(crate) fn start_as(name: &str) -> io::Result<Process> {
        let Reexecuted { pid, pidfd, socket } = reexec::start_as(name)?;
        Ok(Process { pid, pidfd, socket: Some(socket), ours: true })
    }

    /// A keeper that the warden forked.
    pub(crate) fn hired(pid: Pid, pidfd: OwnedFd, socket: OwnedFd) -> Process {
        Process { pid, pidfd, socket: Some(socket), ours: false }
    }

    pub(crate) fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Has it make a template of a plan's foundation, and returns that. It then ends.
    pub(crate) fn make_template(self, plan: &Plan, patience: Duration) -> io::Result<OwnedFd> {
        let encoded = codec::encode(plan);
        let payload = payload(&[], &encoded)?;
        let request = Request::MakeTemplate { plan_length: encoded.len() as u64 };
        let socket = self.socket()?;
        rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(patience))?;
        message::send(socket, &request, &[payload.as_fd()])?;
        match message::receive(socket) {
            Ok(Some((Reply::Template, beside))) => {
                beside.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
            Ok(Some((Reply::Failed { fault }, _))) => Err(fault.error()),
            Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => {
                self.kill();
                Err(error)
            }
        }
    }

    fn order(&self, order: &Order, template: Option<&OwnedFd>) -> io::Result<()> {
        let Order { plan_offset, plan_length, payload, stdin, stdout, stderr, .. } = order;
        let request = Request::Make { plan_offset: *plan_offset, plan_length: *plan_length };
        let beside: Vec<_> =
            [payload, stdin, stdout, stderr].into_iter().chain(template).map(AsFd::as_fd).collect();
        message::send(self.socket()?, &request, &beside)
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// It kills its box if that is still alive, and removes what is left. A keeper that does not end (because of a file
    /// server that hangs, say) is killed, and not waited for any longer.
    fn dismiss(&mut self) {
        self.socket = None;
        for patience in [PATIENCE, Duration::from_secs(1)] {
            if self.is_gone_within(patience) {
                return;
            }
            self.kill();
        }
    }

    fn is_gone_within(&self, patience: Duration) -> bool {
        let mut death = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if let Ok(patience) = patience.try_into() {
            let _ = poll(&mut death, Some(&patience));
        }
        if !self.ours {
            return !death[0].revents().is_empty();
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // Nothing to wait for: it has been waited for already.
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// The contents of a plan's files and the plan itself, one after the other.
fn payload(contents: &[u8], plan: &[u8]) -> io::Result<OwnedFd> {
    let mut payload = File::from(rustix::fs::memfd_create("plan", MemfdFlags::CLOEXEC)?);
    payload.write_all(contents)?;
    payload.write_all(plan)?;
    payload.rewind()?;
    Ok(payload.into())
}
