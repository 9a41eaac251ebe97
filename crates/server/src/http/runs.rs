//! Runs: started, looked up, cancelled.

use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem, RunRequest, RunResult, RunState};

use super::body::{self, Received, Share};
use super::{App, Refused, answer, events};
use crate::caller::Caller;
use crate::idempotency::{Key, Origin, answers};
use crate::runs::{End, Found, Run, no_such_run};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";
const SERVER_TIMING: &str = "server-timing";
/// Longer than any run: the longest timeout is a day.
const LONG: Duration = Duration::from_secs(48 * 3600);

/// How the client wants to hear of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    AtTheEnd,
    AsItHappens,
}

/// Run code
///
/// Answers when the run has ended; with `Accept: text/event-stream`, as it happens, by the events `pull` (an image is
/// fetched for it: `image`, `layer`, `status`, `current`, `total`), `start` (what is known beforehand), `stdout` and `stderr` (`{"text": …}`), and `end` (the result) or `error` (the error object). A client
/// that goes away cancels its run.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", operation_id = "createRun",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$",
        description = "The same key with the same body gives the same result, without a second run; \
                       with another body it is a conflict. A run that was cancelled does not count.")),
    request_body(content = RunRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "The run took place", content(
            (RunResult = "application/json"), (String = "text/event-stream")),
            headers(
                ("Idempotency-Replayed" = String, description = "`true` if an earlier request started the run"),
                ("Server-Timing" = String, description = "`run;dur=` and the milliseconds that the engine took, the queue included"),
            )),
        (status = 400, description = "Not a request; `field` says where", body = Problem),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "The caller may not ask for that", body = Problem),
        (status = 409, description = "The Idempotency-Key was used for another request", body = Problem),
        (status = 413, description = "The body, the code or the files are too large", body = Problem),
        (status = 415, description = "The body is not announced as JSON", body = Problem),
        (status = 429, description = "Every slot is taken and the queue is full, or the caller has its share; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed", body = Problem),
        (status = 501, description = "This host cannot keep a guarantee", body = Problem),
        (status = 503, description = "The backend or the language is not there", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Response> {
    let (head, body) = request.into_parts();
    let manner = Manner::of(&head.headers);
    let key = idempotency_key(&head.headers).map_err(IntoResponse::into_response)?;
    let received = body::read(&app, &head.headers, body).await?;
    let answered = match key {
        None => start(&app, &caller, received, manner).await,
        Some(key) => start_once(&app, &caller, &key, received, manner).await,
    };
    answered.map_err(IntoResponse::into_response)
}

/// The result of a run, while it is kept
#[utoipa::path(
    get, path = "/v1/runs/{id}", tag = "runs", operation_id = "findRun",
    params(("id" = String, Path, description = "The run's identifier")),
    responses(
        (status = 200, description = "It has ended", body = RunResult),
        (status = 202, description = "It has not ended yet", body = RunState),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin", body = Problem),
        (status = 404, description = "No such run of this caller's, or not any more", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed to run it", body = Problem),
        (status = 503, description = "The language was not there", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn find(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Refused> {
    let id = identifier(id)?;
    match app.runs.find(&caller, &id)? {
        Found::Running => Ok((StatusCode::ACCEPTED, Json(RunState::running(&id))).into_response()),
        Found::Finished(end) => Ok(answer::result(&app, end?, Duration::ZERO).await?),
    }
}

/// Cancel a run
///
/// Its result follows, with the status `cancelled`.
#[utoipa::path(
    post, path = "/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancelRun",
    params(("id" = String, Path, description = "The run's identifier")),
    responses(
        (status = 202, description = "It was told to end", body = RunState),
        (status = 401, description = "No key, or one that is not known", body = Problem),
        (status = 403, description = "A foreign Host or Origin", body = Problem),
        (status = 404, description = "No such run of this caller's, or not any more", body = Problem),
        (status = 409, description = "It has ended already", body = Problem),
        (status = 429, description = "Too many requests; `Retry-After` says when to come back", body = Problem, headers(("Retry-After" = u64, description = "Seconds"))),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<RunState>), Refused> {
    let id = identifier(id)?;
    app.runs.cancel(&caller, &id)?;
    Ok((StatusCode::ACCEPTED, Json(RunState::cancelling(&id))))
}

/// A path that is not even text names no run.
fn identifier(path: Result<Path<String>, PathRejection>) -> Result<String, Refused> {
    path.map(|Path(id)| id).map_err(|_| Refused(no_such_run("?")))
}

async fn start(app: &App, caller: &Caller, received: Received, manner: Manner) -> Result<Response, Refused> {
    let request = RunRequest::from_json(&received.bytes)?;
    let run = app.runs.start(caller, request).await?;
    follow(app, run, received.share, manner).await
}

/// The same for a request that may have come before.
async fn start_once(
    app: &App,
    caller: &Caller,
    key: &Key,
    received: Received,
    manner: Manner,
) -> Result<Response, Refused> {
    loop {
        let request = RunRequest::from_json(&received.bytes)?;
        match app.replays.start(&app.runs, caller, key, &received.bytes, request)? {
            Origin::New(run) => return follow(app, run, received.share, manner).await,
            Origin::Known(id) => match app.runs.wait(caller, &id, LONG).await {
                Ok(Found::Finished(end)) if answers(&Found::Finished(end.clone())) => {
                    drop(received.share);
                    return again(app, &end, manner).await;
                }
                // It was cancelled under our feet, or has been forgotten: then this is the first.
                Ok(Found::Finished(_) | Found::Running) | Err(_) => {}
            },
        }
    }
}

async fn follow(app: &App, run: Run, share: Share, manner: Manner) -> Result<Response, Refused> {
    match manner {
        Manner::AsItHappens => events::tell(app, run, share).await,
        Manner::AtTheEnd => {
            let finished = run.result().await?;
            drop(share);
            let timing = format!("run;dur={:.3}", finished.took.as_secs_f64() * 1e3);
            let response = answer::result(app, finished, answer::PATIENCE).await?;
            Ok(([(SERVER_TIMING, timing)], response).into_response())
        }
    }
}

async fn again(app: &App, end: &End, manner: Manner) -> Result<Response, Refused> {
    let mut response = match manner {
        Manner::AsItHappens => events::tell_again(app, end).await?,
        Manner::AtTheEnd => answer::result(app, end.clone()?, Duration::ZERO).await?,
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

impl Manner {
    fn of(headers: &HeaderMap) -> Manner {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut kinds = accepted.flat_map(|value| value.split(','));
        if kinds.any(wants_events) { Manner::AsItHappens } else { Manner::AtTheEnd }
    }
}

/// Whether one of the kinds that a client accepts is a stream of events; `q=0` says that it is not (RFC 9110, 12.4.2).
fn wants_events(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_stream = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"));
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let refused =
        quality.and_then(|text| text.trim().parse::<f32>().ok()).is_some_and(|quality| quality <= 0.0);
    is_stream && !refused
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<Key>, Refused> {
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

    #[test]
    fn events_are_told_to_those_who_want_them() {
        let manner = |accept: &'static [&'static str]| {
            let values = accept.iter().map(|value| (header::ACCEPT, HeaderValue::from_static(value)));
            Manner::of(&values.collect())
        };
        for accept in [
            &["text/event-stream"][..],
            &["application/json", "text/event-stream"],
            &["application/json, Text/Event-Stream;q=0.001"],
            &["text/event-stream; charset=utf-8; q=1"],
        ] {
            assert_eq!(manner(accept), Manner::AsItHappens, "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["text/event-stream;q=0"],
            &["text/event-stream; Q=0.000, application/json"],
            &["text/event-streams"],
        ] {
            assert_eq!(manner(accept), Manner::AtTheEnd, "{accept:?}");
        }
    }
}
