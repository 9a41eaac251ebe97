//! PID 1 of a box: builds it, starts the program, reaps, and kills everything in it by ending.
//!
//! It is protected from the code in the box: it has its own uid where the host allows; it cannot be traced or read (not
//! dumpable); it receives no signal from inside that it has no handler for (the kernel's rule for PID 1); and once the
//! program runs, its own syscall filter lets it do nothing except wait and report.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{DumpableBehavior, Pid, Signal};
use rustix::thread::CpuSet;

use crate::build::{self, Site, WayIn};
use crate::confine::{self, Groups, Streams};
use crate::fault::{About, Concerning, Doing, Fault};
use crate::message::{self, Handover, Reply};
use crate::message::{read_plan, socket_pair};
use crate::plan::{Birth, Opener, Plan, Step};
use crate::seccomp::Filter;
use crate::{landlock, sys, uplink};

/// What PID 1 got from the keeper.
pub(crate) struct Init {
    pub(crate) plan: Plan,
    /// The socket to the keeper.
    pub(crate) keeper: OwnedFd,
    pub(crate) sources: Vec<OwnedFd>,
    pub(crate) ground: Ground,
    pub(crate) cgroup: WayIn,
    /// Closed at the other end when the parent of this process dies; needed where the socket cannot show that.
    pub(crate) lifeline: Option<OwnedFd>,
    /// Not needed once the box is built.
    pub(crate) payload: Option<OwnedFd>,
    /// Stdin, stdout and stderr, until they are no longer needed here: their readers wait until every process has
    /// closed them.
    pub(crate) streams: Option<[OwnedFd; 3]>,
    pub(crate) prepared: Prepared,
}

/// What PID 1 finds when it begins to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// The host's mounts.
    Host,
    /// Those of a template, which has the plan's foundation.
    Template,
}

/// What PID 1 has prepared before it reads its plan.
pub(crate) struct Prepared {
    /// The filters of the program and of PID 1 itself.
    program: &'static Filter,
    reaper: &'static Filter,
    cpus: Cpus,
    /// Steps of every plan that are already done.
    done: &'static [Step],
}

impl Prepared {
    pub(crate) fn with_the_plan_at_hand(cpus: Cpus) -> Result<Prepared, Fault> {
        cpus.stay_on_one().doing(|| "pin PID 1 to one CPU")?;
        Ok(Prepared { program: Filter::standard(), reaper: Filter::reaper(), cpus, done: &[] })
    }

    /// Also performs what needs neither the plan nor the box's users.
    pub(crate) fn ahead_of_the_plan(namespaces: libc::c_int, cpus: Cpus) -> Result<Prepared, Fault> {
        let prepared = Prepared::with_the_plan_at_hand(cpus)?;
        sys::unshare(namespaces).doing(|| "create the namespaces").concerning(About::Namespaces)?;
        build::perform_groundwork()?;
        Ok(Prepared { done: &build::GROUNDWORK, ..prepared })
    }
}

/// The CPUs that a process may use.
///
/// PID 1 and the process that becomes the program take turns until `exec`. On two CPUs, each turn would begin with
/// waking one of them, which takes longer than most of the steps. So they stay on one CPU until then.
pub(crate) struct Cpus(CpuSet);

impl Cpus {
    pub(crate) fn of_this_process() -> io::Result<Cpus> {
        Ok(Cpus(rustix::thread::sched_getaffinity(None)?))
    }

    /// Makes a new process start on a different CPU, if there is one. The kernel may leave it here although another CPU
    /// is idle, because in a virtual machine an idle CPU may look preempted. Then it would start only when its parent
    /// has nothing more to do.
    pub(crate) fn send_elsewhere(&self, pid: Pid) {
        let mut others = self.0;
        others.unset(rustix::thread::sched_getcpu());
        if others.count() > 0 {
            let _ = rustix::thread::sched_setaffinity(Some(pid), &others);
        }
    }

    fn stay_on_one(&self) -> io::Result<()> {
        let mut this = CpuSet::new();
        this.set(rustix::thread::sched_getcpu());
        Ok(rustix::thread::sched_setaffinity(None, &this)?)
    }

    fn use_all(&self) -> io::Result<()> {
        Ok(rustix::thread::sched_setaffinity(None, &self.0)?)
    }
}

impl Init {
    /// A PID 1 that was made before its plan, with what it received since. Its cgroup is made while it builds.
    pub(crate) fn from_handover(
        (handover, descriptors): (Handover, Vec<OwnedFd>),
        prepared: Prepared,
        keeper: &OwnedFd,
    ) -> io::Result<Init> {
        let Handover::Box { plan_offset, plan_length } = handover else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
        let (lifeline, payload) = (Some(next()?), next()?);
        let streams = Some([next()?, next()?, next()?]);
        let sources = descriptors.collect();
        let (plan, payload) = read_plan(payload, plan_offset, plan_length)?;
        let (keeper, payload) = (keeper.try_clone()?, Some(payload));
        let cgroup = WayIn::Awaited(keeper.try_clone()?);
        let ground = Ground::Host;
        Ok(Init { plan, keeper, lifeline, sources, ground, cgroup, payload, streams, prepared })
    }

