//! Runs: started, looked up, cancelled.

use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem, RunRequest, RunState};

use super::body::{self, Received, Share};
use super::{App, Refused, events};
use crate::caller::Caller;
use crate::idempotency::{Key, Origin, answers};
use crate::runs::{End, Found, Run};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";
/// Longer than any run: the longest timeout is a day.
const LONG: Duration = Duration::from_secs(48 * 3600);

/// How the client wants to hear of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    AtTheEnd,
    AsItHappens,
}

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

pub(super) async fn find(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Refused> {
    match app.runs.find(&caller, &id)? {
        Found::Running => Ok((StatusCode::ACCEPTED, Json(RunState::running(&id))).into_response()),
        Found::Finished(end) => Ok(Json(end?.result()).into_response()),
    }
}

pub(super) async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<RunState>), Refused> {
    app.runs.cancel(&caller, &id)?;
    Ok((StatusCode::ACCEPTED, Json(RunState::cancelling(&id))))
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
                    return again(&end, manner);
                }
                // It was cancelled under our feet, or has been forgotten: then this is the first.
                Ok(Found::Finished(_) | Found::Running) | Err(_) => {}
            },
        }
    }
}

async fn follow(app: &App, run: Run, share: Share, manner: Manner) -> Result<Response, Refused> {
    match manner {
        Manner::AsItHappens => events::tell(run, share, app.config.heartbeat).await,
        Manner::AtTheEnd => {
            let finished = run.result().await?;
            drop(share);
            Ok(Json(finished.result()).into_response())
        }
    }
}

fn again(end: &End, manner: Manner) -> Result<Response, Refused> {
    let mut response = match manner {
        Manner::AsItHappens => events::tell_again(end),
        Manner::AtTheEnd => Json(end.clone()?.result()).into_response(),
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

impl Manner {
    fn of(headers: &HeaderMap) -> Manner {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut kinds = accepted.flat_map(|value| value.split(','));
        let is_stream =
            |kind: &str| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream");
        if kinds.any(is_stream) { Manner::AsItHappens } else { Manner::AtTheEnd }
    }
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
