//! MCP over HTTP, at `/mcp`.
//!
//! Nothing is kept between requests, in either era: a client that comes back after an hour, or after a restart, is
//! served, and what clients can make us hold is bounded by their connections. The generation that begins with
//! `initialize` may cancel a request by a message of its own instead of by closing the connection. For its sake it
//! gets a session id, which is nothing but a name under which its requests in flight are found.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use belljar_core::allowance::Allowance;
use belljar_engine::{Engine, Prepared};
use futures_util::StreamExt;
use rmcp::ServerHandler;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::service::{Held, Service, Who};
use super::tools::Offer;
use super::{call, refusal};
use crate::bodies::is_affordable;
use crate::caller::Caller;
use crate::config::Config;
use crate::defaults::Defaults;
use crate::http::App;
use crate::http::body::{Received, receive};
use crate::listen;
use crate::mcp::refusal::MAX_NAME;
use crate::places::Places;
use crate::quiet::Entry;
use crate::runs::Runs;
use crate::server::{ServeError, threads};
use crate::socket::Listener;

const SESSION: &str = "mcp-session-id";
/// The longest session id that can be one of ours.
const MAX_SESSION: usize = 64;

/// What is mounted; the guard of [`http`](crate::http) stands before it.
pub(crate) fn router(app: &App) -> Router {
    let (languages, memory) = (app.languages.clone(), app.memory.clone());
    let service = Service::new(app.runs.clone(), &app.config, Who::OfTheRequest, languages, memory);
    mount(service, app.clone())
}

/// Serves any handler at `/mcp`, behind the transport of the product, to anybody who can connect, until `stop` resolves. The
/// protocol's conformance runner wants tools, resources and prompts that the product does not have; this is how the tests
/// put them behind the product's own transport.
///
/// # Errors
/// That the threads cannot be started, or that the socket cannot be used.
pub fn serve_handler<S>(
    handler: S,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    S: ServerHandler + Clone,
{
    let (threads, config) = (threads("belljar-mcp", 2)?, Config::default());
    let engine = Engine::new(Vec::new(), |unread| Ok(Prepared::unchanged(unread)));
    let runs = Runs::new(engine, &config, threads.handle().clone());
    let app = App::new(runs, config);
    let anybody = Caller::anonymous(Allowance::boxed(), Arc::default(), &Defaults::default());
    let router = mount(handler, app.clone()).layer(Extension(anybody));
    let served = threads.block_on(async {
        let door = Listener::tcp(listener).open().map_err(ServeError::Listen)?;
        let places = Places::new(app.config.max_connections, app.config.max_per_address());
        let entry = watch::Sender::new(Entry::Open);
        drop(listen::accept(door, router, &app.config, (places, &entry), stop).await);
        Ok(())
    });
    threads.shutdown_background();
    served
}

/// A service at `/mcp`. The router that mounts it adds the [`Caller`] to every request.
fn mount<S>(service: S, app: App) -> Router
where
    S: ServerHandler + Clone,
{
    let protocol =
        StreamableHttpService::new(move || Ok(service.clone()), Arc::default(), transport(&app.config));
    let endpoint = Endpoint { protocol, flights: Flights::default(), app };
    Router::new().route("/mcp", post(serve::<S>)).with_state(endpoint)
}

struct Endpoint<S> {
    protocol: StreamableHttpService<S, NeverSessionManager>,
    flights: Flights,
    app: App,
}

impl<S> Clone for Endpoint<S> {
    fn clone(&self) -> Endpoint<S> {
        Endpoint { protocol: self.protocol.clone(), flights: self.flights.clone(), app: self.app.clone() }
    }
}

/// The guard has looked at `Host` and `Origin` already. That the protocol looks again costs nothing, and only a server
/// with keys has other names.
fn transport(config: &Config) -> StreamableHttpServerConfig {
    let transport = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_sse_keep_alive(Some(config.heartbeat))
        .with_max_request_body_bytes(config.max_body);
    if config.keys.is_empty() {
        let own = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"].map(str::to_owned);
        transport.with_allowed_origins(own.into_iter().chain(config.origins.iter().cloned()))
    } else {
        transport.disable_allowed_hosts()
    }
}

async fn serve<S: ServerHandler + Clone>(
    State(endpoint): State<Endpoint<S>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Received { bytes, share } = match receive(&endpoint.app.of(&caller), body).await {
        Ok(received) => received,
        Err(problem) => return refusal::problem(&problem),
    };
    if let Some(refusal) = refusal::no_json(&bytes) {
        return refusal;
    }
    let Some(message) = Message::read(&bytes) else { return refusal::no_message() };
    if message.has_a_long_name() {
        return refusal::long_name();
    }
    let session = session_of(&parts.headers);
    if let (Some(session), Some(id)) = (&session, message.cancelled()) {
        endpoint.flights.cancel(&Flight::new(&caller, session, id));
        return StatusCode::ACCEPTED.into_response();
    }
    let ticket = session
        .zip(message.id)
        .map(|(session, id)| endpoint.flights.clone().take_off(Flight::new(&caller, &session, id)));
    let held = Held::default();
    held.set(Some(share));
    parts.extensions.insert(held.clone());
    let (id, is_initialize) = (refusal::id_of(message.id), message.is("initialize"));
    let request = Request::from_parts(parts.clone(), Body::from(bytes));
    let response = endpoint.protocol.handle(request).await.map(Body::new);
    let mut response = refusal::worded(response, &parts, id).await;
    if !response.status().is_success() {
        return response;
    }
    if is_initialize {
        response.headers_mut().insert(SESSION, new_session());
    }
    until_cancelled(response, ticket, held)
}

/// Whether a body is a message, with arguments that a tool takes if it calls one.
pub(crate) fn understands(body: &[u8]) -> bool {
    if !is_affordable(body) || refusal::no_json(body).is_some() {
        return false;
    }
    if Message::read(body).is_none_or(|message| message.has_a_long_name()) {
        return false;
    }
    let Ok(message) = serde_json::from_slice::<ClientJsonRpcMessage>(body) else { return false };
    let JsonRpcMessage::Request(asked) = message else { return true };
    let ClientRequest::CallToolRequest(asked) = asked.request else { return true };
    call::run_request(asked.params.arguments.unwrap_or_default(), &Offer::everything(&[])).is_ok()
}

/// What has to be known of a message here. Everything stays in the text: a client may send anything in its place.
#[derive(Debug, Default, Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(rename = "requestId", borrow)]
    request_id: Option<&'a RawValue>,
    #[serde(rename = "protocolVersion", borrow)]
    protocol_version: Option<&'a RawValue>,
    #[serde(rename = "_meta", borrow)]
    meta: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(rename = "progressToken", borrow)]
    progress_token: Option<&'a RawValue>,
}

