use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_core::Captured;
use belljar_core::backend::PullEvent;
use belljar_core::outcome::{self, CollectedFile, Outcome, Report, Stage, Start};
use belljar_engine::Started;
use serde::{Deserialize, Serialize};

use crate::decision::Decision;
use crate::scan::Finding;
use crate::{ToSchema, Word};

/// The result of a run: what the program printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunResult {
    /// The identifier of the run.
    pub id: String,
    /// How the run ended.
    #[schema(value_type = crate::schema::ResultStatus)]
    pub status: Word,
    /// The program's exit code: 124 if it timed out, 126 if it was denied, 137 if it ran out of memory, 128 plus the signal's number if a signal
    /// ended it.
    pub exit_code: u8,
    /// The number of the signal that ended the program, or `null`.
    #[schema(required = true)]
    pub signal: Option<u8>,
    /// What the program wrote to standard output; if `stage` is `compile`, what the compiler wrote. Bytes that are not
    /// UTF-8 are replaced.
    pub stdout: String,
    /// What the program wrote to standard error; if `stage` is `compile`, what the compiler wrote. Bytes that are not
    /// UTF-8 are replaced.
    pub stderr: String,
    /// Standard output byte for byte. Only if the request has `output_base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stdout_base64: Option<String>,
    /// Standard error byte for byte. Only if the request has `output_base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stderr_base64: Option<String>,
    /// Whether the middle of standard output is missing, because it exceeded `output_bytes`.
    pub stdout_truncated: bool,
    /// Whether the middle of standard error is missing, because it exceeded `output_bytes`.
    pub stderr_truncated: bool,
    /// Whether a limit on time ended the program.
    pub timed_out: bool,
    /// Whether the limit on memory ended the program.
    pub oom_killed: bool,
    /// What the program used. What its compiler used is in `compile`.
    pub usage: Usage,
    /// What the compiler did, if the language is compiled.
    #[schema(required = true)]
    pub compile: Option<Compile>,
    /// What ended the run: the program, or its compiler, because the code does not compile.
    #[schema(value_type = crate::schema::StageName)]
    pub stage: Word,
    /// Where the sandbox came from.
    #[schema(value_type = crate::schema::StartKind)]
    pub start: Word,
    /// The language of the code.
    #[schema(value_type = crate::schema::LanguageName)]
    pub language: Word,
    /// The name and version of what ran the code, such as `CPython 3.11.7`.
    pub runtime: String,
    /// Why the run started cold although the server has a warm pool for its language, or `null`.
    #[schema(required = true)]
    pub cold_reason: Option<String>,
    /// What isolated the run.
    #[schema(value_type = crate::schema::BackendName)]
    pub backend: Word,
    /// The image that the code ran in, or `null` if the backend does not use images.
    #[schema(required = true)]
    pub image: Option<String>,
    /// What the program could reach over the network.
    #[schema(value_type = crate::schema::NetworkAccess)]
    pub network: String,
    /// What the program tried to reach in vain, the first ones. Only if it had a network that Belljar watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub network_denied: Option<Vec<NetworkDenied>>,
    /// What the backend guaranteed for this run.
    pub isolation: Isolation,
    /// The files that `collect` asked for, and with `plots` the figures. Only if the request has `collect`, or there are
    /// figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub files: Option<Vec<File>>,
    /// What the program did to its workspace. Only if the request has `changes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub changes: Option<Changes>,
    /// What a scan of the code found. Empty if nothing was found, or if the server does not scan the code of runs.
    pub findings: Vec<Finding>,
    /// What was decided about the run before it could begin. Only if there is a policy, or the request has
    /// `allowed_imports`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub decision: Option<Decision>,
}

/// What a compiler did. It has limits of its own, so nothing of it counts for the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompileResult)]
pub struct Compile {
    /// Its exit code, as that of a program.
    pub exit_code: u8,
    /// Whether `compile_timeout_ms` ended it.
    pub timed_out: bool,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// What it used: nothing if the program was there already.
    pub usage: Usage,
    /// Whether the program was there already, because the same code was compiled before.
    pub cached: bool,
}

impl From<&outcome::Compilation> for Compile {
    fn from(compiler: &outcome::Compilation) -> Compile {
        Compile {
            exit_code: compiler.outcome.exit_code(),
            timed_out: matches!(compiler.outcome, Outcome::TimedOut(_)),
            stdout: told(&compiler.stdout, OutputForm::Text).0,
            stderr: told(&compiler.stderr, OutputForm::Text).0,
            usage: compiler.usage.into(),
            cached: compiler.cached,
        }
    }
}

/// The compiler is done, and its program has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageStarted {
    /// What runs now.
    #[schema(value_type = crate::schema::StageName)]
    pub stage: Word,
}

impl StageStarted {
    /// What begins.
    #[must_use]
    pub fn new(stage: Stage) -> StageStarted {
        StageStarted { stage: stage_name(stage).into() }
    }
}

