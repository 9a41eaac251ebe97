//! One program in one box, from the plan to the last byte and the counters.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::Field;
use belljar_core::backend::{BackendError, BoxFuture, Ending, Event, Execution, Finished, Stream};
use belljar_core::limits::{BoxLimits, Bytes};
use belljar_core::outcome::{Changes, CollectedFile, Start};
use belljar_core::path::{BoxPath, Writes};
use belljar_core::request::{Glob, InputFile};
use belljar_egress::Order;
use belljar_host::changes::Layered;
use belljar_host::collect::{self, Wanted};
use belljar_host::descriptors::Locks;
use belljar_host::rations::Rations;
use belljar_host::sockets::{BEYOND_LIMIT, Sockets};
use belljar_jail::message::{NAMESPACES, Reply};
use belljar_jail::plan::{CgroupEntry, IdPair};
use belljar_jail::seccomp::Listener;
use rustix::buffer::spare_capacity;
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::cgroup::{BoxCgroup, Counters};
use crate::host::Obstacle;
use crate::keeper::{Keeper, OrderError, PATIENCE, ProgramEnds};
use crate::layout::Draft;
use crate::load::Waited;
use crate::network::Gateway;
use crate::program::Program;
use crate::teardown::tear_down_later;
use crate::zygote::{Entry, Readiness, Zygote};

/// How long building a box may take. It takes a millisecond; with a source on a file server that hangs, it takes for
/// ever.
const BUILD_LIMIT: Duration = Duration::from_secs(20);
/// How often the counters of a running box are read.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How long a killed box may take to die before its limit on CPU is lifted. Almost all are dead by then.
const DEATH_PATIENCE: Duration = Duration::from_millis(100);
/// How long the keeper may take to report that a killed box is dead.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// The most output that is read at once, and by how many calls.
const BUFFER: usize = 64 * 1024;
const READS: usize = 64;
/// After so many small pieces of output in a row, there is a pause before the next: a program that writes single bytes would
/// make Belljar spend as much CPU time as the program. Few programs write so often.
const SMALL: usize = 4096;
const SMALL_PIECES: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// What an execution needs to know about the request.
pub(crate) struct Terms {
    pub(crate) runtime: String,
    pub(crate) limits: BoxLimits,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) collect: Vec<Glob>,
    /// The most bytes of collected files.
    pub(crate) collected: Bytes,
    /// What becomes of what the code writes to its workspace.
    pub(crate) writes: Writes,
    /// What its gateway is to do, if it has a network.
    pub(crate) egress: Option<Order>,
}

/// A program that runs in a box.
pub(crate) struct NativeExecution {
    keeper: Keeper,
    /// A second handle on the keeper's socket, to be polled. It is closed before the keeper is dismissed.
    socket: Option<UnixDatagram>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    buffer: Vec<u8>,
    /// How many pieces of output in a row were small.
    small_pieces: u32,
    /// Output is read again from this time on.
    pause: Option<Instant>,
    cgroup: Option<BoxCgroup>,
    gateway: Option<Gateway>,
    offered: Option<OwnedFd>,
    /// The workspace beneath the layer that was offered.
    before: Option<OwnedFd>,
    /// The code's user on the host.
    code: u32,
    /// If there is a pool: why no box of it was used.
    cold_reason: Option<String>,
    /// What the box shows as `/proc/meminfo`, until it is a run.
    meminfo: Option<OwnedFd>,
    /// The program, if its end is polled for.
    program: Option<Program>,
    /// Decides on some of its calls, and hangs up when no process in the box can run any more.
    listener: Option<Polled>,
    rations: Rations,
    /// Whether the run ends when the listener hangs up.
    has_exit_listener: bool,
    /// No process can write to the streams any more.
    silenced: bool,
    source: BoxPath,
    terms: Terms,
    start: Start,
    /// CPU time that was used before the run began.
    booting: Duration,
    watch: Interval,
    waited_for: Option<Waited>,
    killed_at: Option<Instant>,
    cpu_exhausted: bool,
    /// Opened when the counters are first read.
    sockets: Option<Sockets>,
    locks: Locks,
    /// It held too much kernel memory that its cgroup does not limit.
    memory_exhausted: bool,
    ended: Option<Ended>,
}

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

