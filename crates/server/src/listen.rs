//! The loop that accepts connections. It is ours, so that what a hostile client can hold is bounded: the number of
//! connections (in all, and from one address), the time for a head, the size of a head, the time without a byte of the
//! answer being taken.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

use crate::config::Config;
use crate::http::{Refused, held};
use crate::places::{Place, Places};
use crate::quiet::Entry;
use crate::repoll::Repoll;
use crate::socket::{Client, Door, Stream};

/// The most that the head of a request may have.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// How long to wait when a connection cannot be accepted: most likely there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many of those who may not connect are listened to at a time before they are told so, and for how long each.
const STRANGERS: usize = 16;
const HEARING: Duration = Duration::from_secs(1);
/// How long a client may take nothing of what it is being sent, in milliseconds.
const UNREAD: u32 = 60_000;
/// The same on a unix socket, for which the kernel has no such limit.
const UNREAD_TIME: Duration = Duration::from_millis(UNREAD as u64);

/// The address that a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

impl PeerAddress {
    /// On a socket for both versions of IP, an address of the older one is still that.
    fn of(address: SocketAddr) -> PeerAddress {
        PeerAddress(address.ip().to_canonical())
    }
}

/// The connections that are still open when no more are accepted.
#[derive(Debug)]
pub(crate) struct Open {
    places: Places,
    closing: watch::Sender<bool>,
}

impl Open {
    /// Asks each connection to end after the answer that it is at, and waits for that.
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        self.places.emptied().await;
    }
}

/// The loop, and what it has for each connection.
struct Reception<'a> {
    open: &'a Open,
    router: Router,
    config: &'a Config,
    /// What a connection too many is told, whatever it was about to ask.
    no_place: String,
    /// What a user is told whose server this is not.
    no_right: String,
    /// How many of those are listened to.
    strangers: Arc<Semaphore>,
}

/// Serves connections until told to stop. If nobody is let in any more, those who have connected already are served all the
/// same.
pub(crate) async fn accept(
    door: Door,
    router: Router,
    config: &Config,
    (places, entry): (Places, &watch::Sender<Entry>),
    stop: impl Future<Output = ()>,
) -> Open {
    let open = Open { places, closing: watch::Sender::new(false) };
    let (no_place, no_right) =
        (refusal("429 Too Many Requests", &no_place()), refusal("403 Forbidden", &no_right()));
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let reception = Reception { open: &open, router, config, no_place, no_right, strangers };
    let serving = async {
        tokio::select! {
            () = reception.receive(&door) => {}
            () = closing(entry) => door.close().into_iter().for_each(|client| reception.greet(client)),
        }
        entry.send_replace(Entry::Closed);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        () = stop => {}
    }
    drop(reception);
    open
}

impl Reception<'_> {
    /// Tells one who may not connect why, after the head of their request: some clients take no answer before they have
    /// asked. They hold none of the places, and only so many are listened to at a time.
    fn refuse(&self, stream: Stream) {
        let refusal = self.no_right.clone();
        let Ok(turn) = self.strangers.clone().try_acquire_owned() else {
            return turn_away(&stream, &refusal);
        };
        tokio::spawn(async move {
            let _ = timeout(HEARING, head_of(&stream)).await;
            turn_away(&stream, &refusal);
            drop(turn);
        });
    }
}

/// Waits for the end of a request's head, or of the request.
async fn head_of(stream: &Stream) -> io::Result<()> {
    let (mut head, mut piece) = (Vec::new(), [0; 4096]);
    while head.len() < MAX_HEAD {
        poll_fn(|context| stream.poll_read_ready(context)).await?;
        match stream.try_read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => head.extend_from_slice(&piece[..length]),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => continue,
            Err(cause) => return Err(cause),
        }
        if head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            return Ok(());
        }
    }
    Ok(())
}

async fn closing(entry: &watch::Sender<Entry>) {
    let _ = entry.subscribe().wait_for(|entry| *entry != Entry::Open).await;
}

