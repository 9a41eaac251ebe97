//! The command line as a client: `belljar run --url`, `approvals --url`, `audit --url`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use belljar_client::{Client, Event, RunRequest, Waited};
use belljar_wire::{Code, RunStatus, ScanRequest};

use crate::server::{PATIENCE, Server, alive, eventually, mark};

fn command(server: &Server, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    let (first, rest) = words.split_first().unwrap();
    command.arg(first).args(["--url", &format!("http://{}", server.address)]).args(rest);
    command.env_remove("BELLJAR_API_KEY").env_remove("BELLJAR_URL").current_dir(server.folder.path());
    command
}

fn say(server: &Server, words: &[&str]) -> Output {
    command(server, words).output().unwrap()
}

/// What was written to stdout and stderr, and the exit status.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_run_on_a_server_is_like_one_here() {
    let server = Server::start();
    let run = |words: &[&str]| told(&say(&server, &[&["run"], words].concat()));
    let script = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)";
    assert_eq!(run(&["python", "-c", script]), (Some(3), "out\n".into(), "err\n".into()));
    let (code, _, said) = run(&["sh", "-c", "sleep 100", "--timeout", "200ms"]);
    assert_eq!(code, Some(124));
    assert!(said.contains("Execution timed out"), "{said}");
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).0, Some(137));
    let (_, long, _) = run(&["sh", "-c", "seq 100000", "--output-limit", "1000"]);
    assert!(long.starts_with("1\n2\n") && long.ends_with("99999\n100000\n"), "{long}");
    let (code, json, _) = run(&["sh", "-c", "echo hi; exit 4", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["stdout"], &json["exit_code"]), (Some(4), &json!("hi\n"), &json!(4)));
    assert_eq!(json["isolation"]["kept"].as_array().map(Vec::len), Some(8));
}

#[test]
fn code_input_and_files_travel() {
    let server = Server::start();
    let here = |name: &str| server.folder.path().join(name);
    fs::write(here("script.py"), "import sys\nprint(open('data.bin', 'rb').read(), sys.argv[1:], input())\nopen('made.txt', 'w').write('made')\n").unwrap();
    fs::write(here("data.bin"), [0xff, 0x00, b'x']).unwrap();
    fs::write(here("input"), "typed\n").unwrap();
    let words =
        ["run", "script.py", "--file", "data.bin", "--stdin", "input", "--collect", "*.txt", "--", "a b"];
    let output = told(&say(&server, &words));
    assert_eq!(output, (Some(0), "b'\\xff\\x00x' ['a b'] typed\n".into(), String::new()));
    assert_eq!(fs::read_to_string(here("made.txt")).unwrap(), "made");
    let mut piped =
        command(&server, &["run", "sh"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"echo from a pipe").unwrap();
    assert_eq!(piped.wait_with_output().unwrap().stdout, b"from a pipe\n");
}

#[test]
fn output_comes_while_the_program_runs_and_a_signal_cancels_it() {
    let server = Server::start();
    let mark = mark();
    let code = "import time\nprint('first', flush=True)\ntime.sleep(300)";
    let words = ["run", "python", "--disk", "33M", "--timeout", "300s", "-c", code, "--", &mark];
    let mut child = command(&server, &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    assert!(alive(&mark) > 0, "the control");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    // Besides the client itself, which had the word among its arguments.
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn a_reader_that_leaves_ends_the_run() {
    let server = Server::start();
    let words = ["run", "--timeout", "300s", "python", "-c", "while True: print('y' * 100)"];
    let mut child = command(&server, &words).stdout(Stdio::piped()).spawn().unwrap();
    let mut few = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut few).unwrap();
    child.wait().unwrap();
    let runs = || server.get("/v1/runs?status=running").result()["runs"].as_array().map(Vec::len);
    eventually("nothing runs any more", || runs() == Some(0));
}

#[test]
fn what_the_server_does_not_do_is_its_error() {
    let server = Server::start();
    let refused = |words: &[&str]| {
        let (code, _, said) = told(&say(&server, &[&["run"], words].concat()));
        assert_eq!(code, Some(125), "{said}");
        assert!(said.starts_with("error: ") && said.contains("\nhint: "), "{said}");
        said
    };
    let dir = server.folder.path().to_str().unwrap();
    assert!(refused(&["sh", "-c", "ls", "--workspace", dir]).contains("workspace"));
    assert!(refused(&["sh", "-c", "ls", "--backend", "process"]).contains("'process' is not allowed here"));
    fs::write(server.folder.path().join("in.sh"), "true").unwrap();
    let said = refused(&["in.sh", "--workspace", dir]);
    assert!(said.contains("cannot be run where it is on a server"), "{said}");
    assert!(refused(&["sh", "-c", "x", "--explain"]).contains("cannot be used together with --explain"));
    fs::write(server.folder.path().join("latin"), [0xe4]).unwrap();
    assert!(refused(&["sh", "-c", "cat", "--stdin", "latin"]).contains("not valid UTF-8"));
    let json = say(&server, &["run", "--json", "sh", "-c", "x", "--memory", "900G"]);
    let error: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(error["error"]["field"], json!("limits.memory_bytes"), "{error}");
}

#[test]
fn a_server_that_dies_in_the_middle_is_an_error_of_ours() {
    let server = Server::start();
    let words = ["run", "--json", "python", "--timeout", "300s", "-c", "import time\ntime.sleep(300)"];
    let child = command(&server, &words).stdout(Stdio::piped()).spawn().unwrap();
    let runs = || server.get("/v1/runs?status=running").result()["runs"].as_array().map(Vec::len);
    eventually("it runs", || runs() == Some(1));
    server.signal(Signal::KILL);
    let output = child.wait_with_output().unwrap();
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &error["error"]["code"]), (Some(125), &json!("internal")));
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("broke off"), "{message}");
}

