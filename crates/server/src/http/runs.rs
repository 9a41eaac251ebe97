//! Runs: started, listed, looked up, followed, cancelled.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem, RunList, RunRequest, RunState, RunStatus};

use super::body::{self, Received, Share};
use super::query::{Page, Query};
use super::{App, Refused, answer, batch, describe, events, page};
use crate::caller::Caller;
use crate::idempotency::{Key, Origin, is_result};
use crate::runs::{Events, Finished, Found, PATIENCE, Run};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const RUN_ID: HeaderName = HeaderName::from_static("x-run-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const RESPOND_ASYNC: &str = "respond-async";

/// How a client wants its run to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// With the result, when the run has ended.
    Result,
    /// With its events, as they happen.
    Events,
    /// At once. The run goes on, whatever becomes of the client.
    Accepted,
}

/// Run code
///
/// Waits for the run and returns its result. A program that fails is a result like any other, with status 200.
///
/// - With `Accept: text/event-stream`, the answer is a stream of events.
/// - With `Prefer: respond-async`, the answer comes at once, with status 202. Fetch the result from `Location`.
/// - With a list as `stdin`, the program runs once for each input, and the answer has all results.
///
/// A client that disconnects cancels its run, unless it asked for `respond-async`.
#[describe::path(
    post, path = "/v1/runs", tag = "runs", operation_id = "createRun",
    params(
        ("Prefer" = Option<String>, Header,
            description = "`respond-async` starts the run and answers at once, without waiting for the result. Other \
                           preferences are ignored."),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$",
            description = "Makes it safe to send the request again: a second request with the same key and the same body gets \
                           the answer of the first, without a second run. The same key with another body is a conflict. \
                           A run that was cancelled or failed does not count."),
    ),
    request_body(content = RunRequest, content_type = "application/json", description = "The code to run"),
    responses(
        (status = 200, description = "The run took place", content(
            (belljar_wire::RunAnswer = "application/json"), (belljar_wire::RunEvent = "text/event-stream")),
            headers(
                ("X-Run-Id" = String, description = "The identifier of the run; with a list of inputs, that of the first. Errors have it, too, if there was a run"),
                ("Idempotency-Replayed" = String, description = "`true` if an earlier request with the same key started the run"),
                ("Server-Timing" = String, description = "`run;dur=` and how long the run took in milliseconds, with its time in the queue"),
            )),
        (status = 202, description = "The run was accepted (`Prefer: respond-async`), or it waits for a person to approve it (`awaiting_approval`)", body = RunState,
            headers(
                ("Location" = String, description = "Where the result will be"),
                ("X-Run-Id" = String, description = "The identifier of the run"),
                ("Preference-Applied" = String, description = "`respond-async`"),
                ("Idempotency-Replayed" = String, description = "`true` if an earlier request with the same key started the run"),
            )),
        (status = 400, description = "The request is not valid; `field` says where", body = Problem),
        (status = 403, description = "The caller may not ask for that", body = Problem),
        (status = 404, description = "A file refers to a run or an upload that the caller does not have (any more)", body = Problem),
        (status = 409, description = "The Idempotency-Key was used for another request, or a file refers to a run that has not ended", body = Problem),
        (status = 413, description = "The body, the code or the files are too large", body = Problem),
        (status = 415, description = "The Content-Type is not application/json", body = Problem),
        (status = 429, description = "The queue is full, or the caller has reached its quota; `Retry-After` says when to try again", body = Problem,
            headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed", body = Problem),
        (status = 501, description = "The server's host cannot keep a guarantee", body = Problem),
        (status = 503, description = "The backend or the language is not available", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Response> {
    let app = app.of(&caller);
    let (head, body) = request.into_parts();
    Query::of(&head.uri).none().map_err(|problem| Refused(problem).into_response())?;
    let reply = Reply::wanted(&head.headers);
    let key = idempotency_key(&head.headers).map_err(IntoResponse::into_response)?;
    let received = body::read(&app, &head.headers, body).await?;
    let answered = match key {
        None => start(&app, &caller, received, reply).await,
        Some(key) => start_once(&app, &caller, &key, received, reply).await,
    };
    answered.map_err(IntoResponse::into_response)
}

/// List runs
///
/// The caller's own runs, newest first: those that have not ended, and those whose results are still kept.
#[describe::path(
    get, path = "/v1/runs", tag = "runs", operation_id = "listRuns",
    params(
        ("status" = Option<RunStatus>, Query, description = "Only runs with this status"),
        ("language" = Option<String>, Query, description = "Only runs of this language, by its name or an alias", example = "python"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 200, description = "How many runs to return at most", example = 50),
        ("cursor" = Option<String>, Query, pattern = "^run_[0-7][0-9A-HJKMNP-TV-Z]{25}$", description = "The `next_cursor` of the page before, to get the next one"),
    ),
    responses(
        (status = 200, description = "A page of runs", body = RunList),
        (status = 400, description = "A parameter is not valid; `field` names it", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<RunList>, Refused> {
    let Page { wanted, limit } = Query::of(&uri).page()?;
    let found = app.runs.list(&caller, &wanted, page::asked_for(limit));
    let (runs, next_cursor) = page::cut(found, limit, |run| run.id.clone());
    Ok(Json(RunList { runs, next_cursor }))
}

/// Get the result of a run
///
/// Results are kept for a limited time (ten minutes by default), and for less if the server runs out of room for them.
#[describe::path(
    get, path = "/v1/runs/{id}", tag = "runs", operation_id = "getRun",
    params(
        ("id" = String, Path, description = "The identifier of the run"),
        ("wait_ms" = Option<u64>, Query, minimum = 0, maximum = 86400000, description = "How long to wait for the run to end, in milliseconds", example = 1000),
    ),
    responses(
        (status = 200, description = "The run has ended", body = belljar_wire::RunResult),
        (status = 202, description = "The run has not ended yet", body = RunState),
        (status = 400, description = "A parameter is not valid; `field` names it", body = Problem),
        (status = 404, description = "The caller has no such run, or its result is no longer kept", body = Problem),
        (status = 429, description = "Too many requests of this caller wait for runs, or there is no memory for the answer; `Retry-After` says when to try again", body = Problem,
            headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed to run it", body = Problem),
        (status = 503, description = "The language was not available", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn find(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Refused> {
    let id = page::identifier(id);
    let (app, wait) = (app.of(&caller), Query::of(&uri).wait()?);
    let _waiting = if wait.is_zero() { None } else { Some(app.wait(&caller)?) };
    match app.runs.wait(&caller, &id, wait).await? {
        Found::Unfinished(state) => Ok((StatusCode::ACCEPTED, Json(state)).into_response()),
        Found::Finished(end) => Ok(answer::result(&app, end?, Duration::ZERO).await?),
    }
}

/// Follow a run
///
/// The events of the run from its start, also for a run that has ended, while its result is kept. Any number of clients can
/// follow a run; none of them can cancel it by disconnecting.
#[describe::path(
    get, path = "/v1/runs/{id}/events", tag = "runs", operation_id = "getRunEvents",
    params(("id" = String, Path, description = "The identifier of the run")),
    responses(
        (status = 200, description = "The events", body = belljar_wire::RunEvent, content_type = "text/event-stream"),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = Problem),
        (status = 404, description = "The caller has no such run, or its result is no longer kept", body = Problem),
        (status = 429, description = "Too many requests of this caller wait for runs, or there is no memory for the answer; `Retry-After` says when to try again", body = Problem,
            headers(("Retry-After" = u64, description = "Seconds"))),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn follow(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Refused> {
    Query::of(&uri).none()?;
    let events = app.runs.events(&caller, &page::identifier(id))?;
    events::follow(&app.of(&caller), &caller, events).await
}

/// Cancel a run
///
/// Tells the run to end. Its result follows, with the status `cancelled`.
#[describe::path(
    post, path = "/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancelRun",
    params(("id" = String, Path, description = "The identifier of the run")),
    responses(
        (status = 202, description = "The run was told to end", body = RunState),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = Problem),
        (status = 404, description = "The caller has no such run, or its result is no longer kept", body = Problem),
        (status = 409, description = "The run has already ended", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<(StatusCode, Json<RunState>), Refused> {
    Query::of(&uri).none()?;
    let id = page::identifier(id);
    let status = app.runs.cancel(&caller, &id)?;
    Ok((StatusCode::ACCEPTED, Json(RunState { id, status, approval_id: None })))
}

async fn start(app: &App, caller: &Caller, received: Received, reply: Reply) -> Result<Response, Refused> {
    let mut request = RunRequest::from_json(&received.bytes)?;
    // A list that stays in the request is refused with it: a batch is answered as it comes, and cannot be accepted for later.
    if reply != Reply::Accepted
        && let Some(inputs) = request.take_inputs()
    {
        let events = reply == Reply::Events;
        let (id, answer) = batch::start(app, caller, request, inputs, received.share, events).await?;
        return Ok(with_run_id(&id, Ok(answer)));
    }
    let run = app.runs.start(caller, request).await?;
    Ok(answer_new(app, run, received.share, reply).await)
}

/// The same for a request that may have come before.
async fn start_once(
    app: &App,
    caller: &Caller,
    key: &Key,
    received: Received,
    reply: Reply,
) -> Result<Response, Refused> {
    loop {
        let request = RunRequest::from_json(&received.bytes)?;
        match app.replays.start(&app.runs, caller, key, &received.bytes, request).await? {
            Origin::New(run) => return Ok(answer_new(app, run, received.share, reply).await),
            Origin::Known(id) => {
                let waiting = app.wait(caller)?;
                if let Some(earlier) = earlier(app, caller, &id, reply).await {
                    drop((received, waiting));
                    return Ok(answer_again(app, caller, &id, earlier, reply).await);
                }
            }
        }
    }
}

async fn answer_new(app: &App, run: Run, share: Share, reply: Reply) -> Response {
    let id = run.id.to_string();
    let answered = match reply {
        Reply::Accepted => {
            // What was read of the request is needed until the run has ended.
            let state = run.detach_with(&app.runs, share);
            Ok(accepted(state, Preference::Applied))
        }
        Reply::Events => events::tell(app, run, share).await,
        Reply::Result => at_the_end(app, run, share).await,
    };
    with_run_id(&id, answered)
}

async fn at_the_end(app: &App, run: Run, share: Share) -> Result<Response, Refused> {
    if run.awaits_after(app.config.approval_wait).await {
        return Ok(accepted(run.detach_with(&app.runs, share), Preference::None));
    }
    let finished = run.result().await?;
    drop(share);
    let timing = format!("run;dur={:.3}", finished.took.as_secs_f64() * 1e3);
    let response = answer::result(app, finished, PATIENCE).await?;
    Ok(([(SERVER_TIMING, timing)], response).into_response())
}

/// The run that an earlier request with the same key started, as far as this request has to wait for it.
enum Earlier {
    Accepted(RunState),
    /// It waits for a person.
    Undecided(RunState),
    Ended(Events, Arc<Finished>),
}

/// `None` if that run was cancelled, failed or is forgotten: then this request is the first.
async fn earlier(app: &App, caller: &Caller, id: &str, reply: Reply) -> Option<Earlier> {
    let events = app.runs.events(caller, id).ok()?;
    if reply == Reply::Accepted
        && let Some(state) = events.detach()
    {
        return Some(Earlier::Accepted(state));
    }
    if reply == Reply::Result
        && let Some(state) = events.undecided_after(app.config.approval_wait).await
    {
        return Some(Earlier::Undecided(state));
    }
    let end = events.end().await;
    let finished = end.clone().ok().filter(|_| is_result(&end))?;
    Some(Earlier::Ended(events, finished))
}

async fn answer_again(app: &App, caller: &Caller, id: &str, earlier: Earlier, reply: Reply) -> Response {
    let answered = match (earlier, reply) {
        (Earlier::Undecided(state), _) => Ok(accepted(state, Preference::None)),
        (Earlier::Accepted(state), _) => Ok(accepted(state, Preference::Applied)),
        (Earlier::Ended(_, finished), Reply::Accepted) => {
            let status = RunStatus::of(finished.report.outcome);
            let state = RunState { id: id.to_owned(), status, approval_id: None };
            Ok(accepted(state, Preference::Applied))
        }
        (Earlier::Ended(events, _), Reply::Events) => events::follow(app, caller, events).await,
        (Earlier::Ended(_, finished), Reply::Result) => {
            answer::result(app, finished, Duration::ZERO).await.map_err(Refused)
        }
    };
    let mut response = with_run_id(id, answered);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Whether the client asked to be answered at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preference {
    Applied,
    None,
}

fn accepted(state: RunState, preference: Preference) -> Response {
    let location = [(header::LOCATION, format!("/v1/runs/{}", state.id))];
    let applied = (preference == Preference::Applied).then_some([(PREFERENCE_APPLIED, RESPOND_ASYNC)]);
    let mut response = (StatusCode::ACCEPTED, location, Json(state)).into_response();
    if let Some(applied) = applied {
        response = (applied, response).into_response();
    }
    response
}

fn with_run_id(id: &str, answered: Result<Response, Refused>) -> Response {
    let mut response = answered.into_response();
    if let Ok(id) = HeaderValue::from_str(id) {
        response.headers_mut().insert(RUN_ID, id);
    }
    response
}

impl Reply {
    fn wanted(headers: &HeaderMap) -> Reply {
        if listed(headers, &PREFER).any(is_respond_async) {
            Reply::Accepted
        } else if listed(headers, &header::ACCEPT).any(wants_events) {
            Reply::Events
        } else {
            Reply::Result
        }
    }
}

/// The items of a header that is a list, and may be split into several headers of that name.
fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| {
        let mut place = Place::Outside;
        value.split(move |c| place.after(c) == Place::Outside && c == ',')
    })
}

/// Where in the value of a header a character is: a comma in a quoted string separates nothing (RFC 9110, 5.6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Quoted,
    Escaped,
}

impl Place {
    fn after(&mut self, c: char) -> Place {
        *self = match (*self, c) {
            (Place::Outside, '"') | (Place::Escaped, _) => Place::Quoted,
            (Place::Quoted, '\\') => Place::Escaped,
            (Place::Quoted, '"') => Place::Outside,
            (same @ (Place::Outside | Place::Quoted), _) => same,
        };
        *self
    }
}

/// Whether a preference is `respond-async`, which has no value but may have parameters (RFC 7240, 4.1).
fn is_respond_async(preference: &str) -> bool {
    let name = preference.split(';').next().unwrap_or_default();
    name.trim().eq_ignore_ascii_case(RESPOND_ASYNC)
}

/// Whether a media type that a client accepts is a stream of events; `q=0` says that it is not (RFC 9110, 12.4.2).
fn wants_events(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_stream = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"));
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let refused =
        quality.and_then(|text| text.trim().parse::<f32>().ok()).is_some_and(|quality| quality <= 0.0);
    is_stream && !refused
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<Key>, Refused> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(Key::parse(value.as_bytes())?)),
        (Some(_), Some(_)) => {
            let message = "there are two Idempotency-Key headers";
            Err(Problem::new(Code::InvalidRequest, message, "send one").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(headers: &[(HeaderName, &'static str)]) -> Reply {
        let values = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        headers.extend(values.map(|(name, value)| (Some(name), value)));
        Reply::wanted(&headers)
    }

    #[test]
    fn events_are_sent_to_clients_that_accept_them() {
        let accepting = |kinds: &[&'static str]| {
            let values = kinds.iter().map(|kind| (header::ACCEPT, HeaderValue::from_static(kind)));
            Reply::wanted(&values.collect())
        };
        for accept in [
            &["text/event-stream"][..],
            &["application/json", "text/event-stream"],
            &["application/json, Text/Event-Stream;q=0.001"],
            &["text/event-stream; charset=utf-8; q=1"],
        ] {
            assert_eq!(accepting(accept), Reply::Events, "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["text/event-stream;q=0"],
            &["text/event-stream; Q=0.000, application/json"],
            &["text/event-streams"],
        ] {
            assert_eq!(accepting(accept), Reply::Result, "{accept:?}");
        }
    }

    #[test]
    fn a_client_that_prefers_it_is_answered_at_once() {
        for prefer in
            ["respond-async", "Respond-Async", "return=minimal, respond-async; x=1", "respond-async, wait=10"]
        {
            assert_eq!(reply(&[(PREFER, prefer)]), Reply::Accepted, "{prefer}");
            assert_eq!(reply(&[(header::ACCEPT, "text/event-stream"), (PREFER, prefer)]), Reply::Accepted);
        }
        assert_eq!(reply(&[(PREFER, r#"a="b, \"c", respond-async"#)]), Reply::Accepted);
        for prefer in [
            "",
            "return=minimal",
            "respond-asynchronously",
            "wait=10",
            r#"foo="a, respond-async""#,
            r#"foo="a\", respond-async""#,
            r#"foo="a, respond-async"#,
        ] {
            assert_eq!(reply(&[(PREFER, prefer)]), Reply::Result, "{prefer}");
        }
    }
}
