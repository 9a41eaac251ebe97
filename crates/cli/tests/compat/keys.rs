//! Keys hold for every protocol, and what a key may not have is refused in the protocol's own words.

use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Answer, Server};

/// A server with one key, which may have no more than this; and the key.
fn server() -> (Server, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_belljar")).args(["key", "new", "--name", "held"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (key, rest) = text.split_once('\n').unwrap();
    let stanza = &rest[rest.find("[[keys]]").unwrap()..];
    let limits = "limits = { timeout = '5s', cpu-time = '1s', memory = '64M' }";
    let config = format!("{stanza}[keys.allow]\nlanguages = ['sh', 'c', 'bash']\n{limits}\n");
    (Server::with(&config, &[]), format!("Bearer {key}"))
}

fn post(server: &Server, key: &str, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json"), ("authorization", key)];
    server.ask("POST", path, &headers, body.to_string().as_bytes())
}

#[test]
fn every_protocol_wants_the_key() {
    let (server, key) = server();
    for path in ["/api/v2/runtimes", "/api/v2/packages", "/api/v2/connect", "/v1/ping"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for path in ["/api/v2/execute", "/run_code", "/run_jupyter"] {
        assert_eq!(server.post(path, &json!({})).status, 401, "{path}");
    }
    assert_eq!(server.ask("GET", "/v1/ping", &[("authorization", &key)], b"").status, 200);
}

#[test]
fn piston_tells_a_key_what_it_may_have() {
    let (server, key) = server();
    let runtimes = server.ask("GET", "/api/v2/runtimes", &[("authorization", &key)], b"").result();
    let names: Vec<_> =
        runtimes.as_array().unwrap().iter().map(|runtime| runtime["language"].clone()).collect();
    assert_eq!(names, ["bash", "dash", "c"]);
    let refused = |language: &str, name: &str, value: u64| {
        let body = json!({"language": language, "version": "*", "files": [{"content": ""}], name: value});
        let answer = post(&server, &key, "/api/v2/execute", &body);
        (answer.status, answer.json()["message"].as_str().unwrap_or_default().to_owned())
    };
    let limit = |name: &str, most: u64| (400, format!("{name} cannot exceed the configured limit of {most}"));
    assert_eq!(refused("sh", "run_timeout", 5001), limit("run_timeout", 5000));
    assert_eq!(refused("sh", "compile_timeout", 5001), limit("compile_timeout", 5000));
    assert_eq!(refused("sh", "run_cpu_time", 1001), limit("run_cpu_time", 1000));
    assert_eq!(refused("sh", "run_memory_limit", (64 << 20) + 1), limit("run_memory_limit", 64 << 20));
    assert_eq!(refused("python", "run_timeout", 1), (400, "python-* runtime is unknown".to_owned()));
    let slow =
        json!({"language": "sh", "version": "*", "files": [{"content": "sleep 60"}], "run_timeout": 2000});
    assert_eq!(post(&server, &key, "/api/v2/execute", &slow).result()["run"]["status"], "TO");
    let compiled = json!({"language": "c", "version": "*", "files": [{"content": "int main(){}"}],
        "run_timeout": 5000, "compile_timeout": 5000, "run_cpu_time": 1000});
    assert_eq!(post(&server, &key, "/api/v2/execute", &compiled).result()["run"]["code"], 0);
}

#[test]
fn fusion_tells_a_key_what_it_may_have() {
    let (server, key) = server();
    let ask = |name: &str, value: f64| {
        let body = json!({"code": "echo 1", "language": "bash", name: value});
        post(&server, &key, "/run_code", &body)
    };
    for (name, value, most) in
        [("run_timeout", 5.1, 5), ("compile_timeout", 6.0, 5), ("memory_limit_MB", 65.0, 64)]
    {
        let answer = ask(name, value);
        let fault = &answer.json()["detail"][0];
        assert_eq!((answer.status, &fault["loc"]), (422, &json!(["body", name])));
        assert_eq!(fault["msg"], format!("Input should be less than or equal to {most}"));
    }
    assert_eq!(ask("run_timeout", 5.0).result()["status"], "Success");
    let forbidden = json!({"code": "1", "language": "python"});
    let answer = post(&server, &key, "/run_code", &forbidden).result();
    assert_eq!(answer["status"], "SandboxError");
    assert!(answer["message"].as_str().unwrap().contains("'python' is not allowed here"), "{answer}");
}
