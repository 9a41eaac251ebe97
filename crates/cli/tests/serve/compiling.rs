//! Compiling over HTTP: told apart, kept, and one program on many inputs.

use std::thread;

use serde_json::{Value, json};

use crate::keys::{self, new_key};
use crate::server::Server;

/// Doubles what it reads.
const DOUBLE: &str =
    "#include <stdio.h>\nint main(){int n;if(scanf(\"%d\",&n)!=1)return 9;printf(\"%d\\n\",2*n);}";

fn c(code: &str) -> Value {
    json!({"language": "c", "code": code, "limits": {"compile_timeout_ms": 300_000, "timeout_ms": 60_000}})
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

#[test]
fn events_say_when_the_compiler_is_done() {
    let server = Server::start();
    let code = "#include <stdio.h>\n#warning odd\nint main(){puts(\"hi\");}";
    let events = server.stream(&c(code)).all();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.first(), Some(&"start"));
    assert_eq!(events[0].1["stage"], json!("compile"));
    let stage = names.iter().position(|name| *name == "stage").expect("the program starts");
    assert_eq!(events[stage].1, json!({"stage": "run"}));
    let text = |part: &[(String, Value)], stream: &str| -> String {
        part.iter().filter(|(name, _)| name == stream).filter_map(|(_, data)| data["text"].as_str()).collect()
    };
    let (compiler, program) = events.split_at(stage);
    assert!(text(compiler, "stderr").contains("odd") && text(compiler, "stdout").is_empty());
    assert_eq!((text(program, "stdout").as_str(), text(program, "stderr").as_str()), ("hi\n", ""));
    let (name, end) = events.last().unwrap();
    assert_eq!((name.as_str(), &end["stage"], &end["stderr"]), ("end", &json!("run"), &json!("")));
    assert_eq!(end["compile"]["stderr"], json!(text(compiler, "stderr")));
    // Whoever comes later is told the same.
    let id = end["id"].as_str().unwrap();
    assert_eq!(server.follow(&format!("/v1/runs/{id}/events"), &[]).all(), events);
}

#[test]
fn the_messages_of_a_compiler_that_failed_are_told_once_in_events() {
    let server = Server::start();
    let events = server.stream(&c("int main(){return x;}")).all();
    assert!(events.iter().all(|(name, _)| name != "stage"), "{events:?}");
    let (_, end) = events.last().unwrap();
    assert_eq!((&end["stage"], &end["status"]), (&json!("compile"), &json!("exited")));
    let told: String = events
        .iter()
        .filter(|(name, _)| name == "stderr")
        .filter_map(|(_, data)| data["text"].as_str())
        .collect();
    assert_eq!((&end["stderr"], &end["compile"]["stderr"]), (&json!(told), &json!(told)));
    assert!(told.contains("main.c:1"), "{told}");
}

#[test]
fn the_same_code_is_compiled_once_and_any_other_anew() {
    let server = Server::start();
    let run =
        |code: &str, input: &str| server.post("/v1/runs", &with(c(code), "stdin", json!(input))).result();
    let first = run(DOUBLE, "4");
    assert_eq!((&first["stdout"], &first["compile"]["cached"]), (&json!("8\n"), &json!(false)));
    let second = run(DOUBLE, "5");
    assert_eq!((&second["stdout"], &second["compile"]["cached"]), (&json!("10\n"), &json!(true)));
    assert_eq!(second["compile"]["usage"]["cpu_ms"], json!(0.0));
    assert_eq!((&second["stage"], &second["compile"]["exit_code"]), (&json!("run"), &json!(0)));
    let other = run(&format!("{DOUBLE}\n"), "6");
    assert_eq!((&other["stdout"], &other["compile"]["cached"]), (&json!("12\n"), &json!(false)));
}

