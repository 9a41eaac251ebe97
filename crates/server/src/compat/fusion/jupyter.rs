//! `POST /run_jupyter`: the cells of a notebook, in one process of one run.
//!
//! There is no kernel. `jupyter.py` is the program of the run; it gets the cells on standard input and writes down what
//! each came to, into a file that is brought back. That file is of the cells' making as much as everything else in the
//! box: it is read as hostile, and can only be wrong about itself.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_core::allowance::Ceilings;
use belljar_core::outcome::{CollectedFile, Outcome, Report};
use belljar_engine::RunId;
use belljar_wire::{Input, Limits, Local, Problem, RunRequest};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::code::{conduct, unrun};
use super::files::{self, Fetch};
use super::invalid::{self, Fault};
use super::result::{Command, Status};
use super::{FusionRefusal, is_everyones};
use crate::caller::Caller;
use crate::compat::shallow::{Entries, Items, Shallow};
use crate::compat::time::{LONGEST, millis, unless_less};
use crate::http::App;
use crate::http::answer;
use crate::http::body::{self, Received};
use crate::runs::PATIENCE;

/// The program of the run.
const DRIVER: &str = include_str!("jupyter.py");
/// What all cells together may take if the client does not say.
const DEFAULT_TIME: Duration = Duration::from_secs(45);
/// How much of each stream is kept of each cell.
const OUTPUT_LIMIT: usize = 1 << 20;
/// The most that the results of all cells may come to.
const MAX_RESULTS: usize = 16 << 20;

/// A request as JSON has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(non_snake_case, reason = "the field is called so")]
struct Asked {
    cells: Items<Shallow>,
    cell_timeout: Shallow,
    total_timeout: Shallow,
    memory_limit_MB: Shallow,
    kernel: Shallow,
    files: Entries<Shallow>,
    fetch_files: Items<Shallow>,
}

/// A request that can be run.
struct Job {
    request: RunRequest,
    local: Local,
    fetch: Fetch,
    results: String,
    cells: Vec<String>,
}

/// What the program is told.
#[derive(Debug, Serialize)]
struct CellsToRun<'a> {
    cells: &'a [String],
    /// In seconds; 0 is no limit.
    cell_timeout: f64,
    output_limit: usize,
    results: &'a str,
}

/// What the program wrote down.
#[derive(Debug, Default, Deserialize)]
struct Results {
    cells: Vec<Cell>,
    /// Whether a cell took too long, and the others were left.
    stopped: bool,
}

/// What a cell came to. What it displayed and how it failed is passed on as it is, but for its shape.
#[derive(Debug, Deserialize, Serialize)]
struct Cell {
    stdout: String,
    stderr: String,
    display: Box<RawValue>,
    error: Box<RawValue>,
}

/// What it came to.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    status: Status,
    message: String,
    driver: Option<Command>,
    cells: Vec<Cell>,
    executor_pod_name: Option<String>,
    files: BTreeMap<String, String>,
}

/// `POST /run_jupyter`.
pub(super) async fn run_jupyter(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, FusionRefusal> {
    let app = app.of(&caller);
    let received = body::receive(&app, body).await?;
    let asked: Asked = serde_json::from_slice(&received.bytes).map_err(|fault| Fault::not_json(&fault))?;
    match run(&app, &caller, asked.job(&caller.allowance().ceilings)?, received).await {
        Err(problem) if is_everyones(&problem) => Err(problem.into()),
        Err(problem) => Ok(Json(Answer::error(problem.error.message)).into_response()),
        Ok(answer) => Ok(answer),
    }
}

/// Whether a body says what is to be run.
pub(super) fn understands(body: &[u8]) -> bool {
    serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.job(&Ceilings::default()).is_ok())
}

/// The body is kept until the run has ended: what was read from it is as large.
async fn run(app: &App, caller: &Caller, job: Job, received: Received) -> Result<Response, Problem> {
    let Job { request, local, fetch, results, cells } = job;
    let count = cells.len();
    let caller = caller.clone().writing(cells.into());
    let finished = conduct(app, &caller, request, local).await?;
    drop(received);
    let bytes = finished.rendered_bytes().saturating_mul(fetch.copies().max(1));
    let make = move || Answer::new(&finished.report, &fetch, &results, count);
    answer::counted(&app.memory, bytes, PATIENCE, make).await
}

impl Asked {
    fn job(self, ceilings: &Ceilings) -> Result<Job, Fault> {
        let cells = invalid::texts("cells", self.cells)?.ok_or_else(|| invalid::missing("cells"))?;
        kernel(self.kernel)?;
        let default = unless_less(DEFAULT_TIME, ceilings);
        let time =
            invalid::seconds("total_timeout", &self.total_timeout, ceilings.timeout)?.unwrap_or(default);
        let memory_bytes = invalid::megabytes("memory_limit_MB", &self.memory_limit_MB, ceilings)?;
        let fetch = Fetch::new(invalid::texts("fetch_files", self.fetch_files)?.unwrap_or_default())?;
        // No cell can have guessed it before it runs.
        let results = results_name(&cells);
        let order = CellsToRun {
            cells: &cells,
            cell_timeout: cell_timeout(&self.cell_timeout)?,
            output_limit: OUTPUT_LIMIT,
            results: &results,
        };
        let request = RunRequest {
            language: "python".to_owned(),
            code: DRIVER.to_owned(),
            stdin: serde_json::to_string(&order).ok().map(Input::One),
            limits: Limits { timeout_ms: Some(millis(time)), memory_bytes, ..Limits::default() },
            ..RunRequest::default()
        };
        let collect = fetch.patterns().into_iter().chain([files::literally(&results)]).collect();
        let local = Local { files: files::given(self.files)?, collect, ..Local::default() };
        Ok(Job { request, local, fetch, results, cells })
    }
}