/// Progress of an image that is being pulled for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImagePull {
    /// The image, as the request or the language names it.
    pub image: String,
    /// The layer, or `null` if the event is about the whole image.
    #[schema(required = true)]
    pub layer: Option<String>,
    /// What happens to it, in the container engine's words.
    pub status: String,
    /// How many bytes have arrived, if that is known.
    #[schema(required = true)]
    pub current: Option<u64>,
    /// How many bytes there are, if that is known.
    #[schema(required = true)]
    pub total: Option<u64>,
}

impl From<PullEvent> for ImagePull {
    fn from(event: PullEvent) -> ImagePull {
        let PullEvent { image, layer, status, progress } = event;
        let (current, total) = progress.unzip();
        ImagePull { image, layer, status, current, total }
    }
}

/// A run whose program has started: what is known before it ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunStarted {
    /// The identifier of the run.
    pub id: String,
    /// The language of the code.
    #[schema(value_type = crate::schema::LanguageName)]
    pub language: Word,
    /// The name and version of what runs the code.
    pub runtime: String,
    /// What isolates the run.
    #[schema(value_type = crate::schema::BackendName)]
    pub backend: Word,
    /// The image that the code runs in, or `null` if the backend does not use images.
    #[schema(required = true)]
    pub image: Option<String>,
    /// Where the sandbox came from.
    #[schema(value_type = crate::schema::StartKind)]
    pub start: Word,
    /// How long the run waited in the queue, in milliseconds.
    pub queue_ms: f64,
    /// What runs now: the program, or its compiler. The event `stage` follows when the compiler is done.
    #[schema(value_type = crate::schema::StageName)]
    pub stage: Word,
}

impl RunStarted {
    /// What runs now.
    #[must_use]
    pub fn stage(&self) -> Stage {
        if self.stage == stage_name(Stage::Compile) { Stage::Compile } else { Stage::Run }
    }

    /// What the engine says when a program begins to run.
    #[must_use]
    pub fn new(id: &str, started: &Started<'_>) -> RunStarted {
        RunStarted {
            id: id.to_owned(),
            language: started.language.name.into(),
            runtime: started.runtime.to_owned(),
            backend: started.backend.name().into(),
            image: started.image.map(str::to_owned),
            start: word(started.start).into(),
            queue_ms: millis(started.queue),
            stage: stage_name(started.stage).into(),
        }
    }
}

/// What the run used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Wall-clock time, in milliseconds.
    pub wall_ms: f64,
    /// CPU time of all its processes, in milliseconds.
    pub cpu_ms: f64,
    /// The most memory that it had at a time, in bytes.
    pub memory_peak_bytes: u64,
    /// How long it waited in the queue, in milliseconds.
    pub queue_ms: f64,
    /// Bytes that its program sent over the network. Only if it had one that Belljar watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub network_up_bytes: Option<u64>,
    /// Bytes that its program received over the network. Only if it had one that Belljar watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub network_down_bytes: Option<u64>,
}

/// Something that a program tried to reach in vain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkDenied {
    /// The name, or the address.
    pub host: String,
    /// The port, or `null` if a name was only looked up.
    #[schema(required = true)]
    pub port: Option<u16>,
    /// Why it was refused.
    pub reason: String,
    /// How many times.
    pub count: u64,
}

impl From<&outcome::DeniedHost> for NetworkDenied {
    fn from(denied: &outcome::DeniedHost) -> NetworkDenied {
        let outcome::DeniedHost { host, port, reason, count } = denied.clone();
        NetworkDenied { host, port, reason, count }
    }
}

/// What the backend guaranteed for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Isolation {
    /// The guarantees that were kept. Empty if nothing ran: the run was denied, was cancelled before it began, or its code
    /// could not be translated.
    #[schema(value_type = Vec<crate::schema::GuaranteeName>)]
    pub kept: Vec<Word>,
    /// The guarantees that the run did without.
    #[schema(value_type = Vec<crate::schema::GuaranteeName>)]
    pub waived: Vec<Word>,
}

/// A file that the run wrote, and that `collect` asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = CollectedFile)]
pub struct File {
    /// Where the file was, relative to the working directory.
    pub path: String,
    /// The size of its content, in bytes.
    pub size: usize,
    /// Its content in base64.
    pub content_base64: String,
}

/// What a program did to its workspace. Directories are not listed, only the files and links in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changes {
    /// Files that were not there before, relative to the workspace.
    pub added: Vec<String>,
    /// Files that have another content than before.
    pub changed: Vec<String>,
    /// Files that are gone.
    pub removed: Vec<String>,
    /// The changes of text files as a patch for `git apply`. Files that are larger than 256 KiB are not in it.
    pub patch: String,
    /// Whether something is missing from the lists or from the patch, because there was too much of it.
    pub truncated: bool,
}

