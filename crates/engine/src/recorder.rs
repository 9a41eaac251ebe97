//! The account that the engine gives of every attempt to run something: who asked, for what, and what became of it.
//!
//! [`Engine::admit`](crate::Engine::admit) opens an account, and [`Admitted`](crate::Admitted) carries it. So no run
//! takes place without one, whichever interface it came through; an account that is dropped is handed in as it is.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use belljar_core::Captured;
use belljar_core::backend::BoxFuture;
use belljar_core::finding::Finding;
use belljar_core::guarantee::Guarantee;
use belljar_core::limits::{BoxLimits, ExecutionLimits};
use belljar_core::outcome::{Compilation, NetworkUse, Outcome, Report, Stage, Start, Usage};
use belljar_core::policy::Decision;
use belljar_core::request::{BackendChoice, BackendName, Code, EnvVar, MAX_CODE, RunRequest, Stdin};
use sha2::{Digest, Sha256};

use crate::{RunError, RunId};

/// What an account has of a stream. The rest is counted.
const MOST_OUTPUT: usize = 72 << 10;

/// Takes accounts, and keeps them. It must not block: accounts are handed in on the threads that answer requests.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Sets a place aside for one account, before the run.
    ///
    /// # Errors
    /// Why nothing can be recorded, if nothing may run unrecorded.
    fn reserve(&self) -> Result<Place, Unrecordable>;

    /// Gives back a place that is not needed.
    fn release(&self);

    /// Takes an account in its place. The future resolves when the result may be told: at once, or when the account is
    /// on disk.
    fn record(&self, account: Box<Account>) -> Option<Kept>;
}

/// Resolves when an account is on disk, or cannot be brought there.
pub type Kept = BoxFuture<'static, Result<(), Unrecordable>>;

/// Whether there is a place for an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// There is one, and it is set aside.
    Held,
    /// There is none, and the run may take place all the same.
    Forgone,
}

/// Why an attempt cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unrecordable {
    /// In words.
    pub why: String,
}

/// Who asked, and through what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The name of the key, or of the user.
    pub caller: Arc<str>,
    /// The interface.
    pub surface: WayIn,
    /// The address that the request came from.
    pub peer: Option<IpAddr>,
    /// What the caller wrote, if the program of the run is one of Belljar's own that reads it: the cells of a notebook.
    pub cells: Option<Arc<[String]>>,
}

impl Default for Origin {
    fn default() -> Origin {
        Origin { caller: "unknown".into(), surface: WayIn::Unknown, peer: None, cells: None }
    }
}

/// The ways in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WayIn {
    CommandLine,
    Http,
    Mcp,
    McpStdio,
    Piston,
    SandboxFusion,
    /// Nobody said. No interface of Belljar's own does that.
    Unknown,
}

impl WayIn {
    /// All of them.
    pub const ALL: [WayIn; 7] = [
        WayIn::CommandLine,
        WayIn::Http,
        WayIn::Mcp,
        WayIn::McpStdio,
        WayIn::Piston,
        WayIn::SandboxFusion,
        WayIn::Unknown,
    ];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WayIn::CommandLine => "cli",
            WayIn::Http => "http",
            WayIn::Mcp => "mcp",
            WayIn::McpStdio => "mcp-stdio",
            WayIn::Piston => "piston",
            WayIn::SandboxFusion => "sandbox-fusion",
            WayIn::Unknown => "unknown",
        }
    }
}

/// Everything about one attempt.
#[derive(Debug)]
pub struct Account {
    /// The identifier of the run.
    pub id: String,
    /// When it was asked for.
    pub at: SystemTime,
    /// By whom.
    pub origin: Origin,
    /// For what.
    pub asked: Asked,
    /// What a scan found in the code, if it was scanned.
    pub findings: Vec<Finding>,
    /// What the policy said about it, or a person, if something was to be decided.
    pub decision: Option<Decision>,
    /// What became of it.
    pub fate: Fate,
}

