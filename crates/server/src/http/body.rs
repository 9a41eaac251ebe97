//! The body of a request: bounded in size, in time, in what its JSON can become in memory, and all bodies together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};
use bytes::BytesMut;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::with_status;
use super::{App, Refused};

/// How much of a body that is too large is read before the answer: a client that is still sending would not see it.
const DISCARDED: usize = 256 << 20;
/// What one body may reserve at a time.
const STEP: usize = 256 << 10;

/// A body, and its share of the memory for bodies, to be kept for as long as what was read from it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) share: Share,
}

/// The memory for bodies of requests and for answers. A clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// In bytes.
    free: Arc<Semaphore>,
    all: usize,
}

/// A share of it.
#[derive(Debug)]
pub(crate) struct Share(Option<OwnedSemaphorePermit>);

/// Reads a body of JSON.
pub(super) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, Response> {
    if !is_json(headers) {
        let problem = Problem::new(
            Code::InvalidRequest,
            "the Content-Type is not application/json",
            "send the body as JSON, with Content-Type: application/json",
        );
        return Err(with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problem));
    }
    receive(app, body).await.map_err(|problem| Refused(problem).into_response())
}

/// Reads a body, whatever it is announced as.
///
/// # Errors
/// That it is too large, has too many values, is too slow or broken off, or that too many others are being read.
pub(crate) async fn receive(app: &App, body: Body) -> Result<Received, Problem> {
    let patience = app.config.body_timeout;
    let reading = collect(body, app.config.max_body, &app.memory);
    tokio::time::timeout(patience, reading).await.unwrap_or_else(|_| Err(too_slow(patience)))
}

async fn collect(mut body: Body, limit: usize, memory: &Memory) -> Result<Received, Problem> {
    let (mut bytes, mut share) = (BytesMut::new(), Share(None));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|cause| broken(&cause))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            discard(body, bytes.len() + data.len()).await;
            return Err(too_large(limit));
        }
        share.grow_to(bytes.len() + data.len(), memory)?;
        bytes.extend_from_slice(&data);
    }
    let read = bytes.len() + belljar_wire::cost(&bytes)?;
    share.grow_to(memory.at_most_half(read).max(bytes.len()), memory)?;
    Ok(Received { bytes: bytes.freeze(), share })
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        let all = bytes.min(Semaphore::MAX_PERMITS);
        Memory { free: Arc::new(Semaphore::new(all)), all }
    }

    /// A share of so many bytes, for something other than a body that takes as much memory.
    ///
    /// # Errors
    /// That too many others have one.
    pub(crate) fn share(&self, bytes: usize) -> Result<Share, Problem> {
        let mut share = Share(None);
        share.grow_to(bytes, self).map(|()| share)
    }

    /// A share of so many bytes, or of half of all memory if that is less, so that one can always be had in the end.
    /// Waits for it, but not for longer than that.
    ///
    /// # Errors
    /// That others have had it for so long.
    pub(crate) async fn share_within(&self, bytes: usize, patience: Duration) -> Result<Share, Problem> {
        let bytes = u32::try_from(self.at_most_half(bytes)).unwrap_or(u32::MAX);
        if let Ok(permit) = self.free.clone().try_acquire_many_owned(bytes) {
            return Ok(Share(Some(permit)));
        }
        let waiting = self.free.clone().acquire_many_owned(bytes);
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(permit)) => Ok(Share(Some(permit))),
            Ok(Err(_)) | Err(_) => Err(no_memory()),
        }
    }

    /// What is estimated to be more than half of all memory counts as half, so that it can be had in the end.
    fn at_most_half(&self, bytes: usize) -> usize {
        bytes.min(self.all / 2)
    }
}

impl Share {
    /// Gives back what is more than that.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(held) = &mut self.0 {
            drop(held.split(held.num_permits().saturating_sub(bytes)));
        }
    }

    fn grow_to(&mut self, needed: usize, memory: &Memory) -> Result<(), Problem> {
        let held = self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if needed <= held {
            return Ok(());
        }
        let more = u32::try_from((needed - held).next_multiple_of(STEP)).unwrap_or(u32::MAX);
        let permit = memory.free.clone().try_acquire_many_owned(more).map_err(|_| no_memory())?;
        match &mut self.0 {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

async fn discard(mut body: Body, mut seen: usize) {
    while seen < DISCARDED {
        match body.frame().await {
            Some(Ok(frame)) => seen += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => return,
        }
    }
}

fn too_large(limit: usize) -> Problem {
    let message = format!("the body has more than {limit} bytes");
    Problem::new(Code::TooLarge, message, "send less; the server's max-body sets the limit")
}

fn too_slow(patience: Duration) -> Problem {
    let message = format!("the body was not complete after {} s", patience.as_secs());
    Problem::new(Code::InvalidRequest, message, "send it faster, or send less")
}

fn broken(cause: &axum::Error) -> Problem {
    let message = format!("the body cannot be read: {cause}");
    Problem::new(Code::InvalidRequest, message, "send it again")
}

fn no_memory() -> Problem {
    let message = "the server has no memory left for requests and answers";
    let retry_after = Some(Duration::from_secs(1));
    Problem { retry_after, ..Problem::new(Code::Busy, message, "try again in a second") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_gives_back_what_it_does_not_need() {
        let memory = Memory::new(4 * STEP);
        let mut share = memory.share(3 * STEP).unwrap();
        share.shrink_to(8 * STEP);
        assert_eq!(memory.free.available_permits(), STEP);
        share.shrink_to(10);
        assert_eq!(memory.free.available_permits(), 4 * STEP - 10);
        drop(share);
        assert_eq!(memory.free.available_permits(), 4 * STEP);
    }
}
