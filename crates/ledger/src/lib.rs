//! The ledger: a record of every attempt to run something, in one SQLite file that can only be added to.
//!
//! In reading order: [`schema`] has the tables, and `entry` what an account of the engine's becomes in them, with its
//! secrets taken out by [`redact`]. `chain` gives every record a hash that covers all of its columns and the hash before
//! it, and [`key`] signs it. [`book`] writes records, and `head` keeps the number of the last one outside the database, so
//! that a cut tail is noticed. [`scribe`] is the thread that does that beside a server; [`reader`] and [`verify`] read what
//! anybody may have written.
//!
//! [`approvals`] is a file of its own: the runs that wait for a person, and what was decided about them.
//!
//! Whoever can write the file but does not have the key can destroy records, but not change, insert, reorder or remove
//! them without [`verify`] finding the first of them (decision 0019).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod approvals;
pub mod book;
pub mod key;
pub mod reader;
pub mod redact;
pub mod schema;
pub mod scribe;
pub mod verify;

mod chain;
mod entry;
mod error;
mod head;

pub use book::{Book, Retention, Sync};
pub use entry::Entry;
pub use error::LedgerError;
pub use head::FILE as HEAD_FILE;
pub use key::Key;
pub use reader::{Query, Reader};
pub use redact::Redactor;
pub use scribe::{OnFull, Scribe, ScribeSettings, Written};

/// The file that has the records, in the state directory.
pub const FILE: &str = "ledger.db";

/// Every file of a ledger that its writer writes to.
pub const FILES: [&str; 4] = [FILE, "ledger.db-wal", "ledger.db-shm", HEAD_FILE];
