//! The description of the interface, made from the code.

use belljar_wire::Problem;
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, Object, OpenApi as Document, RefOr, ResponseBuilder, Schema, Type,
};
use utoipa::openapi::{Ref, Response as Described};
use utoipa::{Modify, OpenApi, ToSchema};

use super::{approvals, audit, examples, files, host, query, runs, scan, unions};

/// The document, with a line break at the end.
#[must_use]
pub fn described() -> String {
    belljar_wire::to_json(&Contract::openapi())
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Belljar",
        version = "1",
        description = "Runs untrusted code in a sandbox that exists for one run. A program that fails is a result like any \
                       other, with status 200. If Belljar itself cannot run the code, the answer is an `Error`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        runs::create, runs::list, runs::find, runs::follow, runs::cancel, files::upload, files::list, files::find, files::delete, scan::create, host::languages, host::backends, host::pool, host::health, host::readiness,
        host::metrics, audit::list, audit::find, audit::verify,
        approvals::list, approvals::find, approvals::approve, approvals::deny, approvals::revoke,
    ),
    modifiers(&Keys, &UsualErrors, &Descriptions, &Unions, &Defaults, &Examples),
    tags((name = "runs", description = "Run code and fetch results"), (name = "files", description = "Upload files for later runs"), (name = "scan", description = "Read code without running it"), (name = "server", description = "What the server can run, and how it is"),
        (name = "audit", description = "What was run, by whom, and whether that record is whole"),
        (name = "approvals", description = "Runs that wait for a person to decide"))
)]
struct Contract;

/// Two headers for one key; where no keys are configured, none is needed.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut Document) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(header));
    }
}

/// What the guard answers on every path that it guards.
struct UsualErrors;

impl Modify for UsualErrors {
    fn modify(&self, document: &mut Document) {
        let operations = document.paths.paths.values_mut().flat_map(examples::operations);
        operations.filter(|operation| is_guarded(operation)).for_each(add_usual_errors);
    }
}

/// Those that are open have one security requirement, which is empty.
fn is_guarded(operation: &Operation) -> bool {
    operation.security.as_ref().is_some_and(|requirements| requirements.len() > 1)
}

fn add_usual_errors(operation: &mut Operation) {
    let retry_after =
        HeaderBuilder::new().schema(Some(Object::with_type(Type::Integer))).description(Some("Seconds"));
    let usual = [
        ("401", refused("The key is missing, or not known")),
        ("403", refused("The Host or Origin is not allowed")),
        (
            "429",
            refused("Too many requests; `Retry-After` says when to try again")
                .header("Retry-After", retry_after.build()),
        ),
    ];
    for (status, response) in usual {
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| RefOr::<Described>::T(response.build()));
    }
}

fn refused(description: &str) -> ResponseBuilder {
    let schema = Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(description).content("application/json", content)
}

/// A property that may be `null` has its description where the other schema is named. Clients look for it one level up.
struct Descriptions;

impl Modify for Descriptions {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        for schema in components.schemas.values_mut() {
            if let RefOr::T(Schema::Object(object)) = schema {
                object.properties.values_mut().for_each(lift_description);
            }
        }
    }
}

fn lift_description(property: &mut RefOr<Schema>) {
    let RefOr::T(Schema::OneOf(choice)) = property else { return };
    for item in &mut choice.items {
        if let RefOr::Ref(named) = item
            && !named.description.is_empty()
        {
            choice.description = Some(std::mem::take(&mut named.description));
        }
    }
}

/// The defaults of parameters.
struct Defaults;

impl Modify for Defaults {
    fn modify(&self, document: &mut Document) {
        let operations = document.paths.paths.values_mut().flat_map(examples::operations);
        for parameter in operations.flat_map(|operation| operation.parameters.iter_mut().flatten()) {
            let RefOr::T(parameter) = parameter else { continue };
            if let Some(RefOr::T(Schema::Object(object))) = &mut parameter.schema {
                object.default = default_of(&parameter.name);
            }
        }
    }
}

/// What a parameter is if the request does not say, if that is a value.
fn default_of(parameter: &str) -> Option<Value> {
    match parameter {
        "limit" => Some(json!(query::USUAL_PAGE)),
        "wait_ms" => Some(json!(0)),
        _ => None,
    }
}

struct Unions;

impl Modify for Unions {
    fn modify(&self, document: &mut Document) {
        unions::split(document);
    }
}

struct Examples;

impl Modify for Examples {
    fn modify(&self, document: &mut Document) {
        examples::add(document);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        serde_json::from_str(&described()).unwrap()
    }

    /// Calls `visit` with every value of a document and the path to it.
    fn walk(value: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
        visit(path, value);
        match value {
            Value::Object(members) => {
                members.iter().for_each(|(name, member)| walk(member, &format!("{path}/{name}"), visit));
            }
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, item)| walk(item, &format!("{path}/{index}"), visit));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn operations(document: &Value) -> Vec<&Value> {
        let paths = document["paths"].as_object().unwrap().values();
        paths.flat_map(|path| path.as_object().unwrap().values()).collect()
    }

