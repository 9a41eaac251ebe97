//! The settings of the server, as plain values that have been parsed. Where they were written does not matter here.

use std::time::Duration;

use belljar_core::allowance::{Allowance, Ceilings};
use belljar_core::limits::Bytes;

use crate::caller::Key;
use crate::defaults::Defaults;
use crate::mcp;

/// The most bytes of compiled programs that are kept.
pub(crate) const MOST_PROGRAMS: usize = 64 << 20;

/// How the server is to behave.
#[derive(Debug, Clone)]
pub struct Config {
    /// Runs at a time.
    pub slots: usize,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// The most bytes of one request's body.
    pub max_body: usize,
    /// The most bytes of all bodies together: of requests, from the first byte until the run has ended, and of answers,
    /// until they have been sent. The results from which answers are made have as much again, and [`Keep::bytes`].
    pub body_memory: usize,
    /// Connections at a time; more than that are turned away.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request, and how long an idle connection stays open.
    pub header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub body_timeout: Duration,
    /// How often a stream without news says that it is still there.
    pub heartbeat: Duration,
    /// How long runs may go on after the server was told to stop.
    pub drain: Duration,
    /// How many results are kept, and for how long.
    pub kept: Keep,
    /// What the caller without a key may do, where no keys are configured.
    pub anonymous: Allowance,
    /// The keys. Without any, the server is for this machine alone.
    pub keys: Vec<Key>,
    /// What a request gets where it does not say.
    pub defaults: Defaults,
    /// Pages that may ask besides this server's own, by their `Origin`.
    pub origins: Vec<String>,
    /// How MCP is to behave.
    pub mcp: mcp::Config,
}

/// How many finished runs are remembered, how much of them, and for how long: whichever is reached first.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the doc comment above says it")]
pub struct Keep {
    pub runs: usize,
    pub bytes: usize,
    pub age: Duration,
}

/// What a caller may do if the configuration does not say: run code in a real box, with results that the server can
/// hold. Output and the files that are brought back pass through its memory.
#[must_use]
pub fn usual_allowance() -> Allowance {
    let ceilings = Ceilings {
        output: Some(Bytes::new(16 << 20)),
        disk: Some(Bytes::new(256 << 20)),
        collected: Some(Bytes::new(32 << 20)),
        ..Ceilings::default()
    };
    Allowance { ceilings, ..Allowance::boxed() }
}

impl Default for Config {
    fn default() -> Config {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            slots: cores * 2,
            queue: 256,
            max_body: 16 << 20,
            body_memory: 256 << 20,
            max_connections: 2048,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            kept: Keep { runs: 1000, bytes: 64 << 20, age: Duration::from_secs(600) },
            anonymous: usual_allowance(),
            keys: Vec::new(),
            defaults: Defaults::default(),
            origins: Vec::new(),
            mcp: mcp::Config::default(),
        }
    }
}
