//! How an execution begins: a box is ordered from its keeper, and its program is started or comes from a zygote.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::backend::BackendError;
use belljar_core::path::Writes;
use belljar_core::request::InputFile;
use belljar_egress::Order as Egress;
use belljar_jail::message::{NAMESPACES, Reply};
use belljar_jail::plan::{CgroupEntry, IdPair};
use tokio::time::{Instant, MissedTickBehavior};

use super::calls::Calls;
use super::life::{Life, Sign};
use super::output::Output;
use super::{NativeExecution, Shown, StartedHow, Terms, WATCH_INTERVAL, reported};
use crate::cgroup::BoxCgroup;
use crate::errors::{died, failure, setup};
use crate::keeper::{Keeper, OrderError, ProgramEnds};
use crate::layout::Draft;
use crate::live_box::LiveBox;
use crate::network::Gateway;
use crate::program::Program;

/// How long building a box may take. It takes a millisecond; with a source on a file server that hangs, it takes for
/// ever.
const BUILD_LIMIT: Duration = Duration::from_secs(20);

/// What a process needs to enter a box.
pub(crate) struct Entrance {
    ready: Ready,
    /// The program's ends of its streams.
    ends: ProgramEnds,
    group: CgroupEntry,
    code: IdPair,
}

/// What the keeper sent for that.
struct Ready {
    namespaces: Vec<OwnedFd>,
    allowed: Option<OwnedFd>,
}

/// What a zygote's child takes with it into the box.
pub(crate) struct Entry<'a> {
    pub(crate) code: IdPair,
    pub(crate) namespaces: &'a [OwnedFd],
    /// Stdin, stdout and stderr.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// The Landlock rule set, if this kernel has Landlock.
    pub(crate) allowed: Option<&'a OwnedFd>,
    pub(crate) cgroup: &'a CgroupEntry,
}

impl Entrance {
    pub(crate) fn entry(&self) -> Entry<'_> {
        let Entrance { ready, ends, group, code } = self;
        Entry {
            code: *code,
            namespaces: &ready.namespaces,
            streams: [ends.stdin.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()],
            allowed: ready.allowed.as_ref(),
            cgroup: group,
        }
    }
}

impl NativeExecution {
    /// Orders the box from the keeper, and returns when its first command runs.
    pub(crate) async fn begin(
        keeper: Keeper,
        draft: Draft,
        cgroup: Option<BoxCgroup>,
        stdin: OwnedFd,
        terms: Terms,
    ) -> Result<NativeExecution, BackendError> {
        let (mut execution, _) = NativeExecution::order(keeper, draft, cgroup, stdin, terms)?;
        execution.begun().await?;
        Ok(execution)
    }

    /// Returns when its first command runs.
    pub(crate) async fn begun(&mut self) -> Result<(), BackendError> {
        match tokio::time::timeout(BUILD_LIMIT, self.hear_start()).await {
            Ok(started) => started,
            Err(_) => Err(self.too_late()),
        }
    }

    /// Orders the box, and returns when a zygote's child can enter it.
    pub(crate) async fn begin_empty(
        keeper: Keeper,
        draft: Draft,
        cgroup: Option<BoxCgroup>,
        stdin: OwnedFd,
        terms: Terms,
    ) -> Result<(NativeExecution, Entrance), BackendError> {
        let (group, code) = (draft.plan.cgroup.clone(), draft.plan.identity.code);
        let (mut execution, ends) = NativeExecution::order(keeper, draft, cgroup, stdin, terms)?;
        match tokio::time::timeout(BUILD_LIMIT, execution.hear_ready()).await {
            Ok(ready) => ready.map(|ready| (execution, Entrance { ready, ends, group, code })),
            Err(_) => Err(execution.too_late()),
        }
    }

    /// Has the keeper inspect the program that a zygote sent. Returns when it is the box's program and waits for its
    /// code: the pipe for the code.
    pub(crate) async fn approve_program(&mut self) -> Result<OwnedFd, BackendError> {
        self.home.keeper.say_entered().map_err(setup("have the program verified"))?;
        let heard = self.home.hear();
        let Ok(heard) = tokio::time::timeout(BUILD_LIMIT, heard).await else { return Err(self.too_late()) };
        match heard? {
            Some((Reply::Started, beside)) => {
                let mut beside = beside.into_iter();
                let gate = beside.next();
                self.program = beside.next().map(Program::at);
                gate.ok_or_else(|| setup("open the pipe for the code")(io::ErrorKind::NotFound.into()))
            }
            Some((Reply::Failed { fault }, _)) => Err(failure(fault)),
            Some(_) | None => Err(died()),
        }
    }

