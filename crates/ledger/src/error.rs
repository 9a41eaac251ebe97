use std::io;
use std::path::PathBuf;

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file of it cannot be used.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The database does not do what it should.
    #[error("cannot {doing}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// It is not as it was left.
    #[error("the ledger is not as it was left: {why}")]
    Tampered {
        /// What is wrong.
        why: String,
    },
    /// There is no ledger.
    #[error("there is no ledger at {}", .path.display())]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// The key is not one.
    #[error("{} is not a key of a ledger", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A pattern of secrets is not a regular expression.
    #[error("'{pattern}' is not a regular expression")]
    Pattern {
        /// The text.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: regex::Error,
    },
}

impl LedgerError {
    /// The message with its causes.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let causes = std::iter::successors(Some(self as &dyn std::error::Error), |cause| cause.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}

/// Says what was being done when SQLite failed.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, LedgerError>;
}

impl<T> Doing<T> for rusqlite::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, LedgerError> {
        self.map_err(|source| LedgerError::Database { doing, source })
    }
}

/// Says what was being done to which file.
pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.into();
    move |source| LedgerError::File { doing, path, source }
}
