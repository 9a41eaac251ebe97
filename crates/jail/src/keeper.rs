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

use crate::build;
use crate::codec;
use crate::fault::{Doing, Fault};
use crate::init::Init;
use crate::message::{self, Reply, Request};
use crate::plan::{CgroupEntry, IdPair, Identity, Opener, Plan, Step};
use crate::sys::{self, Fork, ResourceUse};

/// The life of the keeper. Its standard input is the socket to the caller.
pub(crate) fn live() -> ExitCode {
    // Whatever else the caller's own caller left open is none of a box's business.
    let Ok(()) = sys::close_from(3) else { return ExitCode::FAILURE };
    let Ok(caller) = rustix::stdio::stdin().try_clone_to_owned() else { return ExitCode::FAILURE };
    match make_box(&caller) {
        Ok(Some(kept)) => kept.keep(&caller),
        Ok(None) => {}
        Err(fault) => drop(message::send(&caller, &fault.into_reply(), &[])),
    }
    ExitCode::SUCCESS
}

/// Receives a plan and makes the box. `None`: the caller went away without asking for one.
fn make_box(caller: &OwnedFd) -> Result<Option<Kept>, Fault> {
    leave_the_callers_world().doing(|| "leave the caller's session")?;
    let Some(order) = Order::receive(caller).doing(|| "receive the plan")? else { return Ok(None) };
    let (ours, theirs) = socket_pair().doing(|| "make a socket for PID 1")?;
    let sources = match order.plan.opener {
        Opener::Keeper => {
            let sources = build::open_sources(&order.plan)?;
            give_workspace_to_code(&order.plan, &sources)?;
            sources
        }
        Opener::Init => Vec::new(),
    };
    let cgroup = Cgroup::open(&order.plan.cgroup)?;
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let into = cgroup.v2.as_ref().map(AsFd::as_fd);
    match sys::clone_into(namespaces, into).doing(|| "create the namespaces")? {
        (Fork::Child, _) => {
            drop(ours);
            let Order { plan, payload, stdin, stdout, stderr } = order;
            let tasks = cgroup.tasks;
            Init { plan: &plan, keeper: theirs, sources, tasks, payload, stdin, stdout, stderr }.live()
        }
        (Fork::Parent(pid), pidfd) => {
            let pidfd = pidfd.ok_or(io::ErrorKind::NotFound).doing(|| "hold on to PID 1")?;
            let kept = Kept { pid, pidfd, init: ours, plan: order.plan };
            kept.admit()?;
            Ok(Some(kept))
        }
    }
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
        let payload = std::fs::File::from(payload);
        let mut bytes = vec![0; usize::try_from(plan_length).map_err(io::Error::other)?];
        payload.read_exact_at(&mut bytes, plan_offset)?;
        let plan = codec::decode(&bytes).map_err(io::Error::other)?;
        Ok(Some(Order { plan, payload: payload.into(), stdin, stdout, stderr }))
    }
}

/// The box's way into its cgroup, opened with the keeper's rights.
struct Cgroup {
    v2: Option<OwnedFd>,
    tasks: Vec<OwnedFd>,
}

impl Cgroup {
    fn open(entry: &CgroupEntry) -> Result<Cgroup, Fault> {
        let open = |path: &Path, flags: OFlags| {
            rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
                .doing(|| format!("open the cgroup {}", path.display()))
        };
        Ok(match entry {
            CgroupEntry::None => Cgroup { v2: None, tasks: Vec::new() },
            CgroupEntry::V1 { tasks } => {
                let tasks: Result<_, _> = tasks.iter().map(|file| open(file, OFlags::WRONLY)).collect();
                Cgroup { v2: None, tasks: tasks? }
            }
            CgroupEntry::V2 { dir } => {
                Cgroup { v2: Some(open(dir, OFlags::PATH | OFlags::DIRECTORY)?), tasks: Vec::new() }
            }
        })
    }
}

/// A box that exists.
struct Kept {
    pid: Pid,
    pidfd: OwnedFd,
    init: OwnedFd,
    plan: Plan,
}

impl Kept {
    /// Maps the box's users, then lets PID 1 go on. A box that could not be admitted is killed.
    fn admit(&self) -> Result<(), Fault> {
        let admitted =
            map_identity(self.pid, &self.plan.identity).doing(|| "map the box's users").and_then(|()| {
                let go_ahead = rustix::net::send(&self.init, b"!", SendFlags::NOSIGNAL);
                go_ahead.map(drop).doing(|| "let PID 1 go on")
            });
        if admitted.is_err() {
            self.kill();
            let _ = sys::wait_for(self.pid);
        }
        admitted
    }

    /// Passes messages until the box is dead, then says how it ended.
    fn keep(self, caller: &OwnedFd) {
        let mut ended = None;
        let mut caller_is_there = true;
        loop {
            match self.wait(caller, caller_is_there) {
                Wake::Init => match message::receive::<Reply>(&self.init) {
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
                    self.kill();
                }
            }
        }
        self.bury(caller, ended, caller_is_there);
    }

    /// The box is dead once PID 1 can be waited for: the kernel lets it go only after all others in its
    /// namespace have gone.
    fn bury(self, caller: &OwnedFd, ended: Option<i32>, caller_is_there: bool) {
        self.kill();
        let (status, used) = sys::wait_for(self.pid).unwrap_or((libc::SIGKILL, ResourceUse::default()));
        let ResourceUse { cpu_micros, max_rss } = used;
        let reply = Reply::Ended { status: ended.unwrap_or(status), cpu_micros, max_rss };
        if caller_is_there {
            let _ = message::send(caller, &reply, &[]);
            // The caller reads the box's counters now, and hangs up when it has removed the cgroups itself; or
            // it dies, which sounds the same. What it still says was meant for the box.
            while let Ok(Some(_)) = message::receive::<Request>(caller) {}
        }
        remove_orphans(&self.plan.orphans);
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn wait(&self, caller: &OwnedFd, caller_is_there: bool) -> Wake {
        let interest = if caller_is_there { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.init, PollFlags::IN), PollFd::new(caller, interest)];
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
