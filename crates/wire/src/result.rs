use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_core::Captured;
use belljar_core::backend::PullEvent;
use belljar_core::outcome::{self, CollectedFile, Outcome, Report, Start};
use belljar_engine::Started;
use serde::Serialize;
use utoipa::ToSchema;

use crate::schema;

/// The contract's result object, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the fields are those of the contract")]
pub struct RunResult {
    pub id: String,
    #[schema(schema_with = schema::status)]
    pub status: &'static str,
    pub exit_code: u8,
    #[schema(required = true)]
    pub signal: Option<u8>,
    pub stdout: String,
    pub stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stderr_base64: Option<String>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub timed_out: bool,
    pub oom_killed: bool,
    pub usage: Usage,
    #[schema(schema_with = schema::start)]
    pub start: &'static str,
    #[schema(schema_with = schema::language_name)]
    pub language: &'static str,
    pub runtime: String,
    #[schema(schema_with = schema::backend_name)]
    pub backend: &'static str,
    #[schema(required = true)]
    pub image: Option<String>,
    pub network: String,
    pub isolation: Isolation,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub files: Option<Vec<File>>,
    /// Nothing reads the code before it runs, so nothing is found.
    #[schema(schema_with = schema::nothing)]
    pub findings: [(); 0],
}

/// An image that is being fetched, for which a run waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImagePull {
    /// As it was asked for.
    pub image: String,
    /// The layer, or `null` if it is about the whole image.
    pub layer: Option<String>,
    /// What happens to it, in the words of the engine.
    pub status: String,
    /// So many bytes are there.
    pub current: Option<u64>,
    /// Of so many.
    pub total: Option<u64>,
}

impl From<PullEvent> for ImagePull {
    fn from(event: PullEvent) -> ImagePull {
        let PullEvent { image, layer, status, progress } = event;
        let (current, total) = progress.unzip();
        ImagePull { image, layer, status, current, total }
    }
}

/// A run that has begun: what is known of it before it ends.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the fields are those of the result")]
pub struct RunStarted {
    pub id: String,
    #[schema(schema_with = schema::language_name)]
    pub language: &'static str,
    pub runtime: String,
    #[schema(schema_with = schema::backend_name)]
    pub backend: &'static str,
    #[schema(required = true)]
    pub image: Option<String>,
    #[schema(schema_with = schema::start)]
    pub start: &'static str,
    pub queue_ms: f64,
}

impl RunStarted {
    /// What the engine says when a program begins to run.
    #[must_use]
    pub fn new(id: &str, started: &Started<'_>) -> RunStarted {
        RunStarted {
            id: id.to_owned(),
            language: started.language.name,
            runtime: started.runtime.to_owned(),
            backend: started.backend.name(),
            image: started.image.map(str::to_owned),
            start: word(started.start),
            queue_ms: millis(started.queue),
        }
    }
}

/// A run that has no result yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RunState {
    pub id: String,
    #[schema(schema_with = schema::unfinished)]
    pub status: &'static str,
}

impl RunState {
    /// It waits for its turn, or runs.
    #[must_use]
    pub fn running(id: &str) -> RunState {
        RunState { id: id.to_owned(), status: "running" }
    }

    /// It was told to end.
    #[must_use]
    pub fn cancelling(id: &str) -> RunState {
        RunState { id: id.to_owned(), status: "cancelling" }
    }
}

/// What the run used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the fields are those of the contract")]
pub struct Usage {
    pub wall_ms: f64,
    pub cpu_ms: f64,
    pub memory_peak_bytes: u64,
    pub queue_ms: f64,
}

/// What was promised for the run and what was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the fields are those of the contract")]
pub struct Isolation {
    #[schema(schema_with = schema::guarantees)]
    pub kept: Vec<&'static str>,
    #[schema(schema_with = schema::guarantees)]
    pub waived: Vec<&'static str>,
}

/// A file that was brought back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[allow(missing_docs, reason = "the fields are those of the contract")]
pub struct File {
    pub path: String,
    pub size: usize,
    pub content_base64: String,
}

