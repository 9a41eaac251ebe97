//! Approvals: runs that wait for a person to decide, as they are listed, shown and decided.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::request::{Limits, read_object};
use crate::scan::Finding;
use crate::{Code, Problem, ToSchema};

/// The longest reason that a person can give, in bytes.
const LONGEST_REASON: usize = 2000;
/// The longest time that a request can ask for, whatever the server allows: a year.
const LONGEST_MEMORY: u64 = 366 * 24 * 3600;

/// Where an approval is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Nobody has decided yet.
    Pending,
    /// Somebody allowed the run.
    Approved,
    /// Somebody refused the run.
    Denied,
    /// Nobody decided in time.
    Expired,
    /// Whoever asked for the run does not wait for it any more.
    Cancelled,
}

impl ApprovalStatus {
    /// All of them.
    pub const ALL: [ApprovalStatus; 5] = [
        ApprovalStatus::Pending,
        ApprovalStatus::Approved,
        ApprovalStatus::Denied,
        ApprovalStatus::Expired,
        ApprovalStatus::Cancelled,
    ];

    /// The word for it in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ApprovalStatus::Pending => "pending",
            ApprovalStatus::Approved => "approved",
            ApprovalStatus::Denied => "denied",
            ApprovalStatus::Expired => "expired",
            ApprovalStatus::Cancelled => "cancelled",
        }
    }

    /// Finds a status by its word.
    #[must_use]
    pub fn by_name(name: &str) -> Option<ApprovalStatus> {
        ApprovalStatus::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A run that needs a person's approval. What is decided is exactly what is shown here: `digest` covers all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    /// The identifier of the approval.
    pub id: String,
    /// Where it is.
    pub status: ApprovalStatus,
    /// When it was asked for, in UTC.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Until when it can be decided, in UTC. If nobody has waited for a decision, it holds until then.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// Who asked for the run: the name of the key, `anonymous`, or `uid:N` for the command line.
    pub caller: String,
    /// Through what: `cli`, `http`, `mcp`, `mcp-stdio`, `piston` or `sandbox-fusion`.
    pub surface: String,
    /// The address that the request came from, or `null`.
    #[schema(required = true)]
    pub peer: Option<String>,
    /// Why a person is asked.
    pub policy: ApprovalPolicy,
    /// The language of the code.
    pub language: String,
    /// The code, all of it.
    pub code: String,
    /// What the scan of the code found.
    pub findings: Vec<Finding>,
    /// The other parts of the request.
    pub request: ApprovalRequest,
    /// The SHA-256 of everything that the decision covers, in hexadecimal. A request with another digest is another approval.
    pub digest: String,
    /// How many requests of the same caller with the same digest have asked for it.
    pub requests: u64,
    /// How many of them wait for it right now. If none does, a decision is for the next one.
    pub waiting: u64,
    /// What was decided, or `null` if nothing was.
    #[schema(required = true)]
    pub decision: Option<ApprovalDecision>,
}

/// The line of the policy that made a run wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ApprovalPolicy {
    /// The rule that matched, as it is written in the policy.
    pub rule: String,
    /// What made it match.
    pub reason: String,
}

/// The parts of a request besides its code. Of the environment there are only the names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ApprovalRequest {
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The names of the environment variables.
    pub env: Vec<String>,
    /// What the program can read from standard input, or `null` if that is empty.
    #[schema(required = true)]
    pub stdin: Option<ApprovalFile>,
    /// The files that come with the request.
    pub files: Vec<ApprovalFile>,
    /// The limits of the run.
    pub limits: Limits,
    /// What the program can connect to.
    pub network: String,
    /// The hosts to whose requests a secret is added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The image of the run, or `null` for that of the language.
    #[schema(required = true)]
    pub image: Option<String>,
    /// What isolates the run.
    pub backend: String,
    /// The directory that the program sees at `/work`, or `null`. The decision covers its path, not what is in it.
    #[schema(required = true)]
    pub workspace: Option<String>,
    /// Whether the program can write to a layer over the workspace.
    pub writable: bool,
    /// The patterns of files to return.
    pub collect: Vec<String>,
    /// The guarantees that the run does without.
    pub waive: Vec<String>,
}

/// A file of a request, or its standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ApprovalFile {
    /// Where the file will be, relative to the working directory. Empty for standard input.
    pub path: String,
    /// How many bytes it has, or `null` for a stream that nobody has read yet.
    #[schema(required = true)]
    pub size: Option<u64>,
    /// The SHA-256 of the bytes, in hexadecimal.
    #[schema(required = true)]
    pub sha256: Option<String>,
    /// What is in it, all of it; `null` if it is not text, or too large to be shown.
    #[schema(required = true)]
    pub text: Option<String>,
}

