//! Runs: started, looked up, cancelled.

use axum::body::Bytes;
use axum::extract::State;
use axum::{Extension, Json};
use belljar_wire::{RunRequest, RunResult};

use super::{App, Refused};
use crate::caller::Caller;

pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<RunResult>, Refused> {
    let request = RunRequest::from_json(&body)?;
    let run = app.runs.start(&caller, request).await?;
    Ok(Json(run.result().await?.result()))
}
