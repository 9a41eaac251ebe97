//! Scans of code that is not run.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_wire::{Problem, ScanRequest, ScanResult};

use super::body::{self, Received};
use super::query::Query;
use super::{App, Refused, describe};
use crate::caller::Caller;

/// Scan code
///
/// Looks for dangerous or suspicious things in code, without running it. A scan cannot tell everything that a
/// program will do; isolation does not depend on it.
#[describe::path(
    post, path = "/v1/scan", tag = "scan", operation_id = "scanCode",
    request_body(content = ScanRequest, content_type = "application/json", description = "The code to scan"),
    responses(
        (status = 200, description = "What was found", body = ScanResult),
        (status = 400, description = "The request is not valid; `field` says where", body = Problem),
        (status = 403, description = "The Host or Origin is not allowed, or the caller may not use that language", body = Problem),
        (status = 413, description = "The body or the code is too large", body = Problem),
        (status = 415, description = "The Content-Type is not application/json", body = Problem),
        (status = 500, description = "Belljar failed", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<ScanResult>, Response> {
    let (head, body) = request.into_parts();
    Query::of(&head.uri).none().map_err(|problem| Refused(problem).into_response())?;
    let received = body::read(&app, &head.headers, body).await?;
    scan(&app, &caller, &received).await.map(Json).map_err(|problem| Refused(problem).into_response())
}

async fn scan(app: &App, caller: &Caller, received: &Received) -> Result<ScanResult, Problem> {
    let subject = ScanRequest::parse(&received.bytes)?;
    caller.allowance().language(subject.language)?;
    // As many at a time as there are workers: the others wait here, where waiting costs no thread.
    let _turn = app.scans.acquire().await;
    let findings = app.runs.engine().scan(subject).await?;
    Ok(ScanResult::new(&findings))
}
