//! The one path of a run, whichever surface asked for it: request, admission, queue, box, result.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use belljar_core::Captured;
use belljar_core::backend::Stream;
use belljar_core::language::Language;
use belljar_core::outcome::{Changes, CollectedFile, Report, Stage};
use belljar_engine::{Admission, Asked, Engine, RunId};
use belljar_wire::{
    Code, ImagePull, Local, NetworkActivity, OutputForm, Problem, RunRequest, RunResult, RunStarted,
    RunState, RunStatus, RunSummary, Surface,
};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Instrument;

use crate::caller::{Caller, Presence};
use crate::config::Config;
use crate::event_log::{EventLog, LogEvent, Reader, Reporter, SoFar};
use crate::http::body::{Memory, Share};
use crate::metrics::Metrics;
use crate::references;
use crate::store::Store;
use crate::uploads::Uploads;
use crate::workspace::refuse_detours;

/// How long a run that has ended waits for the memory that its result takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// What a byte of a file becomes: four thirds in base64, and the same again in the text of an answer.
const RENDERED_FILE: usize = 3;
/// What a byte of output can become, if it is one that has to be escaped.
pub(crate) const RENDERED_TEXT: usize = 6;

/// The runs of a server, under way and ended. A clone is the same.
#[derive(Debug, Clone)]
pub struct Runs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    engine: Engine,
    threads: Handle,
    living: Mutex<Living>,
    /// Notified when there is a run.
    born: Condvar,
    kept: Mutex<Store<Arc<Record>>>,
    uploads: Uploads,
    /// Memory for results, kept or not, and for what runs get of earlier results and of uploads.
    memory: Memory,
    metrics: Metrics,
}

/// The runs that have not ended, and whether there may be more of them: one lock, so that none slips in after the last.
#[derive(Debug, Default)]
struct Living {
    runs: HashMap<String, Arc<Record>>,
    closed: bool,
    /// Whether the server is about to end, and has no time for people to decide.
    leaving: bool,
    /// Whether a thread waits for the next one.
    awaited: bool,
}

/// A run, from its admission until its result is forgotten.
#[derive(Debug)]
struct Record {
    id: RunId,
    owner: String,
    language: Language,
    /// What it waits for, or has waited for.
    approval_id: Option<String>,
    created: SystemTime,
    log: EventLog,
    fate: watch::Sender<Fate>,
    end: watch::Sender<Option<End>>,
}

/// Whether a run is to go on. One value, so that it cannot be detached and cancelled by its client's departure at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// For as long as the client that started it is there.
    Attached,
    /// Whether or not that client is there.
    Detached,
    /// It is to end now.
    Cancelled,
}

/// A run that was admitted or not, and is to be driven to its end.
struct Ticket {
    admission: Admission,
    presence: Presence,
    form: OutputForm,
    /// For the files that it gets of earlier results and of uploads.
    room: Share,
    /// When it was to be admitted.
    began: Instant,
}

/// A request that makes sense, of a caller that may make it.
struct Understood {
    request: belljar_core::request::RunRequest,
    presence: Presence,
    /// For the files that it gets of earlier results and of uploads.
    room: Share,
}

/// How a run ended: as a run, or because Belljar could not run it.
pub type End = Result<Arc<Finished>, Problem>;

/// A run that took place: everything that is known of it.
#[derive(Debug)]
pub struct Finished {
    /// In the terms of the domain: output as bytes, the ending as a type.
    pub report: Report,
    /// What all of it took the engine, from admission to the last trace of the box.
    pub took: Duration,
    form: OutputForm,
    /// It pays for the memory that it takes, for as long as anybody holds it.
    share: Share,
}

impl Finished {
    /// The contract's result object.
    #[must_use]
    pub fn result(&self) -> RunResult {
        RunResult::new(&self.report, self.form)
    }

    /// A file that it collected.
    ///
    /// # Errors
    /// That there is none of that name.
    pub(crate) fn file(&self, path: &str) -> Result<&CollectedFile, Problem> {
        let found = self.report.files.iter().flatten().find(|file| file.path == path);
        found.ok_or_else(|| {
            let shown: String = path.chars().take(200).collect();
            let message = format!("the run left no file '{}'", shown.escape_debug());
            let hint = "collect it: the run's collect argument takes names and globs";
            Problem::new(Code::NotFound, message, hint)
        })
    }

