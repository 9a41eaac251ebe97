//! `POST /run_code`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_core::allowance::Ceilings;
use belljar_core::language::Language;
use belljar_core::outcome::{Outcome, Report};
use belljar_wire::{Input, Limits, Local, Problem, RunRequest};
use serde::{Deserialize, Serialize};

use super::files::{self, Fetch};
use super::invalid::{self, Fault};
use super::result::{Command, Commands, Status};
use super::{FusionRefusal, is_everyones, java};
use crate::caller::Caller;
use crate::compat::encoding::to_text;
use crate::compat::shallow::{Entries, Items, Shallow};
use crate::compat::time::{USUAL, millis, unless_less, usual_for_compiler};
use crate::http::App;
use crate::http::answer;
use crate::http::body::{self, Received};
use crate::runs::{Finished, PATIENCE};

/// Every language that their server knows, and ours for it if there is one.
const LANGUAGES: &[(&str, Option<&str>)] = &[
    ("python", Some("python")),
    ("cpp", Some("cpp")),
    ("nodejs", Some("javascript")),
    ("go", Some("go")),
    ("go_test", None),
    ("java", Some("java")),
    ("php", Some("php")),
    ("csharp", None),
    ("bash", Some("bash")),
    ("typescript", Some("typescript")),
    ("sql", None),
    ("rust", Some("rust")),
    ("cuda", None),
    ("lua", Some("lua")),
    ("R", Some("r")),
    ("perl", Some("perl")),
    ("D_ut", None),
    ("ruby", Some("ruby")),
    ("scala", None),
    ("julia", None),
    ("pytest", None),
    ("junit", None),
    ("kotlin_script", None),
    ("jest", None),
    ("verilog", None),
    ("python_gpu", None),
    ("lean", None),
    ("swift", None),
    ("racket", None),
];

/// A request as JSON has it. Fields that are not known are not looked at, as there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(non_snake_case, reason = "the field is called so")]
struct Asked {
    code: Shallow,
    language: Shallow,
    compile_timeout: Shallow,
    run_timeout: Shallow,
    memory_limit_MB: Shallow,
    stdin: Shallow,
    files: Entries<Shallow>,
    fetch_files: Items<Shallow>,
    args: Items<Shallow>,
}

/// A request that can be run.
struct Job {
    request: RunRequest,
    local: Local,
    fetch: Fetch,
}

/// What it came to.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    status: Status,
    message: String,
    compile_result: Option<Command>,
    run_result: Option<Command>,
    executor_pod_name: Option<String>,
    files: BTreeMap<String, String>,
}

/// `POST /run_code`.
pub(super) async fn run_code(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, FusionRefusal> {
    let app = app.of(&caller);
    let received = body::receive(&app, body).await?;
    let asked: Asked = serde_json::from_slice(&received.bytes).map_err(|fault| Fault::not_json(&fault))?;
    let answer = match asked.job(&caller.allowance().ceilings)? {
        Wanted::Here(job) => run(&app, &caller, *job, received).await,
        Wanted::Elsewhere(name) => return Ok(Json(Answer::unavailable(&name)).into_response()),
    };
    match answer {
        Err(problem) if is_everyones(&problem) => Err(problem.into()),
        Err(problem) => Ok(Json(Answer::error(problem.error.message)).into_response()),
        Ok(answer) => Ok(answer),
    }
}

/// Runs one request, whatever surface of SandboxFusion it came from.
pub(super) async fn conduct(
    app: &App,
    caller: &Caller,
    request: RunRequest,
    local: Local,
) -> Result<Arc<Finished>, Problem> {
    let run = app.runs.start_with(caller, request, local).await?;
    run.decided_within(app.config.approval_wait).await?;
    run.result().await
}

/// Whether a body says what is to be run.
pub(super) fn understands(body: &[u8]) -> bool {
    serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.job(&Ceilings::default()).is_ok())
}

/// The body is kept until the run has ended: what was read from it is as large.
async fn run(app: &App, caller: &Caller, job: Job, received: Received) -> Result<Response, Problem> {
    let Job { request, local, fetch } = job;
    let finished = conduct(app, caller, request, local).await?;
    drop(received);
    let bytes = finished.rendered_bytes().saturating_mul(fetch.copies().max(1));
    let make = move || Answer::new(&finished.report, &fetch);
    answer::counted(&app.memory, bytes, PATIENCE, make).await
}

/// Why it did not run, or not to its end, if somebody else than the code and its clocks saw to that.
pub(super) fn unrun(report: &Report) -> Option<String> {
    match report.outcome {
        Outcome::Cancelled(_) => Some("the run was cancelled".to_owned()),
        Outcome::Denied => Some(to_text(&report.stderr).trim_end().to_owned()),
        Outcome::Exited(_) | Outcome::Signaled(_) | Outcome::TimedOut(_) | Outcome::OutOfMemory => None,
    }
}

