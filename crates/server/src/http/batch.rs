//! One program on many inputs: a request whose `stdin` is a list. Each input is a run of its own, in a fresh box, with limits
//! of its own, and counts as one for quotas. The first comes alone, because it may have to be compiled; all others find the
//! program there. They are answered in the order of the inputs, each as soon as it has ended, so that only a few results are
//! in memory at a time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_core::outcome::{Outcome, Stage};
use belljar_wire::{BatchDone, BatchItem, Code, Input, Problem, RunRequest, Surface};
use futures_util::stream;

use super::body::Share;
use super::{App, Refused, answer};
use crate::caller::Caller;
use crate::runs::{End, Finished, PATIENCE, Run};

/// How many runs of a batch there may be at a time. More would not end sooner on most machines, and others wait, too.
const AT_A_TIME: usize = 4;
/// How long to wait before asking again for a place.
const AGAIN: Duration = Duration::from_millis(50);

/// A program and the inputs that are left.
struct Batch {
    app: App,
    caller: Caller,
    request: RunRequest,
    inputs: VecDeque<String>,
    running: VecDeque<Run>,
    /// Whether the next input has been counted as a request. The first came with one.
    counted: bool,
    /// How many have been answered.
    answered: usize,
    /// Whether the last word has been said.
    closed: bool,
    /// For the request, as long as there are runs.
    _share: Share,
}

/// Starts a batch, and answers when its first run has ended.
///
/// # Errors
/// That not even the first could be run.
pub(super) async fn start(
    app: &App,
    caller: &Caller,
    request: RunRequest,
    inputs: Vec<String>,
    share: Share,
    events: bool,
) -> Result<(String, Response), Refused> {
    let mut batch = Batch {
        app: app.clone(),
        caller: caller.clone().repeating(),
        request,
        inputs: inputs.into(),
        running: VecDeque::new(),
        counted: true,
        answered: 0,
        closed: false,
        _share: share,
    };
    let first = batch.begin().await?;
    first.decided_within(app.config.approval_wait).await?;
    let (id, finished) = (first.id.to_string(), first.result().await?);
    if finished.report.stage == Stage::Compile || finished.report.outcome == Outcome::Denied {
        // It would not compile for the others either, and no policy looks at the input.
        batch.inputs.clear();
    }
    let first = Some(Ok(finished));
    Ok((id, if events { batch.into_events(first) } else { batch.into_json(first) }))
}

impl Batch {
    /// Starts the run for the next input.
    async fn begin(&mut self) -> Result<Run, Problem> {
        if !self.counted {
            self.caller.spend(Instant::now())?;
            self.counted = true;
        }
        let stdin = self.inputs.front().cloned().map(Input::One);
        let run = self.app.runs.start(&self.caller, RunRequest { stdin, ..self.request.clone() }).await?;
        self.inputs.pop_front();
        self.counted = false;
        Ok(run)
    }

    /// The next result, in the order of the inputs; `None` when there are no more.
    async fn next(&mut self) -> Option<End> {
        let patience = Instant::now() + PATIENCE;
        while self.running.len() < AT_A_TIME && !self.inputs.is_empty() {
            match self.begin().await {
                Ok(run) => self.running.push_back(run),
                // There is a place when one of ours has ended, or when somebody else's has.
                Err(problem) if problem.error.code == Code::Busy && !self.running.is_empty() => break,
                Err(problem) if will_pass(&problem) && Instant::now() < patience => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(problem) if self.running.is_empty() => {
                    self.inputs.pop_front();
                    self.counted = false;
                    return Some(Err(problem));
                }
                Err(_) => break,
            }
        }
        let run = self.running.pop_front()?;
        if let Err(problem) = run.decided_within(self.app.config.approval_wait).await {
            return Some(Err(problem));
        }
        Some(run.result().await)
    }

    /// `{"runs": […]}`, piece by piece.
    fn into_json(self, first: Option<End>) -> Response {
        let pieces = stream::unfold((self, first), |(mut batch, mut first)| async {
            let end = match first.take() {
                Some(end) => Some(end),
                None => batch.next().await,
            };
            let piece = batch.json(end).await?;
            Some((Ok::<_, Infallible>(piece), (batch, first)))
        });
        ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response()
    }

    async fn json(&mut self, end: Option<End>) -> Option<Bytes> {
        let Some(end) = end else {
            let last = !std::mem::replace(&mut self.closed, true);
            return last.then(|| Bytes::from_static(b"]}"));
        };
        let before = if self.answered == 0 { "{\"runs\":[" } else { "," };
        self.answered += 1;
        let told = match end {
            Ok(finished) => self.rendered(before, finished).await,
            Err(problem) => Err(problem),
        };
        Some(told.unwrap_or_else(|problem| Bytes::from(before.to_owned() + &failure(problem))))
    }

    async fn rendered(&self, before: &'static str, finished: Arc<Finished>) -> Result<Bytes, Problem> {
        let bytes = finished.rendered_bytes();
        let make = move || before.to_owned() + &answer::json(&finished.result());
        answer::counted_text(&self.app.memory, bytes, PATIENCE, make).await
    }

    /// An event for each result, and a last one.
    fn into_events(self, first: Option<End>) -> Response {
        let heartbeat = KeepAlive::new().interval(self.app.config.heartbeat).text("still here");
        let state = (self, first, None);
        let events = stream::unfold(state, |(mut batch, mut first, share)| async {
            // The event before has been sent.
            drop::<Option<Share>>(share);
            let end = match first.take() {
                Some(end) => Some(end),
                None => batch.next().await,
            };
            let (event, share) = batch.event(end).await?;
            Some((Ok::<_, Infallible>(event), (batch, first, share)))
        });
        ([("x-accel-buffering", "no")], Sse::new(events).keep_alive(heartbeat)).into_response()
    }

    async fn event(&mut self, end: Option<End>) -> Option<(Event, Option<Share>)> {
        let Some(end) = end else {
            let last = !std::mem::replace(&mut self.closed, true);
            return last.then(|| (named("done", &answer::json(&BatchDone { runs: self.answered })), None));
        };
        let index = self.answered;
        self.answered += 1;
        let told = match end {
            Ok(finished) => self.item(index, finished).await,
            Err(problem) => Err(problem),
        };
        Some(told.unwrap_or_else(|problem| (named("error", &failure(problem)), None)))
    }

    async fn item(&self, index: usize, finished: Arc<Finished>) -> Result<(Event, Option<Share>), Problem> {
        let bytes = finished.rendered_bytes();
        let share = self.app.memory.share_within(bytes, PATIENCE).await?;
        let make = move || named("result", &answer::json(&BatchItem { index, result: finished.result() }));
        Ok((answer::elsewhere(bytes, make).await?, Some(share)))
    }
}

/// Whether it is worth waiting: a queue that is full, and not a quota that is used up.
fn will_pass(problem: &Problem) -> bool {
    problem.error.code == Code::Busy && problem.retry_after.is_none_or(|wait| wait <= PATIENCE)
}

fn failure(problem: Problem) -> String {
    answer::json(&problem.over(Surface::Http))
}

/// An event of one line of JSON.
fn named(name: &str, json: &str) -> Event {
    Event::default().event(name).data(json)
}
