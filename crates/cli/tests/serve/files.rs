//! Files that a run gets from the server: what was uploaded, and what an earlier run collected.

use serde_json::{Value, json};

use crate::keys::{new_key, post};
use crate::server::{Answer, Server, eventually, mark, sleeper};

const NOT_FOUND: (u16, &str) = (404, "not_found");

fn upload(server: &Server, headers: &[(&str, &str)], content: &[u8]) -> Answer {
    server.ask("PUT", "/v1/files", headers, content)
}

/// Uploads a file and returns its id.
fn uploaded(server: &Server, content: &[u8]) -> String {
    let answer = upload(server, &[], content);
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// A program that prints the size and the sum of `in`, for a file from somewhere.
fn reading(source: Value) -> Value {
    let mut file = json!({"path": "in"});
    file.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"language": "bash", "code": "wc -c < in; sha256sum < in", "files": [file]})
}

fn code(answer: &Answer) -> (u16, String) {
    let (status, code, _) = answer.error();
    (status, code)
}

fn is(found: (u16, String), expected: (u16, &str)) -> bool {
    found == (expected.0, expected.1.to_owned())
}

#[test]
fn an_uploaded_file_goes_into_runs_until_it_is_deleted() {
    let server = Server::start();
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let answer = upload(&server, &[("content-type", "text/csv")], &content);
    let (status, described) = (answer.status, answer.json());
    let id = described["id"].as_str().unwrap();
    assert_eq!((status, &described["size"]), (201, &json!(100_000)));
    assert_eq!(answer.headers["location"], format!("/v1/files/{id}"));
    assert!(described["expires_at"].as_str().unwrap().ends_with('Z'), "{described}");
    let path = format!("/v1/files/{id}");
    assert_eq!(server.get(&path).result(), described);
    assert_eq!(server.get("/v1/files").result(), json!({"files": [described]}));
    for _ in 0..2 {
        let result = server.post("/v1/runs", &reading(json!({"upload": id}))).result();
        let said = format!("100000\n{}  -\n", described["sha256"].as_str().unwrap());
        assert_eq!(result["stdout"], json!(said));
    }
    assert_eq!(server.ask("DELETE", &path, &[], b"").status, 204);
    assert!(is(code(&server.get(&path)), NOT_FOUND));
    assert!(is(code(&server.ask("DELETE", &path, &[], b"")), NOT_FOUND));
    let refused = server.post("/v1/runs", &reading(json!({"upload": id})));
    assert_eq!(refused.error(), (404, "not_found".into(), "files".into()));
    assert_eq!(server.get("/v1/files").result(), json!({"files": []}));
}

#[test]
fn a_file_that_a_run_collected_goes_into_the_next() {
    let server = Server::start();
    let code_of_first =
        "mkdir out; printf 'a\\0\\377' > out/b; printf '#!/bin/sh\\necho ran' > tool; sh ./tool";
    let first = json!({"language": "sh", "code": code_of_first, "collect": ["out/*", "tool"]});
    let first = server.post("/v1/runs", &first).result();
    assert_eq!(first["files"].as_array().unwrap().len(), 2, "{first}");
    let id = &first["id"];
    let files = json!([
        {"path": "out/b", "from_run": id},
        {"path": "bin/renamed", "from_run": id, "from_path": "tool", "executable": true},
        {"path": "own", "content": "own"},
    ]);
    let next = json!({"language": "sh", "code": "od -An -tx1 out/b; bin/renamed; cat own", "files": files});
    let result = server.post("/v1/runs", &next).result();
    assert_eq!(result["stdout"], json!(" 61 00 ff\nran\nown"), "{result}");
    for (source, expected) in [
        (json!({"from_run": id}), NOT_FOUND),
        (json!({"from_run": "run_0", "from_path": "tool"}), NOT_FOUND),
        (json!({"from_run": id, "from_path": "tool", "content": ""}), (400, "invalid_request")),
        (json!({"from_path": "tool"}), (400, "invalid_request")),
        (json!({"from_path": "tool", "content": ""}), (400, "invalid_request")),
    ] {
        let refused = server.post("/v1/runs", &reading(source.clone()));
        assert!(is(code(&refused), expected), "{source}: {:?}", refused.json());
        assert_eq!(refused.json()["error"]["field"], "files");
    }
}

#[test]
fn files_of_a_run_that_has_not_ended_are_not_there() {
    let server = Server::start();
    let headers = [("content-type", "application/json"), ("prefer", "respond-async")];
    let asked = sleeper(&mark()).to_string();
    let id = server.ask("POST", "/v1/runs", &headers, asked.as_bytes()).json()["id"].clone();
    let refused = server.post("/v1/runs", &reading(json!({"from_run": id})));
    assert_eq!(refused.error(), (409, "conflict".into(), "files".into()));
}

