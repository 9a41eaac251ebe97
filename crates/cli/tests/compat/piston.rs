//! Piston's API over HTTP.

use serde_json::{Value, json};

use crate::server::{Server, alive, eventually, mark};

const EXECUTE: &str = "/api/v2/execute";

fn job(language: &str, code: &str) -> Value {
    json!({"language": language, "version": "*", "files": [{"content": code}]})
}

fn with(mut job: Value, name: &str, value: impl Into<Value>) -> Value {
    job[name] = value.into();
    job
}

fn execute(server: &Server, job: &Value) -> Value {
    server.post(EXECUTE, job).result()
}

#[test]
fn runtimes_are_what_is_installed_by_pistons_names() {
    let server = Server::start();
    let runtimes = server.get("/api/v2/runtimes").result();
    let named = |name: &str| {
        let all = runtimes.as_array().unwrap();
        all.iter()
            .find(|runtime| runtime["language"] == name)
            .unwrap_or_else(|| panic!("{name}: {runtimes}"))
            .clone()
    };
    for name in ["python", "javascript", "typescript", "bash", "c", "c++", "rust", "dash"] {
        assert_three_numbers(name, &named(name)["version"]);
    }
    let aliases = named("python")["aliases"].clone();
    for alias in ["py", "py3", "python3"] {
        assert!(aliases.as_array().unwrap().contains(&json!(alias)), "{alias}: {aliases}");
    }
    assert_eq!(named("javascript")["runtime"], "node");
    let exactly = with(job("py", "print(1)"), "version", named("python")["version"].clone());
    assert_eq!(execute(&server, &exactly)["version"], named("python")["version"]);
}

#[test]
fn large_languages_are_listed_by_pistons_names() {
    let server = Server::start();
    let runtimes = server.get("/api/v2/runtimes").result();
    for name in ["go", "java", "rscript"] {
        let found = runtimes.as_array().unwrap().iter().find(|runtime| runtime["language"] == name);
        assert_three_numbers(name, &found.unwrap_or_else(|| panic!("{name}: {runtimes}"))["version"]);
    }
}

fn assert_three_numbers(name: &str, version: &Value) {
    let version = version.as_str().unwrap();
    let numbers: Vec<&str> = version.split('.').collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|n| n.parse::<u64>().is_ok()), "{name}: {version}");
}

#[test]
fn everything_that_a_request_can_say_reaches_the_box() {
    let server = Server::start();
    let code = "import sys, helper\n\
                print(helper.word, sys.argv, repr(sys.stdin.read()), open('a/b.bin', 'rb').read(), open('c', 'rb').read())";
    let ran = execute(
        &server,
        &json!({
            "language": "python3", "version": "3.x",
            "files": [
                {"name": "a/b.bin", "content": "/wA=", "encoding": "base64"},
                {"name": "start.py", "content": code},
                {"name": "helper.py", "content": "word = 'help'", "encoding": "utf8"},
                {"name": "c", "content": "00fF", "encoding": "hex"},
            ],
            "stdin": "line", "args": ["1", "two"],
            "run_timeout": 9000, "compile_timeout": 9000, "run_cpu_time": 9000, "compile_cpu_time": 9000,
            "run_memory_limit": 200_000_000, "compile_memory_limit": -1, "a_field_of_another_version": [[]],
        }),
    );
    let expected = "help ['/sandbox/start.py', '1', 'two'] 'line\\n' b'\\xff\\x00' b'\\x00\\xff'\n";
    assert_eq!((&ran["run"]["stdout"], &ran["run"]["stderr"]), (&json!(expected), &json!("")));
    assert_eq!((&ran["language"], ran.get("compile")), (&json!("python"), None));
}

