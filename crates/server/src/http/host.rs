//! What this server can do, and how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderName, Uri, header};
use axum::{Extension, Json};
use belljar_core::language::Language;
use belljar_core::request::BackendChoice;
use belljar_wire::{Backends, Code, Languages, Pool, Problem, destination};
use serde::Serialize;
use tokio::sync::Mutex;

use super::query::Query;
use super::{App, Refused, describe};
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
        let may_use = |name: &str| Language::by_name(name).is_some_and(|known| allowed.contains(&known.name));
        known.languages.retain(|language| may_use(&language.name));
        Ok(known)
    }

    /// The runtimes of the backend. A caller that comes while another asks waits for the same answer.
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

/// That the server is well.
#[derive(Debug, Serialize, describe::ToSchema)]
pub(super) struct Health {
    /// `ok` if the server answers, `ready` if it would accept a run.
    status: &'static str,
}

/// List languages
///
/// The languages that the caller may use, what runs each, and how to install what is missing.
#[describe::path(
    get, path = "/v1/languages", tag = "server", operation_id = "listLanguages",
    params(("backend" = Option<belljar_wire::BackendChoiceName>, Query, description = "The backend to ask, instead of the default one", example = "native")),
    responses(
        (status = 200, description = "The languages", body = Languages),
        (status = 400, description = "There is no backend or no parameter of that name", body = Problem),
        (status = 403, description = "The Host or Origin is not allowed, or the caller may not use that backend", body = Problem),
        (status = 500, description = "Belljar failed", body = Problem),
        (status = 503, description = "The backend is not available", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn languages(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Languages>, Refused> {
    let of = Query::of(&uri).backend()?.unwrap_or_else(|| caller.defaults().backend());
    Ok(Json(app.languages.of(&app.runs, &caller, of).await?))
}

/// List backends
///
/// The backends of the server, and what each can guarantee on its host.
#[describe::path(
    get, path = "/v1/backends", tag = "server", operation_id = "listBackends",
    responses(
        (status = 200, description = "The backends", body = Backends),
        (status = 500, description = "Belljar failed", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn backends(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Backends>, Refused> {
    // A backend may have to ask a daemon, which takes time.
    let asking = tokio::task::spawn_blocking(move || for_requests_of(&app, &caller));
    Ok(Json(asking.await.map_err(|_| lost())?))
}

/// Show the warm pool
///
/// The sandboxes that are ready for a run, by language.
#[describe::path(
    get, path = "/v1/pool", tag = "server", operation_id = "showPool",
    responses(
        (status = 200, description = "The warm pool", body = Pool),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn pool(State(app): State<App>) -> Json<Pool> {
    Json(Pool::of(app.runs.engine()))
}

/// Check that the server answers
#[describe::path(get, path = "/healthz", tag = "server", operation_id = "health", security(()),
    responses((status = 200, description = "It answers", body = Health)))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Check that the server would accept a run
///
/// For load balancers: ready if a run of at least one caller would be accepted.
#[describe::path(get, path = "/readyz", tag = "server", operation_id = "readiness", security(()),
    responses(
        (status = 200, description = "It would", body = Health),
        (status = 503, description = "No backend is available, or the server is shutting down", body = Problem),
    ))]
pub(super) async fn readiness(State(app): State<App>) -> Result<Json<Health>, Refused> {
    if *app.draining.borrow() {
        let message = "the server is shutting down";
        return Err(Problem::new(
            Code::BackendUnavailable,
            message,
            "use another server, or try again later",
        )
        .into());
    }
    let mut last = None;
    for caller in app.callers().all() {
        let defaults = caller.defaults();
        match destination(app.runs.engine(), defaults.backend(), &defaults.waived()) {
            Ok(_) => return Ok(Json(Health { status: "ready" })),
            Err(problem) => last = Some(problem),
        }
    }
    let problem = last.unwrap_or_else(lost);
    let error = belljar_wire::Fault { code: Code::BackendUnavailable, ..problem.error };
    Err(Problem { error, ..problem }.into())
}

/// Get metrics
///
/// Counters and gauges in the OpenMetrics text format, for Prometheus.
#[describe::path(
    get, path = "/metrics", tag = "server", operation_id = "metrics",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text"),
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
