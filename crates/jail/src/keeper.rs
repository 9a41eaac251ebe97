//! The keeper: the one process on the host's side that makes a box and outlives it.
//!
//! It is this same binary, started anew so that it has one thread, an empty environment and no memory of the
//! caller's. It receives one plan, makes the box, passes on what PID 1 reports, and waits. If the caller dies, it
//! kills the box and removes what the caller would have removed; if it dies itself, the kernel kills PID 1 and
//! with it everything in the box. So whichever of the two is killed, nothing is left running.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use crate::KEEPER;
use crate::build;
use crate::codec;
use crate::fault::{Doing, Fault};
use crate::init::Init;
use crate::message::{self, Handover, Reply, Request};
use crate::plan::{CgroupEntry, IdPair, Identity, Opener, Plan, Step};
use crate::sys::{self, Fork, ResourceUse};

/// What a keeper does before it knows the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Nothing.
    Nothing,
    /// Makes PID 1 and its namespaces, which takes as long as planning does. Not where PID 1 has to be born into a
    /// cgroup of version 2.
    Namespaces,
}

/// The life of the keeper. Its standard input is the socket to the caller.
pub(crate) fn live(ahead: Ahead) -> ExitCode {
    // Whatever else the caller's own caller left open is none of a box's business.
    let Ok(()) = sys::close_from(3) else { return ExitCode::FAILURE };
    let Ok(caller) = rustix::stdio::stdin().try_clone_to_owned() else { return ExitCode::FAILURE };
    match make_box(&caller, ahead) {
        Ok(Some(kept)) => {
            if ahead == Ahead::Namespaces {
                forget_origin();
            }
            kept.keep(&caller);
        }
        Ok(None) => {}
        Err(fault) => drop(message::send(&caller, &fault.into_reply(), &[])),
    }
    ExitCode::SUCCESS
}

/// Receives a plan and makes the box. `None`: the caller went away without asking for one.
fn make_box(caller: &OwnedFd, ahead: Ahead) -> Result<Option<Kept>, Fault> {
    leave_the_callers_world().doing(|| "leave the caller's session")?;
    let early = match ahead {
        Ahead::Namespaces => Some(clone_ahead(caller)?),
        Ahead::Nothing => None,
    };
    let made = match Order::receive(caller).doing(|| "receive the plan")? {
        None => return Ok(None),
        Some(order) => Parts::open(&order.plan).and_then(|parts| match &early {
            Some(early) if parts.v2.is_none() => early.take_over(order, &parts).map(|plan| (None, plan)),
            _ => clone_with(caller, order, parts).map(|(cloned, plan)| (Some(cloned), plan)),
        }),
    };
    let (cloned, plan) = made?;
    // The later of the two is the box; an earlier one that was of no use ends here.
    Ok(cloned.or(early).map(|cloned| Kept { cloned, plan }))
}

const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Makes a PID 1 that waits to be told what its box is.
fn clone_ahead(caller: &OwnedFd) -> Result<Cloned, Fault> {
    let (ours, theirs) = socket_pair().doing(|| "make a socket for PID 1")?;
    match sys::clone_into(NAMESPACES, None).doing(|| "create the namespaces")? {
        (Fork::Child, _) => {
            forget_caller(caller);
            drop(ours);
            forget_origin();
            match Init::from_handover(theirs) {
                Some(init) => init.live(),
                None => sys::exit_now(0),
            }
        }
        (Fork::Parent(pid), pidfd) => Cloned::new(pid, pidfd, ours),
    }
}

/// A keeper that was forked wipes what it inherited, and so does its PID 1, each when it has nothing else to do.
fn forget_origin() {
    if sys::forget_arguments_and_environment(KEEPER).is_err() {
        sys::exit_now(1);
    }
}

/// Makes a PID 1 that knows its plan, in the box's cgroup from its first instruction.
fn clone_with(caller: &OwnedFd, order: Order, parts: Parts) -> Result<(Cloned, Plan), Fault> {
    let (ours, theirs) = socket_pair().doing(|| "make a socket for PID 1")?;
    let into = parts.v2.as_ref().map(AsFd::as_fd);
    match sys::clone_into(NAMESPACES, into).doing(|| "create the namespaces")? {
        (Fork::Child, _) => {
            forget_caller(caller);
            drop(ours);
            let Order { plan, payload, stdin, stdout, stderr, .. } = order;
            let Parts { sources, tasks, .. } = parts;
            let init = Init { plan, keeper: theirs, sources, tasks, payload, stdin, stdout, stderr };
            match init.wait_for_go_ahead() {
                Ok(()) => init.live(),
                Err(_) => sys::exit_now(0),
            }
        }
        (Fork::Parent(pid), pidfd) => {
            let cloned = Cloned::new(pid, pidfd, ours)?;
            cloned.map_identity(&order.plan.identity)?;
            let go_ahead = rustix::net::send(&cloned.init, b"!", SendFlags::NOSIGNAL);
            go_ahead.doing(|| "let PID 1 go on")?;
            Ok((cloned, order.plan))
        }
    }
}

