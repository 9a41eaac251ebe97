//! Runs that wait for a person, and people who decide: over HTTP, on the command line, and through a webhook that is told.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use belljar_ledger::approvals::{ApprovalTerms, Approvals, Own, Submission, Submitted};
use belljar_wire::{ApprovalPolicy, ApprovalRequest};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::keys::{NewKey, new_key};
use crate::server::{Answer, PATIENCE, Server};

const HOUR: Duration = Duration::from_secs(3600);

/// A server with approvals of its own.
pub(crate) struct Asking {
    pub(crate) server: Server,
    pub(crate) state: PathBuf,
    _place: tempfile::TempDir,
}

impl Asking {
    pub(crate) fn with(config: &str) -> Asking {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        Asking { server: serve(config, &state), state, _place: place }
    }

    /// What another process asks for.
    fn submit(&self, caller: &str, code: &str) -> String {
        let terms = ApprovalTerms { expire: HOUR, remember: HOUR, own: Own::Refused };
        let store = Approvals::open(&self.state, terms).unwrap();
        let run = Submission {
            digest: [u8::try_from(code.len()).unwrap(); 32],
            caller: caller.to_owned(),
            surface: "http".to_owned(),
            peer: None,
            language: "python".to_owned(),
            code: code.as_bytes().to_vec(),
            policy: ApprovalPolicy { rule: "severity = high".to_owned(), reason: "it spawns".to_owned() },
            findings: Vec::new(),
            request: ApprovalRequest { network: "none".to_owned(), ..ApprovalRequest::default() },
        };
        match store.submit(&run, SystemTime::now()).unwrap() {
            Submitted::Pending { id, .. } => id,
            Submitted::Settled(settled) => panic!("{settled:?}"),
        }
    }
}

