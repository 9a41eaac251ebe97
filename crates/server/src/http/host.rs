//! What this server can do, and how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use belljar_core::request::BackendChoice;
use belljar_wire::{Backends, Code, Languages, Problem};
use serde::Serialize;
use tokio::sync::Mutex;

use super::{App, Refused};

/// For how long an answer about languages is good: a caller that asks often must not make interpreters start often.
const FRESH: Duration = Duration::from_secs(10);

/// The last answer about languages.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastAnswer(Arc<Mutex<Option<(Instant, Languages)>>>);

/// In one word.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    status: &'static str,
}

pub(super) async fn languages(State(app): State<App>) -> Result<Json<Languages>, Refused> {
    // Whoever comes while one asks waits for that one's answer.
    let mut last = app.languages.0.lock().await;
    if let Some((_, answer)) = last.as_ref().filter(|(asked, _)| asked.elapsed() < FRESH) {
        return Ok(Json(answer.clone()));
    }
    let runs = app.runs.clone();
    let asking = tokio::task::spawn_blocking(move || Languages::of(runs.engine(), BackendChoice::Auto));
    let answer = asking.await.map_err(|_| lost())??;
    *last = Some((Instant::now(), answer.clone()));
    Ok(Json(answer))
}

pub(super) async fn backends(State(app): State<App>) -> Json<Backends> {
    Json(Backends::of(app.runs.engine(), BackendChoice::Auto, &[]))
}

/// That the server answers.
pub(super) async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// That a run would be taken.
pub(super) async fn readiness(State(app): State<App>) -> Result<Json<Status>, Refused> {
    if *app.draining.borrow() {
        let message = "the server is shutting down";
        return Err(Problem::new(Code::BackendUnavailable, message, "ask another, or later").into());
    }
    match Backends::of(app.runs.engine(), BackendChoice::Auto, &[]).problem {
        None => Ok(Json(Status { status: "ready" })),
        Some(problem) => {
            let error = belljar_wire::Fault { code: Code::BackendUnavailable, ..problem.error };
            Err(Problem { error, ..problem }.into())
        }
    }
}

fn lost() -> Problem {
    Problem::new(Code::Internal, "the backend gave no answer", "see the server's log")
}
