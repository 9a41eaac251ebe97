//! A run as it happens, by server-sent events: `awaiting_approval` if a person has to decide about it, `pull` while an image
//! is pulled for it, `start`, `network` for what it does with its network, `stdout`, `stderr`, `stage` when a compiler is
//! done, `end`, and `error` if Belljar could not run it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_core::backend::Stream;
use belljar_core::outcome::Stage;
use belljar_wire::{OutputText, Problem, RunState, StageStarted, Surface};
use futures_util::stream;
use serde::Serialize;

use super::body::Share;
use super::text::Text;
use super::{App, Refused, answer, held};
use crate::caller::Caller;
use crate::event_log::MAX_PIECE;
use crate::listen::MAX_HEAD;
use crate::runs::{End, Events, Finished, PATIENCE, RENDERED_TEXT, Run, RunEvent};

/// What a connection can hold of a stream whose client does not read: its buffer, and an event that did not fit.
const UNREAD: usize = MAX_HEAD + RENDERED_TEXT * MAX_PIECE + 1024;

/// Streams a run to the client that started it. A failure before the program runs is an ordinary answer; only if an image is
/// being pulled, or nothing at all has happened by the first heartbeat (a long queue), does the stream begin without knowing.
pub(super) async fn tell(app: &App, mut run: Run, share: Share) -> Result<Response, Refused> {
    let state = run.state();
    if state.approval_id.is_some() {
        return Ok(streamed(app, Source::Started(run), Some(First::Awaiting(state)), share));
    }
    let first = match tokio::time::timeout(app.config.heartbeat, run.next()).await {
        Ok(RunEvent::Ended(Err(problem))) => return Err(problem.into()),
        Ok(event) => Some(event),
        Err(_) => None,
    };
    Ok(streamed(app, Source::Started(run), first.map(First::Event), share))
}

/// Streams a run to somebody else, or again, from its start.
pub(super) async fn follow(app: &App, caller: &Caller, events: Events) -> Result<Response, Refused> {
    let waiting = app.wait(caller)?;
    let share = app.memory.share_within(UNREAD, Duration::ZERO).await?;
    let first = events.awaiting().map(First::Awaiting);
    Ok(held::until_sent(streamed(app, Source::Followed(events), first, share), waiting))
}

fn streamed(app: &App, source: Source, first: Option<First>, share: Share) -> Response {
    let (mut due, mut known) = (VecDeque::new(), None);
    match first {
        Some(First::Awaiting(state)) => due.push_back(named("awaiting_approval", &state)),
        Some(First::Event(event)) => known = Some(event),
        None => {}
    }
    let telling = Telling {
        app: app.clone(),
        source: Some(source),
        first: known,
        texts: Texts::default(),
        due,
        share: Some(share),
    };
    let events = stream::unfold(telling, |mut telling| async {
        let event = telling.next().await?;
        Some((Ok::<_, Infallible>(event), telling))
    });
    let heartbeat = KeepAlive::new().interval(app.config.heartbeat).text("still here");
    // Or else a proxy might collect the events first.
    ([("x-accel-buffering", "no")], Sse::new(events).keep_alive(heartbeat)).into_response()
}

/// What a stream begins with, if that is known.
enum First {
    /// That the run waits for a person.
    Awaiting(RunState),
    Event(RunEvent),
}

/// Where the events come from.
enum Source {
    /// The run that this client started. Dropping it cancels the run: that is what happens when the client has gone.
    Started(Run),
    /// A run that goes on without this client.
    Followed(Events),
}

/// A stream of events on its way.
struct Telling {
    app: App,
    source: Option<Source>,
    first: Option<RunEvent>,
    texts: Texts,
    due: VecDeque<Event>,
    /// For the request or the reader as long as it runs, then for the result. The event has been sent when the next is
    /// asked for.
    share: Option<Share>,
}

#[derive(Default)]
struct Texts {
    stdout: Text,
    stderr: Text,
}

impl Source {
    async fn next(&mut self) -> RunEvent {
        match self {
            Source::Started(run) => run.next().await,
            Source::Followed(events) => events.next().await,
        }
    }
}

impl Telling {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Some(event);
            }
            let event = match self.first.take() {
                Some(event) => event,
                None => self.source.as_mut()?.next().await,
            };
            match event {
                RunEvent::Pulling(pull) => self.due.push_back(named("pull", &pull)),
                RunEvent::Started(started) => self.due.push_back(named("start", &started)),
                RunEvent::NextStage => {
                    self.finish_texts();
                    self.due.push_back(named("stage", &StageStarted::new(Stage::Run)));
                }
                RunEvent::Network(activity) => self.due.push_back(named("network", &activity)),
                RunEvent::Output(stream, bytes) => {
                    let text = self.texts.of(stream).push(&bytes);
                    self.due.extend(output(stream, text));
                }
                RunEvent::Ended(end) => {
                    self.source = None;
                    self.finish_texts();
                    self.share = None;
                    let last = last_words(&self.app, &end).await;
                    let (event, share) = last.unwrap_or_else(|problem| (failure(problem), None));
                    self.share = share;
                    self.due.push_back(event);
                }
            }
        }
    }
}

impl Telling {
    /// Tells what is left of a character that was not complete.
    fn finish_texts(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.due.extend(output(stream, self.texts.of(stream).finish()));
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
    (!text.is_empty()).then(|| named(name, &OutputText { text }))
}

/// The last event, and the memory that it takes for as long as it is on its way.
async fn last_words(app: &App, end: &End) -> Result<(Event, Option<Share>), Problem> {
    let finished = match end {
        Ok(finished) => finished.clone(),
        Err(problem) => return Ok((failure(problem.clone()), None)),
    };
    let bytes = finished.rendered_bytes();
    let mut share =
        app.memory.share_within(bytes, PATIENCE).await.map_err(|problem| unsent(problem, &finished))?;
    let (event, size) = answer::elsewhere(bytes, move || {
        let json = answer::json(&finished.result());
        (Event::default().event("end").data(&json), json.len())
    })
    .await?;
    share.shrink_to(size);
    Ok((event, Some(share)))
}

/// The run succeeded; it is its result that cannot be sent now.
fn unsent(mut problem: Problem, finished: &Finished) -> Problem {
    let id = &finished.report.id;
    problem.error.message = format!("the run {id} has ended, but there is no memory to send its result");
    problem.error.hint = format!("fetch it with GET /v1/runs/{id}");
    problem
}

fn failure(problem: Problem) -> Event {
    named("error", &problem.over(Surface::Http))
}

/// An event of one line of JSON. None of these types has a `Serialize` that can fail.
fn named(name: &str, data: &impl Serialize) -> Event {
    Event::default().event(name).json_data(data).unwrap_or_default()
}
