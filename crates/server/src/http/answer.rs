//! An answer of unknown size: its text counts as memory until the last byte of it has been sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};
use serde::Serialize;

use super::App;
use super::body::{Memory, Share};
use crate::runs::Finished;

/// What is rendered at once; more than that would keep other requests waiting.
const SMALL: usize = 1536 << 10;

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
) -> Result<Response, Problem> {
    let bytes = finished.rendered_bytes();
    counted(&app.memory, bytes, patience, move || finished.result()).await
}

/// Answers with what takes so many bytes at most to render, if there is memory for it.
///
/// # Errors
/// That there is none.
pub(crate) async fn counted<T: Serialize>(
    memory: &Memory,
    bytes: usize,
    patience: Duration,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, Problem> {
    let bytes = counted_text(memory, bytes, patience, move || json(&make())).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response())
}

/// Text that takes so many bytes at most to render, if there is memory for it.
///
/// # Errors
/// That there is none.
pub(super) async fn counted_text(
    memory: &Memory,
    bytes: usize,
    patience: Duration,
    make: impl FnOnce() -> String + Send + 'static,
) -> Result<Bytes, Problem> {
    let mut share = memory.share_within(bytes, patience).await?;
    let mut text = elsewhere(bytes, make).await?;
    text.shrink_to_fit();
    share.shrink_to(text.len());
    // The share goes with the bytes: the connection holds them longer than it holds the body.
    Ok(Bytes::from_owner(Counted { text, _share: share }))
}

/// An answer in one line. None of the types has a `Serialize` that can fail.
pub(super) fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}

/// Renders what takes so many bytes, if they are many on a thread of its own.
///
/// # Errors
/// That rendering failed, which is a bug.
pub(crate) async fn elsewhere<T: Send + 'static>(
    bytes: usize,
    render: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    if bytes <= SMALL {
        return Ok(render());
    }
    tokio::task::spawn_blocking(render).await.map_err(|_| not_rendered())
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn not_rendered() -> Problem {
    let message = "the result cannot be written as JSON";
    Problem::new(Code::Internal, message, "this is a bug in Belljar; see the server's log")
}