    /// Orders the box. Also returns the program's ends of its streams.
    pub(crate) fn order(
        mut keeper: Keeper,
        draft: Draft,
        cgroup: Option<BoxCgroup>,
        stdin: OwnedFd,
        mut terms: Terms,
    ) -> Result<(NativeExecution, ProgramEnds), BackendError> {
        let gateway = terms.gateway.take();
        let (output, stdout, stderr) = Output::new().map_err(setup("make pipes for stdout and stderr"))?;
        let ends = ProgramEnds { stdin, stdout, stderr };
        let code = draft.plan.identity.code.outside;
        match keeper.order(draft.plan, &draft.contents, &ends, draft.template.as_deref()) {
            // A keeper that is already gone has reported why.
            Err(OrderError::Unsent(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(setup("send the plan to the keeper")(error));
            }
            Err(OrderError::Failed(fault)) => return Err(failure(fault)),
            Ok(()) | Err(OrderError::Unsent(_)) => {}
        }
        if let Some(cgroup) = cgroup.as_ref().filter(|_| keeper.waits_for_cgroup()) {
            let made = cgroup.make_now(&terms.limits).map_err(io::Error::other);
            made.map_err(setup("make the box's cgroup"))?;
            keeper.admit(&cgroup.entry()).map_err(failure)?;
        }
        let home = LiveBox::new(keeper, cgroup).map_err(setup("watch the keeper"))?;
        let mut watch = tokio::time::interval_at(Instant::now() + WATCH_INTERVAL, WATCH_INTERVAL);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let execution = NativeExecution {
            home,
            gateway,
            network: None,
            untold: VecDeque::new(),
            life: Life::Running,
            output,
            calls: Calls::default(),
            program: None,
            exit_listener: false,
            silenced: false,
            shown: Shown::default(),
            code,
            source: draft.source,
            terms,
            how: StartedHow::default(),
            watch,
            waited_for: None,
        };
        Ok((execution, ends))
    }

    /// Has files written into the working directory by a process in the box's cgroup, so that they are charged to the
    /// box, as in a cold run.
    pub(crate) async fn have_written(&mut self, files: &[InputFile]) -> io::Result<()> {
        let dir = self.shown.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
        self.home.keeper.supply(dir.as_fd(), files)?;
        let heard = self.home.hear();
        let heard = tokio::time::timeout(BUILD_LIMIT, heard).await?;
        match heard.map_err(io::Error::other)? {
            Some((Reply::Supplied, _)) => Ok(()),
            Some((Reply::Failed { fault }, _)) => Err(fault.error()),
            Some(_) | None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Gives a network to a box whose program waits for its code. The gateway loads while the uplink is made.
    pub(crate) async fn connect_late(&mut self, egress: Egress) -> io::Result<()> {
        self.gateway = Some(Gateway::start(egress)?);
        self.home.keeper.ask_for_uplink()?;
        let heard = self.home.hear();
        let heard = tokio::time::timeout(BUILD_LIMIT, heard).await?;
        match heard.map_err(io::Error::other)? {
            Some((Reply::Uplink, beside)) => self.connect_gateway(&beside),
            Some((Reply::Failed { fault }, _)) => Err(fault.error()),
            Some(_) | None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn too_late(&self) -> BackendError {
        self.home.keeper.kill();
        setup("build the box: it took too long")(io::ErrorKind::TimedOut.into())
    }

    async fn hear_start(&mut self) -> Result<(), BackendError> {
        let mut said = self.home.hear().await?;
        if let Some((Reply::Uplink, beside)) = &said {
            self.connect_gateway(beside).map_err(setup("connect the box with its gateway"))?;
            said = self.home.hear().await?;
        }
        match said {
            Some((Reply::Started, beside)) => self.be_started(beside),
            Some((Reply::Failed { fault }, _)) => Err(failure(fault)),
            // The memory limit may be too small for the program, or even for the box; either way, that is the outcome.
            Some((Reply::Ended { status, cpu_micros, max_rss }, _)) if self.out_of_memory() => {
                self.life.show(Sign::Reported(reported(status, cpu_micros, max_rss)));
                Ok(())
            }
            Some(_) | None => Err(died()),
        }
    }

    fn connect_gateway(&mut self, beside: &[OwnedFd]) -> io::Result<()> {
        let (gateway, uplink) = self.gateway.as_mut().zip(beside.first()).ok_or(io::ErrorKind::NotFound)?;
        gateway.connect(uplink)
    }

    fn be_started(&mut self, beside: Vec<OwnedFd>) -> Result<(), BackendError> {
        let mut beside = beside.into_iter();
        (self.shown.dir, self.shown.meminfo) = (beside.next(), beside.next());
        if self.terms.writes != Writes::Refused {
            self.shown.before = beside.next();
        }
        let Some(listener) = beside.next() else { return Ok(()) };
        // If its end cannot be polled for, the run ends like any other.
        if let Some(program) = beside.next().map(Program::at).filter(Program::is_readable) {
            self.program = Some(program);
            self.exit_listener = true;
        }
        self.decide_on_calls(listener)
    }

    /// From now on decides on the calls of the program that need it.
    pub(crate) fn decide_on_calls(&mut self, listener: OwnedFd) -> Result<(), BackendError> {
        self.calls.listen(listener).map_err(setup("watch the program's system calls"))
    }

    /// Waits until a zygote's child can enter the box.
    async fn hear_ready(&mut self) -> Result<Ready, BackendError> {
        match self.home.hear().await? {
            Some((Reply::Ready, beside)) => {
                let mut beside = beside.into_iter();
                (self.shown.dir, self.shown.meminfo) = (beside.next(), beside.next());
                let namespaces: Vec<_> = beside.by_ref().take(NAMESPACES.len()).collect();
                Ok(Ready { namespaces, allowed: beside.next() })
            }
            Some((Reply::Failed { fault }, _)) => Err(failure(fault)),
            Some(_) | None => Err(died()),
        }
    }

    fn out_of_memory(&self) -> bool {
        matches!(self.home.cgroup.as_ref().map(BoxCgroup::counters), Some(Ok(counters)) if counters.oom_kills > 0)
    }
}
