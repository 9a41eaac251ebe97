//! One program in one box, from the plan to the last byte and the counters.
//!
//! `order.rs` begins it, this file waits for what happens, `life.rs` decides what that means for its end.

mod calls;
mod life;
mod order;
mod output;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::backend::{BackendError, BoxFuture, Event, Execution, Finished, Stream};
use belljar_core::egress::NetworkEvent;
use belljar_core::limits::{BoxLimits, Bytes};
use belljar_core::outcome::{Changes, CollectedFile, NetworkUse, Start};
use belljar_core::path::{BoxPath, Writes};
use belljar_core::request::Glob;
use belljar_host::changes::Layered;
use belljar_host::collect::{self, Wanted};
use belljar_host::sockets::BEYOND_LIMIT;
use belljar_jail::message::Reply;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, Interval};

pub(crate) use self::order::{Entrance, Entry};

use self::calls::Calls;
use self::life::{Exit, Life, Overdue, Sign, WaitStatus, Why};
use self::output::Output;
use crate::cgroup::{BoxCgroup, Counters};
use crate::errors::setup;
use crate::live_box::LiveBox;
use crate::load::Waited;
use crate::network::Gateway;
use crate::program::Program;
use crate::teardown::tear_down_later;

/// How often the counters of a running box are read.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

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
    /// Its gateway, if it has a network.
    pub(crate) gateway: Option<Gateway>,
}

/// A program that runs in a box.
pub(crate) struct NativeExecution {
    home: LiveBox,
    gateway: Option<Gateway>,
    /// After the end of the gateway: what it reported, and what is still to be told.
    network: Option<NetworkUse>,
    untold: VecDeque<NetworkEvent>,
    life: Life,
    output: Output,
    calls: Calls,
    /// The program, if its end is polled for.
    program: Option<Program>,
    /// Whether the run ends when no process can make a call any more.
    exit_listener: bool,
    /// No process can write to the streams any more.
    silenced: bool,
    shown: Shown,
    /// The code's user on the host.
    code: u32,
    source: BoxPath,
    terms: Terms,
    how: StartedHow,
    watch: Interval,
    waited_for: Option<Waited>,
}

/// What PID 1 shows of the inside of its box.
#[derive(Default)]
struct Shown {
    /// The working directory, or the layer over the workspace.
    dir: Option<OwnedFd>,
    /// The workspace beneath that layer.
    before: Option<OwnedFd>,
    /// What the box shows as `/proc/meminfo`, until it is a run.
    meminfo: Option<OwnedFd>,
}

/// How the run began.
struct StartedHow {
    start: Start,
    /// If there is a pool: why no box of it was used.
    cold_reason: Option<String>,
    /// CPU time that was used before the run began.
    booting: Duration,
}

impl Default for StartedHow {
    fn default() -> StartedHow {
        StartedHow { start: Start::Cold, cold_reason: None, booting: Duration::ZERO }
    }
}

impl NativeExecution {
    /// Whether it is alive, as far as its keeper has reported.
    pub(crate) fn lives(&mut self) -> bool {
        let said = self.home.keeper.hear();
        !self.life.has_ended() && said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The cgroup of the box.
    pub(crate) fn cgroup(&self) -> Option<&BoxCgroup> {
        self.home.cgroup.as_ref()
    }

    /// The program, if its end is polled for.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// The working directory of the box, if it was offered.
    pub(crate) fn working_dir(&self) -> Option<BorrowedFd<'_>> {
        self.shown.dir.as_ref().map(AsFd::as_fd)
    }

