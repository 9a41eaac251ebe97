//! The parts, put together.

use std::future::Future;
use std::io;
use std::time::Duration;

use belljar_core::request::Network;
use belljar_engine::{Engine, Programs, RunError, Slots};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::caller::Caller;
use crate::config::{Config, MOST_PROGRAMS};
use crate::http::{self, App};
use crate::places::Places;
use crate::quiet::Quiet;
use crate::runs::Runs;
use crate::socket::Listener;
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

/// The callers whose runs would be refused.
#[derive(Debug)]
pub struct Refusals {
    /// Each by its name, with the reason.
    pub of: Vec<(String, RunError)>,
    /// Whether there is no other caller.
    pub is_everybody: bool,
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

    /// Finds out, in the background, which callers could not run anything on this host, because it cannot keep a guarantee or
    /// has no backend. `tell` is called if there are any.
    pub fn find_refusals(&self, tell: impl FnOnce(Refusals) + Send + 'static) {
        let app = self.app.clone();
        self.threads.spawn_blocking(move || {
            let callers = app.callers();
            let refused = |caller: &Caller| {
                let defaults = caller.defaults();
                let placed = app.runs.engine().place(defaults.backend(), &Network::None, &defaults.waived());
                Some((caller.name().to_owned(), placed.err()?))
            };
            let of: Vec<_> = callers.all().filter_map(refused).collect();
            let is_everybody = of.len() == callers.all().count();
            if !of.is_empty() {
                tell(Refusals { of, is_everybody });
            }
        });
    }

    /// Serves until `until` resolves, which may meanwhile change who may ask and see whether anybody does; then lets the runs that are under way
    /// end, kills those that have not by the deadline, and returns when nothing is left, or nothing that can be killed.
    ///
    /// # Errors
    /// That the socket cannot be used.
    pub fn serve<F: Future<Output = ()>>(
        self,
        listener: Listener,
        until: impl FnOnce(App, Quiet) -> F,
    ) -> Result<(), ServeError> {
        watchdog::start(self.app.runs.clone(), self.threads.handle().clone()).map_err(ServeError::Threads)?;
        self.threads.block_on(async {
            let door = listener.open().map_err(ServeError::Listen)?;
            let config = &self.app.config;
            let places = Places::new(config.max_connections, config.max_per_address());
            let quiet = Quiet::new(&self.app, places.clone());
            let entry = quiet.entry.clone();
            let stop = async {
                until(self.app.clone(), quiet).await;
                self.app.draining.send_replace(true);
                self.app.runs.cancel_undecided();
            };
            let open = listen::accept(door, http::router(&self.app), config, (places, &entry), stop).await;
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
        let all = u32::try_from(self.app.config.max_sockets()).unwrap_or(u32::MAX);
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
