//! What a model is told that it can do. The schemas are written by hand, for a model to read; tests hold them against
//! what is accepted and against what real runs answer.

use std::time::Duration;

use belljar_core::allowance::{Permitted, Workspaces};
use belljar_core::language::Language;
use belljar_core::limits::show_duration;
use belljar_core::request::{BackendChoice, BackendName};
use belljar_core::secret::SecretHost;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::Config;
use super::answer::ALWAYS;

pub(super) const LIST_LANGUAGES: &str = "list_languages";
pub(super) const GET_RUN: &str = "get_run";
pub(super) const CANCEL_RUN: &str = "cancel_run";
/// The names that do not change.
pub(super) const OTHERS: [&str; 3] = [LIST_LANGUAGES, GET_RUN, CANCEL_RUN];

/// The arguments that are limits.
pub(super) const LIMITS: [&str; 9] = [
    "timeout_ms",
    "compile_timeout_ms",
    "cpu_ms",
    "memory_bytes",
    "compile_memory_bytes",
    "cpus",
    "pids",
    "disk_bytes",
    "output_bytes",
];

/// What the tools offer to one caller. Another may have other tools: nothing is offered that would be refused.
#[derive(Debug)]
pub(super) struct Offer<'a> {
    pub(super) backends: &'a [BackendName],
    /// The backend that runs a call which names none.
    pub(super) default: BackendChoice,
    /// The directories that a call may show to its program.
    pub(super) workspaces: &'a Workspaces,
    /// The hosts whose secrets a call may use.
    pub(super) secrets: &'a Permitted<SecretHost>,
    /// Whether there is a way to upload files.
    pub(super) uploads: bool,
}

