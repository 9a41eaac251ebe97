//! Starting, reloading, stopping, being killed.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::server::{Answer, Server, alive, eventually, mark, sleeper};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn told_to_stop_the_server_finishes_what_it_has_begun() {
    let mut server = Server::start();
    let mark = mark();
    let body = json!({"language": "python", "code": "import time; time.sleep(1); print('done')", "args": [mark], "limits": {"disk_bytes": 33_000_000}});
    let running = server.send("POST", "/v1/runs", &[JSON], body.to_string().as_bytes());
    eventually("it runs", || alive(&mark) == 1);
    server.signal(Signal::TERM);
    eventually("no more are accepted", || std::net::TcpStream::connect(server.address).is_err());
    assert_eq!(Answer::read(running).result()["stdout"], json!("done\n"));
    assert!(server.wait().success());
}

#[test]
fn at_the_deadline_the_server_kills_what_still_runs_and_leaves_nothing() {
    let mut server = Server::with("", &["--drain", "100ms"]);
    let mark = mark();
    let mut events = server.stream(&sleeper(&mark));
    assert_eq!(events.next().unwrap().0, "start");
    eventually("it runs", || alive(&mark) == 1);
    server.signal(Signal::TERM);
    let (name, end) = events.all().pop().unwrap();
    assert_eq!((name.as_str(), &end["status"]), ("end", &json!("cancelled")));
    assert!(server.wait().success());
    assert_eq!(alive(&mark), 0);
}

#[test]
fn a_reload_changes_who_may_ask_and_a_broken_file_changes_nothing() {
    let server = Server::start();
    let ask = || server.get("/v1/backends").status;
    assert_eq!(ask(), 200);
    fs::write(server.config_path(), "[[keys]]\nname = 'a'\nsha256 = 'no'\n").unwrap();
    server.signal(Signal::HUP);
    eventually("the error is logged", || server.log().contains("the previous one stays in effect"));
    assert_eq!(ask(), 200);
    let hash = "ab".repeat(32);
    fs::write(server.config_path(), format!("[[keys]]\nname = 'a'\nsha256 = '{hash}'\n")).unwrap();
    server.signal(Signal::HUP);
    eventually("a key is wanted", || ask() == 401);
    fs::write(server.config_path(), "").unwrap();
    server.signal(Signal::HUP);
    eventually("no key is wanted", || ask() == 200);
}

#[test]
fn a_socket_that_was_opened_beforehand_is_taken() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As systemd does it: the socket is descriptor 3, and LISTEN_PID is the process that is to take it.
    let script = format!(
        "exec 3<&{} && LISTEN_FDS=1 LISTEN_PID=$$ exec {} serve",
        listener.as_raw_fd(),
        env!("CARGO_BIN_EXE_belljar")
    );
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &script]);
    let server = Server::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(server.address, address);
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_client_that_never_finishes_its_head_or_body_is_let_go() {
    let server = Server::with("[server]\nheader-timeout = '2s'\nbody-timeout = '300ms'\n", &[]);
    let mut slow_head = server.connect();
    slow_head.write_all(b"POST /v1/runs HTTP/1.1\r\nhost: loc").unwrap();
    let mut slow_body = server.connect();
    write!(slow_body, "POST /v1/runs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{", server.address).unwrap();
    assert_eq!(Answer::read(slow_body).error().0, 400);
    let mut rest = Vec::new();
    slow_head.read_to_end(&mut rest).unwrap();
}

#[test]
fn a_client_that_sent_a_byte_too_many_is_missed_like_any_other_when_it_goes() {
    let server = Server::start();
    let mark = mark();
    let body = sleeper(&mark).to_string() + "\r\n";
    let length = (body.len() - 2).to_string();
    let mut client = server.connect();
    write!(client, "POST /v1/runs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}", server.address).unwrap();
    eventually("it runs", || alive(&mark) == 1);
    drop(client);
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn requests_that_come_together_are_answered_one_after_the_other() {
    let server = Server::start();
    let mut client = server.connect();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n", server.address);
    write!(client, "{head}\r\n{head}connection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}

#[test]
fn when_the_queue_is_full_the_answer_is_busy_and_a_queued_client_can_leave() {
    let server = Server::with("[server]\nslots = 1\nqueue = 1\n", &[]);
    let (first, second) = (mark(), mark());
    let send = |mark: &str| server.send("POST", "/v1/runs", &[JSON], sleeper(mark).to_string().as_bytes());
    let running = send(&first);
    eventually("the first runs", || alive(&first) == 1);
    let waiting = send(&second);
    let metrics = || String::from_utf8(server.get("/metrics").body).unwrap();
    eventually("the queue is full", || metrics().contains("\nbelljar_queue_length 1\n"));
    let busy = server.post("/v1/runs", &json!({"language": "sh", "code": "true"}));
    assert_eq!(busy.error(), (429, "busy".into(), String::new()));
    assert!(busy.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    drop(waiting);
    drop(running);
    let next = json!({"language": "sh", "code": "true"});
    eventually("there is room again", || server.post("/v1/runs", &next).status == 200);
    assert_eq!(alive(&second), 0);
}

#[test]
fn waiting_for_a_slot_shows_in_the_result() {
    let server = Server::with("[server]\nslots = 1\n", &[]);
    let (mark, quick) = (mark(), json!({"language": "sh", "code": "true"}));
    let queued = |answer: &Answer| answer.result()["usage"]["queue_ms"].as_f64().unwrap();
    assert_eq!(queued(&server.post("/v1/runs", &quick)), 0.0, "the control");
    let running = server.send("POST", "/v1/runs", &[JSON], sleeper(&mark).to_string().as_bytes());
    eventually("the slot is taken", || alive(&mark) == 1);
    let waiting = server.send("POST", "/v1/runs", &[JSON], quick.to_string().as_bytes());
    let metrics = || String::from_utf8(server.get("/metrics").body).unwrap();
    eventually("another one waits for it", || metrics().contains("\nbelljar_queue_length 1\n"));
    drop(running);
    assert!(queued(&Answer::read(waiting)) > 0.0);
}
