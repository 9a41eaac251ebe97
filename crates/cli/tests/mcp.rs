//! MCP as it is on the wire: `belljar mcp` and `/mcp`, in both eras, with clients that do it right and clients that do
//! not; and `belljar mcp install`.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn belljar(words: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(words).current_dir(home).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command
}

/// A client on standard input and output. Whatever comes back that is not JSON fails the test.
struct Client {
    server: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    era: Era,
    home: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq)]
enum Era {
    Initialized,
    Stateless,
}

impl Client {
    fn start(words: &[&str], config: &str) -> Client {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("belljar.toml"), config).unwrap();
        let mut command = belljar(&[&["mcp", "--config", "belljar.toml"], words].concat(), home.path());
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(server.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = server.stdin.take();
        Client { server, input, lines, next_id: 0, era: Era::Stateless, home }
    }

    /// A client of the generation that begins with `initialize`.
    fn initialized(config: &str) -> Client {
        let mut client = Client { era: Era::Initialized, ..Client::start(&[], config) };
        let version = client.initialize("2025-11-25");
        assert_eq!(version["result"]["protocolVersion"], "2025-11-25");
        client
    }

    fn initialize(&mut self, version: &str) -> Value {
        let who = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": who});
        let answer = self.request("initialize", params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        answer
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn ask(&mut self, method: &str, mut params: Value) -> u64 {
        self.next_id += 1;
        if self.era == Era::Stateless && params.get("_meta").is_none() {
            params["_meta"] = meta("2026-07-28");
        }
        let request = json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params});
        self.send(&request.to_string());
        self.next_id
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answer_to(id).0
    }

    /// The answer to a request, and what came before it.
    fn answer_to(&self, id: u64) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return (message, before);
            }
            before.push(message);
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    }

    /// Ends the conversation as clients do, and waits.
    fn leave(mut self) -> (Option<i32>, tempfile::TempDir) {
        drop(self.input.take());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.server.try_wait().unwrap() {
                return (status.code(), self.home);
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn meta(version: &str) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    })
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

/// Whether a process has this among its arguments.
fn is_alive(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.windows(mark.len()).any(|window| window == mark.as_bytes()))
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A call that takes long, and by what its program is known.
fn long_call(test: &str) -> (Value, String) {
    let mark = format!("{test}-{}", std::process::id());
    let code = "import time; time.sleep(300)";
    let arguments = json!({"language": "python", "code": code, "args": [mark.clone()], "timeout_ms": 300_000, "disk_bytes": 33_000_000});
    (json!({"name": "run_code", "arguments": arguments}), mark)
}

#[test]
fn every_version_that_begins_with_initialize_is_spoken() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client { era: Era::Initialized, ..Client::start(&[], "") };
        assert_eq!(client.initialize(version)["result"]["protocolVersion"], version);
        let result = client.call("run_code", json!({"language": "sh", "code": "echo hello"}));
        assert_eq!(text(&result), "exit code 0\nstdout:\nhello");
        assert_eq!(client.leave().0, Some(0));
    }
}

#[test]
fn requests_that_stand_alone_are_answered() {
    let mut client = Client::start(&[], "");
    let discovered = client.request("server/discover", json!({}));
    let versions = discovered["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")), "{discovered}");
    let result = client.call("run_code", json!({"language": "sh", "code": "exit 3"}));
    assert_eq!((text(&result), &result["resultType"]), ("exit code 3\n(no output)", &json!("complete")));
    assert_eq!((&result["isError"], &result["structuredContent"]["exit_code"]), (&json!(false), &json!(3)));
    let old = client.request("tools/list", json!({"_meta": meta("1999-01-01")}));
    assert_eq!(old["error"]["code"], -32022, "{old}");
    let bare = client.request("tools/list", json!({"_meta": {}}));
    assert_eq!(bare["error"]["code"], -32602, "{bare}");
    assert_eq!(client.leave().0, Some(0));
}

#[test]
fn the_first_line_tells_code_that_does_not_compile_from_a_program_that_fails() {
    let mut client = Client::start(&[], "");
    let c = |code: &str| json!({"language": "c", "code": code, "compile_timeout_ms": 300_000, "timeout_ms": 60_000});
    let broken = client.call("run_code", c("int main(){return x;}"));
    let told = text(&broken);
    assert!(
        told.starts_with("compilation failed: exit code 1\nstderr:\n") && told.contains("main.c:1"),
        "{told}"
    );
    let structured = &broken["structuredContent"];
    assert_eq!((&structured["stage"], &structured["compile"]["exit_code"]), (&json!("compile"), &json!(1)));
    assert_eq!(structured["compile"]["stderr"], json!(""), "a model reads it once");
    assert_eq!(broken["isError"], json!(false));
    let fails = client.call("run_code", c("int main(){return 1;}"));
    assert_eq!(text(&fails), "exit code 1\n(no output)");
    let structured = &fails["structuredContent"];
    assert_eq!((&structured["stage"], &structured["compile"]), (&json!(null), &json!(null)), "as usual");
    assert_eq!(client.leave().0, Some(0));
}

