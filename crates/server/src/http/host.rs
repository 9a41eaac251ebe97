//! What this server can do, and how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderName, Uri, header};
use axum::{Extension, Json};
use belljar_core::request::BackendChoice;
use belljar_wire::{Backends, Code, Languages, Pool, Problem, destination};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::{App, Refused};
use crate::caller::Caller;
use crate::runs::Runs;

/// For how long an answer about languages is good: a caller that asks often must not make interpreters start often.
const FRESH: Duration = Duration::from_secs(10);

/// The last answer about languages of each backend that was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastAnswer(Arc<Mutex<Vec<Answer>>>);

#[derive(Debug)]
struct Answer {
    of: BackendChoice,
    asked: Instant,
    languages: Languages,
}

impl LastAnswer {
    /// The languages that the caller may use, and what would run them, as of a moment ago.
    ///
    /// # Errors
    /// That there is no backend, or that the question was lost.
    pub(crate) async fn get(&self, runs: &Runs, caller: &Caller) -> Result<Languages, Problem> {
        self.of(runs, caller, caller.defaults().backend()).await
    }

    /// The same of a backend that the caller may name.
    async fn of(&self, runs: &Runs, caller: &Caller, of: BackendChoice) -> Result<Languages, Problem> {
        caller.allowance().backend(of)?;
        let mut known = self.ask(runs, of).await?;
        let allowed = &caller.allowance().languages;
        known.languages.retain(|language| allowed.contains(&language.name));
        Ok(known)
    }

    /// What the backend says of its runtimes. Whoever comes while one asks waits for that one's answer.
    async fn ask(&self, runs: &Runs, of: BackendChoice) -> Result<Languages, Problem> {
        let mut last = self.0.lock().await;
        last.retain(|answer| answer.asked.elapsed() < FRESH);
        if let Some(answer) = last.iter().find(|answer| answer.of == of) {
            return Ok(answer.languages.clone());
        }
        let runs = runs.clone();
        let asking = tokio::task::spawn_blocking(move || Languages::of(runs.engine(), of));
        let languages = asking.await.map_err(|_| lost())??;
        last.push(Answer { of, asked: Instant::now(), languages: languages.clone() });
        Ok(languages)
    }
}

/// In one word.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Status {
    status: &'static str,
}

/// Every language that the caller may use, what would run it, and how to get what is missing
#[utoipa::path(
    get, path = "/v1/languages", tag = "host", operation_id = "listLanguages",
    params(("backend" = Option<String>, Query, description = "The backend that is meant, instead of the one that a run would go to")),
    responses(
        (status = 200, description = "All of them", body = Languages),
        (status = 400, description = "There is no backend of that name", body = Problem),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin, or a backend that is not for this caller", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed", body = Problem),
        (status = 503, description = "There is no backend", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn languages(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Languages>, Refused> {
    let of = named_backend(&uri)?.unwrap_or_else(|| caller.defaults().backend());
    Ok(Json(app.languages.of(&app.runs, &caller, of).await?))
}

/// `?backend=NAME`. The names are plain words, so that nothing has to be unescaped.
fn named_backend(uri: &Uri) -> Result<Option<BackendChoice>, Problem> {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    let named = pairs.find_map(|pair| pair.strip_prefix("backend="));
    Ok(named.map(BackendChoice::parse).transpose()?)
}

/// Every backend and what it can guarantee
#[utoipa::path(
    get, path = "/v1/backends", tag = "host", operation_id = "listBackends",
    responses(
        (status = 200, description = "All of them", body = Backends),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn backends(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Backends>, Refused> {
    // Each of them may have to ask somebody else how it is.
    let asking = tokio::task::spawn_blocking(move || for_requests_of(&app, &caller));
    Ok(Json(asking.await.map_err(|_| lost())?))
}

/// The boxes that wait for a run
#[utoipa::path(
    get, path = "/v1/pool", tag = "host", operation_id = "showPool",
    responses(
        (status = 200, description = "How many of each language, and how they are used", body = Pool),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn pool(State(app): State<App>) -> Json<Pool> {
    Json(Pool::of(app.runs.engine()))
}

/// That the server answers
#[utoipa::path(get, path = "/healthz", tag = "host", operation_id = "health", security(()),
    responses((status = 200, description = "It does", body = Status)))]
pub(super) async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// That a run would be taken, of one caller at least
#[utoipa::path(get, path = "/readyz", tag = "host", operation_id = "readiness", security(()),
    responses(
        (status = 200, description = "It would", body = Status),
        (status = 503, description = "No backend can, or the server is shutting down", body = Problem),
    ))]
pub(super) async fn readiness(State(app): State<App>) -> Result<Json<Status>, Refused> {
    if *app.draining.borrow() {
        let message = "the server is shutting down";
        return Err(Problem::new(Code::BackendUnavailable, message, "ask another, or later").into());
    }
    let mut last = None;
    for caller in app.callers().all() {
        let defaults = caller.defaults();
        match destination(app.runs.engine(), defaults.backend(), &defaults.waived()) {
            Ok(_) => return Ok(Json(Status { status: "ready" })),
            Err(problem) => last = Some(problem),
        }
    }
    let problem = last.unwrap_or_else(lost);
    let error = belljar_wire::Fault { code: Code::BackendUnavailable, ..problem.error };
    Err(Problem { error, ..problem }.into())
}

/// What was counted, for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "host", operation_id = "metrics",
    responses(
        (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn metrics(State(app): State<App>) -> ([(HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.runs.metrics().text(app.runs.engine()))
}

/// Every backend, as it is for requests of this caller's that say nothing of backends and guarantees.
fn for_requests_of(app: &App, caller: &Caller) -> Backends {
    let defaults = caller.defaults();
    Backends::of(app.runs.engine(), defaults.backend(), &defaults.waived())
}

fn lost() -> Problem {
    Problem::new(Code::Internal, "the backend gave no answer", "see the server's log")
}