impl From<&outcome::Changes> for Changes {
    fn from(changes: &outcome::Changes) -> Changes {
        let outcome::Changes { added, changed, removed, patch, truncated } = changes.clone();
        Changes { added, changed, removed, patch, truncated }
    }
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

    /// The word for what ended it.
    #[must_use]
    pub fn stage_of(stage: Stage) -> &'static str {
        stage_name(stage)
    }

    /// The result of a run that took place.
    #[must_use]
    pub fn new(report: &Report, form: OutputForm) -> RunResult {
        let (stdout, stdout_base64) = told(&report.stdout, form);
        let (stderr, stderr_base64) = told(&report.stderr, form);
        let (status, signal) = status(report.outcome);
        RunResult {
            id: report.id.clone(),
            status: status.into(),
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
            usage: Usage {
                network_up_bytes: report.network_use.as_ref().map(|network| network.up),
                network_down_bytes: report.network_use.as_ref().map(|network| network.down),
                ..report.usage.into()
            },
            compile: report.compile.as_ref().map(Compile::from),
            stage: stage_name(report.stage).into(),
            start: word(report.start).into(),
            language: report.language.name.into(),
            runtime: report.runtime.clone(),
            cold_reason: report.cold_reason.clone(),
            backend: report.backend.name().into(),
            image: report.image.clone(),
            network: report.network.to_string(),
            network_denied: report
                .network_use
                .as_ref()
                .map(|network| network.denied.iter().map(NetworkDenied::from).collect()),
            isolation: Isolation {
                kept: report.enforcement.kept().iter().map(|guarantee| guarantee.name().into()).collect(),
                waived: report.enforcement.waived().iter().map(|guarantee| guarantee.name().into()).collect(),
            },
            files: report.files.as_ref().map(|files| files.iter().map(File::from).collect()),
            changes: report.changes.as_ref().map(Changes::from),
            findings: report.findings.iter().map(Finding::from).collect(),
            decision: report.decision.as_ref().map(Decision::from),
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
            network_up_bytes: None,
            network_down_bytes: None,
        }
    }
}

impl File {
    /// Its content, if it is base64.
    #[must_use]
    pub fn content(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.content_base64).ok()
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

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Compile => "compile",
        Stage::Run => "run",
    }
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
        Outcome::Denied => ("denied", None),
    }
}

#[cfg(test)]
pub(crate) mod tests {
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

    pub(crate) fn report(outcome: Outcome) -> Report {
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
            compile: None,
            stage: Stage::Run,
            start: Start::Cold,
            language: Language::by_name("python").unwrap(),
            runtime: "CPython 3.11.7".into(),
            backend: BackendName::Native,
            image: None,
            network: Network::None,
            enforcement: resolve(&offer, &[Guarantee::Disk]).unwrap(),
            findings: Vec::new(),
            files: None,
            decision: None,
            cold_reason: None,
            changes: None,
            network_use: None,
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
          "compile": null,
          "stage": "run",
          "start": "cold",
          "language": "python",
          "runtime": "CPython 3.11.7",
          "cold_reason": null,
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
    fn a_compiler_is_told_apart_from_its_program() {
        let usage = outcome::Usage { cpu: Duration::from_millis(2), ..outcome::Usage::default() };
        let mut failed = report(Outcome::Exited(1));
        failed.stage = Stage::Compile;
        failed.compile = Some(outcome::Compilation {
            outcome: Outcome::Exited(1),
            stdout: captured(b""),
            stderr: captured(b"no such x"),
            usage,
            cached: false,
        });
        let result = RunResult::from(&failed);
        let compile = result.compile.unwrap();
        assert_eq!((&*result.stage, &*result.status, result.exit_code), ("compile", "exited", 1));
        assert_eq!((compile.exit_code, compile.timed_out, compile.stderr.as_str()), (1, false, "no such x"));
        assert!(compile.usage.cpu_ms > 1.0 && result.usage.cpu_ms < 2.0);
    }

    #[test]
    fn every_ending_has_its_status_code_and_flags() {
        let told = |outcome| {
            let result = RunResult::from(&report(outcome));
            let RunResult { status, exit_code, signal, timed_out, oom_killed, .. } = result;
            (status.into_owned(), exit_code, signal, timed_out, oom_killed)
        };
        let timeout = Outcome::TimedOut(TimeLimit::Wall(Duration::from_secs(1)));
        assert_eq!(told(Outcome::Exited(3)), ("exited".to_owned(), 3, None, false, false));
        assert_eq!(told(Outcome::Signaled(11)), ("signaled".to_owned(), 139, Some(11), false, false));
        assert_eq!(told(timeout), ("timed_out".to_owned(), 124, None, true, false));
        assert_eq!(told(Outcome::OutOfMemory), ("out_of_memory".to_owned(), 137, None, false, true));
        assert_eq!(told(Outcome::Cancelled(Some(2))), ("cancelled".to_owned(), 130, None, false, false));
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
