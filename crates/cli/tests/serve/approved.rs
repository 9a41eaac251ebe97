//! Runs that need approval, from the request to the result: the real server, real boxes, and people on other ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::approvals::{Asking, approvals, ids, serve, text, with_key};
use crate::keys::{NewKey, new_key, post};
use crate::server::{Answer, Server, eventually};

/// Every run needs approval, and no answer waits for it.
const ASKING: &str = "[policy]\ndefault = 'approve'\n[approvals]\nwait = '0s'\n";

fn echo(word: &str) -> Value {
    json!({"language": "sh", "code": format!("echo {word}")})
}

/// The run and the approval that it waits for.
fn awaiting(answer: &Answer) -> (String, String) {
    let state = answer.json();
    assert_eq!((answer.status, &state["status"]), (202, &json!("awaiting_approval")), "{state}");
    let text = |name: &str| state[name].as_str().unwrap().to_owned();
    (text("id"), text("approval_id"))
}

fn end_of(server: &Server, run: &str) -> Value {
    server.get(&format!("/v1/runs/{run}?wait_ms=60000")).result()
}

fn decide(server: &Server, approval: &str, word: &str, body: &Value) -> Answer {
    server.post(&format!("/v1/approvals/{approval}/{word}"), body)
}

#[test]
fn a_run_begins_when_it_is_approved_and_not_before() {
    let asking = Asking::with(ASKING);
    let server = &asking.server;
    let (run, approval) = awaiting(&server.post("/v1/runs", &echo("yes")));
    assert_eq!(server.get(&format!("/v1/runs/{run}")).json()["status"], json!("awaiting_approval"));
    let shown = server.get(&format!("/v1/approvals/{approval}")).result();
    assert_eq!((&shown["code"], &shown["request"]["network"]), (&json!("echo yes"), &json!("none")));
    text(&approvals(&asking, &["approve", &approval]));
    let result = end_of(server, &run);
    assert_eq!((&result["status"], &result["stdout"]), (&json!("exited"), &json!("yes\n")), "{result}");
    let by = format!("uid:{}", rustix::process::getuid().as_raw());
    assert_eq!(result["decision"]["by"], json!(by), "{result}");
    assert_eq!(result["decision"]["approval_id"], json!(approval));
    // It was for this time.
    assert_ne!(awaiting(&server.post("/v1/runs", &echo("yes"))).1, approval);
}

#[test]
fn a_run_that_is_denied_says_why() {
    let asking = Asking::with(ASKING);
    let (run, approval) = awaiting(&asking.server.post("/v1/runs", &echo("no")));
    decide(&asking.server, &approval, "deny", &json!({"reason": "not on a Tuesday"})).result();
    let result = end_of(&asking.server, &run);
    assert_eq!(
        (&result["status"], &result["exit_code"], &result["stdout"]),
        (&json!("denied"), &json!(126), &json!(""))
    );
    assert!(result["stderr"].as_str().unwrap().contains("not on a Tuesday"), "{result}");
    assert_eq!(result["decision"]["by"], json!("anonymous"));
}

#[test]
fn an_answer_waits_for_a_decision_and_a_client_that_leaves_can_come_again() {
    let asking = Asking::with("[policy]\ndefault = 'approve'\n[approvals]\nwait = '10m'\n");
    let server = &asking.server;
    let body = echo("waited").to_string();
    let headers = [("content-type", "application/json")];
    let mut answers = server.send("POST", "/v1/runs", &headers, body.as_bytes());
    let pending = || ids(&server.get("/v1/approvals?status=pending"));
    eventually("the question", || !pending().is_empty());
    decide(server, &pending()[0], "approve", &json!({})).result();
    assert_eq!(Answer::read(answers).result()["stdout"], json!("waited\n"));
    answers = server.send("POST", "/v1/runs", &headers, body.as_bytes());
    eventually("the question", || !pending().is_empty());
    let asked = pending().remove(0);
    drop(answers);
    let waiting = || server.get(&format!("/v1/approvals/{asked}")).result()["waiting"].clone();
    eventually("that nobody waits any more", || waiting() == json!(0));
    decide(server, &asked, "approve", &json!({})).result();
    let again = server.post("/v1/runs", &echo("waited")).result();
    assert_eq!(again["decision"]["approval_id"], json!(asked));
}

