//! The loop that accepts connections. It is ours, so that what a hostile client can hold is bounded: the number of
//! connections, the time for a head, the size of a head.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use belljar_wire::{Code, Problem};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::Config;

/// The most that the head of a request may have.
const MAX_HEAD: usize = 64 << 10;
/// How long to wait when a connection cannot be accepted: most likely there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
                Ok((stream, _)) => match open.places.clone().try_acquire_owned() {
                    Ok(place) => {
                        let closing = open.closing.subscribe();
                        tokio::spawn(serve(stream, router.clone(), config.header_timeout, closing, place));
                    }
                    // It is told and let go at once: whoever waits in the kernel's queue waits for nothing.
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

async fn serve(
    stream: TcpStream,
    router: Router,
    header_timeout: Duration,
    mut closing: watch::Receiver<bool>,
    place: OwnedSemaphorePermit,
) {
    // Answers are small and whole; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let told_to_close = async { drop(closing.wait_for(|closing| *closing).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_close => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(cause) = ended {
        tracing::debug!(%cause, "a connection broke off");
    }
    drop(place);
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
