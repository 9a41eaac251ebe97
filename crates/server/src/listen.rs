//! The loop that accepts connections. It is ours, so that what a hostile client can hold is bounded: the number of
//! connections, the time for a head, the size of a head, the time without a byte of the answer being taken.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use belljar_wire::{Code, Problem};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::{Service, ServiceExt};

use crate::config::Config;
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

/// The connections that are still open when no more are accepted.
#[derive(Debug)]
pub(crate) struct Open {
    places: Arc<Semaphore>,
    number: u32,
    closing: watch::Sender<bool>,
}

impl Open {
    /// Asks each connection to end after the answer that it is at, and waits for that.
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        let _ = self.places.acquire_many(self.number).await;
    }
}

/// Serves connections until told to stop.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    config: &Config,
    stop: impl Future<Output = ()>,
) -> Open {
    let number = u32::try_from(config.max_connections).unwrap_or(u32::MAX);
    let open = Open {
        places: Arc::new(Semaphore::new(number as usize)),
        number,
        closing: watch::Sender::new(false),
    };
    let refusal = refusal();
    let serving = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => match open.places.clone().try_acquire_owned() {
                    Ok(place) => {
                        let closing = open.closing.subscribe();
                        let router = router.clone().map_request(from(peer.ip()));
                        let serving = serve(stream, router, config.header_timeout, closing, place);
                        tokio::spawn(Repoll::new(serving));
                    }
                    // It is told and let go at once: a connection that stayed in the kernel's queue would wait for nothing.
                    Err(_) => drop(stream.try_write(refusal.as_bytes())),
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

/// Adds the address of a connection to its requests.
fn from(peer: IpAddr) -> impl Fn(Request<Incoming>) -> Request<Incoming> + Clone {
    move |mut request| {
        // Of a socket for both versions of IP, an address of the older one.
        request.extensions_mut().insert(PeerAddress(peer.to_canonical()));
        request
    }
}

async fn serve<S>(
    stream: TcpStream,
    router: S,
    header_timeout: Duration,
    mut closing: watch::Receiver<bool>,
    place: OwnedSemaphorePermit,
) where
    S: Service<Request<Incoming>, Response = axum::response::Response, Error = Infallible> + Clone,
{
    prepare(&stream);
    let peer = Peer(Arc::new(stream));
    let watched = peer.clone();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD);
    let service = TowerToHyperService::new(router);
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
    }
    drop(place);
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
struct Peer(Arc<TcpStream>);

impl Peer {
    /// Waits until the client sends no more, whether or not what it sent has been read.
    async fn hung_up(&self) {
        // Sockets are not registered for urgent data, and what is left of this interest is the end of the stream;
        // waiting for something to read would return at once for as long as the stray byte is there.
        let _ = self.0.ready(Interest::PRIORITY).await;
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(buffer.initialize_unfilled()) {
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
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(pieces) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.0, Shutdown::Write).map_err(io::Error::from))
    }
}

/// What a connection too many is told, whatever it was about to ask.
fn refusal() -> String {
    let message = "there are as many connections as the server takes";
    let body = belljar_wire::to_json(&Problem::new(Code::Busy, message, "try again in a second"));
    format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
