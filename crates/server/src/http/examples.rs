//! An example for every request and every answer of the interface, added to its description by the name of the schema.

use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{Content, OpenApi as Document, PathItem, RefOr};

const RUN_ID: &str = "run_01KA5X3M8Q7Z4T2N6B9D0FGHJK";
/// The media type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// Adds the examples.
pub(super) fn add(document: &mut Document) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let name = operation.operation_id.clone().unwrap_or_default();
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            inlined(&mut body.content).for_each(|(_, content)| content.example = Some(request()));
        }
        for (status, response) in &mut operation.responses.responses {
            let RefOr::T(response) = response else { continue };
            for (kind, content) in inlined(&mut response.content) {
                content.example = example(&name, status, kind, content);
            }
        }
    }
}

/// The operations of a path.
pub(super) fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.post].into_iter().flatten()
}

/// The media types of a body. None of ours stands elsewhere in the document.
fn inlined<'a>(
    contents: impl IntoIterator<Item = (&'a String, &'a mut RefOr<Content>)>,
) -> impl Iterator<Item = (&'a String, &'a mut Content)> {
    contents.into_iter().filter_map(|(kind, content)| match content {
        RefOr::T(content) => Some((kind, content)),
        RefOr::Ref(_) => None,
    })
}

fn example(operation: &str, status: &str, kind: &str, content: &Content) -> Option<Value> {
    let Some(RefOr::Ref(schema)) = &content.schema else { return text(operation) };
    let schema = schema.ref_location.rsplit('/').next().unwrap_or_default();
    match schema {
        "RunEvent" if kind == EVENT_STREAM => Some(json!(stream())),
        "RunResult" | "RunAnswer" => Some(result()),
        "RunState" => {
            Some(json!({"id": RUN_ID, "status": if operation == "createRun" { "queued" } else { "running" }}))
        }
        "RunList" => Some(list()),
        "LanguageList" => Some(languages()),
        "BackendList" => Some(backends()),
        "Pool" => Some(pool()),
        "Health" => Some(json!({"status": if operation == "health" { "ok" } else { "ready" }})),
        "Error" => Some(error(status)),
        _ => None,
    }
}

fn text(operation: &str) -> Option<Value> {
    let metrics = "# HELP belljar_slots Runs that can take place at a time.\n# TYPE belljar_slots gauge\nbelljar_slots 4\n# EOF\n";
    (operation == "metrics").then(|| json!(metrics))
}

/// The request whose result is [`result`].
fn request() -> Value {
    json!({
        "language": "python",
        "code": "import sys\nprint(sum(map(int, sys.stdin)))",
        "stdin": "1\n2\n3\n",
        "limits": {"timeout_ms": 5000, "memory_bytes": 134_217_728},
    })
}

fn result() -> Value {
    json!({
        "id": RUN_ID,
        "status": "exited",
        "exit_code": 0,
        "signal": null,
        "stdout": "6\n",
        "stderr": "",
        "stdout_truncated": false,
        "stderr_truncated": false,
        "timed_out": false,
        "oom_killed": false,
        "usage": {"wall_ms": 1.9, "cpu_ms": 1.1, "memory_peak_bytes": 9_437_184, "queue_ms": 0.0},
        "compile": null,
        "stage": "run",
        "start": "warm",
        "language": "python",
        "runtime": "CPython 3.11.7",
        "backend": "native",
        "image": null,
        "network": "none",
        "isolation": {
            "kept": ["filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"],
            "waived": [],
        },
        "findings": [],
    })
}

/// The events of the same run, as they are on the wire.
fn stream() -> String {
    let started = json!({
        "id": RUN_ID, "language": "python", "runtime": "CPython 3.11.7", "backend": "native", "image": null,
        "start": "warm", "queue_ms": 0.0, "stage": "run",
    });
    let events = [("start", started), ("stdout", json!({"text": "6\n"})), ("end", result())];
    events.map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).concat()
}

