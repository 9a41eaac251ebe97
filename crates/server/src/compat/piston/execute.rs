//! `POST /api/v2/execute`, and a run in Piston's words.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use belljar_core::outcome::{Outcome, TimeLimit};
use serde::Serialize;

use super::job::{Asked, Job};
use super::runtimes::{self, Runtime, name_of};
use super::{Refusal, signals};
use crate::caller::Caller;
use crate::compat::encoding::to_text;
use crate::compat::staged::{Concluded, Stage, Staged, to_the_end};
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

/// One stage. Where compiling succeeded, what both stages used is known only together, and is not told of either.
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
) -> Result<Response, Refusal> {
    let app = app.of(&caller);
    let received = body::receive(&app, body).await?;
    let asked = read(&headers, &received.bytes)?;
    let (runtime, Job { request, local, clocks }) = prepare(&app, &caller, asked).await?;
    let run = app.runs.start_with(&caller, request, local).await?;
    let run = Staged::watch(run, runtime.language, clocks, &app.runs, &caller);
    let (concluded, output) = to_the_end(run).await?;
    drop(received);
    // What was written is told twice, as it came and by stream; what a compiler wrote, as that of both stages.
    let bytes =
        concluded.rendered_bytes().saturating_mul(if concluded.reached == Stage::Compile { 4 } else { 2 });
    let make = move || Executed::new(runtime, &concluded, &output);
    Ok(answer::counted(&app.memory, bytes, PATIENCE, make).await?)
}

/// The runtime that is meant, and the job for it.
pub(super) async fn prepare(app: &App, caller: &Caller, asked: Asked) -> Result<(Runtime, Job), Refusal> {
    let draft = asked.draft()?;
    let runtime = runtimes::find(&app.runs, caller, &draft.language, &draft.version).await?;
    let runtime = runtime.filter(|runtime| caller.allowance().languages.contains(&runtime.language.name));
    let runtime = runtime.ok_or_else(|| draft.unknown_runtime())?;
    Ok((runtime, draft.job(runtime, &caller.allowance().ceilings)?))
}

/// How a run ended.
pub(super) fn ending(concluded: &Concluded) -> Ending {
    let killed = || Ending { code: None, signal: Some("SIGKILL".to_owned()) };
    match concluded.report().outcome {
        Outcome::Exited(code) => Ending { code: Some(code), signal: None },
        Outcome::Signaled(signal) => Ending { code: None, signal: Some(signals::name(signal)) },
        Outcome::TimedOut(_) | Outcome::OutOfMemory | Outcome::Cancelled(_) => killed(),
    }
}

/// Reads a request. Clients that announce no JSON, or plain text, and send JSON are understood; Piston's own client for
/// Node.js is one of them.
fn read(headers: &HeaderMap, body: &Bytes) -> Result<Asked, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let announced = kind.starts_with("application/json");
    match serde_json::from_slice(body) {
        Ok(asked) if announced || kind.is_empty() || kind.starts_with("text/plain") => Ok(asked),
        Err(fault) if announced => Err(Refusal::bad(format!("the request cannot be read: {fault}"))),
        Ok(_) | Err(_) => {
            let message = "requests must be of type application/json".to_owned();
            Err(Refusal { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message, retry_after: None })
        }
    }
}

impl Executed {
    fn new(runtime: Runtime, concluded: &Concluded, output: &[u8]) -> Executed {
        let last = StageTold::new(concluded, output);
        let compile = match (concluded.reached, concluded.compiling) {
            (Stage::Compile, _) => Some(last.clone()),
            (Stage::Run, Some(time)) => Some(StageTold::compiled(time)),
            (Stage::Run, None) => None,
        };
        let (language, version) = (name_of(runtime.language), runtime.version.to_string());
        Executed { compile, run: last, language, version }
    }
}

impl StageTold {
    fn new(concluded: &Concluded, output: &[u8]) -> StageTold {
        let report = concluded.report();
        let alone = concluded.compiling.is_none();
        let (status, message) = verdict(concluded);
        StageTold {
            ending: ending(concluded),
            stdout: to_text(&report.stdout),
            stderr: to_text(&report.stderr),
            output: String::from_utf8_lossy(output).into_owned(),
            memory: alone.then_some(report.usage.memory_peak),
            message,
            status,
            cpu_time: alone.then(|| millis(report.usage.cpu)),
            wall_time: Some(millis(concluded.wall)),
        }
    }

    fn compiled(time: Duration) -> StageTold {
        StageTold { ending: Ending::SUCCESS, wall_time: Some(millis(time)), ..StageTold::default() }
    }
}

/// Piston's status, and what it says of it. Output beyond the limit is dropped here and does not end the program, so
/// that a code and a signal are the program's own also where the status is OL or EL.
fn verdict(concluded: &Concluded) -> (Option<&'static str>, Option<String>) {
    let report = concluded.report();
    let said = |status, message: String| (Some(status), Some(message));
    match report.outcome {
        Outcome::TimedOut(TimeLimit::Cpu(_)) => said("TO", "Time limit exceeded".to_owned()),
        Outcome::TimedOut(TimeLimit::Wall(_)) => said("TO", "Time limit exceeded (wall clock)".to_owned()),
        Outcome::Cancelled(_) if concluded.timed_out => {
            said("TO", "Time limit exceeded (wall clock)".to_owned())
        }
        Outcome::Cancelled(_) => said("XX", "The run was cancelled".to_owned()),
        Outcome::OutOfMemory => said("SG", "Memory limit exceeded".to_owned()),
        _ if report.stdout.truncated() => said("OL", "stdout length exceeded".to_owned()),
        _ if report.stderr.truncated() => said("EL", "stderr length exceeded".to_owned()),
        Outcome::Signaled(signal) => said("SG", format!("Caught fatal signal {signal}")),
        Outcome::Exited(0) => (None, None),
        Outcome::Exited(code) => said("RE", format!("Exited with error status {code}")),
    }
}