    /// What keeping it costs, near enough.
    pub(crate) fn bytes(&self) -> usize {
        let files = self.report.files.iter().flatten().map(|file| file.content.len() + file.path.len());
        let compiler = self.report.compile.iter().flat_map(|compiler| [&compiler.stdout, &compiler.stderr]);
        let output = [&self.report.stdout, &self.report.stderr].into_iter().chain(compiler);
        let changes = self.report.changes.as_ref().map_or(0, weight_of);
        1024 + files.sum::<usize>() + output.map(Captured::len).sum::<usize>() + changes
    }

    /// The head of what a stage wrote to a stream. What a compiler that failed wrote is told as the result of the run, too, but
    /// not twice here.
    pub(crate) fn head(&self, stage: Stage, stream: Stream) -> &[u8] {
        let Report { stdout, stderr, compile, stage: last, .. } = &self.report;
        let written = match stage {
            Stage::Compile => compile.as_ref().map(|compiler| (&compiler.stdout, &compiler.stderr)),
            Stage::Run => (*last == Stage::Run).then_some((stdout, stderr)),
        };
        written.map_or(&[], |(stdout, stderr)| match stream {
            Stream::Stdout => stdout.head(),
            Stream::Stderr => stderr.head(),
        })
    }

    /// What it can take, at most, to render it as JSON: an object, and then the text.
    pub(crate) fn rendered_bytes(&self) -> usize {
        let files: usize = self.report.files.iter().flatten().map(|file| file.content.len()).sum();
        let rest = self.bytes() - files;
        files.saturating_mul(RENDERED_FILE).saturating_add(rest.saturating_mul(RENDERED_TEXT))
    }
}

/// What it costs to keep the changes of a workspace, near enough.
fn weight_of(changes: &Changes) -> usize {
    let names = [&changes.added, &changes.changed, &changes.removed].into_iter().flatten();
    changes.patch.len() + names.map(|name| name.len() + size_of::<String>()).sum::<usize>()
}

/// What became of a run.
#[derive(Debug, Clone)]
pub enum Found {
    /// It has not ended yet.
    Unfinished(RunState),
    /// It ended, and is still remembered.
    Finished(End),
}

/// Which runs a caller wants listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) status: Option<RunStatus>,
    pub(crate) language: Option<Language>,
    /// Only runs that are older than the one of this identifier.
    pub(crate) before: Option<String>,
}

/// An event of a run.
#[derive(Debug)]
pub enum RunEvent {
    /// Its image is being pulled. Comes before the program starts, if at all.
    Pulling(ImagePull),
    /// The program, or its compiler, has started.
    Started(RunStarted),
    /// The compiler is done, and the program has started.
    NextStage,
    /// The program did something with its network.
    Network(NetworkActivity),
    /// The program, or its compiler, wrote something. Events have only the head of each stream; the result has the tail, too.
    Output(Stream, Bytes),
    /// The box is gone.
    Ended(End),
}

/// A run that was started here. Dropping it cancels the run, because its client has gone;
/// [`detach`](Run::detach) lets it go on.
#[must_use]
pub struct Run {
    /// Its identifier, by which it can be found.
    pub id: RunId,
    events: Events,
}

/// The events of a run, from its start. Dropping it does nothing to the run.
#[derive(Debug)]
pub struct Events {
    record: Arc<Record>,
    reader: Reader,
}

impl Runs {
    /// Runs go to this engine, on these threads. They may be the ones that answer requests, if there are more of them
    /// than slots and a [`watchdog`](crate::watchdog).
    #[must_use]
    pub fn new(engine: Engine, config: &Config, threads: Handle) -> Runs {
        let (living, born, kept) = (Mutex::default(), Condvar::new(), Mutex::new(Store::new(config.kept)));
        // Results that are kept leave as much for those that are on their way to a client.
        let memory = Memory::new(config.body_memory.saturating_add(config.kept.bytes), config.max_body);
        let (metrics, uploads) = (Metrics::new(), Uploads::new(config.uploads));
        Runs(Arc::new(Shared { engine, threads, living, born, kept, uploads, memory, metrics }))
    }

