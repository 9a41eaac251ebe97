//! A run as it happens: server-sent events `start`, `stdout`, `stderr`, `end`, and `error` if Belljar fails on the way.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_core::backend::Stream;
use futures_util::stream;
use serde::Serialize;

use super::Refused;
use super::body::Share;
use super::text::Text;
use crate::runs::{End, Run, RunEvent};

/// Tells a run as it happens. A failure before the program runs is an ordinary answer; only if nothing at all has
/// happened by the first heartbeat (a long queue) does the stream begin without knowing.
pub(super) async fn tell(mut run: Run, share: Share, heartbeat: Duration) -> Result<Response, Refused> {
    let first = match tokio::time::timeout(heartbeat, run.next()).await {
        Ok(RunEvent::Ended(Err(problem))) => return Err(problem.into()),
        Ok(event) => Some(event),
        Err(_) => None,
    };
    let telling =
        Telling { run: Some(run), first, texts: Texts::default(), due: VecDeque::new(), _share: share };
    let events = stream::unfold(telling, |mut telling| async {
        let event = telling.next().await?;
        Some((Ok::<_, Infallible>(event), telling))
    });
    Ok(answer(Sse::new(events).keep_alive(beat(heartbeat))))
}

/// Tells a run that has ended already.
pub(super) fn tell_again(end: &End) -> Response {
    let events = stream::iter(last_words(end).into_iter().map(Ok::<_, Infallible>));
    answer(Sse::new(events))
}

fn answer(events: impl IntoResponse) -> Response {
    // Or else a proxy might collect them first.
    ([("x-accel-buffering", "no")], events).into_response()
}

fn beat(interval: Duration) -> KeepAlive {
    KeepAlive::new().interval(interval).text("still here")
}

/// A stream of events on its way. Dropping it drops the run, which cancels it: that is what happens when the client
/// has gone.
struct Telling {
    run: Option<Run>,
    first: Option<RunEvent>,
    texts: Texts,
    due: VecDeque<Event>,
    _share: Share,
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
                    self.due.extend(last_words(&end));
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

fn last_words(end: &End) -> Option<Event> {
    Some(match end {
        Ok(finished) => named("end", &finished.result()),
        Err(problem) => named("error", problem),
    })
}

/// An event of one line of JSON. None of these types has a `Serialize` that can fail.
fn named(name: &str, data: &impl Serialize) -> Event {
    Event::default().event(name).json_data(data).unwrap_or_default()
}
