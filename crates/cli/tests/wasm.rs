//! `belljar wasm`, from outside. Without the feature, it says how to get it; with it, nothing that was not installed runs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn belljar(state: &std::path::Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(words).env("BELLJAR_STATE_DIR", state).current_dir("/").output().unwrap()
}

fn told(output: &Output) -> (i32, serde_json::Value) {
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

#[cfg(not(feature = "wasm"))]
#[test]
fn without_the_feature_every_word_of_it_says_how_to_build_it_in() {
    let state = tempfile::tempdir().unwrap();
    let run = ["run", "python", "-c", "print(1)", "--backend", "wasm", "--json"];
    for (words, status) in
        [(&["wasm", "install", "--json"][..], 2), (&["wasm", "list", "--json"], 2), (&run, 125)]
    {
        let (code, object) = told(&belljar(state.path(), words));
        assert_eq!((code, &object["error"]["code"]), (status, &"backend_unavailable".into()), "{words:?}");
        let hint = object["error"]["hint"].as_str().unwrap();
        assert!(hint.contains("cargo build --release --features wasm"), "{words:?}: {hint}");
    }
}

#[cfg(feature = "wasm")]
#[test]
fn without_modules_a_run_says_how_to_get_them_and_the_list_says_what_is_missing() {
    let state = tempfile::tempdir().unwrap();
    let run = ["run", "python", "-c", "print(1)", "--backend", "wasm", "--json"];
    let (code, object) = told(&belljar(state.path(), &run));
    assert_eq!((code, &object["error"]["code"]), (125, &"backend_unavailable".into()));
    assert_eq!(object["error"]["hint"], "belljar wasm install");
    let (code, list) = told(&belljar(state.path(), &["wasm", "list", "--json"]));
    assert_eq!(code, 0);
    let python = list.as_array().unwrap().iter().find(|module| module["name"] == "python").unwrap();
    assert_eq!((&python["state"], &python["sha256"]), (&"missing".into(), &serde_json::Value::Null));
}

#[cfg(feature = "wasm")]
#[test]
fn what_is_no_module_is_not_installed() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("not.wasm");
    std::fs::write(&file, "text").unwrap();
    let words = ["wasm", "install", "python", "--from", file.to_str().unwrap(), "--json"];
    let (code, object) = told(&belljar(state.path(), &words));
    assert_eq!((code, &object["error"]["code"]), (2, &"backend_unavailable".into()));
    let (code, object) = told(&belljar(state.path(), &["wasm", "install", "perl", "--json"]));
    assert_eq!((code, &object["error"]["code"]), (2, &"not_found".into()));
    assert!(!state.path().join("wasm/python.module").exists());
}
