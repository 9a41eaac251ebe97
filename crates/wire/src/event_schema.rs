//! The schema of the events of a run.

use utoipa::openapi::schema::{AnyOfBuilder, Discriminator, Object, ObjectBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::network::NetworkActivity;
use crate::problem::Problem;
use crate::result::{ImagePull, RunResult, RunStarted, StageStarted};
use crate::run::{BatchDone, BatchItem, OutputText, RunEvent, RunState};
use crate::schema::EventName;

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
        data::<EventName>(schemas);
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
    let mut name = Ref::from_schema_name(EventName::name());
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