impl Entrance {
    /// Sends a child of the zygote in. Returns the listener of its filter.
    pub(crate) async fn admit_child_of(
        &self,
        zygote: &Zygote,
        readiness: Readiness,
    ) -> Result<OwnedFd, BackendError> {
        let Entrance { ready, ends, group, code } = self;
        let entry = Entry {
            code: *code,
            namespaces: &ready.namespaces,
            streams: [ends.stdin.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()],
            allowed: ready.allowed.as_ref(),
            cgroup: group,
        };
        zygote.bear(&entry, readiness).await
    }
}

/// The keeper's last report.
#[derive(Clone, Copy)]
struct Ended {
    status: i32,
    cpu: Duration,
    max_rss: u64,
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
        self.keeper.say_entered().map_err(setup("have the program verified"))?;
        let heard = hear(&mut self.keeper, self.socket.as_ref());
        let Ok(heard) = tokio::time::timeout(BUILD_LIMIT, heard).await else { return Err(self.too_late()) };
        match heard? {
            Some((Reply::Started, beside)) => {
                let mut beside = beside.into_iter();
                let gate = beside.next();
                self.program = beside.next().map(Program::at);
                gate.ok_or_else(|| setup("open the pipe for the code")(io::ErrorKind::NotFound.into()))
            }
            Some((Reply::Failed { doing, errno }, _)) => Err(failure(&doing, errno)),
            Some(_) | None => Err(died()),
        }
    }

    fn too_late(&self) -> BackendError {
        self.keeper.kill();
        setup("build the box: it took too long")(io::ErrorKind::TimedOut.into())
    }

    /// Orders the box. Also returns the program's ends of its streams.
    pub(crate) fn order(
        mut keeper: Keeper,
        draft: Draft,
        cgroup: Option<BoxCgroup>,
        stdin: OwnedFd,
        mut terms: Terms,
    ) -> Result<(NativeExecution, ProgramEnds), BackendError> {
        // It loads while the box is built.
        let gateway =
            terms.egress.take().map(Gateway::start).transpose().map_err(setup("start the gateway"))?;
        let (stdout, stdout_end) = pipe().map_err(setup("make a pipe for stdout"))?;
        let (stderr, stderr_end) = pipe().map_err(setup("make a pipe for stderr"))?;
        let ends = ProgramEnds { stdin, stdout: stdout_end, stderr: stderr_end };
        let code = draft.plan.identity.code.outside;
        match keeper.order(draft.plan, &draft.contents, &ends) {
            // A keeper that is already gone has reported why.
            Err(OrderError::Unsent(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(setup("send the plan to the keeper")(error));
            }
            Err(OrderError::Failed(fault)) => return Err(failure(&fault.doing, fault.errno)),
            Ok(()) | Err(OrderError::Unsent(_)) => {}
        }
        if let Some(cgroup) = cgroup.as_ref().filter(|_| keeper.waits_for_cgroup()) {
            let made = cgroup.make_now(&terms.limits).map_err(io::Error::other);
            made.map_err(setup("make the box's cgroup"))?;
            keeper.admit(&cgroup.entry()).map_err(|fault| failure(&fault.doing, fault.errno))?;
        }
        let socket = watch_socket(&keeper).map_err(setup("watch the keeper"))?;
        let mut watch = tokio::time::interval_at(Instant::now() + WATCH_INTERVAL, WATCH_INTERVAL);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let execution = NativeExecution {
            keeper,
            socket: Some(socket),
            stdout: Some(stdout),
            stderr: Some(stderr),
            buffer: Vec::new(),
            small_pieces: 0,
            pause: None,
            cgroup,
            gateway,
            offered: None,
            before: None,
            code,
            cold_reason: None,
            meminfo: None,
            program: None,
            listener: None,
            rations: Rations::default(),
            has_exit_listener: false,
            silenced: false,
            source: draft.source,
            terms,
            start: Start::Cold,
            booting: Duration::ZERO,
            watch,
            waited_for: None,
            killed_at: None,
            cpu_exhausted: false,
            sockets: None,
            locks: Locks::default(),
            memory_exhausted: false,
            ended: None,
        };
        Ok((execution, ends))
    }

    /// Whether it is alive, as far as its keeper has reported.
    pub(crate) fn lives(&mut self) -> bool {
        let said = self.keeper.hear();
        self.ended.is_none() && said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The cgroup of the box.
    pub(crate) fn cgroup(&self) -> Option<&BoxCgroup> {
        self.cgroup.as_ref()
    }

    /// The program, if its end is polled for.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// The working directory of the box, if it was offered.
    pub(crate) fn working_dir(&self) -> Option<BorrowedFd<'_>> {
        self.offered.as_ref().map(AsFd::as_fd)
    }

    /// Rewrites what the box shows as `/proc/meminfo`.
    pub(crate) fn rewrite_meminfo(&self, text: &[u8]) -> io::Result<()> {
        let file = self.meminfo.as_ref().ok_or(io::ErrorKind::NotFound)?;
        rustix::fs::ftruncate(file, 0)?;
        if rustix::io::pwrite(file, text, 0)? < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// From now on this is the run of a request, whose program has been waiting. What was used so far is not counted.
    pub(crate) fn become_run(&mut self, start: Start, terms: Terms, booting: Duration) {
        self.terms = terms;
        self.meminfo = None;
        self.start = start;
        self.booting = booting;
        self.watch.reset();
    }

    /// A caller waits for its end.
    pub(crate) fn be_waited_for(&mut self, waited: Waited) {
        self.waited_for = Some(waited);
    }

    /// This run could not take a box of the pool, for this reason.
    pub(crate) fn be_cold_because(&mut self, why: Option<&str>) {
        self.cold_reason = why.map(str::to_owned);
    }

    /// Has files written into the working directory by a process in the box's cgroup, so that they are charged to the
    /// box, as in a cold run.
    pub(crate) async fn have_written(&mut self, files: &[InputFile]) -> io::Result<()> {
        let dir = self.offered.as_ref().ok_or(io::ErrorKind::NotFound)?;
        self.keeper.supply(dir.as_fd(), files)?;
        let heard = hear(&mut self.keeper, self.socket.as_ref());
        let heard = tokio::time::timeout(BUILD_LIMIT, heard).await?;
        match heard.map_err(io::Error::other)? {
            Some((Reply::Supplied, _)) => Ok(()),
            Some((Reply::Failed { errno, .. }, _)) => Err(io::Error::from_raw_os_error(errno)),
            Some(_) | None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn hear_start(&mut self) -> Result<(), BackendError> {
        let mut said = hear(&mut self.keeper, self.socket.as_ref()).await?;
        if let Some((Reply::Uplink, beside)) = &said {
            self.connect_gateway(beside).map_err(setup("connect the box with its gateway"))?;
            said = hear(&mut self.keeper, self.socket.as_ref()).await?;
        }
        match said {
            Some((Reply::Started, beside)) => {
                let mut beside = beside.into_iter();
                (self.offered, self.meminfo) = (beside.next(), beside.next());
                if self.terms.writes != Writes::Refused {
                    self.before = beside.next();
                }
                match (beside.next(), beside.next()) {
                    (Some(exit_listener), Some(place)) => self
                        .listen_to(exit_listener, Program::at(place))
                        .map_err(setup("wait for the program's end")),
                    (Some(listener), None) => self.decide_on_calls(listener),
                    (None, _) => Ok(()),
                }
            }
            Some((Reply::Failed { doing, errno }, _)) => Err(failure(&doing, errno)),
            // The memory limit may be too small for the program, or even for the box; either way, that is the outcome.
            Some((Reply::Ended { status, cpu_micros, max_rss }, _)) if self.out_of_memory() => {
                self.ended = Some(Ended { status, cpu: Duration::from_micros(cpu_micros), max_rss });
                Ok(())
            }
            Some(_) | None => Err(died()),
        }
    }

    fn connect_gateway(&mut self, beside: &[OwnedFd]) -> io::Result<()> {
        let (gateway, uplink) = self.gateway.as_mut().zip(beside.first()).ok_or(io::ErrorKind::NotFound)?;
        gateway.connect(uplink)
    }

    /// If the exit listener cannot be polled, the run ends like any other.
    fn listen_to(&mut self, exit_listener: OwnedFd, program: Program) -> io::Result<()> {
        if program.is_readable() {
            self.has_exit_listener = true;
            self.program = Some(program);
        }
        self.listener = Some(Polled::new(exit_listener)?);
        Ok(())
    }

    /// From now on decides on the calls of the program that need it.
    pub(crate) fn decide_on_calls(&mut self, listener: OwnedFd) -> Result<(), BackendError> {
        self.listener = Some(Polled::new(listener).map_err(setup("watch the program's system calls"))?);
        Ok(())
    }

    /// Waits until a zygote's child can enter the box.
    async fn hear_ready(&mut self) -> Result<Ready, BackendError> {
        match hear(&mut self.keeper, self.socket.as_ref()).await? {
            Some((Reply::Ready, beside)) => {
                let mut beside = beside.into_iter();
                (self.offered, self.meminfo) = (beside.next(), beside.next());
                let namespaces: Vec<_> = beside.by_ref().take(NAMESPACES.len()).collect();
                Ok(Ready { namespaces, allowed: beside.next() })
            }
            Some((Reply::Failed { doing, errno }, _)) => Err(failure(&doing, errno)),
            Some(_) | None => Err(died()),
        }
    }

    fn out_of_memory(&self) -> bool {
        matches!(self.cgroup.as_ref().map(BoxCgroup::counters), Some(Ok(counters)) if counters.oom_kills > 0)
    }

    /// Waits for the next event that matters to the caller.
    async fn happens(&mut self) -> Result<News, BackendError> {
        loop {
            if self.ended.is_some() && self.stdout.is_none() && self.stderr.is_none() {
                return Ok(News::Ended);
            }
            if self.silenced {
                if let Some((stream, length)) = self.read_the_rest() {
                    return Ok(News::Output(stream, length));
                }
                continue;
            }
            let lives = self.ended.is_none();
            let pause = self.pause.filter(|_| lives);
            let happened = tokio::select! {
                () = readable(self.stdout.as_ref(), pause) => Happened::Readable(Stream::Stdout),
                () = readable(self.stderr.as_ref(), pause) => Happened::Readable(Stream::Stderr),
                said = hear(&mut self.keeper, self.socket.as_ref()), if lives => Happened::Said(said?),
                () = called(self.listener.as_ref()), if lives => Happened::Called,
                _ = self.watch.tick(), if lives => Happened::Tick,
            };
            match happened {
                Happened::Readable(stream) => {
                    if let Some(length) = self.read(stream) {
                        return Ok(News::Output(stream, length));
                    }
                    if lives && self.stdout.is_none() && self.stderr.is_none() {
                        self.look_at_program();
                    }
                }
                Happened::Said(Some((Reply::Ended { status, cpu_micros, max_rss }, _))) => {
                    self.ended = Some(Ended { status, cpu: Duration::from_micros(cpu_micros), max_rss });
                }
                Happened::Said(Some((Reply::Deserted { status }, _))) => self.be_deserted(status),
                // The keeper was killed, so the kernel has killed the box.
                Happened::Said(None) => {
                    self.ended = Some(Ended { status: 9, cpu: Duration::ZERO, max_rss: 0 });
                }
                Happened::Said(Some((Reply::Listening, beside))) => {
                    beside.into_iter().next().map_or(Ok(()), |one| self.decide_on_calls(one))?;
                }
                Happened::Said(Some((
                    Reply::Hired { .. }
                    | Reply::Ready
                    | Reply::Supplied
                    | Reply::Uplink
                    | Reply::Started
                    | Reply::Failed { .. },
                    _,
                ))) => {}
                Happened::Called => self.look_at_calls(),
                Happened::Tick => self.look_at_counters(),
            }
        }
    }

    /// Some process makes a call that has to be decided on, or none can make any more.
    fn look_at_calls(&mut self) {
        let Some(Polled { listener, .. }) = &self.listener else { return };
        if listener.has_hung_up() {
            return self.be_silenced();
        }
        if self.sockets.is_none() {
            self.sockets = self.cgroup.as_ref().and_then(|cgroup| cgroup.sockets().ok());
        }
        // Without a cgroup, memory is not promised, and there is no process by which to find the sockets.
        let (sockets, limited) = (self.sockets.as_ref(), self.cgroup.is_some());
        let open = || match sockets {
            Some(sockets) => sockets.netlink(),
            None if limited => Ok(usize::MAX),
            None => Ok(0),
        };
        // A call that was not decided on is looked at again by the next tick.
        let _ = self.rations.answer(listener, open);
    }

    /// No process in the box can run any more. If the program has already been waited for, PID 1 is about to report how
    /// it ended.
    fn be_silenced(&mut self) {
        self.listener = None;
        if !self.has_exit_listener {
            return;
        }
        if let Some(status) = self.program.as_ref().and_then(Program::status_at_exit) {
            self.ended = Some(Ended { status, cpu: Duration::ZERO, max_rss: 0 });
            self.silenced = true;
        }
    }

    /// Reads the rest of the streams, which no process can write to any more although they may still be open.
    fn read_the_rest(&mut self) -> Option<(Stream, usize)> {
        self.buffer.clear();
        self.buffer.reserve(BUFFER);
        for (stream, pipe) in [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)] {
            let Some(open) = pipe else { continue };
            match rustix::io::read(open.as_fd(), spare_capacity(&mut self.buffer)) {
                Ok(length) if length > 0 => return Some((stream, length)),
                _ => *pipe = None,
            }
        }
        None
    }

    /// The streams have ended. If the program is exiting and leaves no process behind, it has ended: freeing its memory
    /// takes the kernel longer than most programs run.
    fn look_at_program(&mut self) {
        let alone = self.cgroup.as_ref().is_some_and(|cgroup| matches!(cgroup.tasks(), Ok(2)));
        let status = self.program.as_ref().filter(|_| alone).and_then(Program::exit_status);
        if let Some(status) = status {
            self.ended = Some(Ended { status, cpu: Duration::ZERO, max_rss: 0 });
        }
    }

    /// The program has ended, and left no process. If its cgroup counts what it used, nothing more is needed; otherwise
    /// the counters are read when the box is dead.
    fn be_deserted(&mut self, status: i32) {
        if self.cgroup.is_some() {
            self.ended = Some(Ended { status, cpu: Duration::ZERO, max_rss: 0 });
        } else {
            self.keeper.kill_box();
        }
    }

    /// Reads what is available; `None` if that is nothing, or the end of the stream. Several times, because
    /// handling an event costs more than a read.
    fn read(&mut self, stream: Stream) -> Option<usize> {
        self.buffer.clear();
        // Not sooner: a parked box needs no buffer.
        self.buffer.reserve(BUFFER);
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        for _ in 0..READS {
            let so_far = self.buffer.len();
            if so_far == self.buffer.capacity() {
                break;
            }
            match pipe.as_ref()?.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The end stays, and is seen again by the next call.
                Ok(0) | Err(_) if so_far > 0 => break,
                Ok(0) | Err(_) => *pipe = None,
                Ok(_) => {}
            }
        }
        (!self.buffer.is_empty()).then(|| self.consider_pause(self.buffer.len()))
    }

    fn consider_pause(&mut self, length: usize) -> usize {
        self.small_pieces = if length < SMALL { self.small_pieces.saturating_add(1) } else { 0 };
        self.pause = (self.small_pieces >= SMALL_PIECES).then(|| Instant::now() + PAUSE);
        length
    }

    /// Enforces what the kernel only counts: the CPU time of all processes, the kernel memory that the memory limit
    /// does not bound, and that an OOM kill of one process ends them all (which cgroup v1 does not do itself). Also
    /// looks after a killed box that takes long to die.
    fn look_at_counters(&mut self) {
        self.look_at_calls();
        if let Some(at) = self.killed_at {
            self.wait_for_death(at);
        }
        let Some(Ok(counters)) = self.cgroup.as_ref().map(BoxCgroup::counters) else { return };
        let counters = counters.since(self.booting);
        if self.killed_at.is_none() && self.terms.cpu_time.is_some_and(|limit| counters.cpu > limit) {
            self.cpu_exhausted = true;
            self.kill_tree();
        }
        if self.killed_at.is_none() && counters.oom_kills > 0 {
            self.kill_tree();
        }
        if self.killed_at.is_none() && self.memory_beyond_limit() > BEYOND_LIMIT {
            self.memory_exhausted = true;
            self.kill_tree();
        }
    }

    /// A box that is just ending may no longer have a process by which to find its sockets.
    fn memory_beyond_limit(&mut self) -> u64 {
        let Some(cgroup) = self.cgroup.as_ref() else { return 0 };
        if self.sockets.is_none() {
            self.sockets = cgroup.sockets().ok();
        }
        let sockets = self.sockets.as_ref().and_then(|sockets| sockets.memory().ok()).unwrap_or_default();
        let in_proc = |pid: &Pid| format!("/proc/{}", pid.as_raw_nonzero());
        let processes = || Ok(cgroup.processes()?.iter().map(in_proc).collect());
        // What cannot be counted must not go on.
        let locks = self.locks.memory::<String>(processes).unwrap_or(u64::MAX);
        let buffers = cgroup.memory_beyond_limit(&self.terms.limits).unwrap_or_default();
        buffers.saturating_add(sockets).saturating_add(locks)
    }

    /// Looks after a box that was killed and is not dead yet.
    fn wait_for_death(&self, killed_at: Instant) {
        let waited = killed_at.elapsed();
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| waited > DEATH_PATIENCE) {
            cgroup.hasten_death();
        }
        if waited > KILL_PATIENCE {
            self.keeper.kill();
        }
    }

    fn kill_tree(&mut self) {
        self.killed_at.get_or_insert_with(Instant::now);
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        self.keeper.kill_box();
    }

    fn dismiss_keeper(&mut self) {
        self.socket = None;
        self.keeper.dismiss();
    }

    /// Reads the counters, collects files, and removes every trace of the box.
    fn close(mut self, changes: Option<Changes>) -> Result<Finished, BackendError> {
        let ended = self.ended.unwrap_or(Ended { status: 9, cpu: Duration::ZERO, max_rss: 0 });
        let counters = match &self.cgroup {
            Some(cgroup) => cgroup
                .counters()
                .map_err(|error| setup("read the box's counters")(io::Error::other(error)))?,
            None => Counters { cpu: ended.cpu, memory_peak: ended.max_rss, oom_kills: 0 },
        };
        let counters = counters.since(self.booting);
        let network = self.gateway.take().map(Gateway::finish);
        let (files, left_out) = self.collect();
        let ending = self.ending(ended.status, &counters);
        (self.offered, self.before) = (None, None);
        // The teardown task polls as long as there are runs, so this run counts as ended only after it has handed over
        // its box.
        let _waited = self.waited_for.take();
        match self.start {
            // A run that did not wait for its box to be made need not wait for its teardown either.
            Start::Warm | Start::Zygote => tear_down_later(self).or_else(|back| back.take_apart())?,
            Start::Cold => self.take_apart()?,
        }
        let (cpu, memory_peak) = (counters.cpu, counters.memory_peak);
        Ok(Finished { ending, cpu, memory_peak, files, left_out, changes, network })
    }

    /// Disconnects, and lets the keeper kill the box and remove its cgroups.
    pub(crate) async fn take_apart_now(mut self) {
        self.keeper.say_goodbye();
        let gone = async { while let Ok(Some(_)) = hear(&mut self.keeper, self.socket.as_ref()).await {} };
        let _ = tokio::time::timeout(PATIENCE, gone).await;
        // What could not be removed now is found by the next sweep.
        let _ = self.take_apart();
    }

    fn take_apart(mut self) -> Result<(), BackendError> {
        self.socket = None;
        if self.keeper.is_process() {
            // The keeper kills what is left, and then removes the cgroups.
            self.keeper.dismiss();
        }
        if let Some(cgroup) = self.cgroup.take() {
            cgroup.remove().map_err(|error| setup("remove the box's cgroup")(io::Error::other(error)))?;
        }
        self.keeper.dismiss();
        Ok(())
    }

    fn collect(&self) -> (Vec<CollectedFile>, usize) {
        let Some(dir) = self.offered.as_ref().filter(|_| !self.terms.collect.is_empty()) else {
            return (Vec::new(), 0);
        };
        let wanted = Wanted {
            patterns: &self.terms.collect,
            // The layer has only what the run has written, whatever its name.
            source: if self.terms.writes == Writes::Refused { self.source.as_str() } else { "" },
            hidden: None,
            bytes: self.terms.collected.get(),
            names: self.terms.limits.max_files(),
        };
        collect::collect(dir, &wanted)
    }

    /// How to find out what became of the workspace, if that was asked for. It may take a while.
    fn survey(&self) -> Option<impl FnOnce() -> Changes + Send + use<>> {
        let wanted = self.terms.writes == Writes::Reported;
        let (layer, before) = self.offered.as_ref().zip(self.before.as_ref()).filter(|_| wanted)?;
        let (layer, before, code) = (layer.try_clone().ok()?, before.try_clone().ok()?, self.code);
        Some(move || Layered { before: before.as_fd(), layer: layer.as_fd(), code }.changes())
    }

    fn ending(&self, status: i32, counters: &Counters) -> Ending {
        let status = Status(status);
        let spent = self.terms.cpu_time.is_some_and(|limit| counters.cpu >= limit);
        if counters.oom_kills > 0 || self.memory_exhausted {
            Ending::OutOfMemory
        } else if self.cpu_exhausted || (spent && status.signal().is_some()) {
            Ending::CpuTimeExhausted
        } else if let Some(signal) = status.signal() {
            Ending::Signaled(signal)
        } else {
            Ending::Exited(status.exit_code())
        }
    }
}

