//! A problem as a response: the error object, its status, and the headers that go with it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem, Surface};

/// A problem that answers a request.
#[derive(Debug)]
pub struct Refused(pub Problem);

impl<P: Into<Problem>> From<P> for Refused {
    fn from(problem: P) -> Refused {
        Refused(problem.into())
    }
}

/// A problem for which HTTP has a status of its own that the contract's codes do not tell apart.
pub(super) fn with_status(status: StatusCode, problem: &Problem) -> Response {
    (status, Json(problem)).into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(problem) = self;
        let problem = problem.over(Surface::Http);
        let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = with_status(status, &problem);
        let headers = response.headers_mut();
        if let Some(after) = problem.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if problem.error.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