    /// The engine that runs them.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Admits a request, puts it into the queue and returns. A request that the policy denies, or that a person has to
    /// approve, is a run, too: one that ends without a box, or that does not begin yet.
    ///
    /// # Errors
    /// Whatever is known without a box: a request that means nothing, that this caller may not make, that no backend
    /// can take, or that finds the queue full.
    pub async fn start(&self, caller: &Caller, request: RunRequest) -> Result<Run, Problem> {
        self.begin(caller, request, Local::default()).await
    }

    /// The same, for a request with parts that JSON cannot carry.
    ///
    /// # Errors
    /// As [`start`](Runs::start).
    pub async fn start_with(
        &self,
        caller: &Caller,
        request: RunRequest,
        local: Local,
    ) -> Result<Run, Problem> {
        self.begin(caller, request, local).await
    }

    /// The files that callers have uploaded.
    pub(crate) fn uploads(&self) -> &Uploads {
        &self.0.uploads
    }

    /// Memory for results, and for files that go from one run into another.
    pub(crate) fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// What was counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        request: RunRequest,
        local: Local,
    ) -> Result<Run, Problem> {
        let begun = self.try_begin(caller, request, local).await;
        begun.inspect_err(|problem| self.0.metrics.refused(problem))
    }

    async fn try_begin(&self, caller: &Caller, request: RunRequest, local: Local) -> Result<Run, Problem> {
        let (engine, origin) = (&self.0.engine, caller.origin());
        let sketch = engine.recorder().map(|_| sketch(&request, &local));
        let form = if request.output_base64 { OutputForm::TextAndBase64 } else { OutputForm::Text };
        let Understood { request, presence, room } =
            self.understood(caller, request, local).inspect_err(|problem| {
                engine.refused(&origin, || sketch.unwrap_or_default(), &problem.error.message);
            })?;
        let began = Instant::now();
        let admission = engine.admit(&origin, caller.rights(), request).await?;
        let (language, approval_id) = (admission.language(), admission.approval_id().map(str::to_owned));
        let run = self.register(caller, language, approval_id)?;
        let span = tracing::info_span!("run", id = run.id.as_str(), language = language.name);
        let ticket = Ticket { admission, presence, form, room, began };
        self.0.threads.spawn(self.clone().drive(ticket, run.events.record.clone()).instrument(span));
        Ok(run)
    }

    /// The request in the terms of the domain, of a caller that may have one more run, with the files that it refers to.
    fn understood(
        &self,
        caller: &Caller,
        request: RunRequest,
        mut local: Local,
    ) -> Result<Understood, Problem> {
        if let Some(workspace) = &request.workspace {
            refuse_detours(&caller.allowance().workspaces, workspace)?;
        }
        let mut request = caller.defaults().fill(request);
        // Before there is a slot: one that is given back unused would count as a very short run.
        let presence = caller.enter()?;
        let room = references::fetch(self, caller, &mut request, &mut local)?;
        let request = request.parse_within(&caller.allowance().ceilings, local)?;
        Ok(Understood { request, presence, room })
    }

    /// What became of a run of this caller's.
    ///
    /// # Errors
    /// That there is no such run, or not any more. A run of another caller is reported in the same way.
    pub fn find(&self, caller: &Caller, id: &str) -> Result<Found, Problem> {
        Ok(self.record(caller, id)?.found())
    }

    /// Waits for a run of this caller's to end, but not for longer than that.
    ///
    /// # Errors
    /// As [`find`](Runs::find).
    pub async fn wait(&self, caller: &Caller, id: &str, at_most: Duration) -> Result<Found, Problem> {
        let record = self.record(caller, id)?;
        let _ = tokio::time::timeout(at_most, record.ended()).await;
        Ok(record.found())
    }

    /// The end of what a run of this caller's has written so far: of stdout and of stderr.
    ///
    /// # Errors
    /// As [`find`](Runs::find).
    pub(crate) fn so_far(&self, caller: &Caller, id: &str) -> Result<(SoFar, SoFar), Problem> {
        let record = self.record(caller, id)?;
        Ok((record.log.so_far(Stream::Stdout), record.log.so_far(Stream::Stderr)))
    }

    /// The events of a run of this caller's, from its start.
    ///
    /// # Errors
    /// As [`find`](Runs::find).
    pub fn events(&self, caller: &Caller, id: &str) -> Result<Events, Problem> {
        Ok(self.record(caller, id)?.events())
    }

    /// The newest runs of this caller's that are wanted, newest first.
    pub(crate) fn list(&self, caller: &Caller, wanted: &Wanted, limit: usize) -> Vec<RunSummary> {
        let summaries = self.records(caller).into_values().rev().filter(|record| wanted.includes(record));
        let summaries = summaries.map(|record| record.summary());
        summaries.filter(|run| wanted.status.is_none_or(|status| status == run.status)).take(limit).collect()
    }

    /// Ends a run of this caller's, and returns the status that it had.
    ///
    /// # Errors
    /// That there is none, or that it has ended already.
    pub fn cancel(&self, caller: &Caller, id: &str) -> Result<RunStatus, Problem> {
        let record = self.record(caller, id)?;
        match record.found() {
            Found::Unfinished(state) => {
                record.cancel();
                Ok(state.status)
            }
            Found::Finished(_) => {
                let message = format!("the run '{}' has already ended", id.escape_debug());
                Err(Problem::new(Code::Conflict, message, "fetch its result with GET /v1/runs/{id}"))
            }
        }
    }

    /// Does something when a run has ended.
    pub(crate) fn when_ended(&self, run: &Run, act: impl FnOnce() + Send + 'static) {
        let record = run.events.record.clone();
        self.0.threads.spawn(async move {
            let _ = record.ended().await;
            act();
        });
    }

    /// How many there are right now, in the queue or in a box.
    #[must_use]
    pub fn count(&self) -> usize {
        locked(&self.0.living).runs.len()
    }

    /// Blocks until there is one.
    pub(crate) fn wait_for_one(&self) {
        let none = |living: &mut Living| {
            living.awaited = living.runs.is_empty();
            living.awaited
        };
        drop(self.0.born.wait_while(locked(&self.0.living), none));
    }

    /// Ends those that wait for a person, who may take longer than the server has.
    pub(crate) fn cancel_undecided(&self) {
        let mut living = locked(&self.0.living);
        living.leaving = true;
        living.runs.values().filter(|record| record.awaits_approval()).for_each(|record| record.cancel());
    }

    /// Ends all of them, for good: none begins after that.
    pub fn cancel_all(&self) {
        let mut living = locked(&self.0.living);
        living.closed = true;
        living.runs.values().for_each(|record| record.cancel());
    }

    fn register(
        &self,
        caller: &Caller,
        language: Language,
        approval_id: Option<String>,
    ) -> Result<Run, Problem> {
        let id = RunId::new();
        let record = Arc::new(Record {
            id: id.clone(),
            owner: caller.name().to_owned(),
            language,
            approval_id,
            created: SystemTime::now(),
            log: EventLog::default(),
            fate: watch::Sender::new(Fate::Attached),
            end: watch::Sender::new(None),
        });
        let mut living = locked(&self.0.living);
        if living.closed {
            return Err(shutting_down());
        }
        if living.leaving && record.approval_id.is_some() {
            record.cancel();
        }
        living.runs.insert(id.to_string(), record.clone());
        if std::mem::take(&mut living.awaited) {
            self.0.born.notify_one();
        }
        Ok(Run { id, events: record.events() })
    }

    async fn drive(self, ticket: Ticket, record: Arc<Record>) {
        let Ticket { admission, presence, form, began, room: _room } = ticket;
        let memory = self.0.memory.of(&record.owner);
        let mut reporter = Reporter::new(record.id.clone(), record.log.clone(), memory.clone());
        let mut fate = record.fate.subscribe();
        let cancel = async move {
            // It fails only when the sender is gone, and this task has it.
            let _ = fate.wait_for(|fate| *fate == Fate::Cancelled).await;
            None
        };
        // A bug of ours must not leave a caller waiting for ever, or the run among the living.
        let running = AssertUnwindSafe(self.0.engine.carry_out(&record.id, admission, &mut reporter, cancel));
        let end = match running.catch_unwind().await {
            Ok(Ok(report)) => settle(report, reporter.room, &memory, began, form).await,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(lost()),
        };
        self.note(&record, &end);
        record.log.close(end.as_ref().ok());
        self.remember(&record, &end);
        // A client that hears of the end may start its next run at once.
        drop(presence);
        record.end.send_replace(Some(end));
    }

    fn note(&self, record: &Record, end: &End) {
        let caller = &record.owner;
        match end {
            Ok(finished) => {
                self.0.metrics.ran(&finished.report);
                let (outcome, ms) = (finished.report.outcome, finished.report.usage.wall.as_secs_f64() * 1e3);
                tracing::info!(caller, ?outcome, ms, "ran");
            }
            Err(problem) => {
                self.0.metrics.refused(problem);
                let error = &problem.error.message;
                tracing::error!(caller, error, "could not be run");
            }
        }
    }

    /// Moves a run to those that have ended, so that at every moment it is found among the ones or the others.
    fn remember(&self, record: &Arc<Record>, end: &End) {
        let bytes = end.as_ref().map_or(1024, |finished| finished.bytes()) + record.log.bytes();
        let id = record.id.to_string();
        locked(&self.0.kept).put(&record.owner, id, record.clone(), bytes, Instant::now());
        locked(&self.0.living).runs.remove(record.id.as_str());
    }

    fn record(&self, caller: &Caller, id: &str) -> Result<Arc<Record>, Problem> {
        let live =
            locked(&self.0.living).runs.get(id).filter(|record| record.owner == caller.name()).cloned();
        live.or_else(|| locked(&self.0.kept).get(caller.name(), id, Instant::now()))
            .ok_or_else(|| no_such_run(id))
    }

    /// All runs of a caller's by their identifiers, the oldest first. One that moves meanwhile is found in both places.
    fn records(&self, caller: &Caller) -> BTreeMap<String, Arc<Record>> {
        let living = locked(&self.0.living);
        let own = living.runs.values().filter(|record| record.owner == caller.name());
        let mut records: Vec<_> = own.cloned().collect();
        drop(living);
        records.extend(locked(&self.0.kept).all(caller.name(), Instant::now()));
        records.into_iter().map(|record| (record.id.to_string(), record)).collect()
    }
}