#[test]
fn every_ending_has_its_code_signal_and_status() {
    let server = Server::start();
    let told = |job: Value| {
        let run = execute(&server, &job)["run"].clone();
        assert!(run["wall_time"].is_u64() && run["cpu_time"].is_u64() && run["memory"].is_u64(), "{run}");
        json!([run["code"], run["signal"], run["status"], run["message"]])
    };
    assert_eq!(told(job("sh", "exit 0")), json!([0, null, null, null]));
    assert_eq!(told(job("sh", "exit 3")), json!([3, null, "RE", "Exited with error status 3"]));
    assert_eq!(told(job("sh", "kill -SEGV $$")), json!([null, "SIGSEGV", "SG", "Caught fatal signal 11"]));
    let slow = with(job("sh", "sleep 60"), "run_timeout", 200);
    assert_eq!(told(slow), json!([null, "SIGKILL", "TO", "Time limit exceeded (wall clock)"]));
    let busy = with(job("sh", "while :; do :; done"), "run_cpu_time", 200);
    assert_eq!(told(busy), json!([null, "SIGKILL", "TO", "Time limit exceeded"]));
    let large = with(job("python", "x = bytearray(400 << 20)"), "run_memory_limit", 32 << 20);
    assert_eq!(told(large), json!([null, "SIGKILL", "SG", "Memory limit exceeded"]));
}

#[test]
fn output_beyond_the_limit_is_dropped_and_said_so() {
    let server = Server::start();
    let flood = |descriptor: u8| {
        let code = format!(
            "import os\nfor _ in range(40): os.write({descriptor}, b'x' * 65536)\nos.write(1, b'end')"
        );
        execute(&server, &job("python", &code))["run"].clone()
    };
    let out = flood(1);
    assert_eq!(
        json!([out["status"], out["message"], out["code"]]),
        json!(["OL", "stdout length exceeded", 0])
    );
    let stdout = out["stdout"].as_str().unwrap();
    assert!(stdout.contains("bytes omitted") && stdout.ends_with("end") && stdout.len() < 2 << 20);
    assert!(out["output"].as_str().unwrap().len() < 2 << 20);
    let err = flood(2);
    assert_eq!(
        json!([err["status"], err["message"], err["code"]]),
        json!(["EL", "stderr length exceeded", 0])
    );
}

#[test]
fn output_is_in_the_order_in_which_it_came() {
    let server = Server::start();
    let code = "echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three";
    let run = execute(&server, &job("bash", code))["run"].clone();
    assert_eq!(
        json!([run["output"], run["stdout"], run["stderr"]]),
        json!(["one\ntwo\nthree\n", "one\nthree\n", "two\n"])
    );
}

#[test]
fn compiling_is_told_apart_from_running() {
    let server = Server::start();
    let good = execute(&server, &job("c++", "#include <cstdio>\nint main(){puts(\"hi\");return 4;}"));
    assert_eq!(json!([good["compile"]["code"], good["compile"]["status"]]), json!([0, null]));
    assert_eq!(
        json!([good["run"]["code"], good["run"]["status"], good["run"]["stdout"]]),
        json!([4, "RE", "hi\n"])
    );
    let bad = execute(&server, &job("c", "int main(){ retur 1; }"));
    assert_eq!(bad["compile"], bad["run"]);
    assert_eq!(json!([bad["compile"]["code"], bad["compile"]["status"]]), json!([1, "RE"]));
    assert!(bad["compile"]["stderr"].as_str().unwrap().contains("error"), "{bad}");
}

#[test]
fn each_stage_has_its_own_clock() {
    let server = Server::start();
    let endless = with(with(job("c", "int main(){for(;;);}"), "run_timeout", 300), "compile_timeout", 50_000);
    let ran = execute(&server, &endless);
    assert_eq!(
        json!([ran["compile"]["code"], ran["run"]["status"], ran["run"]["code"]]),
        json!([0, "TO", null])
    );
    // Twice as many types with each level: no compiler comes to the end of that.
    let code = "template<int N, int M> struct X { X<N-1, 2*M> a; X<N-1, 2*M+1> b; };\n\
                template<int M> struct X<0, M> {};\nint main() { X<28, 0> x; }";
    let large = with(with(job("c++", code), "compile_timeout", 300), "run_timeout", 50_000);
    let ran = execute(&server, &with(large, "run_memory_limit", 1 << 30));
    assert_eq!(json!([ran["compile"]["status"], ran["compile"]["signal"]]), json!(["TO", "SIGKILL"]));
    assert_eq!(ran["run"], ran["compile"]);
}

