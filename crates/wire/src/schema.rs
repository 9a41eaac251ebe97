//! The parts of the JSON Schema that come from lists of the domain, so that they cannot drift from it. Each is a type
//! that exists for its schema alone, so that generated clients have a class of that name.

use belljar_core::guarantee::Guarantee;
use belljar_core::language::Language;
use belljar_core::request::BackendName as Backend;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, Type};
use utoipa::openapi::{ArrayBuilder, OneOfBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Declares a type whose schema is a string out of a list.
macro_rules! words {
    ($visibility:vis $name:ident, $description:literal, $words:expr) => {
        #[doc = $description]
        #[derive(Debug)]
        $visibility enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some($words));
                words.description(Some($description)).build().into()
            }
        }

        impl ToSchema for $name {}
    };
}

words!(pub(crate) LanguageName, "The name of a language.", Language::all().map(|language| language.name));
words!(
    pub(crate) LanguageAlias,
    "Another name for a language. Results have its `LanguageName`.",
    Language::all().flat_map(|language| language.aliases.iter().copied())
);
words!(pub(crate) BackendName, "What isolates a run.", Backend::BUILDABLE.map(Backend::name));
words!(
    pub BackendChoice,
    "What is to isolate a run. `auto` picks the strongest backend of the server; `process` and `none` are not \
     sandboxes, and are never picked.",
    std::iter::once("auto").chain(Backend::BUILDABLE.map(Backend::name))
);
/// What a run can reach.
#[derive(Debug)]
pub(crate) enum NetworkAccess {}

impl PartialSchema for NetworkAccess {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(none|full|allow:.+)$"));
        let description = "What a run can reach: `none` is nothing, `full` is the public internet, and \
                           `allow:HOST[:PORT],…` is these hosts: names, `*.name`, addresses and CIDR, each with a port, a \
                           range of ports, or neither.";
        text.description(Some(description)).build().into()
    }
}

impl ToSchema for NetworkAccess {}

words!(
    pub(crate) GuaranteeName,
    "Something that isolation promises: what code in the sandbox cannot do, or cannot exceed.",
    Guarantee::ALL.map(Guarantee::name)
);
words!(
    pub(crate) StartKind,
    "Where the sandbox came from: `warm` was waiting for a run, `zygote` was forked from a running interpreter, \
     `cold` was built for this run.",
    ["warm", "zygote", "cold"]
);
words!(pub(crate) ResultStatus, "How a run ended.", ["exited", "timed_out", "out_of_memory", "signaled", "cancelled", "denied"]);
words!(
    pub AuditStatus,
    "How an attempt ended: as a run does, or `refused`, `failed`, or `unrecorded` for a note about attempts that could not be recorded.",
    crate::AUDIT_STATUSES
);

words!(
    pub(crate) PolicyAction,
    "What is done with a run.",
    belljar_core::policy::Action::ALL.map(belljar_core::policy::Action::name)
);

words!(
    pub(crate) Severity,
    "How much a finding matters, in ascending order.",
    belljar_core::finding::Severity::ALL.map(belljar_core::finding::Severity::name)
);

words!(
    pub(crate) NetworkAction,
    "What happened to a connection: `allowed` is on its way, `refused` may not pass, `failed` might have passed but is not \
     answered or accepted by the other end, `closed` is over. `omitted` says that more happened than is told.",
    ["allowed", "refused", "failed", "closed", "omitted"]
);

words!(pub(crate) StageName, "A part of a run: compiling the code, or running the program.", ["run", "compile"]);
words!(
    pub(crate) EventName,
    "The name of an event of a run.",
    ["awaiting_approval", "pull", "start", "stage", "network", "stdout", "stderr", "end", "error", "result", "done"]
);

/// Names and aliases. (Letters may be of either case; a client that generates requests need not know that.)
pub(crate) fn language_or_alias() -> Schema {
    OneOfBuilder::new()
        .description(Some(
            "The language of the code, by its name or an alias. `GET /v1/languages` lists them.",
        ))
        .item(Ref::from_schema_name(LanguageName::name()))
        .item(Ref::from_schema_name(LanguageAlias::name()))
        .into()
}

/// Variables by their names.
pub(crate) fn env() -> Object {
    let name =
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z_][A-Za-z0-9_]*$")).build();
    ObjectBuilder::new()
        .description(Some(
            "Environment variables of the program. It gets nothing of the server's environment.",
        ))
        .default(Some(serde_json::json!({})))
        .property_names(Some(name))
        .additional_properties(Some(AdditionalProperties::from(RefOr::from(plain_text()))))
        .build()
}

/// One text, or a list of them.
pub(crate) fn stdin() -> Schema {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let list = ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(crate::MAX_INPUTS));
    OneOfBuilder::new()
        .description(Some(
            "What the program reads from standard input. Without it, standard input is empty. With a list, the program is \
             compiled once and runs once for each input, and the answer is a `RunBatch`. A list goes with neither \
             `Prefer: respond-async` nor `Idempotency-Key`.",
        ))
        .item(text())
        .item(list)
        .into()
}

/// Texts that the kernel takes as arguments.
pub(crate) fn args() -> Schema {
    ArrayBuilder::new()
        .description(Some("Arguments of the program."))
        .default(Some(serde_json::json!([])))
        .items(plain_text())
        .into()
}

fn plain_text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(r"^[^\u0000]*$"))
}
