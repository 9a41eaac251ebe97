//! The result object, read strictly: a field that is missing, misspelt or new fails every test.

use std::fmt;

use serde::Deserialize;

use crate::brief::Brief;

/// The contract's result object. `files` is there only with `--collect`, the `_base64` fields on request.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct RunResult {
    pub id: String,
    pub status: Status,
    pub exit_code: i32,
    #[serde(deserialize_with = "present")]
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub timed_out: bool,
    pub oom_killed: bool,
    pub usage: Usage,
    #[serde(deserialize_with = "present")]
    pub compile: Option<Compile>,
    pub stage: Stage,
    pub start: String,
    pub language: String,
    pub runtime: String,
    #[serde(deserialize_with = "present")]
    pub cold_reason: Option<String>,
    pub backend: String,
    #[serde(deserialize_with = "present")]
    pub image: Option<String>,
    pub network: String,
    /// Only of a run with a network that Belljar watches.
    #[serde(default)]
    pub network_denied: Option<Vec<serde_json::Value>>,
    pub isolation: Isolation,
    #[serde(default)]
    pub files: Option<Vec<CollectedFile>>,
    #[serde(default)]
    pub changes: Option<Changes>,
    #[serde(default)]
    pub stdout_base64: Option<String>,
    #[serde(default)]
    pub stderr_base64: Option<String>,
    pub findings: Vec<serde_json::Value>,
    #[serde(default)]
    pub decision: Option<Decision>,
}

/// What the policy decided about the run, where it did more than allow it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Decision {
    pub action: String,
    pub rule: String,
    pub reason: String,
    pub by: String,
    #[serde(deserialize_with = "present")]
    pub approval_id: Option<String>,
}

/// What tells how a run ended, and the beginning of what it wrote.
impl fmt::Debug for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunResult")
            .field("status", &self.status)
            .field("exit_code", &self.exit_code)
            .field("signal", &self.signal)
            .field("stdout", &Brief(&self.stdout))
            .field("stderr", &Brief(&self.stderr))
            .field("oom_killed", &self.oom_killed)
            .field("usage", &self.usage)
            .field("compile", &self.compile)
            .field("stage", &self.stage)
            .field("start", &self.start)
            .field("language", &self.language)
            .field("backend", &self.backend)
            .field("isolation", &self.isolation)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// Serde takes an absent `Option` for `None`; a field read through this one must be there, if only as `null`.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words are the contract's")]
pub enum Status {
    Exited,
    TimedOut,
    OutOfMemory,
    Signaled,
    Cancelled,
    Denied,
}

/// What a run did to its workspace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct Changes {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    pub patch: String,
    pub truncated: bool,
}

/// What ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words are the contract's")]
pub enum Stage {
    Run,
    Compile,
}

/// What a compiler did.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct Compile {
    pub exit_code: i32,
    pub timed_out: bool,
    pub stdout: String,
    pub stderr: String,
    pub usage: Usage,
    pub cached: bool,
}

impl fmt::Debug for Compile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compile")
            .field("exit_code", &self.exit_code)
            .field("timed_out", &self.timed_out)
            .field("stderr", &Brief(&self.stderr))
            .field("usage", &self.usage)
            .field("cached", &self.cached)
            .finish_non_exhaustive()
    }
}

/// What a run used.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct Usage {
    pub wall_ms: f64,
    pub cpu_ms: f64,
    pub memory_peak_bytes: u64,
    pub queue_ms: f64,
    #[serde(default)]
    pub network_up_bytes: Option<u64>,
    #[serde(default)]
    pub network_down_bytes: Option<u64>,
}

/// What was kept and what was given up.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct Isolation {
    pub kept: Vec<String>,
    pub waived: Vec<String>,
}

/// A file that was brought back.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct CollectedFile {
    pub path: String,
    pub size: u64,
    pub content_base64: String,
}

impl fmt::Debug for CollectedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.path, self.size)
    }
}

impl CollectedFile {
    /// The bytes of the file.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        from_base64(&self.content_base64)
    }
}

/// The bytes that a `_base64` field stands for.
///
/// # Panics
/// If it is not base64.
#[must_use]
pub fn from_base64(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).expect("it is base64")
}

/// The contract's error object.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct ErrorObject {
    pub error: ErrorBody,
}

/// What went wrong, before any code ran.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the contract's")]
pub struct ErrorBody {
    pub code: String,
    pub message: String,
    pub hint: String,
    #[serde(default)]
    pub field: Option<String>,
}
