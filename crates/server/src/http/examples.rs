//! An example for every request and every answer of the interface, added to its description by the name of the schema.

use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{Content, OpenApi as Document, PathItem, RefOr};

const RUN_ID: &str = "run_01KA5X3M8Q7Z4T2N6B9D0FGHJK";
/// The media type of a file.
const BYTES: &str = "application/octet-stream";
/// The media type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// Adds the examples.
pub(super) fn add(document: &mut Document) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let name = operation.operation_id.clone().unwrap_or_default();
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            inlined(&mut body.content).for_each(|(kind, content)| {
                content.example = Some(match name.as_str() {
                    "scanCode" => scan_request(),
                    "approveRun" => json!({"reason": "reads its own input only", "remember_s": 3600}),
                    "revokeApproval" => json!({"reason": "it is not needed any more"}),
                    "denyRun" => json!({"reason": "it has no business starting programs"}),
                    _ if kind == BYTES => file(),
                    _ => request(),
                });
            });
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
    [&mut path.get, &mut path.post, &mut path.put, &mut path.delete].into_iter().flatten()
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
        "ScanResult" => Some(scan_result()),
        "RunState" => {
            Some(json!({"id": RUN_ID, "status": if operation == "createRun" { "queued" } else { "running" }}))
        }
        "RunList" => Some(list()),
        "Upload" => Some(upload()),
        "UploadList" => Some(json!({"files": [upload()]})),
        "LanguageList" => Some(languages()),
        "BackendList" => Some(backends()),
        "Pool" => Some(pool()),
        "AuditList" => Some(json!({"records": [attempt()], "next_cursor": null})),
        "AuditRecord" => Some(record()),
        "AuditVerdict" => Some(verdict()),
        "ApprovalList" => Some(json!({"approvals": [approval_in_list()], "next_cursor": null})),
        "Approval" => Some(approval(operation)),
        "Health" => Some(json!({"status": if operation == "health" { "ok" } else { "ready" }})),
        "Error" => Some(error(status)),
        _ => None,
    }
}

fn attempt() -> Value {
    json!({
        "seq": 42, "id": RUN_ID, "at": "2025-11-16T09:21:07.607Z", "caller": "ci", "surface": "http", "peer": "127.0.0.1",
        "language": "python", "code": "print(1)", "backend": "native", "decision": null, "status": "exited",
        "exit_code": 0, "error": null,
    })
}

fn record() -> Value {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    json!({
        "seq": 42, "id": RUN_ID, "at": "2025-11-16T09:21:07.607Z", "recorded_at": "2025-11-16T09:21:07.629Z",
        "caller": "ci", "surface": "http", "peer": "127.0.0.1", "language": "python", "code": "print(1)",
        "code_bytes": 8, "code_sha256": hash,
        "request": {"args": [], "env": ["TOKEN"], "stdin": null, "collect": [], "workspace": null, "files_omitted": 0},
        "files": [], "limits": {"timeout_ms": 5000, "memory_bytes": 134_217_728}, "network": "none",
        "backend": "native", "image": null, "findings": [], "decision": null, "decider": null, "status": "exited",
        "exit_code": 0, "error": null, "stdout": "1\n", "stderr": "", "stdout_bytes": 2, "stderr_bytes": 0,
        "produced": [],
        "usage": {"wall_ms": 1.9, "cpu_ms": 1.1, "memory_peak_bytes": 9_437_184, "queue_ms": 0.0},
        "compile": null, "stage": "run", "start": "warm", "runtime": "CPython 3.11.7",
        "kept": ["filesystem", "network"], "waived": [], "redactions": 0,
        "previous": hash, "hash": hash,
    })
}

fn verdict() -> Value {
    json!({
        "ok": false, "records": 41, "first": 1, "last": 41,
        "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "pruned_through": 0,
        "public_key": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "flaw": {"kind": "cut", "seq": 42, "message": "record 42 is missing at the end"},
    })
}

const APPROVAL_ID: &str = "apr_01KA5X3M9A2C4E6G8J0M2P4R6T";

fn approval_in_list() -> Value {
    json!({
        "id": APPROVAL_ID, "status": "pending", "created_at": "2026-01-01T12:00:00.000Z",
        "expires_at": "2026-01-01T13:00:00.000Z", "caller": "ci", "surface": "http", "language": "python",
        "code": "from os import system as s\ns('id')\n", "policy": approval_policy(), "decision": null,
    })
}

fn approval_policy() -> Value {
    json!({"rule": "severity = medium", "reason": "python.process.spawn on line 2: starts another program: os.system"})
}

/// As it is shown, or as it is after a decision.
fn approval(operation: &str) -> Value {
    let decided = |approved: bool, reason: &str, until: Value| {
        json!({"approved": approved, "by": "alice", "at": "2026-01-01T12:03:00.000Z", "reason": reason,
               "remembered_until": until})
    };
    let (status, decision) = match operation {
        "approveRun" => {
            ("approved", decided(true, "reads its own input only", json!("2026-01-01T13:03:00.000Z")))
        }
        "revokeApproval" => {
            let reason = "reads its own input only; revoked by alice; it is not needed any more";
            ("approved", decided(true, reason, json!("2026-01-01T12:30:00.000Z")))
        }
        "denyRun" => ("denied", decided(false, "it has no business starting programs", Value::Null)),
        _ => ("pending", Value::Null),
    };
    json!({
        "id": APPROVAL_ID, "status": status, "created_at": "2026-01-01T12:00:00.000Z",
        "expires_at": "2026-01-01T13:00:00.000Z", "caller": "ci", "surface": "http", "peer": "127.0.0.1",
        "policy": approval_policy(), "language": "python", "code": "from os import system as s\ns('id')\n",
        "findings": scan_result()["findings"],
        "request": {
            "args": [], "env": ["TOKEN"], "stdin": null,
            "files": [{"path": "data.csv", "size": 8,
                       "sha256": "492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470", "text": "1,2\n3,4\n"}],
            "limits": {"timeout_ms": 5000, "memory_bytes": 134_217_728}, "network": "none", "image": null,
            "backend": "native", "workspace": null, "writable": false, "collect": [], "waive": [],
        },
        "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "requests": 1,
        "waiting": u8::from(decision.is_null()), "decision": decision,
    })
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

fn file() -> Value {
    json!("a,b\n1,2\n")
}

fn upload() -> Value {
    json!({
        "id": "file_01KA5X2F6Z3G9R1C7V5M8KQHTN",
        "size": 8,
        "sha256": "492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470",
        "expires_at": "2026-01-01T13:00:00.000Z",
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
        "cold_reason": null,
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

fn scan_request() -> Value {
    json!({"language": "python", "code": "from os import system as s\ns('id')\n"})
}

fn scan_result() -> Value {
    json!({"findings": [{
        "rule": "python.process.spawn", "severity": "medium", "message": "starts another program: os.system",
        "line": 2, "column": 1, "end_line": 2, "end_column": 8, "excerpt": "s('id')",
    }]})
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
            "delegate a cgroup; or do without: \"waive\": [\"memory\"], if the server allows it (waive = [\"memory\"] in its belljar.toml)",
            None,
        ),
        "503" => ("backend_unavailable", "R is not installed", "apt install r-base-core", None),
        _ => (
            "invalid_request",
            "'lan' is not a network",
            "write none, full, or allow: with hosts, such as allow:example.org:443",
            Some("network"),
        ),
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
