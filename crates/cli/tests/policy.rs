//! What the policy denies runs through no way in: the real binary, each interface, and a program that would leave a mark.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

#[path = "serve/server.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod server;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use belljar_engine::WayIn;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};
use server::{Answer, PATIENCE, Server};
use tempfile::TempDir;
use tungstenite::Message;

/// Without a sandbox, so that what a program does can be seen from outside.
const UNBOXED: &str = "backend = 'none'\n[server.allow]\nbackends = ['none']\n";
const DENYING: &str = "[policy]\nrules = [{ when = { rule = 'python.process.spawn' }, then = 'deny' }]\n";
const APPROVING: &str =
    "[policy]\nrules = [{ when = { rule = 'python.process.spawn' }, then = 'approve' }]\n";

/// A place where a program can leave a mark.
struct Ground {
    folder: TempDir,
    state: TempDir,
    server: Server,
}

/// What came back, as one text.
type Said = String;
/// A way to have code run.
type Way = (WayIn, &'static str, fn(&Ground, &str) -> Said);

const WAYS: &[Way] = &[
    (WayIn::CommandLine, "-c", |ground, code| ground.belljar(&["run", "python", "-c", code], "")),
    (WayIn::CommandLine, "--json", |ground, code| {
        ground.belljar(&["run", "python", "--json", "-c", code], "")
    }),
    (WayIn::CommandLine, "stdin", |ground, code| ground.belljar(&["run", "python", "-"], code)),
    (WayIn::CommandLine, "a file", |ground, code| {
        fs::write(ground.folder.path().join("main.py"), code).unwrap();
        ground.belljar(&["run", "main.py"], "")
    }),
    (WayIn::CommandLine, "a file that is copied", |ground, code| {
        fs::write(ground.folder.path().join("helper.py"), code).unwrap();
        ground.belljar(&["run", "python", "-c", "import helper", "--file", "helper.py"], "")
    }),
    (WayIn::Http, "at once", |ground, code| ground.post("/v1/runs", &[], &python(code))),
    (WayIn::Http, "with a key", |ground, code| {
        ground.post("/v1/runs", &[("idempotency-key", "k")], &python(code))
    }),
    (WayIn::Http, "later", |ground, code| {
        let accepted = ground.ask("/v1/runs", &[("prefer", "respond-async")], &python(code)).json();
        let path = format!("/v1/runs/{}?wait_ms=60000", accepted["id"].as_str().unwrap());
        text(&ground.server.get(&path))
    }),
    (WayIn::Http, "as events", |ground, code| {
        let events = ground.server.stream(&python(code)).all();
        events.iter().map(|(name, data)| format!("{name} {data}\n")).collect()
    }),
    (WayIn::Http, "on many inputs", |ground, code| {
        let run = json!({"language": "python", "code": code, "stdin": ["1", "2"]});
        ground.post("/v1/runs", &[], &run)
    }),
    (WayIn::Http, "in a file", |ground, code| {
        let run = json!({"language": "python", "code": "import helper",
                         "files": [{"path": "helper.py", "content": code}]});
        ground.post("/v1/runs", &[], &run)
    }),
    (WayIn::Http, "in a file of another name", |ground, code| {
        let run = json!({"language": "bash", "code": "python3 ./data.txt",
                         "files": [{"path": "data.txt", "content": code}]});
        ground.post("/v1/runs", &[], &run)
    }),
    (WayIn::Http, "through standard input", |ground, code| {
        ground.post("/v1/runs", &[], &json!({"language": "bash", "code": "python3 -", "stdin": code}))
    }),
    (WayIn::Mcp, "over HTTP", |ground, code| ground.mcp_over_http(code)),
    (WayIn::McpStdio, "on standard input", |ground, code| ground.mcp_on_stdio(code)),
    (WayIn::Piston, "execute", |ground, code| ground.post("/api/v2/execute", &[], &piston(code))),
    (WayIn::Piston, "execute with two files", |ground, code| {
        let files = json!([{"content": "import helper"}, {"name": "helper.py", "content": code}]);
        let job = json!({"language": "python", "version": "*", "files": files});
        ground.post("/api/v2/execute", &[], &job)
    }),
    (WayIn::Piston, "connect", |ground, code| ground.piston_socket(code)),
    (WayIn::SandboxFusion, "run_code", |ground, code| ground.post("/run_code", &[], &python(code))),
    (WayIn::SandboxFusion, "run_jupyter", |ground, code| {
        ground.post("/run_jupyter", &[], &json!({"cells": ["\"\"\"", code, "\"\"\""]}))
    }),
];

fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

fn piston(code: &str) -> Value {
    json!({"language": "python", "version": "*", "files": [{"content": code}]})
}

fn text(answer: &Answer) -> Said {
    format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))
}

