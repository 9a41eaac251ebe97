//! SandboxFusion's API.

use belljar_conformance::installed;
use serde_json::{Value, json};

use crate::server::{Server, alive, eventually, mark};

fn run(server: &Server, request: &Value) -> Value {
    server.post("/run_code", request).result()
}

#[test]
fn ping_is_answered_in_json() {
    let server = Server::start();
    assert_eq!(server.get("/v1/ping").result(), json!("pong"));
}

#[test]
fn every_field_reaches_the_box_and_files_come_back() {
    let server = Server::start();
    let code = "import os\nprint(input(), open('in/a.bin', 'rb').read())\n\
                os.makedirs('out'); open('out/b[1].txt', 'w').write('made')";
    let answer = run(
        &server,
        &json!({
            "code": code, "language": "python", "stdin": "read", "compile_timeout": 5, "run_timeout": 9.5,
            "memory_limit_MB": 128, "files": {"in/a.bin": "/wA=", "unset": null, "/sandbox/c": "Yw=="},
            "fetch_files": ["out/b[1].txt", "/sandbox/c", "../x", "/etc/passwd", "not there"],
        }),
    );
    assert_eq!((&answer["status"], &answer["message"]), (&json!("Success"), &json!("")));
    let result = &answer["run_result"];
    assert_eq!(
        json!([result["status"], result["return_code"], result["stdout"], result["stderr"]]),
        json!(["Finished", 0, "read b'\\xff\\x00'\n", ""])
    );
    assert!(result["execution_time"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["files"], json!({"out/b[1].txt": "bWFkZQ==", "/sandbox/c": "Yw=="}));
    assert_eq!((&answer["compile_result"], &answer["executor_pod_name"]), (&Value::Null, &Value::Null));
}

#[test]
fn every_ending_has_its_status_and_code() {
    let server = Server::start();
    let told = |language: &str, code: &str| {
        let endless = code.contains("sleep") || code.contains("for(;;)");
        let run_timeout = if endless { 0.5 } else { 50.0 };
        let request = json!({"code": code, "language": language, "run_timeout": run_timeout, "compile_timeout": 50,
            "memory_limit_MB": 64});
        let answer = run(&server, &request);
        let of = |name: &str| json!([answer[name]["status"], answer[name]["return_code"]]);
        json!([answer["status"], of("compile_result"), of("run_result")])
    };
    let none = json!([null, null]);
    assert_eq!(told("bash", "exit 3"), json!(["Failed", none, ["Finished", 3]]));
    assert_eq!(told("bash", "kill -SEGV $$"), json!(["Failed", none, ["Finished", -11]]));
    assert_eq!(told("bash", "sleep 60"), json!(["Failed", none, ["TimeLimitExceeded", null]]));
    assert_eq!(told("python", "x = bytearray(400 << 20)"), json!(["Failed", none, ["Finished", -9]]));
    assert_eq!(told("cpp", "int main(){}"), json!(["Success", ["Finished", 0], ["Finished", 0]]));
    assert_eq!(told("cpp", "int main(){return 5;}"), json!(["Failed", ["Finished", 0], ["Finished", 5]]));
    assert_eq!(
        told("cpp", "int main(){for(;;);}"),
        json!(["Failed", ["Finished", 0], ["TimeLimitExceeded", null]])
    );
    assert_eq!(told("cpp", "int main(){retur}"), json!(["Failed", ["Finished", 1], none]));
}

#[test]
fn their_languages_are_ours_where_we_have_them() {
    let server = Server::start();
    let programs = [
        ("nodejs", "node", "console.log(42)"),
        ("typescript", "node", "const n: number = 42; console.log(n)"),
        ("php", "php", "echo \"42\\n\";"),
        ("php", "php", "<?php echo \"42\\n\";"),
        ("lua", "lua", "print(42)"),
        ("perl", "perl", "print \"42\\n\""),
        ("ruby", "ruby", "puts 42"),
        ("bash", "bash", "echo 42"),
    ];
    for (language, _, code) in programs.into_iter().filter(|(_, program, _)| installed(program)) {
        let answer = run(&server, &json!({"code": code, "language": language}));
        assert_eq!(
            (&answer["status"], &answer["run_result"]["stdout"]),
            (&json!("Success"), &json!("42\n")),
            "{language}"
        );
    }
    let answer = run(&server, &json!({"code": "1", "language": "csharp"}));
    assert_eq!(answer["status"], "SandboxError");
    assert!(answer["message"].as_str().unwrap().contains("'csharp' is not available here"));
}

#[test]
fn large_languages_are_ours_too() {
    let server = Server::start();
    for (language, code) in [
        ("R", "cat('42\\n')"),
        ("go", "package main\nimport \"fmt\"\nfunc main() { fmt.Println(42) }"),
        ("java", "public class Main { public static void main(String[] a) { System.out.println(42); } }"),
    ] {
        let answer = run(&server, &json!({"code": code, "language": language}));
        assert_eq!(answer["run_result"]["stdout"], "42\n", "{language}: {answer}");
    }
}

#[test]
fn a_request_that_is_wrong_is_refused_as_fastapi_does() {
    let server = Server::start();
    let refused = |request: Value| {
        let answer = server.post("/run_code", &request);
        assert_eq!(answer.status, 422, "{request}");
        let fault = &answer.json()["detail"][0];
        assert!(fault["msg"].is_string() && fault["type"].is_string());
        fault["loc"].clone()
    };
    assert_eq!(refused(json!({})), json!(["body", "code"]));
    assert_eq!(refused(json!({"code": ""})), json!(["body", "language"]));
    assert_eq!(refused(json!({"code": 1, "language": "python"})), json!(["body", "code"]));
    assert_eq!(refused(json!({"code": "", "language": "klingon"})), json!(["body", "language"]));
    for (field, value) in [
        ("run_timeout", json!(0)),
        ("run_timeout", json!(86_401)),
        ("compile_timeout", json!([])),
        ("memory_limit_MB", json!("much")),
        ("stdin", json!({})),
        ("fetch_files", json!("a")),
        ("files", json!([])),
    ] {
        let mut request = json!({"code": "", "language": "python"});
        request[field] = value;
        assert_eq!(refused(request), json!(["body", field]));
    }
    for path in ["../x", "/etc/passwd", "a/../../b"] {
        let request = json!({"code": "", "language": "python", "files": {path: ""}});
        assert_eq!(refused(request), json!(["body", "files", path]));
    }
    for (body, status) in [(&b"{"[..], 422), (b"\xff", 422), (b"", 422)] {
        assert_eq!(server.ask("POST", "/run_code", &[], body).status, status);
    }
    let huge = format!("{{\"code\": \"{}\"}}", "x".repeat(17 << 20));
    let answer = server.ask("POST", "/run_code", &[], huge.as_bytes());
    assert_eq!(answer.status, 413);
    assert!(answer.json()["detail"].is_string());
}

#[test]
fn a_failure_of_ours_is_a_sandbox_error() {
    let server = Server::start();
    let too_small = json!({"code": "1", "language": "python", "memory_limit_MB": 1});
    let answer = run(&server, &too_small);
    assert_eq!((&answer["status"], &answer["run_result"]), (&json!("SandboxError"), &Value::Null));
    assert!(answer["message"].as_str().unwrap().contains("memory must be between"), "{answer}");
}

#[test]
fn a_client_that_hangs_up_takes_its_run_with_it() {
    let server = Server::start();
    let mark = mark();
    let request =
        json!({"code": format!("exec -a {mark} sleep 300"), "language": "bash", "run_timeout": 300});
    let waiting = server.send("POST", "/run_code", &[], request.to_string().as_bytes());
    eventually("the program runs", || alive(&mark) == 1);
    drop(waiting);
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn an_empty_program_is_a_program() {
    let server = Server::start();
    for language in ["python", "bash", "nodejs", "typescript"] {
        let answer = run(&server, &json!({"code": "", "language": language}));
        assert_eq!(
            (&answer["status"], &answer["run_result"]["return_code"]),
            (&json!("Success"), &json!(0)),
            "{answer}"
        );
        let failing = if language == "bash" { "exit 3" } else { "nonsense(" };
        let answer = run(&server, &json!({"code": failing, "language": language}));
        assert_eq!(answer["status"], json!("Failed"), "the control: {answer}");
    }
}

#[test]
fn large_languages_java_checks_assertions_and_tells_its_compiler_apart() {
    if !installed("java") {
        return;
    }
    let server = Server::start();
    let main = |body: &str| format!("class Main {{ public static void main(String[] a) {{ {body} }} }}");
    let java = |code: String| {
        run(&server, &json!({"code": code, "language": "java", "run_timeout": 100, "memory_limit_MB": 512}))
    };
    let right = java(main("assert 1 + 1 == 2; System.err.println(1);"));
    assert_eq!(
        (&right["status"], &right["run_result"]["stderr"]),
        (&json!("Success"), &json!("1\n")),
        "{right}"
    );
    assert_eq!(
        (&right["compile_result"]["status"], &right["compile_result"]["return_code"]),
        (&json!("Finished"), &json!(0))
    );
    let wrong = java(main("assert 1 + 1 == 3;"));
    assert_eq!(
        (&wrong["status"], &wrong["run_result"]["return_code"]),
        (&json!("Failed"), &json!(1)),
        "{wrong}"
    );
    assert!(wrong["run_result"]["stderr"].as_str().unwrap().contains("AssertionError"), "{wrong}");
    let broken = java(main("int x = ;"));
    assert_eq!((&broken["status"], &broken["run_result"]), (&json!("Failed"), &Value::Null), "{broken}");
    assert_eq!(broken["compile_result"]["return_code"], json!(1), "{broken}");
}
