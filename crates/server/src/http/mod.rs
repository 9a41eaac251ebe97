//! HTTP, version 1 of the contract.

mod access_log;
pub(crate) mod answer;
mod batch;
pub(crate) mod body;
mod docs;
mod events;
mod examples;
mod guard;
pub(crate) mod host;
mod problem;
mod query;
mod router;
mod runs;
pub(crate) mod text;

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{Semaphore, watch};

use crate::caller::Callers;
use crate::config::Config;
use crate::idempotency::Replays;
use crate::runs::Runs;

use body::Memory;

pub use docs::openapi;
pub(crate) use host::LastAnswer;
pub use problem::Refused;
pub(crate) use router::router;

/// What every handler can reach. A clone is the same.
#[derive(Debug, Clone)]
pub struct App {
    /// The one path of a run.
    pub runs: Runs,
    /// How the server is to behave.
    pub config: Arc<Config>,
    callers: Arc<RwLock<Arc<Callers>>>,
    pub(crate) replays: Arc<Replays>,
    /// Memory for the bodies of requests and for answers.
    pub(crate) memory: Memory,
    pub(crate) languages: LastAnswer,
    /// Places for WebSockets, which are no connections any more to those who count them.
    pub(crate) sockets: Arc<Semaphore>,
    /// Whether the server is about to stop.
    pub(crate) draining: Arc<watch::Sender<bool>>,
}

impl App {
    /// The handlers' surroundings.
    #[must_use]
    pub fn new(runs: Runs, config: Config) -> App {
        let callers = Callers::new(&config, None);
        App {
            callers: Arc::new(RwLock::new(Arc::new(callers))),
            replays: Arc::new(Replays::new(config.kept)),
            memory: Memory::new(config.body_memory),
            languages: LastAnswer::default(),
            sockets: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            draining: Arc::default(),
            config: Arc::new(config),
            runs,
        }
    }

    /// Who may ask, as of now.
    pub(crate) fn callers(&self) -> Arc<Callers> {
        // A panic while the lock was held left the callers as they were.
        self.callers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets others ask from now on. What is under way goes on as it was admitted.
    pub fn replace_callers(&self, config: &Config) {
        let mut callers = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        *callers = Arc::new(Callers::new(config, Some(&callers)));
    }
}