/// What was asked for.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of the request")]
pub struct Asked {
    pub language: String,
    pub code: Option<Code>,
    pub args: Vec<String>,
    /// Only the names may be kept. The values are here so that they can be found in the output, and taken out.
    pub env: Vec<EnvVar>,
    pub stdin: Option<Digested>,
    pub files: Vec<Digested>,
    pub limits: Option<(BoxLimits, ExecutionLimits)>,
    pub network: Option<String>,
    /// The hosts to whose requests the gateway adds a secret.
    pub secrets: Vec<String>,
    pub backend: Option<BackendName>,
    pub image: Option<String>,
    pub workspace: Option<String>,
    pub collect: Vec<String>,
    pub waived: Vec<Guarantee>,
}

/// Bytes that are not kept themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digested {
    /// Their name, if they are a file.
    pub path: String,
    /// How many there are; `None` for what came in as a stream.
    pub size: Option<u64>,
    /// Their SHA-256.
    pub sha256: Option<[u8; 32]>,
}

/// What became of an attempt.
#[derive(Debug)]
pub enum Fate {
    /// It was not admitted, for this reason.
    Refused(String),
    /// It was admitted, and Belljar could not run it, or not to its end.
    Failed(String),
    /// It took place.
    Ran(Box<Ran>),
}

/// A run that took place: its report, without what is too large to keep.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are those of the report")]
pub struct Ran {
    pub outcome: Outcome,
    pub stdout: Excerpt,
    pub stderr: Excerpt,
    pub usage: Usage,
    pub compile: Option<Compiler>,
    pub stage: Stage,
    pub start: Start,
    pub runtime: String,
    pub image: Option<String>,
    pub network: String,
    pub network_use: Option<NetworkUse>,
    pub kept: Vec<Guarantee>,
    pub waived: Vec<Guarantee>,
    /// Files that were brought back, with their sizes.
    pub produced: Vec<(String, u64)>,
}

/// What a compiler came to, without what is too large to keep.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are those of the report")]
pub struct Compiler {
    pub outcome: Outcome,
    pub stdout: Excerpt,
    pub stderr: Excerpt,
    pub usage: Usage,
    pub cached: bool,
}

impl Compiler {
    fn of(compilation: &Compilation) -> Compiler {
        let Compilation { outcome, stdout, stderr, usage, cached } = compilation;
        let (stdout, stderr) = (Excerpt::of(stdout), Excerpt::of(stderr));
        Compiler { outcome: *outcome, stdout, stderr, usage: *usage, cached: *cached }
    }
}

/// The beginning and the end of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// All of it, or its beginning.
    pub head: Vec<u8>,
    /// Its end, if something is missing between the two.
    pub tail: Vec<u8>,
    /// How many bytes are missing.
    pub missing: u64,
}

impl Excerpt {
    /// What is kept of a stream.
    #[must_use]
    pub fn of(captured: &Captured) -> Excerpt {
        let (head, tail, missing) = captured.parts();
        if head.len() + tail.len() <= MOST_OUTPUT && missing == 0 {
            return Excerpt { head: [head, tail].concat(), tail: Vec::new(), missing: 0 };
        }
        // Without a tail of its own, the stream ends with its head.
        let (head, tail) = if tail.is_empty() { head.split_at(head.len() / 2) } else { (head, tail) };
        let first = &head[..head.len().min(MOST_OUTPUT / 2)];
        let last = &tail[tail.len().saturating_sub(MOST_OUTPUT / 2)..];
        let cut = head.len() - first.len() + tail.len() - last.len();
        Excerpt { head: first.to_owned(), tail: last.to_owned(), missing: missing + cut as u64 }
    }
}