/// PID 1 has no business with the caller, and must not keep its socket open.
fn forget_caller(caller: &OwnedFd) {
    sys::let_go(rustix::stdio::stdin());
    sys::let_go(caller.as_fd());
}

/// A session of its own, so that a Ctrl-C at the caller's terminal is the caller's to handle; no umask and no
/// working directory of the caller's.
fn leave_the_callers_world() -> io::Result<()> {
    // Being a session leader already is as good.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(rustix::process::chdir("/")?)
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// What the caller sent.
struct Order {
    plan: Plan,
    plan_offset: u64,
    plan_length: u64,
    payload: OwnedFd,
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Order {
    fn receive(caller: &OwnedFd) -> io::Result<Option<Order>> {
        let Some((request, descriptors)) = message::receive(caller)? else { return Ok(None) };
        let Request::Make { plan_offset, plan_length } = request else { return Ok(None) };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
        let (payload, stdout, stderr) = (next()?, next()?, next()?);
        let stdin = descriptors.next();
        let (plan, payload) = read_plan(payload, plan_offset, plan_length)?;
        Ok(Some(Order { plan, plan_offset, plan_length, payload, stdin, stdout, stderr }))
    }
}

/// The plan in a payload.
pub(crate) fn read_plan(payload: OwnedFd, offset: u64, length: u64) -> io::Result<(Plan, OwnedFd)> {
    let payload = std::fs::File::from(payload);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    payload.read_exact_at(&mut bytes, offset)?;
    Ok((codec::decode(&bytes).map_err(io::Error::other)?, payload.into()))
}

/// What the keeper opens for a box, with its own rights: the parts of the host that will be shown, if that is the
/// keeper's to do, and the way into the cgroup.
struct Parts {
    sources: Vec<OwnedFd>,
    tasks: Vec<OwnedFd>,
    v2: Option<OwnedFd>,
}

impl Parts {
    fn open(plan: &Plan) -> Result<Parts, Fault> {
        let open = |path: &Path, flags: OFlags| {
            rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
                .doing(|| format!("open the cgroup {}", path.display()))
        };
        let sources = match plan.opener {
            Opener::Keeper => build::open_sources(plan)?,
            Opener::Init => Vec::new(),
        };
        give_workspace_to_code(plan, &sources)?;
        let (mut tasks, mut v2) = (Vec::new(), None);
        match &plan.cgroup {
            CgroupEntry::None => {}
            CgroupEntry::V1 { tasks: files } => {
                tasks = files.iter().map(|file| open(file, OFlags::WRONLY)).collect::<Result<_, _>>()?;
            }
            CgroupEntry::V2 { dir } => v2 = Some(open(dir, OFlags::PATH | OFlags::DIRECTORY)?),
        }
        Ok(Parts { sources, tasks, v2 })
    }
}

/// PID 1, seen from outside. Dropping it kills it and everything in its namespaces.
struct Cloned {
    pid: Pid,
    pidfd: OwnedFd,
    init: OwnedFd,
    /// Its mount namespace, so that taking that apart does not keep the news of its death waiting.
    mounts: Option<std::fs::File>,
}

impl Cloned {
    fn new(pid: Pid, pidfd: Option<OwnedFd>, init: OwnedFd) -> Result<Cloned, Fault> {
        let pidfd = pidfd.ok_or(io::ErrorKind::NotFound).doing(|| "hold on to PID 1")?;
        let mounts = std::fs::File::open(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero())).ok();
        Ok(Cloned { pid, pidfd, init, mounts })
    }

    /// Tells a PID 1 that was made ahead what its box is.
    fn take_over(&self, order: Order, parts: &Parts) -> Result<Plan, Fault> {
        self.map_identity(&order.plan.identity)?;
        let Order { plan, plan_offset, plan_length, payload, stdin, stdout, stderr } = order;
        let sources = u16::try_from(parts.sources.len()).unwrap_or(u16::MAX);
        let handover = Handover::Box { plan_offset, plan_length, stdin: stdin.is_some(), sources };
        let streams = [&payload, &stdout, &stderr].into_iter().chain(&stdin);
        let beside: Vec<_> =
            streams.chain(&parts.sources).chain(&parts.tasks).map(|descriptor| descriptor.as_fd()).collect();
        message::send(&self.init, &handover, &beside).doing(|| "hand the plan to PID 1")?;
        Ok(plan)
    }

    fn map_identity(&self, identity: &Identity) -> Result<(), Fault> {
        map_identity(self.pid, identity).doing(|| "map the box's users")
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Kills it and waits until it is gone: the kernel lets PID 1 go only after all others in its namespace.
    fn end(&self) -> io::Result<(i32, ResourceUse)> {
        self.kill();
        sys::wait_for(self.pid)
    }
}

impl Drop for Cloned {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A box that exists.
struct Kept {
    cloned: Cloned,
    plan: Plan,
}

impl Kept {
    /// Passes messages until the box is dead, then says how it ended.
    fn keep(self, caller: &OwnedFd) {
        let mut ended = None;
        let mut caller_is_there = true;
        loop {
            match self.wait(caller, caller_is_there) {
                Wake::Init => match message::receive::<Reply>(&self.cloned.init) {
                    Ok(Some((Reply::Ended { status, .. }, _))) => ended = Some(status),
                    Ok(Some((reply, beside))) => {
                        let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
                        let _ = message::send(caller, &reply, &beside);
                    }
                    Ok(None) | Err(_) => break,
                },
                Wake::Caller => {
                    let request = message::receive::<Request>(caller);
                    caller_is_there = matches!(request, Ok(Some(_)));
                    self.cloned.kill();
                }
            }
        }
        self.bury(caller, ended, caller_is_there);
    }

    fn bury(mut self, caller: &OwnedFd, ended: Option<i32>, caller_is_there: bool) {
        let (status, used) = self.cloned.end().unwrap_or((libc::SIGKILL, ResourceUse::default()));
        let ResourceUse { cpu_micros, max_rss } = used;
        let reply = Reply::Ended { status: ended.unwrap_or(status), cpu_micros, max_rss };
        if caller_is_there {
            let _ = message::send(caller, &reply, &[]);
            self.cloned.mounts = None;
            // The caller reads the box's counters now, and hangs up when it has removed the cgroups itself; or
            // it dies, which sounds the same. What it still says was meant for the box.
            while let Ok(Some(_)) = message::receive::<Request>(caller) {}
        }
        remove_orphans(&self.plan.orphans);
    }

    fn wait(&self, caller: &OwnedFd, caller_is_there: bool) -> Wake {
        let interest = if caller_is_there { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.cloned.init, PollFlags::IN), PollFd::new(caller, interest)];
        let fds = if caller_is_there { &mut fds[..] } else { &mut fds[..1] };
        let _ = rustix::io::retry_on_intr(|| poll(fds, None));
        if fds[0].revents().is_empty() { Wake::Caller } else { Wake::Init }
    }
}

enum Wake {
    Init,
    Caller,
}

/// Shows the workspace's files as the code's own, so that a box which root started can read what root can. A
/// filesystem that cannot do this shows them as they are, and the code reads what everybody may read.
fn give_workspace_to_code(plan: &Plan, sources: &[OwnedFd]) -> Result<(), Fault> {
    for step in &plan.build {
        let Step::Workspace { source, owner: Some(owner), .. } = step else { continue };
        let Some(tree) = sources.get(usize::from(*source)) else { continue };
        let code = plan.identity.code.outside;
        let users = users_mapped(*owner, code).doing(|| "map the workspace's owner")?;
        match sys::mount_idmap(tree.as_fd(), users.as_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                return Err(error).doing(|| "show the workspace as the code's own");
            }
            _ => {}
        }
    }
    Ok(())
}

/// A user namespace in which one owner is another. It takes a process to make one; it lives just as long.
fn users_mapped((uid, gid): (u32, u32), to: u32) -> io::Result<OwnedFd> {
    match sys::clone_into(libc::CLONE_NEWUSER, None)? {
        (Fork::Child, _) => hold_still(),
        (Fork::Parent(pid), pidfd) => {
            let dir = format!("/proc/{}", pid.as_raw_nonzero());
            let mapped = std::fs::write(format!("{dir}/gid_map"), format!("{gid} {to} 1"))
                .and_then(|()| std::fs::write(format!("{dir}/uid_map"), format!("{uid} {to} 1")))
                .and_then(|()| Ok(std::fs::File::open(format!("{dir}/ns/user"))?.into()));
            if let Some(pidfd) = pidfd {
                let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            }
            let _ = sys::wait_for(pid);
            mapped
        }
    }
}

/// Waits to be killed, holding on to nothing: not the caller's socket, and not beyond the keeper's death.
fn hold_still() -> ! {
    let _ = sys::close_from(0);
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    while tied.is_ok() && rustix::process::getppid().is_some_and(|parent| !parent.is_init()) {
        std::thread::sleep(Duration::from_secs(1));
    }
    sys::exit_now(0)
}

/// Maps the uids and gids of the box. More than one, or other than the caller's own, takes root; an ordinary user
/// must first give up `setgroups` (`user_namespaces(7)`).
fn map_identity(pid: Pid, identity: &Identity) -> io::Result<()> {
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    if identity.init.is_none() {
        std::fs::write(format!("{dir}/setgroups"), "deny")?;
    }
    let line = |id: &IdPair| format!("{} {} 1\n", id.inside, id.outside);
    let map: String = identity.init.iter().chain([&identity.code]).map(line).collect();
    std::fs::write(format!("{dir}/gid_map"), &map)?;
    std::fs::write(format!("{dir}/uid_map"), &map)
}

/// Removes the box's cgroups, if they are still there. The kernel may take a moment to see that they are empty; one
/// that other boxes are in stays.
fn remove_orphans(dirs: &[PathBuf]) {
    for dir in dirs {
        for _ in 0..50 {
            match std::fs::remove_dir(dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && !has_children(dir) => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => break,
            }
        }
    }
}

fn has_children(dir: &Path) -> bool {
    let is_dir = |entry: io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.any(is_dir))
}
