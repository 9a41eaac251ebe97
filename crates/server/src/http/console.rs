//! The console: a page that comes from the binary, and the sessions of those who log in to it with a key.
//!
//! The page is made in `web/`; `ci/console/build` puts what comes out next to this file. A session is a cookie that stands
//! for a key on the paths that the console asks. A page of another site cannot use it: the cookie is `SameSite=Strict`,
//! and what carries it has to come from a page of this server.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use belljar_wire::{Code, Problem};
use serde::{Deserialize, Serialize};

use super::embedded::{self, Encoding, File, HTML, PICTURE, SCRIPT, STYLE};
use super::{App, Refused, body, guard};
use crate::caller::{Caller, Callers};
use crate::sessions::LIFETIME;

/// Nothing but our own files, pictures that are in the page itself, and no way to make markup from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const FILES: [File; 4] = [
    file("/", HTML, include_bytes!("console/index.html.gz")),
    file("/console/console.js", SCRIPT, include_bytes!("console/console.js.gz")),
    file("/console/console.css", STYLE, include_bytes!("console/console.css.gz")),
    file("/console/icon.svg", PICTURE, include_bytes!("console/icon.svg.gz")),
];

/// Where sessions begin and end. Not a part of the contract: it belongs to the page.
const SESSION: &str = "/console/session";
const COOKIE: &str = "belljar_session";
/// A key in JSON is far smaller.
const MOST_BYTES: usize = 4096;

const fn file(path: &'static str, kind: &'static str, bytes: &'static [u8]) -> File {
    File { path, kind, encoding: Encoding::Gzip, bytes, policy: POLICY }
}

/// Whether anybody may ask for this path, with a key or without.
pub(super) fn is_open(path: &str) -> bool {
    path == SESSION || FILES.iter().any(|file| file.path == path)
}

pub(super) fn router(app: &App) -> Router {
    let session = get(show).post(begin).delete(end);
    Router::new().route(SESSION, session).with_state(app.clone()).merge(embedded::router(&FILES))
}

/// Who uses the console, and what it can offer them.
#[derive(Debug, Serialize)]
struct Session {
    /// Whether the server has keys, so that one logs in and out.
    login: bool,
    /// The name of the key, or `null` before the login.
    caller: Option<String>,
    /// Whether there is an audit log that the caller may read.
    audit: bool,
    /// Whether runs can wait for approval here.
    approvals: bool,
    /// Whether the caller may decide about them.
    decides: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    key: String,
}

async fn show(State(app): State<App>, request: Request) -> Json<Session> {
    let callers = app.callers();
    let caller = match &*callers {
        Callers::Anyone(caller) => Some(caller.clone()),
        // A session that has expired is none.
        Callers::Holders(_) => holder(&app, &callers, &request).ok().flatten(),
    };
    Json(session(&app, &callers, caller.as_ref()))
}

async fn begin(State(app): State<App>, request: Request) -> Result<Response, Response> {
    let (head, body) = request.into_parts();
    if !body::is_json(&head.headers) {
        return Err(body::not_json());
    }
    let refused = |problem: Problem| Refused(problem).into_response();
    let Login { key } = read(&app, body).await.map_err(refused)?;
    let (callers, now) = (app.callers(), Instant::now());
    let caller = log_in(&callers, &key, now).map_err(refused)?;
    let token = app.sessions.begin(crate::caller::KeyHash::of(&key), now);
    let token = token.map_err(|cause| refused(no_token(&cause)))?;
    let cookie = cookie(&token, LIFETIME.as_secs(), is_over_tls(&head.headers));
    tracing::info!(caller = caller.name(), "a session of the console begins");
    Ok(([(header::SET_COOKIE, cookie)], Json(session(&app, &callers, Some(&caller)))).into_response())
}

async fn end(State(app): State<App>, request: Request) -> Result<Response, Refused> {
    refuse_other_pages(&request)?;
    if let Some(token) = token(request.headers()) {
        app.sessions.end(token, Instant::now());
    }
    let cookie = cookie("", 0, is_over_tls(request.headers()));
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

fn session(app: &App, callers: &Callers, caller: Option<&Caller>) -> Session {
    Session {
        login: matches!(callers, Callers::Holders(_)),
        caller: caller.map(|caller| caller.name().to_owned()),
        audit: app.config.audit.is_some() && caller.is_some_and(|caller| caller.may_audit().is_ok()),
        approvals: app.config.approvals.is_some(),
        decides: caller.is_some_and(Caller::approves),
    }
}

/// The holder of the key that the request's session stands for, or nobody if it has no session or is not for the
/// console to make.
///
/// # Errors
/// That the session has ended, or that the request comes from a page of another site.
pub(super) fn holder(app: &App, callers: &Callers, request: &Request) -> Result<Option<Caller>, Problem> {
    let Some(token) = token(request.headers()).filter(|_| is_asked_by_console(request.uri().path())) else {
        return Ok(None);
    };
    refuse_other_pages(request)?;
    let key = app.sessions.key(token, Instant::now()).ok_or_else(ended)?;
    callers.by_hash(key).map(Some).ok_or_else(ended)
}

/// A session is for these alone: other interfaces have clients that send a key.
fn is_asked_by_console(path: &str) -> bool {
    path.starts_with("/v1/") || ["/metrics", SESSION].contains(&path)
}

/// Refuses what a browser says another page has asked for; and what changes something, unless the browser says that it was
/// a page of this server.
fn refuse_other_pages(request: &Request) -> Result<(), Problem> {
    let is_foreign = guard::is_from_elsewhere(request.headers());
    let only_reads = [Method::GET, Method::HEAD].contains(request.method());
    if is_foreign || !only_reads && !guard::comes_from_own_page(request) {
        let hint = "use the console at / of this server; programs send a key as Authorization: Bearer KEY";
        let message = "a session of the console is for pages of this server alone";
        return Err(Problem::new(Code::Forbidden, message, hint));
    }
    Ok(())
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find_map(|(name, value)| (name == COOKIE).then_some(value))
}

fn cookie(token: &str, seconds: u64, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Whether the browser's connection is encrypted: only the page knows, if a proxy speaks TLS for this server.
fn is_over_tls(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

async fn read(app: &App, body: Body) -> Result<Login, Problem> {
    let reading = axum::body::to_bytes(body, MOST_BYTES);
    let bytes = tokio::time::timeout(app.config.body_timeout, reading).await;
    let bytes = bytes.ok().and_then(Result::ok).ok_or_else(unreadable)?;
    serde_json::from_slice(&bytes).map_err(|_| unreadable())
}

fn log_in(callers: &Callers, key: &str, now: Instant) -> Result<Caller, Problem> {
    if let Callers::Anyone(_) = callers {
        let hint = "use the console as it is";
        return Err(Problem::new(Code::InvalidRequest, "this server has no keys to log in with", hint));
    }
    let caller = callers.holder(key).ok_or_else(guard::unknown_key)?;
    caller.spend(now)?;
    Ok(caller)
}

fn unreadable() -> Problem {
    Problem::new(Code::InvalidRequest, "the body is not a login", "send {\"key\": \"…\"}")
}

fn ended() -> Problem {
    Problem::new(Code::Unauthorized, "the session has ended", "log in again with a key")
}

fn no_token(cause: &std::io::Error) -> Problem {
    let message = format!("cannot make a session: {cause}");
    Problem::new(Code::Internal, message, "see the server's log")
}
