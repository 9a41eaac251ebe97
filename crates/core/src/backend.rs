//! The port: what the engine asks of a provider of boxes. A backend never decides policy; it enforces what it is asked
//! to enforce, or refuses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::egress::NetworkEvent;
use crate::guarantee::{Enforcement, Offer};
use crate::language::Language;
use crate::limits::{BoxLimits, ExecutionLimits};
use crate::outcome::{Changes, CollectedFile, NetworkUse, Start};
use crate::path::{BoxPath, Workspace};
use crate::pool::PoolStatus;
use crate::request::{Arg, BackendName, EnvVar, Glob, InputFile, Network, Stdin};
use crate::secret::SecretHost;

/// A future without a runtime, so that this crate needs none.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A provider of boxes.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Its name in the contract.
    fn name(&self) -> BackendName;

    /// Whether it can make boxes on this host at all.
    ///
    /// # Errors
    /// What prevents it, and what would help.
    fn ready(&self) -> Result<(), BackendError>;

    /// How many boxes of a crashed predecessor it found and removed.
    fn leaks_cleaned(&self) -> u64 {
        0
    }

    /// What it can guarantee on this host, found by trying.
    fn offer(&self) -> &Offer;

    /// Whether it can give a box this network.
    fn provides(&self, network: &Network) -> bool;

    /// Whether it can add secrets to the requests of a box, outside of the box.
    fn adds_secrets(&self) -> bool {
        false
    }

    /// What would run a language here. May look at the disk and ask an interpreter for its version.
    ///
    /// # Errors
    /// There is none; the hint says how to get it.
    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError>;

    /// Builds a box and starts one program in it. Dropping the result destroys the box. The listener is told if an
    /// image must be pulled first.
    fn start<'a>(
        &'a self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
        waiting: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>>;

    /// Background work, for as long as there may be runs. The caller must drive this future. It ends after
    /// [`retire`](Backend::retire).
    fn upkeep(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Releases everything that no run uses, and makes no more of it. Runs continue.
    fn retire(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The state of the warm pool, if it has one.
    fn pool(&self) -> Option<PoolStatus> {
        None
    }

    /// What [`start`](Backend::start) would do, for a person to read.
    ///
    /// # Errors
    /// Whatever would prevent it.
    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError>;
}

/// Receives the progress of an image pull.
pub type PullListener<'a> = &'a (dyn Fn(&PullEvent) + Sync);

/// A step of pulling an image, in text that is safe for a terminal and of bounded length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullEvent {
    /// The image, as the request named it.
    pub image: String,
    /// The layer, if the step concerns one.
    pub layer: Option<String>,
    /// What happens to it.
    pub status: String,
    /// Bytes that have arrived, and the total.
    pub progress: Option<(u64, u64)>,
}

/// A runtime that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Name and version, `CPython 3.11.7`.
    pub label: String,
    /// Where it is, for a person.
    pub location: String,
}

/// The box to make, with every default filled in.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in SandboxRequest")]
pub struct SandboxSpec {
    pub limits: BoxLimits,
    pub network: Network,
    pub secrets: Vec<SecretHost>,
    pub workspace: Option<Workspace>,
    pub env: Vec<EnvVar>,
    pub image: Option<String>,
    /// What must be enforced. A backend that cannot enforce it after all fails the start.
    pub enforcement: Enforcement,
}

impl SandboxSpec {
    /// What most requests are like: everything optional is left out.
    #[must_use]
    pub fn unspecific(limits: BoxLimits, enforcement: Enforcement) -> SandboxSpec {
        let (workspace, env, image) = (None, Vec::new(), None);
        SandboxSpec {
            limits,
            network: Network::None,
            secrets: Vec::new(),
            workspace,
            env,
            image,
            enforcement,
        }
    }
}

/// The program to run in it.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in ExecutionRequest")]
pub struct ExecutionSpec {
    /// The identifier of the run, unique on this host.
    pub id: String,
    pub language: Language,
    /// The code as its runtime will read it.
    pub source: Source,
    pub args: Vec<Arg>,
    pub stdin: Stdin,
    pub files: Vec<InputFile>,
    pub collect: Vec<Glob>,
    pub limits: ExecutionLimits,
    /// Which of the language's commands it is.
    pub work: Work,
}

/// What a box is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// To compile the code. What is collected is the program, from the directory for temporary files.
    Compile,
    /// To run the program. If a compiler made it, these are its files, in the directory for temporary files.
    Run(Compiled),
}

/// The name of a program that a compiler made, in the directory for temporary files: a file, or a directory with files.
pub const PROGRAM: &str = "main";

/// A program that a compiler made: files that came out of a box. Nothing may be done with them but to put them into another.
/// A clone is the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled(Arc<Vec<InputFile>>);

