//! The audit log as it is listed, shown and verified.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ToSchema;
use crate::decision::Decision;
use crate::request::Limits;
use crate::result::{NetworkDenied, Usage};

/// How an attempt can have ended: as a run does, or without one. `unrecorded` is a note about attempts of which nothing else is
/// known.
pub const AUDIT_STATUSES: [&str; 9] = [
    "exited",
    "timed_out",
    "out_of_memory",
    "signaled",
    "cancelled",
    "denied",
    "refused",
    "failed",
    "unrecorded",
];

/// One attempt to run something, as the audit log has it. Secrets have been replaced by `[redacted:…]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditRecord {
    /// The number of the record. Records are numbered without gaps.
    pub seq: u64,
    /// The identifier of the run.
    pub id: String,
    /// When the run was asked for, in UTC.
    #[schema(format = DateTime)]
    pub at: String,
    /// When the record was written, in UTC.
    #[schema(format = DateTime)]
    pub recorded_at: String,
    /// Who asked: the name of the key, `anonymous`, or `uid:N` for the command line.
    pub caller: String,
    /// Through what: `cli`, `http`, `mcp`, `mcp-stdio`, `piston` or `sandbox-fusion`.
    pub surface: String,
    /// The address that the request came from, or `null`.
    #[schema(required = true)]
    pub peer: Option<String>,
    /// The language of the code, as far as it was known.
    pub language: String,
    /// The code, or its beginning, or `null` if there was none.
    #[schema(required = true)]
    pub code: Option<String>,
    /// How many bytes the code had.
    #[schema(required = true)]
    pub code_bytes: Option<u64>,
    /// The SHA-256 of all of the code.
    #[schema(required = true)]
    pub code_sha256: Option<String>,
    /// The other parts of the request.
    pub request: AuditRequest,
    /// The files that came with the request.
    pub files: Vec<AuditFile>,
    /// The limits of the run, or `null` if the request was refused before they were known.
    #[schema(required = true)]
    pub limits: Option<Limits>,
    /// The network that was asked for.
    #[schema(required = true)]
    pub network: Option<String>,
    /// The backend that was chosen, or else named.
    #[schema(required = true)]
    pub backend: Option<String>,
    /// The image of the run.
    #[schema(required = true)]
    pub image: Option<String>,
    /// What the scan of the code found, if it was scanned.
    #[schema(value_type = Vec<crate::scan::Finding>)]
    pub findings: Vec<Value>,
    /// What was decided about the run, or `null` if there was nothing to decide.
    #[schema(required = true)]
    pub decision: Option<Decision>,
    /// Who decided: `policy`, `request` or the name of a person.
    #[schema(required = true)]
    pub decider: Option<String>,
    /// How the run ended, or `refused`, `failed`, or `unrecorded` for a note about attempts that could not be recorded.
    pub status: String,
    /// The program's exit code, or `null` if there is none.
    #[schema(required = true)]
    pub exit_code: Option<i64>,
    /// Why the run was refused, or failed.
    #[schema(required = true)]
    pub error: Option<String>,
    /// What the program wrote to standard output. Of much output, the beginning and the end.
    #[schema(required = true)]
    pub stdout: Option<String>,
    /// What the program wrote to standard error. Of much output, the beginning and the end.
    #[schema(required = true)]
    pub stderr: Option<String>,
    /// How many bytes the program wrote to standard output.
    #[schema(required = true)]
    pub stdout_bytes: Option<u64>,
    /// How many bytes the program wrote to standard error.
    #[schema(required = true)]
    pub stderr_bytes: Option<u64>,
    /// The files that were returned.
    pub produced: Vec<AuditFile>,
    /// What the program used.
    #[schema(required = true)]
    pub usage: Option<Usage>,
    /// What the program tried to reach in vain, the first ones. Only if it had a network that Belljar watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub network_denied: Option<Vec<NetworkDenied>>,
    /// What the compiler did, or `null` if there was none.
    #[schema(required = true)]
    pub compile: Option<AuditCompile>,
    /// What ended the run: the program (`run`) or its compiler (`compile`). `null` if it did not take place.
    #[schema(required = true)]
    pub stage: Option<String>,
    /// Where its sandbox came from.
    #[schema(required = true)]
    pub start: Option<String>,
    /// What ran the code.
    #[schema(required = true)]
    pub runtime: Option<String>,
    /// The guarantees that were kept. Empty if nothing ran.
    pub kept: Vec<String>,
    /// The guarantees that the run did without.
    pub waived: Vec<String>,
    /// How many secrets were replaced before the record was written.
    pub redactions: u64,
    /// The hash of the record before this one, in hexadecimal.
    pub previous: String,
    /// The hash of this record, in hexadecimal.
    pub hash: String,
}

/// The parts of a request that need no column of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditRequest {
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The names of the environment variables. Their values are not recorded.
    pub env: Vec<String>,
    /// What the program could read from standard input.
    #[schema(required = true)]
    pub stdin: Option<AuditFile>,
    /// The patterns of files to return.
    pub collect: Vec<String>,
    /// The hosts to whose requests a secret was added. Their values are not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The directory that was shown at `/work`.
    #[schema(required = true)]
    pub workspace: Option<String>,
    /// How many files are not listed, because there were too many.
    pub files_omitted: u64,
}

