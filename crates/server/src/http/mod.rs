//! HTTP, version 1 of the contract.

mod guard;
mod problem;
mod router;
mod runs;

use std::sync::Arc;

use crate::caller::Caller;
use crate::config::Config;
use crate::runs::Runs;

pub use problem::Refused;
pub(crate) use router::router;

/// What every handler can reach. A clone is the same.
#[derive(Debug, Clone)]
pub struct App {
    /// The one path of a run.
    pub runs: Runs,
    /// How the server is to behave.
    pub config: Arc<Config>,
    pub(crate) anonymous: Caller,
}

impl App {
    /// The handlers' surroundings.
    #[must_use]
    pub fn new(runs: Runs, config: Config) -> App {
        let anonymous = Caller::anonymous(config.anonymous.clone());
        App { runs, config: Arc::new(config), anonymous }
    }
}