#[test]
fn the_tools_are_the_same_in_the_same_order_every_time() {
    let mut client = Client::initialized("");
    let first = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<_> = first.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["run_code", "list_languages", "get_run", "cancel_run"]);
    assert_eq!(first, client.request("tools/list", json!({}))["result"]["tools"]);
    let hints = &first[0]["annotations"];
    for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
        assert_eq!(hints[hint], false, "{hint}");
    }
    assert!(first.as_array().unwrap().iter().all(|tool| tool["title"].is_string()));
}

#[test]
fn input_that_is_no_protocol_is_survived() {
    let mut client = Client::initialized("");
    for line in
        ["", "not json", "{\"jsonrpc\":", "[]", "3", "\u{1b}[31m", "{\"jsonrpc\":\"2.0\",\"method\":\"x/y\"}"]
    {
        client.send(line);
    }
    assert_eq!(client.request("no/such/method", json!({}))["error"]["code"], -32601);
    assert_eq!(client.request("prompts/list", json!({}))["error"]["code"], -32601);
    let unknown = client.request("tools/call", json!({"name": "no_such_tool", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602);
    assert_eq!(unknown["error"]["message"], "there is no tool 'no_such_tool'");
    let result = client.call("run_code", json!({"language": "sh", "code": "echo still here"}));
    assert_eq!(text(&result), "exit code 0\nstdout:\nstill here");
}

#[test]
fn what_will_not_run_is_an_error_that_a_model_can_act_upon() {
    let mut client = Client::initialized("");
    let code = |language: &str| json!({"language": language, "code": "1"});
    let with = |key: &str, value: Value| {
        let mut call = code("python");
        call[key] = value;
        call
    };
    for (arguments, expected) in [
        (code("pyhton"), "error (invalid_request): unknown language 'pyhton'\nhint: did you mean 'python'?"),
        (json!({"language": "python"}), "missing field `code`"),
        (with("lmits", json!({})), "there is no argument 'lmits'"),
        (with("limits", json!({"pids": 3})), "there is no argument 'limits'"),
        (with("waive", json!(["memory"])), "there is no argument 'waive'"),
        (with("backend", json!("process")), "error (forbidden): the backend 'process' is not allowed here"),
        (with("workspace", json!("/usr/share")), "there is no argument 'workspace'"),
        (
            with("files", json!([{"path": "x", "from_run": "run_0"}])),
            "error (not_found): there is no run 'run_0'",
        ),
        (with("timeout_ms", json!(0)), "argument: "),
        (with("files", json!([{"path": "../x", "content": ""}])), "argument: files"),
    ] {
        let result = client.call("run_code", arguments);
        assert!(result["isError"] == true && text(&result).contains(expected), "{expected}: {result}");
        assert!(result["structuredContent"].is_null(), "{result}");
    }
    let gone = client.call("get_run", json!({"run_id": "run_0"}));
    assert!(gone["isError"] == true && text(&gone).ends_with("run the code again with run_code"), "{gone}");
}

#[test]
fn the_operator_may_choose_what_a_model_may_not() {
    let mut client = Client::start(&["--waive", "disk", "--timeout", "300ms"], "");
    let result = client.call("run_code", json!({"language": "sh", "code": "sleep 20"}));
    assert_eq!(text(&result).lines().next(), Some("timed out after 300ms (exit code 124)"));
    assert_eq!(result["structuredContent"]["isolation"]["waived"], json!(["disk"]));
}

/// What the schema of `run_code` says of the argument `workspace`.
fn offered_workspace(client: &mut Client) -> Value {
    let tools = client.request("tools/list", json!({}));
    tools["result"]["tools"][0]["inputSchema"]["properties"]["workspace"].clone()
}

#[test]
fn a_workspace_is_offered_and_shown_where_the_operator_has_named_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let (root, other) = (folder.path().join("root"), folder.path().join("other"));
    for dir in [&root.join("project"), &other] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("a.txt"), "from the host").unwrap();
    }
    symlink(&other, root.join("link")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let named = root.to_str().unwrap();
    assert!(offered_workspace(&mut Client::start(&[], "")).is_null());
    let flags = Client::start(&["--workspace-root", named], "");
    let file = Client::start(&[], &format!("[mcp]\nworkspace-roots = ['{named}']\n"));
    for mut client in [flags, file] {
        let offered = offered_workspace(&mut client)["description"].as_str().unwrap().to_owned();
        assert!(offered.contains(named), "{offered}");
        let mut cat = |workspace: &Path| {
            let code = "pwd; cat a.txt; touch b";
            client.call("run_code", json!({"language": "sh", "code": code, "workspace": workspace}))
        };
        let shown = cat(&root.join("project"));
        assert!(text(&shown).contains("stdout:\n/work\nfrom the host\nstderr:\n"), "{shown}");
        for refused in [&other, &root.join("link"), Path::new("/usr/share"), &root.join("../other")] {
            let refused = cat(refused);
            assert!(refused["isError"] == true && text(&refused).contains("workspace"), "{refused}");
        }
    }
    assert!(!root.join("project/b").exists());
}