impl<'a> Offer<'a> {
    /// All that any caller may have.
    pub(super) const fn everything(backends: &'a [BackendName]) -> Offer<'a> {
        Offer {
            backends,
            default: BackendChoice::Auto,
            workspaces: &Workspaces::Any,
            secrets: &Permitted::All,
            uploads: true,
        }
    }

    /// What the argument `secrets` may be; `None` if the caller may use none.
    fn secrets(&self) -> Option<Value> {
        let which = match self.secrets {
            Permitted::All => "Those that the operator has configured.".to_owned(),
            Permitted::Only(hosts) if hosts.is_empty() => return None,
            Permitted::Only(hosts) => {
                let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
                format!("Any of: {}.", hosts.join(", "))
            }
        };
        let description = format!(
            "Hosts whose secret is added to the program's requests, outside the sandbox. {which} The program calls \
             https://HOST without it and never sees it; network must allow HOST."
        );
        Some(json!({"type": "array", "items": {"type": "string"}, "description": description}))
    }

    /// What the argument `workspace` may be; `None` if there is no directory that it could name.
    fn workspace(&self) -> Option<Value> {
        let place = match self.workspaces {
            Workspaces::Any => "Any absolute path.".to_owned(),
            Workspaces::Beneath(roots) if roots.is_empty() => return None,
            Workspaces::Beneath(roots) => {
                let roots: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
                format!("One of these or a directory beneath, as an absolute path: {}.", roots.join(", "))
            }
        };
        let description = format!(
            "A directory of the host to show read-only at /work, where the program then starts. {place}"
        );
        Some(json!({"type": "string", "description": description}))
    }
}

/// All of them, in the order in which a model would want them.
pub(super) fn all(config: &Config, kept: Duration, offer: &Offer<'_>) -> Vec<Tool> {
    let default = offer.default;
    let (title, annotations) = match unsafe_backend(default) {
        None => ("Run code in a sandbox", changes().destructive(false)),
        Some(_) => ("Run code without a sandbox", changes().destructive(true).open_world(true)),
    };
    let name = config.tool_name.to_string();
    let run = Tool::new(name, run_description(config, kept, default), run_arguments(offer))
        .with_title(title)
        .with_raw_output_schema(run_output().into())
        .with_annotations(annotations.idempotent(false));
    let languages = Tool::new(LIST_LANGUAGES, LANGUAGES_DESCRIPTION, no_arguments())
        .with_title("List languages")
        .with_raw_output_schema(languages_output().into())
        .with_annotations(reads());
    let get = Tool::new(GET_RUN, get_description(config, kept), lookup_arguments(config))
        .with_title("Get the result of a run")
        .with_raw_output_schema(run_output().into())
        .with_annotations(reads());
    let cancel = Tool::new(CANCEL_RUN, CANCEL_DESCRIPTION, cancel_arguments())
        .with_title("Cancel a run")
        .with_raw_output_schema(run_output().into())
        .with_annotations(changes().destructive(true).idempotent(true));
    vec![run, languages, get, cancel]
}

/// How long `get_run` waits at most: a little less than a run itself is waited for.
pub(super) fn longest_wait(config: &Config) -> Duration {
    config.answer_within * 8 / 9
}

pub(super) fn run_arguments(offer: &Offer<'_>) -> JsonObject {
    let names = Language::all().map(|language| language.name).collect::<Vec<_>>().join(", ");
    let language =
        format!("One of {names}, or a usual alias such as py, js, ts. list_languages says which are here.");
    let backends: Vec<_> = offer.backends.iter().map(|backend| backend.name()).collect();
    let backend = format!(
        "What isolates the program: auto (the default) takes the strongest backend; or one of {}, if the operator allows it.",
        backends.join(", ")
    );
    let whole = |least: u64, description: &str| json!({"type": "integer", "minimum": least, "description": description});
    let text = |description: &str| json!({"type": "string", "description": description});
    let flag = |description: &str| json!({"type": "boolean", "description": description});
    let strings =
        |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
    let mut properties = json!({
            "language": text(&language),
            "code": text("The whole program. Print what you want to see: only stdout and stderr come back."),
            "stdin": text("What the program reads from standard input. Empty by default."),
            "args": strings("Arguments to the program."),
            "env": {"type": "object", "additionalProperties": {"type": "string"},
                    "description": "Environment variables for the program. Nothing of the host's gets in."},
            "files": {"type": "array", "items": input_file(offer.uploads),
                      "description": "Files to put into the working directory before the program starts."},
            "collect": strings("Files to bring back from the working directory, as globs such as *.png or out/**. Wildcards match no leading dot."),
            "plots": {"type": "boolean", "description":
                "Python: whether what matplotlib's show() would show comes back as pictures. Default true."},
            "timeout_ms": whole(1, "Wall-clock limit in milliseconds for everything the program starts. Default 10000."),
            "compile_timeout_ms": whole(1, "Wall-clock limit of the compiler in milliseconds. Default 30000."),
            "cpu_ms": whole(1, "CPU time limit in milliseconds. No limit by default."),
            "memory_bytes": whole(1, "Memory limit in bytes. Default 268435456 (256 MiB)."),
            "compile_memory_bytes": whole(1, "Memory limit of the compiler in bytes. Default 536870912 (512 MiB)."),
            "cpus": {"type": "number", "exclusiveMinimum": 0, "description": "CPU rate. Default 1."},
            "pids": whole(1, "Processes and threads at a time. Default 50."),
            "disk_bytes": whole(0, "Everything the program can write, in bytes. Default 67108864 (64 MiB)."),
            "output_bytes": whole(0, "How much of each of stdout and stderr is kept, in bytes. Default 1048576."),
            "network": {"type": "string", "pattern": "^(none|full|allow:.+)$", "description":
                "none (the default), full for the public internet, or allow:HOST[:PORT],... for these hosts: names, \
                 *.name, addresses, CIDR. The operator may have forbidden it, and not every backend has it."},
            "backend": text(&backend),
            "image": text("An OCI image to run in. Needs the docker backend."),
            "verbose": verbose(),
    });
    if let Some(secrets) = offer.secrets() {
        properties["secrets"] = secrets;
    }
    if let Some(workspace) = offer.workspace() {
        properties["workspace"] = workspace;
        properties["writable"] = flag(
            "With workspace: let the program write there. The host's files stay as they are; what was written is \
                  gone afterwards, except what collect brings back.",
        );
        properties["changes"] =
            flag("With writable: answer with the files that were added, changed and removed, and a patch.");
    }
    arguments(&["language", "code"], properties)
}

pub(super) fn lookup_arguments(config: &Config) -> JsonObject {
    let longest = u64::try_from(longest_wait(config).as_millis()).unwrap_or(u64::MAX);
    arguments(
        &["run_id"],
        json!({
            "run_id": {"type": "string", "description": "The id of the run, as in run_01J…"},
            "wait_ms": {"type": "integer", "minimum": 0, "description":
                format!("How long to wait for a run that still goes on. Default and most: {longest}.")},
            "stream": {"type": "string", "enum": ["stdout", "stderr"], "description":
                "Read a part of this stream instead of the whole result."},
            "file": {"type": "string", "description":
                "Read a part of this collected file instead: as text if it is text, else in base64."},
            "offset": {"type": "integer", "minimum": 0, "description":
                "Where the part begins, in characters. Default 0."},
            "length": {"type": "integer", "minimum": 1, "description":
                format!("How many characters. Default and most: {}.", config.max_text)},
            "verbose": verbose(),
        }),
    )
}

pub(super) fn cancel_arguments() -> JsonObject {
    arguments(&["run_id"], json!({"run_id": {"type": "string", "description": "The id of the run."}}))
}

pub(super) fn no_arguments() -> JsonObject {
    arguments(&[], json!({}))
}

const LANGUAGES_DESCRIPTION: &str =
    "The languages that can run here, with the version of each, and how to get those that are missing.";

const CANCEL_DESCRIPTION: &str = "Ends a run that still goes on, and everything that it started. Answers with what it had written by then.";

/// The default, if it is not a sandbox.
fn unsafe_backend(default: BackendChoice) -> Option<BackendName> {
    match default {
        BackendChoice::Named(name) if name.is_only_by_name() => Some(name),
        BackendChoice::Named(_) | BackendChoice::Auto => None,
    }
}

/// Where a program runs, and what it can reach.
fn place(default: BackendChoice) -> String {
    match unsafe_backend(default) {
        None => "Runs a program in a sandbox that is gone afterwards, and returns its exit code, stdout and stderr. \
                 Every call starts from nothing: no files, variables or packages of an earlier call are there. The \
                 working directory /sandbox and /tmp are writable; there is no network unless asked for and allowed."
            .to_owned(),
        Some(name) => format!(
            "Runs a program WITHOUT a sandbox, and returns its exit code, stdout and stderr. The operator has chosen \
             the {name} backend: the program has the rights of the user who runs this server, and can read and change \
             that user's files and use the network. It starts in an empty directory that is gone afterwards."
        ),
    }
}

fn run_description(config: &Config, kept: Duration, default: BackendChoice) -> String {
    format!(
        "{} A program that \
         fails is an ordinary result, with its exit code. Output beyond {} characters keeps its head and its tail; \
         {GET_RUN} reads the rest. A run that takes longer than {} is answered with status \"running\" and its id: \
         call {GET_RUN} with that id to wait for it. A result is kept for {} after the run has ended, less under load. \
         A file that a run collected goes into a later one by from_run, so that you need not copy it.",
        place(default),
        config.max_text,
        show_duration(config.answer_within),
        show_duration(kept),
    )
}

fn get_description(config: &Config, kept: Duration) -> String {
    format!(
        "The result of a run that {} has started. Waits for a run that still goes on; if it does not end in \
         time, the answer has status \"running\" and the end of the output so far, and the call can be repeated. With stream or file it reads a part \
         of the output or of a collected file that was too long for one answer. A result is kept for {} after the \
         run has ended, less under load; after that, run the code again.",
        config.tool_name,
        show_duration(kept),
    )
}

/// What reads changes nothing.
fn reads() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false)
}