    #[test]
    fn the_document_that_the_program_carries_is_the_codes() {
        assert!(
            super::super::openapi() == described(),
            "openapi/belljar-v1.json differs from what the code describes; `make openapi` writes it anew"
        );
    }

    #[test]
    fn every_schema_and_every_property_has_a_description() {
        let mut missing = Vec::new();
        for (name, schema) in document()["components"]["schemas"].as_object().unwrap() {
            let described =
                |value: &Value| value["description"].as_str().is_some_and(|text| !text.is_empty());
            if !described(schema) {
                missing.push(name.clone());
            }
            let properties = schema["properties"].as_object().into_iter().flatten();
            missing.extend(
                properties
                    .filter(|(_, value)| !described(value))
                    .map(|(property, _)| format!("{name}.{property}")),
            );
        }
        assert!(missing.is_empty(), "without a description: {missing:?}");
    }

    #[test]
    fn every_operation_has_a_summary_and_examples() {
        let document = document();
        assert_eq!(operations(&document).len(), 24);
        for operation in operations(&document) {
            let name = operation["operationId"].as_str().unwrap();
            assert!(operation["summary"].is_string(), "{name} has no summary");
            let bodies =
                operation["responses"].as_object().unwrap().values().chain(operation.get("requestBody"));
            let contents: Vec<_> =
                bodies.flat_map(|body| body["content"].as_object().into_iter().flatten()).collect();
            assert!(!contents.is_empty(), "{name}");
            for (kind, content) in contents {
                assert!(!content["example"].is_null(), "{name} has no example of {kind}: {content}");
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            parameters
                .for_each(|parameter| assert!(parameter["description"].is_string(), "{name}: {parameter}"));
        }
    }

    #[test]
    fn an_example_of_an_object_has_the_members_of_its_schema() {
        let document = document();
        for operation in operations(&document) {
            let bodies =
                operation["responses"].as_object().unwrap().values().chain(operation.get("requestBody"));
            let contents = bodies.filter_map(|body| body["content"].as_object());
            for content in contents.flat_map(|contents| contents.values()) {
                let Some(example) = content["example"].as_object() else { continue };
                let name = content["schema"]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
                let schemas = &document["components"]["schemas"];
                // Of a union, the first kind stands for the others.
                let first = |name: &str| {
                    let kind = schemas[name]["oneOf"][0]["$ref"].as_str()?;
                    kind.rsplit('/').next().map(str::to_owned)
                };
                let kinds = std::iter::successors(Some(name.to_owned()), |name| first(name));
                let schema = &schemas[kinds.last().unwrap()];
                for member in schema["required"].as_array().into_iter().flatten() {
                    assert!(example.contains_key(member.as_str().unwrap()), "{name} lacks {member}");
                }
                for member in example.keys() {
                    assert!(schema["properties"].get(member).is_some(), "{name} has no {member}");
                }
            }
        }
    }

    #[test]
    fn what_a_client_would_name_has_a_schema_of_its_own() {
        let schemas = &document()["components"]["schemas"];
        for name in [
            "Error",
            "ErrorCode",
            "RunRequest",
            "RunResult",
            "RunEvent",
            "RunStatus",
            "Limits",
            "Language",
            "Backend",
        ] {
            assert!(schemas[name].is_object(), "{name}");
        }
        walk(schemas, "", &mut |path, value| {
            let nested = path.matches('/').count() > 1;
            assert!(!nested || value["properties"].is_null(), "an object without a name: {path}");
            assert!(!nested || value["enum"].is_null(), "an enumeration without a name: {path}");
        });
    }

    #[test]
    fn a_result_is_known_by_its_status_and_a_file_by_its_content() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let kinds = schemas["RunResult"]["discriminator"]["mapping"].as_object().unwrap();
        let statuses = schemas["ResultStatus"]["enum"].as_array().unwrap();
        assert_eq!(kinds.len(), statuses.len());
        for status in statuses {
            let name = kinds[status.as_str().unwrap()].as_str().unwrap().rsplit('/').next().unwrap();
            let properties = &schemas[name]["properties"];
            assert_eq!(&properties["status"]["const"], status);
            assert_eq!(properties["timed_out"]["const"], status == "timed_out");
            assert_eq!(properties["stdout"]["type"], "string");
        }
        assert_eq!(schemas["TextFile"]["required"], serde_json::json!(["path", "content"]));
        assert_eq!(schemas["BinaryFile"]["properties"]["content"]["type"], "null");
        let asked = &document["paths"]["/v1/languages"]["get"]["parameters"][0];
        assert_eq!(asked["schema"]["$ref"], "#/components/schemas/BackendChoice");
    }

    #[test]
    fn nothing_is_offered_that_does_not_exist() {
        walk(&document(), "", &mut |path, value| {
            let text = value.as_str().unwrap_or_default();
            assert!(!text.contains("kubernetes"), "{path}");
        });
    }
}
