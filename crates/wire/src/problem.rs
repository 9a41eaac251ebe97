use std::error::Error;
use std::time::Duration;

use belljar_core::allowance::NotAllowed;
use belljar_core::backend::BackendError;
use belljar_core::guarantee::Unmet;
use belljar_core::{Field, Invalid};
use belljar_engine::RunError;
use serde::{Deserialize, Serialize};

use crate::ToSchema;

/// The longest message and the longest hint, in bytes.
const MAX_TEXT: usize = 4096;

/// Belljar could not run the code, or would not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct Problem {
    /// What went wrong.
    pub error: Fault,
    /// When to try again; for a header, where there are headers.
    #[serde(skip)]
    #[schema(ignore)]
    pub retry_after: Option<Duration>,
}

/// What went wrong, for programs (`code`) and for people (`message` and `hint`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ErrorDetail)]
pub struct Fault {
    /// The kind of error. Branch on this.
    pub code: Code,
    /// What went wrong and why. The text may change between versions.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The part of the request that caused the error, such as `limits.memory_bytes`. Absent if there is no such part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub field: Option<String>,
}

/// The kind of error. These codes are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ErrorCode)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub enum Code {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    Conflict,
    TooLarge,
    Busy,
    Internal,
    BackendUnavailable,
    GuaranteeUnmet,
}

impl Problem {
    /// A problem with no particular field. Its texts may quote a request, and a request can be large, so their middle is
    /// left out beyond [`MAX_TEXT`]: an answer or a line of a log must not be as long as what it is about.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Problem {
        let (message, hint) = (shortened(message.into()), shortened(hint.into()));
        Problem { error: Fault { code, message, hint, field: None }, retry_after: None }
    }

    /// The status that HTTP knows it by.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.error.code {
            Code::InvalidRequest => 400,
            Code::Unauthorized => 401,
            Code::Forbidden => 403,
            Code::NotFound => 404,
            Code::Conflict => 409,
            Code::TooLarge => 413,
            Code::Busy => 429,
            Code::Internal => 500,
            Code::GuaranteeUnmet => 501,
            Code::BackendUnavailable => 503,
        }
    }

    /// The same, at this part of the request.
    #[must_use]
    pub fn at(mut self, field: Field) -> Problem {
        self.error.field = Some(field.name().to_owned());
        self
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        let code = if invalid.too_large { Code::TooLarge } else { Code::InvalidRequest };
        Problem::new(code, invalid.message, invalid.hint).at(invalid.field)
    }
}

