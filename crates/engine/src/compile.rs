//! Code that must be compiled first: in a box of its own, with limits of its own, so that nothing of it counts for the
//! program. What comes out is a program for another box, and is kept for a caller that sends the same code again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::backend::{Backend, Compiled, ExecutionSpec, PROGRAM, SandboxSpec, Source, Work};
use belljar_core::guarantee::Enforcement;
use belljar_core::language::Language;
use belljar_core::limits::{Bytes, ExecutionLimits};
use belljar_core::outcome::{Compilation, Outcome, Stage, Usage};
use belljar_core::path::Writes;
use belljar_core::request::{Glob, InputFile, Network, SandboxRequest, Stdin};
use tokio::time::Instant;

use crate::programs::{Claim, Digest, Kept, Key, Programs};
use crate::transcript::Transcript;
use crate::watch::watch;
use crate::{Begun, RunError, Unstarted, conclude, start, unless};

/// The largest program: it passes through this process on its way from one box to the other.
const MOST: Bytes = Bytes::new(32 << 20);

/// Code to be compiled, and what that may depend on.
pub(crate) struct Task<'a> {
    pub(crate) id: &'a str,
    /// Who asks.
    pub(crate) caller: &'a str,
    pub(crate) backend: &'a Arc<dyn Backend>,
    pub(crate) sandbox: &'a SandboxRequest,
    pub(crate) language: Language,
    pub(crate) files: &'a [InputFile],
    pub(crate) limits: ExecutionLimits,
    pub(crate) source: &'a Source,
    pub(crate) enforcement: &'a Enforcement,
    pub(crate) queue: Duration,
}

/// A program, and what it took to make it.
#[derive(Default)]
pub(crate) struct Built {
    pub(crate) program: Compiled,
    pub(crate) compilation: Option<Compilation>,
}

/// Code that was not compiled.
pub(crate) struct Uncompiled {
    pub(crate) compilation: Compilation,
    pub(crate) begun: Begun,
}