/// What somebody decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalDecision {
    /// Whether the run is allowed.
    pub approved: bool,
    /// Who decided: the name of a key, `anonymous`, or `uid:N` for the command line.
    pub by: String,
    /// When, in UTC.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reason that was given, or `null`.
    #[schema(required = true)]
    pub reason: Option<String>,
    /// Until when the same decision holds for requests of the same caller with the same digest, or `null` if it was for
    /// this time only.
    #[schema(required = true, format = DateTime)]
    pub remembered_until: Option<String>,
}

/// An approval in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalSummary {
    /// The identifier. `GET /v1/approvals/{id}` has everything.
    pub id: String,
    /// Where it is.
    pub status: ApprovalStatus,
    /// When it was asked for, in UTC.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Until when it can be decided, in UTC.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// Who asked for the run.
    pub caller: String,
    /// Through what.
    pub surface: String,
    /// The language of the code.
    pub language: String,
    /// The first characters of the code.
    pub code: String,
    /// Why a person is asked.
    pub policy: ApprovalPolicy,
    /// What was decided, or `null` if nothing was.
    #[schema(required = true)]
    pub decision: Option<ApprovalDecision>,
}

/// Approvals, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalList {
    /// The approvals of this page.
    pub approvals: Vec<ApprovalSummary>,
    /// What to pass as `cursor` to get the next page, or `null` if this is the last.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// What goes with a decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalRuling {
    /// Why, for whoever asked for the run, and for the audit log.
    #[schema(max_length = 2000)]
    pub reason: Option<String>,
    /// For how many seconds the same decision holds for requests of the same caller with the same digest. The server limits
    /// it.
    #[schema(minimum = 0, maximum = 31622400)]
    pub remember_s: Option<u64>,
}

impl ApprovalRuling {
    /// Reads the body of a request; without a body, there is neither.
    ///
    /// # Errors
    /// It is not JSON, or says something else.
    pub fn parse(json: &[u8]) -> Result<ApprovalRuling, Problem> {
        let ruling: ApprovalRuling =
            if json.is_empty() { ApprovalRuling::default() } else { read_object(json)? };
        ruling.check()
    }

    /// Refuses what no server takes.
    ///
    /// # Errors
    /// The reason or the time is too long.
    pub fn check(self) -> Result<ApprovalRuling, Problem> {
        if self.reason.as_ref().is_some_and(|reason| reason.len() > LONGEST_REASON) {
            let message = format!("the reason has more than {LONGEST_REASON} bytes");
            return Err(wrong("reason", message, "write a shorter one"));
        }
        if self.remember_s.is_some_and(|seconds| seconds > LONGEST_MEMORY) {
            let message = format!("remember_s is more than {LONGEST_MEMORY}");
            return Err(wrong("remember_s", message, "write a number of seconds, such as 3600"));
        }
        Ok(self)
    }

    /// The reason, unless it is blank.
    #[must_use]
    pub fn said(&self) -> Option<String> {
        self.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()).map(str::to_owned)
    }

    /// For how long the decision is to be remembered, if at all.
    #[must_use]
    pub fn remember(&self) -> Option<Duration> {
        self.remember_s.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

fn wrong(field: &str, message: String, hint: &str) -> Problem {
    let mut problem = Problem::new(Code::InvalidRequest, message, hint);
    problem.error.field = Some(field.to_owned());
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruling_may_be_empty_and_says_nothing_unknown() {
        assert_eq!(ApprovalRuling::parse(b"").unwrap(), ApprovalRuling::default());
        assert_eq!(ApprovalRuling::parse(b"{}").unwrap(), ApprovalRuling::default());
        let ruling = ApprovalRuling::parse(br#"{"reason": " fine ", "remember_s": 60}"#).unwrap();
        assert_eq!(
            (ruling.said().as_deref(), ruling.remember()),
            (Some("fine"), Some(Duration::from_secs(60)))
        );
        let nothing = ApprovalRuling::parse(br#"{"reason": "  ", "remember_s": 0}"#).unwrap();
        assert_eq!((nothing.said(), nothing.remember()), (None, None));
        for wrong in
            [&b"[]"[..], b"{\"remember\": 1}", b"{\"remember_s\": -1}", b"{\"remember_s\": 99999999}", b"x"]
        {
            assert_eq!(
                ApprovalRuling::parse(wrong).unwrap_err().error.code,
                Code::InvalidRequest,
                "{wrong:?}"
            );
        }
        let long = format!("{{\"reason\": \"{}\"}}", "x".repeat(LONGEST_REASON + 1));
        assert_eq!(
            ApprovalRuling::parse(long.as_bytes()).unwrap_err().error.field.as_deref(),
            Some("reason")
        );
    }

    #[test]
    fn every_status_is_found_by_its_word() {
        for status in ApprovalStatus::ALL {
            assert_eq!(ApprovalStatus::by_name(status.name()), Some(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
        assert_eq!(ApprovalStatus::by_name("Pending"), None);
    }
}
