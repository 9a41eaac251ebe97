use std::time::Duration;

use belljar_wire::{ApprovalStatus, Code, Problem};

use crate::error::LedgerError;

/// Why an approval cannot be asked for, or decided.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// There is none with this identifier.
    #[error("there is no approval '{}'", .id.chars().take(64).collect::<String>().escape_debug())]
    NoSuch {
        /// The identifier.
        id: String,
    },
    /// It is settled already.
    #[error("the approval was {} already{}", .status.name(), .by.as_ref().map(|by| format!(", by '{}'", by.escape_debug())).unwrap_or_default())]
    Settled {
        /// What became of it.
        status: ApprovalStatus,
        /// Who decided, if anybody did.
        by: Option<String>,
    },
    /// There is nothing to take back.
    #[error("the approval is {}, and holds for no further request", .status.name())]
    NotRemembered {
        /// Where it is.
        status: ApprovalStatus,
    },
    /// Who wants to decide has asked for the run.
    #[error("'{}' asked for this run, and nobody may decide about a run of their own", .by.escape_debug())]
    Own {
        /// Who that is.
        by: String,
    },
    /// It may not be remembered for so long.
    #[error("a decision may be remembered for {} s at most", .most.as_secs())]
    TooLong {
        /// For how long it may be.
        most: Duration,
    },
    /// Too many wait already.
    #[error("{most} approvals {} wait already", if *.of_caller { "of this caller" } else { "of all callers" })]
    Full {
        /// How many may.
        most: u64,
        /// Whether these are the caller's own.
        of_caller: bool,
    },
    /// It is more than a person can be shown.
    #[error("the {part} has more than {most} bytes, which is more than a person can be asked to read")]
    TooLarge {
        /// What is too large.
        part: &'static str,
        /// How much it may be.
        most: usize,
    },
    /// The file has something else in it.
    #[error("approvals.db was not made by this version of Belljar")]
    Foreign,
    /// The file cannot be used.
    #[error("cannot use the approvals: {}", .0.with_causes())]
    Store(#[from] LedgerError),
}

impl From<ApprovalError> for Problem {
    fn from(error: ApprovalError) -> Problem {
        let message = error.to_string();
        match error {
            ApprovalError::NoSuch { .. } => {
                Problem::new(Code::NotFound, message, "check the id; old approvals are removed")
            }
            ApprovalError::Settled { .. } => {
                Problem::new(Code::Conflict, message, "the first decision holds; a new request asks again")
            }
            ApprovalError::NotRemembered { .. } => {
                let hint = "`belljar approvals list --remembered` lists the decisions that can be revoked";
                Problem::new(Code::Conflict, message, hint)
            }
            ApprovalError::Own { .. } => {
                let hint = "let somebody else decide, or write allow-own = true in [approvals]";
                Problem::new(Code::Forbidden, message, hint)
            }
            ApprovalError::TooLong { .. } => {
                let hint = "write less, or raise remember in [approvals]";
                let mut problem = Problem::new(Code::InvalidRequest, message, hint);
                problem.error.field = Some("remember_s".to_owned());
                problem
            }
            ApprovalError::Full { .. } => {
                let hint = "try again when some of them are decided; `belljar approvals` lists them";
                let retry_after = Some(Duration::from_secs(10));
                Problem { retry_after, ..Problem::new(Code::Busy, message, hint) }
            }
            ApprovalError::TooLarge { .. } => {
                Problem::new(Code::TooLarge, message, "send less, or have the policy decide without a person")
            }
            ApprovalError::Foreign => {
                let hint =
                    "move approvals.db away from the state directory; what waits has to be asked for again";
                Problem::new(Code::Internal, message, hint)
            }
            ApprovalError::Store(_) => {
                let hint = "check the owner and the space of the state directory; `belljar config` shows it";
                Problem::new(Code::Internal, message, hint)
            }
        }
    }
}