impl Compiled {
    /// What was collected from the box of a compiler. Names that no box takes are left out.
    #[must_use]
    pub fn new(files: Vec<CollectedFile>) -> Compiled {
        let file = |file: CollectedFile| {
            let path = BoxPath::parse(&file.path).ok()?;
            Some(InputFile { path, content: file.content, executable: true })
        };
        Compiled(Arc::new(files.into_iter().filter_map(file).collect()))
    }

    /// Its files, by their paths in the directory for temporary files.
    #[must_use]
    pub fn files(&self) -> &[InputFile] {
        &self.0
    }

    /// How much of a disk its files take, counted in pages.
    #[must_use]
    pub fn disk(&self) -> u64 {
        self.0.iter().map(|file| (file.content.len() as u64).div_ceil(4096) * 4096).sum()
    }
}

impl ExecutionSpec {
    /// The same for a program: code that has not arrived yet, in a file of this name.
    #[must_use]
    pub fn unspecific(language: Language, name: BoxPath, limits: ExecutionLimits) -> ExecutionSpec {
        ExecutionSpec {
            id: String::new(),
            language,
            source: Source { name, named_by_caller: false, in_workspace: false, text: Vec::new() },
            args: Vec::new(),
            stdin: Stdin::Empty,
            files: Vec::new(),
            collect: Vec::new(),
            limits,
            work: Work::Run(Compiled::default()),
        }
    }
}

/// Code that is ready for its runtime, and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name in the working directory.
    pub name: BoxPath,
    /// Whether the caller chose that name. If not, the backend may pick another one where it would hide a file.
    pub named_by_caller: bool,
    /// Whether the file is in the workspace already, and is not to be put there.
    pub in_workspace: bool,
    /// The text.
    pub text: Vec<u8>,
}

impl Source {
    /// The text, if it has to be put into the working directory.
    #[must_use]
    pub fn to_put(&self) -> Option<&[u8]> {
        (!self.in_workspace).then_some(self.text.as_slice())
    }
}

/// A program that runs in its own box. Dropping it destroys the box.
pub trait Execution: Send {
    /// Where the box came from.
    fn start(&self) -> Start;

    /// If it came from nowhere although there is a pool: why.
    fn cold_reason(&self) -> Option<&str> {
        None
    }

    /// What runs the code, `CPython 3.11.7`.
    fn runtime(&self) -> &str;

    /// The image that the box was made from, if any.
    fn image(&self) -> Option<&str> {
        None
    }

    /// The next piece of output, or the end: all processes are dead and everything they wrote has been read. The future
    /// may be dropped before it is ready; nothing is lost.
    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>>;

    /// Kills all processes. [`Event::Ended`] follows soon.
    fn kill(&mut self);

    /// After the end: how it ended, what it used, what it left. Destroys the box.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>>;
}

/// An event of an execution.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes from inside, at most a few pages at a time.
    Output(Stream, &'a [u8]),
    /// It did something with its network.
    Network(NetworkEvent),
    /// Nothing follows.
    Ended,
}

/// One of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How a box ended, what it used and what it left.
#[derive(Debug)]
pub struct Finished {
    /// How the program ended, as the kernel reports it.
    pub ending: Ending,
    /// CPU time of all processes.
    pub cpu: Duration,
    /// Peak memory of all processes together.
    pub memory_peak: u64,
    /// The files that were requested and found.
    pub files: Vec<CollectedFile>,
    /// How many more there are, for which there was no room.
    pub left_out: usize,
    /// What became of the workspace, if that was asked for.
    pub changes: Option<Changes>,
    /// What it did with its network, if it has one that is watched.
    pub network: Option<NetworkUse>,
}

/// How a program ended, as far as the backend can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Exited(u8),
    /// By a signal, which may have been ours.
    Signaled(u8),
    /// By the memory limit, as a counter shows.
    OutOfMemory,
    /// By the limit on CPU time, which the backend checks.
    CpuTimeExhausted,
    /// Nobody knows: what ran the program went away, or no longer answers. This is what to tell the caller.
    Lost(&'static str),
}

/// Why a backend could not run something. Nothing here describes the caller's code.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// This host cannot run the backend at all.
    #[error("the {backend} backend cannot run here: {reason}")]
    Unavailable {
        /// Which one.
        backend: BackendName,
        /// What was observed.
        reason: String,
        /// What would help.
        hint: String,
    },
    /// The language has no runtime here.
    #[error("no runtime for {language} was found")]
    RuntimeMissing {
        /// Which language.
        language: Language,
        /// How to get it.
        hint: String,
    },
    /// Something that the request names is not usable on this host.
    #[error("{message}")]
    Unusable {
        /// The request's field.
        field: crate::Field,
        /// What is wrong.
        message: String,
        /// What would help.
        hint: String,
    },
    /// A step of building the box failed.
    #[error("cannot {step}")]
    Setup {
        /// What was being done, to what.
        step: String,
        /// What would help.
        hint: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
