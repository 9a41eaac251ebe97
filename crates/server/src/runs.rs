//! The one path of a run, whichever surface asked for it: request, admission, queue, box, result.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::Captured;
use belljar_core::backend::Stream;
use belljar_core::outcome::Report;
use belljar_engine::{Admitted, Engine, RunId};
use belljar_wire::{Code, ImagePull, Local, OutputForm, Problem, RunRequest, RunResult, RunStarted};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Instrument;

use crate::caller::{Caller, Presence};
use crate::config::Config;
use crate::feed::{Feed, News, Reporter};
use crate::kept::Kept;
use crate::metrics::Metrics;
use crate::workspace::refuse_detours;

/// Everything that runs or ran a short while ago. A clone is the same.
#[derive(Debug, Clone)]
pub struct Runs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    engine: Engine,
    threads: Handle,
    living: Mutex<Living>,
    /// Told when a run has come to live.
    born: Condvar,
    kept: Mutex<Kept<End>>,
    metrics: Metrics,
}

/// The runs on their way, and whether there may be more of them: one lock, so that none slips in after the last.
#[derive(Debug, Default)]
struct Living {
    runs: HashMap<String, Arc<Live>>,
    closed: bool,
    /// Whether somebody wants to be told of the next one.
    awaited: bool,
}

/// A run on its way: how to stop it, and where its end will be told.
#[derive(Debug)]
struct Live {
    owner: String,
    cancel: watch::Sender<bool>,
    end: watch::Sender<Option<End>>,
}

/// A run that was admitted and is to be driven.
struct Ticket {
    id: RunId,
    admitted: Admitted,
    presence: Presence,
    form: OutputForm,
    /// When it was to be admitted.
    began: Instant,
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
}

impl Finished {
    /// The contract's result object.
    #[must_use]
    pub fn result(&self) -> RunResult {
        RunResult::new(&self.report, self.form)
    }

    /// What keeping it costs, near enough.
    pub(crate) fn bytes(&self) -> usize {
        let files = self.report.files.iter().flatten().map(|file| file.content.len() + file.path.len());
        let output = [&self.report.stdout, &self.report.stderr].map(Captured::len);
        1024 + files.sum::<usize>() + output.iter().sum::<usize>()
    }
}

/// What became of a run that somebody asks after.
#[derive(Debug, Clone)]
pub enum Found {
    /// It has not ended yet.
    Running,
    /// It ended, and is still remembered.
    Finished(End),
}

/// What a run has to say.
#[derive(Debug)]
pub enum RunEvent {
    /// It waits for an image that is being fetched. Comes before the program runs, if at all.
    Pulling(ImagePull),
    /// The program runs.
    Started(RunStarted),
    /// It wrote something. Only the head of each stream is told live; the result has the tail, too.
    Output(Stream, Bytes),
    /// The box is gone.
    Ended(End),
}

/// A run that was started here. Dropping it cancels the run, because nobody waits for it any more;
/// [`detach`](Run::detach) lets it go on.
#[must_use]
pub struct Run {
    /// Its identifier, by which it can be found.
    pub id: RunId,
    feed: Feed,
    live: Arc<Live>,
    detached: bool,
}

impl Runs {
    /// Runs go to this engine, on these threads. They may be the ones that answer requests, if there are more of them
    /// than slots and a [`lookout`](crate::lookout).
    #[must_use]
    pub fn new(engine: Engine, config: &Config, threads: Handle) -> Runs {
        let (living, born, kept) = (Mutex::default(), Condvar::new(), Mutex::new(Kept::new(config.kept)));
        Runs(Arc::new(Shared { engine, threads, living, born, kept, metrics: Metrics::new() }))
    }

    /// The engine that runs them.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Admits a request, puts it into the queue and returns at once.
    ///
    /// # Errors
    /// Whatever is known without a box: a request that means nothing, that this caller may not make, that no backend
    /// can take, or that finds the queue full.
    pub async fn start(&self, caller: &Caller, request: RunRequest) -> Result<Run, Problem> {
        self.begin(caller, request, Local::default())
    }

    /// The same, for a request some of which is no text.
    ///
    /// # Errors
    /// As [`start`](Runs::start).
    pub async fn start_with(
        &self,
        caller: &Caller,
        request: RunRequest,
        local: Local,
    ) -> Result<Run, Problem> {
        self.begin(caller, request, local)
    }

