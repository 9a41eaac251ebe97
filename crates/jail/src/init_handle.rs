//! PID 1 of a box, seen from outside: how it is made, given its plan, and killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};

use crate::KEEPER;
use crate::build::{self, WayIn};
use crate::fault::{About, Concerning, Doing, Fault};
use crate::init::{Cpus, Ground, Init, Prepared};
use crate::message::{self, Handover, NAMESPACES, socket_pair};
use crate::plan::{Birth, CgroupEntry, IdPair, Identity, Opener, Plan, Step};
use crate::sys::{self, Fork, ResourceUse};
use crate::visit::Visit;

/// The namespaces that a process must be cloned into.
const BORN_INTO: libc::c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
/// Those that it can make itself, while its parent does something else.
const OWN: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNET;

/// How long a box that was killed may take to die.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The network namespace of a box, and the user namespace that gives the right to change it.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) user: OwnedFd,
    pub(crate) net: OwnedFd,
}

/// PID 1. Dropping it kills it and everything in its namespaces.
#[derive(Debug)]
pub(crate) struct InitHandle {
    pid: Pid,
    pidfd: OwnedFd,
    init: OwnedFd,
    /// Its mount namespace. Keeping it open means that tearing it down does not delay the report of its death.
    mounts: Option<OwnedFd>,
    /// Of a box that waits for its code: the way to give it an uplink, once.
    network: Option<Network>,
    /// It is gone, or has been given up on.
    settled: bool,
}

impl InitHandle {
    /// Makes a PID 1 that prepares what every box has, and waits for its plan.
    pub(crate) fn ahead() -> Result<InitHandle, Fault> {
        let (ours, theirs) = socket_pair().doing(|| "make a socket for PID 1")?;
        let cpus = Cpus::of_this_process().doing(|| "read the CPU affinity")?;
        match sys::clone_into(BORN_INTO, None)
            .doing(|| "create the namespaces")
            .concerning(About::Namespaces)?
        {
            (Fork::Child, _) => live_ahead(theirs, cpus),
            (Fork::Parent(pid), pidfd) => {
                cpus.send_elsewhere(pid);
                InitHandle::new(pid, pidfd, ours)
            }
        }
    }

