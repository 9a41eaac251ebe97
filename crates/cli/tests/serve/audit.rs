//! The record of everything that was run: whichever way it came in, and whether or not it ran.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
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
    /// A server with this configuration. It records unless that says otherwise.
    fn with(config: &str) -> Audited {
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

pub(crate) fn belljar(state: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(words).env("BELLJAR_STATE_DIR", state).env("BELLJAR_CONFIG", state.join("belljar.toml"));
    command
}

pub(crate) fn audit(state: &Path, words: &[&str]) -> Output {
    fs::write(state.join("belljar.toml"), "").unwrap();
    belljar(state, &[&["audit"], words].concat()).output().unwrap()
}

/// All records, as `export` has them.
pub(crate) fn exported(state: &Path) -> Vec<Value> {
    let output = audit(state, &["export"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn assert_whole(state: &Path) {
    let verified = audit(state, &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

pub(crate) fn hello(mark: &str) -> Value {
    json!({"language": "sh", "code": format!("echo {mark}")})
}

/// `sudo` can keep `HOME`: then the usual state directory is beneath one whose owner could replace the ledger.
#[test]
fn a_server_keeps_no_ledger_where_another_user_could_replace_it() {
    assert!(rustix::process::geteuid().is_root(), "only root can give a directory away");
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".local")).unwrap();
    let serve = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).env("HOME", home.path());
        command.env_remove("XDG_STATE_HOME");
        command
    };
    std::os::unix::fs::chown(home.path(), Some(1234), None).unwrap();
    let refused = serve().env_remove("BELLJAR_STATE_DIR").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    let expected = format!("is not trusted: {} belongs to the user 1234", home.path().display());
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&expected) && said.contains("hint: set BELLJAR_STATE_DIR"), "{said}");
    assert!(!home.path().join(".local/state").exists(), "nothing was written there");
    // The control: the same directory, once it is one's own.
    std::os::unix::fs::chown(home.path(), Some(0), None).unwrap();
    let state = home.path().join(".local/state/belljar");
    let server = Server::spawn_in(serve(), state.clone(), tempfile::tempdir().unwrap());
    assert_eq!(server.get("/healthz").status, 200);
    assert!(state.join("ledger.db").exists());
}