impl Record {
    fn found(&self) -> Found {
        match self.end.borrow().clone() {
            Some(end) => Found::Finished(end),
            None => Found::Unfinished(self.state()),
        }
    }

    fn status(&self) -> RunStatus {
        self.status_at(self.end.borrow().as_ref())
    }

    fn status_at(&self, end: Option<&End>) -> RunStatus {
        match end {
            Some(Ok(finished)) => RunStatus::of(finished.report.outcome),
            Some(Err(_)) => RunStatus::Failed,
            None => self.unfinished(),
        }
    }

    fn unfinished(&self) -> RunStatus {
        if self.log.has_left_queue() {
            RunStatus::Running
        } else if self.awaits_approval() {
            RunStatus::AwaitingApproval
        } else {
            RunStatus::Queued
        }
    }

    fn awaits_approval(&self) -> bool {
        self.approval_id.is_some() && self.end.borrow().is_none() && !*self.log.decided().borrow()
    }

    /// Where it is right now, without its result.
    fn state(&self) -> RunState {
        let status = self.status();
        let awaited = self.approval_id.clone().filter(|_| status == RunStatus::AwaitingApproval);
        RunState { id: self.id.to_string(), status, approval_id: awaited }
    }

    /// Waits until a person has decided, if that is what it waits for.
    async fn decided(&self) {
        if self.awaits_approval() {
            let (mut decided, mut end) = (self.log.decided(), self.end.subscribe());
            tokio::select! {
                // They fail only if the record is gone, and we have it.
                _ = decided.wait_for(|decided| *decided) => {}
                _ = end.wait_for(Option::is_some) => {}
            }
        }
    }

