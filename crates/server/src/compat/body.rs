//! The body of a request: bounded in size and in time.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use belljar_wire::{Code, Problem};
use http_body_util::LengthLimitError;

use crate::http::App;

/// Reads all of it.
///
/// # Errors
/// That it is too large, too slow, or broken off.
pub(super) async fn read(app: &App, body: Body) -> Result<Bytes, Problem> {
    let (limit, patience) = (app.config.max_body, app.config.body_timeout);
    match tokio::time::timeout(patience, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(cause)) if is_too_large(&cause) => Err(too_large(limit)),
        Ok(Err(cause)) => {
            let message = format!("the body cannot be read: {cause}");
            Err(Problem::new(Code::InvalidRequest, message, "send it again"))
        }
        Err(_) => Err(too_slow(patience)),
    }
}

fn is_too_large(cause: &axum::Error) -> bool {
    std::error::Error::source(cause).is_some_and(|source| source.is::<LengthLimitError>())
}

fn too_large(limit: usize) -> Problem {
    let message = format!("the body has more than {limit} bytes");
    Problem::new(Code::TooLarge, message, "send less; the server's max-body sets the limit")
}

fn too_slow(patience: Duration) -> Problem {
    let message = format!("the body was not complete after {} s", patience.as_secs());
    Problem::new(Code::InvalidRequest, message, "send it faster, or less of it")
}
