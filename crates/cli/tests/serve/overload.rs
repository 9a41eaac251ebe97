//! More than the server can do: it says so, stays awake, and does not grow.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::failures::descriptors;
use crate::keys::{new_key, post};
use crate::server::{Answer, Server, alive, eventually, mark, sleeper};

const JSON: (&str, &str) = ("content-type", "application/json");

/// What it had in memory at most since [`forget_peak`], in KiB.
fn peak(server: &Server) -> u64 {
    server.memory("VmHWM:")
}

fn forget_peak(server: &Server) {
    std::fs::write(format!("/proc/{}/clear_refs", server.pid().as_raw_nonzero()), "5").unwrap();
}

#[test]
fn under_overload_every_request_is_answered() {
    let server = Server::with("[server]\nslots = 2\nqueue = 8\n", &[]);
    let body = json!({"language": "python", "code": "sum(range(10**6))"}).to_string();
    let asking: Vec<TcpStream> =
        (0..64).map(|_| server.send("POST", "/v1/runs", &[JSON], body.as_bytes())).collect();
    let statuses: Vec<u16> = asking.into_iter().map(|stream| Answer::read(stream).status).collect();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(server.post("/v1/runs", &json!({"language": "sh", "code": "true"})).status, 200);
}

/// How fast the answer is, `bench/` measures.
#[test]
fn health_is_told_while_every_slot_is_taken_and_the_queue_is_full() {
    let server = Server::with("[server]\nslots = 2\nqueue = 8\n", &[]);
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let asking: Vec<TcpStream> =
        (0..10).map(|_| server.send("POST", "/v1/runs", &[JSON], body.as_bytes())).collect();
    let metrics = || String::from_utf8(server.get("/metrics").body).unwrap();
    eventually("the slots are taken", || alive(&mark) == 2);
    eventually("the queue is full", || metrics().contains("\nbelljar_queue_length 8\n"));
    for _ in 0..50 {
        assert_eq!(server.get("/healthz").status, 200);
    }
    assert_eq!(alive(&mark), 2, "the answers came when runs had ended");
    drop(asking);
}

/// Whether every thread of the server waits for something.
fn is_idle(server: &Server) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid().as_raw_nonzero())).unwrap();
    let mut states = tasks.map_while(Result::ok).filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.starts_with('S'))
    });
    states.all(|sleeps| sleeps)
}

#[test]
fn what_blocks_while_a_box_is_built_keeps_nobody_waiting() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, mark) = (tempfile::tempdir().unwrap(), mark());
    // Once the file exists, this interpreter hangs when it is asked for its version. The thread that builds the box waits for
    // it, for ten seconds.
    let (slow, hangs) = (folder.path().join("lua"), folder.path().join("hangs"));
    let wait = format!("exec /bin/sh -c 'sleep 100; exit 1' {mark}");
    let script = format!("#!/bin/sh\nif [ -e {} ]; then {wait}; fi\nexit 1\n", hangs.display());
    std::fs::write(&slow, script).unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::with(&format!("[runtimes]\nlua = '{}'\n", slow.display()), &[]);
    // On a connection that is known: the thread that hears of the request is then the one that watches the sockets.
    let mut waiting = server.connect();
    write!(waiting, "GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address).unwrap();
    assert!(waiting.read(&mut [0; 1024]).unwrap() > 0);
    eventually("nothing else is done", || is_idle(&server));
    std::fs::write(hangs, "").unwrap();
    let run = json!({"language": "lua", "code": "print(1)"}).to_string();
    let head = "content-type: application/json\r\ncontent-length";
    write!(
        waiting,
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\n{head}: {}\r\n\r\n{run}",
        server.address,
        run.len()
    )
    .unwrap();
    eventually("the interpreter is asked", || alive(&mark) > 0);
    for _ in 0..10 {
        assert_eq!(server.get("/healthz").status, 200);
        assert!(alive(&mark) > 0, "the answer came when the interpreter had been given up");
    }
    drop(waiting);
}

