//! What a careless or hostile client sends, and what it gets: always the error object.

use std::io::Write;

use serde_json::json;

use crate::server::{Answer, Server};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn what_is_no_request_is_refused_with_the_field() {
    let server = Server::start();
    let refused = |body: &[u8]| server.ask("POST", "/v1/runs", &[JSON], body).error();
    let invalid = |field: &str| (400, "invalid_request".to_owned(), field.to_owned());
    for body in [&b""[..], b"{", b"[]", b"null", b"\"x\"", b"{}", b"{} {}", b"\xff\xfe", br#"["sh", "true"]"#]
    {
        assert_eq!(refused(body), invalid(""), "{body:?}");
    }
    assert_eq!(refused(br#"{"language": "sh", "code": 1}"#), invalid("code"));
    assert_eq!(refused(br#"{"language": "sh", "code": "1", "timeout": 1}"#), invalid("timeout"));
    assert_eq!(
        refused(br#"{"language": "sh", "code": "1", "limits": {"pids": "x"}}"#),
        invalid("limits.pids")
    );
    assert_eq!(refused(br#"{"language": "sh", "code": "1", "limits": {"time": 1}}"#), invalid("limits.time"));
    assert_eq!(
        refused(br#"{"language": "sh", "code": "1", "files": [{"path": 1}]}"#),
        invalid("files[0].path")
    );
    assert_eq!(refused(br#"{"language": "cobol", "code": "1"}"#), invalid("language"));
    assert_eq!(refused(b"{\"language\": \"sh\", \"code\": \"\xff\"}").0, 400);
    assert_eq!(refused(br#"{"language": "sh", "code": "1", "network": "some"}"#), invalid("network"));
    assert_eq!(refused(br#"{"language": "sh", "code": "1", "limits": [1]}"#), invalid("limits"));
    assert_eq!(refused(br#"{"language": "sh", "code": "1", "files": [["a", "b"]]}"#), invalid("files[0]"));
    assert_eq!(refused("[".repeat(1_000).as_bytes()), invalid(""));
    let many = "[".repeat(100_000);
    assert_eq!(refused(many.as_bytes()), (413, "too_large".to_owned(), String::new()));
}

#[test]
fn what_a_caller_without_a_key_may_not_do_is_forbidden() {
    let server = Server::start();
    let refused = |more: serde_json::Value| {
        let mut body = json!({"language": "sh", "code": "true"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/runs", &body).error()
    };
    let forbidden = |field: &str| (403, "forbidden".to_owned(), field.to_owned());
    assert_eq!(refused(json!({"workspace": "/etc"})), forbidden("workspace"));
    assert_eq!(refused(json!({"waive": ["memory"]})), forbidden("waive"));
    assert_eq!(refused(json!({"backend": "none"})), forbidden("backend"));
    assert_eq!(refused(json!({"network": "full"})), forbidden("network"));
    assert_eq!(refused(json!({"backend": "docker"})), (503, "backend_unavailable".into(), String::new()));
}

#[test]
fn a_body_must_be_announced_as_json() {
    let server = Server::start();
    let body = br#"{"language": "sh", "code": "true"}"#;
    for headers in
        [&[][..], &[("content-type", "text/plain")], &[("content-type", "application/x-www-form-urlencoded")]]
    {
        assert_eq!(server.ask("POST", "/v1/runs", headers, body).error().0, 415);
    }
    let with_charset = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(server.ask("POST", "/v1/runs", &with_charset, body).status, 200);
}

#[test]
fn a_body_that_is_too_large_is_refused_and_not_stored() {
    let server = Server::start();
    let large = vec![b' '; 100 << 20];
    let refused = server.ask("POST", "/v1/runs", &[JSON], &large);
    assert_eq!(refused.error(), (413, "too_large".into(), String::new()));
    let body = json!({"language": "sh", "code": "#".repeat(5 << 20)});
    assert_eq!(server.post("/v1/runs", &body).error(), (413, "too_large".into(), "code".into()));
}

#[test]
fn chunks_are_counted_like_lengths() {
    let server = Server::with("[server]\nmax-body = '64K'\n", &[]);
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n",
        server.address
    )
    .unwrap();
    stream.write_all(b"transfer-encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..20 {
        let _ = write!(stream, "2000\r\n{}\r\n", " ".repeat(0x2000));
    }
    let _ = stream.write_all(b"0\r\n\r\n");
    assert_eq!(Answer::read(stream).error().0, 413);
}

#[test]
fn unknown_paths_runs_and_methods_have_the_error_object_too() {
    let server = Server::start();
    assert_eq!(server.get("/v1/nothing").error(), (404, "not_found".into(), String::new()));
    assert_eq!(server.get("/v1/runs/run_01J").error(), (404, "not_found".into(), String::new()));
    assert_eq!(server.post("/v1/runs/run_01J/cancel", &json!({})).error().0, 404);
    let wrong = server.ask("DELETE", "/v1/runs", &[], b"");
    assert_eq!(wrong.error(), (405, "invalid_request".into(), String::new()));
    assert_eq!(wrong.headers["allow"], "POST,GET,HEAD");
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let server = Server::start();
    let value = "x".repeat(4000);
    let names: Vec<String> = (0..90).map(|number| format!("x-{number}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let stream = server.send("GET", "/healthz", &headers, b"");
    let (status, headers) = crate::server::read_head(&mut std::io::BufReader::new(stream));
    // The one answer without the error object: docs/http.md says why. If it ever has one, that page is wrong.
    assert_eq!((status, headers["content-length"].as_str()), (431, "0"));
    assert_eq!(server.get("/healthz").status, 200);
}
