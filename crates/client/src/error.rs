use std::error::Error;
use std::io;

use belljar_wire::{Code, Problem};

use crate::address::Address;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// This is no address of a server.
    #[error("'{url}' {why}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// This is no key: it has characters that none has.
    #[error("the API key contains characters that no key has")]
    Key,
    /// The server cannot be reached.
    #[error("cannot reach the server at {address}")]
    Unreachable {
        /// Where it should be.
        address: Address,
        /// Why not.
        source: io::Error,
    },
    /// The connection broke off before the answer was complete. Whether the run took place is not known.
    #[error("the connection to {address} broke off")]
    Interrupted {
        /// Where the server is.
        address: Address,
        /// How.
        source: Box<dyn Error + Send + Sync>,
    },
    /// What answers there is not Belljar.
    #[error("{address} did not answer like a Belljar server")]
    NotBelljar {
        /// Where it is.
        address: Address,
    },
    /// The server did not do it, and says why.
    #[error("{}", .problem.error.message)]
    Refused {
        /// Where the server is.
        address: Address,
        /// What it said.
        problem: Box<Problem>,
    },
}

/// Why a request to any server has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The server cannot be reached.
    #[error("the server cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The connection broke off before there was an answer.
    #[error("the connection broke off")]
    Broken(#[source] hyper::Error),
}

impl ClientError {
    /// The stable code of the error: the server's own, if it gave one.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            ClientError::Address { .. } | ClientError::Key => Code::InvalidRequest,
            ClientError::Unreachable { .. } | ClientError::NotBelljar { .. } => Code::BackendUnavailable,
            ClientError::Interrupted { .. } => Code::Internal,
            ClientError::Refused { problem, .. } => problem.error.code,
        }
    }
}