impl Execution for NativeExecution {
    fn start(&self) -> Start {
        self.start
    }

    fn cold_reason(&self) -> Option<&str> {
        self.cold_reason.as_deref()
    }

    fn runtime(&self) -> &str {
        &self.terms.runtime
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async {
            Ok(match self.happens().await? {
                News::Output(stream, length) => Event::Output(stream, &self.buffer[..length]),
                News::Ended => Event::Ended,
            })
        })
    }

    fn kill(&mut self) {
        self.kill_tree();
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>> {
        Box::pin(async {
            let changes = match self.survey() {
                Some(survey) => Some(apart(survey).await?),
                None => None,
            };
            self.close(changes)
        })
    }
}

impl Drop for NativeExecution {
    fn drop(&mut self) {
        // The keeper's end kills the box; the cgroup must be empty before it can be removed.
        self.kill_tree();
        self.dismiss_keeper();
    }
}

/// An event whose output is still in the buffer, with its length.
enum News {
    Output(Stream, usize),
    Ended,
}

enum Happened {
    Readable(Stream),
    Said(Option<(Reply, Vec<OwnedFd>)>),
    Called,
    Tick,
}

/// A raw wait status.
#[derive(Clone, Copy)]
struct Status(i32);

impl Status {
    fn signal(self) -> Option<u8> {
        let signal = u8::try_from(self.0 & 0x7f).unwrap_or_default();
        (signal != 0).then_some(signal)
    }

