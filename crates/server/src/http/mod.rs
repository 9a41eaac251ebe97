//! HTTP, version 1 of the contract.

mod access_log;
pub(crate) mod answer;
mod approvals;
mod audit;
mod batch;
pub(crate) mod body;
mod console;
#[cfg(feature = "openapi")]
mod described;
mod docs;
mod embedded;
mod events;
#[cfg(feature = "openapi")]
mod examples;
mod files;
mod guard;
pub(crate) mod held;
pub(crate) mod host;
mod page;
mod problem;
mod query;
mod router;
mod runs;
mod scan;
pub(crate) mod text;
#[cfg(feature = "openapi")]
mod unions;

use std::sync::{Arc, PoisonError, RwLock};

use belljar_wire::Problem;
use tokio::sync::{Semaphore, watch};

use crate::caller::{Caller, Callers, Wait};
use crate::config::Config;
use crate::idempotency::Replays;
use crate::runs::Runs;
use crate::sessions::Sessions;

use body::Memory;

#[cfg(feature = "openapi")]
pub use described::described;
pub use docs::openapi;
pub(crate) use host::LastAnswer;
pub use problem::Refused;
pub(crate) use router::{mark, router};

/// The macros that describe the interface, or their likes that describe nothing.
mod describe {
    #[cfg(not(feature = "openapi"))]
    pub(super) use belljar_undescribed::{ToSchema, path};
    #[cfg(feature = "openapi")]
    pub(super) use utoipa::{ToSchema, path};
}

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
    /// Turns for scans.
    pub(crate) scans: Arc<Semaphore>,
    /// Places for questions to the audit log.
    pub(crate) audits: Arc<Semaphore>,
    /// Places for questions about approvals.
    pub(crate) approvals: Arc<Semaphore>,
    /// Those who have logged in to the console.
    pub(crate) sessions: Arc<Sessions>,
    /// Whether the server is about to stop.
    pub(crate) draining: Arc<watch::Sender<bool>>,
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl App {
    /// The handlers' surroundings.
    #[must_use]
    pub fn new(runs: Runs, config: Config) -> App {
        let callers = Callers::new(&config, None);
        App {
            callers: Arc::new(RwLock::new(Arc::new(callers))),
            replays: Arc::new(Replays::new(config.kept)),
            memory: Memory::new(config.body_memory, config.max_body),
            languages: LastAnswer::default(),
            sockets: Arc::new(Semaphore::new(config.max_sockets())),
            audits: Arc::new(Semaphore::new(audit::AT_A_TIME)),
            approvals: Arc::new(Semaphore::new(approvals::AT_A_TIME)),
            scans: Arc::new(Semaphore::new(cores())),
            sessions: Arc::default(),
            draining: Arc::default(),
            config: Arc::new(config),
            runs,
        }
    }

    /// The same for the requests of one caller, who has a part of the memory.
    pub(crate) fn of(&self, caller: &Caller) -> App {
        App { memory: self.memory.of(caller.name()), ..self.clone() }
    }

    /// Counts a request of this caller's that waits for a run which it did not start.
    pub(crate) fn wait(&self, caller: &Caller) -> Result<Wait, Problem> {
        caller.wait(self.config.max_waits())
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
        self.sessions.keep(|key| callers.by_hash(key).is_some());
    }
}