impl Ground {
    fn new(policy: &str) -> Ground {
        let folder = tempfile::tempdir().unwrap();
        // The server may have another user, and so its programs.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        fs::write(folder.path().join("belljar.toml"), format!("{UNBOXED}{policy}")).unwrap();
        let state = tempfile::tempdir().unwrap();
        Ground { folder, state, server: Server::with(&format!("{UNBOXED}{policy}"), &[]) }
    }

    fn mark(&self) -> std::path::PathBuf {
        self.folder.path().join("mark")
    }

    /// Code that leaves the mark in a way that a rule matches.
    fn code(&self) -> String {
        format!("import os\nos.system('touch {}')\nprint('it r' + 'an')\n", self.mark().display())
    }

    /// Whether the program has run, since this was asked before.
    fn take_mark(&self) -> bool {
        fs::remove_file(self.mark()).is_ok()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(words).args(["--config", "belljar.toml"]).current_dir(self.folder.path());
        command.env("BELLJAR_STATE_DIR", self.state.path());
        command
    }

    fn belljar(&self, words: &[&str], input: &str) -> Said {
        let mut command = self.command(words);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        format!("{} {stdout}{stderr}", status.code().unwrap())
    }

    fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.server.ask("POST", path, &headers, body.to_string().as_bytes())
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Said {
        text(&self.ask(path, headers, body))
    }

