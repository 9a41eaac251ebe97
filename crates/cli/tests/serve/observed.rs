//! What the server tells of itself: metrics, logs, its own description.

use serde_json::{Value, json};

use crate::server::{Server, eventually};

#[test]
fn runs_and_requests_are_counted() {
    let server = Server::start();
    server.post("/v1/runs", &json!({"language": "sh", "code": "exit 1"})).result();
    let slow = json!({"language": "sh", "code": "sleep 9", "limits": {"timeout_ms": 50}});
    server.post("/v1/runs", &slow).result();
    assert_eq!(server.post("/v1/runs", &json!({"language": "cobol", "code": "1"})).status, 400);
    server.get("/nothing-of-that-name");
    let metrics = server.get("/metrics");
    assert!(metrics.headers["content-type"].starts_with("application/openmetrics-text"));
    let text = String::from_utf8(metrics.body).unwrap();
    for line in [
        r#"belljar_runs_total{language="sh",backend="native",status="exited",start="cold"} 1"#,
        r#"belljar_runs_total{language="sh",backend="native",status="timed_out",start="cold"} 1"#,
        r#"belljar_run_duration_seconds_count{language="sh"} 2"#,
        r#"belljar_refused_total{code="invalid_request"} 1"#,
        r#"belljar_kills_total{reason="timed_out"} 1"#,
        r#"belljar_http_requests_total{route="/v1/runs",status="200"} 2"#,
        r#"belljar_http_requests_total{route="unknown",status="404"} 1"#,
        "belljar_queue_wait_seconds_count 2",
        "belljar_slots_in_use 0",
        "belljar_queue_length 0",
        "belljar_leaks_cleaned ",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(!text.contains("nothing-of-that-name"));
}

#[test]
fn a_request_has_an_identifier_in_its_answer_and_in_the_log() {
    let server = Server::with("", &["--log-format", "json"]);
    let answer = server.ask("GET", "/v1/backends", &[("x-request-id", "mine-1")], b"");
    assert_eq!(answer.headers["x-request-id"], "mine-1");
    let made =
        server.ask("GET", "/v1/backends", &[("x-request-id", "not mine")], b"").headers["x-request-id"]
            .clone();
    assert!(!made.contains(' '));
    eventually("both are in the log", || server.log().contains("mine-1") && server.log().contains(&made));
    for line in server.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
}

#[test]
fn the_description_and_the_page_that_shows_it_come_from_the_binary() {
    let server = Server::start();
    let api = server.get("/openapi.json").result();
    assert_eq!(api["info"]["title"], json!("Belljar"));
    for path in [
        "/v1/runs",
        "/v1/runs/{id}",
        "/v1/runs/{id}/cancel",
        "/v1/runs/{id}/events",
        "/v1/languages",
        "/v1/backends",
        "/v1/pool",
        "/healthz",
        "/readyz",
        "/metrics",
    ] {
        assert!(api["paths"][path].is_object(), "{path}");
    }
    let page = server.get("/docs");
    let text = String::from_utf8(page.body).unwrap();
    assert!(page.headers["content-security-policy"].starts_with("default-src 'none'"));
    for (path, encoding) in [
        ("/docs/page.js", None),
        ("/docs/page.css", None),
        ("/docs/swagger-ui.js", Some("gzip")),
        ("/docs/swagger-ui.css", Some("gzip")),
    ] {
        assert!(text.contains(path));
        let part = server.get(path);
        assert_eq!((part.status, part.headers.get("content-encoding").map(String::as_str)), (200, encoding));
        assert_eq!(part.headers["content-security-policy"], page.headers["content-security-policy"]);
    }
}