#[test]
fn approvals_and_the_audit_log_of_a_server_can_be_asked_for() {
    let server = Server::with("[policy]\ndefault = 'approve'\n", &[]);
    let ask = |words: &[&str]| told(&say(&server, words));
    assert_eq!(ask(&["approvals"]), (Some(0), "nothing waits for approval\n".into(), String::new()));
    let waiting = command(&server, &["run", "sh", "-c", "echo approved"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let listed =
        || -> Value { serde_json::from_slice(&say(&server, &["approvals", "--json"]).stdout).unwrap() };
    eventually("it waits", || listed()["approvals"].as_array().is_some_and(|all| all.len() == 1));
    let id = listed()["approvals"][0]["id"].as_str().unwrap().to_owned();
    let command_with = |words: &[&str]| {
        let url = format!("http://{}", server.address);
        let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(words)
            .env("BELLJAR_URL", url)
            .env_remove("BELLJAR_API_KEY")
            .output()
            .unwrap();
        told(&output)
    };
    let (code, shown, _) = command_with(&["approvals", "show", &id]);
    assert!(code == Some(0) && shown.contains("echo approved") && shown.contains(&id), "{shown}");
    let (code, said, _) = command_with(&["approvals", "approve", &id, "--reason", "fine"]);
    assert_eq!((code, said.as_str()), (Some(0), "approved the run of anonymous\n"));
    let (code, out, noted) = told(&waiting.wait_with_output().unwrap());
    assert_eq!((code, out.as_str()), (Some(0), "approved\n"));
    assert!(noted.contains(&format!("belljar approvals approve {id} --url")), "{noted}");
    let (code, _, said) = command_with(&["approvals", "approve", &id]);
    assert!(code == Some(2) && said.contains("refused the request"), "{said}");
    eventually("it is recorded", || command_with(&["audit"]).1.contains("echo approved"));
    let (_, found, _) = command_with(&["audit", "search", "approved", "--json"]);
    let found: Value = serde_json::from_str(found.lines().next().unwrap()).unwrap();
    let (code, shown, _) = command_with(&["audit", "show", found["id"].as_str().unwrap()]);
    assert!(code == Some(0) && shown.contains("echo approved"), "{shown}");
    let (code, verified, _) = command_with(&["audit", "verify"]);
    assert!(code == Some(0) && verified.contains("the ledger is whole"), "{verified}");
    let (code, _, said) = command_with(&["audit", "export"]);
    assert!(code == Some(2) && said.contains("a server does not give that"), "{said}");
}

fn request(language: &str, code: &str) -> RunRequest {
    RunRequest { language: language.to_owned(), code: code.to_owned(), ..RunRequest::default() }
}

fn in_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.unwrap() })
}

#[test]
fn a_program_can_ask_for_everything() {
    let server = Server::start();
    let client = Client::new(&format!("http://{}", server.address), None).unwrap();
    in_a_runtime(async {
        let result = client.run(&request("python", "print(6 * 7)")).await.unwrap();
        assert_eq!((result.stdout.as_str(), result.status.as_ref()), ("42\n", "exited"));
        let state = client.submit(&request("sh", "echo later")).await.unwrap();
        let Waited::Ended(result) = client.wait(&state.id, PATIENCE).await.unwrap() else {
            panic!("it does not end")
        };
        assert_eq!((result.id, result.stdout.as_str()), (state.id.clone(), "later\n"));
        let (mut events, mut told) = (client.follow(&state.id).await.unwrap(), Vec::new());
        while let Some(event) = events.next().await.unwrap() {
            told.push(event);
        }
        assert!(
            matches!(&told[..], [Event::Start(_), Event::Stdout(text), Event::End(_)] if text == "later\n"),
            "{told:?}"
        );
        let state = client.submit(&request("sh", "sleep 300")).await.unwrap();
        let Waited::Unfinished(state) = client.wait(&state.id, std::time::Duration::ZERO).await.unwrap()
        else {
            panic!("it has ended")
        };
        assert!([RunStatus::Queued, RunStatus::Running].contains(&state.status));
        client.cancel(&state.id).await.unwrap();
        let Waited::Ended(result) = client.wait(&state.id, PATIENCE).await.unwrap() else {
            panic!("it does not end")
        };
        assert_eq!(result.status, "cancelled");
        let languages = client.languages().await.unwrap().languages;
        assert!(languages.iter().any(|language| language.name == "python" && language.available));
        assert_eq!(client.backends().await.unwrap().default.as_deref(), Some("native"));
        let scan = ScanRequest {
            language: "python".into(),
            code: "import os\nos.system('ls')".into(),
            allowed_imports: None,
        };
        assert!(!client.scan(&scan).await.unwrap().findings.is_empty());
        let error = client.wait("run_nope", PATIENCE).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        let error = client.run(&request("cobol", "")).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest, "{error}");
    });
}