    fn summary(&self) -> RunSummary {
        // One look, so that the status and the exit code of a run that ends meanwhile agree.
        let end = self.end.borrow().clone();
        let (exit_code, error) = match &end {
            Some(Ok(finished)) => (Some(finished.report.outcome.exit_code()), None),
            Some(Err(problem)) => (None, Some(problem.clone().over(Surface::Http).error)),
            None => (None, None),
        };
        let status = self.status_at(end.as_ref());
        RunSummary::new(self.id.as_str(), status, self.language, self.created, exit_code, error)
    }

    fn events(self: &Arc<Record>) -> Events {
        Events { record: self.clone(), reader: self.log.read() }
    }

    fn cancel(&self) {
        self.fate.send_replace(Fate::Cancelled);
    }

    fn detach(&self) {
        self.change_if_attached(Fate::Detached);
    }

    fn change_if_attached(&self, to: Fate) {
        self.fate.send_if_modified(|fate| {
            let attached = *fate == Fate::Attached;
            if attached {
                *fate = to;
            }
            attached
        });
    }

    async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        ended.unwrap_or_else(|| Err(lost()))
    }
}

impl Wanted {
    /// Whether a run is wanted, as far as that does not change while it runs.
    fn includes(&self, record: &Record) -> bool {
        self.language.is_none_or(|language| language.name == record.language.name)
            && self.before.as_deref().is_none_or(|before| record.id.as_str() < before)
    }
}