/// One record for each run, of which each says what it read; compiling is told apart.
#[test]
fn a_list_of_inputs_leaves_a_record_for_each() {
    let mut audited = Audited::with("");
    let body = |code: &str, stdin: Value| {
        let limits = json!({"compile_timeout_ms": 300_000, "timeout_ms": 60_000});
        json!({"language": "c", "code": code, "stdin": stdin, "limits": limits})
    };
    let works = "#include <stdio.h>\n#warning odd\nint main(){return getchar() - '0';}";
    let answer = audited.server.post("/v1/runs", &body(works, json!(["1", "2", "3"]))).json();
    audited.server.post("/v1/runs", &body("int main(){return x;}", json!(["1", "2"]))).json();
    assert_eq!(audited.server.post("/v1/runs", &body(works, json!([]))).error().0, 400);
    audited.stop();
    assert_whole(&audited.state);
    let records = exported(&audited.state);
    assert_eq!(records.len(), 5, "{records:?}");
    let mut digests = std::collections::BTreeSet::new();
    // Records are in the order in which the runs ended.
    let mut ran = records[..3].to_vec();
    ran.sort_by_key(|record| record["exit_code"].as_i64());
    for (index, record) in ran.iter().enumerate() {
        assert_eq!(record["id"], answer["runs"][index]["id"]);
        assert_eq!((&record["exit_code"], &record["stage"]), (&json!(index + 1), &json!("run")), "{record}");
        assert_eq!(record["request"]["stdin"]["size"], json!(1), "{record}");
        digests.insert(record["request"]["stdin"]["sha256"].as_str().unwrap().to_owned());
        let compile = &record["compile"];
        assert_eq!((&compile["exit_code"], &compile["cached"]), (&json!(0), &json!(index > 0)), "{record}");
        assert!(compile["stderr"].as_str().unwrap().contains("odd"), "{record}");
        assert_eq!(record["limits"]["compile_timeout_ms"], json!(300_000), "{record}");
    }
    assert_eq!(digests.len(), 3, "each has an input of its own");
    let failed = &records[3];
    assert_eq!((&failed["stage"], &failed["status"]), (&json!("compile"), &json!("exited")), "{failed}");
    assert_eq!((&failed["compile"]["exit_code"], &failed["compile"]["stderr"]), (&json!(1), &json!(null)));
    assert!(failed["stderr"].as_str().unwrap().contains("main.c:1"), "{failed}");
    let refused = &records[4];
    assert_eq!((&refused["status"], &refused["stage"]), (&json!("refused"), &json!(null)), "{refused}");
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
    // Root does not write to a ledger that servers without its rights write to.
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
fn a_run_that_was_denied_is_recorded_with_what_was_found_and_who_decided() {
    let policy = "[[policy.rules]]\nwhen = { rule = 'python.process.spawn' }\nthen = 'deny'\n";
    let audited = Audited::with(&format!("[audit]\ndurable = true\n[pool]\nenabled = false\n{policy}"));
    audited.server.post("/v1/runs", &hello("control")).result();
    let code = "import os\nos.system('id')";
    let denied = audited.server.post("/v1/runs", &json!({"language": "python", "code": code})).result();
    assert_eq!(denied["status"], json!("denied"), "{denied}");
    let listed: Value =
        serde_json::from_slice(&audited.server.get("/v1/audit?status=denied&q=python.process.spawn").body)
            .unwrap();
    let records = listed["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{listed}");
    assert_eq!((&records[0]["id"], &records[0]["decision"]), (&denied["id"], &json!("deny")));
    let id = denied["id"].as_str().unwrap();
    let record: Value = serde_json::from_slice(&audited.server.get(&format!("/v1/audit/{id}")).body).unwrap();
    assert_eq!(
        (&record["decision"], &record["decider"]),
        (&denied["decision"], &json!("policy")),
        "{record}"
    );
    assert_eq!((&record["findings"], &record["exit_code"]), (&denied["findings"], &json!(126)), "{record}");
    assert_eq!((&denied["isolation"]["kept"], &record["kept"]), (&json!([]), &json!([])), "nothing ran");
    assert!(record["findings"][0]["rule"] == json!("python.process.spawn"), "{record}");
    let text = |words: &[&str]| String::from_utf8(audit(&audited.state, words).stdout).unwrap();
    assert!(
        text(&["search", "--status", "denied"]).contains(id)
            && !text(&["search", "--status", "denied"]).contains("control")
    );
    let shown = text(&["show", id]);
    assert!(shown.contains("deny by policy: ") && shown.contains("python.process.spawn at 2:1"), "{shown}");
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

#[test]
fn servers_record_unless_they_are_told_not_to_and_commands_only_if_they_are_told_to() {
    let state_of = |audited: &Audited| audited.state.join("ledger.db").exists();
    let mut usual = Audited::with("");
    usual.server.post("/v1/runs", &hello("one")).result();
    usual.stop();
    assert_eq!(exported(&usual.state).len(), 1);
    let off = Audited::with("[audit]\nenabled = false\n");
    off.server.post("/v1/runs", &hello("one")).result();
    assert_eq!(off.server.get("/v1/audit").error().0, 404);
    assert_eq!((state_of(&usual), state_of(&off)), (true, false));
    let own = tempfile::tempdir().unwrap();
    for (config, records) in [("", false), ("[audit]\nenabled = true\n", true)] {
        fs::write(own.path().join("belljar.toml"), config).unwrap();
        let run = belljar(own.path(), &["run", "sh", "-c", "true"]).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        assert_eq!(own.path().join("ledger.db").exists(), records, "{config}");
    }
}

/// A server whose state is on a small file system, which only it and its root parent see.
fn on_a_small_disk(state: &Path, config: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(state).unwrap();
    fs::write(folder.path().join("belljar.toml"), config).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m none {} && exec {} \"$@\"",
        state.display(),
        env!("CARGO_BIN_EXE_belljar")
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "belljar", "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--config", "belljar.toml"]);
    Server::spawn_in(command, state.to_owned(), folder)
}

