//! Version 2 of Piston's API, under `/api/v2`: <https://github.com/engineer-man/piston/blob/master/docs/api-v2.md>.

mod connect;
mod execute;
mod job;
mod packages;
mod runtimes;
mod signals;
mod version;

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use belljar_wire::Problem;
use serde::Serialize;

use crate::bodies::is_affordable;
use crate::http::App;

/// What is mounted.
pub(super) fn router(app: &App) -> Router {
    let routes = Router::new()
        .route("/runtimes", get(runtimes::list))
        .route("/execute", post(execute::execute))
        .route("/connect", any(connect::connect))
        .route("/packages", get(packages::list).post(packages::install).delete(packages::uninstall));
    Router::new().nest("/api/v2", routes.with_state(app.clone()))
}

/// Whether a body of `/execute` says which job it wants.
pub(crate) fn understands(body: &[u8]) -> bool {
    is_affordable(body) && serde_json::from_slice::<job::Asked>(body).is_ok_and(|asked| asked.draft().is_ok())
}

/// Whether a message of `/connect` can be read.
pub(crate) fn understands_message(body: &[u8]) -> bool {
    str::from_utf8(body).is_ok_and(connect::understands)
}

/// A refusal in Piston's words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PistonRefusal {
    status: StatusCode,
    message: String,
    retry_after: Option<Duration>,
}

impl PistonRefusal {
    /// A request that is not what it should be.
    fn bad(message: impl Into<String>) -> PistonRefusal {
        PistonRefusal { status: StatusCode::BAD_REQUEST, message: message.into(), retry_after: None }
    }
}

impl From<Problem> for PistonRefusal {
    fn from(problem: Problem) -> PistonRefusal {
        let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        PistonRefusal { status, message: problem.error.message, retry_after: problem.retry_after }
    }
}

impl IntoResponse for PistonRefusal {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            message: String,
        }
        let mut response = (self.status, Json(Body { message: self.message })).into_response();
        if let Some(after) = self.retry_after {
            let seconds = HeaderValue::from(after.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
