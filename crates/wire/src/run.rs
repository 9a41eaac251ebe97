//! Runs as they are listed and followed: their status, and the schema of their events.

use std::time::SystemTime;

use belljar_core::language::Language;
use belljar_core::outcome::Outcome;
use serde::{Deserialize, Serialize};

use crate::problem::{Fault, Problem};
use crate::result::RunResult;
use crate::{ToSchema, Word};

/// Where a run is, or how it ended. A run that Belljar could not carry out is `failed`: there is no result, and asking for
/// it gives the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A person has to approve it.
    AwaitingApproval,
    /// It waits for a slot.
    Queued,
    /// Its sandbox is being prepared, or the program runs.
    Running,
    /// The program exited.
    Exited,
    /// A limit on time ended it.
    TimedOut,
    /// The limit on memory ended it.
    OutOfMemory,
    /// A signal ended it.
    Signaled,
    /// Somebody cancelled it.
    Cancelled,
    /// The policy did not let it run, or a person did not approve it.
    Denied,
    /// Belljar could not run it.
    Failed,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [RunStatus; 10] = [
        RunStatus::AwaitingApproval,
        RunStatus::Queued,
        RunStatus::Running,
        RunStatus::Exited,
        RunStatus::TimedOut,
        RunStatus::OutOfMemory,
        RunStatus::Signaled,
        RunStatus::Cancelled,
        RunStatus::Denied,
        RunStatus::Failed,
    ];

    /// How a run that took place ended.
    #[must_use]
    pub fn of(outcome: Outcome) -> RunStatus {
        match outcome {
            Outcome::Exited(_) => RunStatus::Exited,
            Outcome::Signaled(_) => RunStatus::Signaled,
            Outcome::TimedOut(_) => RunStatus::TimedOut,
            Outcome::OutOfMemory => RunStatus::OutOfMemory,
            Outcome::Cancelled(_) => RunStatus::Cancelled,
            Outcome::Denied => RunStatus::Denied,
        }
    }

    /// The word for it in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RunStatus::AwaitingApproval => "awaiting_approval",
            RunStatus::Queued => "queued",
            RunStatus::Running => "running",
            RunStatus::Exited => "exited",
            RunStatus::TimedOut => "timed_out",
            RunStatus::OutOfMemory => "out_of_memory",
            RunStatus::Signaled => "signaled",
            RunStatus::Cancelled => "cancelled",
            RunStatus::Denied => "denied",
            RunStatus::Failed => "failed",
        }
    }
}

/// A run without its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunState {
    /// The identifier of the run.
    pub id: String,
    /// Where the run is, or how it ended.
    pub status: RunStatus,
    /// What the run waits for. Only if the status is `awaiting_approval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub approval_id: Option<String>,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    /// The identifier of the run. `GET /v1/runs/{id}` has its result.
    pub id: String,
    /// Where the run is, or how it ended.
    pub status: RunStatus,
    /// The language of the code.
    #[schema(value_type = crate::schema::LanguageName)]
    pub language: Word,
    /// When the server accepted the run, in UTC.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The program's exit code, or `null` if there is none (yet).
    #[schema(required = true)]
    pub exit_code: Option<u8>,
    /// Why Belljar could not run it. Only if the status is `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<Fault>,
}

impl RunSummary {
    /// A run that was accepted at this time.
    #[must_use]
    pub fn new(
        id: &str,
        status: RunStatus,
        language: Language,
        created: SystemTime,
        exit_code: Option<u8>,
        error: Option<Fault>,
    ) -> RunSummary {
        let created_at = crate::timestamp(created);
        RunSummary { id: id.to_owned(), status, language: language.name.into(), created_at, exit_code, error }
    }
}

/// Some of the caller's runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    /// The runs of this page.
    pub runs: Vec<RunSummary>,
    /// What to pass as `cursor` to get the next page, or `null` if this is the last.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// A piece of what the program wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputText {
    /// The text. Characters are never split between events; bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// The schema of an event of a run: the `event` and the `data` of a server-sent event. There are no values of this
/// type.
#[derive(Debug)]
pub enum RunEvent {}

/// The results of a request with a list of inputs.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunBatch {
    /// A result for each input, in their order; or an error, if Belljar could not run it. If the code does not compile, there is
    /// one result, with the stage `compile`.
    pub runs: Vec<BatchEntry>,
}

/// The result for one input.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "there are no values of it, only its schema")]
pub enum BatchEntry {
    /// It ran.
    Result(RunResult),
    /// Belljar could not run it.
    Error(Problem),
}

/// The answer to a request: the result of the run, or the results of several.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "there are no values of it, only its schema")]
pub enum RunAnswer {
    /// For one input.
    Result(RunResult),
    /// For a list of inputs.
    Batch(RunBatch),
}

/// The result for one of several inputs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct BatchItem {
    /// Which input, counted from 0.
    pub index: usize,
    /// The result.
    pub result: RunResult,
}

/// All inputs have been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct BatchDone {
    /// How many runs there were.
    pub runs: usize,
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_status_has_one_word() {
        for status in RunStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }

    #[test]
    fn a_run_in_a_list_says_when_it_was_accepted() {
        let created = UNIX_EPOCH + Duration::from_millis(1_469_918_176_385);
        let python = Language::by_name("python").unwrap();
        let run = RunSummary::new("run_01J", RunStatus::Queued, python, created, None, None);
        insta::assert_snapshot!(crate::to_json(&run), @r#"
        {
          "id": "run_01J",
          "status": "queued",
          "language": "python",
          "created_at": "2016-07-30T22:36:16.385Z",
          "exit_code": null
        }
        "#);
    }
}
