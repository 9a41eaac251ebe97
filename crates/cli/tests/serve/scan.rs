//! `POST /v1/scan`, and the findings of runs.

use serde_json::{Value, json};

use super::keys::new_key;
use crate::server::{Answer, Server};

fn scan(server: &Server, body: &Value) -> Answer {
    server.post("/v1/scan", body)
}

fn rules(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.json());
    let findings = answer.json()["findings"].as_array().unwrap().clone();
    findings.iter().map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn code_is_scanned_and_not_run() {
    let server = Server::start();
    let answer = scan(&server, &json!({"language": "py", "code": "import os\nos.setuid(0)\n"}));
    assert_eq!(rules(&answer), ["python.escape.system-calls"]);
    let finding = &answer.json()["findings"][0];
    let place = [&finding["line"], &finding["column"], &finding["end_line"], &finding["end_column"]];
    assert_eq!(place, [&json!(2), &json!(1), &json!(2), &json!(13)]);
    assert_eq!(finding["severity"], "critical");
    assert!(rules(&scan(&server, &json!({"language": "python", "code": "print(1)"}))).is_empty());
    let narrowed = json!({"language": "python", "code": "import os", "allowed_imports": ["json"]});
    assert_eq!(rules(&scan(&server, &narrowed)), ["python.imports.not-allowed"]);
    // The workers are used again, and by many.
    for _ in 0..20 {
        assert_eq!(
            rules(&scan(&server, &json!({"language": "sh", "code": "nmap x"}))),
            ["any.network.scanner"]
        );
    }
}

#[test]
fn a_request_that_is_none_is_refused_with_its_field() {
    let server = Server::start();
    let refused = |body: Value| scan(&server, &body).error();
    let invalid = |field: &str| (400, "invalid_request".to_owned(), field.to_owned());
    assert_eq!(refused(json!({"language": "cobol", "code": "x"})), invalid("language"));
    assert_eq!(refused(json!({"language": "sh", "code": "a\u{0}b"})), invalid("code"));
    assert_eq!(
        refused(json!({"language": "sh", "code": "x", "allowed_imports": [""]})),
        invalid("allowed_imports")
    );
    assert_eq!(refused(json!({"language": "sh", "code": "x", "stdin": "x"})).0, 400);
    assert_eq!(refused(json!({"language": "sh", "code": "#".repeat((4 << 20) + 1)})).0, 413);
    assert_eq!(server.ask("POST", "/v1/scan", &[], b"{}").status, 415);
    assert_eq!(server.get("/v1/scan").status, 405);
}

#[test]
fn a_key_is_needed_and_its_languages_count() {
    let ours = new_key("ours");
    let server = Server::with(&format!("{}allow.languages = ['python']\n", ours.stanza), &[]);
    let ask = |language: &str, key: Option<&str>| {
        let bearer = format!("Bearer {}", key.unwrap_or_default());
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(key.map(|_| ("authorization", bearer.as_str())));
        let body = json!({"language": language, "code": "nothing"}).to_string();
        server.ask("POST", "/v1/scan", &headers, body.as_bytes()).status
    };
    assert_eq!(ask("python", None), 401);
    assert_eq!(ask("python", Some(&ours.key)), 200);
    assert_eq!(ask("ruby", Some(&ours.key)), 403);
}

#[test]
fn code_that_ends_a_worker_gets_an_answer_and_the_next_one_too() {
    let server = Server::start();
    let endless = format!("fetch('x')\n{}1{}\n", "x<(a=".repeat(40), ")>".repeat(40));
    let found = rules(&scan(&server, &json!({"language": "typescript", "code": endless})));
    assert!(found.contains(&"any.scan.too-expensive".to_owned()), "{found:?}");
    assert!(found.contains(&"javascript.network.client".to_owned()), "{found:?}");
    assert_eq!(rules(&scan(&server, &json!({"language": "sh", "code": "nmap x"}))), ["any.network.scanner"]);
}

#[test]
fn findings_are_in_the_results_of_runs_if_that_is_configured() {
    let run = json!({"language": "python", "code": "import os\nprint(os.system('true'))\n"});
    let server = Server::with("[scan]\nenabled = true\n", &[]);
    let result = server.post("/v1/runs", &run).result();
    assert_eq!(result["findings"][0]["rule"], "python.process.spawn", "{result}");
    assert_eq!(result["stdout"], "0\n", "a finding keeps nothing from running");
    let plain = Server::start().post("/v1/runs", &run).result();
    assert_eq!(plain["findings"], json!([]));
}
