//! A run as it happens: server-sent events `pull` while an image is fetched for it, `start`, `stdout`, `stderr`, `end`, and
//! `error` if Belljar fails on the way.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_core::backend::Stream;
use belljar_wire::Problem;
use futures_util::stream;
use serde::Serialize;

use super::body::Share;
use super::text::Text;
use super::{App, Refused, answer};
use crate::runs::{End, Run, RunEvent};

/// Tells a run as it happens. A failure before the program runs is an ordinary answer; only if an image is being fetched, or
/// nothing at all has happened by the first heartbeat (a long queue), does the stream begin without knowing.
pub(super) async fn tell(app: &App, mut run: Run, share: Share) -> Result<Response, Refused> {
    let heartbeat = app.config.heartbeat;
    let first = match tokio::time::timeout(heartbeat, run.next()).await {
        Ok(RunEvent::Ended(Err(problem))) => return Err(problem.into()),
        Ok(event) => Some(event),
        Err(_) => None,
    };
    let telling = Telling {
        app: app.clone(),
        run: Some(run),
        first,
        texts: Texts::default(),
        due: VecDeque::new(),
        share: Some(share),
    };
    let events = stream::unfold(telling, |mut telling| async {
        let event = telling.next().await?;
        Some((Ok::<_, Infallible>(event), telling))
    });
    Ok(stream_of(Sse::new(events).keep_alive(beat(heartbeat))))
}

/// Tells a run that has ended already.
pub(super) async fn tell_again(app: &App, end: &End) -> Result<Response, Refused> {
    let (event, share) = last_words(app, end, Duration::ZERO).await?;
    let events = stream::unfold((Some(event), share), |(event, share)| async {
        Some((Ok::<_, Infallible>(event?), (None, share)))
    });
    Ok(stream_of(Sse::new(events)))
}

fn stream_of(events: impl IntoResponse) -> Response {
    // Or else a proxy might collect them first.
    ([("x-accel-buffering", "no")], events).into_response()
}

fn beat(interval: Duration) -> KeepAlive {
    KeepAlive::new().interval(interval).text("still here")
}

/// A stream of events on its way. Dropping it drops the run, which cancels it: that is what happens when the client
/// has gone.
struct Telling {
    app: App,
    run: Option<Run>,
    first: Option<RunEvent>,
    texts: Texts,
    due: VecDeque<Event>,
    /// For the request as long as it runs, then for the result. The event has been sent when the next is asked for.
    share: Option<Share>,
}

#[derive(Default)]
struct Texts {
    stdout: Text,
    stderr: Text,
}

#[derive(Serialize)]
struct Output {
    text: String,
}

impl Telling {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Some(event);
            }
            let event = match self.first.take() {
                Some(event) => event,
                None => self.run.as_mut()?.next().await,
            };
            match event {
                RunEvent::Pulling(pull) => self.due.push_back(named("pull", &pull)),
                RunEvent::Started(started) => self.due.push_back(named("start", &started)),
                RunEvent::Output(stream, bytes) => {
                    let text = self.texts.of(stream).push(&bytes);
                    self.due.extend(output(stream, text));
                }
                RunEvent::Ended(end) => {
                    self.run = None;
                    for stream in [Stream::Stdout, Stream::Stderr] {
                        self.due.extend(output(stream, self.texts.of(stream).finish()));
                    }
                    self.share = None;
                    let last = last_words(&self.app, &end, answer::PATIENCE).await;
                    let (event, share) = last.unwrap_or_else(|problem| (named("error", &problem), None));
                    self.share = share;
                    self.due.push_back(event);
                }
            }
        }
    }
}

impl Texts {
    fn of(&mut self, stream: Stream) -> &mut Text {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

fn output(stream: Stream, text: String) -> Option<Event> {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    (!text.is_empty()).then(|| named(name, &Output { text }))
}

/// The last event, and the memory that it takes for as long as it is on its way.
async fn last_words(app: &App, end: &End, patience: Duration) -> Result<(Event, Option<Share>), Problem> {
    let finished = match end {
        Ok(finished) => finished.clone(),
        Err(problem) => return Ok((named("error", problem), None)),
    };
    let bytes = finished.bytes();
    let mut share = answer::room(&app.memory, bytes, patience).await?;
    let (event, size) = answer::elsewhere(bytes, move || {
        let json = answer::json(&finished.result());
        (Event::default().event("end").data(&json), json.len())
    })
    .await?;
    share.shrink_to(size);
    Ok((event, Some(share)))
}

/// An event of one line of JSON. None of these types has a `Serialize` that can fail.
fn named(name: &str, data: &impl Serialize) -> Event {
    Event::default().event(name).json_data(data).unwrap_or_default()
}