impl Asked {
    /// What a request asks for.
    #[must_use]
    pub fn of(request: &RunRequest) -> Asked {
        let RunRequest { sandbox, execution } = request;
        Asked {
            language: execution.language.name.to_owned(),
            code: Some(execution.code.clone()),
            args: execution.args.iter().map(|arg| arg.as_str().to_owned()).collect(),
            env: sandbox.env.clone(),
            stdin: Digested::input(&execution.stdin),
            files: execution
                .files
                .iter()
                .map(|file| Digested::bytes(file.path.as_str(), &file.content))
                .collect(),
            limits: Some((sandbox.limits, execution.limits)),
            network: Some(sandbox.network.to_string()),
            secrets: sandbox.secrets.iter().map(ToString::to_string).collect(),
            backend: match sandbox.backend {
                BackendChoice::Auto => None,
                BackendChoice::Named(name) => Some(name),
            },
            image: sandbox.image.clone(),
            workspace: sandbox.workspace.as_ref().map(|workspace| workspace.as_path().display().to_string()),
            collect: execution.collect.iter().map(|glob| glob.as_str().to_owned()).collect(),
            waived: sandbox.waived.clone(),
        }
    }
}

impl Digested {
    pub(crate) fn bytes(path: &str, bytes: &[u8]) -> Digested {
        let sha256 = Some(Sha256::digest(bytes).into());
        Digested { path: path.to_owned(), size: Some(bytes.len() as u64), sha256 }
    }

    pub(crate) fn input(stdin: &Stdin) -> Option<Digested> {
        match stdin {
            Stdin::Empty => None,
            Stdin::Bytes(bytes) => Some(Digested::bytes("", bytes)),
            Stdin::Stream(_) => Some(Digested { path: String::new(), size: None, sha256: None }),
        }
    }
}

impl Ran {
    fn of(report: &Report) -> Ran {
        let files = report.files.iter().flatten();
        Ran {
            outcome: report.outcome,
            stdout: Excerpt::of(&report.stdout),
            stderr: Excerpt::of(&report.stderr),
            usage: report.usage,
            compile: report.compile.as_ref().map(Compiler::of),
            stage: report.stage,
            start: report.start,
            runtime: report.runtime.clone(),
            image: report.image.clone(),
            network: report.network.to_string(),
            network_use: report.network_use.clone(),
            kept: report.enforcement.kept().to_vec(),
            waived: report.enforcement.waived().to_vec(),
            produced: files.map(|file| (file.path.clone(), file.content.len() as u64)).collect(),
        }
    }
}

/// An account that is not closed yet. Dropping it hands it in.
#[derive(Debug, Default)]
pub(crate) struct Open(Option<(Arc<dyn Recorder>, Box<Account>)>);

impl Open {
    /// Opens an account, if there is somebody to take it.
    pub(crate) fn new(
        recorder: Option<&Arc<dyn Recorder>>,
        origin: &Origin,
        asked: impl FnOnce() -> Asked,
    ) -> Result<Open, Unrecordable> {
        let Some(recorder) = recorder else { return Ok(Open(None)) };
        if recorder.reserve()? == Place::Forgone {
            return Ok(Open(None));
        }
        let fate = Fate::Failed("the run was given up before it began".to_owned());
        let (id, at, origin) = (RunId::new().to_string(), SystemTime::now(), origin.clone());
        let mut asked = asked();
        if let Some(cells) = &origin.cells {
            asked.code = written(cells);
        }
        let account = Account { id, at, origin, asked, findings: Vec::new(), decision: None, fate };
        Ok(Open(Some((recorder.clone(), Box::new(account)))))
    }

    pub(crate) fn identify(&mut self, id: &RunId) {
        if let Some((_, account)) = &mut self.0 {
            id.as_str().clone_into(&mut account.id);
            account.fate = Fate::Failed("the run was lost".to_owned());
        }
    }

    pub(crate) fn place(&mut self, backend: BackendName) {
        if let Some((_, account)) = &mut self.0 {
            account.asked.backend = Some(backend);
        }
    }

