//! The use cases of Belljar. [`Engine::run`] is the whole product, top to bottom; everything else here is one
//! step of it.
//!
//! The engine knows the domain and a clock. It knows no concrete backend, no JSON and no terminal: those are
//! handed to it, so that the command line, a server and the tests all drive the same function.

#![forbid(unsafe_code)]

mod absent;
mod admission;
mod advice;
mod approver;
mod compile;
mod deferred;
mod error;
mod id;
mod loading;
mod placement;
mod plots;
mod programs;
mod recorder;
mod scanner;
mod slots;
mod transcript;
mod unrun;
mod watch;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_core::allowance::Allowance;
use belljar_core::backend::{
    Backend, BoxFuture, Compiled, Ending, Execution, ExecutionSpec, PullEvent, SandboxSpec, Source, Work,
};
use belljar_core::guarantee::Enforcement;
use belljar_core::language::{Language, Preparation};
use belljar_core::limits::{BoxLimits, Bytes, ExecutionLimits};
use belljar_core::outcome::{
    Changes, CollectedFile, Compilation, NetworkUse, Outcome, Report, Stage, Start, TimeLimit, Usage,
};
use belljar_core::path::BoxPath;
use belljar_core::request::{BackendName, Code, ExecutionRequest, RunRequest, SandboxRequest};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

pub use absent::Absent;
pub use admission::{Admission, Admitted, Appraisal, Rights};
pub use approver::{Answer, Approver, Ask, Carried, Described, Pending, Unapprovable, Verdict};
pub use deferred::Deferred;
pub use error::RunError;
pub use id::RunId;
pub use placement::Placement;
pub use programs::Programs;
pub use recorder::{
    Account, Asked, Compiler, Digested, Excerpt, Fate, Kept, Origin, Place, Ran, Recorder, Unrecordable,
    WayIn,
};
pub use scanner::{OWN_RULES, Scan, Scanned, Scanner, Scanning, Scans, Subject, Unscanned};
pub use slots::Slots;
pub use transcript::{Observer, Started, Unobserved};
pub use unrun::{Awaiting, Denied};

use compile::{Built, Task, Uncompiled};
use slots::Slot;
use transcript::Transcript;
use watch::{Stop, watch};

const SIGKILL: u8 = 9;

/// Turns code into what its runtime reads, before a box exists, within the limits of the run.
pub type Preparer = fn(&Unread<'_>) -> Result<Prepared, Unprepared>;

/// Code that its runtime may not be able to read.
#[derive(Debug, Clone, Copy)]
pub struct Unread<'a> {
    /// What it needs.
    pub preparation: Preparation,
    /// The name of its file.
    pub name: &'a str,
    /// Its text.
    pub text: &'a [u8],
    /// How much memory that may take.
    pub memory: Bytes,
    /// How much time.
    pub limits: ExecutionLimits,
}

/// Code that its runtime can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// What the file must be called.
    pub name: String,
    /// Its text.
    pub text: Vec<u8>,
    /// What it took.
    pub usage: Usage,
}

impl Prepared {
    /// For code that needs nothing.
    #[must_use]
    pub fn unchanged(unread: &Unread<'_>) -> Prepared {
        Prepared { name: unread.name.to_owned(), text: unread.text.to_owned(), usage: Usage::default() }
    }
}

/// Code that could not be prepared: the caller's own mistake, and therefore the outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unprepared {
    /// How the run ended: it exited, or a limit ended it.
    pub outcome: Outcome,
    /// What is wrong and where, for the program's stderr.
    pub message: String,
    /// What it took to find out.
    pub usage: Usage,
}

/// Runs requests on its backends.
#[derive(Debug)]
pub struct Engine {
    backends: Vec<Arc<dyn Backend>>,
    preparer: Preparer,
    slots: Option<Slots>,
    programs: Option<Programs>,
    scanner: Option<(Arc<dyn Scanner>, Scanning)>,
    recorder: Option<Arc<dyn Recorder>>,
    approver: Option<Arc<dyn Approver>>,
}

impl Engine {
    /// An engine over these backends, strongest first. It runs every request at once.
    #[must_use]
    pub fn new(backends: Vec<Arc<dyn Backend>>, preparer: Preparer) -> Engine {
        Engine {
            backends,
            preparer,
            slots: None,
            programs: None,
            scanner: None,
            recorder: None,
            approver: None,
        }
    }

    /// Its backends, strongest first.
    pub fn backends(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(AsRef::as_ref)
    }

