//! Several backends behind one server: those that are there, those that are not, and those that take more than a name.

use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Server, alive, eventually, mark};

fn naming(backend: &str) -> Value {
    json!({"language": "sh", "code": "echo ran", "backend": backend})
}

#[test]
fn a_backend_that_is_not_there_is_503_and_the_same_error_everywhere() {
    let server = Server::start();
    let answer = server.post("/v1/runs", &naming("kubernetes"));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, error["code"].as_str()), (503, Some("backend_unavailable")), "{error}");
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("not available yet")),
        "{error}"
    );
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("GET /v1/backends")), "{error}");

    let told = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["run", "sh", "-c", "echo ran", "--backend", "kubernetes", "--json"])
        .output()
        .unwrap();
    let object: Value = serde_json::from_slice(&told.stdout).unwrap();
    let same = |name: &str| object["error"][name] == error[name];
    assert!(told.status.code() == Some(125) && same("code") && same("message"), "{object}");
    let hint = object["error"]["hint"].as_str();
    assert!(hint.is_some_and(|hint| hint.contains("belljar doctor")), "each way in has its own: {object}");

    let arguments = json!({"language": "sh", "code": "echo ran", "backend": "kubernetes"});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                      "params": {"name": "run_code", "arguments": arguments}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2025-11-25"),
    ];
    let told = server.ask("POST", "/mcp", &headers, call.to_string().as_bytes());
    let text = String::from_utf8_lossy(&told.body).into_owned();
    assert!(text.contains("\"isError\":true") && text.contains("backend_unavailable"), "MCP, too: {text}");
}

#[test]
fn an_image_is_for_a_backend_that_takes_one() {
    let server = Server::start();
    let plain = json!({"language": "sh", "code": "echo ran"});
    assert_eq!(server.post("/v1/runs", &plain).result()["backend"], "native", "the control");
    let mut body = naming("native");
    body["image"] = json!("totally/bogus:9");
    let answer = server.post("/v1/runs", &body);
    assert_eq!(answer.error(), (400, "invalid_request".into(), "image".into()));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("totally/bogus:9"));

    body["backend"] = json!("auto");
    let answer = server.post("/v1/runs", &body).json();
    let (code, field) = (answer["error"]["code"].as_str(), answer["error"]["field"].as_str());
    let refused_by_docker = [(Some("backend_unavailable"), None), (Some("invalid_request"), Some("image"))];
    assert!(refused_by_docker.contains(&(code, field)), "with a daemon or without: {answer}");
}

#[test]
fn a_default_image_does_not_keep_runs_from_other_backends() {
    let server = Server::with("image = 'totally/bogus:9'\n", &[]);
    let result = server.post("/v1/runs", &json!({"language": "sh", "code": "echo ran"})).result();
    assert_eq!((&result["backend"], &result["image"]), (&json!("native"), &Value::Null));
}

#[test]
fn a_network_of_some_hosts_is_given_to_who_may_have_it() {
    let server = Server::with("[server.allow]\nnetwork = 'allow:*.example.org:443,10.1.0.0/16'\n", &[]);
    let ask = |network: &str| {
        server
            .post("/v1/runs", &json!({"language": "sh", "code": "cat /etc/resolv.conf", "network": network}))
    };
    for network in ["allow:api.example.org:443", "allow:10.1.2.0/24:80,*.example.org:443"] {
        let result = ask(network).result();
        assert_eq!((&result["network"], &result["network_denied"]), (&json!(network), &json!([])));
        assert_eq!(result["stdout"], "nameserver 192.0.2.1\n");
    }
    for network in
        ["allow:example.org", "allow:api.example.org", "allow:10.2.0.0/16", "allow:10.1.2.3", "full"]
    {
        assert_eq!(ask(network).error(), (403, "forbidden".into(), "network".into()), "{network}");
    }
    let public = Server::with("[server.allow]\nnetwork = 'full'\n", &[]);
    let ask = |network: &str| {
        public.post("/v1/runs", &json!({"language": "sh", "code": "true", "network": network}))
    };
    assert_eq!(ask("allow:example.org").result()["network"], "allow:example.org");
    assert_eq!(ask("allow:10.1.2.3").error().0, 403, "a private address is no part of the public internet");
    let none = json!({"language": "sh", "code": "true", "network": "none"});
    assert_eq!(server.post("/v1/runs", &none).result()["network"], json!("none"));
}