    /// The life of PID 1.
    pub(crate) fn live(mut self) -> ! {
        let keeper = self.keeper.as_fd().try_clone_to_owned();
        let news = match self.build_and_run() {
            Ok(status) if self.may_linger() => Reply::Deserted { status },
            Ok(status) => Reply::Ended { status, cpu_micros: 0, max_rss: 0 },
            Err(fault) => fault.into_reply(),
        };
        // The program may not have been started.
        self.streams = None;
        if let Ok(keeper) = keeper {
            let _ = message::send(&keeper, &news, &[]);
            if matches!(news, Reply::Deserted { .. }) {
                wait_to_be_killed(&keeper);
            }
        }
        sys::exit_now(0)
    }

    /// Whether the box can be torn down later: no other process is in it, and there is a keeper to do it. Otherwise
    /// this process must end quickly, because everything else ends only when it does.
    fn may_linger(&self) -> bool {
        self.lifeline.is_none() && sys::has_no_children()
    }

    fn build_and_run(&mut self) -> Result<i32, Fault> {
        // With handlers inherited from the keeper, code inside could reach PID 1 with signals.
        sys::default_signals().doing(|| "reset PID 1's signals")?;
        self.take_identity()?;
        self.die_with_the_keeper().doing(|| "set PID 1's parent-death signal")?;
        let offered = self.build()?;
        self.become_unreadable().doing(|| "make PID 1 non-dumpable")?;
        match self.plan.birth {
            Birth::Executed | Birth::Zygote => self.run(offered),
            Birth::Forked { .. } => {
                self.streams = None;
                self.host(offered)
            }
        }
    }

