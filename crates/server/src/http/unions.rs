//! Schemas that are one of several, written out: a generated client then knows what goes with what.

use serde_json::{Value, json};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::{Discriminator, OneOfBuilder, SchemaType};
use utoipa::openapi::{Object, OpenApi as Document, Ref, RefOr, Schema, Type};

const RESULT: &str = "RunResult";
const FILE: &str = "InputFile";

/// Splits a result by its status, and a file by where its content is.
pub(super) fn split(document: &mut Document) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    if let Some(RefOr::T(Schema::Object(result))) = schemas.get(RESULT).cloned() {
        let kinds = statuses(schemas.get("ResultStatus"));
        let kinds = kinds.into_iter().map(|status| (result_name(&status), status));
        let mut union = OneOfBuilder::new().description(result.description.clone());
        let mut mapping = Vec::new();
        for (name, status) in kinds {
            schemas.insert(name.clone(), RefOr::T(ended(&result, &status).into()));
            union = union.item(Ref::from_schema_name(&name));
            mapping.push((status, format!("#/components/schemas/{name}")));
        }
        let union = union.discriminator(Some(Discriminator::with_mapping("status", mapping)));
        schemas.insert(RESULT.to_owned(), union.into());
    }
    if let Some(RefOr::T(Schema::Object(file))) = schemas.get(FILE).cloned() {
        let mut union = OneOfBuilder::new().description(file.description.clone());
        for (name, has, what) in [
            ("TextFile", "content", "A file with its content as text."),
            ("BinaryFile", "content_base64", "A file with its content in base64."),
            ("RunFile", "from_run", "A file that an earlier run collected."),
            ("UploadedFile", "upload", "A file that was uploaded."),
        ] {
            schemas.insert(name.to_owned(), RefOr::T(with_content(&file, has, what).into()));
            union = union.item(Ref::from_schema_name(name));
        }
        schemas.insert(FILE.to_owned(), union.into());
    }
}

fn statuses(schema: Option<&RefOr<Schema>>) -> Vec<String> {
    let Some(RefOr::T(Schema::Object(status))) = schema else { return Vec::new() };
    let values = status.enum_values.iter().flatten().filter_map(Value::as_str);
    values.map(str::to_owned).collect()
}

/// `timed_out` has `TimedOutResult`.
fn result_name(status: &str) -> String {
    let words = status.split('_').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    words.collect::<String>() + "Result"
}

/// The result of a run that ended in this way: the same fields, of which some can have only one value.
fn ended(result: &Object, status: &str) -> Object {
    let mut ended = result.clone();
    ended.description = Some(format!("The result of a run with the status `{status}`."));
    fix(&mut ended, "status", Type::String, &json!(status));
    fix(&mut ended, "timed_out", Type::Boolean, &json!(status == "timed_out"));
    fix(&mut ended, "oom_killed", Type::Boolean, &json!(status == "out_of_memory"));
    ended
}

/// The fields that say where the content of a file is, each with the one that it goes with.
const PLACES: [(&str, &str); 5] = [
    ("content", "content"),
    ("content_base64", "content_base64"),
    ("from_run", "from_run"),
    ("from_path", "from_run"),
    ("upload", "upload"),
];

/// A file whose content is in, or behind, one of the fields. The others may be `null`.
fn with_content(file: &Object, has: &str, what: &str) -> Object {
    let mut file = file.clone();
    file.description = Some(what.to_owned());
    file.required.push(has.to_owned());
    for (name, with) in PLACES {
        let Some(RefOr::T(Schema::Object(field))) = file.properties.get_mut(name) else { continue };
        if name == has {
            field.schema_type = SchemaType::Type(Type::String);
        } else if with != has {
            field.schema_type = SchemaType::Type(Type::Null);
            field.description = Some("Not in this kind of file.".to_owned());
        }
    }
    file
}

/// Leaves a property one value, under the description that it has.
fn fix(object: &mut Object, name: &str, kind: Type, value: &Value) {
    let Some(property) = object.properties.get_mut(name) else { return };
    let description = match &*property {
        RefOr::T(Schema::Object(property)) => property.description.clone(),
        RefOr::Ref(named) => Some(named.description.clone()),
        RefOr::T(_) => None,
    };
    let mut fixed = Object::with_type(kind);
    fixed.description = description;
    fixed.extensions = Some(Extensions::from_iter([("const", value.clone())]));
    *property = RefOr::T(fixed.into());
}
