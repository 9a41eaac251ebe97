//! `POST /api/v2/execute`, and a run in Piston's words.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use belljar_core::Captured;
use belljar_core::outcome::{Compilation, Outcome, Report, Stage, TimeLimit, Usage};
use serde::Serialize;

use super::job::{Asked, Job};
use super::runtimes::{self, Runtime, name_of};
use super::{PistonRefusal, signals};
use crate::caller::Caller;
use crate::compat::encoding::to_text;
use crate::compat::ended::{Written, to_the_end};
use crate::compat::time::millis;
use crate::http::App;
use crate::http::{answer, body};
use crate::runs::PATIENCE;

/// What a job came to.
#[derive(Debug, Serialize)]
pub(super) struct Executed {
    /// Only where a command of its own compiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    compile: Option<StageTold>,
    run: StageTold,
    language: &'static str,
    version: String,
}

/// One stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct StageTold {
    #[serde(flatten)]
    ending: Ending,
    stdout: String,
    stderr: String,
    output: String,
    memory: Option<u64>,
    message: Option<String>,
    status: Option<&'static str>,
    cpu_time: Option<u64>,
    wall_time: Option<u64>,
}

/// How a stage ended: with a code, or by a signal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Ending {
    pub(super) code: Option<u8>,
    pub(super) signal: Option<String>,
}

impl Ending {
    /// A compiler that did its work.
    pub(super) const SUCCESS: Ending = Ending { code: Some(0), signal: None };
}

/// `POST /api/v2/execute`.
pub(super) async fn execute(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, PistonRefusal> {
    let app = app.of(&caller);
    let received = body::receive(&app, body).await?;
    let asked = read(&headers, &received.bytes)?;
    let (runtime, Job { request, local }) = prepare(&app, &caller, asked).await?;
    let run = app.runs.start_with(&caller, request, local).await?;
    run.decided_within(app.config.approval_wait).await?;
    let (finished, written) = to_the_end(run).await?;
    drop(received);
    // What was written is told twice, as it came and by stream; what a compiler wrote, as that of both stages.
    let bytes = finished.rendered_bytes().saturating_mul(2);
    let make = move || Executed::new(runtime, &finished.report, &written);
    Ok(answer::counted(&app.memory, bytes, PATIENCE, make).await?)
}

/// The runtime that is meant, and the job for it.
pub(super) async fn prepare(
    app: &App,
    caller: &Caller,
    asked: Asked,
) -> Result<(Runtime, Job), PistonRefusal> {
    let draft = asked.draft()?;
    let runtime = runtimes::find(&app.runs, caller, &draft.language, &draft.version).await?;
    let runtime = runtime.filter(|runtime| caller.allowance().languages.contains(&runtime.language.name));
    let runtime = runtime.ok_or_else(|| draft.unknown_runtime())?;
    Ok((runtime, draft.job(runtime, &caller.allowance().ceilings)?))
}

/// How a stage ended.
pub(super) fn ending(outcome: Outcome) -> Ending {
    let killed = || Ending { code: None, signal: Some("SIGKILL".to_owned()) };
    match outcome {
        Outcome::Exited(code) => Ending { code: Some(code), signal: None },
        Outcome::Signaled(signal) => Ending { code: None, signal: Some(signals::name(signal)) },
        Outcome::TimedOut(_) | Outcome::OutOfMemory | Outcome::Cancelled(_) => killed(),
        Outcome::Denied => Ending { code: Some(outcome.exit_code()), signal: None },
    }
}

/// Reads a request. Clients that announce no JSON, or plain text, and send JSON are understood; Piston's own client for
/// Node.js is one of them.
fn read(headers: &HeaderMap, body: &Bytes) -> Result<Asked, PistonRefusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let announced = kind.starts_with("application/json");
    match serde_json::from_slice(body) {
        Ok(asked) if announced || kind.is_empty() || kind.starts_with("text/plain") => Ok(asked),
        Err(fault) if announced => Err(PistonRefusal::bad(format!("the request cannot be read: {fault}"))),
        Ok(_) | Err(_) => {
            let message = "requests must be of type application/json".to_owned();
            Err(PistonRefusal { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message, retry_after: None })
        }
    }
}

impl Executed {
    /// Where nothing was run, because the code does not compile, both stages are told alike.
    fn new(runtime: Runtime, report: &Report, written: &Written) -> Executed {
        let compile = report.compile.as_ref().map(|compiler| {
            let Compilation { outcome, stdout, stderr, usage, .. } = compiler;
            StageTold::new(*outcome, (stdout, stderr), &written.compile, *usage)
        });
        let Report { outcome, stdout, stderr, usage, .. } = report;
        let run = match (&compile, report.stage) {
            (Some(compile), Stage::Compile) => compile.clone(),
            _ => StageTold::new(*outcome, (stdout, stderr), &written.run, *usage),
        };
        let (language, version) = (name_of(runtime.language), runtime.version.to_string());
        Executed { compile, run, language, version }
    }
}

impl StageTold {
    fn new(
        outcome: Outcome,
        (stdout, stderr): (&Captured, &Captured),
        output: &[u8],
        usage: Usage,
    ) -> StageTold {
        let (status, message) = verdict(outcome, stdout, stderr);
        StageTold {
            ending: ending(outcome),
            stdout: to_text(stdout),
            stderr: to_text(stderr),
            output: String::from_utf8_lossy(output).into_owned(),
            memory: Some(usage.memory_peak),
            message,
            status,
            cpu_time: Some(millis(usage.cpu)),
            wall_time: Some(millis(usage.wall)),
        }
    }
}

/// Piston's status, and what it says of it. Output beyond the limit is dropped here and does not end the program, so
/// that a code and a signal are the program's own also where the status is OL or EL.
fn verdict(outcome: Outcome, stdout: &Captured, stderr: &Captured) -> (Option<&'static str>, Option<String>) {
    let said = |status, message: String| (Some(status), Some(message));
    match outcome {
        Outcome::TimedOut(TimeLimit::Cpu(_)) => said("TO", "Time limit exceeded".to_owned()),
        Outcome::TimedOut(TimeLimit::Wall(_)) => said("TO", "Time limit exceeded (wall clock)".to_owned()),
        Outcome::Cancelled(_) => said("XX", "The run was cancelled".to_owned()),
        Outcome::OutOfMemory => said("SG", "Memory limit exceeded".to_owned()),
        Outcome::Denied => said("XX", to_text(stderr).trim_end().to_owned()),
        _ if stdout.truncated() => said("OL", "stdout length exceeded".to_owned()),
        _ if stderr.truncated() => said("EL", "stderr length exceeded".to_owned()),
        Outcome::Signaled(signal) => said("SG", format!("Caught fatal signal {signal}")),
        Outcome::Exited(0) => (None, None),
        Outcome::Exited(code) => said("RE", format!("Exited with error status {code}")),
    }
}