#[test]
fn what_is_approved_is_what_runs() {
    let asking = Asking::with(ASKING);
    let server = &asking.server;
    let (_, approval) = awaiting(&server.post("/v1/runs", &echo("harmless")));
    decide(server, &approval, "approve", &json!({"remember_s": 600})).result();
    // The same again is remembered. Anything else is another question.
    let again = server.post("/v1/runs", &echo("harmless")).result();
    assert_eq!(
        (&again["stdout"], &again["decision"]["approval_id"]),
        (&json!("harmless\n"), &json!(approval))
    );
    for change in [
        json!({"code": "echo harmful"}),
        json!({"args": ["x"]}),
        json!({"stdin": "x"}),
        json!({"env": {"A": "1"}}),
        json!({"files": [{"path": "a", "content": "1"}]}),
        json!({"limits": {"timeout_ms": 5000}}),
    ] {
        let mut request = echo("harmless");
        change.as_object().unwrap().iter().for_each(|(name, value)| request[name.as_str()] = value.clone());
        assert_ne!(awaiting(&server.post("/v1/runs", &request)).1, approval, "{change}");
    }
}

#[test]
fn an_approval_expires_and_the_run_is_denied() {
    let asking = Asking::with("[policy]\ndefault = 'approve'\n[approvals]\nwait = '0s'\nexpire = '1s'\n");
    let (run, approval) = awaiting(&asking.server.post("/v1/runs", &echo("late")));
    let result = end_of(&asking.server, &run);
    assert_eq!(
        (&result["status"], &result["decision"]["by"]),
        (&json!("denied"), &json!("nobody")),
        "{result}"
    );
    assert_eq!(decide(&asking.server, &approval, "approve", &json!({})).error().0, 409);
}

/// Ends a server in this way, decides, and asks again.
fn survives(end: impl Fn(&mut Server)) {
    let mut asking = Asking::with(ASKING);
    let (_, approval) = awaiting(&asking.server.post("/v1/runs", &echo("again")));
    end(&mut asking.server);
    asking.server = restarted(&asking.state);
    // The same request waits for the same approval.
    let (run, same) = awaiting(&asking.server.post("/v1/runs", &echo("again")));
    assert_eq!(same, approval);
    end(&mut asking.server);
    text(&approvals(&asking, &["approve", &approval]));
    asking.server = restarted(&asking.state);
    assert_eq!(asking.server.get(&format!("/v1/runs/{run}")).status, 404, "runs do not survive");
    let result = asking.server.post("/v1/runs", &echo("again")).result();
    assert_eq!(
        (&result["stdout"], &result["decision"]["approval_id"]),
        (&json!("again\n"), &json!(approval))
    );
    assert_ne!(awaiting(&asking.server.post("/v1/runs", &echo("again"))).1, approval, "once");
}

fn restarted(state: &Path) -> Server {
    serve(ASKING, state)
}

#[test]
fn approvals_survive_a_restart() {
    survives(|server| {
        server.signal(Signal::TERM);
        server.wait();
    });
}

#[test]
fn approvals_survive_a_server_that_is_killed() {
    survives(|server| {
        kill_process(server.pid(), Signal::KILL).unwrap();
        server.wait();
    });
}

