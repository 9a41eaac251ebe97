//! What is no MCP, refused in the words of MCP: an error of JSON-RPC. The library that speaks the protocol refuses in
//! plain text whatever it cannot take for a message.

use axum::Json;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};
use rmcp::model::{ErrorData, JsonRpcError, RequestId};
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;

/// The longest name that a client gives to something, such as a request or its progress, in bytes of JSON.
pub(super) const MAX_NAME: usize = 256;
/// The most of a plain text that is read; those of the library are short.
const MAX_TEXT: usize = 4096;

/// The answer to a body that is no JSON; none to one that is.
pub(super) fn no_json(body: &[u8]) -> Option<Response> {
    let read: Result<IgnoredAny, _> = serde_json::from_slice(body);
    let fault = read.err()?;
    let error = ErrorData::parse_error(format!("the body is no JSON: {fault}"), None);
    Some(answer(StatusCode::BAD_REQUEST, None, error))
}

/// The answer to a request that is called something longer than anybody needs.
pub(super) fn long_name() -> Response {
    let message = format!("an id, a method, a version or a progress token has at most {MAX_NAME} bytes");
    answer(StatusCode::BAD_REQUEST, None, ErrorData::invalid_request(message, None))
}

/// The answer to JSON that is no message.
pub(super) fn no_message() -> Response {
    let message = "the body is no message of JSON-RPC: an object that has each name once";
    answer(StatusCode::BAD_REQUEST, None, ErrorData::invalid_request(message, None))
}

/// A problem of this server's own.
pub(super) fn problem(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (message, data) = (problem.error.message.clone(), Some(json!(problem.error)));
    let error = if problem.error.code == Code::Internal {
        ErrorData::internal_error(message, data)
    } else {
        ErrorData::invalid_request(message, data)
    };
    let mut response = answer(status, None, error);
    if let Some(after) = problem.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
    }
    response
}

/// The library's answer, where it is a refusal in plain text as an error of JSON-RPC.
pub(super) async fn worded(response: Response, asked: &Parts, id: Option<RequestId>) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || is_json(response.headers()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let text = axum::body::to_bytes(body, MAX_TEXT).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    // What was announced as JSON and is, but no message, is not of an unsupported type.
    let no_message = status == StatusCode::UNSUPPORTED_MEDIA_TYPE && is_json(&asked.headers);
    let (status, error) = match status {
        _ if no_message => (StatusCode::BAD_REQUEST, ErrorData::invalid_request(text, None)),
        status if status.is_server_error() => (status, ErrorData::internal_error(text, None)),
        status => (status, ErrorData::invalid_request(text, None)),
    };
    let mut response = answer(status, id, error);
    if let Some(allow) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow.clone());
    }
    response
}

/// The id of a request, if it is one that can be answered to.
pub(super) fn id_of(id: Option<&RawValue>) -> Option<RequestId> {
    id.and_then(|id| serde_json::from_str(id.get()).ok())
}

fn answer(status: StatusCode, id: Option<RequestId>, error: ErrorData) -> Response {
    (status, Json(JsonRpcError::new(id, error))).into_response().map(Body::new)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}