/// A name that nobody can know who has not run these cells, and that is the same for the same cells: to a person who approves
/// them, they are the same run.
fn results_name(cells: &[String]) -> String {
    static SECRET: LazyLock<RunId> = LazyLock::new(RunId::new);
    let mut digest = Sha256::new();
    digest.update(SECRET.as_str());
    for cell in cells {
        digest.update((cell.len() as u64).to_le_bytes());
        digest.update(cell);
    }
    let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!(".run_{name}.json")
}

fn kernel(field: Shallow) -> Result<(), Fault> {
    match invalid::optional_text("kernel", field)?.as_deref() {
        None | Some("python3") => Ok(()),
        Some(_) => Err(Fault::at(&["kernel"], "literal_error", "Input should be 'python3'")),
    }
}

/// In seconds; no time is no limit. The time for all cells bounds it anyway.
fn cell_timeout(field: &Shallow) -> Result<f64, Fault> {
    let seconds = invalid::number("cell_timeout", field)?.unwrap_or(0.0);
    if seconds.is_nan() || seconds < 0.0 {
        let message = "Input should be greater than or equal to 0";
        return Err(Fault::at(&["cell_timeout"], "greater_than_equal", message));
    }
    Ok(seconds.min(LONGEST.as_secs_f64()))
}

impl Results {
    /// What the program wrote down, if it still means something.
    fn find(files: &[CollectedFile], name: &str) -> Result<Results, String> {
        let file = files.iter().find(|file| file.path == name);
        let file = file.ok_or("no results were brought back")?;
        if file.content.len() > MAX_RESULTS {
            return Err(format!("the results of the cells have more than {MAX_RESULTS} bytes"));
        }
        let results: Option<Results> = serde_json::from_slice(&file.content).ok();
        results
            .filter(Results::are_shaped)
            .ok_or_else(|| "the results of the cells cannot be read".to_owned())
    }

    fn are_shaped(&self) -> bool {
        self.cells.iter().all(|cell| is_list_of_objects(&cell.display) && is_list_of_objects(&cell.error))
    }
}

fn is_list_of_objects(json: &RawValue) -> bool {
    let items: Result<Items<Shallow>, _> = serde_json::from_str(json.get());
    matches!(items, Ok(Items::List(items)) if items.iter().all(|item| *item == Shallow::Object))
}

impl Answer {
    /// Of so many cells, whose results are in that file.
    fn new(report: &Report, fetch: &Fetch, results: &str, cells: usize) -> Answer {
        if let Some(why) = unrun(report) {
            return Answer::error(why);
        }
        let files = report.files.as_deref().unwrap_or_default();
        let (read, message) = match Results::find(files, results) {
            Ok(read) => (read, String::new()),
            Err(message) => (Results::default(), message),
        };
        // A cell may end the program as if all were well.
        let whole = read.cells.len() == cells && !read.stopped && report.outcome == Outcome::Exited(0);
        Answer {
            status: if whole { Status::Success } else { Status::Failed },
            message,
            driver: Some(Command::of_program(report)),
            cells: read.cells,
            executor_pod_name: None,
            files: fetch.fetched(files),
        }
    }

    fn error(message: String) -> Answer {
        Answer {
            status: Status::SandboxError,
            message,
            driver: None,
            cells: Vec::new(),
            executor_pod_name: None,
            files: BTreeMap::new(),
        }
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
    fn a_field_is_refused_as_fastapi_does() {
        assert_eq!(fault("{}"), r#"{"type":"missing","loc":["body","cells"],"msg":"Field required"}"#);
        assert!(fault(r#"{"cells": "1"}"#).contains("list_type"));
        assert!(fault(r#"{"cells": [1]}"#).contains(r#""loc":["body","cells",0]"#));
        assert!(fault(r#"{"cells": [], "kernel": "bash"}"#).contains("Input should be 'python3'"));
        assert!(fault(r#"{"cells": [], "cell_timeout": -1}"#).contains("greater_than_equal"));
        assert!(fault(r#"{"cells": [], "total_timeout": 0}"#).contains("greater_than"));
    }

    #[test]
    fn results_are_read_as_hostile() {
        let find = |content: &str| {
            let file = CollectedFile { path: "r".into(), content: content.as_bytes().to_vec() };
            Results::find(&[file], "r").map(|results| results.cells.len())
        };
        let cell = |display: &str| {
            format!(
                r#"{{"stopped": false, "cells": [{{"stdout": "", "stderr": "", "display": {display}, "error": []}}]}}"#
            )
        };
        assert_eq!(find(&cell(r#"[{"text/plain": "1"}]"#)), Ok(1));
        for display in ["{}", "[1]", "null", "[[]]"] {
            assert_eq!(
                find(&cell(display)).unwrap_err(),
                "the results of the cells cannot be read",
                "{display}"
            );
        }
        assert!(find("[]").is_err() && find("").is_err() && find("{").is_err());
        assert!(find(&" ".repeat(MAX_RESULTS + 1)).unwrap_err().contains("more than"));
        assert_eq!(Results::find(&[], "r").unwrap_err(), "no results were brought back");
    }
}