#[test]
fn what_is_no_sandbox_is_forbidden_unless_the_configuration_allows_it_in_so_many_words() {
    let server = Server::start();
    for backend in ["process", "none"] {
        let refused = server.post("/v1/runs", &naming(backend)).error();
        assert_eq!(refused, (403, "forbidden".into(), "backend".into()), "{backend}");
    }
    let open = Server::with("[server.allow]\nbackends = ['native', 'process']\n", &[]);
    let result = open.post("/v1/runs", &naming("process")).result();
    assert_eq!((&result["stdout"], &result["backend"]), (&json!("ran\n"), &json!("process")));
    assert_eq!(result["isolation"]["kept"], json!([]), "and says what it does not keep");
    assert_eq!(result["isolation"]["waived"].as_array().map(Vec::len), Some(8));
    assert_eq!(open.post("/v1/runs", &naming("none")).error().0, 403, "one does not mean the other");
    assert_eq!(
        open.post("/v1/runs", &json!({"language": "sh", "code": "true"})).result()["backend"],
        "native"
    );
    assert!(open.log().contains("not a sandbox"), "{}", open.log());
}

#[test]
fn a_client_that_goes_away_takes_a_tree_of_no_box_with_it() {
    let server = Server::with("[server.allow]\nbackends = ['process']\n", &[]);
    let mark = mark();
    let body = json!({"language": "sh", "backend": "process",
                      "code": format!("(setsid sh -c 'sleep 300; :' {mark} &) ; sh -c 'sleep 300; :' {mark}")});
    let stream = server.stream(&body);
    eventually("both run", || alive(&mark) == 2);
    stream.hang_up();
    eventually("both are gone", || alive(&mark) == 0);
}

#[test]
fn a_server_whose_backend_nobody_may_use_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .current_dir(folder.path())
        .env("CODE_EXEC_SANDBOX", "none")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("'none'") && text.contains("[server.allow]"), "{text}");
}

#[test]
fn every_backend_is_listed_with_what_it_keeps() {
    let listed = Server::start().get("/v1/backends").json();
    assert_eq!(listed["default"], "native");
    let named = |name: &str| {
        let backends = listed["backends"].as_array().unwrap();
        backends.iter().find(|backend| backend["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&named("native")["only_by_name"], &named("process")["only_by_name"]),
        (&json!(false), &json!(true))
    );
    for guarantee in named("none")["guarantees"].as_array().unwrap() {
        assert_eq!(guarantee["kept"], json!(false), "{guarantee}");
    }
}

#[test]
fn languages_are_those_of_the_backend_that_is_meant() {
    let server =
        Server::with("[server.allow]\nbackends = ['native', 'wasm', 'kubernetes', 'process']\n", &[]);
    let has_sh = |path: &str| {
        let listed = server.get(path).json();
        let languages = listed["languages"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        languages.iter().any(|language| language["name"] == "sh" && language["available"] == true)
    };
    assert!(has_sh("/v1/languages") && has_sh("/v1/languages?backend=process"));
    let error = |backend: &str| server.get(&format!("/v1/languages?backend={backend}")).error();
    assert_eq!(error("kubernetes").0, 503, "not there");
    assert_eq!(error("none"), (403, "forbidden".into(), "backend".into()), "not allowed");
    assert_eq!(error("podman"), (400, "invalid_request".into(), "backend".into()), "unknown");
}