    /// Until the keeper has mapped the box's users from outside, this process has no valid user.
    pub(crate) fn wait_for_go_ahead(&self) -> io::Result<()> {
        let mut byte = [0];
        let (_, length) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.keeper, &mut byte, RecvFlags::empty()))?;
        if length == 1 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn take_identity(&self) -> Result<(), Fault> {
        let id = self.plan.identity.init.unwrap_or(self.plan.identity.code);
        let groups = Groups::of(&self.plan.identity);
        confine::take_identity(id, groups).doing(|| "switch to the box's user")
    }

    /// The kernel clears this setting whenever the process changes its user, so it is made after that. If the keeper
    /// died earlier, its end of the lifeline is closed; the kernel closes it before it looks for orphans.
    fn die_with_the_keeper(&self) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let mut keeper = [PollFd::new(self.lifeline.as_ref().unwrap_or(&self.keeper), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut keeper, Some(&now))?;
        if keeper[0].revents().is_empty() { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    /// Returns what the plan offers to the caller.
    fn build(&mut self) -> Result<Vec<OwnedFd>, Fault> {
        if self.plan.build.contains(&Step::Uplink) {
            let socket =
                uplink::connect().doing(|| "make the box's network interface").concerning(About::Network)?;
            message::send(&self.keeper, &Reply::Uplink, &[socket.as_fd()])
                .doing(|| "report to the keeper")?;
        }
        let sources = match self.plan.opener {
            Opener::Keeper => std::mem::take(&mut self.sources),
            Opener::Init => build::open_sources(&self.plan.sources)?,
        };
        let cgroup = std::mem::take(&mut self.cgroup);
        let payload = self.payload.take().ok_or(io::ErrorKind::NotFound).doing(|| "find the run's files")?;
        let Plan { identity, meminfo, foundation, build, .. } = &self.plan;
        let site = Site::new(identity.code, sources, cgroup, payload.as_fd(), meminfo);
        let is_left = |step: &&Step| !self.prepared.done.contains(step);
        match self.ground {
            Ground::Host => site.build(foundation.iter().chain(build).filter(is_left)),
            Ground::Template => {
                let is_left = |step: &&Step| !matches!(step, Step::Pivot | Step::SealRoot);
                site.stand_on_template()?.build(build.iter().filter(is_left))
            }
        }
    }

    fn become_unreadable(&self) -> io::Result<()> {
        Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
    }

    /// Lets the program come from outside, and waits for its end. PID 1 ignores it until the keeper has inspected it
    /// and says so.
    fn host(&self, offered: Vec<OwnedFd>) -> Result<i32, Fault> {
        let program =
            Pid::from_raw(FIRST_COMMAND).ok_or(io::ErrorKind::NotFound).doing(|| "find the program")?;
        let rules = &self.plan.confinement.landlock;
        let allowed = (!rules.is_empty()).then(|| landlock::ruleset(rules));
        let allowed = allowed.transpose().doing(|| "prepare Landlock")?;
        let beside: Vec<_> = offered.iter().chain(&allowed).map(AsFd::as_fd).collect();
        message::send(&self.keeper, &Reply::Ready, &beside).doing(|| "report to the keeper")?;
        drop((offered, allowed));
        self.prepared.cpus.use_all().doing(|| "reset PID 1's CPU affinity")?;
        self.wait_for_go_ahead().doing(|| "wait for the program to be approved")?;
        message::send(&self.keeper, &Reply::Started, &[]).doing(|| "report to the keeper")?;
        retire(self.prepared.reaper)?;
        reap_until(program).doing(|| "wait for the program")
    }

    /// Starts the program, and waits for its end. Returns its wait status.
    fn run(&mut self, offered: Vec<OwnedFd>) -> Result<i32, Fault> {
        let Started { pid, listener } = self.start()?;
        let exit_listener = listener.as_ref().filter(|_| self.plan.exit_listener);
        let beside: Vec<_> = offered.iter().chain(exit_listener).map(AsFd::as_fd).collect();
        message::send(&self.keeper, &Reply::Started, &beside).doing(|| "report to the keeper")?;
        if let Some(listener) = listener.as_ref().filter(|_| exit_listener.is_none()) {
            let sent = message::send(&self.keeper, &Reply::Listening, &[listener.as_fd()]);
            sent.doing(|| "report to the keeper")?;
        }
        // After `retire`, this process could no longer close them.
        drop((offered, listener));
        self.streams = None;
        self.prepared.cpus.use_all().doing(|| "reset PID 1's CPU affinity")?;
        retire(self.prepared.reaper)?;
        reap_until(pid).doing(|| "wait for the program")
    }

    /// Starts the program, and returns when it has started, which a socket shows that `exec` closes.
    fn start(&self) -> Result<Started, Fault> {
        let (ours, theirs) = socket_pair().doing(|| "make a socket for the program's start")?;
        let streams = self.streams.as_ref().ok_or(io::ErrorKind::NotFound).doing(|| "find the streams")?;
        let [stdin, stdout, stderr] = streams.each_ref().map(AsFd::as_fd);
        let streams = Streams { stdin, stdout, stderr };
        let Plan { identity, confinement, birth, command, .. } = &self.plan;
        let filter = || {
            let listener = self.prepared.program.load_listened()?;
            message::send(&theirs, &Reply::Listening, &[listener.as_fd()])
        };
        let started = sys::spawn(&mut || {
            let fault = match self.prepared.cpus.use_all().doing(|| "reset the program's CPU affinity") {
                Ok(()) if *birth == Birth::Zygote => {
                    confine::become_zygote(command, confinement, identity, &streams)
                }
                Ok(()) => confine::become_command(command, confinement, identity, &streams, &filter),
                Err(fault) => fault,
            };
            let _ = message::send(&theirs, &fault.into_reply(), &[]);
        });
        let pid = started.doing(|| "start a process")?;
        drop(theirs);
        let mut listener = None;
        loop {
            match message::receive(&ours).doing(|| "wait for the program to start")? {
                None => return Ok(Started { pid, listener }),
                Some((Reply::Listening, beside)) => listener = beside.into_iter().next(),
                Some((Reply::Failed { fault }, _)) => return Err(fault),
                Some(_) => return Err(Fault::with_errno("start the program", libc::EINVAL)),
            }
        }
    }
}

/// A program that has started.
struct Started {
    pid: Pid,
    listener: Option<OwnedFd>,
}

/// The rest of the life of a PID 1 that is no longer needed.
fn wait_to_be_killed(keeper: &OwnedFd) {
    let mut byte = [0];
    while let Ok(1) | Err(Errno::INTR) = rustix::io::read(keeper, &mut byte) {}
}

/// The process id of the first process after PID 1.
const FIRST_COMMAND: i32 = 2;

/// Gives up every right that starting processes needed.
fn retire(filter: &Filter) -> Result<(), Fault> {
    confine::drop_capabilities().doing(|| "drop PID 1's capabilities")?;
    rustix::thread::set_no_new_privs(true).doing(|| "set no_new_privs on PID 1")?;
    filter.load().doing(|| "load PID 1's syscall filter")
}

/// Reaps every orphan of the box until the given process has died.
fn reap_until(pid: Pid) -> io::Result<i32> {
    loop {
        let (reaped, status) = sys::wait_any()?;
        if reaped == Some(pid) {
            return Ok(status);
        }
    }
}