#[test]
fn ten_thousand_idle_connections_are_bounded_and_keep_nobody_out() {
    // Longer than it takes to open all connections: none may be closed for its silence before the last one is open.
    let server = Server::with("[server]\nmax-connections = 1000\nheader-timeout = '300s'\n", &[]);
    raise_descriptor_limit();
    assert_eq!(server.get("/healthz").status, 200);
    let before = server.resident();
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        idle.extend((0..1000).map(|_| server.connect()));
        // A connection that is being closed to make room still counts for a moment.
        eventually("there is a place for who asks", || server.get("/healthz").status == 200);
    }
    let (most, open) = (server.resident(), descriptors(&server));
    assert!(most < before + 48 * 1024, "from {before} KiB to {most} KiB");
    assert!(open < 1000, "{open} descriptors");
    drop(idle);
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn connections_that_are_at_work_are_not_closed_for_others() {
    let server =
        Server::with("[server]\nslots = 4\nmax-connections = 4\nmax-connections-per-address = 2\n", &[]);
    let mark = mark();
    let mut at_work: Vec<_> = (0..2).map(|_| server.stream(&sleeper(&mark))).collect();
    for events in &mut at_work {
        while events.next().unwrap().0 != "stdout" {}
    }
    // Half of the places are free, but not for this address.
    assert_eq!(server.get("/healthz").error(), (429, "busy".into(), String::new()));
    drop(at_work.pop());
    eventually("there is a place again", || server.get("/healthz").status == 200);
    eventually("one is cancelled, and the other one goes on", || alive(&mark) == 1);
}

#[test]
fn connections_leave_descriptors_for_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("belljar.toml"), "[server]\nheader-timeout = '300s'\n").unwrap();
    let mut command = Command::new("/bin/sh");
    let serve = "ulimit -n 1024; exec \"$0\" serve --listen 127.0.0.1:0 --config belljar.toml";
    command.args(["-c", serve, env!("CARGO_BIN_EXE_belljar")]);
    let server = Server::spawn(command, folder);
    raise_descriptor_limit();
    let hello = json!({"language": "sh", "code": "echo hello"});
    assert_eq!(server.post("/v1/runs", &hello).status, 200, "the control");
    assert!(server.log().contains("the limit on open files allows fewer connections"), "{}", server.log());
    let idle: Vec<TcpStream> = (0..1100).map(|_| server.connect()).collect();
    eventually("there is a place for who asks", || server.get("/healthz").status == 200);
    let asking: Vec<TcpStream> =
        (0..8).map(|_| server.send("POST", "/v1/runs", &[JSON], hello.to_string().as_bytes())).collect();
    let statuses: Vec<u16> = asking.into_iter().map(|stream| Answer::read(stream).status).collect();
    assert_eq!(statuses, [200; 8]);
    drop(idle);
}

#[test]
fn requests_that_wait_are_counted() {
    let server = Server::with("[server]\nslots = 1\nqueue = 1\n", &[]);
    let mark = mark();
    let headers = [JSON, ("prefer", "respond-async")];
    let accepted = server.ask("POST", "/v1/runs", &headers, sleeper(&mark).to_string().as_bytes()).json();
    let path = format!("/v1/runs/{}", accepted["id"].as_str().unwrap());
    let followers = [(); 2].map(|()| server.follow(&format!("{path}/events"), &[]));
    let one_more = || server.get(&format!("{path}?wait_ms=1")).status;
    assert_eq!(one_more(), 429, "there are as many as there can be runs");
    assert_eq!(server.ask("GET", &format!("{path}/events"), &[], b"").status, 429);
    assert_eq!(server.get(&path).status, 202, "the control: one that does not wait");
    drop(followers);
    eventually("others may wait", || one_more() == 202);
    assert_eq!(server.ask("POST", &format!("{path}/cancel"), &[], b"").status, 202);
}

/// Sends most of a body, and leaves it at that.
fn begin_body(server: &Server, key: &str, bytes: usize) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        server.address,
        bytes + 10
    );
    let _ = stream.write_all((head + &" ".repeat(bytes)).as_bytes());
    stream
}

#[test]
fn one_caller_leaves_memory_for_the_others() {
    let (greedy, modest) = (new_key("greedy"), new_key("modest"));
    let config =
        format!("[server]\nmax-body = '1M'\nbody-memory = '4M'\n{}\n{}", greedy.stanza, modest.stanza);
    let server = Server::with(&config, &[]);
    let body = json!({"language": "sh", "code": "echo hello", "stdin": " ".repeat(900 << 10)});
    let ask = |key: &str| post(&server, key, &body).status;
    assert_eq!((ask(&greedy.key), ask(&modest.key)), (200, 200), "the control");
    let held: Vec<TcpStream> = (0..8).map(|_| begin_body(&server, &greedy.key, 1000 << 10)).collect();
    eventually("one has its whole share", || ask(&greedy.key) == 429);
    for _ in 0..5 {
        assert_eq!(ask(&modest.key), 200);
    }
    drop(held);
    eventually("it is free again", || ask(&greedy.key) == 200);
}