#[test]
fn what_cannot_be_run_is_refused_in_pistons_words() {
    let server = Server::start();
    let refused = |job: Value| {
        let answer = server.post(EXECUTE, &job);
        (answer.status, answer.json()["message"].as_str().unwrap().to_owned())
    };
    let words = |job: Value, message: &str| assert_eq!(refused(job), (400, message.to_owned()));
    words(json!({}), "language is required as a string");
    words(json!([]), "language is required as a string");
    words(json!({"language": "py"}), "version is required as a string");
    words(json!({"language": "py", "version": "*"}), "files is required as an array");
    words(with(job("py", ""), "files", json!([{"content": 1}])), "files[0].content is required as a string");
    words(job("html", "1"), "html-* runtime is unknown");
    words(with(job("python", "1"), "version", "2.7.1"), "python-2.7.1 runtime is unknown");
    words(with(job("python", "1"), "version", "newest"), "python-newest runtime is unknown");
    words(with(job("py", "1"), "run_timeout", "1"), "If specified, run_timeout must be a number");
    words(with(job("py", "1"), "run_timeout", -1), "run_timeout must be non-negative");
    let hour = 3600 * 1000;
    words(
        with(job("py", "1"), "compile_timeout", hour + 1),
        &format!("compile_timeout cannot exceed the configured limit of {hour}"),
    );
    let binary = json!([{"content": "", "encoding": "base64"}]);
    words(with(job("py", ""), "files", binary), "files must include at least one utf8 encoded file");
    for name in ["../escape.py", "/etc/passwd", "a/../../b", "..", "a\u{0}b"] {
        for files in [
            json!([{"name": name, "content": "1"}]),
            json!([{"content": "1"}, {"name": name, "content": ""}]),
        ] {
            let (status, message) = refused(with(job("py", ""), "files", files));
            assert!(status == 400 && message.starts_with("the path '"), "{name}: {message}");
        }
    }
    let twice = json!([{"content": "1"}, {"name": "a", "content": ""}, {"name": "a", "content": ""}]);
    assert_eq!(refused(with(job("py", ""), "files", twice)).0, 400);
    assert_eq!(refused(with(job("py", "1"), "run_memory_limit", 1)).0, 400);
}

#[test]
fn what_is_no_json_is_refused() {
    let server = Server::start();
    let ask = |kind: &str, body: &[u8]| {
        let answer = server.ask("POST", EXECUTE, &[("content-type", kind)], body);
        (answer.status, answer.json()["message"].as_str().unwrap_or_default().to_owned())
    };
    let not_json = (415, "requests must be of type application/json".to_owned());
    let body = job("sh", "true").to_string();
    assert_eq!(ask("application/x-www-form-urlencoded", body.as_bytes()), not_json);
    assert_eq!(ask("text/plain", b"language=sh"), not_json);
    assert_eq!(ask("text/plain;charset=UTF-8", body.as_bytes()).0, 200);
    assert_eq!(ask("application/json; charset=utf-8", body.as_bytes()).0, 200);
    for body in ["", "{", "nothing", "\"text\"", "{\"language\": \u{0}}"] {
        assert_eq!(ask("application/json", body.as_bytes()).0, 400, "{body:?}");
    }
    assert_eq!(ask("application/json", b"{\"language\": \"\xff\"}").0, 400);
    assert_eq!(ask("application/json", &[b'['; 1 << 10]).0, 400);
    assert_eq!(ask("application/json", &vec![b'['; 1 << 20]).0, 413, "too many values");
    let huge = format!("{{\"language\": \"{}\"}}", "x".repeat(17 << 20));
    assert_eq!(ask("application/json", huge.as_bytes()).0, 413);
}

