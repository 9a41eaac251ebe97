//! The console: its page, and sessions that stand for a key.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::keys::new_key;
use crate::server::{Answer, Server, eventually};

const SESSION: &str = "/console/session";

/// Logs in from the console's own page, and returns the cookie as a browser sends it.
fn log_in(server: &Server, key: &str) -> String {
    let answer = begin(server, key, &format!("http://{}", server.address));
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.headers["set-cookie"].split(';').next().unwrap().to_owned()
}

fn begin(server: &Server, key: &str, origin: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("origin", origin)];
    server.ask("POST", SESSION, &headers, json!({ "key": key }).to_string().as_bytes())
}

/// A request from the console's own page.
fn ask(server: &Server, cookie: &str, method: &str, path: &str, body: &Value) -> Answer {
    let origin = format!("http://{}", server.address);
    let headers = [
        ("content-type", "application/json"),
        ("cookie", cookie),
        ("origin", origin.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    server.ask(method, path, &headers, body.to_string().as_bytes())
}

fn hello() -> Value {
    json!({"language": "sh", "code": "echo hello"})
}

#[test]
fn the_page_is_there_with_keys_and_without_and_allows_no_inline_script() {
    for config in [String::new(), new_key("ours").stanza] {
        let server = Server::with(&config, &[]);
        for (path, kind) in [("/", "text/html"), ("/console/console.js", "text/javascript")] {
            let page = server.get(path);
            assert_eq!(page.status, 200, "{path}");
            assert!(page.headers["content-type"].starts_with(kind), "{path}");
            let policy = &page.headers["content-security-policy"];
            assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
            let again = server.ask("GET", path, &[("if-none-match", page.headers["etag"].as_str())], b"");
            assert_eq!(again.status, 304, "{path}");
        }
    }
}

#[test]
fn without_keys_nobody_logs_in() {
    let server = Server::start();
    let session = server.get(SESSION).result();
    assert_eq!((&session["login"], &session["caller"]), (&json!(false), &json!("anonymous")));
    assert_eq!(begin(&server, "bj_x", &format!("http://{}", server.address)).error().0, 400);
}

#[test]
fn a_session_stands_for_its_key() {
    let key = new_key("ours");
    let server = Server::with(&key.stanza, &[]);
    assert_eq!(server.get(SESSION).result()["caller"], Value::Null);
    let own = format!("http://{}", server.address);
    assert_eq!(begin(&server, &new_key("theirs").key, &own).error().0, 401);
    let begun = begin(&server, &key.key, &own);
    let cookie = &begun.headers["set-cookie"];
    assert!(!cookie.contains(&key.key) && !String::from_utf8_lossy(&begun.body).contains(&key.key));
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    let cookie = log_in(&server, &key.key);
    let run = ask(&server, &cookie, "POST", "/v1/runs", &hello());
    assert_eq!(run.result()["stdout"], json!("hello\n"));
    assert_eq!(ask(&server, &cookie, "GET", SESSION, &json!({})).result()["caller"], json!("ours"));
    assert_eq!(ask(&server, &cookie, "DELETE", SESSION, &json!({})).status, 204);
    assert_eq!(ask(&server, &cookie, "POST", "/v1/runs", &hello()).error().0, 401);
}

#[test]
fn behind_tls_the_cookie_stays_there() {
    let key = new_key("ours");
    let server = Server::with(&key.stanza, &[]);
    let cookie =
        begin(&server, &key.key, &format!("https://{}", server.address)).headers["set-cookie"].clone();
    assert!(cookie.ends_with("; Secure"), "{cookie}");
}

#[test]
fn other_pages_cannot_use_a_session() {
    let key = new_key("ours");
    let config = format!("[server]\nallow-origins = ['https://app.example.org']\n{}", key.stanza);
    let server = Server::with(&config, &[]);
    let cookie = log_in(&server, &key.key);
    let own = format!("http://{}", server.address);
    let status = |method: &str, headers: &[(&str, &str)]| {
        let headers =
            [&[("cookie", cookie.as_str()), ("content-type", "application/json")][..], headers].concat();
        server.ask(method, "/v1/runs", &headers, hello().to_string().as_bytes()).status
    };
    // The control: the page itself may read and change, and who types an address may read.
    assert_eq!(status("POST", &[("origin", &own), ("sec-fetch-site", "same-origin")]), 200);
    assert_eq!(status("POST", &[("origin", &own)]), 200);
    assert_eq!(status("GET", &[("sec-fetch-site", "none")]), 200);
    for headers in [
        &[][..],
        &[("origin", "null")],
        &[("origin", "http://evil.example.org")],
        // It may ask with a key, but not with somebody's session.
        &[("origin", "https://app.example.org")],
        &[("origin", own.as_str()), ("sec-fetch-site", "cross-site")],
        &[("origin", own.as_str()), ("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(status("POST", headers), 403, "{headers:?}");
    }
    assert_eq!(status("GET", &[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(begin(&server, &key.key, "http://evil.example.org").status, 403);
    let foreign = [("cookie", cookie.as_str()), ("origin", "https://app.example.org")];
    assert_eq!(server.ask("DELETE", SESSION, &foreign, b"").status, 403);
    assert_eq!(status("GET", &[("sec-fetch-site", "none")]), 200, "the session goes on");
}

#[test]
fn a_session_is_for_the_paths_of_the_console_alone() {
    let key = new_key("ours");
    let server = Server::with(&key.stanza, &[]);
    let cookie = log_in(&server, &key.key);
    assert_eq!(ask(&server, &cookie, "GET", "/metrics", &json!({})).status, 200);
    for (method, path) in [("GET", "/api/v2/runtimes"), ("POST", "/run_code"), ("POST", "/mcp")] {
        assert_eq!(ask(&server, &cookie, method, path, &json!({})).status, 401, "{path}");
    }
}

#[test]
fn sessions_end_with_their_key() {
    let (kept, removed) = (new_key("kept"), new_key("removed"));
    let server = Server::with(&format!("{}{}", kept.stanza, removed.stanza), &[]);
    let cookies = [&kept, &removed].map(|key| log_in(&server, &key.key));
    std::fs::write(server.config_path(), &kept.stanza).unwrap();
    server.signal(Signal::HUP);
    let status = |cookie: &str| ask(&server, cookie, "GET", "/v1/runs", &json!({})).status;
    eventually("the session of the removed key ends", || status(&cookies[1]) == 401);
    assert_eq!(status(&cookies[0]), 200);
    // A key that comes back does not bring its sessions back.
    std::fs::write(server.config_path(), format!("{}{}", kept.stanza, removed.stanza)).unwrap();
    server.signal(Signal::HUP);
    let with_key = || server.ask("GET", "/v1/runs", &[("x-api-key", &removed.key)], b"").status;
    eventually("the key is back", || with_key() == 200);
    assert_eq!(status(&cookies[1]), 401);
}

#[test]
fn a_login_that_is_none_is_refused() {
    let server = Server::with(&new_key("ours").stanza, &[]);
    let large = format!("{{\"key\": \"{}\"}}", "x".repeat(5000));
    for body in ["", "{}", "[]", "{\"key\": 1}", "{\"key\": \"x\", \"more\": 1}", &large] {
        let answer = server.ask("POST", SESSION, &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(answer.error().0, 400, "{body:.20}");
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(server.ask("POST", SESSION, &form, b"key=x").status, 415);
}
