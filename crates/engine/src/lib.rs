//! The use cases of Belljar. [`Engine::run`] is the whole product, top to bottom; everything else here is one
//! step of it.
//!
//! The engine knows the domain and a clock. It knows no concrete backend, no JSON and no terminal: those are
//! handed to it, so that the command line, a server and the tests all drive the same function.

#![forbid(unsafe_code)]

mod admission;
mod error;
mod id;
mod placement;
mod transcript;
mod watch;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::backend::{Backend, Ending, ExecutionSpec, SandboxSpec, Source};
use belljar_core::guarantee::Enforcement;
use belljar_core::language::{Language, Preparation};
use belljar_core::limits::ExecutionLimits;
use belljar_core::outcome::{CollectedFile, Outcome, Report, Start, TimeLimit, Usage};
use belljar_core::path::BoxPath;
use belljar_core::request::{Code, ExecutionRequest, RunRequest, SandboxRequest};
use tokio::time::Instant;

pub use error::RunError;
pub use placement::Placement;
pub use transcript::{Observer, Unobserved};

use admission::admit;
use transcript::Transcript;
use watch::{Stop, watch};

/// Turns code into what its runtime reads, before a box exists. The second argument is the file's name.
pub type Preparer = fn(Preparation, &str, &[u8]) -> Result<Prepared, SyntaxError>;

/// Code that its runtime can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// What the file must be called.
    pub name: String,
    /// Its text.
    pub text: Vec<u8>,
}

/// Code that no runtime could read: the caller's own mistake, and so the outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// What is wrong and where, for the program's stderr.
    pub message: String,
}

/// Runs requests on the backends that it was given.
#[derive(Debug)]
pub struct Engine {
    backends: Vec<Arc<dyn Backend>>,
    preparer: Preparer,
}

impl Engine {
    /// An engine over these backends, strongest first.
    #[must_use]
    pub fn new(backends: Vec<Arc<dyn Backend>>, preparer: Preparer) -> Engine {
        Engine { backends, preparer }
    }

    /// The backends that it was given, strongest first.
    pub fn backends(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(AsRef::as_ref)
    }

    /// Runs one program in a box of its own, and returns when the box is gone. The program's output goes to
    /// `observer` as it comes, up to the head that is kept; `cancel` ends the run when it resolves, with the
    /// signal that was the reason, if one was.
    ///
    /// # Errors
    /// That Belljar could not run it. A program that failed is an `Ok` like any other.
    pub async fn run(
        &self,
        request: RunRequest,
        observer: &mut dyn Observer,
        cancel: impl Future<Output = Option<u8>>,
    ) -> Result<Report, RunError> {
        let id = id::of_a_new_run();
        let (sandbox, execution) = admit(request).into_parts();
        let placement = self.place(sandbox.backend, &sandbox.network, &sandbox.waived)?;
        let backend = placement.backend;
        let (language, limits, memory) = (execution.language, execution.limits, sandbox.limits.memory);
        let (network, collects) = (sandbox.network.clone(), !execution.collect.is_empty());
        let enforcement = placement.enforcement.clone();
        let mut transcript = Transcript::new(limits.output, observer);
        let mut cancel = pin!(cancel);

        let concluded = match self.prepare(language, &execution.code)? {
            Err(fault) => {
                transcript.note(&fault.message);
                Concluded::without_a_box(Outcome::Exited(1), backend, language)?
            }
            Ok(source) => {
                let (box_spec, program) = specify(&id, sandbox, execution, source, placement.enforcement);
                let began = Instant::now();
                let started = tokio::select! {
                    biased;
                    signal = cancel.as_mut() => Err(signal),
                    started = backend.start(box_spec, program) => Ok(started?),
                };
                match started {
                    Err(signal) => Concluded::without_a_box(Outcome::Cancelled(signal), backend, language)?,
                    Ok(mut running) => {
                        let deadline = Instant::now() + limits.timeout;
                        let stop = watch(running.as_mut(), deadline, &mut transcript, cancel).await?;
                        let wall = began.elapsed();
                        let (start, runtime) = (running.start(), running.runtime().to_owned());
                        let image = running.image().map(str::to_owned);
                        let finished = running.finish().await?;
                        let outcome = conclude(finished.ending, stop, &limits, finished.cpu);
                        let usage = Usage { wall, cpu: finished.cpu, memory_peak: finished.memory_peak };
                        Concluded { outcome, usage, start, runtime, image, files: finished.files }
                    }
                }
            }
        };
        transcript.note_ending(concluded.outcome, memory);
        let (stdout, stderr) = transcript.finish();
        let Concluded { outcome, usage, start, runtime, image, files } = concluded;
        let (backend, files) = (backend.name(), collects.then_some(files));
        Ok(Report {
            id,
            outcome,
            stdout,
            stderr,
            usage,
            start,
            language,
            runtime,
            backend,
            image,
            network,
            enforcement,
            files,
        })
    }

