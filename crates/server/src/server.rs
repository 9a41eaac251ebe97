//! The parts, put together.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use belljar_engine::{Engine, Programs, Slots};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::config::{Config, MOST_PROGRAMS};
use crate::http::{self, App};
use crate::runs::Runs;
use crate::{listen, watchdog};

/// How long those who listen, on a connection or a WebSocket, may take to hear that their run has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long the boxes that were killed at the deadline may take to be gone: longer than the engine waits for one.
pub(crate) const LAST_RITES: Duration = Duration::from_secs(10);

/// Threads beyond those that may all be building a box.
const ANSWERING: usize = 2;

/// A server that is ready to serve.
#[derive(Debug)]
pub struct Server {
    app: App,
    /// The threads that answer requests and drive runs.
    threads: Runtime,
}

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// There are no threads to be had.
    #[error("cannot start the server's threads")]
    Threads(#[source] io::Error),
    /// The socket cannot be used.
    #[error("cannot listen")]
    Listen(#[source] io::Error),
    /// What came in on standard input was no MCP.
    #[error("the client does not speak MCP")]
    Protocol(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Server {
    /// A server over an engine.
    ///
    /// # Errors
    /// That the threads for it cannot be started.
    pub fn new(engine: Engine, config: Config) -> Result<Server, ServeError> {
        let threads = threads("belljar-serve", config.slots.clamp(2, 64) + ANSWERING)?;
        let engine = engine.with_slots(Slots::new(config.slots, config.queue));
        let engine = engine.with_programs(Programs::new(MOST_PROGRAMS));
        engine.upkeep().for_each(|upkeep| drop(threads.spawn(upkeep)));
        let runs = Runs::new(engine, &config, threads.handle().clone());
        Ok(Server { app: App::new(runs, config), threads })
    }

    /// Serves until `until` resolves, which may meanwhile change who may ask; then lets the runs that are under way
    /// end, kills those that have not by the deadline, and returns when nothing is left, or nothing that can be killed.
    ///
    /// # Errors
    /// That the socket cannot be used.
    pub fn serve<F: Future<Output = ()>>(
        self,
        listener: TcpListener,
        until: impl FnOnce(App) -> F,
    ) -> Result<(), ServeError> {
        listener.set_nonblocking(true).map_err(ServeError::Listen)?;
        watchdog::start(self.app.runs.clone(), self.threads.handle().clone()).map_err(ServeError::Threads)?;
        self.threads.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Listen)?;
            let stop = async {
                until(self.app.clone()).await;
                self.app.draining.send_replace(true);
            };
            let open = listen::accept(listener, http::router(&self.app), &self.app.config, stop).await;
            // A run need not have a connection: that of a WebSocket is not counted, and some are left alone.
            let ending = async {
                tokio::join!(self.app.runs.engine().retire(), open.close());
                self.leave_nothing().await;
            };
            if timeout(self.app.config.drain, ending).await.is_err() {
                let runs = self.app.runs.count();
                tracing::warn!(runs, "the deadline has come; what still runs is killed");
            }
            self.app.runs.cancel_all();
            let leaving = async { tokio::join!(self.app.runs.engine().retire(), self.leave_nothing()) };
            if timeout(LAST_RITES, leaving).await.is_err() {
                let runs = self.app.runs.count();
                tracing::error!(runs, "cannot end what still runs; the server exits without it");
            }
            // Clients whose runs were killed are told so, if they still listen.
            let telling = async {
                open.close().await;
                self.close_sockets().await;
            };
            let _ = timeout(FAREWELL, telling).await;
            Ok(())
        })?;
        self.threads.shutdown_background();
        Ok(())
    }

    /// Waits for the boxes to be gone. A box that cannot be killed is given up by the engine after a while.
    async fn leave_nothing(&self) {
        while self.app.runs.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for the WebSockets to be gone; each goes when its run has ended.
    async fn close_sockets(&self) {
        let all = u32::try_from(self.app.config.max_connections).unwrap_or(u32::MAX);
        let _ = self.app.sockets.acquire_many(all).await;
    }
}

pub(crate) fn threads(name: &str, number: usize) -> Result<Runtime, ServeError> {
    Builder::new_multi_thread()
        .worker_threads(number)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(ServeError::Threads)
}