/// What runs or ends a program reaches nothing but a box, which is gone afterwards.
fn changes() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).open_world(false)
}

fn input_file(uploads: bool) -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let mut properties = json!({
        "path": text("Relative to the working directory."),
        "content": text("Its content, if that is text."),
        "content_base64": text("Its content in base64 otherwise."),
        "from_run": text("Instead of a content: the id of an earlier run that collected the file."),
        "from_path": text("The path of the file in that run, if it is another than path."),
        "executable": {"type": "boolean", "description": "Whether it may be executed. Default false."},
    });
    if uploads {
        properties["upload"] = text("Instead of a content: the id of an uploaded file, as in file_01J…");
    }
    let ways = ["content", "content_base64", "from_run", "upload"].into_iter();
    let ways = ways.filter(|way| properties.get(way).is_some()).map(|way| json!({"required": [way]}));
    let ways: Vec<_> = ways.collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": ["path"],
        "anyOf": ways,
        "additionalProperties": false,
    })
}

fn verbose() -> Value {
    json!({"type": "boolean", "description":
        "Whether the structured result also has what is as usual, such as usage and isolation. Default false."})
}

fn arguments(required: &[&str], properties: Value) -> JsonObject {
    object(json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    }))
}

/// The contract's result object, from which may be missing what is as usual; or that the run goes on, with the end of its
/// output so far; or a page of it; or a file that is shown as an image.
fn run_output() -> JsonObject {
    let mut properties = result_properties();
    properties.insert("page".to_owned(), page());
    object(json!({
        "type": "object",
        "properties": properties,
        "required": ["id", "status"],
        "anyOf": [
            {"required": ALWAYS},
            {"properties": {"status": {"enum": ["awaiting_approval", "running"]}}},
            {"required": ["page"]},
            {"required": ["files"]},
        ],
    }))
}