    /// The background work of each backend that has some, for as long as there may be runs.
    pub fn upkeep(&self) -> impl Iterator<Item = BoxFuture<'static, ()>> {
        self.backends.iter().filter_map(|backend| backend.clone().upkeep())
    }

    /// Releases everything that no run uses.
    pub async fn retire(&self) {
        for backend in &self.backends {
            backend.retire().await;
        }
    }

    /// Limits how many runs happen at a time.
    #[must_use]
    pub fn with_slots(self, slots: Slots) -> Engine {
        Engine { slots: Some(slots), ..self }
    }

    /// Keeps what was compiled, so that code that runs again need not be compiled again.
    #[must_use]
    pub fn with_programs(self, programs: Programs) -> Engine {
        Engine { programs: Some(programs), ..self }
    }

    /// Has every attempt recorded from now on.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<dyn Recorder>) -> Engine {
        Engine { recorder: Some(recorder), ..self }
    }

    /// Who records the attempts.
    #[must_use]
    pub fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.recorder.as_ref()
    }

    /// The slots, if their number is limited.
    #[must_use]
    pub fn slots(&self) -> Option<&Slots> {
        self.slots.as_ref()
    }

    /// Runs one program in its own box when its turn has come, and returns when the box is gone. The program's output
    /// goes to `observer` as it arrives, up to the head that is kept. When `cancel` resolves, the run ends, with the
    /// signal that was the reason, if any.
    ///
    /// # Errors
    /// Belljar could not run it. A program that failed is an `Ok` like any other.
    pub async fn run(
        &self,
        id: &RunId,
        mut admitted: Admitted,
        observer: &mut dyn Observer,
        cancel: impl Future<Output = Option<u8>>,
    ) -> Result<Report, RunError> {
        let mut account = std::mem::take(&mut admitted.account);
        account.identify(id);
        let end = self.run_unrecorded(id, admitted, observer, cancel).await;
        account.ended(&end).await.map_err(RunError::Unrecorded)?;
        end
    }

    async fn run_unrecorded(
        &self,
        id: &RunId,
        admitted: Admitted,
        observer: &mut dyn Observer,
        cancel: impl Future<Output = Option<u8>>,
    ) -> Result<Report, RunError> {
        let mut admitted = admitted;
        let extras = admitted.execution.extras;
        let (language, memory) = (admitted.execution.language, admitted.sandbox.limits.memory);
        let (network, collects) = (admitted.sandbox.network.clone(), !admitted.execution.collect.is_empty());
        let (backend, mut enforcement) = (admitted.backend.clone(), admitted.enforcement.clone());
        let mut transcript = Transcript::new(admitted.execution.limits.output, observer);
        let own = plots::provide(&mut admitted.sandbox, &mut admitted.execution);
        let mut queue = Duration::ZERO;

        let (findings, decision) = (std::mem::take(&mut admitted.findings), admitted.decision.take());
        let conducted = self.conduct(id, admitted, &mut transcript, &mut queue, pin!(cancel)).await;
        let concluded = match conducted {
            Ok(concluded) => concluded,
            Err(Unstarted::Failed(error)) => return Err(error),
            Err(Unstarted::Cancelled(signal)) => {
                enforcement = enforcement.unused();
                Concluded::without_a_box(Outcome::Cancelled(signal), backend.as_ref(), language)?
            }
            Err(Unstarted::Unreadable(Unprepared { outcome, message, usage })) => {
                enforcement = enforcement.unused();
                let concluded = Concluded::without_a_box(outcome, backend.as_ref(), language)?;
                transcript.started(&concluded.begun.told(language, backend.name(), queue, Stage::Run));
                if !message.is_empty() {
                    transcript.note(&message);
                }
                Concluded { usage, ..concluded }
            }
            Err(Unstarted::Uncompiled(failed)) => Concluded::from(*failed),
        };
        let Concluded { outcome, usage, begun, mut files, changes, network_use, compile, stage } = concluded;
        let Begun { start, runtime, image, cold_reason } = begun;
        let (stdout, stderr) = match (stage, &compile) {
            (Stage::Compile, Some(compiler)) => (compiler.stdout.clone(), compiler.stderr.clone()),
            _ => {
                if extras.hints {
                    let on = |tail: &[u8]| advice::on(tail, language, backend.name(), image.as_deref());
                    transcript.advise(outcome, on);
                }
                transcript.note_ending(outcome, memory);
                transcript.finish()
            }
        };
        files.retain(|file| own.as_ref() != Some(&file.path));
        Ok(Report {
            id: id.to_string(),
            outcome,
            stdout,
            stderr,
            usage: Usage { queue, ..usage },
            compile,
            stage,
            start,
            language,
            runtime,
            backend: backend.name(),
            image,
            network,
            network_use,
            enforcement,
            findings,
            decision,
            cold_reason,
            files: (collects || own.is_some() && !files.is_empty()).then_some(files),
            changes,
        })
    }

    /// What [`run`](Engine::run) would do with this request, for a person to read.
    ///
    /// # Errors
    /// Whatever would prevent it.
    pub fn explain(&self, allowance: &Allowance, request: RunRequest) -> Result<String, RunError> {
        let Placement { backend, enforcement } = self.permit(allowance, &request)?;
        let RunRequest { mut sandbox, mut execution } = request;
        plots::provide(&mut sandbox, &mut execution);
        let prepared = Draft::of(&sandbox, &execution).prepare(self.preparer)?;
        let source = match prepared {
            Ok((source, _)) => source,
            Err(fault) => return Ok(format!("nothing: the code cannot be read\n{}\n", fault.message)),
        };
        let (id, queue) = ("run_…", Duration::ZERO);
        let task = Task {
            id,
            caller: "",
            backend: &backend,
            sandbox: &sandbox,
            language: execution.language,
            files: &execution.files,
            limits: execution.limits,
            source: &source,
            enforcement: &enforcement,
            queue,
        };
        let compiling = match execution.language.is_compiled() {
            true => format!("compile:\n{}\nrun:\n", task.explain()?),
            false => String::new(),
        };
        let (sandbox, execution) = specify(id, sandbox, execution, source, enforcement, Compiled::default());
        Ok(compiling + &backend.explain(&sandbox, &execution)?)
    }

    /// From the queue to the end of the box.
    async fn conduct(
        &self,
        id: &RunId,
        admitted: Admitted,
        transcript: &mut Transcript<'_>,
        queue: &mut Duration,
        mut cancel: Pin<&mut impl Future<Output = Option<u8>>>,
    ) -> Result<Concluded, Unstarted> {
        let Admitted { caller, sandbox, execution, backend, enforcement, place, .. } = admitted;
        let joined = place.is_waiting().then(Instant::now);
        let turn = unless(cancel.as_mut(), place.turn()).await;
        *queue = joined.map_or(Duration::ZERO, |joined| joined.elapsed());
        let (language, limits, collect) = (execution.language, execution.limits, execution.collect.clone());
        let slot = turn?;
        transcript.left_queue();
        let preparing = self.prepare(Draft::of(&sandbox, &execution), slot);
        let (_slot, prepared) = unless(cancel.as_mut(), preparing).await??;
        let (source, spent) = prepared.map_err(Unstarted::Unreadable)?;
        let execution = ExecutionRequest { limits: limits.after(spent.cpu), ..execution };
        let built = match language.is_compiled() {
            false => Built::default(),
            true => {
                let task = Task {
                    id: id.as_str(),
                    caller: &caller,
                    backend: &backend,
                    sandbox: &sandbox,
                    language,
                    files: &execution.files,
                    limits: execution.limits,
                    source: &source,
                    enforcement: &enforcement,
                    queue: *queue,
                };
                task.build(self.programs.as_ref(), transcript, cancel.as_mut()).await?
            }
        };
        let Built { program, compilation } = built;
        let (sandbox, program) = specify(id.as_str(), sandbox, execution, source, enforcement, program);

        let began = Instant::now();
        let started = start(backend.as_ref(), sandbox, program, transcript, cancel.as_mut());
        let (mut running, begun) = started.await?;
        match &compilation {
            Some(compilation) if !compilation.cached => transcript.next_stage(),
            _ => transcript.started(&begun.told(language, backend.name(), *queue, Stage::Run)),
        }
        if compilation.is_some() {
            // The program is in its box, and needs no memory here any more.
            transcript.make_room(Bytes::new(0)).await?;
        }
        let deadline = Instant::now() + limits.timeout.saturating_sub(spent.wall);
        let stop = watch(running.as_mut(), deadline, transcript, cancel).await?;
        let wall = began.elapsed();
        if !collect.is_empty() {
            transcript.make_room(limits.collected).await?;
        }
        let finished = running.finish().await.map_err(RunError::from)?;
        if let Ending::Lost(why) = finished.ending {
            transcript.note(why);
        }
        let outcome = conclude(finished.ending, stop, &limits, finished.cpu);
        let outcome =
            if is_exhausted(language, outcome, transcript) { Outcome::OutOfMemory } else { outcome };
        transcript.note_files(finished.left_out, limits.collected);
        if !matches!(outcome, Outcome::Cancelled(_)) {
            transcript.note_unmatched(&collect, &finished.files, finished.left_out);
        }
        let usage = Usage {
            wall: spent.wall + wall,
            cpu: spent.cpu + finished.cpu,
            memory_peak: spent.memory_peak.max(finished.memory_peak),
            ..Usage::default()
        };
        Ok(Concluded {
            outcome,
            usage,
            begun,
            files: finished.files,
            changes: finished.changes,
            network_use: finished.network,
            compile: compilation,
            stage: Stage::Run,
        })
    }

    /// Makes the code ready for its runtime. If that takes a parser, it runs on a blocking thread, not on the threads
    /// that drive runs; a single-threaded program stays single-threaded, and waits itself. A parser whose run was
    /// cancelled continues for a moment, and keeps the slot for as long.
    async fn prepare(&self, draft: Draft, slot: Option<Slot>) -> Result<(Option<Slot>, Readiness), RunError> {
        let (preparer, preparation) = (self.preparer, preparation_of(&draft.code, draft.language));
        let prepare = move || Ok((slot, draft.prepare(preparer)?));
        let alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        match preparation {
            Preparation::DetectModule | Preparation::StripTypes if !alone => {
                tokio::task::spawn_blocking(prepare).await.map_err(RunError::Unprepared)?
            }
            Preparation::None
            | Preparation::NameAfterType
            | Preparation::DetectModule
            | Preparation::StripTypes => prepare(),
        }
    }
}