impl Task<'_> {
    /// The program of this code: one that was kept, or a new one.
    pub(crate) async fn build(
        &self,
        programs: Option<&Programs>,
        transcript: &mut Transcript<'_>,
        mut cancel: Pin<&mut impl Future<Output = Option<u8>>>,
    ) -> Result<Built, Unstarted> {
        let Some((programs, key)) = programs.and_then(|programs| Some((programs, self.key()?))) else {
            return self.compile(transcript, cancel).await;
        };
        let claimed = programs.claim(&key, self.limits.compile.timeout);
        let claim = unless(cancel.as_mut(), claimed).await?;
        if let Claim::Kept(Kept { program, stdout, stderr }) = claim {
            let (outcome, usage, cached) = (Outcome::Exited(0), Usage::default(), true);
            let compilation = Some(Compilation { outcome, stdout, stderr, usage, cached });
            return Ok(Built { program, compilation });
        }
        let built = self.compile(transcript, cancel).await?;
        if let Some(Compilation { stdout, stderr, .. }) = &built.compilation {
            let (program, stdout, stderr) = (built.program.clone(), stdout.clone(), stderr.clone());
            programs.keep(key, Kept { program, stdout, stderr });
        }
        drop(claim);
        Ok(built)
    }

    /// What `--explain` shows.
    pub(crate) fn explain(&self) -> Result<String, RunError> {
        let (sandbox, execution) = self.specify()?;
        Ok(self.backend.explain(&sandbox, &execution)?)
    }

    async fn compile(
        &self,
        transcript: &mut Transcript<'_>,
        mut cancel: Pin<&mut impl Future<Output = Option<u8>>>,
    ) -> Result<Built, Unstarted> {
        let limits = self.own_limits();
        let mut transcript = transcript.of_a_compiler(limits.output);
        let (sandbox, execution) = self.specify()?;
        let began = Instant::now();
        let started = start(self.backend.as_ref(), sandbox, execution, &mut transcript, cancel.as_mut());
        let (mut running, begun) = started.await?;
        transcript.started(&begun.told(self.language, self.backend.name(), self.queue, Stage::Compile));
        let deadline = Instant::now() + limits.timeout;
        let stop = watch(running.as_mut(), deadline, &mut transcript, cancel).await?;
        let wall = began.elapsed();
        transcript.make_room(limits.collected).await?;
        let finished = running.finish().await.map_err(RunError::from)?;
        let outcome = conclude(finished.ending, stop, &limits, finished.cpu);
        transcript.note_compiler_ending(outcome, self.limits.compile.sandbox.memory);
        let (cpu, memory_peak) = (finished.cpu, finished.memory_peak);
        let usage = Usage { wall, cpu, memory_peak, ..Usage::default() };
        let left_out = finished.left_out;
        let program = Compiled::new(finished.files);
        transcript.make_room(Bytes::new(program.disk())).await?;
        let (stdout, stderr) = transcript.finish();
        let compilation = Compilation { outcome, stdout, stderr, usage, cached: false };
        match outcome {
            Outcome::Exited(0) if left_out > 0 => Err(RunError::ProgramTooLarge { most: MOST }.into()),
            Outcome::Exited(0) => Ok(Built { program, compilation: Some(compilation) }),
            Outcome::Exited(_)
            | Outcome::Signaled(_)
            | Outcome::TimedOut(_)
            | Outcome::OutOfMemory
            | Outcome::Cancelled(_)
            | Outcome::Denied => Err(Unstarted::Uncompiled(Box::new(Uncompiled { compilation, begun }))),
        }
    }

    fn own_limits(&self) -> ExecutionLimits {
        let ExecutionLimits { output, compile, .. } = self.limits;
        let collected = MOST.min(compile.sandbox.disk);
        let (timeout, cpu_time) = (compile.timeout, compile.cpu_time);
        ExecutionLimits { timeout, cpu_time, output, collected, compile }
    }

    /// Nothing that only the program needs: no arguments, no input, and no network. A compiler writes to the
    /// directory for temporary files, so its workspace is read-only.
    fn specify(&self) -> Result<(SandboxSpec, ExecutionSpec), RunError> {
        let SandboxRequest { workspace, env, image, .. } = self.sandbox;
        let limits = self.own_limits();
        let sandbox = SandboxSpec {
            limits: limits.compile.sandbox,
            network: Network::None,
            secrets: Vec::new(),
            workspace: workspace.clone().map(|workspace| workspace.with_writes(Writes::Refused)),
            env: env.clone(),
            image: image.clone(),
            enforcement: self.enforcement.clone(),
        };
        let execution = ExecutionSpec {
            id: format!("{}-compile", self.id),
            language: self.language,
            source: self.source.clone(),
            args: Vec::new(),
            stdin: Stdin::Empty,
            files: self.files.to_vec(),
            collect: Glob::parse_all(&[PROGRAM.to_owned(), format!("{PROGRAM}/**")])?,
            limits,
            work: Work::Compile,
        };
        Ok((sandbox, execution))
    }

    /// What the program depends on: the code and everything around it, the command, and the compiler; and who asks, because a
    /// program that is there would tell one caller what another has sent. `None` if it cannot be known: a workspace is a
    /// directory that may change.
    fn key(&self) -> Option<Key> {
        let Task { caller, backend, sandbox, language, files, source, limits, .. } = self;
        let compiler = language.compiler().filter(|_| sandbox.workspace.is_none())?;
        let mut digest = Digest::new(language.name);
        digest.add(caller).add(backend.name().name());
        match &sandbox.image {
            Some(image) => digest.add(image),
            None => {
                let runtime = backend.runtime(*language).ok()?;
                digest.add(&runtime.label).add(&runtime.location)
            }
        };
        digest.add_all(compiler.argv);
        digest.add_all(sandbox.env.iter().flat_map(|variable| [variable.name(), variable.value()]));
        // What is kept of the compiler's output was cut to the limit of the request that it was compiled for.
        digest.add(limits.output.get().to_le_bytes());
        digest.add(source.name.as_str()).add(&source.text);
        for file in *files {
            digest.add(file.path.as_str()).add(&file.content).add([u8::from(file.executable)]);
        }
        Some(digest.finish())
    }
}