    fn mcp_over_http(&self, code: &str) -> Said {
        let accept = ("accept", "application/json, text/event-stream");
        let answer = self.ask("/mcp", &[accept], &initialize());
        let session = answer.headers["mcp-session-id"].clone();
        let headers = [accept, ("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
        self.post("/mcp", &headers, &call(code))
    }

    fn mcp_on_stdio(&self, code: &str) -> Said {
        let mut command = self.command(&["mcp"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        for message in [initialize(), initialized, call(code)] {
            writeln!(input, "{message}").unwrap();
        }
        let said = lines.find_map(|line| line.ok().filter(|line| line.contains("\"id\":2"))).unwrap();
        drop(input);
        child.wait().unwrap();
        said
    }

    fn piston_socket(&self, code: &str) -> Said {
        let url = format!("ws://{}/api/v2/connect", self.server.address);
        let mut socket = tungstenite::client(url, self.server.connect()).unwrap().0;
        let mut job = piston(code);
        job["type"] = json!("init");
        socket.send(Message::text(job.to_string())).unwrap();
        let mut said = String::new();
        loop {
            match socket.read().unwrap() {
                Message::Text(text) => said += &text,
                Message::Close(_) => return said,
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

fn initialize() -> Value {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                        "clientInfo": {"name": "test", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

fn call(code: &str) -> Value {
    let params = json!({"name": "run_code", "arguments": python(code)});
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
}

#[test]
fn every_way_in_is_tried() {
    for way in WayIn::ALL {
        // Through that one, nothing of Belljar's own comes in.
        assert!(way == WayIn::Unknown || WAYS.iter().any(|(tried, ..)| *tried == way), "{}", way.name());
    }
}

#[test]
fn what_is_denied_runs_through_no_way_in() {
    let (denying, open) = (Ground::new(DENYING), Ground::new(""));
    for (way, how, run) in WAYS {
        let said = run(&open, &open.code());
        assert!(open.take_mark(), "the control: {} {how}: {said}", way.name());
        let said = run(&denying, &denying.code());
        assert!(!denying.take_mark(), "{} {how}: {said}", way.name());
        assert!(said.contains("Denied by policy: python.process.spawn"), "{} {how}: {said}", way.name());
        assert!(!said.contains("it ran"), "{} {how}: {said}", way.name());
    }
}

#[test]
fn what_needs_an_approval_runs_through_no_way_in_without_one() {
    let approving = Ground::new(&format!("{APPROVING}[approvals]\nwait = '0s'\nexpire = '1s'\n"));
    for (way, how, run) in WAYS {
        // Nobody can be asked, or nobody decides in time.
        let said = run(&approving, &approving.code());
        assert!(said.contains("approv"), "{} {how}: {said}", way.name());
        assert!(!approving.take_mark(), "{} {how}: {said}", way.name());
    }
    let said = approving.belljar(&["run", "python", "--yes", "-c", &approving.code()], "");
    assert!(approving.take_mark() && said.starts_with("0 "), "the control: {said}");
}

/// Approves the only run that waits, as soon as there is one.
fn approve(ground: &Ground) {
    let pending = || ground.server.get("/v1/approvals?status=pending").result()["approvals"].clone();
    eventually("a run waits", || !pending().as_array().unwrap().is_empty());
    let id = pending()[0]["id"].as_str().unwrap().to_owned();
    assert!(!ground.take_mark(), "nothing runs before the answer");
    let approved = ground.ask(&format!("/v1/approvals/{id}/approve"), &[], &json!({}));
    assert_eq!(approved.status, 200, "{}", text(&approved));
}

#[test]
fn what_waits_for_a_person_runs_when_it_is_approved() {
    let ground = Ground::new(&format!("{APPROVING}[approvals]\nwait = '2m'\n"));
    let served = |way: &WayIn| !matches!(way, WayIn::CommandLine | WayIn::McpStdio);
    for (way, how, run) in WAYS.iter().filter(|(way, how, _)| served(way) && *how != "on many inputs") {
        // Each is another run, so that an answer to one is none to the next.
        let code = format!("{}# {} {how}\n", ground.code(), way.name());
        let said = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| run(&ground, &code));
            approve(&ground);
            waiting.join().unwrap()
        });
        assert!(ground.take_mark() && said.contains("it ran"), "{} {how}: {said}", way.name());
    }
}

#[test]
fn a_run_that_waits_is_answered_with_its_approval_and_found_again() {
    let ground = Ground::new(&format!("{APPROVING}[approvals]\nwait = '0s'\n"));
    let answer = ground.ask("/v1/runs", &[], &python(&ground.code()));
    assert_eq!(answer.status, 202, "{}", text(&answer));
    let (state, id) = (answer.json(), answer.headers["x-run-id"].clone());
    assert_eq!((&state["id"], &state["status"]), (&json!(id), &json!("awaiting_approval")));
    let approval = state["approval_id"].as_str().unwrap().to_owned();
    assert_eq!(answer.headers["location"], format!("/v1/runs/{id}"));
    assert_eq!(ground.server.get(&format!("/v1/runs/{id}")).json(), state);
    let waiting = ground.server.get("/v1/runs?status=awaiting_approval").result();
    assert_eq!(waiting["runs"][0]["id"], json!(id));
    let mut events = ground.server.follow(&format!("/v1/runs/{id}/events"), &[]);
    assert_eq!(events.next().unwrap(), ("awaiting_approval".to_owned(), state));
    approve(&ground);
    let result = ground.server.get(&format!("/v1/runs/{id}?wait_ms=60000")).result();
    assert_eq!((&result["status"], &result["stdout"]), (&json!("exited"), &json!("it ran\n")));
    assert_eq!(result["decision"]["action"], "approve");
    assert_eq!(result["decision"]["approval_id"], json!(approval));
    assert!(ground.take_mark());
}

#[test]
fn a_client_that_knows_no_run_that_waits_sends_its_request_again() {
    let ground = Ground::new(&format!("{APPROVING}[approvals]\nwait = '0s'\n"));
    let unaware = |way: &WayIn| matches!(way, WayIn::Piston | WayIn::SandboxFusion);
    for (way, how, run) in WAYS.iter().filter(|(way, ..)| unaware(way)) {
        let code = format!("{}# {} {how}\n", ground.code(), way.name());
        let said = run(&ground, &code);
        assert!(said.contains("nobody has decided about apr_"), "{} {how}: {said}", way.name());
        approve(&ground);
        assert!(!ground.take_mark(), "{} {how}: nobody waits for it", way.name());
        let said = run(&ground, &code);
        assert!(ground.take_mark() && said.contains("it ran"), "{} {how}: {said}", way.name());
    }
}

#[test]
fn a_denied_run_is_a_result_in_the_shape_of_each_interface() {
    let ground = Ground::new(DENYING);
    let code = ground.code();
    let answer = ground.ask("/v1/runs", &[], &python(&code));
    assert_eq!(answer.status, 200);
    let (result, id) = (answer.json(), answer.headers["x-run-id"].clone());
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("denied"), &json!(126)));
    assert_eq!(result["decision"]["action"], "deny");
    assert_eq!(result["decision"]["rule"], "{ rule = \"python.process.spawn\" }");
    assert_eq!(
        (&result["decision"]["by"], &result["decision"]["approval_id"]),
        (&json!("policy"), &Value::Null)
    );
    assert_eq!(result["findings"][0]["rule"], "python.process.spawn");
    assert!(result["stderr"].as_str().unwrap().starts_with("Denied by policy: "));
    assert_eq!(ground.server.get(&format!("/v1/runs/{id}")).result(), result, "it can be fetched again");
    let listed = ground.server.get("/v1/runs?status=denied").result();
    assert_eq!(listed["runs"][0]["id"], json!(id));

    let mcp: Value = serde_json::from_str(&ground.mcp_on_stdio(&code)).unwrap();
    assert_eq!(mcp["result"]["isError"], true, "{mcp}");
    assert_eq!(mcp["result"]["structuredContent"]["decision"]["action"], "deny", "{mcp}");
    assert!(mcp["result"]["content"][0]["text"].as_str().unwrap().starts_with("denied (exit code 126)"));

    let piston = ground.ask("/api/v2/execute", &[], &piston(&code)).result();
    assert_eq!((&piston["run"]["code"], &piston["run"]["status"]), (&json!(126), &json!("XX")), "{piston}");
    let fusion = ground.ask("/run_code", &[], &python(&code)).result();
    assert_eq!(fusion["status"], "SandboxError", "{fusion}");
    assert!(ground.belljar(&["run", "python", "-c", &code], "").starts_with("126 "));
}

#[test]
fn a_request_cannot_allow_itself_more() {
    let ground = Ground::new("[policy]\nallowed-imports.python = ['json', 'math']\n");
    let status = |body: Value| ground.ask("/v1/runs", &[], &body).result()["status"].clone();
    assert_eq!(status(json!({"language": "python", "code": "import json"})), "exited");
    assert_eq!(
        status(json!({"language": "python", "code": "import json", "allowed_imports": ["math"]})),
        "denied"
    );
    let wide = json!({"language": "python", "code": "import os", "allowed_imports": ["os", "json"]});
    assert_eq!(status(wide), "denied");
    let sh = ground.ask("/v1/runs", &[], &json!({"language": "sh", "code": "", "allowed_imports": []}));
    assert_eq!(sh.error(), (400, "invalid_request".to_owned(), "allowed_imports".to_owned()));
}

#[test]
fn a_policy_of_ones_own_decides_for_each_key() {
    let (strict, lax) = (new_key("strict"), new_key("lax"));
    let config = format!(
        "[policy]\nrules = [{{ when = {{ language = 'sh' }}, then = 'deny' }}]\n\
         {}[keys.policy]\ndefault = 'deny'\n{}[keys.policy]\nrules = [{{ when = {{}}, then = 'allow' }}]\n",
        strict.1, lax.1
    );
    let server = Server::with(&config, &[]);
    let status = |key: &str, language: &str, code: &str| {
        let headers = [("content-type", "application/json"), ("x-api-key", key)];
        let body = json!({"language": language, "code": code}).to_string();
        server.ask("POST", "/v1/runs", &headers, body.as_bytes()).result()["status"].clone()
    };
    assert_eq!(status(&strict.0, "sh", "true"), "denied");
    assert_eq!(status(&strict.0, "python", "1"), "denied");
    assert_eq!(status(&lax.0, "sh", "true"), "exited");
}

/// A key, and the text that configures it.
fn new_key(name: &str) -> (String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_belljar")).args(["key", "new", "--name", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (key, rest) = text.split_once('\n').unwrap();
    (key.to_owned(), rest[rest.find("[[keys]]").unwrap()..].to_owned())
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_running_server_takes_a_new_policy_and_refuses_one_that_is_not_valid() {
    let server = Server::with("", &[]);
    let status =
        || server.post("/v1/runs", &json!({"language": "sh", "code": "true"})).result()["status"].clone();
    assert_eq!(status(), "exited", "the control");
    let write = |text: &str| fs::write(server.config_path(), text).unwrap();
    // By itself, when the file has changed.
    write("[policy]\ndefault = 'deny'\n");
    eventually("the new policy counts", || status() == "denied");
    // At once, on SIGHUP; what is not valid changes nothing.
    write("[policy]\ndefault = 'allow'\nrules = [\n  { when = { severity = 'dire' }, then = 'deny' },\n]\n");
    server.signal(Signal::HUP);
    eventually("it is refused", || server.log().contains("belljar.toml:4: 'dire' is not a severity"));
    assert_eq!(status(), "denied");
    write("[policy]\ndefault = 'allow'\n");
    server.signal(Signal::HUP);
    eventually("the third policy counts", || status() == "exited");
}

#[test]
fn a_working_directory_cannot_bring_a_policy() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("belljar.toml"), "[policy]\ndefault = 'allow'\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["run", "sh", "-c", "echo ran"]).current_dir(folder.path());
    command.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME");
    let Output { status, stdout, stderr } = command.output().unwrap();
    if rustix::process::geteuid().is_root() {
        // Root does not read it at all.
        assert_eq!(stdout, b"ran\n");
    } else {
        assert_eq!(status.code(), Some(125));
        assert!(String::from_utf8_lossy(&stderr).contains("cannot set 'policy'"));
    }
}

fn policy(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.arg("policy").args(words).current_dir(folder).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn a_check_names_the_line_that_decides() {
    let folder = tempfile::tempdir().unwrap();
    let text = "# ours\n[policy]\npreset = 'standard'\nrules = [\n  { when = { network = 'full' }, then = 'deny' },\n]\n";
    fs::write(folder.path().join("p.toml"), text).unwrap();
    fs::write(folder.path().join("a.sh"), "nmap x\n").unwrap();
    let check = |words: &[&str]| {
        policy(folder.path(), &[&["check", "--config", "p.toml", "--backend", "none"], words].concat())
    };
    let (status, said) = check(&["python", "-c", "print(1)"]);
    assert_eq!((status, said.lines().next()), (Some(0), Some("allowed: no rule of the policy matches it")));
    let (status, said) = check(&["a.sh"]);
    assert_eq!(status, Some(3), "{said}");
    assert!(said.starts_with("needs an approval: any.network.scanner (high) in line 1"), "{said}");
    assert!(said.contains("written: the preset standard"), "{said}");
    let (status, said) = check(&["a.sh", "--network", "full"]);
    assert_eq!(status, Some(126), "{said}");
    assert!(said.contains("denied: the network is full") && said.contains("written: p.toml:5"), "{said}");
    let (status, said) = check(&["a.sh", "--json"]);
    let checked: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((status, &checked["decision"]["action"]), (Some(3), &json!("approve")));
    assert_eq!(checked["findings"][0]["rule"], "any.network.scanner");
    let (status, said) = policy(folder.path(), &["show", "--config", "p.toml"]);
    assert!(
        status == Some(0) && said.contains("then = \"deny\" },") && said.contains("# p.toml:5"),
        "{said}"
    );
    let (status, said) = policy(folder.path(), &["show", "--preset", "lax"]);
    assert_eq!((status, said.lines().next()), (Some(2), Some("error: there is no preset 'lax'")));
}

#[test]
fn files_and_variables_that_run_by_themselves_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("p.toml", "[policy]\npreset = 'strict'\n");
    write("e.pth", "import os; os.system('id')\n");
    write("z", "id\n");
    write("js", "require('child_process').execSync('id')\n");
    write("json", r#"{"main": "y.txt"}"#);
    write("rb", "system('id')\n");
    write("php", "<?php system('id');\n");
    write("c", "int f(void) { return system(\"id\"); }\n");
    write("rs", "fn f() { std::process::Command::new(\"id\").status().unwrap(); }\n");
    write(
        "data.json",
        r#"{"path": "/etc/shadow", "text": "require the system to exec id; import the rest"}"#,
    );
    write("data.csv", "host,path\n169.254.169.254,/etc/passwd\nsystem,eval\n");
    write("notes.txt", "Please include the system files, and do not load /etc/shadow.\n");
    let check = |words: &[&str]| {
        policy(folder.path(), &[&["check", "--config", "p.toml", "--backend", "none"], words].concat())
    };
    let start = "any.files.runs-at-start (high)";
    for (words, expected) in [
        (
            &["python", "-c", "print(1)", "--file", "e.pth:.local/lib/python3.11/site-packages/e.pth"][..],
            start,
        ),
        (&["zsh", "-c", "echo", "--file", "z:.zshenv"], start),
        (&["node", "-c", "require('./d.txt')", "--file", "js:d.txt"], "javascript.process.spawn"),
        (&["node", "-c", "require('./d')", "--file", "js:d"], "javascript.process.spawn"),
        (
            &["node", "-c", "require('./x')", "--file", "json:x/package.json", "--file", "js:x/y.txt"],
            "javascript.process.spawn",
        ),
        (
            &["ts", "-c", "const d: unknown = require('./d.txt')", "--file", "js:d.txt"],
            "javascript.process.spawn",
        ),
        (&["ruby", "-c", "load './rb.txt'", "--file", "rb:rb.txt"], "ruby.process.spawn"),
        (&["ruby", "-c", "load ['./rb', 'txt'].join('.')", "--file", "rb:rb.txt"], "ruby.process.spawn"),
        (&["perl", "-c", "do './rb.txt'", "--file", "rb:rb.txt"], "perl.process.spawn"),
        (&["perl", "-c", "require './rb.txt'", "--file", "rb:rb.txt"], "perl.process.spawn"),
        (&["php", "-c", "include 'php.txt';", "--file", "php:php.txt"], "php.process.spawn"),
        (
            &["c", "-c", "#include \"c.txt\"\nint main(void) { return f(); }", "--file", "c:c.txt"],
            "c.process.spawn",
        ),
        (
            &["c", "-c", "#include \"e.h\"\nint main(void) { return f(); }", "--file", "c:e.h"],
            "c.process.spawn",
        ),
        (
            &["rust", "-c", "include!(\"rs.txt\");\nfn main() { f() }", "--file", "rs:rs.txt"],
            "rust.process.spawn",
        ),
        (
            &["bash", "-c", "echo", "-e", "SHELLOPTS=xtrace", "-e", "PS4=$(id)"],
            "any.environment.runs-code (high)",
        ),
        (
            &["python", "-c", "breakpoint()", "-e", "PYTHONBREAKPOINT=os.system"],
            "any.environment.runs-code (high)",
        ),
        (
            &["go", "-c", "package main\nfunc main() {}", "-e", "GOFLAGS=-toolexec=x"],
            "any.environment.runs-code (high)",
        ),
    ] {
        let (status, said) = check(words);
        assert!(status == Some(126) || status == Some(3), "{words:?}: {status:?} {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    let data = ["--file", "data.json", "--file", "data.csv", "--file", "notes.txt"];
    for words in [
        &["python", "-c", "import json, re\nprint(json.load(open('data.json')), re.compile('x'))"][..],
        &["node", "-c", "console.log(require('./data.json'), process.argv)"],
        &["ruby", "-c", "require 'json'; puts JSON.load(File.read('data.json')), File.read('notes.txt')"],
        &["perl", "-c", "my $n = do { 1 }; print $n;"],
        &["c", "-c", "#include <stdio.h>\nint main(void) { puts(\"data.csv\"); }"],
        &["bash", "-c", "cat notes.txt data.csv", "-e", "PYTHONUNBUFFERED=1", "-e", "NODE_ENV=test"],
    ] {
        let (status, said) = check(&[words, &data].concat());
        assert_eq!(status, Some(0), "the control: {words:?}: {said}");
    }
}

/// A terminal: the end for the program, and the one for who sits before it.
fn terminal() -> (OwnedFd, File) {
    let before = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&before).unwrap();
    unlockpt(&before).unwrap();
    let name = ptsname(&before, Vec::new()).unwrap();
    let open = fs::OpenOptions::new().read(true).write(true).open(Path::new(name.to_str().unwrap())).unwrap();
    (open.as_fd().try_clone_to_owned().unwrap(), File::from(before))
}

#[test]
fn on_a_terminal_the_person_is_asked() {
    let ground = Ground::new(APPROVING);
    for (answer, runs) in [("y\n", true), ("n\n", false), ("\n", false)] {
        let (inside, mut person) = terminal();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_belljar")]);
        command.args(["run", "python", "-c", &ground.code(), "--config", "belljar.toml"]);
        command.current_dir(ground.folder.path()).env("BELLJAR_STATE_DIR", ground.state.path());
        let same = || Stdio::from(inside.try_clone().unwrap());
        let mut child = command.stdin(same()).stdout(same()).stderr(same()).spawn().unwrap();
        drop((inside, command));
        let mut said = Vec::new();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&said).contains("Run it? [y/N]") {
            let read = person.read(&mut piece).unwrap();
            said.extend_from_slice(&piece[..read]);
        }
        let question = String::from_utf8_lossy(&said).into_owned();
        assert!(question.contains("python.process.spawn") && question.contains("os.system("), "{question}");
        assert!(!ground.take_mark(), "nothing runs before the answer");
        person.write_all(answer.as_bytes()).unwrap();
        // The end of what a terminal says is an error.
        let _ = person.read_to_end(&mut said);
        let status = child.wait().unwrap().code();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(
            (ground.take_mark(), status),
            (runs, Some(if runs { 0 } else { 126 })),
            "{answer:?}: {said}"
        );
    }
}

#[test]
fn an_explanation_says_what_the_policy_would_decide() {
    let ground = Ground::new(DENYING);
    let explained = |code: &str| ground.belljar(&["run", "python", "--explain", "-c", code], "");
    let denied = explained("import os\nos.system('id')");
    assert!(denied.contains("\npolicy:\ndenied: "), "{denied}");
    assert!(denied.contains("python.process.spawn"), "{denied}");
    let allowed = explained("print(1)");
    assert!(allowed.contains("\npolicy:\nallowed: "), "{allowed}");
}