    /// Rewrites what the box shows as `/proc/meminfo`.
    pub(crate) fn rewrite_meminfo(&self, text: &[u8]) -> io::Result<()> {
        let file = self.shown.meminfo.as_ref().ok_or(io::ErrorKind::NotFound)?;
        rustix::fs::ftruncate(file, 0)?;
        if rustix::io::pwrite(file, text, 0)? < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// From now on this is the run of a request, whose program has been waiting. What was used so far is not counted.
    pub(crate) fn become_run(&mut self, start: Start, terms: Terms, booting: Duration) {
        self.terms = terms;
        self.shown.meminfo = None;
        (self.how.start, self.how.booting) = (start, booting);
        self.watch.reset();
    }

    /// A caller waits for its end.
    pub(crate) fn be_waited_for(&mut self, waited: Waited) {
        self.waited_for = Some(waited);
    }

    /// This run could not take a box of the pool, for this reason.
    pub(crate) fn be_cold_because(&mut self, why: Option<&str>) {
        self.how.cold_reason = why.map(str::to_owned);
    }

    /// Waits for the next event that matters to the caller.
    async fn happens(&mut self) -> Result<News, BackendError> {
        loop {
            if self.life.has_ended() && self.output.has_ended() {
                self.end_network();
                return Ok(self.untold.pop_front().map_or(News::Ended, News::Network));
            }
            if self.silenced {
                if let Some((stream, length)) = self.output.read_the_rest() {
                    return Ok(News::Output(stream, length));
                }
                continue;
            }
            let lives = !self.life.has_ended();
            let happened = tokio::select! {
                stream = self.output.readable(lives) => Happened::Readable(stream),
                said = self.home.hear(), if lives => Happened::Said(said?),
                () = self.calls.changed(), if lives => Happened::Called,
                event = hear(&mut self.gateway), if lives && self.gateway.is_some() => Happened::Told(event),
                _ = self.watch.tick(), if lives => Happened::Tick,
            };
            match happened {
                Happened::Readable(stream) => {
                    if let Some(length) = self.output.read(stream) {
                        return Ok(News::Output(stream, length));
                    }
                    self.look_at_program();
                }
                Happened::Said(said) => self.take_in(said)?,
                Happened::Called => self.look_at_calls(),
                Happened::Told(event) => return Ok(News::Network(event)),
                Happened::Tick => self.look_at_counters(),
            }
        }
    }

    /// What the keeper said; `None`: it is gone.
    fn take_in(&mut self, said: Option<(Reply, Vec<OwnedFd>)>) -> Result<(), BackendError> {
        match said {
            Some((Reply::Ended { status, cpu_micros, max_rss }, _)) => {
                self.life.show(Sign::Reported(reported(status, cpu_micros, max_rss)));
            }
            Some((Reply::Deserted { status }, _)) => match self.home.cgroup {
                Some(_) => self.life.show(Sign::Alone(WaitStatus(status))),
                // What it used is known only when the box is dead.
                None => self.home.keeper.kill_box(),
            },
            Some((Reply::Listening, beside)) => {
                beside.into_iter().next().map_or(Ok(()), |one| self.decide_on_calls(one))?;
            }
            Some((
                Reply::Hired { .. }
                | Reply::Ready
                | Reply::Supplied
                | Reply::Template
                | Reply::Uplink
                | Reply::Started
                | Reply::Failed { .. },
                _,
            )) => {}
            None => self.life.show(Sign::KeeperGone),
        }
        Ok(())
    }

    /// If the streams have ended, and the program is exiting and leaves no process behind, it has ended: freeing its
    /// memory takes the kernel longer than most programs run.
    fn look_at_program(&mut self) {
        if self.life.has_ended() || !self.output.has_ended() {
            return;
        }
        let alone = self.home.cgroup.as_ref().is_some_and(|cgroup| matches!(cgroup.tasks(), Ok(2)));
        let status = self.program.as_ref().filter(|_| alone).and_then(Program::exit_status);
        if let Some(status) = status {
            self.life.show(Sign::Alone(WaitStatus(status)));
        }
    }

    /// Some process makes a call that has to be decided on, or none can make any more. If the program has already been
    /// waited for by then, PID 1 is about to report how it ended.
    fn look_at_calls(&mut self) {
        let hung_up = self.calls.answer(self.home.cgroup.as_ref());
        if !hung_up || !self.exit_listener {
            return;
        }
        if let Some(status) = self.program.as_ref().and_then(Program::status_at_exit) {
            self.life.show(Sign::Alone(WaitStatus(status)));
            self.silenced = true;
        }
    }

    /// Enforces what the kernel only counts: the CPU time of all processes, the kernel memory that the memory limit
    /// does not bound, and that an OOM kill of one process ends them all. Also looks after a killed box that takes
    /// long to die.
    fn look_at_counters(&mut self) {
        self.look_at_calls();
        self.wait_for_death();
        let Some(cgroup) = &self.home.cgroup else { return };
        let Ok(counters) = cgroup.counters() else { return };
        let mut excess = self.life.excess(&counters.since(self.how.booting), self.terms.cpu_time);
        if excess.is_none() && self.life.is_running() {
            let beyond = self.calls.memory_beyond_limit(cgroup, &self.terms.limits);
            excess = (beyond > BEYOND_LIMIT).then_some(Why::Memory);
        }
        if let Some(why) = excess {
            self.kill_because(why);
        }
    }

    /// Looks after a box that was killed and is not dead yet.
    fn wait_for_death(&self) {
        let overdue = self.life.overdue(Instant::now());
        if let Some(cgroup) = self.home.cgroup.as_ref().filter(|_| overdue != Overdue::Nothing) {
            cgroup.hasten_death();
        }
        if overdue == Overdue::ItsKeeperKilled {
            self.home.keeper.kill();
        }
    }

    fn kill_because(&mut self, why: Why) {
        self.life.kill(why);
        self.home.kill();
    }

    /// Ends the gateway, if there is one. Nothing is left in the box that could use it.
    fn end_network(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            let (used, untold) = gateway.finish();
            (self.network, self.untold) = (Some(used), untold.into());
        }
    }