/// What a compiler did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditCompile {
    /// Its exit code.
    pub exit_code: u8,
    /// Whether `compile_timeout_ms` ended it.
    pub timed_out: bool,
    /// What it wrote to standard output. `null` if the compiler ended the run: `stdout` of the record has it.
    #[schema(required = true)]
    pub stdout: Option<String>,
    /// What it wrote to standard error. `null` if the compiler ended the run: `stderr` of the record has it.
    #[schema(required = true)]
    pub stderr: Option<String>,
    /// What it used: nothing if the program was there already.
    #[schema(required = true)]
    pub usage: Option<Usage>,
    /// Whether the program was there already, because the same code was compiled before.
    pub cached: bool,
}

/// Bytes that are recorded by their digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditFile {
    /// Where the file was, relative to the working directory. Empty for standard input.
    pub path: String,
    /// How many bytes it had, if that is known.
    #[schema(required = true)]
    pub size: Option<u64>,
    /// Their SHA-256, if it is known.
    #[schema(required = true)]
    pub sha256: Option<String>,
}

/// An attempt in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditSummary {
    /// The number of the record.
    pub seq: u64,
    /// The identifier of the run. `GET /v1/audit/{id}` has the record.
    pub id: String,
    /// When the run was asked for, in UTC.
    #[schema(format = DateTime)]
    pub at: String,
    /// Who asked.
    pub caller: String,
    /// Through what.
    pub surface: String,
    /// The address that the request came from, or `null`.
    #[schema(required = true)]
    pub peer: Option<String>,
    /// The language of the code.
    pub language: String,
    /// The first characters of the code.
    #[schema(required = true)]
    pub code: Option<String>,
    /// The backend.
    #[schema(required = true)]
    pub backend: Option<String>,
    /// What was decided about the run: `allow`, `warn`, `approve` or `deny`, or `null` if there was nothing to decide.
    #[schema(required = true)]
    pub decision: Option<String>,
    /// How the run ended, or `refused`, `failed`, or `unrecorded`.
    pub status: String,
    /// The program's exit code, or `null` if there is none.
    #[schema(required = true)]
    pub exit_code: Option<i64>,
    /// Why the run was refused, or failed.
    #[schema(required = true)]
    pub error: Option<String>,
}

/// Records of the audit log, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The records of this page.
    pub records: Vec<AuditSummary>,
    /// What to pass as `cursor` to get the next page, or `null` if this is the last.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// Whether the audit log is as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerdict {
    /// Whether nothing was changed, removed or inserted.
    pub ok: bool,
    /// How many records were checked.
    pub records: u64,
    /// The first record that is still there, or `null` if there is none.
    #[schema(required = true)]
    pub first: Option<u64>,
    /// The last record, or `null` if there is none.
    #[schema(required = true)]
    pub last: Option<u64>,
    /// The hash of the last record. Written down elsewhere, it shows later that nothing before it was changed.
    #[schema(required = true)]
    pub hash: Option<String>,
    /// Up to which record the log was pruned.
    pub pruned_through: u64,
    /// The public key of the signatures, in hexadecimal.
    pub public_key: String,
    /// The first thing that is wrong, or `null`.
    #[schema(required = true)]
    pub flaw: Option<AuditFlaw>,
}

/// The first thing that is wrong with the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditFlaw {
    /// What kind of thing.
    pub kind: AuditFlawKind,
    /// The number of the first record that is concerned.
    pub seq: u64,
    /// What is wrong, in words.
    pub message: String,
}

/// What can be wrong with the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditFlawKind {
    /// A record was changed, or inserted.
    Changed,
    /// Records are missing before others.
    Removed,
    /// Records are missing at the end.
    Cut,
    /// The note of what was pruned is missing, or was changed.
    Anchor,
    /// The file that says how long the log is is missing, or was changed.
    Head,
    /// The tables are not those of an audit log.
    Schema,
}

/// A time as the contract writes it, from milliseconds since 1970.
#[must_use]
pub fn moment(millis: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_millis(millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Milliseconds since 1970 of a time in RFC 3339, a date (`2026-11-17`), or the time that has passed since then (`2h`).
#[must_use]
pub fn parse_moment(text: &str, now: SystemTime) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.timestamp_millis());
    }
    if let Ok(date) = text.parse::<chrono::NaiveDate>() {
        return Some(date.and_hms_opt(0, 0, 0)?.and_utc().timestamp_millis());
    }
    let ago = match text.strip_suffix('d') {
        Some(days) => Duration::from_secs(days.parse::<u32>().ok().map(u64::from)?.checked_mul(86_400)?),
        None if text.ends_with(['s', 'm', 'h']) => belljar_core::limits::parse_duration(text).ok()?,
        None => return None,
    };
    let then = now.checked_sub(ago)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(then.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_a_moment_a_date_or_a_while_ago() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let parse = |text: &str| parse_moment(text, now);
        assert_eq!(parse("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(parse("1970-01-01T02:00:01.500+02:00"), Some(1500));
        assert_eq!(parse("1970-01-02"), Some(86_400_000));
        assert_eq!(parse("1h"), Some((1_000_000 - 3600) * 1000));
        assert_eq!(parse("2d"), Some((1_000_000 - 2 * 86_400) * 1000));
        for text in ["", "yesterday", "1970-13-01", "-1h", "99999999d", "5", "d"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(moment(1500), "1970-01-01T00:00:01.500Z");
        assert_eq!(moment(i64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