#[test]
fn a_run_that_goes_on_shows_the_end_of_what_it_has_written() {
    let mut client = Client::initialized("[mcp]\nanswer-within = \"100ms\"\n");
    let code = "echo one; echo two >&2; read x < <(sleep 300)";
    let arguments = json!({"language": "bash", "code": code, "timeout_ms": 300_000});
    let mut answer = client.call("run_code", arguments);
    let id = answer["structuredContent"]["id"].clone();
    let deadline = Instant::now() + PATIENCE;
    while answer["structuredContent"]["stderr"] != "two\n" {
        assert!(Instant::now() < deadline, "{answer}");
        answer = client.call("get_run", json!({"run_id": id, "wait_ms": 10}));
    }
    let content = &answer["structuredContent"];
    assert_eq!((&content["status"], &content["stdout"]), (&json!("running"), &json!("one\n")));
    assert!(text(&answer).starts_with("still running\n"), "{answer}");
    assert!(text(&answer).ends_with("\nstdout so far:\none\nstderr so far:\ntwo"), "{answer}");
    client.call("cancel_run", json!({"run_id": id}));

    // The end is that of what was written, and not of the part that is kept from the start.
    let code = "for i in $(seq 5000); do echo line $i; done; read x < <(sleep 300)";
    let arguments = json!({"language": "bash", "code": code, "timeout_ms": 300_000, "output_bytes": 2000});
    let mut answer = client.call("run_code", arguments);
    let id = answer["structuredContent"]["id"].clone();
    while !answer["structuredContent"]["stdout"].as_str().unwrap().ends_with("\nline 5000\n") {
        assert!(Instant::now() < deadline, "{answer}");
        answer = client.call("get_run", json!({"run_id": id, "wait_ms": 10}));
    }
    assert_eq!(answer["structuredContent"]["stdout_truncated"], true);
    assert!(text(&answer).contains("\nstdout so far, without the first "), "{answer}");
    assert!(text(&answer).len() < 6000, "{}", text(&answer).len());
    client.call("cancel_run", json!({"run_id": id}));
}

#[test]
fn a_picture_is_in_an_answer_once() {
    let mut client = Client::initialized("");
    let code = r"printf '\x89PNG\r\n\x1a\n123' > dot.png; echo 1 > a.csv";
    let arguments = json!({"language": "bash", "code": code, "collect": ["*.png", "*.csv", "*.svg"]});
    let answer = client.call("run_code", arguments);
    let base64 = "iVBORw0KGgoxMjM=";
    assert_eq!(answer["content"][1]["data"], base64);
    assert_eq!(answer.to_string().matches(base64).count(), 1, "{answer}");
    let files = &answer["structuredContent"]["files"];
    assert_eq!(files[0], json!({"path": "a.csv", "size": 2, "content_base64": "MQo="}));
    assert_eq!(files[1], json!({"path": "dot.png", "size": 11}));
    assert!(
        text(&answer).ends_with("\n- a.csv (2 bytes)\n- dot.png (11 bytes), shown as an image"),
        "{answer}"
    );
    assert!(text(&answer).contains("\nNothing to collect: no file matches '*.svg'\n"), "{answer}");
    let id = &answer["structuredContent"]["id"];
    let whole = client.call("get_run", json!({"run_id": id, "file": "dot.png"}));
    assert_eq!(
        (&whole["content"][1]["data"], &whole["content"][1]["mimeType"]),
        (&json!(base64), &json!("image/png"))
    );
    assert_eq!(whole.to_string().matches(base64).count(), 1, "{whole}");
    let part = client.call("get_run", json!({"run_id": id, "file": "dot.png", "length": 4}));
    assert_eq!(part["structuredContent"]["page"]["content"], "iVBO");
}

#[test]
fn a_file_goes_from_one_run_into_the_next_without_passing_through_the_model() {
    let mut client = Client::initialized("");
    let first = json!({"language": "bash", "code": "head -c 300000 /dev/zero > big", "collect": ["big"]});
    let first = client.call("run_code", first);
    assert!(first.to_string().len() < 5000);
    let file = json!({"path": "data/in", "from_run": first["structuredContent"]["id"], "from_path": "big"});
    let next = json!({"language": "bash", "code": "wc -c < data/in", "files": [file]});
    assert_eq!(text(&client.call("run_code", next)), "exit code 0\nstdout:\n300000");
    let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let file = &tools[0]["inputSchema"]["properties"]["files"]["items"]["properties"];
    assert!(file["from_run"].is_object() && file["upload"].is_null(), "there is no way to upload: {file}");
}