    /// Reads the counters, collects files, and removes every trace of the box.
    fn close(mut self, changes: Option<Changes>) -> Result<Finished, BackendError> {
        let exit = self.life.exit();
        let counters = match &self.home.cgroup {
            Some(cgroup) => cgroup
                .counters()
                .map_err(|error| setup("read the box's counters")(io::Error::other(error)))?,
            None => Counters { cpu: exit.cpu, memory_peak: exit.max_rss, oom_kills: 0 },
        };
        let counters = counters.since(self.how.booting);
        self.end_network();
        let network = self.network.take();
        let (files, left_out) = self.collect();
        let ending = self.life.ending(&counters, self.terms.cpu_time);
        drop(self.shown);
        // The teardown task polls as long as there are runs, so this run counts as ended only after it has handed over
        // its box.
        let _waited = self.waited_for.take();
        match self.how.start {
            // A run that did not wait for its box to be made need not wait for its teardown either.
            Start::Warm | Start::Zygote => tear_down_later(self.home).or_else(|back| back.take_apart())?,
            Start::Cold => self.home.take_apart()?,
        }
        let (cpu, memory_peak) = (counters.cpu, counters.memory_peak);
        Ok(Finished { ending, cpu, memory_peak, files, left_out, changes, network })
    }

    fn collect(&self) -> (Vec<CollectedFile>, usize) {
        let Some(dir) = self.shown.dir.as_ref().filter(|_| !self.terms.collect.is_empty()) else {
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
        let (layer, before) = self.shown.dir.as_ref().zip(self.shown.before.as_ref()).filter(|_| wanted)?;
        let (layer, before, code) = (layer.try_clone().ok()?, before.try_clone().ok()?, self.code);
        Some(move || Layered { before: before.as_fd(), layer: layer.as_fd(), code }.changes())
    }
}

impl Execution for NativeExecution {
    fn start(&self) -> Start {
        self.how.start
    }

    fn cold_reason(&self) -> Option<&str> {
        self.how.cold_reason.as_deref()
    }

    fn runtime(&self) -> &str {
        &self.terms.runtime
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async {
            Ok(match self.happens().await? {
                News::Output(stream, length) => Event::Output(stream, self.output.last(length)),
                News::Network(event) => Event::Network(event),
                News::Ended => Event::Ended,
            })
        })
    }

    fn kill(&mut self) {
        self.kill_because(Why::Asked);
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

/// An event whose output is still in the buffer, with its length.
enum News {
    Output(Stream, usize),
    Network(NetworkEvent),
    Ended,
}

enum Happened {
    Readable(Stream),
    Said(Option<(Reply, Vec<OwnedFd>)>),
    Called,
    Told(NetworkEvent),
    Tick,
}

/// What the box does next with its network. Never, if it has none.
async fn hear(gateway: &mut Option<Gateway>) -> NetworkEvent {
    match gateway {
        Some(gateway) => gateway.hear().await,
        None => std::future::pending().await,
    }
}

/// The keeper's last report.
fn reported(status: i32, cpu_micros: u64, max_rss: u64) -> Exit {
    Exit { status: WaitStatus(status), cpu: Duration::from_micros(cpu_micros), max_rss }
}

/// Does something that takes a while, on a thread on which nobody waits. A program with one thread waits itself.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BackendError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|lost| setup("read the changes of the workspace")(io::Error::other(lost)))
}