/// The code and what it took to prepare it, or why there is none.
type Readiness = Result<(Source, Usage), Unprepared>;

/// The code of a run, before it is prepared.
struct Draft {
    code: Code,
    language: Language,
    memory: Bytes,
    limits: ExecutionLimits,
}

impl Draft {
    fn of(sandbox: &SandboxRequest, execution: &ExecutionRequest) -> Draft {
        let ExecutionRequest { language, limits, .. } = *execution;
        Draft { code: execution.code.clone(), language, memory: sandbox.limits.memory, limits }
    }

    fn prepare(&self, preparer: Preparer) -> Result<Readiness, RunError> {
        let Draft { code, language, memory, limits } = self;
        let (memory, limits, preparation) = (*memory, *limits, preparation_of(code, *language));
        let name = code.file_name().map_or(language.source, BoxPath::as_str);
        let prepared = preparer(&Unread { preparation, name, text: code.bytes(), memory, limits });
        let Prepared { name, text, usage } = match prepared {
            Ok(prepared) => prepared,
            Err(fault) => return Ok(Err(fault)),
        };
        // What became of TypeScript is a file of ours beside the caller's.
        let in_workspace = code.is_in_workspace() && preparation == Preparation::None;
        let named_by_caller = code.file_name().is_some() && (in_workspace || !code.is_in_workspace());
        Ok(Ok((Source { name: BoxPath::parse(&name)?, named_by_caller, in_workspace, text }, usage)))
    }
}

