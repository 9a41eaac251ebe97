//! The JSON of Belljar, version 1: what the command line, HTTP, MCP and the SDKs all speak, and its conversion
//! to and from the domain. No other crate knows JSON.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod approval;
mod audit;
mod cost;
mod decision;
#[cfg(feature = "openapi")]
mod event_schema;
mod heard;
mod host;
mod network;
mod pool;
mod problem;
mod request;
mod result;
mod run;
mod sarif;
mod scan;
#[cfg(feature = "openapi")]
mod schema;
mod surface;
mod upload;

pub use approval::{
    Approval, ApprovalDecision, ApprovalFile, ApprovalList, ApprovalPolicy, ApprovalRequest, ApprovalRuling,
    ApprovalStatus, ApprovalSummary,
};
pub use audit::{
    AUDIT_STATUSES, AuditCompile, AuditFile, AuditFlaw, AuditFlawKind, AuditList, AuditRecord, AuditRequest,
    AuditSummary, AuditVerdict, moment, parse_moment,
};
pub use cost::{MAX_VALUES, cost};
pub use decision::Decision;
pub use heard::{Heard, Readable, ServerRefusal, from_json};
pub use host::{
    BackendStatus, Backends, GuaranteeStatus, LanguageStatus, Languages, Plan, backend_of, destination,
};
pub use network::NetworkActivity;
pub use pool::{LanguagePool, Pool};
pub use problem::{Code, Fault, Problem};
pub use request::{
    FileSource, Input, InputFile, Limits, Local, LocalCode, LocalFile, MAX_INPUTS, MAX_REQUEST, RunRequest,
};
pub use result::{
    Changes, Compile, File, ImagePull, Isolation, NetworkDenied, OutputForm, RunResult, RunStarted,
    StageStarted, Usage,
};
pub use run::{
    BatchDone, BatchEntry, BatchItem, OutputText, RunAnswer, RunBatch, RunEvent, RunList, RunState,
    RunStatus, RunSummary,
};
pub use sarif::{SarifRule, sarif};
pub use scan::{Finding, ScanRequest, ScanResult};
#[cfg(feature = "openapi")]
pub use schema::{AuditStatus as AuditStatusName, BackendChoice as BackendChoiceName};
pub use surface::Surface;
pub use upload::{Upload, UploadList};

// What describes a type in the OpenAPI document. The program carries the finished document and needs no code for it.
#[cfg(not(feature = "openapi"))]
use belljar_undescribed::ToSchema;
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// A word of the contract: one that this version knows, or one that a server of another version has said.
pub type Word = std::borrow::Cow<'static, str>;

/// A moment as JSON has it, in UTC.
fn timestamp(time: std::time::SystemTime) -> String {
    use chrono::{DateTime, SecondsFormat, Utc};
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A value as JSON, with a line break at the end.
#[must_use]
pub fn to_json(value: &impl serde::Serialize) -> String {
    // None of this crate's types has a map with keys that are not strings or a Serialize that can fail.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    json + "\n"
}
