//! Who may ask, and for what.

use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Answer, Server, alive, eventually, mark, sleeper};

pub(crate) struct NewKey {
    pub(crate) key: String,
    pub(crate) stanza: String,
}

pub(crate) fn new_key(name: &str) -> NewKey {
    let output =
        Command::new(env!("CARGO_BIN_EXE_belljar")).args(["key", "new", "--name", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (key, rest) = text.split_once('\n').unwrap();
    let stanza = rest[rest.find("[[keys]]").unwrap()..].to_owned();
    assert!(!stanza.contains(key));
    NewKey { key: key.to_owned(), stanza }
}

pub(crate) fn post(server: &Server, key: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    server.ask("POST", "/v1/runs", &headers, body.to_string().as_bytes())
}

fn hello() -> Value {
    json!({"language": "sh", "code": "echo hello"})
}

#[test]
fn a_server_with_keys_wants_one() {
    let ours = new_key("ours");
    let server = Server::with(&ours.stanza, &[]);
    let without = server.post("/v1/runs", &hello());
    assert_eq!(without.error(), (401, "unauthorized".into(), String::new()));
    assert_eq!(without.headers["www-authenticate"], "Bearer");
    assert_eq!(post(&server, &new_key("theirs").key, &hello()).error().0, 401);
    assert_eq!(post(&server, &ours.key, &hello()).result()["stdout"], json!("hello\n"));
    let other_header = [("content-type", "application/json"), ("x-api-key", ours.key.as_str())];
    assert_eq!(server.ask("POST", "/v1/runs", &other_header, hello().to_string().as_bytes()).status, 200);
    let basic = [("authorization", "Basic eDp5")];
    assert_eq!(server.ask("GET", "/v1/backends", &basic, b"").error().0, 401);
    for path in ["/v1/languages", "/v1/backends", "/metrics", "/v1/runs/x", "/nothing"] {
        assert_eq!(server.get(path).error().0, 401, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_key_is_held_to_what_it_may() {
    let key = new_key("held");
    let config = key.stanza
        + "[keys.allow]\nlanguages = ['sh']\nnetwork = 'none'\nlimits = { timeout = '2s', memory = '64M' }\n";
    let server = Server::with(&config, &[]);
    let refused = |body: Value| post(&server, &key.key, &body).error();
    assert_eq!(
        refused(json!({"language": "python", "code": "1"})),
        (403, "forbidden".into(), "language".into())
    );
    let too_long =
        post(&server, &key.key, &json!({"language": "sh", "code": "1", "limits": {"timeout_ms": 2001}}));
    assert_eq!(too_long.error(), (403, "forbidden".into(), "limits.timeout_ms".into()));
    assert!(too_long.json()["error"]["message"].as_str().unwrap().contains("at most 2s"));
    let no_limits = json!({"language": "sh", "code": "sleep 60"});
    assert_eq!(post(&server, &key.key, &no_limits).result()["status"], json!("timed_out"));
}

#[test]
fn a_key_is_told_of_the_languages_that_it_may_use() {
    let (some, all) = (new_key("some"), new_key("all"));
    let config = format!("{}allow.languages = ['sh', 'py']\n{}", some.stanza, all.stanza);
    let server = Server::with(&config, &[]);
    let told = |key: &str| {
        let known = server.ask("GET", "/v1/languages", &[("x-api-key", key)], b"").result();
        let names = known["languages"].as_array().unwrap().iter().map(|language| language["name"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(told(&some.key), ["python", "sh"]);
    assert!(told(&all.key).len() > 10);
}

#[test]
fn a_caller_that_floods_does_not_make_the_server_forget_anothers_results() {
    let (modest, greedy) = (new_key("modest"), new_key("greedy"));
    let config = format!("[server]\nkeep-runs = 4\n{}{}", modest.stanza, greedy.stanza);
    let server = Server::with(&config, &[]);
    let run = |key: &str| post(&server, key, &hello()).result()["id"].as_str().unwrap().to_owned();
    let find = |key: &str, id: &str| server.ask("GET", &format!("/v1/runs/{id}"), &[("x-api-key", key)], b"");
    let kept = run(&modest.key);
    let runs: Vec<String> = (0..6).map(|_| run(&greedy.key)).collect();
    assert_eq!(find(&modest.key, &kept).status, 200);
    let found: Vec<u16> = runs.iter().map(|id| find(&greedy.key, id).status).collect();
    assert_eq!(found, [404, 404, 404, 200, 200, 200]);
}

#[test]
fn with_keys_a_foreign_page_is_refused_unless_it_is_named() {
    let ours = new_key("ours");
    let config = format!("[server]\nallow-origins = ['https://app.example.org']\n{}", ours.stanza);
    let server = Server::with(&config, &[]);
    let from = |path: &str, origin: &str| {
        server.ask("GET", path, &[("x-api-key", ours.key.as_str()), ("origin", origin)], b"")
    };
    let own = format!("http://{}", server.address);
    for path in ["/v1/backends", "/healthz"] {
        for origin in [own.as_str(), "https://app.example.org"] {
            assert_eq!(from(path, origin).status, 200, "{path} {origin}");
        }
        for origin in ["https://evil.org", "http://app.example.org", "null"] {
            assert_eq!(
                from(path, origin).error(),
                (403, "forbidden".into(), String::new()),
                "{path} {origin}"
            );
        }
    }
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let mcp = |origin: &str| {
        let headers = [
            ("x-api-key", ours.key.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2025-11-25"),
            ("origin", origin),
        ];
        server.ask("POST", "/mcp", &headers, call.as_bytes()).status
    };
    assert_eq!((mcp("https://app.example.org"), mcp("https://evil.org")), (200, 403));
}

#[test]
fn a_run_is_its_owners_alone() {
    let (mine, yours) = (new_key("mine"), new_key("yours"));
    let server = Server::with(&(mine.stanza.clone() + &yours.stanza), &[]);
    let result = post(&server, &mine.key, &hello()).result();
    let path = format!("/v1/runs/{}", result["id"].as_str().unwrap());
    let get = |key: &str| server.ask("GET", &path, &[("x-api-key", key)], b"");
    assert_eq!(get(&mine.key).result(), result);
    assert_eq!(get(&yours.key).error().0, 404);
    let cancel = server.ask("POST", &format!("{path}/cancel"), &[("x-api-key", &yours.key)], b"");
    assert_eq!(cancel.error().0, 404);
}

#[test]
fn a_key_has_so_many_runs_at_a_time_and_requests_in_a_minute() {
    let (one, two) = (new_key("one"), new_key("two"));
    let config = one.stanza.clone() + "concurrent = 1\n" + &two.stanza + "requests-per-minute = 2\n";
    let server = Server::with(&config, &[]);
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let headers = [("content-type", "application/json"), ("x-api-key", one.key.as_str())];
    let running = server.send("POST", "/v1/runs", &headers, body.as_bytes());
    eventually("the first runs", || alive(&mark) == 1);
    let second = post(&server, &one.key, &hello());
    assert_eq!(second.error(), (429, "busy".into(), String::new()));
    assert!(second.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    drop(running);
    eventually("the first is gone", || post(&server, &one.key, &hello()).status == 200);
    let asked: Vec<u16> =
        (0..3).map(|_| server.ask("GET", "/v1/backends", &[("x-api-key", &two.key)], b"").status).collect();
    assert_eq!(asked, [200, 200, 429]);
}

#[test]
fn without_keys_a_page_in_a_browser_is_refused() {
    let server = Server::start();
    let status = |headers: &[(&str, &str)]| server.ask("GET", "/v1/backends", headers, b"").status;
    let own = format!("http://{}", server.address);
    assert_eq!(status(&[("origin", &own)]), 200);
    assert_eq!(status(&[("host", "localhost:8787")]), 200);
    for header in [
        ("host", "evil.org"),
        ("host", "127.0.0.1.evil.org"),
        ("origin", "http://evil.org"),
        ("origin", "null"),
    ] {
        assert_eq!(status(&[header]), 403, "{header:?}");
    }
    let refused = server.ask("GET", "/v1/backends", &[("host", "evil.org")], b"");
    assert_eq!(refused.error().1, "forbidden");
    for open in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert_eq!(server.ask("GET", open, &[("host", "evil.org")], b"").status, 403, "{open}");
    }
    assert_eq!(status(&[("host", "localhost"), ("host", "localhost")]), 400);
}

#[test]
fn without_keys_no_other_address_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["serve", "--listen", "0.0.0.0:0"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("loopback addresses only") && text.contains("belljar key new"), "{text}");
}

#[test]
fn a_workspace_is_shown_only_from_beneath_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("root/project");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(inside.join("data.txt"), "shown\n").unwrap();
    std::os::unix::fs::symlink("/etc", folder.path().join("root/link")).unwrap();
    let root = folder.path().join("root");
    let server = Server::with(&format!("[server.allow]\nworkspace-roots = ['{}']\n", root.display()), &[]);
    let ask = |path: &std::path::Path| {
        server.post("/v1/runs", &json!({"language": "sh", "code": "cat data.txt", "workspace": path}))
    };
    assert_eq!(ask(&inside).result()["stdout"], json!("shown\n"));
    for path in [root.join("link"), folder.path().to_owned(), root.join("../root/project"), "/etc".into()] {
        assert_eq!(ask(&path).error(), (403, "forbidden".into(), "workspace".into()), "{path:?}");
    }
}