/// What must be done to this code. A script that runs where it lies is left as it is: its runtime tells modules by the
/// name of the file and by `package.json`.
fn preparation_of(code: &Code, language: Language) -> Preparation {
    match language.preparation {
        Preparation::DetectModule | Preparation::NameAfterType if code.is_in_workspace() => Preparation::None,
        as_usual @ (Preparation::None
        | Preparation::NameAfterType
        | Preparation::DetectModule
        | Preparation::StripTypes) => as_usual,
    }
}

/// Why no program ran, or none to its end.
enum Unstarted {
    Cancelled(Option<u8>),
    Unreadable(Unprepared),
    Uncompiled(Box<Uncompiled>),
    Failed(RunError),
}

impl From<RunError> for Unstarted {
    fn from(error: RunError) -> Unstarted {
        Unstarted::Failed(error)
    }
}

/// The result of `work`, unless the run is cancelled first.
async fn unless<T>(
    cancel: Pin<&mut impl Future<Output = Option<u8>>>,
    work: impl Future<Output = T>,
) -> Result<T, Unstarted> {
    tokio::select! {
        biased;
        signal = cancel => Err(Unstarted::Cancelled(signal)),
        done = work => Ok(done),
    }
}

/// Makes a box and starts what is to run in it.
async fn start(
    backend: &dyn Backend,
    sandbox: SandboxSpec,
    execution: ExecutionSpec,
    transcript: &mut Transcript<'_>,
    cancel: Pin<&mut impl Future<Output = Option<u8>>>,
) -> Result<(Box<dyn Execution>, Begun), Unstarted> {
    let heard = Mutex::new(transcript);
    // If a thread panicked while it held the lock, it was an observer, which gets the rest all the same.
    let waiting = |event: &PullEvent| heard.lock().unwrap_or_else(PoisonError::into_inner).pulling(event);
    let started = unless(cancel, backend.start(sandbox, execution, &waiting)).await?;
    let running = started.map_err(RunError::from)?;
    let (runtime, image) = (running.runtime().to_owned(), running.image().map(str::to_owned));
    let cold_reason = running.cold_reason().map(str::to_owned);
    let begun = Begun { start: running.start(), runtime, image, cold_reason };
    Ok((running, begun))
}