fn result_properties() -> JsonObject {
    let flag = || json!({"type": "boolean"});
    let text = || json!({"type": "string"});
    let text_or_null = || or_null("string");
    let statuses = [
        "exited",
        "timed_out",
        "out_of_memory",
        "signaled",
        "cancelled",
        "denied",
        "awaiting_approval",
        "running",
    ];
    object(json!({
        "id": text(),
        "status": {"type": "string", "enum": statuses},
        "exit_code": {"type": "integer", "minimum": 0, "maximum": 255},
        "signal": or_null("integer"),
        "stdout": text(),
        "stderr": text(),
        "stdout_truncated": flag(),
        "stderr_truncated": flag(),
        "timed_out": flag(),
        "oom_killed": flag(),
        "usage": usage(),
        "compile": {"anyOf": [{"type": "null"}, record(json!({
            "exit_code": {"type": "integer", "minimum": 0, "maximum": 255},
            "timed_out": flag(), "cached": flag(), "usage": usage(),
            "stdout": text(), "stderr": text(),
        }), &["exit_code", "timed_out", "stdout", "stderr", "usage", "cached"])],
            "description": "What the compiler did. Messages of one that failed are in stdout and stderr of the run."},
        "stage": {"type": "string", "enum": ["run", "compile"], "description": "What ended the run."},
        "start": {"type": "string", "enum": ["warm", "zygote", "cold"]},
        "language": text(),
        "runtime": text(),
        "cold_reason": text_or_null(),
        "backend": text(),
        "image": text_or_null(),
        "network": text(),
        "network_denied": {"type": "array", "items": record(json!({
            "host": text(), "port": {"type": ["integer", "null"]}, "reason": text(),
            "count": {"type": "integer", "minimum": 1},
        }), &["host", "port", "reason", "count"]), "description": "What the program tried to reach in vain."},
        "isolation": record(json!({
            "kept": {"type": "array", "items": text()},
            "waived": {"type": "array", "items": text()},
        }), &["kept", "waived"]),
        "files": {"type": "array", "items": record(json!({
            "path": text(), "size": {"type": "integer", "minimum": 0},
            "content_base64": {"type": "string", "description":
                "Left out where it would be too long (get_run reads it), and where the file is shown as an image."},
        }), &["path", "size"])},
        "changes": record(json!({
            "added": {"type": "array", "items": text()},
            "changed": {"type": "array", "items": text()},
            "removed": {"type": "array", "items": text()},
            "patch": text(),
            "truncated": flag(),
        }), &["added", "changed", "removed", "patch", "truncated"]),
        "findings": {"type": "array"},
        "decision": record(json!({
            "action": text(), "rule": text(), "reason": text(), "by": text(), "approval_id": text_or_null(),
        }), &["action", "rule", "reason", "by", "approval_id"]),
        "approval_id": text(),
    }))
}

fn usage() -> Value {
    let number = || json!({"type": "number", "minimum": 0});
    record(
        json!({
            "wall_ms": number(), "cpu_ms": number(), "queue_ms": number(),
            "memory_peak_bytes": {"type": "integer", "minimum": 0},
            "network_up_bytes": {"type": "integer", "minimum": 0},
            "network_down_bytes": {"type": "integer", "minimum": 0},
        }),
        &["wall_ms", "cpu_ms", "queue_ms", "memory_peak_bytes"],
    )
}