pub(crate) fn serve(config: &str, state: &Path) -> Server {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("belljar.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
    Server::spawn_in(command, state.to_owned(), folder)
}

/// `belljar approvals`, with the configuration of the server.
pub(crate) fn approvals(asking: &Asking, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.arg("approvals").args(words).env("BELLJAR_STATE_DIR", &asking.state);
    command.env("BELLJAR_CONFIG", asking.server.config_path()).env("NO_COLOR", "1").output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn with_key(server: &Server, method: &str, path: &str, key: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("x-api-key", key)];
    server.ask(method, path, &headers, body.as_bytes())
}

pub(crate) fn ids(answer: &Answer) -> Vec<String> {
    let listed = answer.result();
    let ids = listed["approvals"].as_array().unwrap().iter();
    ids.map(|approval| approval["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_waits_is_listed_shown_and_decided_once() {
    let asking = Asking::with("[approvals]\nremember = '2h'\n");
    let server = &asking.server;
    assert_eq!(server.get("/v1/approvals").result(), json!({"approvals": [], "next_cursor": null}));
    let (first, second) = (asking.submit("uid:7", "print(1)"), asking.submit("uid:7", "print(22)"));
    assert_eq!(ids(&server.get("/v1/approvals?status=pending")), [second.clone(), first.clone()]);
    let page = server.get("/v1/approvals?limit=1");
    assert_eq!(
        (ids(&page), page.json()["next_cursor"].as_str()),
        (vec![second.clone()], Some(second.as_str()))
    );
    assert_eq!(ids(&server.get(&format!("/v1/approvals?cursor={second}"))), [first.as_str()]);
    let shown = server.get(&format!("/v1/approvals/{first}")).result();
    assert_eq!((&shown["code"], &shown["decision"]), (&json!("print(1)"), &Value::Null));

    let decided =
        server.post(&format!("/v1/approvals/{first}/approve"), &json!({"reason": "fine", "remember_s": 60}));
    let decision = &decided.result()["decision"];
    assert_eq!(
        (&decision["approved"], &decision["by"], &decision["reason"]),
        (&json!(true), &json!("anonymous"), &json!("fine"))
    );
    assert!(decision["remembered_until"].is_string(), "{decision}");
    for word in ["approve", "deny"] {
        let again = server.post(&format!("/v1/approvals/{first}/{word}"), &json!({}));
        assert_eq!(again.error(), (409, "conflict".into(), String::new()));
    }
    // A body may be left out.
    let denied = server.ask("POST", &format!("/v1/approvals/{second}/deny"), &[], b"").result();
    assert_eq!((&denied["status"], &denied["decision"]["approved"]), (&json!("denied"), &json!(false)));
    assert_eq!(ids(&server.get("/v1/approvals?status=pending")), Vec::<String>::new());
    assert_eq!(ids(&server.get("/v1/approvals?status=denied")), [second]);
}

#[test]
fn what_is_wrong_with_a_question_or_a_decision_is_said() {
    let asking = Asking::with("[approvals]\nremember = '1h'\n");
    let server = &asking.server;
    let id = asking.submit("uid:7", "print(1)");
    for forged in
        ["apr_00000000000000000000000000", "x", "%00", "..%2f", &id.to_lowercase(), &format!("{id}%20")]
    {
        assert_eq!(server.get(&format!("/v1/approvals/{forged}")).error().0, 404, "{forged}");
        let decided = server.post(&format!("/v1/approvals/{forged}/approve"), &json!({}));
        assert_eq!(decided.error().1, "not_found", "{forged}");
    }
    for (query, field) in [
        ("status=done", "status"),
        ("limit=0", "limit"),
        ("cursor=run_01J00000000000000000000000", "cursor"),
        ("q=1", "q"),
    ] {
        let wrong = server.get(&format!("/v1/approvals?{query}")).error();
        assert_eq!((wrong.0, wrong.2.as_str()), (400, field), "{query}");
    }
    let decide = |body: &Value| server.post(&format!("/v1/approvals/{id}/approve"), body).error();
    assert_eq!(decide(&json!({"remember_s": 3601})), (400, "invalid_request".into(), "remember_s".into()));
    assert_eq!(decide(&json!({"remember_s": -1})).0, 400);
    assert_eq!(decide(&json!({"reason": 5})).0, 400);
    assert_eq!(decide(&json!({"because": "x"})).0, 400);
    let plain =
        server.ask("POST", &format!("/v1/approvals/{id}/approve"), &[("content-type", "text/plain")], b"{}");
    assert_eq!(plain.status, 415);
    assert_eq!(ids(&server.get("/v1/approvals?status=pending")), [id], "nothing of this has decided");
}

#[test]
fn a_key_needs_the_right_to_decide_and_cannot_decide_its_own_runs() {
    let (boss, ci, other) = (new_key("boss"), new_key("ci"), new_key("other"));
    let right = |key: &NewKey| key.stanza.clone() + "approve = true\n";
    let asking = Asking::with(&format!("[approvals]\n\n{}{}{}", right(&boss), ci.stanza, right(&other)));
    let server = &asking.server;
    let (of_ci, of_boss) = (asking.submit("ci", "print(1)"), asking.submit("boss", "print(22)"));
    let path = |id: &str, word: &str| format!("/v1/approvals/{id}{word}");
    let get = |key: &NewKey, path: &str| with_key(server, "GET", path, &key.key, "");
    let approve = |key: &NewKey, id: &str| with_key(server, "POST", &path(id, "/approve"), &key.key, "{}");

    assert_eq!(server.get("/v1/approvals").error().0, 401);
    assert_eq!(ids(&get(&boss, "/v1/approvals")).len(), 2);
    assert_eq!(ids(&get(&ci, "/v1/approvals")), [of_ci.as_str()], "its own");
    assert_eq!(get(&ci, &path(&of_ci, "")).status, 200);
    assert_eq!(get(&ci, &path(&of_boss, "")).error().0, 404);
    assert_eq!(approve(&ci, &of_ci).error(), (403, "forbidden".into(), String::new()));
    assert_eq!(approve(&ci, &of_boss).error(), (403, "forbidden".into(), String::new()));
    assert_eq!(approve(&boss, &of_boss).error(), (403, "forbidden".into(), String::new()), "its own");
    assert_eq!(approve(&boss, &of_ci).result()["decision"]["by"], json!("boss"));
    assert_eq!(approve(&other, &of_boss).result()["decision"]["by"], json!("other"));
}

#[test]
fn a_key_may_decide_its_own_runs_where_that_is_allowed() {
    let boss = new_key("boss");
    let asking = Asking::with(&format!("[approvals]\nallow-own = true\n\n{}approve = true\n", boss.stanza));
    let id = asking.submit("boss", "print(1)");
    let approved = with_key(&asking.server, "POST", &format!("/v1/approvals/{id}/approve"), &boss.key, "");
    assert_eq!(approved.result()["status"], json!("approved"));
}

#[test]
fn the_command_line_lists_shows_and_decides() {
    let asking = Asking::with("[approvals]\n");
    let run = |words: &[&str]| approvals(&asking, words);
    assert_eq!(text(&run(&[])), "nothing waits for approval\n");
    let (first, second) = (asking.submit("uid:7", "print('\u{1b}[2J')"), asking.submit("uid:7", "x"));
    let listed = text(&run(&["list"]));
    assert!(
        listed.contains(&first) && listed.contains(&second) && listed.contains("severity = high"),
        "{listed}"
    );
    let listed: Value = serde_json::from_str(&text(&run(&["--json"]))).unwrap();
    assert_eq!(listed["approvals"].as_array().unwrap().len(), 2);
    let shown = text(&run(&["show", &first]));
    assert!(
        shown.contains("print('^[[2J')") && shown.contains("sha256:") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    let shown: Value = serde_json::from_str(&text(&run(&["show", &first, "--json"]))).unwrap();
    assert_eq!(shown["caller"], json!("uid:7"));

    assert!(
        text(&run(&["approve", &first, "--remember", "1h"])).starts_with("approved the run of uid:7, and")
    );
    let again = run(&["approve", &first]);
    assert!(
        !again.status.success() && again.stderr.starts_with(b"error: the approval was approved already"),
        "{again:?}"
    );
    let denied: Value =
        serde_json::from_str(&text(&run(&["deny", &second, "--reason", "no", "--json"]))).unwrap();
    assert_eq!(denied["decision"]["reason"], json!("no"));
    // The server sees what was decided elsewhere.
    let seen = asking.server.get(&format!("/v1/approvals/{second}")).result();
    assert_eq!(seen["status"], json!("denied"));
    assert_eq!(text(&run(&["list", "--status", "all"])).lines().count(), 3);
    for wrong in [&["show", "apr_x"][..], &["approve", "x"], &["approve", &first, "--remember", "soon"]] {
        let failed = run(wrong);
        assert!(!failed.status.success() && failed.stderr.starts_with(b"error: "), "{wrong:?}: {failed:?}");
    }
    assert!(!run(&["deny", &second]).status.success(), "a reason is needed");
}

#[test]
fn a_configuration_that_cannot_work_is_refused_at_the_start() {
    for (table, word) in [
        ("wait = '11m'", "wait of [approvals]"),
        ("expire = '0s'", "expire of [approvals]"),
        ("remember = 'long'", "remember of [approvals]"),
        ("webhook = 'http://localhost:1/'", "webhook-secret of [approvals]"),
        (
            "webhook = 'https://localhost/'\nwebhook-secret = 'sixteen bytes or more'",
            "https, which Belljar does not support",
        ),
        ("forget = '1h'", "forget"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("belljar.toml"), format!("[approvals]\n{table}\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
        let refused =
            command.current_dir(folder.path()).env("BELLJAR_STATE_DIR", folder.path()).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(word), "{table}: {said}");
        assert!(!said.contains("sixteen"), "{said}");
    }
}

/// A request that a webhook gets: its signature and its body.
type Told = (String, String);

/// A webhook that answers with these statuses, one after the other, and the requests that it gets.
fn webhook(statuses: &'static [u16]) -> (String, mpsc::Receiver<Told>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut signature, mut length) = (String::new(), 0);
            for line in reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
                let (name, value) = line.split_once(": ").unwrap_or((line.as_str(), ""));
                match name.to_lowercase().as_str() {
                    "belljar-signature" => signature = value.to_owned(),
                    "content-length" => length = value.parse().unwrap(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            tell.send((signature, String::from_utf8(body).unwrap())).unwrap();
        }
    });
    (url, told)
}

fn is_signed(signature: &str, body: &str, secret: &str) -> bool {
    let (time, code) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{time}.{body}").as_bytes());
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    expected == code
}

/// The example of docs/approvals.md: the only JSON there that has an event.
fn documented_notice() -> Value {
    let page = include_str!("../../../../docs/approvals.md");
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let notices: Vec<Value> = blocks
        .filter_map(|block| serde_json::from_str(block).ok())
        .filter(|value: &Value| value.get("event").is_some())
        .collect();
    let [notice] = notices.as_slice() else { panic!("one example of a notice is expected: {notices:?}") };
    notice.clone()
}

/// The names of all fields, also of those within others, in order.
fn keys(value: &Value) -> Vec<String> {
    let Value::Object(fields) = value else { return Vec::new() };
    let mut found: Vec<_> = fields
        .iter()
        .flat_map(|(name, field)| {
            let within = keys(field).into_iter().map(|inner| format!("{name}.{inner}"));
            std::iter::once(name.clone()).chain(within.collect::<Vec<_>>())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_webhook_is_told_of_every_change_signed_and_again_if_it_fails() {
    let secret = "what only the two know";
    let (url, told) = webhook(&[500, 200, 204]);
    let asking = Asking::with(&format!("[approvals]\nwebhook = '{url}'\nwebhook-secret = '{secret}'\n"));
    let id = asking.submit("uid:7", "print(1)");
    let next = || {
        let (signature, body) = told.recv_timeout(PATIENCE).unwrap();
        assert!(is_signed(&signature, &body, secret), "{signature} {body}");
        assert!(!is_signed(&signature, &body, "another secret") && !is_signed(&signature, "{}", secret));
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let first = next();
    assert_eq!((&first["event"], &first["approval"]["id"]), (&json!("approval.pending"), &json!(id)));
    let again = next();
    assert_eq!((&again["id"], &again["event"]), (&first["id"], &first["event"]), "it had answered with 500");
    // Another process decides.
    text(&approvals(&asking, &["approve", &id, "--reason", "fine"]));
    let decided = next();
    assert_eq!(decided["event"], json!("approval.approved"));
    assert_eq!(decided["approval"]["decision"]["reason"], json!("fine"));
    assert_eq!(keys(&decided), keys(&documented_notice()), "docs/approvals.md shows what is sent");
    let shown = asking.server.log();
    assert!(shown.contains("cannot tell the webhook") && !shown.contains(secret), "{shown}");
}