#[test]
fn an_error_is_shorter_than_what_it_is_about() {
    let server = Server::start();
    let large = "x".repeat(1 << 20);
    let quoted = [
        ("/v1/runs", json!({"language": large, "code": "1"})),
        ("/v1/runs", json!({"language": "sh", "code": "1", "backend": large})),
        ("/v1/runs", json!({"language": "sh", "code": "1", "network": format!("allow:{large}")})),
        ("/v1/runs", json!({"language": "sh", "code": "1", "workspace": format!("/{large}")})),
        ("/v1/runs", json!({"language": "sh", "code": "1", "env": {large.clone(): ""}})),
        ("/v1/runs", json!({large.clone(): 1})),
        ("/v1/runs", json!({"language": "sh", "code": "1", "files": [{"path": large, "content": ""}]})),
        ("/mcp", json!({"jsonrpc": "2.0", "id": 1, "method": large})),
        ("/mcp", json!({"jsonrpc": "2.0", "id": large, "method": 5})),
        (
            "/mcp",
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": large}}),
        ),
        (
            "/mcp",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                        "params": {"name": "run_code", "arguments": {"language": large, "code": "1"}}}),
        ),
        ("/api/v2/execute", json!({"language": large, "version": large, "files": [{"content": large}]})),
        ("/run_code", json!({"language": large, "code": "1"})),
    ];
    let headers = [JSON, ("accept", "application/json, text/event-stream")];
    for (path, body) in quoted {
        let answer = server.ask("POST", path, &headers, body.to_string().as_bytes());
        let start: String = body.to_string().chars().take(60).collect();
        assert!(answer.status != 500 && answer.body.len() < 16 << 10, "{path} {start}: {}", answer.status);
    }
    let longest = server.log().lines().map(str::len).max();
    assert!(longest.is_none_or(|longest| longest < 16 << 10), "a line of {longest:?} bytes");
}

/// The usual soft limit of 1024 descriptors is too low for this test.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let server = Server::with("[server]\nheader-timeout = '2s'\n", &[]);
    let mut silent = server.connect();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
    let mut used = server.send("GET", "/healthz", &[], b"");
    let mut answer = Vec::new();
    used.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn bodies_together_have_a_limit_too() {
    let server = Server::with("[server]\nbody-memory = '1M'\nmax-body = '1M'\n", &[]);
    let large = " ".repeat(600 << 10);
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        server.address,
        large.len() + 10
    );
    let second = || {
        let mut stream = server.connect();
        // It may answer before it has read everything.
        let _ = stream.write_all((head.clone() + &large + "          ").as_bytes());
        Answer::read(stream).status
    };
    let mut first = None;
    eventually("the memory is taken", || {
        // Either may be the first to be read; the one that is not finds no memory.
        let mut stream = server.connect();
        let _ = stream.write_all((head.clone() + &large).as_bytes());
        first = Some(stream);
        std::thread::sleep(Duration::from_millis(50));
        second() == 429
    });
    drop(first);
    eventually("the memory is free again", || second() == 400);
}

/// Sends a body and returns the status of the answer, after a look at the server's memory: it must not have grown by more
/// than four times the body and 16 MB, and it must shrink again.
fn costs_little(server: &Server, path: &str, body: &str) -> u16 {
    let headers =
        [JSON, ("accept", "application/json, text/event-stream"), ("mcp-protocol-version", "2025-11-25")];
    let (before, size) = (server.resident(), body.len() as u64 / 1024);
    forget_peak(server);
    let status = server.ask("POST", path, &headers, body.as_bytes()).status;
    let most = peak(server);
    let start: String = body.chars().take(120).collect();
    assert!(most <= before + 4 * size + (16 << 10), "{path} {start}: from {before} KiB to {most} KiB");
    eventually("the memory goes back", || server.resident() <= before + (16 << 10));
    status
}

