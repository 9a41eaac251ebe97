//! What a model asks for, as a request. A model is as likely to make a mistake as a person, so every refusal names the
//! argument and what it may be.

use std::time::Duration;

use belljar_core::backend::Stream;
use belljar_wire::{Code, Problem, RunRequest};
use rmcp::model::JsonObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::Detail;
use super::excerpt::Window;
use super::tools::Offer;
use super::{Config, tools};

/// Which run, and what of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) id: String,
    pub(super) wait: Duration,
    /// A part of it instead of the whole.
    pub(super) part: Option<(Part, Window)>,
    pub(super) detail: Detail,
}

/// What there are pages of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Output(Stream),
    File(String),
}

/// The request of a call, with the arguments that were offered, and how much of its result is wanted.
pub(super) fn run_request(arguments: JsonObject, offer: &Offer<'_>) -> Result<(RunRequest, Detail), Problem> {
    let mut arguments = known(arguments, &tools::run_arguments(offer))?;
    let detail = detail(arguments.remove("verbose"))?;
    let limits = tools::LIMITS.iter().filter_map(|name| arguments.remove_entry(*name)).collect();
    arguments.insert("limits".to_owned(), Value::Object(limits));
    // A model can look at pictures and act on hints.
    arguments.entry("plots").or_insert(Value::Bool(true));
    arguments.insert("hints".to_owned(), Value::Bool(true));
    Ok((understood(arguments)?, detail))
}

fn detail(verbose: Option<Value>) -> Result<Detail, Problem> {
    match verbose {
        None | Some(Value::Bool(false)) => Ok(Detail::Short),
        Some(Value::Bool(true)) => Ok(Detail::Full),
        Some(_) => {
            let mut problem = invalid("verbose is neither true nor false", "write true, or leave it out");
            problem.error.field = Some("verbose".to_owned());
            Err(problem)
        }
    }
}

/// Which run `get_run` is about.
pub(super) fn lookup(arguments: JsonObject, config: &Config) -> Result<Lookup, Problem> {
    #[derive(Deserialize)]
    struct Asked {
        run_id: String,
        wait_ms: Option<u64>,
        stream: Option<StreamName>,
        file: Option<String>,
        offset: Option<usize>,
        length: Option<usize>,
    }
    let mut arguments = known(arguments, &tools::lookup_arguments(config))?;
    let detail = detail(arguments.remove("verbose"))?;
    let Asked { run_id, wait_ms, stream, file, offset, length } = understood(arguments)?;
    let part = match (stream, file) {
        (None, None) => None,
        (Some(stream), None) => Some(Part::Output(stream.into())),
        (None, Some(path)) => Some(Part::File(path)),
        (Some(_), Some(_)) => {
            return Err(invalid("stream and file are two different things", "give one of the two"));
        }
    };
    if part.is_none() && (offset.is_some() || length.is_some()) {
        return Err(invalid("offset and length of what?", "say it with stream or with file"));
    }
    let is_whole = offset.is_none() && length.is_none();
    let length = length.unwrap_or(config.max_text).clamp(1, config.max_text);
    let window = Window { offset: offset.unwrap_or(0), length, is_whole };
    let longest = tools::longest_wait(config);
    let wait = wait_ms.map_or(longest, Duration::from_millis).min(longest);
    Ok(Lookup { id: run_id, wait, part: part.map(|part| (part, window)), detail })
}

/// Which run `cancel_run` is about.
pub(super) fn run_id(arguments: JsonObject) -> Result<String, Problem> {
    #[derive(Deserialize)]
    struct Asked {
        run_id: String,
    }
    let Asked { run_id } = understood(known(arguments, &tools::cancel_arguments())?)?;
    Ok(run_id)
}

/// That there are no arguments at all.
pub(super) fn nothing(arguments: JsonObject) -> Result<(), Problem> {
    known(arguments, &tools::no_arguments()).map(drop)
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StreamName {
    Stdout,
    Stderr,
}

impl From<StreamName> for Stream {
    fn from(name: StreamName) -> Stream {
        match name {
            StreamName::Stdout => Stream::Stdout,
            StreamName::Stderr => Stream::Stderr,
        }
    }
}

/// The arguments, if the schema has all of them. A null is as good as nothing: some models write every argument.
fn known(arguments: JsonObject, schema: &JsonObject) -> Result<JsonObject, Problem> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = || properties.into_iter().flat_map(JsonObject::keys).map(String::as_str);
    if let Some(unknown) = arguments.keys().find(|key| !names().any(|name| name == *key)) {
        let shown: String = unknown.chars().take(64).collect();
        let message = format!("there is no argument '{}'", shown.escape_debug());
        let mut problem = match names().collect::<Vec<_>>()[..] {
            [] => invalid(&message, "leave it out"),
            ref names => invalid(&message, &format!("the arguments are {}", names.join(", "))),
        };
        problem.error.field = Some(shown);
        return Err(problem);
    }
    Ok(arguments.into_iter().filter(|(_, value)| !value.is_null()).collect())
}