    /// What was counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn begin(&self, caller: &Caller, request: RunRequest, local: Local) -> Result<Run, Problem> {
        let begun = self.try_begin(caller, request, local);
        begun.inspect_err(|problem| self.0.metrics.refused(problem))
    }

    fn try_begin(&self, caller: &Caller, request: RunRequest, local: Local) -> Result<Run, Problem> {
        let form = if request.output_base64 { OutputForm::TextAndBase64 } else { OutputForm::Text };
        if let Some(workspace) = &request.workspace {
            refuse_detours(&caller.allowance().workspaces, workspace)?;
        }
        let request = caller.defaults().fill(request).parse_within(&caller.allowance().ceilings, local)?;
        // Before there is a slot: one that is given back unused would count as a very short run.
        let (presence, began) = (caller.enter()?, Instant::now());
        let admitted = self.0.engine.admit(caller.allowance(), request)?;
        let run = self.register(caller)?;
        let (id, feed, live) = (run.id.clone(), run.feed.clone(), run.live.clone());
        let span = tracing::info_span!("run", id = id.as_str(), language = admitted.language().name);
        let ticket = Ticket { id, admitted, presence, form, began };
        self.0.threads.spawn(self.clone().drive(ticket, feed, live).instrument(span));
        Ok(run)
    }

    /// What became of a run of this caller's.
    ///
    /// # Errors
    /// That there is none, or none any more, or that it is somebody else's, which is the same to whoever asks.
    pub fn find(&self, caller: &Caller, id: &str) -> Result<Found, Problem> {
        if self.live_one(caller, id).is_some() {
            return Ok(Found::Running);
        }
        let end = locked(&self.0.kept).get(caller.name(), id, Instant::now());
        end.map(Found::Finished).ok_or_else(|| no_such_run(id))
    }

    /// Waits for a run of this caller's to end, but not for longer than that.
    ///
    /// # Errors
    /// As [`find`](Runs::find).
    pub async fn wait(&self, caller: &Caller, id: &str, at_most: Duration) -> Result<Found, Problem> {
        if let Some(live) = self.live_one(caller, id) {
            let mut end = live.end.subscribe();
            let ended = tokio::time::timeout(at_most, end.wait_for(Option::is_some)).await;
            return Ok(match ended {
                Ok(Ok(end)) => end.clone().map_or(Found::Running, Found::Finished),
                Ok(Err(_)) | Err(_) => Found::Running,
            });
        }
        self.find(caller, id)
    }

    /// Ends a run of this caller's.
    ///
    /// # Errors
    /// That there is none, or that it has ended already.
    pub fn cancel(&self, caller: &Caller, id: &str) -> Result<(), Problem> {
        match (self.live_one(caller, id), self.find(caller, id)?) {
            (Some(live), _) => {
                live.cancel.send_replace(true);
                Ok(())
            }
            (None, Found::Running | Found::Finished(_)) => {
                let message = format!("the run '{}' has ended already", id.escape_debug());
                Err(Problem::new(Code::Conflict, message, "its result is there to be fetched"))
            }
        }
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

    /// Ends all of them, for good: none begins after that.
    pub fn cancel_all(&self) {
        let mut living = locked(&self.0.living);
        living.closed = true;
        for live in living.runs.values() {
            live.cancel.send_replace(true);
        }
    }

    fn register(&self, caller: &Caller) -> Result<Run, Problem> {
        let (id, feed) = (RunId::new(), Feed::default());
        let live = Arc::new(Live {
            owner: caller.name().to_owned(),
            cancel: watch::Sender::new(false),
            end: watch::Sender::new(None),
        });
        let mut living = locked(&self.0.living);
        if living.closed {
            return Err(going_down());
        }
        living.runs.insert(id.to_string(), live.clone());
        if std::mem::take(&mut living.awaited) {
            self.0.born.notify_one();
        }
        Ok(Run { id, feed, live, detached: false })
    }

    async fn drive(self, ticket: Ticket, feed: Feed, live: Arc<Live>) {
        let Ticket { id, admitted, presence, form, began } = ticket;
        let mut reporter = Reporter { id: id.clone(), feed: feed.clone() };
        let mut cancelled = live.cancel.subscribe();
        let cancel = async move {
            // It fails only when the sender is gone, and this task has it.
            let _ = cancelled.wait_for(|cancelled| *cancelled).await;
            None
        };
        // A fault of ours must not leave a caller waiting for ever, or the run on the list of the living.
        let running = AssertUnwindSafe(self.0.engine.run(&id, admitted, &mut reporter, cancel));
        let end = match running.catch_unwind().await {
            Ok(Ok(report)) => Ok(Arc::new(Finished { report, took: began.elapsed(), form })),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(lost()),
        };
        self.note(&live, &end);
        self.remember(&id, &live, end.clone());
        // Whoever hears of the end may start the next one at once.
        drop(presence);
        live.end.send_replace(Some(end));
        feed.close();
    }

    fn note(&self, live: &Live, end: &End) {
        let caller = &live.owner;
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

    /// From the living to the dead, so that at every moment the run is found among one of them.
    fn remember(&self, id: &RunId, live: &Live, end: End) {
        let bytes = end.as_ref().map_or(1024, |finished| finished.bytes());
        locked(&self.0.kept).put(&live.owner, id.to_string(), end, bytes, Instant::now());
        locked(&self.0.living).runs.remove(id.as_str());
    }

    fn live_one(&self, caller: &Caller, id: &str) -> Option<Arc<Live>> {
        locked(&self.0.living).runs.get(id).filter(|live| live.owner == caller.name()).cloned()
    }
}

impl Run {
    /// The next thing that it says. After [`Ended`](RunEvent::Ended) it says the same again.
    pub async fn next(&mut self) -> RunEvent {
        match self.feed.next().await {
            Some(News::Pulling(event)) => RunEvent::Pulling(event.into()),
            Some(News::Started(started)) => RunEvent::Started(started),
            Some(News::Output(stream, bytes)) => RunEvent::Output(stream, bytes.freeze()),
            None => RunEvent::Ended(self.end().await),
        }
    }

    /// Which of its language's commands runs: an index into [`stages`](belljar_core::language::Row::stages). When the
    /// run has ended, the one that it came to.
    #[must_use]
    pub fn stage(&self) -> watch::Receiver<usize> {
        self.feed.stage()
    }

    /// Waits for the end, whatever it says until then.
    ///
    /// # Errors
    /// That Belljar could not run it.
    pub async fn result(self) -> End {
        self.feed.stop_listening();
        self.end().await
    }

    /// Lets it go on without us.
    pub fn detach(mut self) {
        self.feed.stop_listening();
        self.detached = true;
    }

    async fn end(&self) -> End {
        let mut end = self.live.end.subscribe();
        let ended = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        ended.unwrap_or_else(|| Err(lost()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.detached {
            self.live.cancel.send_replace(true);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

fn going_down() -> Problem {
    let problem =
        Problem::new(Code::BackendUnavailable, "the server is going down", "try again when it is back");
    Problem { retry_after: Some(Duration::from_secs(1)), ..problem }
}

fn lost() -> Problem {
    Problem::new(Code::Internal, "the run was lost", "this is a fault of Belljar's own; see its log")
}

pub(crate) fn no_such_run(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("there is no run '{}'", shown.escape_debug());
    Problem::new(Code::NotFound, message, "results are kept for a while only, and only for whoever asked")
}

/// Whoever panicked while it held one of these locks had changed one map, whole or not at all.
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
        let engine = Engine::new(Vec::new(), |_, name, text| {
            Ok(Prepared { name: name.to_owned(), text: text.to_owned() })
        });
        Runs::new(engine, &Config::default(), threads.handle().clone())
    }

    fn caller(concurrent: usize) -> Caller {
        let (secret, allowance) = (Secret::random().unwrap(), Allowance::boxed());
        let quota = Quota { concurrent: Some(concurrent), per_minute: None };
        let keys = vec![Key { name: "a".into(), hash: secret.hash(), allowance, quota }];
        Callers::new(&Config { keys, ..Config::default() }, None).holder(secret.reveal()).unwrap()
    }

    #[test]
    fn none_begins_after_the_last_was_cancelled() {
        let threads = Runtime::new().unwrap();
        let (runs, caller) = (runs(&threads), caller(1));
        let last = runs.register(&caller).unwrap();
        runs.cancel_all();
        assert!(*last.live.cancel.borrow());
        let refused = runs.register(&caller).unwrap_err();
        assert_eq!((refused.status(), refused.retry_after), (503, Some(Duration::from_secs(1))));
        assert_eq!(runs.count(), 1);
    }

    #[test]
    fn a_quota_is_asked_before_the_engine_is() {
        let threads = Runtime::new().unwrap();
        let (runs, caller) = (runs(&threads), caller(1));
        let begin = || {
            let request = RunRequest { language: "python".into(), code: "1".into(), ..RunRequest::default() };
            runs.begin(&caller, request, Local::default()).unwrap_err().error.code
        };
        assert_eq!(begin(), Code::BackendUnavailable);
        // What the engine refused does not count against the caller.
        let presence = caller.enter().unwrap();
        assert_eq!(begin(), Code::Busy);
        drop(presence);
        assert_eq!(begin(), Code::BackendUnavailable);
    }
}
