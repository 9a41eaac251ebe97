//! SandboxFusion's API: <https://bytedance.github.io/SandboxFusion/>. Its datasets are not here; what runs code is.

mod code;
mod files;
mod invalid;
mod java;
mod jupyter;
mod result;

use axum::Json;
use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use belljar_wire::{Code, Problem};
use serde::Serialize;

use crate::bodies::is_affordable;
use crate::http::App;

/// What is mounted.
pub(super) fn router(app: &App) -> Router {
    Router::new()
        .route("/run_code", post(code::run_code))
        .route("/run_jupyter", post(jupyter::run_jupyter))
        .route("/v1/ping", get(ping))
        .with_state(app.clone())
}

/// Whether a body of `/run_code` says what is to be run.
pub(crate) fn understands_code(body: &[u8]) -> bool {
    is_affordable(body) && code::understands(body)
}

/// The same of `/run_jupyter`.
pub(crate) fn understands_cells(body: &[u8]) -> bool {
    is_affordable(body) && jupyter::understands(body)
}

/// `GET /v1/ping`: a string, in JSON.
async fn ping() -> Json<&'static str> {
    Json("pong")
}

/// An answer that is no result.
#[derive(Debug)]
enum FusionRefusal {
    /// The request is not what it should be.
    Invalid(Vec<invalid::Fault>),
    /// It cannot even be looked at now: too large, or too much at once.
    Problem(Problem),
}

impl From<invalid::Fault> for FusionRefusal {
    fn from(fault: invalid::Fault) -> FusionRefusal {
        FusionRefusal::Invalid(vec![fault])
    }
}

impl From<Problem> for FusionRefusal {
    fn from(problem: Problem) -> FusionRefusal {
        FusionRefusal::Problem(problem)
    }
}

impl IntoResponse for FusionRefusal {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<T> {
            detail: T,
        }
        let problem = match self {
            FusionRefusal::Invalid(detail) => {
                return (StatusCode::UNPROCESSABLE_ENTITY, Json(Body { detail })).into_response();
            }
            FusionRefusal::Problem(problem) => problem,
        };
        let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(Body { detail: problem.error.message })).into_response();
        if let Some(after) = problem.retry_after {
            let seconds = HeaderValue::from(after.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// Whether a problem is the server's state rather than this one run's: then HTTP says so, and a client may come again.
fn is_everyones(problem: &Problem) -> bool {
    matches!(problem.error.code, Code::Busy | Code::Unauthorized | Code::TooLarge)
}
