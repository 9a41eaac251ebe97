//! The body of a request: bounded in size, in time, in what its JSON can become in memory, and all bodies together.

use std::sync::Arc;
use std::time::{Duration, Instant};

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
/// How long to wait before looking again whether there is memory.
const AGAIN: Duration = Duration::from_millis(10);

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
#[derive(Debug, Default)]
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
    let (patience, memory) = (app.config.body_timeout, &app.memory);
    let reading = collect(body, app.config.max_body, memory);
    let (bytes, mut share) =
        tokio::time::timeout(patience, reading).await.unwrap_or_else(|_| Err(too_slow(patience)))?;
    let read = bytes.len() + belljar_wire::cost(&bytes)?;
    share.grow_to(memory.at_most_half(read).max(bytes.len()), memory)?;
    Ok(Received { bytes: bytes.freeze(), share })
}

/// Reads a body that is a file of so many bytes at most.
///
/// # Errors
/// That it is too large, too slow or broken off, or that too many others are being read.
pub(super) async fn receive_file(app: &App, body: Body, limit: usize) -> Result<Received, Problem> {
    let patience = app.config.body_timeout;
    let reading = tokio::time::timeout(patience, collect(body, limit, &app.memory));
    let (bytes, share) = reading
        .await
        .unwrap_or_else(|_| Err(too_slow(patience)))
        .map_err(|problem| if problem.error.code == Code::TooLarge { large_file(limit) } else { problem })?;
    Ok(Received { bytes: bytes.freeze(), share })
}

async fn collect(mut body: Body, limit: usize, memory: &Memory) -> Result<(BytesMut, Share), Problem> {
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
    Ok((bytes, share))
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
    /// Waits for it, but not for longer than that. Takes nothing before it can have all: what is free meanwhile is for others.
    ///
    /// # Errors
    /// That others have had it for so long.
    pub(crate) async fn share_within(&self, bytes: usize, patience: Duration) -> Result<Share, Problem> {
        let bytes = u32::try_from(self.at_most_half(bytes)).unwrap_or(u32::MAX);
        let deadline = Instant::now() + patience;
        loop {
            if let Ok(permit) = self.free.clone().try_acquire_many_owned(bytes) {
                return Ok(Share(Some(permit)));
            }
            if Instant::now() >= deadline {
                return Err(no_memory());
            }
            tokio::time::sleep(AGAIN).await;
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

    /// Becomes a share of so many bytes, for which it waits if that is more than it is.
    ///
    /// # Errors
    /// That others have had the memory for so long.
    pub(crate) async fn become_of(
        &mut self,
        bytes: usize,
        memory: &Memory,
        patience: Duration,
    ) -> Result<(), Problem> {
        self.shrink_to(bytes);
        let more = memory.at_most_half(bytes).saturating_sub(self.bytes());
        if more > 0 {
            self.add(memory.share_within(more, patience).await?);
        }
        Ok(())
    }

    fn grow_to(&mut self, needed: usize, memory: &Memory) -> Result<(), Problem> {
        let held = self.bytes();
        if needed <= held {
            return Ok(());
        }
        let more = u32::try_from((needed - held).next_multiple_of(STEP)).unwrap_or(u32::MAX);
        let permit = memory.free.clone().try_acquire_many_owned(more).map_err(|_| no_memory())?;
        self.add(Share(Some(permit)));
        Ok(())
    }

    /// How many bytes it is.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    fn add(&mut self, more: Share) {
        match (&mut self.0, more.0) {
            (Some(held), Some(permit)) => held.merge(permit),
            (none @ None, permit) => *none = permit,
            (Some(_), None) => {}
        }
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

fn large_file(limit: usize) -> Problem {
    let message = format!("the file has more than {limit} bytes");
    Problem::new(Code::TooLarge, message, "send less; the server's max-upload sets the limit")
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