    /// What [`run`](Engine::run) would do with this request, for a person to read.
    ///
    /// # Errors
    /// Whatever would keep it from running.
    pub fn explain(&self, request: RunRequest) -> Result<String, RunError> {
        let (sandbox, execution) = admit(request).into_parts();
        let placement = self.place(sandbox.backend, &sandbox.network, &sandbox.waived)?;
        let backend = placement.backend;
        let source = match self.prepare(execution.language, &execution.code)? {
            Ok(source) => source,
            Err(fault) => return Ok(format!("nothing: the code cannot be read\n{}\n", fault.message)),
        };
        let (sandbox, execution) = specify("run_…", sandbox, execution, source, placement.enforcement);
        Ok(backend.explain(&sandbox, &execution)?)
    }

    fn prepare(&self, language: Language, code: &Code) -> Result<Result<Source, SyntaxError>, RunError> {
        let name = code.file_name().map_or(language.source, BoxPath::as_str);
        let prepared = match (self.preparer)(language.preparation, name, code.bytes()) {
            Ok(prepared) => prepared,
            Err(fault) => return Ok(Err(fault)),
        };
        let named_by_caller = code.file_name().is_some();
        Ok(Ok(Source { name: BoxPath::parse(&prepared.name)?, named_by_caller, text: prepared.text }))
    }
}

/// How a run ended, before its output is closed.
struct Concluded {
    outcome: Outcome,
    usage: Usage,
    start: Start,
    runtime: String,
    image: Option<String>,
    files: Vec<CollectedFile>,
}

impl Concluded {
    fn without_a_box(
        outcome: Outcome,
        backend: &dyn Backend,
        language: Language,
    ) -> Result<Concluded, RunError> {
        let runtime = backend.runtime(language)?.label;
        let usage = Usage::default();
        Ok(Concluded { outcome, usage, start: Start::Cold, runtime, image: None, files: Vec::new() })
    }
}

/// What was asked becomes what is to be done.
fn specify(
    id: &str,
    sandbox: SandboxRequest,
    execution: ExecutionRequest,
    source: Source,
    enforcement: Enforcement,
) -> (SandboxSpec, ExecutionSpec) {
    let SandboxRequest { limits, network, workspace, env, image, .. } = sandbox;
    let sandbox = SandboxSpec { limits, network, workspace, env, image, enforcement };
    let ExecutionRequest { language, args, stdin, files, collect, limits, .. } = execution;
    let id = id.to_owned();
    (sandbox, ExecutionSpec { id, language, source, args, stdin, files, collect, limits })
}

/// Of what the kernel tells and what we did, what happened. A program that exited by itself did so even if we
/// came to kill it; a signal that we sent is not the program's ending but our reason for sending it.
fn conclude(ending: Ending, stop: Option<Stop>, limits: &ExecutionLimits, cpu: Duration) -> Outcome {
    match (ending, stop) {
        (Ending::Exited(code), _) => Outcome::Exited(code),
        (Ending::CpuTimeExhausted, _) => Outcome::TimedOut(TimeLimit::Cpu(limits.cpu_time.unwrap_or(cpu))),
        (Ending::Signaled(_) | Ending::OutOfMemory, Some(Stop::Deadline)) => {
            Outcome::TimedOut(TimeLimit::Wall(limits.timeout))
        }
        (Ending::Signaled(_) | Ending::OutOfMemory, Some(Stop::Cancelled(signal))) => {
            Outcome::Cancelled(signal)
        }
        (Ending::OutOfMemory, None) => Outcome::OutOfMemory,
        (Ending::Signaled(signal), None) => Outcome::Signaled(signal),
    }
}
