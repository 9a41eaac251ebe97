//! Two hundred clients at once, three quarters of them hostile: every honest run is right, and nothing is left.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Answer, Server, eventually};

const HONEST: usize = 50;
/// Of each kind.
const HOSTILE: usize = 15;
const JSON: (&str, &str) = ("content-type", "application/json");

/// What a hostile client does.
#[derive(Debug, Clone, Copy)]
enum Attack {
    Flood,
    ForkBomb,
    OutOfMemory,
    Timeout,
    ManyValues,
    ManyValuesOverMcp,
    Holes,
    HalfAHead,
    HalfABody,
    UnreadAnswer,
}

impl Attack {
    const ALL: [Attack; 10] = [
        Attack::Flood,
        Attack::ForkBomb,
        Attack::OutOfMemory,
        Attack::Timeout,
        Attack::ManyValues,
        Attack::ManyValuesOverMcp,
        Attack::Holes,
        Attack::HalfAHead,
        Attack::HalfABody,
        Attack::UnreadAnswer,
    ];

    /// Attacks once. What the client leaves open is returned, to be closed at the end.
    fn run(self, server: &Server) -> Option<TcpStream> {
        let run = |code: &str, more: Value| {
            let mut body = json!({"language": "sh", "code": code});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body.to_string()
        };
        let objects = |bytes: usize| vec![r#"{"":0}"#; bytes / 7].join(",");
        let (path, body) = match self {
            Attack::Flood => ("/v1/runs", run("yes", json!({"limits": {"timeout_ms": 500}}))),
            Attack::ForkBomb => {
                ("/v1/runs", run("f() { f | f & }; f; wait", json!({"limits": {"timeout_ms": 800}})))
            }
            Attack::OutOfMemory => {
                let limits = json!({"memory_bytes": 32 << 20, "timeout_ms": 5000});
                ("/v1/runs", run("tail /dev/zero", json!({ "limits": limits })))
            }
            Attack::Timeout => ("/v1/runs", run("sleep 100", json!({"limits": {"timeout_ms": 200}}))),
            Attack::ManyValues => {
                ("/v1/runs", format!(r#"{{"language": "sh", "code": "", "files": [{}]}}"#, objects(2 << 20)))
            }
            Attack::ManyValuesOverMcp => {
                let params =
                    format!(r#"{{"name": "run_code", "arguments": {{"a": [{}]}}}}"#, objects(70 << 10));
                (
                    "/mcp",
                    format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}"#),
                )
            }
            Attack::Holes => {
                let more = json!({"collect": ["x"], "limits": {"disk_bytes": 256 << 20}});
                ("/v1/runs", run("truncate -s 250M x", more))
            }
            Attack::UnreadAnswer => {
                let more = json!({"limits": {"output_bytes": 4 << 20}});
                ("/v1/runs", run("head -c 3000000 /dev/zero | tr '\\0' '\\1'", more))
            }
            Attack::HalfAHead => {
                let mut stream = server.connect();
                let _ = stream.write_all(b"POST /v1/runs HTTP/1.1\r\nhost: loc");
                return Some(stream);
            }
            Attack::HalfABody => {
                let mut stream = server.connect();
                let head = format!(
                    "POST /v1/runs HTTP/1.1\r\nhost: {}\r\n{}: {}\r\n",
                    server.address, JSON.0, JSON.1
                );
                let _ = stream.write_all((head + "content-length: 1000000\r\n\r\n{").as_bytes());
                let _ = stream.write_all(&[b' '; 500_000]);
                return Some(stream);
            }
        };
        let accept = ("accept", "application/json, text/event-stream");
        let stream = server.send("POST", path, &[JSON, accept], body.as_bytes());
        if matches!(self, Attack::UnreadAnswer) {
            return Some(stream);
        }
        // Whatever the answer is, there is one. It may be a stream of events.
        let _ = Answer::read(stream);
        None
    }
}

/// Asks until it is this client's turn, and checks what comes back.
fn ask_honestly(server: &Server, number: usize) {
    let body = json!({"language": "sh", "code": "echo $(($1 * 7))", "args": [number.to_string()]});
    let mut answer = server.post("/v1/runs", &body);
    while answer.status == 429 {
        std::thread::sleep(Duration::from_millis(200));
        answer = server.post("/v1/runs", &body);
    }
    let result = answer.result();
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("exited"), &json!(0)), "{result}");
    assert_eq!(result["stdout"], format!("{}\n", number * 7), "{result}");
}

#[test]
fn in_a_storm_every_honest_run_is_right_and_nothing_is_left() {
    // Results are forgotten soon, so that what is still there afterwards is a leak.
    let server = Server::with("[server]\nslots = 8\nkeep-for = '1s'\n", &[]);
    // Once each, so that what the server finds out at the first run of a kind does not count.
    ask_honestly(&server, 1);
    Attack::ALL.iter().for_each(|attack| drop(attack.run(&server)));
    let processes = at_rest(&server);
    let before = server.resident();
    let server = Arc::new(server);
    let start = Arc::new(Barrier::new(HONEST + HOSTILE * Attack::ALL.len()));
    let honest: Vec<_> = (0..HONEST)
        .map(|number| {
            let (server, start) = (server.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                ask_honestly(&server, number);
            })
        })
        .collect();
    let hostile: Vec<_> = (0..HOSTILE)
        .flat_map(|_| Attack::ALL)
        .map(|attack| {
            let (server, start) = (server.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                attack.run(&server)
            })
        })
        .collect();
    honest.into_iter().for_each(|client| client.join().unwrap());
    let open: Vec<_> = hostile.into_iter().map(|client| client.join().unwrap()).collect();
    assert_eq!(server.get("/healthz").status, 200);
    drop(open);
    eventually("no process is left", || at_rest(&server) <= processes);
    eventually("the memory goes back", || {
        // Results that are too old are dropped when somebody asks.
        assert_eq!(server.get("/v1/runs").status, 200);
        server.resident() <= before + (20 << 10)
    });
}

/// How many processes the server has when nothing runs.
fn at_rest(server: &Server) -> usize {
    let metrics = || String::from_utf8(server.get("/metrics").body).unwrap();
    let idle = ["\nbelljar_slots_in_use 0\n", "\nbelljar_queue_length 0\n"];
    eventually("nothing runs", || idle.iter().all(|line| metrics().contains(line)));
    server.descendants()
}
