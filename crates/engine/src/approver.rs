//! Asking a person whether something may run. The engine knows that somebody can be asked; who, and how, is the
//! composition's.
//!
//! What a person approves is exactly what runs: the [`Ask`] is made from the request that waits, its digest covers
//! everything in it, and the request itself does not leave the engine meanwhile.

use std::fmt;
use std::sync::Arc;

use belljar_core::backend::BoxFuture;
use belljar_core::finding::Finding;
use belljar_core::language::Language;
use belljar_core::limits::{BoxLimits, CompileLimits, ExecutionLimits};
use belljar_core::path::Writes;
use belljar_core::policy::Decision;
use belljar_core::request::{Arg, BackendName, Code, EnvVar, Extras, Glob, RunRequest, Stdin};
use sha2::{Digest, Sha256};

use crate::Engine;
use crate::recorder::{Digested, Origin, written};

/// Asks a person. It must not block: it is called on the threads that answer requests.
pub trait Approver: fmt::Debug + Send + Sync {
    /// Asks whether this may run.
    ///
    /// # Errors
    /// Why nobody can be asked.
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable>;
}

/// What somebody is asked about: everything about a run that its policy does not allow without a person.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The SHA-256 of everything that makes the run what it is. Two runs with the same digest are the same run.
    pub digest: [u8; 32],
    /// Who wants to run it.
    pub origin: Origin,
    /// What the code is written in.
    pub language: Language,
    /// The code.
    pub code: Code,
    /// What a scan found in it.
    pub findings: Vec<Finding>,
    /// The rule of the policy that wants a person to decide, and why it matched.
    pub decision: Decision,
    /// The rest of the run.
    pub run: Described,
}

/// The most of files and standard input that a person is shown, in bytes of JSON.
const MOST_SHOWN: usize = 256 << 10;

/// Bytes that come with a run, as a person is shown them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// Which they are.
    pub digested: Digested,
    /// All of them, if they are text and not too many.
    pub text: Option<String>,
}

/// A run, apart from its code, without what is too large or secret.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are those of the request")]
pub struct Described {
    pub files: Vec<Carried>,
    pub args: Vec<String>,
    /// Only the names: the values may be secrets. The digest of the run covers them.
    pub env_names: Vec<String>,
    /// Without a size, it is a stream that nobody has read yet, and what comes through it is not covered.
    pub stdin: Option<Carried>,
    pub box_limits: BoxLimits,
    pub limits: ExecutionLimits,
    pub network: String,
    /// The hosts to whose requests the gateway adds a secret.
    pub secrets: Vec<String>,
    pub image: Option<String>,
    /// The one that will run it.
    pub backend: BackendName,
    pub workspace: Option<String>,
    /// Whether the program can write to a layer over the workspace.
    pub writable: bool,
    pub collect: Vec<String>,
    /// The guarantees that the caller does without.
    pub waived: Vec<&'static str>,
}

/// What becomes of a question.
pub enum Answer {
    /// It was answered before, or at once.
    Decided(Verdict),
    /// It waits for a person.
    Pending(Pending),
}

/// A question that waits for a person.
pub struct Pending {
    /// What the person decides by.
    pub approval_id: String,
    /// Resolves when somebody has decided, or when it is too late: then the run is not approved. Dropping it withdraws
    /// the question, because nobody waits for the answer any more; whether it can still be answered, for a later request
    /// of the same digest, is the approver's to say.
    pub decided: BoxFuture<'static, Verdict>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may run.
    pub approved: bool,
    /// Who says so.
    pub by: String,
    /// And why.
    pub reason: Option<String>,
    /// The approval, for answers that are about one.
    pub approval_id: Option<String>,
}

/// Why nobody can be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unapprovable {
    /// In words for the caller.
    pub why: String,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Decided(verdict) => f.debug_tuple("Decided").field(verdict).finish(),
            Answer::Pending(pending) => f.debug_tuple("Pending").field(&pending.approval_id).finish(),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("approval_id", &self.approval_id).finish_non_exhaustive()
    }
}

impl Engine {
    /// Lets the engine ask somebody about runs that a policy wants approved. Without it, such runs are denied.
    #[must_use]
    pub fn with_approver(self, approver: Arc<dyn Approver>) -> Engine {
        Engine { approver: Some(approver), ..self }
    }

