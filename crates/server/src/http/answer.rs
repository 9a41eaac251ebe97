//! The result of a run as an answer: its text counts as memory until the last byte of it has been sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};

use super::body::Share;
use super::{App, Refused};
use crate::runs::Finished;

/// How long a run that has ended waits for the memory that its answer takes. Whoever only asks for a result again can
/// just as well ask again.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// What a byte of output can become in JSON, if it is one that has to be escaped.
const ESCAPED: usize = 6;
/// What is rendered at once; more than that would keep other requests waiting.
const SMALL: usize = 256 << 10;

/// A text in memory that is counted.
struct Counted {
    text: String,
    _share: Share,
}

/// Answers with a result, if there is memory for it.
///
/// # Errors
/// That there is none.
pub(super) async fn result(
    app: &App,
    finished: Arc<Finished>,
    patience: Duration,
) -> Result<Response, Refused> {
    let mut share = room(app, &finished, patience).await?;
    let mut text = elsewhere(finished, json).await?;
    text.shrink_to_fit();
    share.shrink_to(text.len());
    // The share goes with the bytes: the connection holds them longer than it holds the body.
    let bytes = Bytes::from_owner(Counted { text, _share: share });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response())
}

/// Memory for a result that is to be rendered.
///
/// # Errors
/// That there is none.
pub(super) async fn room(app: &App, finished: &Finished, patience: Duration) -> Result<Share, Problem> {
    Share::within(app, finished.bytes().saturating_mul(ESCAPED), patience).await
}

/// A result in one line. None of its types has a `Serialize` that can fail.
pub(super) fn json(finished: &Finished) -> String {
    serde_json::to_string(&finished.result()).unwrap_or_default()
}

/// Renders a result, a large one on a thread of its own.
///
/// # Errors
/// That rendering failed, which is a fault of ours.
pub(super) async fn elsewhere<T: Send + 'static>(
    finished: Arc<Finished>,
    render: impl FnOnce(&Finished) -> T + Send + 'static,
) -> Result<T, Problem> {
    if finished.bytes() <= SMALL {
        return Ok(render(&finished));
    }
    tokio::task::spawn_blocking(move || render(&finished)).await.map_err(|_| not_rendered())
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn not_rendered() -> Problem {
    let message = "the result cannot be written as JSON";
    Problem::new(Code::Internal, message, "this is a fault of Belljar's own; see its log")
}
