//! Belljar over the network. Every interface is a thin adapter over [`Runs`]: one path for a run, one result object, one
//! mapping of errors.
//!
//! In reading order: [`caller`] says who asks and what they may do, and `defaults` what they get if they do not say;
//! [`runs`] is the one path that every run takes, with `event_log` for those who follow a run, `store` for results that
//! may still be fetched, and `uploads` and `references` for files that it gets from earlier; [`http`] is version 1 of the contract, [`mcp`] and [`compat`] are mounted beside it; `socket` is what the server listens
//! on, `listen` is the loop that accepts connections, `quiet` tells when nobody needs the server. [`Server`] puts them together.
//!
//! One set of threads answers requests and drives runs: to hand a run over to another thread and its result back takes
//! longer than all that HTTP does besides. Building a box has moments that block, and a question after the server's
//! health must not wait for them; so there are more threads than boxes that can be built at a time, and a `watchdog`.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod bodies;
pub mod caller;
pub mod compat;
pub mod config;
pub mod http;
pub mod mcp;
pub mod runs;

mod defaults;
mod event_log;
mod idempotency;
mod listen;
mod metrics;
mod places;
mod quiet;
mod references;
mod repoll;
mod server;
mod sessions;
mod socket;
mod store;
mod uploads;
mod watchdog;
mod workspace;

pub use caller::Caller;
pub use config::Config;
pub use defaults::Defaults;
pub use quiet::Quiet;
pub use runs::{Events, Finished, Found, Run, RunEvent, Runs};
pub use server::{Refusals, ServeError, Server};
pub use socket::{Listener, Peers};