fn list() -> Value {
    json!({
        "runs": [
            {"id": "run_01KA5X4C1V0R8W5E3Y7HSJTQNM", "status": "running", "language": "bash",
             "created_at": "2026-01-01T12:00:01.500Z", "exit_code": null},
            {"id": RUN_ID, "status": "exited", "language": "python",
             "created_at": "2026-01-01T12:00:00.000Z", "exit_code": 0},
        ],
        "next_cursor": RUN_ID,
    })
}

fn languages() -> Value {
    json!({"languages": [
        {"name": "python", "aliases": ["py", "python3", "cpython"], "available": true, "runtime": "CPython 3.11.7",
         "location": "/usr/bin/python3", "image": "python:3.11-slim", "hint": null},
        {"name": "r", "aliases": ["rscript"], "available": false, "runtime": null, "location": null,
         "image": "r-base:4.4.1", "hint": "apt install r-base-core"},
    ]})
}

fn backends() -> Value {
    json!({
        "default": "native",
        "problem": null,
        "backends": [{
            "name": "native", "ready": true, "only_by_name": false, "reason": null, "hint": null,
            "guarantees": [{"name": "filesystem", "kept": true, "how": "a root of its own, read-only"}],
        }],
    })
}

fn pool() -> Value {
    json!({
        "enabled": true, "memory_bytes": 29_360_128, "memory_limit_bytes": 268_435_456, "max_age_ms": 300_000.0,
        "languages": [{
            "language": "python", "ready": 2, "booting": 0, "min": 1, "max": 16, "target": 2, "hits": 41, "misses": 1,
            "unfit": 0, "refills": 43, "refill_ms": 24.5, "losses": 0, "problem": null, "oldest_ms": 1200.0,
            "memory_bytes": 29_360_128,
        }],
    })
}

fn error(status: &str) -> Value {
    let (code, message, hint, field) = match status {
        "401" => (
            "unauthorized",
            "this server requires an API key",
            "send it as Authorization: Bearer KEY; `belljar key new` makes one",
            None,
        ),
        "403" => (
            "forbidden",
            "the backend 'process' is not allowed",
            "leave it out, or ask the operator to allow it",
            Some("backend"),
        ),
        "404" => (
            "not_found",
            "there is no run 'run_01J'",
            "check the id; a result is kept for a limited time, and only the caller that started the run can see it",
            None,
        ),
        "409" => ("conflict", "the run has already ended", "fetch its result with GET /v1/runs/{id}", None),
        "413" => (
            "too_large",
            "the body has more than 16777216 bytes",
            "send less; the server's max-body sets the limit",
            None,
        ),
        "415" => (
            "invalid_request",
            "the Content-Type is not application/json",
            "send the body as JSON, with Content-Type: application/json",
            None,
        ),
        "429" => ("busy", "every slot is taken, and 256 requests wait already", "try again in 1 s", None),
        "500" => ("internal", "the run was lost", "this is a bug in Belljar; see the server's log", None),
        "501" => (
            "guarantee_unmet",
            "the native backend cannot keep 'memory' here: no cgroup",
            "delegate a cgroup; or do without: --waive memory",
            None,
        ),
        "503" => ("backend_unavailable", "R is not installed", "apt install r-base-core", None),
        _ => ("invalid_request", "'lan' is not a network", "write none or full", Some("network")),
    };
    let mut error = json!({"code": code, "message": message, "hint": hint});
    if let Some(field) = field {
        error["field"] = json!(field);
    }
    json!({"error": error})
}

#[cfg(test)]
mod tests {
    use belljar_wire::{Local, RunRequest};

    use super::*;

    #[test]
    fn the_request_can_be_sent() {
        let request = RunRequest::from_json(request().to_string().as_bytes()).unwrap();
        assert!(request.parse(Local::default()).is_ok());
    }
}