/// How output is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputForm {
    /// As text, with what is not UTF-8 replaced.
    Text,
    /// As text, and byte for byte in base64.
    TextAndBase64,
}

impl RunResult {
    /// The word for how a run ended.
    #[must_use]
    pub fn status_of(outcome: Outcome) -> &'static str {
        status(outcome).0
    }

    /// The word for where its box came from.
    #[must_use]
    pub fn start_of(start: Start) -> &'static str {
        word(start)
    }

    /// The result of a run that took place.
    #[must_use]
    pub fn new(report: &Report, form: OutputForm) -> RunResult {
        let (stdout, stdout_base64) = told(&report.stdout, form);
        let (stderr, stderr_base64) = told(&report.stderr, form);
        let (status, signal) = status(report.outcome);
        RunResult {
            id: report.id.clone(),
            status,
            exit_code: report.outcome.exit_code(),
            signal,
            stdout,
            stderr,
            stdout_base64,
            stderr_base64,
            stdout_truncated: report.stdout.truncated(),
            stderr_truncated: report.stderr.truncated(),
            timed_out: matches!(report.outcome, Outcome::TimedOut(_)),
            oom_killed: report.outcome == Outcome::OutOfMemory,
            usage: report.usage.into(),
            start: word(report.start),
            language: report.language.name,
            runtime: report.runtime.clone(),
            backend: report.backend.name(),
            image: report.image.clone(),
            network: report.network.to_string(),
            isolation: Isolation {
                kept: report.enforcement.kept().iter().map(|guarantee| guarantee.name()).collect(),
                waived: report.enforcement.waived().iter().map(|guarantee| guarantee.name()).collect(),
            },
            files: report.files.as_ref().map(|files| files.iter().map(File::from).collect()),
            findings: [],
        }
    }
}

impl From<&Report> for RunResult {
    fn from(report: &Report) -> RunResult {
        RunResult::new(report, OutputForm::Text)
    }
}

impl From<outcome::Usage> for Usage {
    fn from(usage: outcome::Usage) -> Usage {
        Usage {
            wall_ms: millis(usage.wall),
            cpu_ms: millis(usage.cpu),
            memory_peak_bytes: usage.memory_peak,
            queue_ms: millis(usage.queue),
        }
    }
}

impl From<&CollectedFile> for File {
    fn from(file: &CollectedFile) -> File {
        let (size, content_base64) = (file.content.len(), STANDARD.encode(&file.content));
        File { path: file.path.clone(), size, content_base64 }
    }
}

fn told(captured: &Captured, form: OutputForm) -> (String, Option<String>) {
    let bytes = captured.to_bytes();
    let base64 = (form == OutputForm::TextAndBase64).then(|| STANDARD.encode(&bytes));
    (String::from_utf8_lossy(&bytes).into_owned(), base64)
}

/// Microseconds are all that the clocks are good for; more digits would only look exact.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn word(start: Start) -> &'static str {
    match start {
        Start::Warm => "warm",
        Start::Zygote => "zygote",
        Start::Cold => "cold",
    }
}