/// The statuses of the records that a server lists.
fn statuses(server: &Server) -> Vec<String> {
    let listed: Value = serde_json::from_slice(&server.get("/v1/audit?limit=200").body).unwrap();
    let records = listed["records"].as_array().unwrap();
    records.iter().map(|record| record["status"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_full_disk_refuses_runs_or_lets_them_go_unrecorded_as_it_is_configured() {
    assert!(geteuid().is_root(), "only root can mount a small file system");
    for on_full in ["refuse", "run"] {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let config = format!("[audit]\non-full = '{on_full}'\n[pool]\nenabled = false\n");
        let server = on_a_small_disk(&state, &config);
        let run = || server.post("/v1/runs", &hello("one")).status;
        assert_eq!(run(), 200, "the control");
        eventually("it is recorded", || statuses(&server) == ["exited"]);
        let seen = format!("/proc/{}/root{}/ballast", server.started().as_raw_nonzero(), state.display());
        let mut ballast = fs::File::create(&seen).unwrap();
        while ballast.write(&[b'x'; 4096]).is_ok() {}
        let mut answered = 1;
        if on_full == "refuse" {
            // The first is recorded later.
            eventually("runs are refused", || {
                let status = run();
                answered += usize::from(status == 200);
                status == 503
            });
        } else {
            // How many go unrecorded is told when that is possible.
            eventually("the writer has failed", || {
                answered += 1;
                assert_eq!(run(), 200);
                server.log().contains("cannot write the ledger")
            });
            answered += 1;
            assert_eq!(run(), 200);
        }
        drop(ballast);
        fs::remove_file(&seen).unwrap();
        eventually("runs are recorded again", || {
            let status = run();
            answered += usize::from(status == 200);
            status == 200 && statuses(&server).len() > 1
        });
        let ran = |statuses: &[String]| statuses.iter().filter(|status| *status == "exited").count();
        if on_full == "refuse" {
            eventually("all are recorded", || ran(&statuses(&server)) == answered);
        } else {
            eventually("the gap is recorded", || {
                statuses(&server).iter().any(|status| status == "unrecorded")
            });
            assert!(ran(&statuses(&server)) < answered);
        }
        let verdict: Value = serde_json::from_slice(&server.get("/v1/audit/verify").body).unwrap();
        assert_eq!(verdict["ok"], json!(true), "{verdict}");
    }
}

#[test]
fn a_ledger_that_is_too_large_is_pruned_by_its_server_and_stays_whole() {
    let mut audited = Audited::with("");
    let large = "word ".repeat(20_000);
    for _ in 0..40 {
        audited.server.post("/v1/runs", &json!({"language": "cobol", "code": large}));
    }
    audited.stop();
    assert!(fs::metadata(audited.state.join("ledger.db")).unwrap().len() > 1 << 20, "the control");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("belljar.toml"), "[audit]\nretain = { size = '1M' }\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
    let server = Server::spawn_in(command, audited.state.clone(), folder);
    server.post("/v1/runs", &hello("newest")).result();
    let verdict = || -> Value { serde_json::from_slice(&server.get("/v1/audit/verify").body).unwrap() };
    eventually("it is pruned", || verdict()["pruned_through"].as_u64() > Some(0));
    assert_eq!((&verdict()["ok"], &verdict()["last"]), (&json!(true), &json!(41)));
    drop(server);
    assert_whole(&audited.state);
}