fn understood<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, Problem> {
    serde_json::from_value(Value::Object(arguments)).map_err(|fault| {
        let fault: String = fault.to_string().chars().take(300).collect();
        invalid(&format!("the arguments cannot be read: {fault}"), "the tool's input schema describes them")
    })
}

fn invalid(message: &str, hint: &str) -> Problem {
    Problem::new(Code::InvalidRequest, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::allowance::Workspaces;
    use serde_json::json;

    fn object(value: Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    /// With everything that can be offered.
    const OFFER: Offer<'_> = Offer::everything(&[]);

    fn run_request(arguments: JsonObject) -> Result<(RunRequest, Detail), Problem> {
        super::run_request(arguments, &OFFER)
    }

    #[test]
    fn limits_are_flat_for_a_model_and_nested_in_the_contract() {
        let call = object(json!({"language": "python", "code": "1", "timeout_ms": 500, "stdin": null}));
        let (request, detail) = run_request(call).unwrap();
        assert_eq!(detail, Detail::Short);
        assert_eq!(request.limits.timeout_ms, Some(500));
        assert_eq!((request.language.as_str(), request.stdin), ("python", None));
    }

    #[test]
    fn what_is_not_offered_is_no_argument() {
        let call = object(json!({"language": "python", "code": "1", "workspace": "/srv"}));
        assert_eq!(run_request(call.clone()).unwrap().0.workspace.as_deref(), Some("/srv"), "the control");
        let offer = Offer { workspaces: &Workspaces::Beneath(Vec::new()), ..OFFER };
        let problem = super::run_request(call, &offer).unwrap_err().error;
        assert_eq!(problem.message, "there is no argument 'workspace'");
    }

    #[test]
    fn a_model_gets_plots_unless_it_wants_none() {
        let call = |plots: Value| object(json!({"language": "python", "code": "1", "plots": plots}));
        assert!(run_request(call(Value::Null)).unwrap().0.plots);
        assert!(!run_request(call(json!(false))).unwrap().0.plots);
    }

    #[test]
    fn a_model_cannot_waive_a_guarantee() {
        let call = object(json!({"language": "python", "code": "1", "waive": ["memory"]}));
        let problem = run_request(call).unwrap_err().error;
        assert_eq!(problem.message, "there is no argument 'waive'");
        assert_eq!(problem.field.as_deref(), Some("waive"));
        assert!(problem.hint.starts_with("the arguments are "), "{}", problem.hint);
    }

    #[test]
    fn arguments_of_the_wrong_kind_are_refused_with_what_was_wrong() {
        for (call, expected) in [
            (json!({"language": "python"}), "missing field `code`"),
            (json!({"language": 3, "code": ""}), "invalid type: integer `3`, expected a string"),
            (json!({"language": "python", "code": "1", "pids": -1}), "not negative"),
            (
                json!({"language": "python", "code": "1", "verbose": "yes"}),
                "verbose is neither true nor false",
            ),
        ] {
            let message = run_request(object(call)).unwrap_err().error.message;
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn every_argument_that_is_described_is_understood() {
        let sample = |schema: &Value| match schema["type"].as_str().unwrap() {
            "string" => json!("none"),
            "integer" | "number" => json!(1),
            "array" => json!([]),
            "boolean" => json!(true),
            "object" => json!({}),
            other => panic!("no sample of {other}"),
        };
        let described = tools::run_arguments(&OFFER);
        let properties = described["properties"].as_object().unwrap();
        let call = properties.iter().map(|(name, schema)| (name.clone(), sample(schema))).collect();
        let (request, detail) = run_request(call).unwrap();
        assert_eq!(detail, Detail::Full);
        let limits = json!(request.limits);
        assert!(
            tools::LIMITS.iter().all(|name| limits[name] == json!(1) || limits[name] == json!(1.0)),
            "{limits}"
        );
    }

    #[test]
    fn a_lookup_waits_and_pages_within_bounds() {
        let config = Config::default();
        let asked = object(json!({"run_id": "r", "wait_ms": 999_999, "stream": "stderr", "length": 999_999}));
        let lookup = lookup(asked, &config).unwrap();
        assert!(lookup.wait < config.answer_within);
        let window = Window { offset: 0, length: config.max_text, is_whole: false };
        assert_eq!(lookup.part, Some((Part::Output(Stream::Stderr), window)));
    }

    #[test]
    fn a_page_of_nothing_or_of_two_things_is_refused() {
        for asked in
            [json!({"run_id": "r", "offset": 3}), json!({"run_id": "r", "stream": "stdout", "file": "a"})]
        {
            assert!(lookup(object(asked), &Config::default()).is_err());
        }
    }
}