fn repeated(item: &str, bytes: usize) -> String {
    vec![item; bytes / (item.len() + 1)].join(",")
}

#[test]
fn a_body_of_many_small_values_costs_little() {
    let server = Server::start();
    let request = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}"#)
    };
    // As many as are refused, and as many as just are not.
    for (bytes, status) in [(2 << 20, 413), (70 << 10, 200)] {
        let objects = repeated(r#"{"":0}"#, bytes);
        let arguments = format!(r#"{{"name": "run_code", "arguments": {{"files": [{objects}]}}}}"#);
        assert_eq!(costs_little(&server, "/mcp", &request("tools/call", &arguments)), status);
        let unknown = request("unknown", &format!(r#"{{"a": [{objects}]}}"#));
        assert_eq!(costs_little(&server, "/mcp", &unknown), status);
        let refused = if status == 200 { 400 } else { status };
        let token = format!(r#"{{"_meta": {{"progressToken": [{objects}]}}, "name": "list_languages"}}"#);
        assert_eq!(costs_little(&server, "/mcp", &request("tools/call", &token)), refused);
        let id = format!(r#"{{"jsonrpc": "2.0", "id": [{objects}], "method": "tools/list"}}"#);
        assert_eq!(costs_little(&server, "/mcp", &id), refused);
    }
    for (path, start, item) in [
        ("/v1/runs", r#""code": "true", "args""#, r#""""#),
        ("/v1/runs", r#""code": "true", "files""#, r#"{"path":"a"}"#),
        ("/api/v2/execute", r#""version": "*", "files""#, r#"{"content":""}"#),
        ("/run_code", r#""code": "true", "args""#, r#""""#),
    ] {
        let body = format!(r#"{{"language": "bash", {start}: [{}]}}"#, repeated(item, 2 << 20));
        assert_eq!(costs_little(&server, path, &body), 413, "{path}");
    }
}

#[test]
fn a_body_of_one_large_value_costs_little() {
    let server = Server::start();
    // A line break takes two bytes of JSON and so has to be copied where a plain string would not be.
    let large = "\\n".repeat(4 << 20);
    let run = format!(r#"{{"language": "bash", "code": "wc -c", "stdin": "{large}"}}"#);
    let job = format!(
        r#"{{"language": "bash", "version": "*", "files": [{{"content": "wc -c"}}], "stdin": "{large}"}}"#
    );
    let params = format!(r#"{{"name": "run_code", "arguments": {run}}}"#);
    let call = format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}"#);
    for (path, body) in [("/v1/runs", &run), ("/run_code", &run), ("/api/v2/execute", &job), ("/mcp", &call)]
    {
        assert_eq!(costs_little(&server, path, body), 200, "{path}");
    }
}

/// Has so many runs at once leave a file of nothing but a hole, and returns the results.
fn leave_holes(server: &Server, size: &str, number: usize) -> Vec<Answer> {
    let limits = json!({"disk_bytes": 256 << 20});
    let code = format!("truncate -s {size} x; echo {size}");
    let body = json!({"language": "sh", "code": code, "collect": ["x"], "limits": limits}).to_string();
    let asking: Vec<TcpStream> =
        (0..number).map(|_| server.send("POST", "/v1/runs", &[JSON], body.as_bytes())).collect();
    asking.into_iter().map(Answer::read).collect()
}

#[test]
fn collected_files_cost_no_more_than_there_is_memory_for() {
    let server = Server::with("[server]\nslots = 10\nbody-memory = '64M'\nkeep-bytes = '16M'\n", &[]);
    let control = leave_holes(&server, "1M", 1).remove(0).result();
    assert_eq!(control["files"][0]["size"], 1 << 20);
    let before = server.resident();
    forget_peak(&server);
    for answer in leave_holes(&server, "250M", 10) {
        let result = answer.result();
        assert_eq!(result["files"], json!([]));
        assert_eq!(result["stderr"], "Files not collected: 1 (all files together may have 32M)\n");
    }
    assert!(peak(&server) < before + (32 << 10), "{before} KiB, then {} KiB", peak(&server));
    let (mut sent, mut refused) = (0, 0);
    for answer in leave_holes(&server, "10M", 10) {
        match answer.status {
            200 => {
                assert_eq!(answer.json()["files"][0]["size"], 10 << 20);
                sent += 1;
            }
            _ => {
                assert_eq!(answer.error(), (429, "busy".into(), String::new()));
                refused += 1;
            }
        }
    }
    assert!(sent > 0, "{refused} were refused");
    // The two limits, body-memory once more, and what else there is.
    assert!(peak(&server) < before + (160 << 10), "{before} KiB, then {} KiB", peak(&server));
    eventually("the memory goes back", || server.resident() <= before + (32 << 10));
}

#[test]
fn results_that_nobody_reads_have_a_limit_together() {
    let server = Server::with("[server]\nbody-memory = '32M'\n", &[]);
    let code = "head -c 8000000 /dev/zero | tr '\\0' x";
    let body = json!({"language": "sh", "code": code, "limits": {"output_bytes": 16 << 20}});
    let result = server.post("/v1/runs", &body).result();
    assert_eq!(result["stdout"].as_str().unwrap().len(), 8_000_000);
    let path = format!("/v1/runs/{}", result["id"].as_str().unwrap());
    let unread: Vec<TcpStream> = (0..8).map(|_| server.send("GET", &path, &[], b"")).collect();
    eventually("one more finds no memory", || server.get(&path).status == 429);
    assert_eq!(server.get("/healthz").status, 200);
    drop(unread);
    eventually("the memory is free again", || server.get(&path).status == 200);
}

/// What other protocols answer counts like a result of our own: answers that nobody reads, and then a result for which
/// there is no memory.
fn unread_answers_count(path: &str, headers: &[(&str, &str)], body: &Value, number: usize) {
    let config = "[limits]\noutput-limit = '16M'\n[server]\nslots = 16\nbody-memory = '32M'\n";
    let server = Server::with(config, &[]);
    let code = "head -c 8000000 /dev/zero | tr '\\0' x";
    let result = server.post("/v1/runs", &json!({"language": "sh", "code": code})).result();
    let found = format!("/v1/runs/{}", result["id"].as_str().unwrap());
    assert_eq!(server.get(&found).status, 200, "the control");
    let unread: Vec<TcpStream> =
        (0..number).map(|_| server.send("POST", path, headers, body.to_string().as_bytes())).collect();
    eventually("a result finds no memory", || server.get(&found).status == 429);
    drop(unread);
    eventually("the memory is free again", || server.get(&found).status == 200);
}

#[test]
fn answers_of_piston_that_nobody_reads_are_counted() {
    let code = "head -c 8000000 /dev/zero | tr '\\0' x";
    let body = json!({"language": "dash", "version": "*", "files": [{"content": code}]});
    unread_answers_count("/api/v2/execute", &[JSON], &body, 3);
}

#[test]
fn answers_of_sandbox_fusion_that_nobody_reads_are_counted() {
    let code = "head -c 8000000 /dev/zero | tr '\\0' x";
    unread_answers_count("/run_code", &[JSON], &json!({"language": "bash", "code": code}), 4);
}

#[test]
fn answers_of_mcp_that_nobody_reads_are_counted() {
    let code = "for i in 1 2 3 4; do { printf '\\211PNG\\r\\n\\032\\n'; head -c 1000000 /dev/urandom; } > $i.png; done";
    let arguments = json!({"language": "sh", "code": code, "collect": ["*.png"]});
    let params = json!({"name": "run_code", "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers =
        [JSON, ("accept", "application/json, text/event-stream"), ("mcp-protocol-version", "2025-11-25")];
    unread_answers_count("/mcp", &headers, &call, 5);
}

#[test]
fn a_server_that_is_killed_leaves_none_of_64_boxes_alive() {
    let mut server = Server::with("[server]\nslots = 64\n", &[]);
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let mut asked: Vec<TcpStream> = Vec::new();
    // A few at a time: on a busy machine a box that is built beside 63 others can exceed the time limit for building.
    while asked.len() < 64 {
        asked.extend((0..8).map(|_| server.send("POST", "/v1/runs", &[JSON], body.as_bytes())));
        eventually("they run", || alive(&mark) == asked.len());
    }
    server.signal(Signal::KILL);
    server.wait();
    eventually("all are gone", || alive(&mark) == 0);
    drop(asked);
    let successor = Server::start();
    assert_eq!(successor.post("/v1/runs", &json!({"language": "sh", "code": "true"})).status, 200);
}