fn page() -> Value {
    record(
        json!({
            "of": {"type": "string", "description": "stdout, stderr, or the path of a file."},
            "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
            "content": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0},
            "total": {"type": "integer", "minimum": 0},
            "next_offset": or_null("integer"),
        }),
        &["of", "encoding", "content", "offset", "total", "next_offset"],
    )
}

fn languages_output() -> JsonObject {
    let language = record(
        json!({
            "name": {"type": "string"},
            "aliases": {"type": "array", "items": {"type": "string"}},
            "available": {"type": "boolean"},
            "runtime": or_null("string"),
            "location": or_null("string"),
            "image": or_null("string"),
            "hint": or_null("string"),
        }),
        &["name", "aliases", "available", "runtime"],
    );
    object(json!({
        "type": "object",
        "properties": {"languages": {"type": "array", "items": language}},
        "required": ["languages"],
    }))
}

fn record(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// In this form because some clients know one type at a time.
fn or_null(kind: &str) -> Value {
    json!({"anyOf": [{"type": kind}, {"type": "null"}]})
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            JsonObject::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOWHERE: Workspaces = Workspaces::Beneath(Vec::new());

    fn offer(workspaces: &Workspaces) -> Offer<'_> {
        static NO_SECRETS: Permitted<SecretHost> = Permitted::Only(Vec::new());
        let (backends, default) = (&BackendName::BUILDABLE[..], BackendChoice::Auto);
        Offer { backends, default, workspaces, secrets: &NO_SECRETS, uploads: false }
    }

    #[test]
    fn a_secret_is_offered_to_whom_it_is_allowed() {
        let offered = |secrets: &Permitted<SecretHost>| {
            run_arguments(&Offer { secrets, ..offer(&NOWHERE) })["properties"]["secrets"].clone()
        };
        assert!(offered(&Permitted::Only(Vec::new())).is_null());
        let own = Permitted::Only(vec![SecretHost::parse("api.example.com").unwrap()]);
        let described = offered(&own)["description"].as_str().unwrap().to_owned();
        assert!(described.contains("Any of: api.example.com."), "{described}");
        assert!(offered(&Permitted::All).is_object());
    }

    #[test]
    fn a_workspace_is_offered_where_there_is_a_root() {
        let offered =
            |workspaces: &Workspaces| run_arguments(&offer(workspaces))["properties"]["workspace"].clone();
        assert!(offered(&NOWHERE).is_null());
        let roots = Workspaces::Beneath(vec!["/srv/a".into(), "/srv/b".into()]);
        let described = offered(&roots)["description"].as_str().unwrap().to_owned();
        assert!(described.ends_with("as an absolute path: /srv/a, /srv/b."), "{described}");
    }

    #[test]
    fn an_upload_is_offered_where_there_is_a_way_to_make_one() {
        let offered = |uploads: bool| {
            let arguments = run_arguments(&Offer { uploads, ..offer(&NOWHERE) });
            arguments["properties"]["files"]["items"]["properties"]["upload"].clone()
        };
        assert!(offered(false).is_null() && offered(true).is_object());
    }

    #[test]
    fn a_backend_that_is_not_a_sandbox_is_not_called_one() {
        for name in [BackendName::Process, BackendName::None] {
            let offer = Offer { default: BackendChoice::Named(name), ..offer(&NOWHERE) };
            let tools = all(&Config::default(), Duration::from_secs(600), &offer);
            let run = serde_json::to_string(&tools[0]).unwrap();
            assert!(!run.contains("in a sandbox"), "{run}");
            assert!(
                run.contains("WITHOUT a sandbox") && run.contains(&format!("the {name} backend")),
                "{run}"
            );
            assert!(
                run.contains("\"openWorldHint\":true") && run.contains("\"destructiveHint\":true"),
                "{run}"
            );
        }
    }

    #[test]
    fn nothing_is_offered_that_does_not_exist() {
        let tools = all(&Config::default(), Duration::from_secs(600), &offer(&NOWHERE));
        let schemas = serde_json::to_string(&tools).unwrap();
        assert!(schemas.contains("native, docker, wasm, process, none"), "{schemas}");
        assert!(schemas.contains("in a sandbox") && !schemas.contains("WITHOUT"), "{schemas}");
        for absent in ["kubernetes", "workspace", "upload"] {
            assert!(!schemas.contains(absent), "{absent}: {schemas}");
        }
    }
}
