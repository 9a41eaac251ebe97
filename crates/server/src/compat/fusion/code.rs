//! `POST /run_code`.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_core::allowance::Ceilings;
use belljar_core::language::Language;
use belljar_core::outcome::Outcome;
use belljar_wire::{Limits, Local, Problem, RunRequest};
use serde::{Deserialize, Serialize};

use super::files::{self, Fetch};
use super::invalid::{self, Fault};
use super::result::{Command, Commands, Status};
use super::{Refusal, is_everyones, java};
use crate::caller::Caller;
use crate::compat::shallow::{Entries, Items, Shallow};
use crate::compat::staged::{Clocks, Concluded, Staged, is_compiled, to_the_end};
use crate::compat::time::{USUAL, millis, unless_less};
use crate::http::App;
use crate::http::answer;
use crate::http::body::{self, Received};
use crate::runs::PATIENCE;

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
    language: Language,
    request: RunRequest,
    local: Local,
    clocks: Clocks,
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
) -> Result<Response, Refusal> {
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
    language: Language,
    request: RunRequest,
    local: Local,
    clocks: Clocks,
) -> Result<Concluded, Problem> {
    let run = app.runs.start_with(caller, request, local).await?;
    let run = Staged::watch(run, language, clocks, &app.runs, caller);
    Ok(to_the_end(run).await?.0)
}

/// Whether a body says what is to be run.
pub(super) fn understands(body: &[u8]) -> bool {
    serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.job(&Ceilings::default()).is_ok())
}

/// The body is kept until the run has ended: what was read from it is as large.
async fn run(app: &App, caller: &Caller, job: Job, received: Received) -> Result<Response, Problem> {
    let Job { language, request, local, clocks, fetch } = job;
    let concluded = conduct(app, caller, language, request, local, clocks).await?;
    drop(received);
    let bytes = concluded.rendered_bytes().saturating_mul(fetch.copies().max(1));
    let make = move || Answer::new(&concluded, &fetch);
    answer::counted(&app.memory, bytes, PATIENCE, make).await
}

/// Whether somebody else than the code and its clocks ended it.
pub(super) fn was_cancelled(concluded: &Concluded) -> bool {
    !concluded.timed_out && matches!(concluded.report().outcome, Outcome::Cancelled(_))
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
        let default = unless_less(USUAL, ceilings);
        let clocks = Clocks {
            compile: invalid::seconds("compile_timeout", &self.compile_timeout, ceilings)?.unwrap_or(default),
            run: invalid::seconds("run_timeout", &self.run_timeout, ceilings)?.unwrap_or(default),
        };
        let memory_bytes = invalid::megabytes("memory_limit_MB", &self.memory_limit_MB, ceilings)?;
        let stdin = invalid::optional_text("stdin", self.stdin)?;
        let files = files::given(self.files)?;
        let fetch = Fetch::new(invalid::texts("fetch_files", self.fetch_files)?.unwrap_or_default())?;
        // Theirs go to pytest and to nothing else.
        invalid::texts("args", self.args)?;
        let Some(language) = ours else { return Ok(Wanted::Elsewhere(name)) };
        let timeout_ms = millis(clocks.whole(is_compiled(language), ceilings.timeout));
        let request = RunRequest {
            language: language.name.to_owned(),
            code,
            env: if language.name == "java" { java::variables(&files) } else { BTreeMap::new() },
            stdin,
            limits: Limits { timeout_ms: Some(timeout_ms), memory_bytes, ..Limits::default() },
            ..RunRequest::default()
        };
        // They say nothing of files that are not there.
        let local = Local { files, collect: fetch.patterns(), ..Local::default() };
        Ok(Wanted::Here(Box::new(Job { language, request, local, clocks, fetch })))
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
    fn new(concluded: &Concluded, fetch: &Fetch) -> Answer {
        if was_cancelled(concluded) {
            return Answer::error("the run was cancelled".to_owned());
        }
        let commands = Commands::new(concluded);
        let commands =
            if concluded.report().language.name == "java" { java::told(commands) } else { commands };
        Answer {
            status: commands.status(),
            message: String::new(),
            compile_result: commands.compile,
            run_result: commands.run,
            executor_pod_name: None,
            files: fetch.fetched(concluded.report().files.as_deref().unwrap_or_default()),
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