    /// Who is asked.
    #[must_use]
    pub fn approver(&self) -> Option<&Arc<dyn Approver>> {
        self.approver.as_ref()
    }
}

impl Ask {
    /// A question about a request that would run on this backend.
    #[must_use]
    pub fn new(
        origin: &Origin,
        request: &RunRequest,
        backend: BackendName,
        findings: &[Finding],
        decision: &Decision,
    ) -> Ask {
        let execution = &request.execution;
        Ask {
            digest: digest(origin, request, backend),
            origin: origin.clone(),
            language: execution.language,
            code: written_code(origin, request),
            findings: findings.to_vec(),
            decision: decision.clone(),
            run: Described::of(request, backend),
        }
    }
}

impl Described {
    fn of(request: &RunRequest, backend: BackendName) -> Described {
        let RunRequest { sandbox, execution } = request;
        let workspace = sandbox.workspace.as_ref();
        let mut room = Room(MOST_SHOWN);
        let stdin = Digested::input(&execution.stdin).map(|digested| {
            let text = match &execution.stdin {
                Stdin::Bytes(bytes) => room.text(bytes),
                Stdin::Empty | Stdin::Stream(_) => None,
            };
            Carried { digested, text }
        });
        let files = execution.files.iter().map(|file| {
            let digested = Digested::bytes(file.path.as_str(), &file.content);
            Carried { digested, text: room.text(&file.content) }
        });
        Described {
            files: files.collect(),
            args: execution.args.iter().map(|arg| arg.as_str().to_owned()).collect(),
            env_names: sandbox.env.iter().map(|variable| variable.name().to_owned()).collect(),
            stdin,
            box_limits: sandbox.limits,
            limits: execution.limits,
            network: sandbox.network.to_string(),
            secrets: sandbox.secrets.iter().map(ToString::to_string).collect(),
            image: sandbox.image.clone(),
            backend,
            workspace: workspace.map(|workspace| workspace.as_path().display().to_string()),
            writable: workspace.is_some_and(belljar_core::path::Workspace::is_writable),
            collect: execution.collect.iter().map(|glob| glob.as_str().to_owned()).collect(),
            waived: sandbox.waived.iter().map(|guarantee| guarantee.name()).collect(),
        }
    }
}

/// The bytes that are left for what a person is shown.
struct Room(usize);

impl Room {
    /// The bytes as text, if they are text and there is room for all of them.
    fn text(&mut self, bytes: &[u8]) -> Option<String> {
        // As JSON has them: a control character takes six bytes, and others that it escapes take two.
        let cost = |byte: &u8| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
            0..=0x1f => 6,
            _ => 1,
        };
        let text = str::from_utf8(bytes).ok()?;
        self.0 = self.0.checked_sub(bytes.iter().map(cost).sum())?;
        Some(text.to_owned())
    }
}

/// What the caller wrote: the code, or what a program of Belljar's own reads in its place.
fn written_code(origin: &Origin, request: &RunRequest) -> Code {
    let cells = origin.cells.as_deref().and_then(written);
    cells.unwrap_or_else(|| request.execution.code.clone())
}