#[test]
fn of_two_servers_that_decide_at_once_one_wins() {
    let asking = Asking::with(ASKING);
    let other = restarted(&asking.state);
    for round in 0..5 {
        let (run, approval) = awaiting(&asking.server.post("/v1/runs", &echo(&format!("round{round}"))));
        let (yes, no) = std::thread::scope(|scope| {
            let yes = scope.spawn(|| decide(&asking.server, &approval, "approve", &json!({})));
            let no = scope.spawn(|| decide(&other, &approval, "deny", &json!({})));
            (yes.join().unwrap(), no.join().unwrap())
        });
        let mut statuses = [yes.status, no.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
        let expected = if yes.status == 200 { "exited" } else { "denied" };
        assert_eq!(end_of(&asking.server, &run)["status"], json!(expected));
    }
}

#[test]
fn nobody_approves_a_run_of_their_own_and_the_record_says_who_did() {
    let (boss, ci) = (new_key("boss"), new_key("ci"));
    let right = |key: &NewKey| format!("{}approve = true\naudit = true\n", key.stanza);
    let config = format!("{ASKING}[audit]\nenabled = true\n{}{}", right(&boss), right(&ci));
    let asking = Asking::with(&config);
    let server = &asking.server;
    let (run, approval) = awaiting(&post(server, &ci.key, &echo("mine")));
    let approve =
        |key: &NewKey| with_key(server, "POST", &format!("/v1/approvals/{approval}/approve"), &key.key, "");
    assert_eq!(approve(&ci).error(), (403, "forbidden".into(), String::new()));
    assert_eq!(approve(&boss).status, 200);
    let get = |path: &str| with_key(server, "GET", path, &ci.key, "");
    let result = get(&format!("/v1/runs/{run}?wait_ms=60000")).result();
    assert_eq!((&result["stdout"], &result["decision"]["by"]), (&json!("mine\n"), &json!("boss")));
    let path = format!("/v1/audit/{run}");
    eventually("the record", || get(&path).status == 200);
    let record = get(&path).result();
    assert_eq!(record["decider"], json!("boss"), "{record}");
}

#[test]
fn too_many_questions_of_one_caller_are_refused() {
    let asking = Asking::with(ASKING);
    for number in 0..32 {
        awaiting(&asking.server.post("/v1/runs", &echo(&number.to_string())));
    }
    let refused = asking.server.post("/v1/runs", &echo("more")).result();
    assert_eq!(refused["status"], json!("denied"));
    assert!(refused["stderr"].as_str().unwrap().contains("32 approvals"), "{refused}");
}

#[test]
fn without_a_terminal_the_command_line_waits_for_somebody_to_decide() {
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("belljar.toml");
    fs::write(&config, ASKING).unwrap();
    let belljar = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(words).env("BELLJAR_STATE_DIR", state.path()).env("BELLJAR_CONFIG", &config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let pending = || {
        let listed = text(&belljar(&["approvals", "--json"]).output().unwrap());
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["approvals"][0]["id"].as_str().map(str::to_owned)
    };
    for (word, code) in [("approve", 0), ("deny", 126)] {
        let run = belljar(&["run", "sh", "-c", &format!("echo {word}")]).spawn().unwrap();
        eventually("the question", || pending().is_some());
        let id = pending().unwrap();
        text(&belljar(&["approvals", word, &id, "--reason", "a test"]).output().unwrap());
        let ended = run.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains(&format!("belljar approvals show {id}")), "{said}");
        assert_eq!(ended.stdout == b"approve\n", code == 0);
    }
}

#[test]
fn a_remembered_decision_holds_until_it_is_revoked() {
    let (boss, ci) = (new_key("boss"), new_key("ci"));
    let config = format!("{ASKING}{}approve = true\n{}", boss.stanza, ci.stanza);
    let asking = Asking::with(&config);
    let server = &asking.server;
    let at = |key: &NewKey, path: &str, body: &str| with_key(server, "POST", path, &key.key, body);
    for revoke_by in ["http", "cli"] {
        let (run, approval) = awaiting(&post(server, &ci.key, &echo(revoke_by)));
        let path = |word: &str| format!("/v1/approvals/{approval}/{word}");
        assert_eq!(at(&boss, &path("revoke"), "").error().0, 409, "nobody has decided");
        assert_eq!(at(&boss, &path("approve"), r#"{"remember_s": 600}"#).status, 200);
        let done = with_key(server, "GET", &format!("/v1/runs/{run}?wait_ms=60000"), &ci.key, "").result();
        assert_eq!(done["stdout"], json!(format!("{revoke_by}\n")));
        assert_eq!(
            post(server, &ci.key, &echo(revoke_by)).result()["status"],
            json!("exited"),
            "the control"
        );
        let listed = |path: &str| ids(&with_key(server, "GET", path, &boss.key, ""));
        assert_eq!(listed("/v1/approvals?remembered=true"), [approval.as_str()]);
        assert!(text(&approvals(&asking, &["list", "--remembered"])).contains(&approval));
        assert_eq!(at(&ci, &path("revoke"), "").error().0, 403, "who may not approve may not revoke");
        assert_eq!(at(&boss, &path("revoke"), r#"{"remember_s": 1}"#).error().2, "remember_s");
        match revoke_by {
            "http" => assert_eq!(at(&boss, &path("revoke"), r#"{"reason": "enough"}"#).status, 200),
            _ => assert!(text(&approvals(&asking, &["revoke", &approval])).starts_with("revoked; ")),
        }
        assert_eq!(listed("/v1/approvals?remembered=true"), Vec::<String>::new());
        assert_eq!(text(&approvals(&asking, &["list", "--remembered"])), "no decision is remembered\n");
        assert_ne!(awaiting(&post(server, &ci.key, &echo(revoke_by))).1, approval, "it is asked for again");
    }
}

#[test]
fn what_waits_for_a_person_does_not_hold_up_the_end_of_a_server() {
    let mut asking = Asking::with(&format!("{ASKING}[server]\ndrain = '1h'\n"));
    awaiting(&asking.server.post("/v1/runs", &echo("late")));
    asking.server.signal(Signal::TERM);
    asking.server.wait();
}