fn status(outcome: Outcome) -> (&'static str, Option<u8>) {
    match outcome {
        Outcome::Exited(_) => ("exited", None),
        Outcome::Signaled(signal) => ("signaled", Some(signal)),
        Outcome::TimedOut(_) => ("timed_out", None),
        Outcome::OutOfMemory => ("out_of_memory", None),
        Outcome::Cancelled(_) => ("cancelled", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::Collector;
    use belljar_core::guarantee::{Guarantee, Offer, Standing, resolve};
    use belljar_core::language::Language;
    use belljar_core::limits::Bytes;
    use belljar_core::outcome::TimeLimit;
    use belljar_core::request::{BackendName, Network};

    fn captured(bytes: &[u8]) -> Captured {
        let mut collector = Collector::new(Bytes::new(16));
        collector.push(bytes);
        collector.finish()
    }

    fn report(outcome: Outcome) -> Report {
        let offer = Offer::by_asking(|_| Standing::Kept { how: String::new() });
        Report {
            id: "run_01J".into(),
            outcome,
            stdout: captured(b"1\n"),
            stderr: captured(b""),
            usage: outcome::Usage {
                queue: Duration::ZERO,
                wall: Duration::from_nanos(1_900_400),
                cpu: Duration::from_micros(1100),
                memory_peak: 9_437_184,
            },
            start: Start::Cold,
            language: Language::by_name("python").unwrap(),
            runtime: "CPython 3.11.7".into(),
            backend: BackendName::Native,
            image: None,
            network: Network::None,
            enforcement: resolve(&offer, &[Guarantee::Disk]).unwrap(),
            files: None,
        }
    }

    #[test]
    fn the_result_object_is_the_contracts_in_its_order() {
        insta::assert_snapshot!(crate::to_json(&RunResult::from(&report(Outcome::Exited(0)))), @r#"
        {
          "id": "run_01J",
          "status": "exited",
          "exit_code": 0,
          "signal": null,
          "stdout": "1\n",
          "stderr": "",
          "stdout_truncated": false,
          "stderr_truncated": false,
          "timed_out": false,
          "oom_killed": false,
          "usage": {
            "wall_ms": 1.9,
            "cpu_ms": 1.1,
            "memory_peak_bytes": 9437184,
            "queue_ms": 0.0
          },
          "start": "cold",
          "language": "python",
          "runtime": "CPython 3.11.7",
          "backend": "native",
          "image": null,
          "network": "none",
          "isolation": {
            "kept": [
              "filesystem",
              "network",
              "memory",
              "pids",
              "cpu",
              "syscalls",
              "privileges"
            ],
            "waived": [
              "disk"
            ]
          },
          "findings": []
        }
        "#);
    }

    #[test]
    fn every_ending_has_its_status_code_and_flags() {
        let told = |outcome| {
            let result = RunResult::from(&report(outcome));
            (result.status, result.exit_code, result.signal, result.timed_out, result.oom_killed)
        };
        let timeout = Outcome::TimedOut(TimeLimit::Wall(Duration::from_secs(1)));
        assert_eq!(told(Outcome::Exited(3)), ("exited", 3, None, false, false));
        assert_eq!(told(Outcome::Signaled(11)), ("signaled", 139, Some(11), false, false));
        assert_eq!(told(timeout), ("timed_out", 124, None, true, false));
        assert_eq!(told(Outcome::OutOfMemory), ("out_of_memory", 137, None, false, true));
        assert_eq!(told(Outcome::Cancelled(Some(2))), ("cancelled", 130, None, false, false));
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced_and_kept_in_base64_on_request() {
        let mut bytes = report(Outcome::Exited(0));
        bytes.stdout = captured(b"\xff\x00a");
        let result = RunResult::new(&bytes, OutputForm::TextAndBase64);
        assert_eq!(result.stdout, "\u{fffd}\0a");
        assert_eq!(result.stdout_base64.as_deref(), Some("/wBh"));
        assert_eq!(result.stderr_base64.as_deref(), Some(""));
    }

    #[test]
    fn truncation_shows_in_the_flag_and_in_the_text() {
        let mut long = report(Outcome::Exited(0));
        long.stderr = captured(&[b'x'; 40]);
        let result = RunResult::from(&long);
        assert!(result.stderr_truncated && !result.stdout_truncated);
        assert_eq!(result.stderr, "xxxxxxxx\n[... 24 bytes omitted ...]\nxxxxxxxx");
    }

    #[test]
    fn collected_files_come_in_base64() {
        let mut collected = report(Outcome::Exited(0));
        collected.files = Some(vec![CollectedFile { path: "a/b".into(), content: vec![0, 255] }]);
        let file = File { path: "a/b".into(), size: 2, content_base64: "AP8=".into() };
        assert_eq!(RunResult::from(&collected).files, Some(vec![file]));
    }
}