/// Reads as much as there is of it; a value of another kind has nothing of it.
fn part<'a, T: Deserialize<'a> + Default>(value: Option<&'a RawValue>) -> T {
    value.and_then(|value| serde_json::from_str(value.get()).ok()).unwrap_or_default()
}

impl<'a> Message<'a> {
    /// What is no message is for the protocol to refuse, if it is short: the same name twice hides which of the two is meant.
    fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        match serde_json::from_slice(bytes) {
            Ok(message) => Some(message),
            Err(_) => (bytes.len() <= MAX_NAME).then(Message::default),
        }
    }

    /// What the client calls a request, its progress, a method or a version of the protocol comes back in answers, and
    /// goes into the log.
    fn has_a_long_name(&self) -> bool {
        let params: Params<'_> = part(self.params);
        let meta: Meta<'_> = part(params.meta);
        let names = [self.id, self.method, params.request_id, params.protocol_version, meta.progress_token];
        // Two more for the quotation marks.
        names.into_iter().flatten().any(|name| name.get().len() > MAX_NAME + 2)
    }

    fn is(&self, method: &str) -> bool {
        part::<Option<Cow<'_, str>>>(self.method).is_some_and(|own| own == method)
    }

    fn cancelled(&self) -> Option<&'a RawValue> {
        let params: Params<'a> = part(self.params.filter(|_| self.is("notifications/cancelled")));
        params.request_id
    }
}

fn session_of(headers: &HeaderMap) -> Option<String> {
    let session = headers.get(SESSION)?.to_str().ok()?;
    (session.len() <= MAX_SESSION).then(|| session.to_owned())
}

fn new_session() -> HeaderValue {
    let id = belljar_engine::RunId::new().to_string();
    HeaderValue::try_from(id.replacen("run_", "session_", 1)).unwrap_or(HeaderValue::from_static("session"))
}

/// The response, for as long as the client wants it. A body that ends early ends the run behind it.
fn until_cancelled(response: Response, ticket: Option<Ticket>, held: Held) -> Response {
    let mut cancelled = ticket.as_ref().map(|ticket| ticket.cancelled.subscribe());
    let stop = async move {
        match &mut cancelled {
            Some(cancelled) => drop(cancelled.wait_for(|cancelled| *cancelled).await),
            None => std::future::pending().await,
        }
    };
    let held_to_the_end = move |frame| {
        let _ = (&ticket, &held);
        frame
    };
    response.map(|body| {
        Body::from_stream(body.into_data_stream().take_until(Box::pin(stop)).map(held_to_the_end))
    })
}

/// The requests that a client with a session could still cancel.
#[derive(Debug, Clone, Default)]
struct Flights(Arc<Mutex<HashMap<Flight, watch::Sender<bool>>>>);

/// One request of one client of one caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Flight {
    caller: String,
    session: String,
    /// As JSON, because 1 and "1" are two.
    request: String,
}

/// A request in flight; dropping it says that it has landed.
#[derive(Debug)]
struct Ticket {
    flights: Flights,
    flight: Flight,
    cancelled: watch::Sender<bool>,
}

impl Flight {
    fn new(caller: &Caller, session: &str, request: &RawValue) -> Flight {
        let request = request.get().to_owned();
        Flight { caller: caller.name().to_owned(), session: session.to_owned(), request }
    }
}

impl Flights {
    fn take_off(self, flight: Flight) -> Ticket {
        let cancelled = watch::Sender::new(false);
        self.all().insert(flight.clone(), cancelled.clone());
        Ticket { flights: self, flight, cancelled }
    }

    fn cancel(&self, flight: &Flight) {
        if let Some(cancelled) = self.all().get(flight) {
            cancelled.send_replace(true);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Flight, watch::Sender<bool>>> {
        // A thread that panicked with the lock held has changed the map completely or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.flights.all().remove(&self.flight);
    }
}
