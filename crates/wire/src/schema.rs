//! The parts of the JSON Schema that come from lists of the domain, so that they cannot drift from it.

use belljar_core::guarantee::Guarantee;
use belljar_core::language::Language;
use belljar_core::request::BackendName;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ArrayBuilder, RefOr, Schema};

/// Names and aliases. (Letters may be of either case; a client that generates requests need not know that.)
pub(crate) fn language() -> Object {
    words(
        Language::all()
            .flat_map(|language| std::iter::once(language.name).chain(language.aliases.iter().copied())),
    )
}

pub(crate) fn language_name() -> Object {
    words(Language::all().map(|language| language.name))
}

pub(crate) fn backend_choice() -> Object {
    let names = BackendName::ALL.map(BackendName::name);
    or_null(words(std::iter::once("auto").chain(names)))
}

pub(crate) fn backend_name() -> Object {
    words(BackendName::ALL.map(BackendName::name))
}

pub(crate) fn backend_name_or_null() -> Object {
    or_null(backend_name())
}

pub(crate) fn guarantee() -> Object {
    words(Guarantee::ALL.map(Guarantee::name))
}

pub(crate) fn guarantees() -> Schema {
    ArrayBuilder::new().items(guarantee()).into()
}

pub(crate) fn status() -> Object {
    words(["exited", "timed_out", "out_of_memory", "signaled", "cancelled", "denied"])
}

pub(crate) fn unfinished() -> Object {
    words(["running", "cancelling"])
}

pub(crate) fn start() -> Object {
    words(["warm", "zygote", "cold"])
}

/// Variables by their names.
pub(crate) fn env() -> Object {
    let name =
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z_][A-Za-z0-9_]*$")).build();
    let value = plain_text();
    ObjectBuilder::new()
        .property_names(Some(name))
        .additional_properties(Some(AdditionalProperties::from(RefOr::from(value))))
        .build()
}

/// Texts that the kernel takes as arguments.
pub(crate) fn plain_texts() -> Schema {
    ArrayBuilder::new().items(plain_text()).into()
}

fn plain_text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(r"^[^\u0000]*$"))
}

/// Nothing reads the code before it runs, so nothing is found.
pub(crate) fn nothing() -> Schema {
    ArrayBuilder::new().items(ObjectBuilder::new().schema_type(Type::Object)).max_items(Some(0)).into()
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

fn or_null(mut object: Object) -> Object {
    object.schema_type = SchemaType::from_iter([Type::String, Type::Null]);
    if let Some(values) = &mut object.enum_values {
        values.push(serde_json::Value::Null);
    }
    object
}
