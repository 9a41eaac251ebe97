//! The JSON of Belljar, version 1: what the command line, HTTP, MCP and the SDKs all speak, and its conversion
//! to and from the domain. No other crate knows JSON.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cost;
mod host;
mod pool;
mod problem;
mod request;
mod result;
mod run;
mod schema;

pub use cost::{MAX_VALUES, cost};
pub use host::{
    BackendStatus, Backends, GuaranteeStatus, LanguageStatus, Languages, Plan, backend_of, destination,
};
pub use pool::{LanguagePool, Pool};
pub use problem::{Code, Fault, Problem};
pub use request::{
    Input, InputFile, Limits, Local, LocalCode, LocalFile, MAX_INPUTS, MAX_REQUEST, RunRequest,
};
pub use result::{
    Compile, File, ImagePull, Isolation, OutputForm, RunResult, RunStarted, StageStarted, Usage,
};
pub use run::{
    BatchDone, BatchEntry, BatchItem, OutputText, RunAnswer, RunBatch, RunEvent, RunList, RunState,
    RunStatus, RunSummary,
};

/// A value as JSON, with a line break at the end.
#[must_use]
pub fn to_json(value: &impl serde::Serialize) -> String {
    // None of this crate's types has a map with keys that are not strings or a Serialize that can fail.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    json + "\n"
}