    /// Makes a PID 1 that has its plan, in the box's cgroup from its first instruction. `not_its_business` are
    /// descriptors of ours that it must not keep.
    pub(crate) fn with(
        order: Order,
        not_its_business: &[BorrowedFd<'_>],
    ) -> Result<(InitHandle, Plan), Fault> {
        let parts = Parts::open(&order.plan)?;
        let (ours, theirs) = socket_pair().doing(|| "make a socket for PID 1")?;
        let into = parts.v2.as_ref().map(AsFd::as_fd);
        let birth = order.plan.birth;
        let namespaces = OWN | if birth == Birth::Zygote { 0 } else { BORN_INTO };
        let visit = order.template.as_ref().map(|template| Visit::begin(template.as_fd())).transpose()?;
        if let Birth::Forked { by } = birth {
            sys::act_as(by).doing(|| "switch to the zygote's user")?;
        }
        match sys::clone_into(namespaces, into)
            .doing(|| "create the namespaces")
            .concerning(About::Namespaces)?
        {
            (Fork::Child, _) => {
                not_its_business.iter().for_each(|descriptor| sys::let_go(*descriptor));
                let ground = if visit.is_some() { Ground::Template } else { Ground::Host };
                drop((ours, visit));
                let Order { plan, payload, stdin, stdout, stderr, template, .. } = order;
                drop(template);
                let (sources, cgroup) = (parts.sources, WayIn::Open(parts.tasks));
                let cpus = Cpus::of_this_process().doing(|| "read the CPU affinity");
                let prepared = match cpus.and_then(Prepared::with_the_plan_at_hand) {
                    Ok(prepared) => prepared,
                    Err(fault) => give_up(&theirs, fault),
                };
                let (keeper, lifeline, payload) = (theirs, None, Some(payload));
                let streams = Some([stdin, stdout, stderr]);
                let init =
                    Init { plan, keeper, lifeline, sources, ground, cgroup, payload, streams, prepared };
                match init.wait_for_go_ahead() {
                    Ok(()) => init.live(),
                    Err(_) => sys::exit_now(0),
                }
            }
            (Fork::Parent(pid), pidfd) => {
                let mut cloned = InitHandle::new(pid, pidfd, ours)?;
                if let Birth::Forked { .. } = birth {
                    sys::act_as(0).doing(|| "switch back to root")?;
                }
                visit.map_or(Ok(()), Visit::end)?;
                if birth != Birth::Zygote {
                    cloned.map_identity(&order.plan.identity)?;
                }
                // Later, only root could open them: PID 1 is about to become unreadable. Without them the box is as good
                // as any for a run without a network.
                if order.plan.waits_for_code() {
                    cloned.network = cloned.open_network().ok();
                }
                cloned.go_ahead().doing(|| "let PID 1 continue")?;
                Ok((cloned, order.plan))
            }
        }
    }

    pub(crate) fn new(pid: Pid, pidfd: Option<OwnedFd>, init: OwnedFd) -> Result<InitHandle, Fault> {
        let pidfd = pidfd.ok_or(io::ErrorKind::NotFound).doing(|| "get a pidfd of PID 1")?;
        Ok(InitHandle { pid, pidfd, init, mounts: None, network: None, settled: false })
    }

    /// Lets it continue from where it waits for this.
    pub(crate) fn go_ahead(&self) -> io::Result<()> {
        rustix::net::send(&self.init, b"!", SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Where it reports.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.init.as_fd()
    }

    /// Sends the plan to a PID 1 that was made ahead of time. Only its parent holds the other end of the lifeline.
    pub(crate) fn take_over(&self, order: &Order, lifeline: OwnedFd) -> Result<(), Fault> {
        let sources = open_sources(&order.plan)?;
        self.map_identity(&order.plan.identity)?;
        let Order { plan_offset, plan_length, payload, stdin, stdout, stderr, .. } = order;
        let handover = Handover::Box { plan_offset: *plan_offset, plan_length: *plan_length };
        let streams = [&lifeline, payload, stdin, stdout, stderr].into_iter();
        let beside: Vec<_> = streams.chain(&sources).map(|descriptor| descriptor.as_fd()).collect();
        message::send(&self.init, &handover, &beside).doing(|| "send the plan to PID 1")
    }

    /// Lets a PID 1 that was made ahead of time join the box's cgroup, whose limits are set.
    pub(crate) fn let_into(&self, cgroup: &CgroupEntry) -> Result<(), Fault> {
        let CgroupEntry::V1 { tasks } = cgroup else { return Ok(()) };
        let tasks = open_tasks(tasks)?;
        let beside: Vec<_> = tasks.iter().map(AsFd::as_fd).collect();
        message::send(&self.init, &Handover::Cgroup, &beside).doing(|| "send the box's cgroup to PID 1")
    }

    fn map_identity(&self, identity: &Identity) -> Result<(), Fault> {
        map_identity(self.pid, identity).doing(|| "map the box's users").concerning(About::Namespaces)
    }

    /// Keeps its mounts from being torn down when it dies.
    pub(crate) fn hold_mounts(&mut self) {
        self.mounts = self.open_namespace("mnt").ok();
    }

    /// Its namespaces, for a process to enter.
    pub(crate) fn namespaces(&self) -> io::Result<Vec<OwnedFd>> {
        NAMESPACES.into_iter().map(|name| self.open_namespace(name)).collect()
    }

    /// The way to give the box an uplink. There is one, and a box has at most one uplink.
    pub(crate) fn take_network(&mut self) -> Result<Network, Fault> {
        self.network.take().ok_or(io::ErrorKind::NotFound).doing(|| "find the box's network namespace")
    }

    fn open_network(&self) -> io::Result<Network> {
        Ok(Network { user: self.open_namespace("user")?, net: self.open_namespace("net")? })
    }

    fn open_namespace(&self, name: &str) -> io::Result<OwnedFd> {
        let path = format!("/proc/{}/ns/{name}", self.pid.as_raw_nonzero());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(crate) fn let_mounts_go(&mut self) {
        self.mounts = None;
    }

    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Kills it and waits until it is gone: the kernel reaps PID 1 only after all others in its namespace. One that
    /// hangs in the kernel (on a dead file server, say) must not block its parent for ever, so it is waited for only
    /// once.
    pub(crate) fn end(&mut self) -> io::Result<(i32, ResourceUse)> {
        self.kill();
        self.settled = true;
        match sys::wait_shortly(self.pid)? {
            Some(ended) => Ok(ended),
            None => self.wait_patiently(),
        }
    }

    /// The same where nobody waits for it: takes no CPU time from those that somebody does wait for.
    pub(crate) fn end_unhurried(&mut self) -> io::Result<(i32, ResourceUse)> {
        self.kill();
        self.settled = true;
        self.wait_patiently()
    }

    fn wait_patiently(&self) -> io::Result<(i32, ResourceUse)> {
        let mut death = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match rustix::io::retry_on_intr(|| poll(&mut death, Some(&PATIENCE)))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => sys::wait_for(self.pid),
        }
    }

    pub(crate) fn end_unless_settled(&mut self) {
        if !self.settled {
            let _ = self.end();
        }
    }
}

impl Drop for InitHandle {
    fn drop(&mut self) {
        self.end_unless_settled();
    }
}

/// What a box is made from.
#[derive(Debug)]
pub struct Order {
    /// The steps.
    pub plan: Plan,
    /// Where the plan begins in the payload.
    pub plan_offset: u64,
    /// Its length there.
    pub plan_length: u64,
    /// The contents of the plan's inputs, then the plan.
    pub payload: OwnedFd,
    /// What the program reads.
    pub stdin: OwnedFd,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
    /// A template with the plan's foundation. Only a keeper takes one.
    pub template: Option<OwnedFd>,
}

/// Starts a new session, so that a Ctrl-C at the caller's terminal reaches only the caller; drops the caller's umask
/// and working directory.
pub(crate) fn leave_the_callers_world() -> io::Result<()> {
    // Already being a session leader is just as good.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(rustix::process::chdir("/")?)
}

/// Wipes what a forked process inherited.
pub(crate) fn forget_origin() {
    if sys::forget_arguments_and_environment(KEEPER).is_err() {
        sys::exit_now(1);
    }
}

/// The life of a PID 1 that was made ahead of time.
fn live_ahead(keeper: OwnedFd, cpus: Cpus) -> ! {
    let keeper = match sys::keep_only([keeper]) {
        Ok([keeper]) => keeper,
        Err(_) => sys::exit_now(1),
    };
    let prepared = leave_the_callers_world()
        .doing(|| "leave the caller's session")
        .and_then(|()| Prepared::ahead_of_the_plan(OWN, cpus));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(fault) => give_up(&keeper, fault),
    };
    forget_origin();
    let handover = match message::receive::<Handover>(&keeper) {
        Ok(Some(handover)) => handover,
        Ok(None) => sys::exit_now(0),
        Err(error) => give_up(&keeper, Fault::new("receive the plan", &error)),
    };
    match Init::from_handover(handover, prepared, &keeper) {
        Ok(init) => init.live(),
        Err(error) => give_up(&keeper, Fault::new("read the plan", &error)),
    }
}

/// The last message of a PID 1 that could not start.
fn give_up(keeper: &OwnedFd, fault: Fault) -> ! {
    let _ = message::send(keeper, &fault.into_reply(), &[]);
    sys::exit_now(1)
}

/// What the parent of PID 1 opens for the box, with its own rights: the parts of the host that will be shown, if that
/// is its task, and the entry to the cgroup.
struct Parts {
    sources: Vec<OwnedFd>,
    tasks: Vec<OwnedFd>,
    v2: Option<OwnedFd>,
}

impl Parts {
    fn open(plan: &Plan) -> Result<Parts, Fault> {
        let sources = open_sources(plan)?;
        let (mut tasks, mut v2) = (Vec::new(), None);
        match &plan.cgroup {
            CgroupEntry::None => {}
            CgroupEntry::V1 { tasks: files } => {
                // The kernel admits a process if the file was opened as that process's user, or by the host's root.
                tasks = match plan.identity.init {
                    Some(init) => sys::acting_as(init.outside, || Ok(open_tasks(files)))
                        .doing(|| "switch to PID 1's user")??,
                    None => open_tasks(files)?,
                }
            }
            CgroupEntry::V2 { dir } => v2 = Some(open_cgroup(dir, OFlags::PATH | OFlags::DIRECTORY)?),
        }
        Ok(Parts { sources, tasks, v2 })
    }
}

fn open_sources(plan: &Plan) -> Result<Vec<OwnedFd>, Fault> {
    let sources = match plan.opener {
        Opener::Keeper => build::open_sources(&plan.sources)?,
        Opener::Init => Vec::new(),
    };
    give_workspace_to_code(plan, &sources)?;
    Ok(sources)
}

pub(crate) fn open_tasks(files: &[PathBuf]) -> Result<Vec<OwnedFd>, Fault> {
    files.iter().map(|file| open_cgroup(file, OFlags::WRONLY)).collect()
}

pub(crate) fn open_cgroup(path: &Path, flags: OFlags) -> Result<OwnedFd, Fault> {
    rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
        .doing(|| format!("open the cgroup {}", path.display()))
}

/// Maps the workspace's files to the code's user, so that a box which root started can read what root can. If the file
/// system does not support this, or an unprivileged keeper may not do it, the files keep their owners, and the code reads
/// what every user may read.
fn give_workspace_to_code(plan: &Plan, sources: &[OwnedFd]) -> Result<(), Fault> {
    for step in &plan.build {
        let Step::Workspace { source, owner: Some(owner), .. } = step else { continue };
        let Some(tree) = sources.get(usize::from(*source)) else { continue };
        let code = plan.identity.code.outside;
        let users =
            users_mapped(*owner, code).doing(|| "map the workspace's owner").concerning(About::Workspace)?;
        match sys::mount_idmap(tree.as_fd(), users.as_fd()) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                return Err(error)
                    .doing(|| "map the workspace's files to the code's user")
                    .concerning(About::Workspace);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A user namespace that maps one owner to another. Making one takes a process, which lives only as long as that.
pub(crate) fn users_mapped((uid, gid): (u32, u32), to: u32) -> io::Result<OwnedFd> {
    let maker = rustix::process::getpid();
    match sys::clone_into(libc::CLONE_NEWUSER, None)? {
        (Fork::Child, _) => hold_still(maker),
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

/// Waits to be killed, holding on to nothing: neither the caller's socket, nor its own life beyond its parent's.
fn hold_still(maker: Pid) -> ! {
    let _ = sys::close_from(0);
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    while tied.is_ok() && rustix::process::getppid() == Some(maker) {
        std::thread::sleep(Duration::from_secs(1));
    }
    sys::exit_now(0)
}

/// Maps the uids and gids of the box. Mapping more than one, or any other than the caller's own, takes root. An
/// ordinary user must first give up `setgroups` (`user_namespaces(7)`).
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