/// The digest of a run. It is destructured field by field, so that a field that is added to a request does not compile
/// until somebody has decided about it here.
fn digest(origin: &Origin, request: &RunRequest, backend: BackendName) -> [u8; 32] {
    use belljar_core::request::{ExecutionRequest, SandboxRequest};
    let RunRequest { sandbox, execution } = request;
    // The choice of a backend comes to `backend`. A list of imports is checked before anybody is asked.
    let SandboxRequest { backend: _, waived, limits, network, secrets, workspace, env, image } = sandbox;
    let ExecutionRequest {
        language,
        code,
        args,
        stdin,
        files,
        collect,
        limits: own,
        extras,
        allowed_imports: _,
    } = execution;
    let mut encoded = Encoder::new();
    encoded.text("backend", backend.name());
    encoded.texts("waived", waived.iter().map(|guarantee| guarantee.name()));
    encoded.limits(limits, own);
    encoded.text("network", &network.to_string());
    let secrets: Vec<String> = secrets.iter().map(ToString::to_string).collect();
    encoded.texts("secrets", secrets.iter().map(String::as_str));
    match workspace {
        None => encoded.field("no workspace", &[]),
        Some(workspace) => {
            encoded.field("workspace", workspace.as_path().as_os_str().as_encoded_bytes());
            encoded.text("writes", name_of(workspace.writes()));
        }
    }
    // The values of variables are secrets: only a digest of each goes in.
    encoded.texts("env names", env.iter().map(EnvVar::name));
    encoded.digests("env values", env.iter().map(|variable| variable.value().as_bytes()));
    encoded.optional("image", image.as_deref());
    encoded.text("language", language.name);
    encoded.code(code);
    encoded.number("notebook", u128::from(origin.cells.is_some()));
    encoded.texts("cells", origin.cells.as_deref().unwrap_or_default().iter().map(String::as_str));
    encoded.texts("args", args.iter().map(Arg::as_str));
    encoded.stdin(stdin);
    encoded.texts("files", files.iter().map(|file| file.path.as_str()));
    encoded.digests("contents", files.iter().map(|file| file.content.as_slice()));
    encoded.texts("modes", files.iter().map(|file| if file.executable { "x" } else { "-" }));
    encoded.texts("collect", collect.iter().map(Glob::as_str));
    let Extras { plots, hints } = *extras;
    encoded.field("extras", &[u8::from(plots), u8::from(hints)]);
    encoded.finish()
}

fn name_of(writes: Writes) -> &'static str {
    match writes {
        Writes::Refused => "refused",
        Writes::Discarded => "discarded",
        Writes::Reported => "reported",
    }
}

/// Turns fields into bytes from which they could be told again: each has its name and its length before it, so that no
/// two requests have the same bytes.
struct Encoder(Sha256);

impl Encoder {
    fn new() -> Encoder {
        let mut encoder = Encoder(Sha256::new());
        encoder.field("belljar run", &[1]);
        encoder
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        self.0.update((name.len() as u64).to_be_bytes());
        self.0.update(name);
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.field(name, value.as_bytes());
    }

    fn number(&mut self, name: &str, value: u128) {
        self.field(name, &value.to_be_bytes());
    }

    fn optional(&mut self, name: &str, value: Option<&str>) {
        self.number(name, u128::from(value.is_some()));
        self.text(name, value.unwrap_or_default());
    }

    fn texts<'a>(&mut self, name: &str, values: impl ExactSizeIterator<Item = &'a str>) {
        self.number(name, values.len() as u128);
        values.for_each(|value| self.text(name, value));
    }

    fn digests<'a>(&mut self, name: &str, values: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.number(name, values.len() as u128);
        values.for_each(|value| self.field(name, &Sha256::digest(value)));
    }

    fn limits(&mut self, sandbox: &BoxLimits, execution: &ExecutionLimits) {
        let ExecutionLimits { timeout, cpu_time, output, collected, compile } = *execution;
        self.box_limits(sandbox);
        self.number("timeout", timeout.as_nanos());
        self.number("cpu time", cpu_time.map_or(0, |time| time.as_nanos()));
        self.number("output", output.get().into());
        self.number("collected", collected.get().into());
        let CompileLimits { timeout, cpu_time, sandbox } = compile;
        self.number("compile timeout", timeout.as_nanos());
        self.number("compile cpu time", cpu_time.map_or(0, |time| time.as_nanos()));
        self.box_limits(&sandbox);
    }

    fn box_limits(&mut self, limits: &BoxLimits) {
        let BoxLimits { memory, cpus, pids, disk } = *limits;
        self.number("memory", memory.get().into());
        self.number("cpus", cpus.milli().into());
        self.number("pids", pids.into());
        self.number("disk", disk.get().into());
    }

    fn code(&mut self, code: &Code) {
        self.field("code", code.bytes());
        self.optional("name", code.file_name().map(belljar_core::path::BoxPath::as_str));
        self.number("in workspace", u128::from(code.is_in_workspace()));
    }

    fn stdin(&mut self, stdin: &Stdin) {
        match stdin {
            Stdin::Empty => self.text("stdin", "empty"),
            Stdin::Bytes(bytes) => {
                self.text("stdin", "bytes");
                self.field("stdin", bytes);
            }
            Stdin::Stream(_) => self.text("stdin", "stream"),
        }
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests;