    fn exit_code(self) -> u8 {
        u8::try_from((self.0 >> 8) & 0xff).unwrap_or_default()
    }
}

/// The next message from the keeper; `None` if it has died.
async fn hear(
    keeper: &mut Keeper,
    socket: Option<&UnixDatagram>,
) -> Result<Option<(Reply, Vec<OwnedFd>)>, BackendError> {
    let Some(socket) = socket else { return Ok(None) };
    loop {
        socket.readable().await.map_err(setup("receive the keeper's report"))?;
        match socket.try_io(Interest::READABLE, || keeper.hear()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other.map_err(setup("receive the keeper's report")),
        }
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

/// Returns when the state of the listener has changed.
async fn called(listener: Option<&Polled>) {
    let Some(Polled { state, .. }) = listener else { return std::future::pending().await };
    if state.readable().await.is_ok() {
        // The next change is waited for.
        let unchanged = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = state.try_io(Interest::READABLE, unchanged);
    }
}

/// Does something that takes a while, on a thread on which nobody waits. A program with one thread waits itself.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BackendError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|lost| setup("read the changes of the workspace")(io::Error::other(lost)))
}

/// Waits until there is something to read, but not before the end of a pause.
async fn readable(pipe: Option<&Receiver>, pause: Option<Instant>) {
    if let Some(end) = pause {
        tokio::time::sleep_until(end).await;
    }
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}

/// The socket keeps message boundaries, like a datagram socket; polling it needs no more than that.
fn watch_socket(keeper: &Keeper) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(keeper.share_socket()?);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// A step in this process that failed.
pub(crate) fn setup(step: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Setup {
        step: step.to_owned(),
        hint: "`belljar doctor` shows what this host can do".into(),
        source,
    }
}

/// PID 1 died before the box was ready.
fn died() -> BackendError {
    setup("build the box: PID 1 died")(io::ErrorKind::BrokenPipe.into())
}

/// A step in the keeper or in PID 1 that failed.
pub(crate) fn failure(doing: &str, errno: i32) -> BackendError {
    let source = io::Error::from_raw_os_error(errno);
    if doing.starts_with("write the run's files") && errno == rustix::io::Errno::NOSPC.raw_os_error() {
        return BackendError::Unusable {
            field: Field::Files,
            message: "the run's files do not fit into --disk".into(),
            hint: "raise the limit with --disk".into(),
        };
    }
    let obstacle = Obstacle { doing: doing.to_owned(), errno };
    BackendError::Setup { step: doing.to_owned(), hint: obstacle.hint(), source }
}