#[test]
fn files_and_runs_of_another_caller_do_not_exist() {
    let (mine, yours) = (new_key("mine"), new_key("yours"));
    let server = Server::with(&format!("{}{}", mine.stanza, yours.stanza), &[]);
    let of = |key: &str| format!("Bearer {key}");
    let (mine_header, yours_header) = (of(&mine.key), of(&yours.key));
    assert_eq!(upload(&server, &[], b"x").status, 401);
    let file = upload(&server, &[("authorization", &mine_header)], b"mine").json()["id"].clone();
    let run = json!({"language": "sh", "code": "echo hello > in", "collect": ["in"]});
    let run = post(&server, &mine.key, &run).result()["id"].clone();
    for source in [json!({"upload": file}), json!({"from_run": run})] {
        assert_eq!(post(&server, &mine.key, &reading(source.clone())).status, 200, "the control: {source}");
        assert!(is(code(&post(&server, &yours.key, &reading(source))), NOT_FOUND));
    }
    let path = format!("/v1/files/{}", file.as_str().unwrap());
    for method in ["GET", "DELETE"] {
        let answer = server.ask(method, &path, &[("authorization", &yours_header)], b"");
        assert!(is(code(&answer), NOT_FOUND), "{method}");
    }
    let listed = server.ask("GET", "/v1/files", &[("authorization", &yours_header)], b"").result();
    assert_eq!(listed, json!({"files": []}));
    let control = server.ask("GET", &path, &[("authorization", &mine_header)], b"");
    assert_eq!(control.status, 200);
}

#[test]
fn uploads_are_limited_each_and_together() {
    let (small, large) = (new_key("small"), new_key("large"));
    let config = format!(
        "[server]\nmax-upload = '1M'\nupload-memory = '2M'\n{}uploads = '100K'\n{}",
        small.stanza, large.stanza
    );
    let server = Server::with(&config, &[]);
    let (small, large) = (format!("Bearer {}", small.key), format!("Bearer {}", large.key));
    let put = |key: &str, kib: usize| upload(&server, &[("authorization", key)], &vec![7; kib << 10]);
    assert!(is(code(&put(&large, 1025)), (413, "too_large")));
    assert!(is(code(&put(&small, 101)), (413, "too_large")), "its quota");
    assert_eq!(put(&small, 60).status, 201);
    let refused = put(&small, 60);
    assert!(is(code(&refused), (429, "busy")));
    assert_eq!(refused.headers["retry-after"], "60");
    let first = put(&large, 1000);
    assert_eq!(first.status, 201);
    assert!(is(code(&put(&large, 1024)), (429, "busy")), "there is room for two, and a little is taken");
    let path = format!("/v1/files/{}", first.json()["id"].as_str().unwrap());
    assert_eq!(server.ask("DELETE", &path, &[("authorization", &large)], b"").status, 204);
    assert_eq!(put(&large, 1024).status, 201);
}

#[test]
fn an_upload_that_is_sent_again_is_one_file() {
    let server = Server::start();
    let key = [("idempotency-key", "upload-1")];
    let first = upload(&server, &key, b"content");
    let again = upload(&server, &key, b"content");
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!((first.json(), again.headers["idempotency-replayed"].as_str()), (again.json(), "true"));
    assert!(is(code(&upload(&server, &key, b"other")), (409, "conflict")));
    // A run that is sent again is answered, even if its file is gone by then.
    let id = first.json()["id"].as_str().unwrap().to_owned();
    let body = reading(json!({"upload": id})).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "run-1")];
    let ran = server.ask("POST", "/v1/runs", &headers, body.as_bytes()).result();
    assert_eq!(server.ask("DELETE", &format!("/v1/files/{id}"), &[], b"").status, 204);
    assert_eq!(server.ask("POST", "/v1/runs", &headers, body.as_bytes()).result(), ran);
}

#[test]
fn an_upload_expires() {
    let server = Server::with("[server]\nkeep-uploads-for = '1s'\n", &[]);
    let path = format!("/v1/files/{}", uploaded(&server, b"x"));
    eventually("the file is forgotten", || server.get(&path).status == 404);
}

#[test]
fn what_a_run_gets_of_the_server_is_bounded_by_its_disk_and_by_memory() {
    let server = Server::with("[server]\nbody-memory = '2M'\nmax-body = '1M'\nkeep-bytes = '16M'\n", &[]);
    let first = json!({"language": "sh", "code": "head -c 8000000 /dev/zero > in", "collect": ["in"]});
    let id = server.post("/v1/runs", &first).result()["id"].clone();
    let again = |n: usize| json!({"path": n.to_string(), "from_run": id, "from_path": "in"});
    let many: Vec<_> = (0..9).map(again).collect();
    let too_much = json!({"language": "sh", "code": "true", "files": many});
    assert_eq!(server.post("/v1/runs", &too_much).error(), (413, "too_large".into(), "files".into()));
    // While a run has a copy, there is no memory for another one.
    let mut holder = sleeper(&mark());
    holder["files"] = json!([again(0)]);
    let headers = [("content-type", "application/json"), ("prefer", "respond-async")];
    let held = server.ask("POST", "/v1/runs", &headers, holder.to_string().as_bytes()).json()["id"].clone();
    let next = json!({"language": "sh", "code": "wc -c < 1", "files": [again(1)]});
    assert!(is(code(&server.post("/v1/runs", &next)), (429, "busy")));
    let cancel = format!("/v1/runs/{}/cancel", held.as_str().unwrap());
    assert_eq!(server.post(&cancel, &json!({})).status, 202);
    eventually("there is memory again", || {
        let answer = server.post("/v1/runs", &next);
        answer.status == 200 && answer.json()["stdout"] == "8000000\n"
    });
}
