//! Runs over HTTP: started, looked up, cancelled, sent twice.

use serde_json::json;

use crate::server::{Answer, Server, alive, eventually, mark, sleeper};

#[test]
fn a_run_is_answered_with_the_result_object() {
    let server = Server::start();
    let result = server.post("/v1/runs", &json!({"language": "python", "code": "print(6 * 7)"})).result();
    assert_eq!((&result["status"], &result["stdout"]), (&json!("exited"), &json!("42\n")));
    assert_eq!(result["usage"]["queue_ms"], json!(0.0));
    assert!(result.get("stdout_base64").is_none());
    assert_eq!(server.get(&format!("/v1/runs/{}", result["id"].as_str().unwrap())).result(), result);
}

#[test]
fn a_program_that_fails_is_a_success_of_the_system() {
    let server = Server::start();
    let failed = server.post("/v1/runs", &json!({"language": "sh", "code": "echo no >&2; exit 3"})).result();
    assert_eq!((&failed["exit_code"], &failed["stderr"]), (&json!(3), &json!("no\n")));
    let slow = json!({"language": "sh", "code": "sleep 60", "limits": {"timeout_ms": 200}});
    let slow = server.post("/v1/runs", &slow).result();
    assert_eq!((&slow["status"], &slow["exit_code"]), (&json!("timed_out"), &json!(124)));
}

/// The commands after the one that failed are not started, and nobody waits for them.
#[test]
fn a_program_that_does_not_compile_is_a_failed_run_and_not_one_that_takes_too_long() {
    let server = Server::start();
    for (code, exit_code) in [("int main(void) { return 3; }", 3), ("nonsense", 1)] {
        let result = server.post("/v1/runs", &json!({"language": "c", "code": code})).result();
        assert_eq!(
            (&result["status"], &result["exit_code"]),
            (&json!("exited"), &json!(exit_code)),
            "{result}"
        );
    }
}

#[test]
fn everything_that_a_request_can_say_reaches_the_box() {
    let server = Server::start();
    let result = server
        .post(
            "/v1/runs",
            &json!({
                "language": "sh",
                "code": "cat; echo $1 $NAME; cat in.txt; printf '\\377' > out.bin; printf '\\377'",
                "stdin": "read\n", "args": ["first"], "env": {"NAME": "value"},
                "files": [{"path": "in.txt", "content": "file\n"}], "collect": ["*.bin"],
                "output_base64": true,
            }),
        )
        .result();
    assert_eq!(result["stdout"], json!("read\nfirst value\nfile\n\u{fffd}"));
    assert_eq!(result["stdout_base64"], json!("cmVhZApmaXJzdCB2YWx1ZQpmaWxlCv8="));
    assert_eq!(result["files"], json!([{"path": "out.bin", "size": 1, "content_base64": "/w=="}]));
}

#[test]
fn a_running_run_is_found_cancelled_and_then_found_with_its_result() {
    let server = Server::start();
    let mark = mark();
    let mut events = server.stream(&sleeper(&mark));
    let (_, start) = events.next().unwrap();
    let path = format!("/v1/runs/{}", start["id"].as_str().unwrap());
    let running = server.get(&path);
    assert_eq!((running.status, running.json()), (202, json!({"id": start["id"], "status": "running"})));
    let cancelling = server.post(&format!("{path}/cancel"), &json!({}));
    assert_eq!(cancelling.status, 202);
    assert_eq!(cancelling.json(), running.json());
    let (name, end) = events.all().pop().unwrap();
    assert_eq!((name.as_str(), &end["status"]), ("end", &json!("cancelled")));
    assert_eq!(alive(&mark), 0);
    assert_eq!(server.get(&path).result(), end);
    assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).error().1, "conflict");
}

#[test]
fn a_client_that_hangs_up_takes_its_run_with_it() {
    let server = Server::start();
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let waiting = server.send("POST", "/v1/runs", &[("content-type", "application/json")], body.as_bytes());
    eventually("the program runs", || alive(&mark) == 1);
    drop(waiting);
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn a_client_that_closes_its_side_counts_as_gone() {
    let (server, mark) = (Server::start(), mark());
    let body = sleeper(&mark).to_string();
    let stream = server.send("POST", "/v1/runs", &[("content-type", "application/json")], body.as_bytes());
    eventually("it runs", || alive(&mark) == 1);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    eventually("it is gone", || alive(&mark) == 0);
}

#[test]
fn the_same_key_and_the_same_request_is_one_run() {
    let server = Server::start();
    let body =
        json!({"language": "python", "code": "import os, time; time.sleep(0.3); print(os.urandom(8).hex())"});
    let ask = |key: &str, body: &serde_json::Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        server.send("POST", "/v1/runs", &headers, body.to_string().as_bytes())
    };
    let at_once = [ask("one", &body), ask("one", &body)].map(Answer::read);
    let later = Answer::read(ask("one", &body));
    for answer in [&at_once[1], &later] {
        assert_eq!(answer.result(), at_once[0].result());
    }
    assert_eq!(later.headers["idempotency-replayed"], "true");
    assert_ne!(Answer::read(ask("two", &body)).result()["stdout"], later.result()["stdout"]);
    let other = json!({"language": "python", "code": "print(1)"});
    assert_eq!(Answer::read(ask("one", &other)).error(), (409, "conflict".into(), String::new()));
    assert_eq!(Answer::read(ask("", &other)).error().0, 400);
}

#[test]
fn a_client_that_went_away_may_try_again_with_its_key() {
    let server = Server::start();
    let mark = mark();
    let code = "import sys, time\nprint(1)\ntime.sleep(1.5)";
    let body =
        json!({"language": "python", "code": code, "args": [mark], "limits": {"disk_bytes": 33_000_000}})
            .to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "again")];
    let first = server.send("POST", "/v1/runs", &headers, body.as_bytes());
    eventually("the program runs", || alive(&mark) == 1);
    drop(first);
    let second = server.ask("POST", "/v1/runs", &headers, body.as_bytes());
    assert_eq!(second.result()["status"], json!("exited"));
}

#[test]
fn the_host_is_described_as_on_the_command_line() {
    let server = Server::start();
    let languages = server.get("/v1/languages").result();
    let python = languages["languages"].as_array().unwrap().iter().find(|row| row["name"] == "python");
    assert_eq!(python.unwrap()["available"], json!(true));
    let backends = server.get("/v1/backends").result();
    assert_eq!(backends["default"], json!("native"));
    assert_eq!(server.get("/healthz").result(), json!({"status": "ok"}));
    assert_eq!(server.get("/readyz").result(), json!({"status": "ready"}));
}
