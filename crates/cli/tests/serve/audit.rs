//! The record of everything that was run: whichever way it came in, and whether or not it ran.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use tungstenite::Message;

use crate::keys::new_key;
use crate::server::{Server, eventually};

/// A server with a ledger of its own.
struct Audited {
    server: Server,
    state: PathBuf,
    _place: tempfile::TempDir,
}

impl Audited {
    /// A server that records, with this configuration, which may begin with more of the table.
    fn with(config: &str) -> Audited {
        let rest = config.strip_prefix("[audit]\n").unwrap_or(config);
        let config = format!("[audit]\nenabled = true\n{rest}");
        let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = place.path().join("state");
        fs::write(folder.path().join("belljar.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
        Audited { server: Server::spawn_in(command, state.clone(), folder), state, _place: place }
    }

    fn stop(&mut self) {
        self.server.signal(Signal::TERM);
        assert!(self.server.wait().success(), "{}", self.server.log());
    }
}

fn belljar(state: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(words).env("BELLJAR_STATE_DIR", state).env("BELLJAR_CONFIG", state.join("belljar.toml"));
    command
}

fn audit(state: &Path, words: &[&str]) -> Output {
    fs::write(state.join("belljar.toml"), "").unwrap();
    belljar(state, &[&["audit"], words].concat()).output().unwrap()
}

/// All records, as `export` has them.
fn exported(state: &Path) -> Vec<Value> {
    let output = audit(state, &["export"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_whole(state: &Path) {
    let verified = audit(state, &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

fn hello(mark: &str) -> Value {
    json!({"language": "sh", "code": format!("echo {mark}")})
}

/// Each way in, with a mark of its own in the code.
fn by_every_way_in(server: &Server) -> Vec<(&'static str, &'static str)> {
    server.post("/v1/runs", &hello("way_http")).result();
    assert!(server.stream(&hello("way_events")).all().iter().any(|(name, _)| name == "end"));
    let asynchronous = [("content-type", "application/json"), ("prefer", "respond-async")];
    let accepted = server.ask("POST", "/v1/runs", &asynchronous, hello("way_async").to_string().as_bytes());
    assert_eq!(accepted.status, 202);
    let once = [("content-type", "application/json"), ("idempotency-key", "k")];
    for _ in 0..2 {
        server.ask("POST", "/v1/runs", &once, hello("way_once").to_string().as_bytes()).result();
    }
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "run_code", "arguments": hello("way_mcp"), "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "run_code"),
    ];
    let called = server.ask("POST", "/mcp", &headers, call.to_string().as_bytes());
    assert_eq!(called.status, 200, "{}", String::from_utf8_lossy(&called.body));
    let job = |mark: &str| json!({"language": "bash", "version": "*", "files": [{"content": format!("echo {mark}")}]});
    server.post("/api/v2/execute", &job("way_piston")).result();
    talk(server, job("way_connect"));
    server.post("/run_code", &json!({"language": "bash", "code": "echo way_fusion"})).result();
    server.post("/run_jupyter", &json!({"cells": ["print('way_jupyter')"], "kernel": "python3"})).result();
    vec![
        ("way_http", "http"),
        ("way_events", "http"),
        ("way_async", "http"),
        ("way_once", "http"),
        ("way_mcp", "mcp"),
        ("way_piston", "piston"),
        ("way_connect", "piston"),
        ("way_fusion", "sandbox-fusion"),
        ("way_jupyter", "sandbox-fusion"),
    ]
}

/// Piston's API over a WebSocket.
fn talk(server: &Server, mut job: Value) {
    job["type"] = json!("init");
    let url = format!("ws://{}/api/v2/connect", server.address);
    let mut socket = tungstenite::client(url, server.connect()).unwrap().0;
    socket.send(Message::text(job.to_string())).unwrap();
    while !matches!(socket.read().unwrap(), Message::Close(_)) {}
}

/// The command line, and MCP on standard input and output.
fn by_every_other_way_in(state: &Path) -> Vec<(&'static str, &'static str)> {
    fs::write(state.join("belljar.toml"), "[audit]\nenabled = true\n").unwrap();
    let run = belljar(state, &["run", "sh", "-c", "echo way_cli"]).output().unwrap();
    assert_eq!(run.stdout, b"way_cli\n", "{run:?}");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "run_code", "arguments": hello("way_stdio"), "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    let mut mcp = belljar(state, &["mcp"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = mcp.stdin.take().unwrap();
    writeln!(input, "{call}").unwrap();
    let mut answer = String::new();
    BufReader::new(mcp.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("way_stdio"), "{answer}");
    drop(input);
    assert!(mcp.wait().unwrap().success());
    vec![("way_cli", "cli"), ("way_stdio", "mcp-stdio")]
}

#[test]
fn every_way_in_leaves_one_record() {
    let mut audited = Audited::with("");
    let mut ways = by_every_way_in(&audited.server);
    eventually("the runs to end", || {
        let listed: Value =
            serde_json::from_slice(&audited.server.get("/v1/runs?status=running").body).unwrap();
        listed["runs"].as_array().unwrap().is_empty()
    });
    audited.stop();
    // A server in exile leaves a ledger that root does not write to.
    let own = tempfile::tempdir().unwrap();
    ways.extend(by_every_other_way_in(own.path()));
    let records = [exported(&audited.state), exported(own.path())].concat();
    for (mark, surface) in &ways {
        let of_it: Vec<_> = records
            .iter()
            .filter(|record| record["code"].as_str().is_some_and(|code| code.contains(mark)))
            .collect();
        assert_eq!(of_it.len(), 1, "{mark}: {of_it:?}");
        assert_eq!(of_it[0]["surface"], json!(surface), "{mark}");
        assert_eq!((&of_it[0]["status"], &of_it[0]["exit_code"]), (&json!("exited"), &json!(0)), "{mark}");
        // What cells print is in the file that the program of a notebook leaves.
        assert!(*mark == "way_jupyter" || of_it[0]["stdout"].as_str().unwrap().contains(mark), "{mark}");
        let peer = if ["cli", "mcp-stdio"].contains(surface) { Value::Null } else { json!("127.0.0.1") };
        assert_eq!(of_it[0]["peer"], peer, "{mark}");
    }
    assert_eq!(records.len(), ways.len(), "and nothing else was recorded");
    assert_whole(&audited.state);
    assert_whole(own.path());
}

#[test]
fn attempts_that_are_refused_or_fail_are_recorded_with_the_reason() {
    let mut audited =
        Audited::with("[server.allow]\nlimits = { memory = '64M' }\nlanguages = ['sh', 'bash']\n");
    let refusals = [
        (json!({"language": "cobol", "code": "REFUSED1"}), "unknown language 'cobol'"),
        (json!({"language": "sh", "code": "REFUSED2", "limits": {"memory_bytes": 134_217_728}}), "memory"),
        (json!({"language": "python", "code": "REFUSED3"}), "python"),
        (json!({"language": "sh", "code": "REFUSED4", "network": "full"}), "network"),
    ];
    for (request, _) in &refusals {
        assert_ne!(audited.server.post("/v1/runs", request).status, 200);
    }
    audited.server.post("/v1/runs", &hello("control")).result();
    audited.stop();
    let records = exported(&audited.state);
    assert_eq!(records.len(), refusals.len() + 1, "{records:?}");
    for (record, (request, why)) in records.iter().zip(&refusals) {
        assert_eq!((&record["status"], &record["code"]), (&json!("refused"), &request["code"]));
        assert!(record["error"].as_str().unwrap().contains(why), "{record}");
    }
}

#[test]
fn a_record_has_what_was_asked_and_what_became_of_it_without_secrets() {
    let mut audited = Audited::with("[audit]\ndurable = true\nredact = ['xyzzy[0-9]+']\n");
    let key = ["AKIA", "IOSFODNN7EXAMPLE"].concat();
    let request = json!({
        "language": "sh", "code": format!("echo {key} $TOKEN xyzzy7; cat data; exit 3"), "args": ["a b"],
        "env": {"TOKEN": "open-sesame"}, "stdin": "in", "limits": {"timeout_ms": 5000},
        "files": [{"path": "data", "content": "hello"}],
    });
    let result = audited.server.post("/v1/runs", &request).result();
    let id = result["id"].as_str().unwrap();
    // Durable: it is there as soon as the result is.
    let shown = audit(&audited.state, &["show", id, "--json"]);
    let record: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(record["id"], result["id"]);
    assert_eq!(record["stdout"], json!("[redacted:aws-key] [redacted:env] [redacted:configured]\nhello"));
    assert_eq!(record["exit_code"], json!(3));
    assert_eq!(record["request"]["env"], json!(["TOKEN"]));
    assert_eq!(record["limits"]["timeout_ms"], json!(5000));
    assert_eq!(record["kept"], result["isolation"]["kept"]);
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(record["files"], json!([{"path": "data", "size": 5, "sha256": digest}]));
    audited.stop();
    for file in fs::read_dir(&audited.state).unwrap().flatten() {
        let bytes = fs::read(file.path()).unwrap();
        for secret in [key.as_bytes(), b"open-sesame"] {
            let found = bytes.windows(secret.len()).any(|window| window == secret);
            assert!(!found, "{} has a secret", file.path().display());
        }
    }
}

#[test]
fn the_record_is_read_over_http_by_those_who_may() {
    let (auditor, other) = (new_key("auditor"), new_key("other"));
    let config = format!("[audit]\ndurable = true\n{}audit = true\n{}", auditor.stanza, other.stanza);
    let audited = Audited::with(&config);
    let ask = |key: &str, path: &str| {
        let bearer = format!("Bearer {key}");
        audited.server.ask("GET", path, &[("authorization", bearer.as_str())], b"")
    };
    for (mark, key) in [("first", &other), ("second", &auditor), ("third", &other)] {
        assert_eq!(crate::keys::post(&audited.server, &key.key, &hello(mark)).status, 200);
    }
    for path in ["/v1/audit", "/v1/audit/verify", "/v1/audit/1"] {
        assert_eq!(audited.server.get(path).status, 401, "{path}");
        assert_eq!(ask(&other.key, path).error().0, 403, "{path}");
        assert_eq!(ask(&auditor.key, path).status, 200, "{path}");
    }
    let json = |path: &str| -> Value { serde_json::from_slice(&ask(&auditor.key, path).body).unwrap() };
    let codes = |path: &str| -> Vec<String> {
        let listed = json(path);
        let records = listed["records"].as_array().unwrap();
        records.iter().map(|record| record["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes("/v1/audit"), ["echo third", "echo second", "echo first"]);
    assert_eq!(
        codes("/v1/audit?caller=other&language=sh&status=exited&from=1h"),
        ["echo third", "echo first"]
    );
    assert_eq!(codes("/v1/audit?q=seco"), ["echo second"]);
    assert_eq!(codes("/v1/audit?to=2020-01-01"), [""; 0]);
    let page = json("/v1/audit?limit=2");
    assert_eq!(page["next_cursor"], json!("2"));
    assert_eq!(codes("/v1/audit?limit=2&cursor=2"), ["echo first"]);
    for (query, field) in
        [("from=soon", "from"), ("cursor=x", "cursor"), ("limit=0", "limit"), ("who=me", "who")]
    {
        assert_eq!(
            ask(&auditor.key, &format!("/v1/audit?{query}")).error(),
            (400, "invalid_request".into(), field.into())
        );
    }
    assert_eq!(json("/v1/audit/verify")["ok"], json!(true));
    assert_eq!(ask(&auditor.key, "/v1/audit/run_none").error().0, 404);
    let off = Server::start();
    assert_eq!(off.get("/v1/audit").error().0, 404);
}

#[test]
fn without_keys_whoever_connects_may_read_the_record() {
    let audited = Audited::with("[audit]\ndurable = true\n");
    let id = audited.server.post("/v1/runs", &hello("mine")).result()["id"].as_str().unwrap().to_owned();
    let record: Value = serde_json::from_slice(&audited.server.get(&format!("/v1/audit/{id}")).body).unwrap();
    assert_eq!((&record["caller"], &record["seq"]), (&json!("anonymous"), &json!(1)));
}

#[test]
fn what_was_cut_off_is_found_and_the_server_does_not_write_over_it() {
    let mut audited = Audited::with("");
    for mark in ["one", "two"] {
        audited.server.post("/v1/runs", &hello(mark)).result();
    }
    audited.stop();
    assert_whole(&audited.state);
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(audited.state.join(name));
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(audited.state.join("belljar.toml"), "[audit]\nenabled = true\n").unwrap();
    let mut command = belljar(&audited.state, &["serve", "--listen", "127.0.0.1:0"]);
    let refused = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("records 1 to 2 are missing at its end"), "{said}");
    let verified = audit(&audited.state, &["verify"]);
    let said = String::from_utf8_lossy(&verified.stdout);
    assert_eq!(
        (verified.status.code(), said.contains("NOT whole: records 1 to 2 are missing")),
        (Some(1), true),
        "{said}"
    );
}

#[test]
fn the_command_shows_searches_and_follows() {
    let mut audited = Audited::with("[audit]\ndurable = true\n");
    audited.server.post("/v1/runs", &json!({"language": "sh", "code": "printf '\\033[2Jalpha'"})).result();
    audited.server.post("/v1/runs", &hello("beta")).result();
    let text = |words: &[&str]| String::from_utf8(audit(&audited.state, words).stdout).unwrap();
    assert!(text(&[]).contains("echo beta") && text(&["tail", "-n", "1"]).lines().count() == 2);
    assert!(text(&["search", "beta"]).contains("echo beta") && !text(&["search", "gamma"]).contains("echo"));
    assert!(text(&["search", "--status", "exited", "--from", "1h", "--json"]).lines().count() == 2);
    let shown = text(&["show", "1"]);
    assert!(shown.contains("^[[2Jalpha") && !shown.contains('\u{1b}'), "{shown:?}");
    let mut following = belljar(&audited.state, &["audit", "tail", "-n", "0", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The reader has begun when it shows what comes; until then, records are made.
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let server = &audited.server;
    let first: BTreeMap<String, Value> = std::thread::scope(|scope| {
        let heard = scope.spawn(move || lines.next().unwrap().unwrap());
        while !heard.is_finished() {
            server.post("/v1/runs", &hello("gamma")).result();
        }
        serde_json::from_str(&heard.join().unwrap()).unwrap()
    });
    following.kill().unwrap();
    following.wait().unwrap();
    assert_eq!(first["code"], json!("echo gamma"));
    audited.stop();
}

/// The server that root started writes the record without root's rights, to files that are its own.
#[test]
fn in_exile_the_files_of_the_record_belong_to_the_server_and_its_key_does_not() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let mut audited = Audited::with("");
    audited.server.post("/v1/runs", &hello("one")).result();
    let state = audited.state.clone();
    let owner = |name: &str| fs::metadata(state.join(name)).unwrap().uid();
    let before = owner("ledger.db");
    assert_ne!(before, 0);
    assert_eq!((owner("ledger.head"), owner("ledger.key")), (before, 0));
    assert_eq!(fs::metadata(&audited.state).unwrap().uid(), 0);
    audited.stop();
    // The next server is another user, and goes on with the same ledger.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("belljar.toml"), "[audit]\nenabled = true\n").unwrap();
    let mut command =
        belljar(&audited.state, &["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
    command.env_remove("BELLJAR_CONFIG");
    let server = Server::spawn_in(command, audited.state.clone(), folder);
    server.post("/v1/runs", &hello("two")).result();
    server.signal(Signal::TERM);
    let mut server = server;
    assert!(server.wait().success());
    assert_ne!(owner("ledger.db"), before);
    assert_eq!(exported(&audited.state).len(), 2);
    assert_whole(&audited.state);
}
