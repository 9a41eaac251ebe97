//! Piston's API over a WebSocket.

use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use crate::server::{Server, alive, eventually, mark};

struct Client(WebSocket<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Client {
        let url = format!("ws://{}/api/v2/connect", server.address);
        Client(tungstenite::client(url, server.connect()).unwrap().0)
    }

    fn init(server: &Server, job: Value) -> Client {
        let mut client = Client::connect(server);
        let mut job = job;
        job["type"] = json!("init");
        client.say(&job);
        client
    }

    fn say(&mut self, message: &Value) {
        self.text(&message.to_string());
    }

    fn text(&mut self, text: &str) {
        self.0.send(Message::text(text)).unwrap();
    }

    /// The next thing that the server says; `Err` is the code that it closes with.
    fn hear(&mut self) -> Result<Value, u16> {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => return Ok(serde_json::from_str(&text).unwrap()),
                Message::Close(frame) => {
                    return Err(frame.map_or(CloseCode::Status, |frame| frame.code).into());
                }
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Hears data until it is this; how it is cut into messages is the program's affair.
    fn hear_data(&mut self, expected: &str) {
        let mut data = String::new();
        while data.len() < expected.len() {
            data += self.hear().unwrap()["data"].as_str().unwrap();
        }
        assert_eq!(data, expected);
    }

    /// Everything until the end, and how it was closed.
    fn rest(&mut self) -> (Vec<Value>, u16) {
        let mut said = Vec::new();
        loop {
            match self.hear() {
                Ok(message) => said.push(message),
                Err(code) => return (said, code),
            }
        }
    }
}

fn job(language: &str, code: &str) -> Value {
    json!({"language": language, "version": "*", "files": [{"content": code}]})
}

fn kinds(said: &[Value]) -> Vec<&str> {
    said.iter().map(|message| message["type"].as_str().unwrap()).collect()
}

fn data(said: &[Value], stream: &str) -> String {
    let of = said.iter().filter(|message| message["stream"] == stream);
    of.map(|message| message["data"].as_str().unwrap()).collect()
}

#[test]
fn a_job_is_told_from_its_runtime_to_its_exit() {
    let server = Server::start();
    let (said, closed) = Client::init(&server, job("python", "import sys; print('é'); sys.exit(3)")).rest();
    let mut kinds = kinds(&said);
    kinds.dedup();
    assert_eq!(kinds, ["runtime", "stage", "data", "exit"]);
    assert_eq!((&said[0]["language"], &said[1]["stage"]), (&json!("python"), &json!("run")));
    assert_eq!(data(&said, "stdout"), "é\n");
    assert_eq!(said.last().unwrap(), &json!({"type": "exit", "stage": "run", "code": 3, "signal": null}));
    assert_eq!(closed, 4999);
}

#[test]
fn input_is_read_while_the_program_runs() {
    let server = Server::start();
    let code = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('got', line.strip(), flush=True)";
    let mut client = Client::init(&server, job("python", code));
    for _ in 0..2 {
        client.hear().unwrap();
    }
    client.hear_data("ready\n");
    for word in ["one", "two"] {
        client.say(&json!({"type": "data", "stream": "stdin", "data": format!("{word}\n")}));
        client.hear_data(&format!("got {word}\n"));
    }
    client.say(&json!({"type": "signal", "signal": "SIGTERM"}));
    let (said, closed) = client.rest();
    assert_eq!(said, [json!({"type": "exit", "stage": "run", "code": null, "signal": "SIGKILL"})]);
    assert_eq!(closed, 4999);
}

#[test]
fn compiling_is_a_stage_of_its_own() {
    let server = Server::start();
    let (said, closed) =
        Client::init(&server, job("c", "#include <stdio.h>\nint main(){puts(\"hi\");}")).rest();
    // The news that a program begins may come later than the first that it says.
    let stages: Vec<&Value> = said.iter().filter(|message| message["type"] != "data").skip(1).collect();
    let exit = |stage: &str| json!({"type": "exit", "stage": stage, "code": 0, "signal": null});
    let stage = |stage: &str| json!({"type": "stage", "stage": stage});
    assert_eq!(stages, [&stage("compile"), &exit("compile"), &stage("run"), &exit("run")]);
    assert_eq!((data(&said, "stdout").as_str(), closed), ("hi\n", 4999));
    let (said, closed) = Client::init(&server, job("c", "int main(){ retur 1; }")).rest();
    assert_eq!(said.last().unwrap(), &json!({"type": "exit", "stage": "compile", "code": 1, "signal": null}));
    assert!(data(&said, "stderr").contains("error"), "{said:?}");
    assert_eq!(closed, 4999);
}

#[test]
fn what_does_not_fit_is_told_at_the_end() {
    let server = Server::start();
    let code = "import os\nfor _ in range(40): os.write(1, b'x' * 65536)\nos.write(1, b'end')";
    let (said, closed) = Client::init(&server, job("python", code)).rest();
    let told = data(&said, "stdout");
    assert!(told.contains("bytes omitted") && told.ends_with("end") && told.len() < 2 << 20);
    assert_eq!(closed, 4999);
}

#[test]
fn every_mistake_has_its_code() {
    let server = Server::start();
    let closed = |said: Value| {
        let mut client = Client::connect(&server);
        client.say(&said);
        client.rest()
    };
    assert_eq!(closed(json!({"type": "data", "stream": "stdin", "data": ""})).1, 4003);
    assert_eq!(closed(json!({"type": "signal", "signal": "SIGKILL"})).1, 4003);
    let unknown = json!({"type": "init", "language": "html", "version": "5.0.0", "files": []});
    let message = json!({"type": "error", "message": "html-5.0.0 runtime is unknown"});
    assert_eq!(closed(unknown), (vec![message], 4002));
    let during = |said: Value| {
        let mut client = Client::init(&server, job("sh", "sleep 60"));
        client.hear().unwrap();
        client.say(&said);
        client.rest().1
    };
    assert_eq!(during(json!({"type": "init"})), 4000);
    assert_eq!(during(json!({"type": "data", "stream": "stdout", "data": ""})), 4004);
    assert_eq!(during(json!({"type": "signal", "signal": "SIGNAL"})), 4005);
    assert_eq!(during(json!({"type": "signal", "signal": "SIGSTOP"})), 4002);
    assert_eq!(during(json!({"type": "data", "stream": "stdin", "data": 1})), 4002);
    let mut client = Client::connect(&server);
    client.text("nonsense");
    let (said, closed) = client.rest();
    assert_eq!((said[0]["type"].as_str(), closed), (Some("error"), 4002));
}

#[test]
fn a_client_that_wants_nothing_is_closed() {
    let server = Server::start();
    assert_eq!(Client::connect(&server).rest(), (vec![], 4001));
    let mut client = Client::connect(&server);
    client.say(&json!({"type": "chatter"}));
    assert_eq!(client.rest(), (vec![], 4001));
}

#[test]
fn input_that_nobody_reads_does_not_pile_up() {
    let server = Server::start();
    let mut client = Client::init(&server, job("sh", "sleep 60"));
    client.hear().unwrap();
    let much = json!({"type": "data", "stream": "stdin", "data": "x".repeat(512 << 10)}).to_string();
    for _ in 0..8 {
        // The server may have closed by then.
        let _ = client.0.send(Message::text(much.clone()));
    }
    let (said, closed) = client.rest();
    assert_eq!(said.last().unwrap()["message"], "the program does not read what is written to it");
    assert_eq!(closed, 4002);
}

#[test]
fn a_client_that_goes_away_takes_its_job_with_it() {
    // The kernel does not show the arguments of a program from a zygote.
    let server = Server::with("[pool]\nenabled = false\n", &[]);
    let mark = mark();
    let mut job = job("python", "import time; time.sleep(300)");
    job["args"] = json!([mark]);
    job["run_timeout"] = json!(300_000);
    let client = Client::init(&server, job);
    eventually("the program runs", || alive(&mark) == 1);
    drop(client);
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn a_server_that_is_told_to_stop_lets_a_job_end_first() {
    let mut server = Server::start();
    let mut client = Client::init(&server, job("sh", "echo begun; sleep 1; echo done"));
    for _ in 0..2 {
        client.hear().unwrap();
    }
    client.hear_data("begun\n");
    server.signal(Signal::TERM);
    let (said, closed) = client.rest();
    assert_eq!((data(&said, "stdout").as_str(), closed), ("done\n", 4999));
    assert!(server.wait().success());
}

#[test]
fn what_sessions_may_cost_together_is_bounded() {
    let server = Server::with("[server]\nbody-memory = '6M'\nmax-body = '6M'\n", &[]);
    let first = [Client::init(&server, job("sh", "sleep 60")), Client::init(&server, job("sh", "sleep 60"))];
    let url = format!("ws://{}/api/v2/connect", server.address);
    let refused = tungstenite::client(url, server.connect()).unwrap_err();
    assert!(refused.to_string().contains("429"), "{refused}");
    drop(first);
    let mut again = None;
    eventually("there is room again", || {
        let url = format!("ws://{}/api/v2/connect", server.address);
        again = tungstenite::client(url, server.connect()).ok();
        again.is_some()
    });
    let mut client = Client(again.unwrap().0);
    let _ = client.0.send(Message::text("x".repeat(2 << 20)));
    assert!(client.0.read().is_err());
}