    /// What was found and decided.
    pub(crate) fn decided(&mut self, findings: &[Finding], decision: Option<&Decision>) {
        if let Some((_, account)) = &mut self.0 {
            findings.clone_into(&mut account.findings);
            account.decision = decision.cloned();
        }
    }

    /// Gives back its place for as long as a person thinks.
    pub(crate) fn suspend(mut self) -> Suspended {
        let suspended = self.0.take();
        if let Some((recorder, _)) = &suspended {
            recorder.release();
        }
        Suspended(suspended)
    }

    pub(crate) fn refused(self, why: String) {
        drop(self.close(|| Fate::Refused(why)));
    }

    /// Hands the account in, and waits until it is kept, if that is demanded.
    pub(crate) async fn ended(self, end: &Result<Report, RunError>) -> Result<(), Unrecordable> {
        let kept = self.close(|| match end {
            Ok(report) => Fate::Ran(Box::new(Ran::of(report))),
            Err(error) => Fate::Failed(with_causes(error)),
        });
        match kept {
            Some(kept) => kept.await,
            None => Ok(()),
        }
    }

    fn close(mut self, fate: impl FnOnce() -> Fate) -> Option<Kept> {
        let (recorder, mut account) = self.0.take()?;
        account.fate = fate();
        recorder.record(account)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some((recorder, account)) = self.0.take() {
            drop(recorder.record(account));
        }
    }
}

/// An account that has no place in the ledger while its request waits for a person. Dropping it hands it in, if there is
/// a place.
#[derive(Debug)]
pub(crate) struct Suspended(Option<(Arc<dyn Recorder>, Box<Account>)>);

impl Suspended {
    pub(crate) fn resume(mut self) -> Result<Open, Unrecordable> {
        let Some((recorder, account)) = self.0.take() else { return Ok(Open(None)) };
        match recorder.reserve()? {
            Place::Held => Ok(Open(Some((recorder, account)))),
            Place::Forgone => Ok(Open(None)),
        }
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        // If it cannot be recorded, it did not run all the same.
        if let Some((recorder, account)) = self.0.take()
            && recorder.reserve() == Ok(Place::Held)
        {
            drop(recorder.record(account));
        }
    }
}

/// What a caller wrote is recorded even where it could not be a program.
pub(crate) fn written(cells: &[String]) -> Option<Code> {
    let source = cells.join("\n\n").replace('\0', "\u{fffd}");
    let end = source.floor_char_boundary(MAX_CODE);
    Code::parse(source[..end].into(), None).ok()
}

pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use belljar_core::Collector;
    use belljar_core::limits::Bytes;

    use super::*;

    fn excerpt(limit: u64, written: usize) -> Excerpt {
        let mut collector = Collector::new(Bytes::new(limit));
        collector.push(&vec![b'x'; written]);
        Excerpt::of(&collector.finish())
    }

    #[test]
    fn an_excerpt_counts_every_byte_that_it_leaves_out() {
        for (limit, written) in
            [(16, 3), (16, 40), (1 << 20, 72 << 10), (1 << 20, 80_000), (1 << 20, 3 << 20)]
        {
            let Excerpt { head, tail, missing } = excerpt(limit, written);
            assert!(head.len() + tail.len() <= MOST_OUTPUT, "{limit} {written}");
            assert_eq!((head.len() + tail.len()) as u64 + missing, written as u64, "{limit} {written}");
        }
        assert_eq!(excerpt(1 << 20, 72 << 10).missing, 0);
    }

    #[test]
    fn what_a_caller_wrote_is_recorded_whatever_it_is() {
        let long = "ä".repeat(MAX_CODE);
        for (source, bytes) in [("a\0b", 5), ("", 0), (long.as_str(), MAX_CODE)] {
            assert_eq!(written(&[source.to_owned()]).unwrap().bytes().len(), bytes);
        }
    }

    #[test]
    fn every_way_in_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> = WayIn::ALL.iter().map(|surface| surface.name()).collect();
        assert_eq!(words.len(), WayIn::ALL.len());
    }
}
