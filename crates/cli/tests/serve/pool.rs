//! The warm pool: its boxes are used, only the time of a run differs, and they are removed in the end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::server::{Answer, Server, eventually};

const PYTHON: &str = "[pool.languages.python]\nmin = 2\nmax = 4\n";

/// What the pool says of a language.
pub(crate) fn pool_of(server: &Server, language: &str) -> Value {
    let pool = server.get("/v1/pool").result();
    let of = |row: &&Value| row["language"] == language;
    pool["languages"].as_array().unwrap().iter().find(of).cloned().unwrap_or_default()
}

/// Runs in a box that has been waiting.
pub(crate) fn run_warm(server: &Server, body: &Value) -> Value {
    let language = body["language"].as_str().unwrap();
    eventually("a box waits", || pool_of(server, language)["ready"].as_u64() > Some(0));
    let result = server.post("/v1/runs", body).result();
    assert_eq!(result["start"], json!("warm"), "{result}");
    result
}

pub(crate) fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

pub(crate) fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Every process that a process has started, and theirs.
pub(crate) fn descendants(of: Pid) -> Vec<Pid> {
    let parent_of = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all: Vec<(i32, i32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = vec![of.as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(one) = found.get(at).copied() {
        found.extend(all.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// The runtimes that wait beneath a server, by a word of their command line.
pub(crate) fn waiting(server: &Server, word: &str) -> Vec<Pid> {
    let has_word = |pid: &Pid| {
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    };
    descendants(server.pid()).into_iter().filter(has_word).collect()
}

/// Kills processes and waits for them to be dead; their parent need not have noticed yet.
pub(crate) fn kill_all(pids: &[Pid]) {
    for pid in pids {
        let _ = kill_process(*pid, Signal::KILL);
    }
    eventually("they are dead", || !pids.iter().any(|pid| lives(*pid)));
}

pub(crate) fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

/// The cgroups that belong to a server.
pub(crate) fn cgroups(server: Pid) -> Vec<PathBuf> {
    let mark = format!("box-{}-", server.as_raw_nonzero());
    let (mut found, mut pending) = (Vec::new(), vec![(PathBuf::from("/sys/fs/cgroup"), 0)]);
    while let Some((dir, depth)) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir())
        {
            if entry.file_name().to_string_lossy().contains(&mark) {
                found.push(entry.path());
            } else if depth < 5 {
                pending.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

#[test]
fn a_run_finds_a_box_that_waits_and_its_result_is_that_of_a_cold_one() {
    let server = Server::with(PYTHON, &[]);
    let cold = Server::with("[pool]\nenabled = false\n", &[]);
    let body = python("import sys\nprint(6 * 7)\nprint('no', file=sys.stderr)\nsys.exit(3)");
    let mut warm = run_warm(&server, &body);
    let mut other = cold.post("/v1/runs", &body).result();
    assert_eq!(other["start"], json!("cold"));
    for result in [&mut warm, &mut other] {
        for varying in ["id", "start", "usage"] {
            result.as_object_mut().unwrap().remove(varying).unwrap();
        }
    }
    assert_eq!(warm, other);
    assert_eq!(cold.get("/v1/pool").result()["enabled"], json!(false));
}

#[test]
fn what_is_not_said_of_pools_keeps_a_box_of_the_usual_languages() {
    let server = Server::start();
    for (language, code) in [("python", "print(1)"), ("javascript", "console.log(1)"), ("bash", "echo 1")] {
        let result = run_warm(&server, &json!({"language": language, "code": code}));
        assert_eq!(result["stdout"], json!("1\n"));
    }
}

#[test]
fn a_request_that_no_waiting_box_can_take_is_run_cold_and_costs_none_of_them() {
    let server = Server::with(PYTHON, &[]);
    let ready = || pool_of(&server, "python")["ready"].as_u64() == Some(2);
    eventually("the boxes wait", ready);
    let requests = [
        json!({"limits": {"memory_bytes": 4 << 20}}),
        json!({"files": [{"path": "main.py/x", "content": ""}]}),
        json!({"limits": {"pids": 51}}),
    ];
    for more in &requests {
        let result = server.post("/v1/runs", &with(python("print(1)"), more)).result();
        assert_eq!(result["start"], json!("cold"), "{more}");
        assert!(result["cold_reason"].is_string(), "{result}");
    }
    let pool = pool_of(&server, "python");
    assert_eq!(
        (&pool["losses"], &pool["unfit"], ready()),
        (&json!(0), &json!(requests.len()), true),
        "{pool}"
    );
}

#[test]
fn a_limit_below_what_a_runtime_has_already_is_kept_by_not_using_its_box() {
    let server = Server::with("[pool.languages.javascript]\nmin = 1\n", &[]);
    let limited = |pids: u64| {
        eventually("a box waits", || pool_of(&server, "javascript")["ready"].as_u64() > Some(0));
        let limits = json!({"pids": pids, "timeout_ms": 1500});
        server.post("/v1/runs", &json!({"language": "javascript", "code": "1", "limits": limits})).result()
    };
    assert_eq!(limited(40)["start"], json!("warm"), "the control");
    assert_eq!(limited(3)["start"], json!("cold"));
}

#[test]
fn standard_input_files_and_files_that_are_brought_back_reach_a_box_that_waited() {
    let server = Server::with(PYTHON, &[]);
    let code = "import os, sys\n\
                print(sys.stdin.read(), open('a/b/in.txt').read())\n\
                print(oct(os.stat('tool').st_mode), os.stat('a/b').st_uid, os.stat('a/b/in.txt').st_gid)\n\
                open('out.bin', 'wb').write(b'\\xff')\n\
                open('a/b/in.txt', 'a').write('mine')";
    let more = json!({
        "stdin": "read",
        "files": [{"path": "a/b/in.txt", "content": "file"}, {"path": "tool", "content": "x", "executable": true}],
        "collect": ["*.bin", "a/b/*", "main.py"],
    });
    let result = run_warm(&server, &with(python(code), &more));
    assert_eq!(result["stdout"], json!("read file\n0o100755 1000 1000\n"), "{result}");
    let paths: Vec<_> = result["files"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
    assert_eq!(paths, ["a/b/in.txt", "main.py", "out.bin"]);
    let large = "x".repeat(300_000);
    let count = with(python("import sys; print(len(sys.stdin.read()))"), &json!({"stdin": large}));
    assert_eq!(run_warm(&server, &count)["stdout"], json!("300000\n"));
    let long = python(&format!("{}\nprint('end')", "# comment\n".repeat(20_000)));
    assert_eq!(run_warm(&server, &long)["stdout"], json!("end\n"));
}

#[test]
fn limits_of_the_request_hold_in_a_box_that_was_made_with_others() {
    let server = Server::with(PYTHON, &[]);
    let limited =
        |code: &str, limits: Value| run_warm(&server, &with(python(code), &json!({ "limits": limits })));
    let hungry = "x = bytearray(100 << 20)\nprint(len(x))";
    assert_eq!(limited(hungry, json!({"memory_bytes": 64 << 20}))["status"], json!("out_of_memory"));
    assert_eq!(limited(hungry, json!({}))["status"], json!("exited"));
    let hungrier = "x = bytearray(300 << 20)\nprint(len(x))";
    assert_eq!(limited(hungrier, json!({}))["status"], json!("out_of_memory"));
    assert_eq!(limited(hungrier, json!({"memory_bytes": 512 << 20}))["status"], json!("exited"));
    let forks = "import os, time\n\
                 n = 0\n\
                 try:\n    while n < 200:\n        if os.fork() == 0:\n            time.sleep(9)\n        n += 1\n\
                 except OSError:\n    pass\n\
                 print(n, flush=True)\nos.kill(-1, 9)\nos._exit(0)";
    assert_eq!(limited(forks, json!({"pids": 10}))["stdout"], json!("9\n"));
    // To raise this one takes a right that not every host gives; without it, the run is a cold one.
    let more = with(python(forks), &json!({"limits": {"pids": 100}}));
    assert_eq!(server.post("/v1/runs", &more).result()["stdout"], json!("99\n"));
    let burns = "while True: pass";
    let burned = limited(burns, json!({"cpu_ms": 300, "timeout_ms": 20_000}));
    assert_eq!(burned["status"], json!("timed_out"));
    assert!(burned["usage"]["cpu_ms"].as_f64() >= Some(300.0), "{burned}");
    let slow = limited("print(1, flush=True)\nimport time; time.sleep(60)", json!({"timeout_ms": 300}));
    assert_eq!((&slow["status"], &slow["stdout"]), (&json!("timed_out"), &json!("1\n")));
    let chatty = limited("print('x' * 100000)", json!({"output_bytes": 100}));
    assert_eq!(chatty["stdout_truncated"], json!(true));
}

#[test]
fn what_a_box_cannot_be_given_any_more_is_run_cold_and_not_refused() {
    let server = Server::with(PYTHON, &[]);
    for (more, why) in [
        (json!({"env": {"TZ": "CET"}}), "env"),
        (json!({"env": {"PYTHONPATH": "/tmp"}}), "env"),
        (json!({"limits": {"disk_bytes": 1 << 20}}), "limits.disk_bytes"),
        (json!({"files": [{"path": "main.py", "content": "x = 1"}]}), "name"),
        (json!({"files": [{"path": ".local/lib/x", "content": "x"}]}), "name"),
    ] {
        eventually("a box waits", || pool_of(&server, "python")["ready"].as_u64() > Some(0));
        let result = server.post("/v1/runs", &with(python("print(1)"), &more)).result();
        assert_eq!((&result["start"], &result["stdout"]), (&json!("cold"), &json!("1\n")), "{more}");
        assert!(result["cold_reason"].as_str().is_some_and(|said| said.contains(why)), "{result}");
    }
    let declared = python("# -*- coding: latin-1 -*-\nprint('\u{e4}')");
    assert_eq!(server.post("/v1/runs", &declared).result()["start"], json!("cold"));
    let unfit = pool_of(&server, "python")["unfit"].as_u64().unwrap();
    assert_eq!(unfit, 6);
    assert_eq!(run_warm(&server, &python("print(1)"))["stdout"], json!("1\n"), "the control");
}

#[test]
fn large_files_reach_a_box_that_waited_and_are_charged_to_it() {
    let server = Server::with(PYTHON, &[]);
    let deep = format!("{}x", "a/".repeat(100));
    let code = format!(
        "import os\n\
         large, deep = os.stat('d/large'), os.stat('{deep}')\n\
         print(large.st_size, oct(large.st_mode), large.st_uid, deep.st_gid, oct(os.stat('d').st_mode))\n\
         print(open('d/large').read() == 'x' * (6 << 20), len(os.listdir('many')))\n\
         open('d/large', 'a').write('mine')\nos.remove('d/large')"
    );
    let mut files = vec![json!({"path": "d/large", "content": "x".repeat(6 << 20), "executable": true})];
    files.push(json!({"path": deep, "content": ""}));
    files.extend((0..500).map(|number| json!({"path": format!("many/{number}"), "content": ""})));
    let result = run_warm(&server, &with(python(&code), &json!({"files": files})));
    assert_eq!(result["stdout"], json!("6291456 0o100755 1000 1000 0o40755\nTrue 500\n"), "{result}");
    assert_eq!(result["cold_reason"], Value::Null);
    let with_file = result["usage"]["memory_peak_bytes"].as_u64().unwrap();
    let without = run_warm(&server, &python("print(1)"))["usage"]["memory_peak_bytes"].as_u64().unwrap();
    assert!(with_file >= without + (6 << 20), "{with_file} and {without}");
}

#[test]
fn a_file_that_would_not_leave_room_for_the_runtime_spoils_no_box() {
    let server = Server::with(PYTHON, &[]);
    let ready = || pool_of(&server, "python")["ready"].as_u64() == Some(2);
    eventually("the boxes wait", ready);
    let files = json!([{"path": "large", "content": "x".repeat(10 << 20)}]);
    let more = |memory: u64| json!({"files": files, "limits": {"memory_bytes": memory}});
    let result = server.post("/v1/runs", &with(python("print(1)"), &more(16 << 20))).result();
    assert_eq!(result["start"], json!("cold"), "{result}");
    assert!(ready(), "{}", pool_of(&server, "python"));
    let control = run_warm(&server, &with(python("print(1)"), &more(64 << 20)));
    assert_eq!(control["stdout"], json!("1\n"), "the control");
    let hungry = python("x = bytearray(58 << 20)\nprint(len(x))");
    assert_eq!(run_warm(&server, &with(hungry, &more(64 << 20)))["status"], json!("out_of_memory"));
}

#[test]
fn a_box_is_used_once() {
    let server = Server::with("[pool.languages.python]\nmin = 1\nmax = 1\n", &[]);
    let code = "import os\n\
                for path in ['/sandbox/mark', '/tmp/mark', '/dev/shm/mark']:\n    print(os.path.exists(path))\n    \
                open(path, 'w').write('x')\n\
                print(os.urandom(8).hex(), __import__('random').random())";
    let runs: Vec<String> =
        (0..4).map(|_| run_warm(&server, &python(code))["stdout"].as_str().unwrap().to_owned()).collect();
    let mut random = std::collections::BTreeSet::new();
    for run in &runs {
        let (found, rest) = run.split_at("False\n".len() * 3);
        assert_eq!(found, "False\n".repeat(3));
        random.extend(rest.split_whitespace().map(str::to_owned));
    }
    assert_eq!(random.len(), runs.len() * 2, "seeds are a box's own: {runs:?}");
}

#[test]
fn a_box_that_waited_holds_nothing_of_another_run() {
    let server = Server::with("[pool.languages.python]\nmin = 2\nmax = 2\n", &[]);
    let secret = format!("planted-{}-here", std::process::id());
    let planted = with(
        python(&format!("secret = '{secret}'\nopen('/tmp/x', 'w').write(secret)\nprint(len(secret))")),
        &json!({"stdin": secret, "files": [{"path": "secret.txt", "content": secret}]}),
    );
    // What is looked for is spelled so that looking for it does not put it into memory; the control is there.
    let code =
        include_str!("pool/look_through_memory.py").replace("SECRET", &secret.replace("here", "he[r]e"));
    for _ in 0..2 {
        assert_eq!(run_warm(&server, &planted)["stdout"], json!(format!("{}\n", secret.len())));
    }
    let result = run_warm(&server, &python(&code));
    assert_eq!(result["stdout"], json!("['control'] ['main.py']\n['2']\n"), "{result}");
}

#[test]
fn a_warm_run_is_told_as_it_happens_and_can_be_cancelled() {
    let server = Server::with(PYTHON, &[]);
    eventually("a box waits", || pool_of(&server, "python")["ready"].as_u64() > Some(0));
    let body = with(
        python("import os, time\nos.write(1, b'ready\\n')\ntime.sleep(300)"),
        &json!({"limits": {"timeout_ms": 300_000}}),
    );
    let mut events = server.stream(&body);
    let (_, start) = events.next().unwrap();
    assert_eq!(start["start"], json!("warm"), "{start}");
    assert_eq!(events.next().unwrap(), ("stdout".into(), json!({"text": "ready\n"})));
    let path = format!("/v1/runs/{}/cancel", start["id"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({})).status, 202);
    let (_, end) = events.all().pop().unwrap();
    assert_eq!(end["status"], json!("cancelled"));
}

#[test]
fn boxes_that_are_killed_while_they_wait_cost_nobody_a_run() {
    let server = Server::with(PYTHON, &[]);
    for round in 0..3 {
        eventually("boxes wait", || waiting(&server, "/sandbox/main.py").len() >= 2);
        kill_all(&waiting(&server, "/sandbox/main.py"));
        let result = server.post("/v1/runs", &python("print(1)")).result();
        assert_eq!(result["stdout"], json!("1\n"), "round {round}: {result}");
    }
    kill_all(&descendants(server.pid()));
    assert_eq!(server.post("/v1/runs", &python("print(2)")).result()["stdout"], json!("2\n"));
    eventually("they are counted", || pool_of(&server, "python")["losses"].as_u64() > Some(0));
    run_warm(&server, &python("print(3)"));
}

#[test]
fn more_wait_after_a_burst_and_no_more_than_may() {
    let server = Server::with("[server]\nslots = 8\n[pool.languages.sh]\nmin = 1\nmax = 3\n", &[]);
    let body = json!({"language": "sh", "code": "echo 1"});
    eventually("one waits", || pool_of(&server, "sh")["ready"] == json!(1));
    let asked: Vec<_> = (0..8)
        .map(|_| {
            let headers = [("content-type", "application/json")];
            server.send("POST", "/v1/runs", &headers, body.to_string().as_bytes())
        })
        .collect();
    for stream in asked {
        assert_eq!(Answer::read(stream).result()["stdout"], json!("1\n"));
    }
    eventually("three wait", || pool_of(&server, "sh")["ready"] == json!(3));
    let pool = pool_of(&server, "sh");
    assert_eq!(pool["hits"].as_u64().unwrap() + pool["misses"].as_u64().unwrap(), 8);
    assert_eq!(pool["target"], json!(3));
}

#[test]
fn a_budget_of_memory_bounds_what_waits_and_age_replaces_it() {
    let config = "[pool]\nmemory = '20M'\nmax-age = '1s'\n[pool.languages.python]\nmin = 32\nmax = 32\n";
    let server = Server::with(config, &[]);
    eventually("some wait", || pool_of(&server, "python")["ready"].as_u64() >= Some(2));
    eventually("old ones are replaced", || pool_of(&server, "python")["refills"].as_u64() > Some(10));
    let pool = server.get("/v1/pool").result();
    assert!(pool["memory_bytes"].as_u64() <= pool["memory_limit_bytes"].as_u64(), "{pool}");
    assert!(pool["languages"][0]["ready"].as_u64() < Some(32), "{pool}");
}

#[test]
fn boxes_that_wait_go_with_the_server_however_it_ends() {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut server =
            Server::with("[pool.languages.python]\nmin = 4\n[pool.languages.bash]\nmin = 4\n", &[]);
        eventually("they wait", || {
            waiting(&server, "/sandbox/main.py").len() >= 4
                && waiting(&server, "/sandbox/main.bash").len() >= 4
        });
        let (boxes, pid) = (descendants(server.started()), server.started());
        assert!(boxes.len() >= 16, "keepers and runtimes: {boxes:?}");
        assert!(rustix::process::geteuid().as_raw() != 0 || !cgroups(pid).is_empty(), "the control");
        server.signal(signal);
        server.wait();
        eventually("all are gone", || !boxes.iter().any(|pid| lives(*pid)));
        eventually("their cgroups, too", || cgroups(pid).is_empty());
    }
}

#[test]
fn the_command_line_shows_the_pool_of_a_server() {
    let server = Server::with(PYTHON, &[]);
    run_warm(&server, &python("print(1)"));
    let ask = |options: &[&str]| {
        let url = format!("http://{}", server.address);
        let command = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(["pool", "--url", &url])
            .args(options)
            .env_remove("BELLJAR_API_KEY")
            .output()
            .unwrap();
        (command.status.code(), String::from_utf8(command.stdout).unwrap())
    };
    let (code, table) = ask(&[]);
    assert_eq!(code, Some(0));
    assert!(table.starts_with("LANGUAGE") && table.contains("\npython "), "{table}");
    let json: Value = serde_json::from_str(&ask(&["--json"]).1).unwrap();
    assert_eq!(json["languages"][0]["hits"], json!(1));
    let nobody = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["pool", "--url", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(2));
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.starts_with("error: cannot reach the server at http://127.0.0.1:1"), "{said}");
    assert!(said.contains("hint: start a server with `belljar serve`"), "{said}");
}

#[test]
fn a_pool_is_for_those_who_have_a_key() {
    let hash = "ab".repeat(32);
    let server = Server::with(&format!("{PYTHON}[[keys]]\nname = 'a'\nsha256 = '{hash}'\n"), &[]);
    assert_eq!(server.get("/v1/pool").error().0, 401);
    let asked = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["pool", "--json", "--url", &format!("http://{}", server.address)])
        .env("BELLJAR_API_KEY", "wrong")
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(said["error"]["code"], json!("unauthorized"));
}

#[test]
fn a_pool_that_cannot_be_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("belljar.toml"), "[pool.languages.rust]\nmin = 1\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("rust of [pool.languages] in belljar.toml: rust cannot be in the warm pool"),
        "{said}"
    );
}

#[test]
fn the_metrics_count_what_the_pool_does() {
    let server = Server::with(PYTHON, &[]);
    run_warm(&server, &python("print(1)"));
    let text = String::from_utf8(server.get("/metrics").body).unwrap();
    for line in [
        r#"belljar_pool_hits_total{language="python"} 1"#,
        r#"belljar_pool_misses_total{language="python"} 0"#,
        r#"belljar_pool_ready{language="python"}"#,
        r#"belljar_pool_memory_bytes{language="python"}"#,
        r#"belljar_pool_refill_seconds_total{language="python"}"#,
        r#"belljar_runs_total{language="python",backend="native",status="exited",start="warm"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn an_interpreter_that_is_replaced_is_not_run_from_a_box_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let copied = folder.path().join("bash");
    let copy = || {
        // A new file, as an upgrade makes it: the old one is still being run.
        let new = folder.path().join("new");
        fs::copy("/bin/bash", &new).unwrap();
        fs::rename(&new, &copied).unwrap();
    };
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    copy();
    let config =
        format!("[runtimes]\nbash = '{}'\n[pool.languages.bash]\nmin = 1\nmax = 1\n", copied.display());
    let server = Server::with(&config, &[]);
    // Says which file is being run.
    let body = json!({"language": "bash", "code": "stat -Lc %i /proc/$$/exe"});
    let there = || json!(format!("{}\n", fs::metadata(&copied).unwrap().ino()));
    let old = there();
    assert_eq!(run_warm(&server, &body)["stdout"], old, "the control");
    eventually("one waits", || pool_of(&server, "bash")["ready"] == json!(1));
    copy();
    assert_ne!(there(), old, "the control");
    // Cold, unless the server has noticed by itself by now.
    let result = server.post("/v1/runs", &body).result();
    assert_eq!(result["stdout"], there(), "{result}");
    assert_eq!(run_warm(&server, &body)["stdout"], there());
}
