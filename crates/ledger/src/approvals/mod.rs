//! Approvals: runs that wait for a person, and what was decided about them, in one SQLite file that several processes
//! share: servers, and the command line.
//!
//! [`Approvals`] is that file. Every change is one transaction that looks before it writes, so that of two who decide at
//! the same time the first wins, and nothing is decided after it has expired. [`Waiting`] is what an engine asks: it
//! watches the file for decisions that other processes write, for as long as somebody waits for one; [`Polling`] does that
//! without a thread. `notice` keeps what a webhook has to be told.
//!
//! A decision covers one digest of one caller. It is for the requests that wait for it. If none does any more, because the
//! server was restarted, it is for the next one, until the approval expires; with [`Ruling::remember`] it is for all that
//! come within that time.
//!
//! The file is not evidence: the ledger is, which has the decision in the record of the run.

mod error;
mod notice;
mod polling;
mod schema;
mod store;
mod waiting;

pub use error::ApprovalError;
pub use notice::Notice;
pub use polling::Polling;
pub use store::{ApprovalTerms, Approvals, Found, Listed, Own, Ruling, Settled, Submission, Submitted};
pub use waiting::{Abandoned, Waiting};

/// The file that has the approvals, in the state directory.
pub const FILE: &str = "approvals.db";

/// Every file that those who write approvals write to.
pub const FILES: [&str; 3] = [FILE, "approvals.db-wal", "approvals.db-shm"];