#[test]
fn a_client_that_hangs_up_takes_its_job_with_it() {
    // The kernel does not show the arguments of a program from a zygote.
    let server = Server::with("[pool]\nenabled = false\n", &[]);
    let mark = mark();
    let job = with(
        with(job("python", "import time; time.sleep(300)"), "args", json!([mark])),
        "run_timeout",
        300_000,
    );
    let headers = [("content-type", "application/json")];
    let waiting = server.send("POST", EXECUTE, &headers, job.to_string().as_bytes());
    eventually("the program runs", || alive(&mark) == 1);
    drop(waiting);
    eventually("the box is gone", || alive(&mark) == 0);
}

#[test]
fn packages_are_listed_and_left_to_the_host() {
    let server = Server::start();
    let packages = server.get("/api/v2/packages").result();
    let python = packages.as_array().unwrap().iter().find(|package| package["language"] == "python").unwrap();
    assert_eq!(python["installed"], json!(true));
    assert!(python["language_version"].as_str().unwrap().starts_with("3."));
    for method in ["POST", "DELETE"] {
        let body = json!({"language": "python", "version": "3.9.4"}).to_string();
        let answer =
            server.ask(method, "/api/v2/packages", &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(answer.status, 501);
        assert!(answer.json()["message"].as_str().unwrap().contains("the server's host"));
    }
}

#[test]
fn an_empty_program_exits_with_0() {
    let server = Server::start();
    for language in ["python", "bash", "javascript"] {
        let run = execute(&server, &job(language, ""))["run"].clone();
        assert_eq!(json!([run["code"], run["stdout"], run["stderr"]]), json!([0, "", ""]), "{language}");
    }
    let own = server.post("/v1/runs", &json!({"language": "python", "code": ""})).result();
    assert_eq!(json!([own["exit_code"], own["stdout"], own["stderr"]]), json!([0, "", ""]));
    let missing = server.post("/v1/runs", &json!({"language": "python"}));
    assert_eq!(missing.status, 400, "the control: no code is not empty code");
}

#[test]
fn pistons_aliases_mean_what_they_mean_there() {
    let server = Server::start();
    let says = |language: &str, code: &str| execute(&server, &job(language, code))["run"]["stdout"].clone();
    assert_eq!(says("sh", "[[ -n $BASH_VERSION ]] && echo bash"), json!("bash\n"));
    assert_eq!(says("dash", "echo ${BASH_VERSION:-none}"), json!("none\n"));
    assert_eq!(says("py3", "print(1)"), json!("1\n"));
    assert_eq!(says("node-js", "console.log(1)"), json!("1\n"));
    assert_eq!(says("tsc", "console.log(1 as number)"), json!("1\n"));
    let version = says("python", "import sys; print('%d.%d' % sys.version_info[:2])");
    let version = version.as_str().unwrap().trim();
    assert_eq!(says(&format!("python{version}"), "print(1)"), json!("1\n"));
    let refused = server.post("/api/v2/execute", &job("python2", "print 1"));
    assert_eq!(refused.status, 400, "the control: there is no such version");
}

#[test]
fn php_outside_its_tags_is_printed_as_there_but_a_snippet_is_a_program() {
    let server = Server::start();
    let own = |code: &str| server.post("/v1/runs", &json!({"language": "php", "code": code})).result();
    assert_eq!(own("<?php echo 1;")["stdout"], "1", "the control");
    assert_eq!(own("echo 6 * 7;")["stdout"], "42");
    assert_eq!(own("<b><?= 6 * 7 ?></b>")["stdout"], "<b>42</b>");
    assert_eq!(execute(&server, &job("php", "echo 1;"))["run"]["stdout"], "echo 1;");
    assert_eq!(execute(&server, &job("php", "<?php echo 1;"))["run"]["stdout"], "1", "the control");
}