impl Events {
    /// The next event. After [`Ended`](RunEvent::Ended) it is the same again.
    pub async fn next(&mut self) -> RunEvent {
        match self.reader.next().await {
            Some(LogEvent::Pulling(event)) => RunEvent::Pulling(event.into()),
            Some(LogEvent::Started(started)) => RunEvent::Started(started),
            Some(LogEvent::NextStage) => RunEvent::NextStage,
            Some(LogEvent::Network(event)) => RunEvent::Network(event.into()),
            Some(LogEvent::Output(stream, bytes)) => RunEvent::Output(stream, bytes),
            None => RunEvent::Ended(self.end().await),
        }
    }

    /// The run as it waits for a person, if none has decided within that time.
    pub(crate) async fn undecided_after(&self, wait: Duration) -> Option<RunState> {
        self.record.approval_id.as_ref()?;
        let _ = tokio::time::timeout(wait, self.record.decided()).await;
        self.awaiting()
    }

    /// The run as it waits for a person, if it does.
    pub(crate) fn awaiting(&self) -> Option<RunState> {
        Some(self.record.state()).filter(|state| state.approval_id.is_some())
    }

    /// Lets the run go on whatever becomes of the client that started it. `None` if that comes too late, because it is
    /// being cancelled.
    pub(crate) fn detach(&self) -> Option<RunState> {
        self.record.detach();
        let cancelled = *self.record.fate.borrow() == Fate::Cancelled;
        (!cancelled).then(|| self.record.state())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// That Belljar could not run it.
    pub async fn end(&self) -> End {
        self.record.ended().await
    }
}

impl Run {
    /// The next event. After [`Ended`](RunEvent::Ended) it is the same again.
    pub async fn next(&mut self) -> RunEvent {
        self.events.next().await
    }

    /// Waits for a person to decide about it, if that is what it waits for, on behalf of a client that has no word for a run
    /// which does not begin yet. When it is approved, the same request can be sent again.
    ///
    /// # Errors
    /// That nobody has decided within that time.
    pub(crate) async fn decided_within(&self, wait: Duration) -> Result<(), Problem> {
        let Some(state) = self.events.undecided_after(wait).await else { return Ok(()) };
        let id = state.approval_id.unwrap_or_default();
        let message = format!("the run needs an approval, and nobody has decided about {id} yet");
        let hint = format!("approve it with `belljar approvals approve {id}`, and send the request again");
        Err(Problem::new(Code::Forbidden, message, hint))
    }

    /// Whether it still waits for a person after that time.
    pub(crate) async fn awaits_after(&self, wait: Duration) -> bool {
        self.events.undecided_after(wait).await.is_some()
    }

