//! The domain of Belljar, and nothing else: what may be asked, what was promised, what happened.
//!
//! A *run* is a sandbox that lives for one execution. The two halves are kept apart from the start, because a
//! sandbox that lives longer (files, several executions, interpreter contexts) has the same first half:
//!
//! | asked for                               | what it came to                      | meaning                          |
//! |-----------------------------------------|--------------------------------------|----------------------------------|
//! | [`SandboxRequest`](request::SandboxRequest)     | [`SandboxSpec`](backend::SandboxSpec)     | the box: runtime, limits, mounts |
//! | [`ExecutionRequest`](request::ExecutionRequest) | [`ExecutionSpec`](backend::ExecutionSpec) | one program in it: code, stdin   |
//!
//! This crate does no I/O, knows no async runtime and no JSON. Text becomes a type in exactly one place, the
//! constructor of that type; everything after that point may rely on it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod allowance;
pub mod backend;
pub mod egress;
pub mod finding;
pub mod guarantee;
pub mod language;
pub mod limits;
pub mod outcome;
pub mod path;
pub mod plots;
pub mod policy;
pub mod pool;
pub mod request;
pub mod secret;
pub mod spelling;

mod invalid;
mod output;

pub use invalid::{Field, Invalid};
pub use output::{Captured, Collector};