/// The schema that is published, held to the letter: whatever a result has that the schema does not know fails.
#[test]
fn every_kind_of_answer_is_as_its_schema_says() {
    let mut client = Client::initialized("[mcp]\nanswer-within = \"500ms\"\n");
    let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let mut check = |tool: &str, arguments: Value| {
        let mut schema =
            tools.as_array().unwrap().iter().find(|it| it["name"] == tool).unwrap()["outputSchema"].clone();
        close(&mut schema);
        let result = client.call(tool, arguments);
        let content = result["structuredContent"].clone();
        jsonschema::validate(&schema, &content).unwrap_or_else(|fault| panic!("{fault} in {content:#}"));
        content
    };
    let mut run = |code: &str, more: Value| {
        let mut arguments = json!({"language": "bash", "code": code});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut content = check("run_code", arguments);
        while content["status"] == "running" {
            content = check("get_run", json!({"run_id": content["id"], "verbose": more["verbose"]}));
        }
        content
    };
    let short = run("echo 1", json!({}));
    let mut names: Vec<_> = short.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["backend", "exit_code", "id", "language", "status", "stderr", "stdout"]);
    let verbose = run("echo 1", json!({"verbose": true}));
    assert!(verbose["usage"]["wall_ms"].is_number() && verbose["timed_out"] == false, "{verbose}");
    let isolation = &verbose["isolation"];
    assert!(isolation["kept"].is_array() && isolation["waived"] == json!([]), "{isolation}");
    assert_eq!(run("kill -11 $$", json!({}))["status"], "signaled");
    assert_eq!(run("sleep 9", json!({"timeout_ms": 100}))["status"], "timed_out");
    assert_eq!(run("sleep 1; echo late", json!({}))["stdout"], "late\n");
    let hoard = "x=x; while :; do x=$x$x; done";
    assert_eq!(
        run(hoard, json!({"memory_bytes": 16 << 20, "timeout_ms": 30_000}))["status"],
        "out_of_memory"
    );
    let files = run("echo a > a; head -c 99999 /dev/zero > b", json!({"collect": ["a", "b"]}));
    assert_eq!(files["files"][0], json!({"path": "a", "size": 2, "content_base64": "YQo="}));
    assert_eq!(files["files"][1], json!({"path": "b", "size": 99_999}));
    let picture = run(r"printf '\x89PNG\r\n\x1a\n' > a.png", json!({"collect": ["*.png"]}));
    let endless = check("run_code", json!({"language": "bash", "code": "sleep 300", "timeout_ms": 300_000}));
    let mut cancelled = check("cancel_run", json!({"run_id": endless["id"]}));
    while cancelled["status"] == "running" {
        cancelled = check("get_run", json!({"run_id": endless["id"]}));
    }
    assert_eq!(cancelled["status"], "cancelled");
    for part in
        [json!({"stream": "stdout"}), json!({"file": "a"}), json!({"file": "b", "offset": 7, "length": 3})]
    {
        let mut arguments = part;
        arguments["run_id"] = files["id"].clone();
        assert!(check("get_run", arguments)["page"].is_object());
    }
    assert_eq!(check("get_run", json!({"run_id": picture["id"], "file": "a.png"}))["files"][0]["size"], 8);
    check("list_languages", json!({}));
}

/// Lets no object of a schema have members that it does not name.
fn close(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        if object.contains_key("properties") && object.contains_key("type") {
            object.insert("additionalProperties".into(), json!(false));
        }
        object.values_mut().for_each(close);
    }
}