    /// Where it is right now.
    pub(crate) fn state(&self) -> RunState {
        self.events.record.state()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// That Belljar could not run it.
    pub async fn result(self) -> End {
        self.events.end().await
    }

    /// Lets it go on without us.
    pub fn detach(self) {
        self.events.record.detach();
    }

    /// Lets it go on without us, and holds on to `resource` until it has ended.
    pub(crate) fn detach_with<T: Send + 'static>(self, runs: &Runs, resource: T) -> RunState {
        let record = self.events.record.clone();
        self.detach();
        let state = record.state();
        runs.0.threads.spawn(async move {
            let _ = record.ended().await;
            drop(resource);
        });
        state
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.events.record.change_if_attached(Fate::Cancelled);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How much of the code is kept of a request that is not understood.
const SKETCHED: usize = 256 << 10;

/// What can be recorded of a request that is not understood.
fn sketch(request: &RunRequest, local: &Local) -> Asked {
    let code = local.code.as_ref().map_or(request.code.as_bytes(), |code| &code.bytes);
    let code = code[..code.len().min(SKETCHED)].to_owned();
    Asked {
        language: request.language.clone(),
        code: belljar_core::request::Code::parse(code, None).ok(),
        network: request.network.clone(),
        image: request.image.clone(),
        workspace: request.workspace.clone(),
        ..Asked::default()
    }
}

/// A run that took place, once there is memory for what it left. What was set aside for its files becomes a part of that.
async fn settle(report: Report, room: Share, memory: &Memory, began: Instant, form: OutputForm) -> End {
    let mut finished = Finished { report, took: began.elapsed(), form, share: room };
    let bytes = finished.bytes();
    finished.share.become_of(bytes, memory, PATIENCE).await?;
    Ok(Arc::new(finished))
}

fn shutting_down() -> Problem {
    let problem =
        Problem::new(Code::BackendUnavailable, "the server is shutting down", "try again when it is back");
    Problem { retry_after: Some(Duration::from_secs(1)), ..problem }
}

fn lost() -> Problem {
    Problem::new(Code::Internal, "the run was lost", "this is a bug in Belljar; see the server's log")
}

pub(crate) fn no_such_run(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("there is no run '{}'", shown.escape_debug());
    Problem::new(
        Code::NotFound,
        message,
        "check the id; a result is kept for a limited time, and only the caller that started the run can see it",
    )
}

/// A panic while one of these locks was held left its map as it was before or after one change.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use belljar_core::allowance::Allowance;
    use belljar_engine::Prepared;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::caller::{Callers, Key, Quota, Secret};

    /// Without a backend, so that whatever gets as far as the engine is refused there.
    fn runs(threads: &Runtime) -> Runs {
        let engine = Engine::new(Vec::new(), |unread| Ok(Prepared::unchanged(unread)));
        Runs::new(engine, &Config::default(), threads.handle().clone())
    }

    fn caller(concurrent: usize) -> Caller {
        let (secret, allowance) = (Secret::random().unwrap(), Allowance::boxed());
        let quota = Quota { concurrent: Some(concurrent), ..Quota::default() };
        let keys = vec![Key {
            name: "a".into(),
            hash: secret.hash(),
            allowance,
            policy: Arc::default(),
            quota,
            audits: false,
            approves: false,
        }];
        Callers::new(&Config { keys, ..Config::default() }, None).holder(secret.reveal()).unwrap()
    }

    #[test]
    fn none_begins_after_the_last_was_cancelled() {
        let threads = Runtime::new().unwrap();
        let (runs, caller) = (runs(&threads), caller(1));
        let python = Language::by_name("python").unwrap();
        let last = runs.register(&caller, python, None).unwrap();
        runs.cancel_all();
        assert_eq!(*last.events.record.fate.borrow(), Fate::Cancelled);
        let refused = runs.register(&caller, python, None).unwrap_err();
        assert_eq!((refused.status(), refused.retry_after), (503, Some(Duration::from_secs(1))));
        assert_eq!(runs.count(), 1);
    }

    #[test]
    fn a_quota_is_asked_before_the_engine_is() {
        let threads = Runtime::new().unwrap();
        let (runs, caller) = (runs(&threads), caller(1));
        let begin = || {
            let request = RunRequest { language: "python".into(), code: "1".into(), ..RunRequest::default() };
            threads.block_on(runs.begin(&caller, request, Local::default())).unwrap_err().error.code
        };
        assert_eq!(begin(), Code::BackendUnavailable);
        // What the engine refused does not count against the caller.
        let presence = caller.enter().unwrap();
        assert_eq!(begin(), Code::Busy);
        drop(presence);
        assert_eq!(begin(), Code::BackendUnavailable);
    }
}
