//! The loop that accepts connections. It is ours, so that what a hostile client can hold is bounded: the number of
//! connections (in all, and from one address), the time for a head, the size of a head, the time without a byte of the
//! answer being taken.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
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
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::config::Config;
use crate::http::{Refused, held};
use crate::places::{Place, Places};
use crate::repoll::Repoll;

/// The most that the head of a request may have.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// How long to wait when a connection cannot be accepted: most likely there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take nothing of what it is being sent, in milliseconds.
const UNREAD: u32 = 60_000;

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

/// Serves connections until told to stop.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    config: &Config,
    stop: impl Future<Output = ()>,
) -> Open {
    let places = Places::new(config.max_connections, config.max_per_address());
    let open = Open { places, closing: watch::Sender::new(false) };
    let refusal = refusal();
    let serving = async {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => match open.places.enter(address.ip()) {
                    Some(place) => {
                        let closing = open.closing.subscribe();
                        let client = (stream, PeerAddress::of(address));
                        let serving = serve(client, router.clone(), config.header_timeout, closing, place);
                        tokio::spawn(Repoll::new(serving));
                    }
                    // It is told and let go at once: a connection that stayed in the kernel's queue would wait for nothing.
                    None => turn_away(&stream, address, &refusal),
                },
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = stop => {}
    }
    open
}

fn turn_away(stream: &TcpStream, address: SocketAddr, refusal: &str) {
    tracing::debug!(%address, "there is no place for a connection");
    let _ = stream.try_write(refusal.as_bytes());
}

async fn serve(
    (stream, address): (TcpStream, PeerAddress),
    router: Router,
    header_timeout: Duration,
    mut closing: watch::Receiver<bool>,
    place: Place,
) {
    prepare(&stream);
    let peer = Peer { stream: Arc::new(stream), place: Arc::new(place) };
    let watched = peer.clone();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD);
    let (router, place) = (TowerToHyperService::new(router), peer.place.clone());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(address);
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
        () = watched.place.told_to_go() => tracing::debug!("a client that asked for nothing makes room for another"),
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

fn prepare(stream: &TcpStream) {
    // Answers are small and whole; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    // A client that does not read would hold its answer for ever: to the kernel its closed window is a sign of life.
    if let Err(cause) = sockopt::set_tcp_user_timeout(stream, UNREAD) {
        tracing::warn!(%cause, "cannot bound how long a client may leave its answer unread");
    }
}

/// A client's socket, to be served and to be watched at the same time. HTTP looks for the end of what a client sends
/// only when it has nothing of it in its buffer: a stray byte after a request would hide that the client has gone.
#[derive(Debug, Clone)]
struct Peer {
    stream: Arc<TcpStream>,
    place: Arc<Place>,
}

impl Peer {
    /// Waits until the client sends no more, whether or not what it sent has been read.
    async fn hung_up(&self) {
        // Sockets are not registered for urgent data, and what is left of this interest is the end of the stream;
        // waiting for something to read would return at once for as long as the stray byte is there.
        let _ = self.stream.ready(Interest::PRIORITY).await;
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
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write_vectored(pieces) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
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

/// What a connection too many is told, whatever it was about to ask.
fn refusal() -> String {
    let body = belljar_wire::to_json(&no_place());
    format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn no_place() -> Problem {
    let message = "there are as many connections as the server takes, in all or from this address";
    let problem = Problem::new(Code::Busy, message, "try again in a second");
    Problem { retry_after: Some(Duration::from_secs(1)), ..problem }
}