/// Whether the program ended because its heap was full, which only its runtime knows.
fn is_exhausted(language: Language, outcome: Outcome, transcript: &Transcript<'_>) -> bool {
    match (outcome, language.exhaustion) {
        (Outcome::Exited(code), Some(sign)) if code == sign.code => {
            sign.shows_in(code, transcript.end_of_stderr())
        }
        _ => false,
    }
}

/// What is known about a run as soon as it begins.
struct Begun {
    start: Start,
    runtime: String,
    image: Option<String>,
    cold_reason: Option<String>,
}

impl Begun {
    fn told(&self, language: Language, backend: BackendName, queue: Duration, stage: Stage) -> Started<'_> {
        let Begun { start, runtime, image, .. } = self;
        Started { language, runtime, backend, start: *start, image: image.as_deref(), queue, stage }
    }
}

/// How a run ended, before its output is closed.
struct Concluded {
    outcome: Outcome,
    usage: Usage,
    begun: Begun,
    files: Vec<CollectedFile>,
    changes: Option<Changes>,
    network_use: Option<NetworkUse>,
    compile: Option<Compilation>,
    stage: Stage,
}

impl From<Uncompiled> for Concluded {
    /// The program used nothing: there is none.
    fn from(Uncompiled { compilation, begun }: Uncompiled) -> Concluded {
        Concluded {
            outcome: compilation.outcome,
            usage: Usage::default(),
            begun,
            files: Vec::new(),
            changes: None,
            network_use: None,
            compile: Some(compilation),
            stage: Stage::Compile,
        }
    }
}

impl Concluded {
    fn without_a_box(
        outcome: Outcome,
        backend: &dyn Backend,
        language: Language,
    ) -> Result<Concluded, RunError> {
        let runtime = backend.runtime(language)?.label;
        let begun = Begun { start: Start::Cold, runtime, image: None, cold_reason: None };
        Ok(Concluded {
            outcome,
            usage: Usage::default(),
            begun,
            files: Vec::new(),
            changes: None,
            network_use: None,
            compile: None,
            stage: Stage::Run,
        })
    }
}

/// Turns the request into a specification.
fn specify(
    id: &str,
    sandbox: SandboxRequest,
    execution: ExecutionRequest,
    source: Source,
    enforcement: Enforcement,
    program: Compiled,
) -> (SandboxSpec, ExecutionSpec) {
    let SandboxRequest { limits, network, secrets, workspace, env, image, .. } = sandbox;
    // A program that a compiler made takes nothing of what it may write.
    let limits = BoxLimits { disk: Bytes::new(limits.disk.get() + program.disk()), ..limits };
    let sandbox = SandboxSpec { limits, network, secrets, workspace, env, image, enforcement };
    let ExecutionRequest { language, args, stdin, files, collect, limits, .. } = execution;
    let id = id.to_owned();
    let work = Work::Run(program);
    (sandbox, ExecutionSpec { id, language, source, args, stdin, files, collect, limits, work })
}

/// Derives the outcome from what the kernel reports and what we did. A program that exited by itself did so even if we
/// were about to kill it; a signal that we sent is not the program's ending, but our reason for sending it is.
fn conclude(ending: Ending, stop: Option<Stop>, limits: &ExecutionLimits, cpu: Duration) -> Outcome {
    match (ending, stop) {
        (Ending::Exited(code), _) => Outcome::Exited(code),
        (Ending::CpuTimeExhausted, _) => Outcome::TimedOut(TimeLimit::Cpu(limits.cpu_time.unwrap_or(cpu))),
        (Ending::Signaled(_) | Ending::OutOfMemory | Ending::Lost(_), Some(Stop::Deadline)) => {
            Outcome::TimedOut(TimeLimit::Wall(limits.timeout))
        }
        (Ending::Signaled(_) | Ending::OutOfMemory | Ending::Lost(_), Some(Stop::Cancelled(signal))) => {
            Outcome::Cancelled(signal)
        }
        (Ending::OutOfMemory, None) => Outcome::OutOfMemory,
        // Whatever has become of it, the caller does not get the rest: that is like a kill.
        (Ending::Lost(_), None) => Outcome::Signaled(SIGKILL),
        (Ending::Signaled(signal), None) => Outcome::Signaled(signal),
    }
}