impl Reception<'_> {
    async fn receive(&self, door: &Door) {
        loop {
            match door.accept().await {
                Ok(client) => self.greet(client),
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn greet(&self, Client { stream, address, is_welcome }: Client) {
        if !is_welcome {
            tracing::warn!("another user has connected to the socket and was refused");
            return self.refuse(stream);
        }
        // All of a unix socket's clients are on this machine.
        let place =
            self.open.places.enter(address.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip()));
        let Some(place) = place else {
            // It is told and let go at once: a connection that stayed in the kernel's queue would wait for nothing.
            tracing::debug!(?address, "there is no place for a connection");
            return turn_away(&stream, &self.no_place);
        };
        let closing = self.open.closing.subscribe();
        let client = (stream, address.map(PeerAddress::of));
        let serving = serve(client, self.router.clone(), self.config.header_timeout, closing, place);
        tokio::spawn(Repoll::new(serving));
    }
}

fn turn_away(stream: &Stream, refusal: &str) {
    let _ = stream.try_write_vectored(&[IoSlice::new(refusal.as_bytes())]);
}

async fn serve(
    (stream, address): (Stream, Option<PeerAddress>),
    router: Router,
    header_timeout: Duration,
    mut closing: watch::Receiver<bool>,
    place: Place,
) {
    prepare(&stream);
    let (stream, place) = (Arc::new(stream), Arc::new(place));
    let (watched, watched_place) = (stream.clone(), place.clone());
    let peer = Peer { stream, place, unread: None };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD);
    let (router, place) = (TowerToHyperService::new(router), peer.place.clone());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        address.and_then(|address| request.extensions_mut().insert(address));
        answer(place.clone(), router.clone(), request)
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(peer), service).with_upgrades());
    let told_to_close = async { drop(closing.wait_for(|closing| *closing).await) };
    let serving = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = told_to_close => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        // An answer that is there already is sent, even to a client that has said its last word.
        biased;
        ended = serving => if let Err(cause) = ended {
            tracing::debug!(%cause, "a connection broke off");
        },
        () = watched.hung_up() => tracing::debug!("a client hung up"),
        () = watched_place.told_to_go() => tracing::debug!("a client that asked for nothing makes room for another"),
    }
}

/// Answers a request. It is under way until the last byte of the answer was handed to the connection.
async fn answer(
    place: Arc<Place>,
    router: TowerToHyperService<Router>,
    request: hyper::Request<Incoming>,
) -> Result<Response, std::convert::Infallible> {
    let Some(serving) = place.serve() else { return Ok(Refused(no_place()).into_response()) };
    router.call(request).await.map(|response| held::until_sent(response, serving))
}

fn prepare(stream: &Stream) {
    let Stream::Tcp(stream) = stream else { return };
    // Answers are small and whole; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    // A client that does not read would hold its answer for ever: to the kernel its closed window is a sign of life.
    if let Err(cause) = sockopt::set_tcp_user_timeout(stream, UNREAD) {
        tracing::warn!(%cause, "cannot bound how long a client may leave its answer unread");
    }
}

/// A client's socket, to be served and to be watched at the same time. HTTP looks for the end of what a client sends
/// only when it has nothing of it in its buffer: a stray byte after a request would hide that the client has gone.
#[derive(Debug)]
struct Peer {
    stream: Arc<Stream>,
    place: Arc<Place>,
    /// Runs while a client on a unix socket takes nothing.
    unread: Option<Pin<Box<Sleep>>>,
}

impl Peer {
    /// Waits for a client that has not taken what it was sent, but not for ever.
    fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Stream::Tcp(_) = *self.stream {
            return Poll::Pending;
        }
        let unread = self.unread.get_or_insert_with(|| Box::pin(sleep(UNREAD_TIME)));
        ready!(unread.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|number| buffer.advance(number))),
            }
        }
    }
}

impl AsyncWrite for Peer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(context) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return self.poll_unread(context),
            }
            match self.stream.try_write_vectored(pieces) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.unread = None;
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Called when all that was written has gone into the socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.place.sent();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

/// A whole answer to a request that is not read.
fn refusal(status: &str, problem: &Problem) -> String {
    let body = belljar_wire::to_json(problem);
    let retry =
        problem.retry_after.map(|wait| format!("retry-after: {}\r\n", wait.as_secs())).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{retry}connection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn no_place() -> Problem {
    let message = "there are as many connections as the server takes, in all or from this address";
    let problem = Problem::new(Code::Busy, message, "try again in a second");
    Problem { retry_after: Some(Duration::from_secs(1)), ..problem }
}

fn no_right() -> Problem {
    let message = "this socket is for the user who started the server, and for root";
    Problem::new(Code::Forbidden, message, "start a server of your own with `belljar serve`")
}
