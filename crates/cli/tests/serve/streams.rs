//! Runs as they happen.

use serde_json::{Value, json};

use crate::server::{Server, alive, eventually, mark, sleeper};

#[test]
fn events_come_in_order_and_while_the_program_runs() {
    let server = Server::start();
    let mark = mark();
    let code = "echo one; echo two >&2; sleep 0.2; echo three; read line; echo $line";
    let body = json!({"language": "sh", "code": code, "stdin": "four\n", "args": [mark]});
    let mut events = server.stream(&body);
    let (name, start) = events.next().unwrap();
    assert_eq!(
        (name.as_str(), &start["language"], &start["backend"]),
        ("start", &json!("sh"), &json!("native"))
    );
    let rest = events.all();
    let text = |stream: &str| -> String {
        let of = rest.iter().filter(|(name, _)| name == stream);
        of.map(|(_, data)| data["text"].as_str().unwrap()).collect()
    };
    assert_eq!((text("stdout").as_str(), text("stderr").as_str()), ("one\nthree\nfour\n", "two\n"));
    let (name, end) = rest.last().unwrap();
    assert_eq!(
        (name.as_str(), &end["id"], &end["stdout"]),
        ("end", &start["id"], &json!("one\nthree\nfour\n"))
    );
    assert_eq!(rest.iter().filter(|(name, _)| name == "end").count(), 1);
}

#[test]
fn a_client_that_refuses_events_gets_the_result() {
    let server = Server::start();
    let ask = |accept: &str| {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        let answer = server.ask("POST", "/v1/runs", &headers, br#"{"language": "sh", "code": "true"}"#);
        answer.headers["content-type"].clone()
    };
    assert_eq!(ask("text/event-stream;q=0, application/json"), "application/json");
    assert_eq!(ask("application/json, text/event-stream;q=0.5"), "text/event-stream");
}

#[test]
fn output_is_told_before_the_end() {
    let server = Server::start();
    let mark = mark();
    let mut events = server.stream(&sleeper(&mark));
    assert_eq!(events.next().unwrap().0, "start");
    assert_eq!(events.next().unwrap(), ("stdout".into(), json!({"text": "ready\n"})));
    assert_eq!(alive(&mark), 1);
    events.hang_up();
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn a_character_that_was_written_in_two_halves_is_told_whole() {
    let server = Server::start();
    let code = "printf '\\303'; sleep 0.2; printf '\\244\\377'; sleep 0.2; printf '\\342'";
    let events = server.stream(&json!({"language": "sh", "code": code})).all();
    let told: String = events
        .iter()
        .filter(|(name, _)| name == "stdout")
        .map(|(_, data)| data["text"].as_str().unwrap())
        .collect();
    assert_eq!(told, "ä\u{fffd}\u{fffd}");
}

#[test]
fn a_stream_without_news_has_a_heartbeat() {
    let server = Server::with("[server]\nheartbeat = '50ms'\n", &[]);
    let mut events = server.stream(&sleeper(&mark()));
    let names: Vec<String> = (0..6).map(|_| events.next().unwrap().0).collect();
    assert!(names.iter().filter(|name| *name == ":").count() >= 3, "{names:?}");
}

#[test]
fn an_error_before_the_start_is_an_ordinary_one() {
    let server = Server::start();
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
    let ask = |body: Value| server.ask("POST", "/v1/runs", &headers, body.to_string().as_bytes());
    let unknown = ask(json!({"language": "cobol", "code": "1"}));
    assert_eq!(unknown.error(), (400, "invalid_request".into(), "language".into()));
}

#[test]
fn code_that_cannot_be_read_has_a_start_an_explanation_and_an_end() {
    let server = Server::start();
    let events = server.stream(&json!({"language": "typescript", "code": "const = 1"})).all();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["start", "stderr", "end"]);
    assert_eq!(events[2].1["exit_code"], json!(1));
}
