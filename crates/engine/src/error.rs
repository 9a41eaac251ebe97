use std::time::Duration;

use belljar_core::Invalid;
use belljar_core::allowance::NotAllowed;
use belljar_core::backend::BackendError;
use belljar_core::guarantee::{Guarantee, Unmet};
use belljar_core::limits::Bytes;
use belljar_core::request::BackendName;

use crate::recorder::Unrecordable;
use crate::scanner::Unscanned;

/// Why a request was not run. Nothing here describes the caller's code.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request asks for something that does not exist.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The caller may not ask for that.
    #[error(transparent)]
    Forbidden(#[from] NotAllowed),
    /// Every slot is taken and the queue is full.
    #[error("all slots are busy, and {waiting} requests are already queued")]
    Busy {
        /// The length of the queue.
        waiting: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// The host cannot keep what was demanded.
    #[error("the {backend} backend cannot guarantee {} here: {}", listed(&.unmet.missing), reasons(&.unmet.missing))]
    Unmet {
        /// The backend that was chosen.
        backend: BackendName,
        /// What is missing, why, and what would help.
        unmet: Unmet,
    },
    /// This build or this composition has no such backend.
    #[error("the {backend} backend is {}", if BackendName::BUILDABLE.contains(backend) { "not part of this belljar" } else { "not available yet" })]
    NoSuchBackend {
        /// The one that was named.
        backend: BackendName,
    },
    /// There is no backend to choose from.
    #[error("no backend is available")]
    NoBackend,
    /// The backend could not run it.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The tree of processes outlived its kill.
    #[error("the box did not end within {} seconds of being killed", .grace.as_secs())]
    Unkillable {
        /// How long we waited.
        grace: Duration,
    },
    /// There is no memory for the files that are to be collected.
    #[error("there is no memory for up to {bytes} of collected files")]
    NoRoom {
        /// What they may come to.
        bytes: Bytes,
    },
    /// What a compiler made is too large to be run.
    #[error("the compiled program is larger than {most}")]
    ProgramTooLarge {
        /// The largest.
        most: Bytes,
    },
    /// Nothing may run unrecorded, and the run cannot be recorded.
    #[error("the run cannot be recorded")]
    Unrecordable(#[from] Unrecordable),
    /// The run took place, but its record is not on disk, so that its result may not be told.
    #[error("the program ran, but its record could not be written")]
    Unrecorded(#[source] Unrecordable),
    /// The code could not be scanned.
    #[error(transparent)]
    Unscanned(#[from] Unscanned),
    /// The code could not be made ready for its runtime.
    #[error("cannot prepare the code")]
    Unprepared(#[source] tokio::task::JoinError),
}

fn listed(missing: &[(Guarantee, String, String)]) -> String {
    let names: Vec<_> = missing.iter().map(|(guarantee, _, _)| format!("'{guarantee}'")).collect();
    names.join(", ")
}

/// Each reason once: several guarantees are often unmet for one and the same.
fn reasons(missing: &[(Guarantee, String, String)]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for (_, why, _) in missing {
        if !reasons.contains(&why.as_str()) {
            reasons.push(why);
        }
    }
    reasons.join("; ")
}
