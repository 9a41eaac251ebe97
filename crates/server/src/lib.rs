//! Belljar over the network. Every surface is a thin adapter over [`Runs`]: one way for a run to go, one result
//! object, one mapping of errors.
//!
//! In reading order: [`caller`] says who asks and what they may do; [`runs`] is the one path that every run takes, with
//! `feed` between a run and whoever listens to it, and `kept` for results that somebody may come back for; [`http`] is
//! version 1 of the contract, [`mcp`] and [`compat`] are mounted beside it; `listen` is the loop that accepts
//! connections. [`Server`] puts them together.
//!
//! Runs are driven by threads of their own. Building a box has moments that block, and a question after the server's
//! health must not wait for them.

#![forbid(unsafe_code)]

pub mod caller;
pub mod compat;
pub mod config;
pub mod http;
pub mod mcp;
pub mod runs;

mod feed;
mod idempotency;
mod kept;
mod listen;
mod metrics;
mod server;
mod workspace;

pub use caller::Caller;
pub use config::Config;
pub use runs::{Finished, Found, Run, RunEvent, Runs};
pub use server::{ServeError, Server};