/// A request that is well-formed: for a language of ours, or for one of theirs alone.
enum Wanted {
    Here(Box<Job>),
    Elsewhere(String),
}

impl Asked {
    fn job(self, ceilings: &Ceilings) -> Result<Wanted, Fault> {
        let code = invalid::text("code", self.code)?;
        let (name, ours) = language(invalid::text("language", self.language)?)?;
        let (compile_most, run_most) = (ceilings.of_compile_timeout(), ceilings.timeout);
        let compile_time = invalid::seconds("compile_timeout", &self.compile_timeout, compile_most)?
            .unwrap_or_else(|| usual_for_compiler(ceilings));
        let run_time = invalid::seconds("run_timeout", &self.run_timeout, run_most)?
            .unwrap_or_else(|| unless_less(USUAL, ceilings));
        let memory_bytes = invalid::megabytes("memory_limit_MB", &self.memory_limit_MB, ceilings)?;
        let stdin = invalid::optional_text("stdin", self.stdin)?;
        let files = files::given(self.files)?;
        let fetch = Fetch::new(invalid::texts("fetch_files", self.fetch_files)?.unwrap_or_default())?;
        // Theirs go to pytest and to nothing else.
        invalid::texts("args", self.args)?;
        let Some(language) = ours else { return Ok(Wanted::Elsewhere(name)) };
        let limits = Limits {
            timeout_ms: Some(millis(run_time)),
            compile_timeout_ms: Some(millis(compile_time)),
            memory_bytes,
            ..Limits::default()
        };
        let request = RunRequest {
            language: language.name.to_owned(),
            code,
            env: if language.name == "java" { java::variables(&files) } else { BTreeMap::new() },
            stdin: stdin.map(Input::One),
            limits,
            ..RunRequest::default()
        };
        // They say nothing of files that are not there.
        let local = Local { files, collect: fetch.patterns(), ..Local::default() };
        Ok(Wanted::Here(Box::new(Job { request, local, fetch })))
    }
}

fn language(name: String) -> Result<(String, Option<Language>), Fault> {
    match LANGUAGES.iter().find(|(theirs, _)| *theirs == name) {
        Some((_, ours)) => Ok((name, ours.and_then(Language::by_name))),
        None => {
            let known: Vec<_> = LANGUAGES.iter().map(|(theirs, _)| format!("'{theirs}'")).collect();
            let message = format!("Input should be {}", known.join(", "));
            Err(Fault::at(&["language"], "literal_error", message))
        }
    }
}

impl Answer {
    fn new(report: &Report, fetch: &Fetch) -> Answer {
        if let Some(why) = unrun(report) {
            return Answer::error(why);
        }
        let commands = Commands::new(report);
        let commands = if report.language.name == "java" { java::told(commands) } else { commands };
        Answer {
            status: commands.status(),
            message: String::new(),
            compile_result: commands.compile,
            run_result: commands.run,
            executor_pod_name: None,
            files: fetch.fetched(report.files.as_deref().unwrap_or_default()),
        }
    }

    fn error(message: String) -> Answer {
        Answer {
            status: Status::SandboxError,
            message,
            compile_result: None,
            run_result: None,
            executor_pod_name: None,
            files: BTreeMap::new(),
        }
    }

    fn unavailable(name: &str) -> Answer {
        Answer::error(format!(
            "the language '{name}' is not available here; `belljar languages` lists what is"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> String {
        let asked: Asked = serde_json::from_str(json).unwrap();
        let Err(fault) = asked.job(&Ceilings::default()) else { panic!("{json} is accepted") };
        serde_json::to_string(&fault).unwrap()
    }

    #[test]
    fn every_language_that_has_one_of_ours_has_it() {
        for (_, ours) in LANGUAGES {
            assert!(ours.is_none_or(|ours| Language::by_name(ours).is_some()), "{ours:?}");
        }
    }

    #[test]
    fn a_field_is_refused_as_fastapi_does() {
        assert_eq!(fault("{}"), r#"{"type":"missing","loc":["body","code"],"msg":"Field required"}"#);
        let with = |field: &str| fault(&format!(r#"{{"code": "", "language": "python", {field}}}"#));
        assert!(with(r#""run_timeout": "soon""#).contains(r#""loc":["body","run_timeout"]"#));
        assert!(with(r#""memory_limit_MB": []"#).contains(r#""loc":["body","memory_limit_MB"]"#));
        assert!(with(r#""stdin": 1"#).contains("string_type"));
        assert!(with(r#""fetch_files": ["a", 1]"#).contains(r#""loc":["body","fetch_files",1]"#));
        assert!(with(r#""files": {"../x": ""}"#).contains(r#""loc":["body","files","../x"]"#));
        assert!(fault(r#"{"code": "", "language": "cobol"}"#).contains("Input should be 'python', 'cpp'"));
        assert!(fault(r#"{"code": 1, "language": "cpp"}"#).contains("string_type"));
    }
}