/// Eight callers keep their compilers busy at the same time, each with a program of its own that has little time.
#[test]
fn compiling_takes_nothing_of_a_tight_limit_under_eight_callers() {
    let server = Server::start();
    let judge = |caller: usize| {
        let code = format!("#include <iostream>\n#include <regex>\nint main(){{std::cout << {caller};}}");
        let limits = json!({"timeout_ms": 60_000, "cpu_ms": 300, "memory_bytes": 32 << 20,
                            "compile_timeout_ms": 600_000});
        let body = json!({"language": "cpp", "code": code, "limits": limits});
        server.post("/v1/runs", &body).result()
    };
    let results: Vec<Value> = thread::scope(|scope| {
        let callers: Vec<_> = (0..8).map(|caller| scope.spawn(move || judge(caller))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    for (caller, result) in results.iter().enumerate() {
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("exited"), &json!(caller.to_string())),
            "{result}"
        );
        let cpu = |usage: &Value| usage["cpu_ms"].as_f64().unwrap();
        assert!(cpu(&result["compile"]["usage"]) > cpu(&result["usage"]), "{result}");
    }
}

#[test]
fn a_list_of_inputs_is_a_run_for_each_in_their_order() {
    let server = Server::start();
    let inputs: Vec<String> = (0..10).map(|n| n.to_string()).chain(["x".to_owned()]).collect();
    let answer = server.post("/v1/runs", &with(c(DOUBLE), "stdin", json!(inputs))).json();
    let runs = answer["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 11);
    for (n, run) in runs.iter().take(10).enumerate() {
        assert_eq!((&run["stdout"], &run["exit_code"]), (&json!(format!("{}\n", 2 * n)), &json!(0)), "{run}");
        assert_eq!(run["compile"]["cached"], json!(n > 0), "{run}");
    }
    assert_eq!((&runs[10]["exit_code"], &runs[10]["status"]), (&json!(9), &json!("exited")));
    let ids: std::collections::BTreeSet<_> = runs.iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 11, "each is a run of its own");
    let one = server.get(&format!("/v1/runs/{}", runs[3]["id"].as_str().unwrap())).result();
    assert_eq!(one["stdout"], json!("6\n"));
}

#[test]
fn a_list_of_inputs_can_be_followed_by_events() {
    let server = Server::start();
    let body = json!({"language": "sh", "code": "read n; echo $n; exit $n", "stdin": ["1", "2", "3"]});
    let events = server.stream(&body).all();
    let told: Vec<_> = events
        .iter()
        .map(|(name, data)| (name.as_str(), data["index"].as_u64(), data["result"]["exit_code"].as_u64()))
        .collect();
    let expected = (0..3).map(|n| ("result", Some(n), Some(n + 1)));
    assert_eq!(told[..3], expected.collect::<Vec<_>>());
    assert_eq!(events[3..], [("done".to_owned(), json!({"runs": 3}))]);
}

#[test]
fn code_that_does_not_compile_is_answered_once_for_all_inputs() {
    let server = Server::start();
    let body = with(c("int main(){return x;}"), "stdin", json!(["1", "2", "3"]));
    let answer = server.post("/v1/runs", &body).json();
    let runs = answer["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &runs[0]["stage"]), (1, &json!("compile")), "{answer}");
}

#[test]
fn every_input_counts_for_the_quota_of_its_caller() {
    let key = new_key("a");
    let config = format!("{}\nrequests-per-minute = 3\n", key.stanza);
    let server = Server::with(&config, &[]);
    let body = json!({"language": "sh", "code": "cat", "stdin": ["1", "2"]});
    let answer = keys::post(&server, &key.key, &body).json();
    assert_eq!(answer["runs"][1]["stdout"], json!("2"), "{answer}");
    let one = json!({"language": "sh", "code": "true"});
    assert_eq!(keys::post(&server, &key.key, &one).result()["exit_code"], json!(0));
    assert_eq!(keys::post(&server, &key.key, &one).error().0, 429, "two and one are three");
}

#[test]
fn a_list_that_cannot_be_run_is_refused() {
    let server = Server::start();
    let with_stdin = |stdin: Value| json!({"language": "sh", "code": "cat", "stdin": stdin});
    let (status, code, _) = server.post("/v1/runs", &with_stdin(json!([]))).error();
    assert_eq!((status, code.as_str()), (400, "invalid_request"));
    let (status, code, _) = server.post("/v1/runs", &with_stdin(json!(vec!["x"; 257]))).error();
    assert_eq!((status, code.as_str()), (413, "too_large"));
    let (status, _, _) = server.post("/v1/runs", &with_stdin(json!(["a", 1]))).error();
    assert_eq!(status, 400);
    let body = with_stdin(json!(["a"])).to_string();
    for header in [("prefer", "respond-async"), ("idempotency-key", "k")] {
        let headers = [("content-type", "application/json"), header];
        let answer = server.ask("POST", "/v1/runs", &headers, body.as_bytes());
        assert_eq!(answer.error().0, 400, "{header:?}");
    }
    // The control: the same with one text is taken either way.
    let body = with_stdin(json!("a")).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    assert_eq!(server.ask("POST", "/v1/runs", &headers, body.as_bytes()).result()["stdout"], json!("a"));
}