#[test]
fn output_is_cut_for_a_model_in_text_and_in_structure() {
    let mut client = Client::initialized("[mcp]\nmax-text = 1000\n");
    let code = "for i in $(seq 5000); do echo out $i; echo err $i >&2; done";
    let result = client.call("run_code", json!({"language": "bash", "code": code}));
    let (told, content) = (text(&result), &result["structuredContent"]);
    assert!(told.len() < 1500, "{}", told.len());
    for stream in ["stdout", "stderr"] {
        assert_eq!(content[format!("{stream}_truncated")], true);
        let kept = content[stream].as_str().unwrap();
        assert!(told.contains(kept.trim_end()));
        let note = format!(r#"get_run with {{"run_id":{},"stream":"{stream}","offset":250}}"#, content["id"]);
        assert!(kept.contains(&note), "{kept}");
    }
    let page = json!({"run_id": content["id"], "stream": "stderr", "offset": 250, "length": 20});
    let page = client.call("get_run", page);
    let whole: String = (1..=5000).map(|i| format!("err {i}\n")).collect();
    assert_eq!(page["structuredContent"]["page"]["content"], &whole[250..270]);
    assert_eq!(page["structuredContent"]["page"]["next_offset"], 270);
}

#[test]
fn a_client_that_wants_progress_has_it() {
    let mut client = Client::initialized("");
    let arguments = json!({"language": "bash", "code": "printf 'half\\e[1m way\\n'; sleep 2.5"});
    let params = json!({"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "t"}});
    let id = client.ask("tools/call", params);
    let (answer, before) = client.answer_to(id);
    assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0);
    let news: Vec<_> = before.iter().filter(|it| it["method"] == "notifications/progress").collect();
    assert!(!news.is_empty(), "{before:?}");
    assert!(news.iter().all(|it| it["params"]["progressToken"] == "t"));
    let amounts: Vec<_> = news.iter().map(|it| it["params"]["progress"].as_f64().unwrap()).collect();
    assert!(amounts.windows(2).all(|pair| pair[0] < pair[1]), "{amounts:?}");
    let last = news.last().unwrap()["params"]["message"].as_str().unwrap();
    assert!(last.starts_with("running for ") && last.ends_with(": half[1m way"), "{last}");
}

#[test]
fn a_call_that_is_cancelled_is_the_end_of_its_box() {
    for era in [Era::Initialized, Era::Stateless] {
        let mut client = Client { era, ..Client::start(&[], "") };
        if era == Era::Initialized {
            client.initialize("2025-11-25");
        }
        let (call, mark) = long_call("cancelled");
        let id = client.ask("tools/call", call);
        until("the program runs", || is_alive(&mark));
        let notification =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        client.send(&notification.to_string());
        until("the box is gone", || !is_alive(&mark));
        let result = client.call("run_code", json!({"language": "sh", "code": "echo next"}));
        assert_eq!(text(&result), "exit code 0\nstdout:\nnext");
    }
}

#[test]
fn a_client_that_leaves_takes_its_boxes_along() {
    let mut client = Client::initialized("[mcp]\nanswer-within = \"100ms\"\n");
    let (call, mark) = long_call("left");
    let answer = client.request("tools/call", call);
    assert_eq!(answer["result"]["structuredContent"]["status"], "running");
    until("the program runs", || is_alive(&mark));
    assert_eq!(client.leave().0, Some(0));
    until("the box is gone", || !is_alive(&mark));
}

#[test]
fn the_tool_has_the_name_that_it_was_given() {
    let mut client = Client::start(&["--tool-name", "code_run"], "[mcp]\ntool-name = \"other\"\n");
    let result = client.call("code_run", json!({"language": "sh", "code": "echo hello"}));
    assert_eq!(text(&result), "exit code 0\nstdout:\nhello");
    let home = tempfile::tempdir().unwrap();
    let refused = belljar(&["mcp", "--tool-name", "run code"], home.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.starts_with("error: 'run code' cannot be the name of a tool\nhint: "), "{said}");
    fs::write(home.path().join("belljar.toml"), "[mcp]\nanswer-within = \"1h\"\n").unwrap();
    let refused = belljar(&["mcp", "--config", "belljar.toml"], home.path()).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("mcp.answer-within in belljar.toml: '1h'"), "{said}");
}

/// A server on a port of its own, which ends with the test.
struct Served {
    server: Child,
    address: String,
    _home: tempfile::TempDir,
}

impl Served {
    fn start() -> Served {
        Served::with_config("")
    }

    fn with_config(config: &str) -> Served {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("belljar.toml"), config).unwrap();
        let words = ["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"];
        let mut command = belljar(&words, home.path());
        let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned())).unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Served { server, address, _home: home }
    }

    /// Sends a message; the answer is read to its end by [`read`].
    fn post(&self, headers: &str, message: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = message.to_string();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n",
            self.address,
            body.len(),
        )
        .unwrap();
        // It may answer and hang up before it has read everything.
        let _ = stream.write_all(body.as_bytes());
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // Where the server did not read everything, the end of what it says is that the connection is reset.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn call_message(id: u64, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[test]
fn over_http_a_session_is_a_name_by_which_a_call_can_be_cancelled() {
    let served = Served::start();
    let who = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": who});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let answer = read(served.post("", &initialize));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let session = |line: &str| line.strip_prefix("mcp-session-id: ").map(str::to_owned);
    let session = answer.lines().find_map(session).unwrap();
    let headers = format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n");

    let (call, mark) = long_call("session");
    let waiting = served.post(&headers, &call_message(7, call));
    until("the program runs", || is_alive(&mark));
    let cancel =
        |id: u64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert!(read(served.post(&headers, &cancel(8))).starts_with("HTTP/1.1 202"));
    let stranger = headers.replace(&session, "session_0");
    assert!(read(served.post(&stranger, &cancel(7))).starts_with("HTTP/1.1 202"));
    assert!(is_alive(&mark), "cancelled by somebody else");
    assert!(read(served.post(&headers, &cancel(7))).starts_with("HTTP/1.1 202"));
    until("the box is gone", || !is_alive(&mark));
    assert!(!read(waiting).contains("\"result\""));
}

#[test]
fn over_http_a_client_that_hangs_up_takes_its_box_along() {
    let served = Served::start();
    for version in ["2025-11-25", "2026-07-28"] {
        let (mut call, mark) = long_call("hangs-up");
        let mut headers = format!("MCP-Protocol-Version: {version}\r\n");
        if version == "2026-07-28" {
            call["_meta"] = meta(version);
            headers += "Mcp-Method: tools/call\r\nMcp-Name: run_code\r\n";
        }
        let waiting = served.post(&headers, &call_message(1, call));
        until("the program runs", || is_alive(&mark));
        drop(waiting);
        until("the box is gone", || !is_alive(&mark));
    }
}

