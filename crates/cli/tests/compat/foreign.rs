//! A page of another site cannot make a browser on this machine change anything here, through whichever protocol: not by
//! what browsers send without asking first, and not by leaving out where it comes from.

use serde_json::json;

use crate::server::{Answer, Server};

const JSON: (&str, &str) = ("content-type", "application/json");
const TEXT: (&str, &str) = ("content-type", "text/plain;charset=UTF-8");
const FIREFOX: (&str, &str) =
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0");

/// Every path that takes a POST.
const PATHS: [&str; 12] = [
    "/v1/runs",
    "/v1/runs/run_01J00000000000000000000000/cancel",
    "/v1/scan",
    "/v1/approvals/apr_01J00000000000000000000000/approve",
    "/v1/approvals/apr_01J00000000000000000000000/deny",
    "/v1/approvals/apr_01J00000000000000000000000/revoke",
    "/console/session",
    "/mcp",
    "/api/v2/execute",
    "/api/v2/packages",
    "/run_code",
    "/run_jupyter",
];

/// A program in the words of one protocol.
fn program(path: &str) -> Vec<u8> {
    let program = match path {
        "/api/v2/execute" => json!({"language": "sh", "version": "*", "files": [{"content": "echo ran"}]}),
        "/run_code" => json!({"language": "bash", "code": "echo ran"}),
        "/run_jupyter" => json!({"cells": ["print('ran')"]}),
        _ => json!({"language": "sh", "code": "echo ran"}),
    };
    program.to_string().into_bytes()
}

fn is_refused(answer: &Answer) -> bool {
    answer.status == 403 && answer.json()["error"]["code"] == "forbidden"
}

#[test]
fn no_way_in_is_open_to_pages_of_other_sites() {
    let server = Server::start();
    let own = format!("http://{}", server.address);
    for path in PATHS {
        let ask = |headers: &[(&str, &str)]| server.ask("POST", path, headers, &program(path));
        let of_another_site: [&[(&str, &str)]; 8] = [
            &[("origin", "http://evil.org"), JSON],
            &[("origin", "null"), TEXT],
            &[("sec-fetch-site", "cross-site"), JSON],
            &[("sec-fetch-site", "cross-site"), TEXT],
            &[("sec-fetch-site", "same-site"), FIREFOX, TEXT],
            &[FIREFOX, TEXT],
            &[FIREFOX, ("content-type", "application/x-www-form-urlencoded")],
            &[("referer", "http://evil.org/page")],
        ];
        for headers in of_another_site {
            let answer = ask(headers);
            assert!(is_refused(&answer), "{path} {headers:?}: {} {}", answer.status, answer.json());
        }
        let of_this_one: [&[(&str, &str)]; 4] = [
            &[JSON],
            &[FIREFOX, ("sec-fetch-site", "same-origin"), ("origin", &own), JSON],
            &[FIREFOX, ("origin", &own), JSON],
            &[("user-agent", "node"), JSON],
        ];
        for headers in of_this_one {
            let answer = ask(headers);
            assert!(!is_refused(&answer), "{path} {headers:?}: {}", answer.json());
        }
    }
    let listed = server.get("/v1/runs").result();
    assert!(!listed["runs"].as_array().unwrap().is_empty(), "the control has run: {listed}");
}

#[test]
fn what_a_foreign_page_sends_starts_nothing() {
    let server = Server::start();
    let runs = || server.get("/v1/runs").result()["runs"].as_array().unwrap().len();
    for path in ["/v1/runs", "/api/v2/execute", "/run_code", "/run_jupyter"] {
        for headers in [[("sec-fetch-site", "cross-site"), TEXT], [FIREFOX, TEXT]] {
            assert!(is_refused(&server.ask("POST", path, &headers, &program(path))), "{path}");
        }
    }
    assert_eq!(runs(), 0);
    // A program that announces no JSON is no browser: Piston's client for Node.js is one.
    let answer =
        server.ask("POST", "/api/v2/execute", &[("user-agent", "node"), TEXT], &program("/api/v2/execute"));
    assert_eq!(answer.result()["run"]["stdout"], "ran\n");
    assert_eq!(runs(), 1);
}