impl From<NotAllowed> for Problem {
    fn from(refusal: NotAllowed) -> Problem {
        Problem::new(Code::Forbidden, refusal.message, refusal.hint).at(refusal.field)
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Problem {
        let message = with_causes(&error);
        match error {
            RunError::Invalid(invalid) => invalid.into(),
            RunError::Unmet { unmet, .. } => {
                Problem::new(Code::GuaranteeUnmet, message, what_would_help(&unmet))
            }
            RunError::Forbidden(refusal) => refusal.into(),
            RunError::Busy { retry_after, .. } => {
                let hint = format!("try again in {} s", retry_after.as_secs());
                Problem { retry_after: Some(retry_after), ..Problem::new(Code::Busy, message, hint) }
            }
            RunError::NoRoom { .. } => {
                let hint = "try again in a second, or collect less with a lower disk limit";
                let retry_after = Some(Duration::from_secs(1));
                Problem { retry_after, ..Problem::new(Code::Busy, message, hint) }
            }
            RunError::ProgramTooLarge { .. } => {
                let hint = "make it smaller: put large tables into a file instead of the code";
                Problem::new(Code::TooLarge, message, hint).at(Field::Code)
            }
            RunError::Unscanned(_) => {
                let hint = "try again; if it happens again, this is a bug in Belljar, and its log says more";
                Problem::new(Code::Internal, message, hint)
            }
            RunError::Unrecordable(_) => {
                let hint =
                    "try again; if it persists, see the server's log, and free space where the ledger is";
                let retry_after = Some(Duration::from_secs(1));
                Problem { retry_after, ..Problem::new(Code::BackendUnavailable, message, hint) }
            }
            RunError::Unrecorded(_) => {
                let hint = "free space where the ledger is; `belljar audit verify` shows its state";
                Problem::new(Code::Internal, message, hint)
            }
            RunError::Unprepared(_) => {
                Problem::new(Code::Internal, message, "this is a bug in Belljar; see its log")
            }
            RunError::NoSuchBackend { .. } | RunError::NoBackend => {
                let hint = "`belljar doctor --all` shows the backends that this host has";
                Problem::new(Code::BackendUnavailable, message, hint)
            }
            RunError::Unkillable { .. } => {
                let hint =
                    "a process is stuck in the kernel, often on a dead network mount; see the host's log";
                Problem::new(Code::Internal, message, hint)
            }
            RunError::Backend(error) => error.into(),
        }
    }
}

impl From<BackendError> for Problem {
    fn from(error: BackendError) -> Problem {
        let message = with_causes(&error);
        match error {
            BackendError::Unavailable { hint, .. } | BackendError::RuntimeMissing { hint, .. } => {
                Problem::new(Code::BackendUnavailable, message, hint)
            }
            BackendError::Unusable { field, hint, .. } => {
                Problem::new(Code::InvalidRequest, message, hint).at(field)
            }
            BackendError::Setup { hint, .. } => Problem::new(Code::Internal, message, hint),
        }
    }
}

/// A text with its middle left out, if it is longer than [`MAX_TEXT`].
fn shortened(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let (head, tail) =
        (text.floor_char_boundary(MAX_TEXT / 2), text.ceil_char_boundary(text.len() - MAX_TEXT / 2));
    format!("{} [{} bytes left out] {}", &text[..head], tail - head, &text[tail..])
}

fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Each remedy once, and the way to do without.
fn what_would_help(unmet: &Unmet) -> String {
    let waivers: Vec<_> = unmet.missing.iter().map(|(name, _, _)| format!("--waive {name}")).collect();
    format!("{}; or do without: {}", unmet.remedies().join("; "), waivers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::guarantee::Guarantee;
    use belljar_core::language::Language;
    use belljar_core::request::{BackendName, Network};

    #[test]
    fn an_error_object_is_the_contracts() {
        let problem = Problem::from(Network::parse("lan").unwrap_err());
        insta::assert_snapshot!(crate::to_json(&problem), @r#"
        {
          "error": {
            "code": "invalid_request",
            "message": "'lan' is not a network",
            "hint": "write none, full, or allow: with hosts, such as allow:example.org:443",
            "field": "network"
          }
        }
        "#);
    }

    #[test]
    fn a_problem_does_not_quote_a_whole_request() {
        let long = format!("'{}' is not a network", "é".repeat(1 << 20));
        let Fault { message, hint, .. } = Problem::new(Code::InvalidRequest, long.clone(), long).error;
        assert!(message.len() < MAX_TEXT + 64 && message == hint);
        assert!(message.starts_with("'éé") && message.ends_with("éé' is not a network"), "{message}");
        assert!(message.contains("é [2093"), "{message}");
        let short = "x".repeat(MAX_TEXT);
        assert_eq!(Problem::new(Code::Busy, &*short, "").error.message, short, "the control");
    }

    #[test]
    fn every_failure_of_the_engine_has_its_code() {
        let backend = BackendName::Native;
        let code = |error: RunError| Problem::from(error).error.code;
        let unavailable = BackendError::Unavailable { backend, reason: "no".into(), hint: "none".into() };
        assert_eq!(code(unavailable.into()), Code::BackendUnavailable);
        let language = Language::by_name("r").unwrap();
        let missing = BackendError::RuntimeMissing { language, hint: "apt install r-base-core".into() };
        assert_eq!(code(missing.into()), Code::BackendUnavailable);
        let unusable =
            BackendError::Unusable { field: Field::Workspace, message: "gone".into(), hint: "-".into() };
        let problem = Problem::from(unusable);
        assert_eq!(problem.error.code, Code::InvalidRequest);
        assert_eq!(problem.error.field.as_deref(), Some("workspace"));
        assert_eq!(code(RunError::NoBackend), Code::BackendUnavailable);
        assert_eq!(code(RunError::NoSuchBackend { backend }), Code::BackendUnavailable);
        let large = Invalid { field: Field::Code, message: "big".into(), hint: "-".into(), too_large: true };
        assert_eq!(code(large.into()), Code::TooLarge);
    }

    #[test]
    fn what_is_not_allowed_and_what_has_to_wait_have_their_codes_and_statuses() {
        let refusal = NotAllowed { field: Field::Memory, message: "at most 64M".into(), hint: "less".into() };
        let forbidden = Problem::from(RunError::from(refusal));
        assert_eq!((forbidden.error.code, forbidden.status()), (Code::Forbidden, 403));
        assert_eq!(forbidden.error.field.as_deref(), Some("limits.memory_bytes"));
        let retry_after = Duration::from_secs(3);
        let busy = Problem::from(RunError::Busy { waiting: 8, retry_after });
        assert_eq!((busy.error.code, busy.status(), busy.retry_after), (Code::Busy, 429, Some(retry_after)));
        assert_eq!(busy.error.hint, "try again in 3 s");
    }

    #[test]
    fn a_failed_step_comes_with_what_the_system_said() {
        let source = std::io::Error::from_raw_os_error(1);
        let setup = BackendError::Setup { step: "mount /proc".into(), hint: "try".into(), source };
        let problem = Problem::from(RunError::from(setup));
        assert_eq!(problem.error.code, Code::Internal);
        assert_eq!(problem.error.message, "cannot mount /proc: Operation not permitted (os error 1)");
    }

    #[test]
    fn unmet_guarantees_come_with_the_remedy_and_the_waiver() {
        let fix = || "systemctl --user start".to_owned();
        let why = || "no cgroup".to_owned();
        let missing = vec![(Guarantee::Memory, why(), fix()), (Guarantee::Pids, why(), fix())];
        let problem =
            Problem::from(RunError::Unmet { backend: BackendName::Native, unmet: Unmet { missing } });
        assert_eq!(problem.error.code, Code::GuaranteeUnmet);
        assert_eq!(
            problem.error.message,
            "the native backend cannot guarantee 'memory', 'pids' here: no cgroup"
        );
        let hint = "systemctl --user start; or do without: --waive memory --waive pids";
        assert_eq!(problem.error.hint, hint);
    }
}
