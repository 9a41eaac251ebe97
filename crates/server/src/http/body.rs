//! The body of a request: bounded in size, in time, in what its JSON can become in memory, and all bodies together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::with_status;
use super::{App, Refused};
use crate::caller::ANONYMOUS;

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
    /// What one caller may have of it, so that there is always some for the others.
    each: usize,
    callers: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    /// The part of the caller for whom this is.
    own: Option<Arc<Semaphore>>,
}

/// A share of it.
#[derive(Debug, Default)]
pub(crate) struct Share(Option<Taken>);

/// The bytes of a share: of all memory, and of the caller's own part if it has one.
#[derive(Debug)]
struct Taken {
    all: OwnedSemaphorePermit,
    own: Option<OwnedSemaphorePermit>,
}

/// Reads a body of JSON.
pub(super) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, Response> {
    if !is_json(headers) {
        return Err(not_json());
    }
    receive(app, body).await.map_err(|problem| Refused(problem).into_response())
}

/// That a body is not announced as JSON.
pub(super) fn not_json() -> Response {
    let problem = Problem::new(
        Code::InvalidRequest,
        "the Content-Type is not application/json",
        "send the body as JSON, with Content-Type: application/json",
    );
    with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problem)
}

/// Reads a body of JSON that may be left out: then nothing needs to be announced.
pub(super) async fn read_if_any(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, Response> {
    if body.is_end_stream() {
        return Ok(Received { bytes: Bytes::new(), share: Share::default() });
    }
    read(app, headers, body).await
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
    /// So many bytes. One caller of several may have half of them, but enough for `one` body.
    pub(crate) fn new(bytes: usize, one: usize) -> Memory {
        let all = bytes.min(Semaphore::MAX_PERMITS);
        let each = (all / 2).max(one.saturating_add(STEP)).min(all);
        Memory { free: Arc::new(Semaphore::new(all)), all, each, callers: Arc::default(), own: None }
    }

    /// The same memory, for this caller.
    pub(crate) fn of(&self, caller: &str) -> Memory {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // Where there are no keys, there is nobody else to leave something for.
        let own = (caller != ANONYMOUS).then(|| {
            let own = callers.entry(caller.to_owned());
            own.or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
        });
        drop(callers);
        Memory { own, ..self.clone() }
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
        let bytes = self.at_most_half(bytes);
        let deadline = Instant::now() + patience;
        loop {
            if let Some(taken) = self.take(bytes) {
                return Ok(Share(Some(taken)));
            }
            if Instant::now() >= deadline {
                return Err(no_memory());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn take(&self, bytes: usize) -> Option<Taken> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let own = match &self.own {
            Some(own) => Some(own.clone().try_acquire_many_owned(bytes).ok()?),
            None => None,
        };
        let all = self.free.clone().try_acquire_many_owned(bytes).ok()?;
        Some(Taken { all, own })
    }

    /// What is estimated to be more than half of all memory counts as half, so that it can be had in the end.
    fn at_most_half(&self, bytes: usize) -> usize {
        bytes.min(self.all / 2)
    }
}

impl Share {
    /// Gives back what is more than that.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(Taken { all, own }) = &mut self.0 {
            let surplus = all.num_permits().saturating_sub(bytes);
            drop(all.split(surplus));
            drop(own.as_mut().and_then(|own| own.split(surplus)));
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
        let taken = memory.take((needed - held).next_multiple_of(STEP)).ok_or_else(no_memory)?;
        self.add(Share(Some(taken)));
        Ok(())
    }

    /// How many bytes it is.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |taken| taken.all.num_permits())
    }

    fn add(&mut self, more: Share) {
        match (&mut self.0, more.0) {
            (Some(held), Some(taken)) => {
                held.all.merge(taken.all);
                match (&mut held.own, taken.own) {
                    (Some(own), Some(more)) => own.merge(more),
                    (none @ None, more) => *none = more,
                    (Some(_), None) => {}
                }
            }
            (none @ None, taken) => *none = taken,
            (Some(_), None) => {}
        }
    }
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
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
        let memory = Memory::new(4 * STEP, STEP);
        let mut share = memory.share(3 * STEP).unwrap();
        share.shrink_to(8 * STEP);
        assert_eq!(memory.free.available_permits(), STEP);
        share.shrink_to(10);
        assert_eq!(memory.free.available_permits(), 4 * STEP - 10);
        drop(share);
        assert_eq!(memory.free.available_permits(), 4 * STEP);
    }

    #[test]
    fn one_caller_leaves_something_for_the_others() {
        let memory = Memory::new(8 * STEP, STEP);
        let (greedy, modest) = (memory.of("greedy"), memory.of("modest"));
        let mut share = greedy.share(4 * STEP).unwrap();
        assert!(greedy.share(1).is_err() && memory.of("greedy").share(1).is_err());
        let other = modest.share(3 * STEP).unwrap();
        share.shrink_to(2 * STEP);
        assert!(greedy.share(2 * STEP).is_ok(), "what was given back");
        drop((share, other));
        let alone = memory.of(ANONYMOUS);
        assert!(alone.share(8 * STEP).is_ok(), "without keys there are no others");
        assert_eq!(memory.free.available_permits(), 8 * STEP);
        assert_eq!(greedy.own.unwrap().available_permits(), 4 * STEP);
    }

    #[test]
    fn what_one_caller_may_have_is_enough_for_a_body() {
        let memory = Memory::new(16 * STEP, 16 * STEP);
        assert!(memory.of("a").share(16 * STEP).is_ok());
    }
}
