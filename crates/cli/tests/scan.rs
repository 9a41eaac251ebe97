//! `belljar scan`, end to end: its exit status, its three kinds of output, and code that is made to break it.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn scan(words: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .arg("scan")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that refuses before it reads has closed the pipe, which is no fault of the test.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

const SPAWN: &str = "from os import system as s\ns('id')\n";

#[test]
fn the_exit_status_says_whether_something_matters() {
    let status = |words: &[&str], code: &str| scan(words, code).status.code();
    assert_eq!(status(&["python", "-"], "print(1)\n"), Some(0));
    assert_eq!(status(&["python", "-"], SPAWN), Some(0), "medium is below high");
    assert_eq!(status(&["python", "-", "--fail-on", "medium"], SPAWN), Some(1));
    assert_eq!(status(&["python", "-", "--fail-on", "critical"], "import os; os.setuid(0)"), Some(1));
    assert_eq!(status(&["-l", "sh", "-c", "rm -rf /"], ""), Some(1));
    assert_eq!(status(&["-l", "sh", "-c", "rm -rf build", "--fail-on", "medium"], ""), Some(0));
    assert_eq!(status(&["python", "-", "--allowed-imports", "json,re"], "import json, re"), Some(0));
    assert_eq!(status(&["python", "-", "--allowed-imports", "json"], "import json, re"), Some(1));
    assert_eq!(status(&["-l", "cobol", "-c", "x"], ""), Some(2));
    assert_eq!(status(&["/no/such.py"], ""), Some(2));
    assert_eq!(status(&["python", "-", "--fail-on", "mild"], ""), Some(2));
}

#[test]
fn a_file_tells_its_language() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rb");
    std::fs::write(&path, "system('id')\n").unwrap();
    let output = scan(&[path.to_str().unwrap(), "--json"], "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["findings"][0]["rule"], "ruby.process.spawn", "{found}");
}

#[test]
fn json_has_the_fields_of_the_contract() {
    let output = scan(&["python", "-", "--json"], SPAWN);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let spawned = found["findings"].as_array().unwrap().iter().find(|finding| finding["line"] == 2).unwrap();
    let expected = json!({
        "rule": "python.process.spawn", "severity": "medium", "message": "starts another program: os.system",
        "line": 2, "column": 1, "end_line": 2, "end_column": 8, "excerpt": "s('id')",
    });
    assert_eq!(spawned, &expected);
    let nothing: Value =
        serde_json::from_slice(&scan(&["python", "-", "--json"], "print(1)").stdout).unwrap();
    assert_eq!(nothing, json!({"findings": []}));
    let failed = scan(&["-l", "cobol", "-c", "x", "--json"], "");
    let problem: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(problem["error"]["field"], "language", "{problem}");
}

#[test]
fn sarif_names_the_rules_and_the_places() {
    let output = scan(&["python", "-", "--sarif"], SPAWN);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let results = run["results"].as_array().unwrap();
    assert!(!results.is_empty());
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(run["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
        let region = &result["locations"][0]["physicalLocation"]["region"];
        assert!(
            region["startLine"].as_u64() >= Some(1) && region["endColumn"].as_u64() >= Some(1),
            "{result}"
        );
    }
}

#[test]
fn people_see_the_line_and_a_mark_under_it() {
    let text = stdout(&scan(&["python", "-"], SPAWN));
    for part in [
        "medium[python.process.spawn]: starts another program",
        "<stdin>:2:1",
        "s('id')",
        "^^^^^^^",
        "medium",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "no colors without a terminal");
    assert!(stdout(&scan(&["python", "-", "--color", "always"], SPAWN)).contains('\x1b'));
    assert_eq!(stdout(&scan(&["python", "-"], "print(1)\n")), "nothing found\n");
}

#[test]
fn hostile_code_cannot_drive_the_terminal() {
    let text = stdout(&scan(&["python", "-"], "import os\nos.system('\x1b]0;owned\x07\u{202e}')\n"));
    assert!(text.contains("os.system") && !text.contains(['\x1b', '\x07', '\u{202e}']), "{text:?}");
}

#[test]
fn code_that_keeps_a_parser_busy_for_ever_is_given_up_and_read_by_its_tokens() {
    let control = scan(&["-l", "ts", "-", "--json"], "fetch('x')\n");
    assert!(
        stdout(&control).contains("javascript.network.client") && !stdout(&control).contains("too-expensive")
    );
    let endless = format!("fetch('x')\n{}1{}\n", "x<(a=".repeat(40), ")>".repeat(40));
    let output = scan(&["-l", "ts", "-", "--json"], &endless);
    let text = stdout(&output);
    assert!(
        text.contains("any.scan.too-expensive") && text.contains("javascript.network.client"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn code_that_is_too_large_or_no_text_is_refused() {
    let large = scan(&["python", "-"], &"#".repeat((4 << 20) + 1));
    assert_eq!(large.status.code(), Some(2), "{}", String::from_utf8_lossy(&large.stderr));
    assert_eq!(scan(&["python", "-"], "\0").status.code(), Some(2));
    assert_eq!(scan(&["python", "-"], "").status.code(), Some(0), "an empty program does nothing");
}
