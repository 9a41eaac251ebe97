//! Runs as they are listed and followed: their status, and the schema of their events.

use std::time::SystemTime;

use belljar_core::language::Language;
use belljar_core::outcome::Outcome;
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{AnyOfBuilder, Discriminator, Object, ObjectBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::network::NetworkActivity;
use crate::problem::{Fault, Problem};
use crate::result::{ImagePull, RunResult, RunStarted, StageStarted};
use crate::{Word, schema};

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
    #[schema(value_type = schema::LanguageName)]
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

/// The events: the name of the schema, the name of the event, the schema of its data, and when it is sent.
const EVENTS: [(&str, &str, Data, &str); 11] = [
    (
        "AwaitingApprovalEvent",
        "awaiting_approval",
        data::<RunState>,
        "A person has to approve the run before it begins. This is the first event, if at all.",
    ),
    (
        "PullEvent",
        "pull",
        data::<ImagePull>,
        "The image of the run is being pulled. Sent before the program starts, if at all.",
    ),
    ("StartEvent", "start", data::<RunStarted>, "The program, or its compiler, has started."),
    (
        "StageEvent",
        "stage",
        data::<StageStarted>,
        "The compiler is done, and the program has started. Output before this event is the compiler's.",
    ),
    (
        "NetworkEvent",
        "network",
        data::<NetworkActivity>,
        "The program did something with its network. Sent only if it has one that Belljar watches.",
    ),
    ("StdoutEvent", "stdout", data::<OutputText>, "The program wrote to standard output."),
    ("StderrEvent", "stderr", data::<OutputText>, "The program wrote to standard error."),
    ("EndEvent", "end", data::<RunResult>, "The run has ended. This is the last event."),
    (
        "ErrorEvent",
        "error",
        data::<Problem>,
        "Belljar could not run the code. This is the last event, unless `stdin` is a list.",
    ),
    ("ResultEvent", "result", data::<BatchItem>, "With a list as `stdin`: the run for one input has ended."),
    (
        "DoneEvent",
        "done",
        data::<BatchDone>,
        "With a list as `stdin`: all runs have ended. This is the last event.",
    ),
];

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

/// The reference to a schema, and that schema with those that it refers to.
type Data = fn(&mut Vec<(String, RefOr<Schema>)>) -> Ref;

fn data<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) -> Ref {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), T::schema()));
    Ref::from_schema_name(T::name())
}

impl PartialSchema for RunEvent {
    fn schema() -> RefOr<Schema> {
        let names = EVENTS.iter().map(|(name, event, ..)| ((*event).to_owned(), (*name).to_owned()));
        let discriminator = Discriminator::with_mapping("event", names);
        let events = EVENTS.iter().map(|(name, ..)| Ref::from_schema_name(*name));
        let any = events.fold(AnyOfBuilder::new(), AnyOfBuilder::item);
        let description = "An event of a run: the `event` and the `data` of a server-sent event.";
        any.discriminator(Some(discriminator)).description(Some(description)).into()
    }
}

impl ToSchema for RunEvent {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        data::<schema::EventName>(schemas);
        for (name, _, data, description) in EVENTS {
            let data = data(schemas);
            schemas.push((name.to_owned(), RefOr::from(Schema::from(event_schema(data, description)))));
        }
    }
}

/// The data of a server-sent event is text, so that the schema is that of its content. The name is not fixed to one value, so
/// that generated clients have one enumeration of names; the discriminator says which name belongs to which schema. Hence
/// `anyOf`: to a validator that does not know discriminators, an event of stdout could be one of stderr.
fn event_schema(data: Ref, description: &str) -> Object {
    let mut name = Ref::from_schema_name(schema::EventName::name());
    name.description = "The name of the event.".to_owned();
    let data = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("The data of the event, as JSON on one line."))
        .content_media_type("application/json")
        .content_schema(Some(data));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(description))
        .property("event", name)
        .required("event")
        .property("data", data)
        .required("data")
        .build()
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