#[test]
fn over_http_only_our_own_pages_are_served_and_only_so_much_is_read() {
    let served = Served::start();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let version = "MCP-Protocol-Version: 2025-11-25\r\n";
    assert!(read(served.post(version, &list)).starts_with("HTTP/1.1 200"));
    let own = format!("{version}Origin: http://{}\r\n", served.address);
    assert!(read(served.post(&own, &list)).starts_with("HTTP/1.1 200"));
    let foreign = format!("{version}Origin: http://evil.example\r\n");
    assert!(read(served.post(&foreign, &list)).starts_with("HTTP/1.1 403"));
    // There is nothing to listen to between calls, and no session to end.
    for method in ["GET", "DELETE"] {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        write!(stream, "{method} /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", served.address)
            .unwrap();
        assert!(read(stream).starts_with("HTTP/1.1 405"));
    }
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "x".repeat(17 << 20)});
    assert!(read(served.post(version, &long)).starts_with("HTTP/1.1 413"));
}

#[test]
fn over_http_what_is_no_message_is_refused_as_json_rpc_does() {
    let served = Served::start();
    let both = "application/json, text/event-stream";
    let send = |kind: &str, accept: &str, body: &str| {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n\
             Connection: close\r\nMCP-Protocol-Version: 2025-11-25\r\nContent-Length: {}\r\n\r\n{body}",
            served.address,
            body.len(),
        )
        .unwrap();
        read(stream)
    };
    let list = r#"{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}"#;
    assert!(send("application/json", both, list).starts_with("HTTP/1.1 200"), "the control");
    let name = |length: usize| "n".repeat(length);
    let named = |id: &str| format!(r#"{{"jsonrpc": "2.0", "id": "{id}", "method": "tools/list"}}"#);
    let token = |token: &str| {
        list.replace("\"id\"", &format!(r#""params": {{"_meta": {{"progressToken": "{token}"}}}}, "id""#))
    };
    for good in [named(&name(256)), token(&name(256))] {
        assert!(send("application/json", both, &good).starts_with("HTTP/1.1 200"), "the control");
    }
    for (kind, accept, body, status, code, id) in [
        ("application/json", both, named(&name(257)).as_str(), 400, -32600, Value::Null),
        ("application/json", both, &token(&name(257)), 400, -32600, Value::Null),
        ("application/json", both, "{", 400, -32700, Value::Null),
        ("application/json", both, "", 400, -32700, Value::Null),
        ("application/json", both, "\"x\"", 400, -32600, Value::Null),
        (
            "application/json",
            both,
            r#"{"jsonrpc": "1.0", "id": 7, "method": "tools/list"}"#,
            400,
            -32600,
            json!(7),
        ),
        ("text/plain", both, list, 415, -32600, json!(7)),
        ("application/json", "text/html", list, 406, -32600, json!(7)),
    ] {
        let answer = send(kind, accept, body);
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{body}: {answer}");
        assert!(head.contains("content-type: application/json"), "{answer}");
        let error: Value = serde_json::from_str(text).unwrap_or_else(|fault| panic!("{fault}: {answer}"));
        assert_eq!((&error["jsonrpc"], &error["error"]["code"]), (&json!("2.0"), &json!(code)), "{answer}");
        assert_eq!(error["id"], id, "{answer}");
        assert!(!error["error"]["message"].as_str().unwrap().is_empty(), "{answer}");
    }
}

#[test]
fn over_http_a_server_with_keys_wants_one_and_shows_each_its_own_runs() {
    let home = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let output = belljar(&["key", "new", "--name", name], home.path()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let secret = said.lines().find(|line| line.starts_with("bj_")).unwrap().to_owned();
        (secret, said[said.find("[[keys]]").unwrap()..].lines().take(3).collect::<Vec<_>>().join("\n"))
    };
    let ((first, first_entry), (second, second_entry)) = (key("first"), key("second"));
    let served = Served::with_config(&format!("{first_entry}\n{second_entry}"));
    let headers = |key: &str| format!("MCP-Protocol-Version: 2025-11-25\r\nAuthorization: Bearer {key}\r\n");
    let run = json!({"name": "run_code", "arguments": {"language": "sh", "code": "echo hello"}});
    assert!(read(served.post(&headers("bj_0"), &call_message(1, run.clone()))).starts_with("HTTP/1.1 401"));
    let answer = read(served.post(&headers(&first), &call_message(1, run)));
    assert!(answer.contains("exit code 0\\nstdout:\\nhello"), "{answer}");
    let id = &answer[answer.find("run_").unwrap()..][..30];
    let find = json!({"name": "get_run", "arguments": {"run_id": id}});
    assert!(read(served.post(&headers(&first), &call_message(2, find.clone()))).contains("nhello"));
    assert!(read(served.post(&headers(&second), &call_message(2, find))).contains("there is no run"));
}

#[test]
fn over_http_each_key_is_offered_what_it_may_have_and_files_can_be_uploaded() {
    let (root, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.path().join("a.txt"), "from the host").unwrap();
    let key = |name: &str| {
        let output = belljar(&["key", "new", "--name", name], home.path()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (secret, rest) = said.split_once('\n').unwrap();
        (secret.to_owned(), rest[rest.find("[[keys]]").unwrap()..].to_owned())
    };
    let ((with, with_entry), (without, without_entry)) = (key("with"), key("without"));
    let roots = format!("allow.workspace-roots = ['{}']\n", root.path().display());
    let served = Served::with_config(&format!("{with_entry}{roots}{without_entry}"));
    let headers = |key: &str| format!("MCP-Protocol-Version: 2025-11-25\r\nAuthorization: Bearer {key}\r\n");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let offered = read(served.post(&headers(&with), &list));
    assert!(offered.contains("\"workspace\":") && offered.contains("\"upload\":"), "{offered}");
    let offered = read(served.post(&headers(&without), &list));
    assert!(!offered.contains("\"workspace\":") && offered.contains("\"upload\":"), "{offered}");
    let run = |more: Value| {
        let mut arguments = json!({"language": "sh", "code": "cat a.txt"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call_message(2, json!({"name": "run_code", "arguments": arguments}))
    };
    let shown = read(served.post(&headers(&with), &run(json!({"workspace": root.path()}))));
    assert!(shown.contains("stdout:\\nfrom the host"), "{shown}");

    let mut stream = TcpStream::connect(&served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (address, body) = (&served.address, "uploaded");
    write!(
        stream,
        "PUT /v1/files HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {with}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len(),
    )
    .unwrap();
    let answer = read(stream);
    let id = &answer[answer.find("\"file_").unwrap() + 1..][..31];
    let files = json!({"files": [{"path": "a.txt", "upload": id}]});
    assert!(read(served.post(&headers(&with), &run(files.clone()))).contains("stdout:\\nuploaded"));
    assert!(read(served.post(&headers(&without), &run(files))).contains("there is no uploaded file"));
}

fn install(home: &Path, words: &[&str]) -> Output {
    belljar(&[&["mcp", "install", "--client"], words].concat(), home).output().unwrap()
}

fn written(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_client_finds_the_server_where_it_looks() {
    let home = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_belljar");
    let plain = json!({"command": program, "args": ["mcp"]});
    let typed = json!({"type": "stdio", "command": program, "args": ["mcp"]});
    for (words, path, table, entry) in [
        (&["claude-code"][..], ".claude.json", "mcpServers", &typed),
        (&["claude-code", "--scope", "project"], ".mcp.json", "mcpServers", &typed),
        (&["claude-desktop"], ".config/Claude/claude_desktop_config.json", "mcpServers", &plain),
        (&["cursor"], ".cursor/mcp.json", "mcpServers", &plain),
        (&["vscode"], ".config/Code/User/mcp.json", "servers", &typed),
        (&["vscode", "--scope", "project"], ".vscode/mcp.json", "servers", &typed),
    ] {
        let output = install(home.path(), words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let path = home.path().join(path);
        assert_eq!(written(&path), json!({table: {"belljar": entry}}));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_configuration_keeps_what_it_has_and_is_written_once() {
    let home = tempfile::tempdir().unwrap();
    let (path, real) = (home.path().join(".claude.json"), home.path().join("real.json"));
    fs::write(&real, r#"{"zoom": 1.5, "mcpServers": {"other": {"command": "x"}}, "a": [null]}"#).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.json", &path).unwrap();
    assert_eq!(install(home.path(), &["claude-code", "--name", "box"]).status.code(), Some(0));
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    let after = written(&real);
    let keys: Vec<_> = after.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["zoom", "mcpServers", "a"]);
    assert_eq!((&after["zoom"], &after["mcpServers"]["other"]), (&json!(1.5), &json!({"command": "x"})));
    assert!(after["mcpServers"]["box"]["command"].is_string());
    let inode = fs::metadata(&real).unwrap().ino();
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
    let again = install(home.path(), &["claude-code", "--name", "box"]);
    assert!(String::from_utf8(again.stdout).unwrap().contains("already"));
    assert_eq!(fs::metadata(&real).unwrap().ino(), inode);
    let names = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // What Belljar has found out about the host is in .local.
    let names: Vec<_> = names.filter(|name| name != ".local").collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_configuration_that_cannot_be_understood_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".claude.json");
    for content in ["{\"a\": 1, // comment\n}", "[1]", "{\"mcpServers\": []}", "\u{0}"] {
        fs::write(&path, content).unwrap();
        let output = install(home.path(), &["claude-code"]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("cannot add to the configuration") && said.contains("--print"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn a_client_starts_the_server_with_the_options_that_install_was_given() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("project")).unwrap();
    fs::write(home.path().join("belljar.toml"), "").unwrap();
    let options = ["--timeout", "30s", "--memory", "1G", "--waive", "memory", "--waive", "cpu"];
    let more = ["--workspace-root", "project", "--config", "belljar.toml", "--tool-name", "code_run"];
    let output = install(home.path(), &[&["cursor"][..], &options, &more].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let entry = &written(&home.path().join(".cursor/mcp.json"))["mcpServers"]["belljar"];
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (project, config) = (path("project"), path("belljar.toml"));
    let roots = ["mcp", "--tool-name", "code_run", "--workspace-root", &project];
    let expected = [&roots[..], &options, &["--config", &config]].concat();
    assert_eq!(entry["args"], json!(expected));
    // Whatever it would not start with is refused now.
    for wrong in [
        &["--timeout", "soon"][..],
        &["--waive", "everything"],
        &["--workspace-root", "missing"],
        &["--tool-name", "run code"],
        &["--config", "missing.toml"],
    ] {
        let refused = install(home.path(), &[&["cursor"][..], wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {refused:?}");
    }
    assert_eq!(written(&home.path().join(".cursor/mcp.json"))["mcpServers"]["belljar"], *entry);
}

#[test]
fn what_would_be_written_can_be_printed() {
    let home = tempfile::tempdir().unwrap();
    let output = install(home.path(), &["cursor", "--print"]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["mcpServers"]["belljar"]["args"], json!(["mcp"]));
    assert!(fs::read_dir(home.path()).unwrap().next().is_none());
    let unknown = install(home.path(), &["emacs"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

/// Every run needs approval, and no call waits for it.
const ASKING: &str = "[policy]\ndefault = 'approve'\n[approvals]\nwait = '0s'\n";

/// The parameters of a call by a client that can ask its user, of the era in which every request stands alone.
fn asking_call(arguments: &Value, more: &Value) -> Value {
    let mut meta = meta("2026-07-28");
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {"form": {}}});
    let mut params = json!({"name": "run_code", "arguments": arguments, "_meta": meta});
    more.as_object().unwrap().iter().for_each(|(name, value)| params[name.as_str()] = value.clone());
    params
}

fn said(approve: bool) -> Value {
    json!({"approve": {"action": "accept", "content": {"approve": approve}}})
}

#[test]
fn the_person_at_the_client_is_asked_and_the_client_calls_again() {
    let mut client = Client::start(&[], ASKING);
    let arguments = json!({"language": "sh", "code": "echo asked"});
    let mut call = |arguments: &Value, more: &Value| {
        let answer = client.request("tools/call", asking_call(arguments, more));
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    };
    let asked = call(&arguments, &json!({}));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let question = &asked["inputRequests"]["approve"];
    assert_eq!(question["method"], "elicitation/create");
    assert!(question["params"]["message"].as_str().unwrap().contains("echo asked"), "{question}");
    let state = asked["requestState"].as_str().unwrap();

    // A state is good for what it was given for, and for nothing else.
    let other = json!({"language": "sh", "code": "echo other"});
    let cut = &state[..state.len() - 1];
    for (arguments, forged) in
        [(&other, state), (&arguments, cut), (&arguments, ""), (&arguments, "v1.a.b.9.00")]
    {
        let refused = call(arguments, &json!({"requestState": forged, "inputResponses": said(true)}));
        assert_eq!(refused["isError"], true, "{forged}: {refused}");
        assert!(text(&refused).contains("requestState"), "{refused}");
    }
    let nothing = call(&arguments, &json!({"requestState": state}));
    assert_eq!(nothing["isError"], true, "no answer: {nothing}");

    let ran = call(&arguments, &json!({"requestState": state, "inputResponses": said(true)}));
    assert_eq!(
        (&ran["structuredContent"]["status"], &ran["structuredContent"]["stdout"]),
        (&json!("exited"), &json!("asked\n")),
        "{ran}"
    );
    // Once: what is sent again decides nothing.
    let replayed = call(&arguments, &json!({"requestState": state, "inputResponses": said(true)}));
    assert!(replayed["isError"] == true && text(&replayed).contains("approved already"), "{replayed}");

    let asked = call(&other, &json!({}));
    let state = asked["requestState"].as_str().unwrap();
    let denied = call(&other, &json!({"requestState": state, "inputResponses": said(false)}));
    assert_eq!(
        (&denied["isError"], &denied["structuredContent"]["status"]),
        (&json!(true), &json!("denied")),
        "{denied}"
    );
}

#[test]
fn a_client_that_cannot_ask_gets_a_handle() {
    let mut client = Client::start(&[], ASKING);
    let waits = client.call("run_code", json!({"language": "sh", "code": "echo no"}));
    assert_eq!(waits["structuredContent"]["status"], "awaiting_approval", "{waits}");
    let state =
        json!({"name": "run_code", "arguments": {"language": "sh", "code": "echo no"}, "requestState": "x"});
    assert_eq!(client.request("tools/call", state)["result"]["isError"], true);
}

#[test]
fn a_client_of_the_first_era_is_asked_while_its_call_waits() {
    let mut client = Client { era: Era::Initialized, ..Client::start(&[], ASKING) };
    let who = json!({"name": "test", "version": "1"});
    let capabilities = json!({"elicitation": {}});
    client.request(
        "initialize",
        json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": who}),
    );
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
    for (approve, status) in [(true, "exited"), (false, "denied")] {
        let arguments = json!({"language": "sh", "code": format!("echo {approve}")});
        let id = client.ask("tools/call", json!({"name": "run_code", "arguments": arguments}));
        let answer = loop {
            let line = client.lines.recv_timeout(PATIENCE).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["method"] == "elicitation/create" {
                let result = said(approve)["approve"].clone();
                client.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string());
            } else if message["id"] == id {
                break message;
            }
        };
        assert_eq!(answer["result"]["structuredContent"]["status"], status, "{answer}");
    }
}
