//! Runs that go on without the client that started them: accepted, listed, followed, fetched.

use std::collections::HashSet;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::keys::new_key;
use crate::server::{Answer, Events, PATIENCE, Server, alive, eventually, mark, sleeper};

const JSON: (&str, &str) = ("content-type", "application/json");
const ASYNC: (&str, &str) = ("prefer", "respond-async");

fn submit(server: &Server, body: &Value) -> Answer {
    server.ask("POST", "/v1/runs", &[JSON, ASYNC], body.to_string().as_bytes())
}

/// The identifier of a run that was accepted.
fn id_of(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{}", String::from_utf8_lossy(&accepted.body));
    accepted.json()["id"].as_str().unwrap().to_owned()
}

fn wait_for(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}?wait_ms={}", PATIENCE.as_millis())).result()
}

fn follow(server: &Server, id: &str) -> Events {
    server.follow(&format!("/v1/runs/{id}/events"), &[])
}

fn listed(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/runs?{query}")).result()["runs"].as_array().unwrap().clone()
}

fn ids(runs: &[Value]) -> Vec<String> {
    runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// What a stream of events says of one of the two streams of output.
fn text(events: &[(String, Value)], stream: &str) -> String {
    let of = events.iter().filter(|(name, _)| name == stream);
    of.map(|(_, data)| data["text"].as_str().unwrap()).collect()
}

#[test]
fn a_run_is_accepted_at_once_and_its_result_fetched_later() {
    let server = Server::start();
    let accepted = submit(&server, &json!({"language": "python", "code": "print(6 * 7)"}));
    let id = id_of(&accepted);
    assert_eq!(accepted.headers["location"], format!("/v1/runs/{id}"));
    assert_eq!(
        (&accepted.headers["x-run-id"], &accepted.headers["preference-applied"]),
        (&id, &"respond-async".into())
    );
    assert!(["queued", "running", "exited"].contains(&accepted.json()["status"].as_str().unwrap()));
    let result = wait_for(&server, &id);
    assert_eq!((&result["id"], &result["stdout"]), (&json!(id), &json!("42\n")));
    assert_eq!(server.get(&accepted.headers["location"]).result(), result, "and it is kept");
}

#[test]
fn a_run_goes_on_when_its_client_has_gone() {
    let (server, mark) = (Server::start(), mark());
    let id = id_of(&submit(&server, &sleeper(&mark)));
    let mut follower = follow(&server, &id);
    while follower.next().unwrap().0 != "stdout" {}
    let path = format!("/v1/runs/{id}");
    let running = server.get(&format!("{path}?wait_ms=50"));
    assert_eq!((running.status, running.json()), (202, json!({"id": id, "status": "running"})));
    assert_eq!(alive(&mark), 1, "neither who started it nor who asks after it takes it away");
    assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).json()["status"], json!("running"));
    let result = wait_for(&server, &id);
    assert_eq!((&result["status"], &result["stdout"]), (&json!("cancelled"), &json!("ready\n")));
    assert_eq!(alive(&mark), 0);
    assert_eq!(follow(&server, &id).all().pop().unwrap(), ("end".into(), result), "its events end as it did");
}

#[test]
fn what_cannot_be_accepted_is_refused_as_ever() {
    let server = Server::start();
    let unknown = submit(&server, &json!({"language": "cobol", "code": "1"}));
    assert_eq!(unknown.error(), (400, "invalid_request".into(), "language".into()));
    assert!(!unknown.headers.contains_key("x-run-id"), "there was no run");
}

#[test]
fn every_answer_to_a_run_says_which_run_it_was() {
    let server = Server::start();
    let body = json!({"language": "sh", "code": "true"}).to_string();
    for accept in ["application/json", "text/event-stream"] {
        let answer = server.ask("POST", "/v1/runs", &[JSON, ("accept", accept)], body.as_bytes());
        assert_eq!(answer.status, 200);
        let id = &answer.headers["x-run-id"];
        assert!(String::from_utf8_lossy(&answer.body).contains(id.as_str()), "{accept}");
        assert_eq!(server.get(&format!("/v1/runs/{id}")).status, 200);
    }
}

#[test]
fn any_number_of_clients_follow_a_run_and_all_hear_the_same() {
    let (server, mark) = (Server::start(), mark());
    let code = "import sys, time\nfor i in range(3):\n    print(i, flush=True)\n    print('no', file=sys.stderr, flush=True)\nprint('ready', flush=True)\ntime.sleep(300)";
    let body = json!({"language": "python", "code": code, "args": [mark], "limits": {"timeout_ms": 300_000, "disk_bytes": 33_000_000}});
    let id = id_of(&submit(&server, &body));
    let mut followers: Vec<Events> = (0..20).map(|_| follow(&server, &id)).collect();
    let mut heard: Vec<Vec<(String, Value)>> = Vec::new();
    for follower in &mut followers {
        let mut events = Vec::new();
        while !text(&events, "stdout").ends_with("ready\n") {
            events.push(follower.next().unwrap());
        }
        heard.push(events);
    }
    drop(followers.pop());
    assert_eq!(alive(&mark), 1, "a follower that leaves takes nothing with it");
    assert_eq!(server.post(&format!("/v1/runs/{id}/cancel"), &json!({})).status, 202);
    for (events, follower) in heard.iter_mut().zip(followers) {
        events.extend(follower.all());
    }
    heard.pop();
    heard.push(follow(&server, &id).all());
    for events in &heard {
        assert_eq!((events[0].0.as_str(), &events[0].1["id"]), ("start", &json!(id)));
        assert_eq!(text(events, "stdout"), "0\n1\n2\nready\n");
        assert_eq!(text(events, "stderr"), "no\n".repeat(3));
        let (name, end) = events.last().unwrap();
        assert_eq!((name.as_str(), &end["status"]), ("end", &json!("cancelled")));
    }
}

#[test]
fn a_run_that_was_waited_for_can_be_followed_afterwards() {
    let server = Server::start();
    let code = "echo one; echo two >&2; sleep 0.1; echo three";
    let streamed = server.stream(&json!({"language": "sh", "code": code})).all();
    let id = streamed[0].1["id"].as_str().unwrap().to_owned();
    let again = follow(&server, &id).all();
    assert_eq!((again.first(), again.last()), (streamed.first(), streamed.last()));
    assert_eq!((text(&again, "stdout"), text(&again, "stderr")), ("one\nthree\n".into(), "two\n".into()));
    let waited = server.post("/v1/runs", &json!({"language": "sh", "code": "echo one"})).result();
    let events = follow(&server, waited["id"].as_str().unwrap()).all();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["start", "stdout", "end"]);
    assert_eq!(events[2].1, waited);
}

#[test]
fn followers_that_do_not_read_are_counted_and_bounded() {
    let server = Server::with("[server]\nmax-body = '1M'\nbody-memory = '1M'\n", &[]);
    let code = "import time\nprint('x' * 300000, flush=True)\ntime.sleep(300)";
    let mark = mark();
    let body = json!({"language": "python", "code": code, "args": [mark], "limits": {"timeout_ms": 300_000, "disk_bytes": 33_000_000}});
    let id = id_of(&submit(&server, &body));
    eventually("it runs", || alive(&mark) == 1);
    let path = format!("/v1/runs/{id}/events");
    let idle: Vec<_> = (0..30).map(|_| server.send("GET", &path, &[], b"")).collect();
    let statuses: Vec<u16> = idle
        .iter()
        .map(|stream| crate::server::read_head(&mut std::io::BufReader::with_capacity(1, stream)).0)
        .collect();
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    assert!((2..30).contains(&accepted), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    drop(idle);
    eventually("their memory is given back", || {
        server.get(&format!("/v1/runs/{id}")).status == 202 && {
            let mut follower = follow_if_there_is_room(&server, &path);
            follower.as_mut().is_some_and(|events| events.next().is_some())
        }
    });
}

fn follow_if_there_is_room(server: &Server, path: &str) -> Option<Events> {
    let mut reader = std::io::BufReader::new(server.send("GET", path, &[], b""));
    let (status, _) = crate::server::read_head(&mut reader);
    (status == 200).then(|| Events::new(reader))
}

#[test]
fn a_run_of_another_caller_is_not_there() {
    let (ours, theirs) = (new_key("ours"), new_key("theirs"));
    let server = Server::with(&format!("{}{}", ours.stanza, theirs.stanza), &[]);
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let started = server.ask("POST", "/v1/runs", &[JSON, ASYNC, ("x-api-key", &ours.key)], body.as_bytes());
    let path = format!("/v1/runs/{}", id_of(&started));
    eventually("it runs", || alive(&mark) == 1);
    let ask = |key: &str, method: &str, path: &str| server.ask(method, path, &[("x-api-key", key)], b"");
    for (method, path) in
        [("GET", path.clone()), ("GET", format!("{path}/events")), ("POST", format!("{path}/cancel"))]
    {
        assert_eq!(ask(&theirs.key, method, &path).error().0, 404, "{path}");
    }
    let of = |key: &str| ask(key, "GET", "/v1/runs").result()["runs"].as_array().unwrap().len();
    assert_eq!((of(&ours.key), of(&theirs.key)), (1, 0));
    assert_eq!(ask(&ours.key, "GET", &path).status, 202);
    assert_eq!(alive(&mark), 1);
}

#[test]
fn runs_are_listed_newest_first_by_status_and_language() {
    let server = Server::start();
    let run = |body: Value| server.post("/v1/runs", &body).result()["id"].as_str().unwrap().to_owned();
    let exited = run(json!({"language": "sh", "code": "exit 3"}));
    let slow = run(json!({"language": "sh", "code": "sleep 60", "limits": {"timeout_ms": 100}}));
    let python = run(json!({"language": "python", "code": "1"}));
    let mark = mark();
    let running = id_of(&submit(&server, &sleeper(&mark)));
    eventually("it runs", || alive(&mark) == 1);
    let all = listed(&server, "");
    assert_eq!(ids(&all), [&running, &python, &slow, &exited].map(String::clone));
    assert_eq!((&all[0]["status"], &all[0]["exit_code"]), (&json!("running"), &Value::Null));
    assert_eq!(
        (&all[3]["status"], &all[3]["exit_code"], &all[3]["language"]),
        (&json!("exited"), &json!(3), &json!("sh"))
    );
    assert_eq!(ids(&listed(&server, "status=timed_out")), [slow.as_str()]);
    assert_eq!(ids(&listed(&server, "status=exited&language=py")), [python.as_str()]);
    assert_eq!(ids(&listed(&server, "language=python")), [running.clone(), python]);
    assert!(listed(&server, "status=queued").is_empty());
    for (query, field) in [
        ("status=done", "status"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("cursor=1", "cursor"),
        ("language=cobol", "language"),
    ] {
        assert_eq!(
            server.get(&format!("/v1/runs?{query}")).error(),
            (400, "invalid_request".into(), field.into())
        );
    }
    assert_eq!(server.get(&format!("/v1/runs/{running}?wait_ms=soon")).error().2, "wait_ms");
}

#[test]
fn pages_stay_in_step_while_runs_arrive() {
    let server = Server::start();
    let run = || {
        server.post("/v1/runs", &json!({"language": "sh", "code": "true"})).result()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let before: Vec<String> = (0..7).map(|_| run()).collect();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/runs?limit=3{cursor}")).result();
        seen.extend(ids(page["runs"].as_array().unwrap()));
        run();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, before.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 7);
    assert_eq!(listed(&server, "").len(), 10, "what arrived meanwhile is on the first page");
}

#[test]
fn a_run_that_waits_for_a_slot_is_queued() {
    let server = Server::with("[server]\nslots = 1\n", &[]);
    let mark = mark();
    let first = id_of(&submit(&server, &sleeper(&mark)));
    eventually("it runs", || alive(&mark) == 1);
    let second = submit(&server, &json!({"language": "sh", "code": "true"}));
    assert_eq!(second.json()["status"], json!("queued"));
    let second = id_of(&second);
    assert_eq!(server.get(&format!("/v1/runs/{second}?wait_ms=20")).json()["status"], json!("queued"));
    assert_eq!(ids(&listed(&server, "status=queued")), [second.as_str()]);
    assert_eq!(ids(&listed(&server, "status=running")), [first.as_str()]);
    let mut follower = follow(&server, &second);
    assert_eq!(server.post(&format!("/v1/runs/{first}/cancel"), &json!({})).status, 202);
    assert_eq!(wait_for(&server, &second)["status"], json!("exited"));
    assert_eq!(follower.next().unwrap().0, "start");
}

#[test]
fn the_same_key_is_one_run_however_it_is_answered() {
    let server = Server::start();
    let body = json!({"language": "python", "code": "import os; print(os.urandom(8).hex())"}).to_string();
    let keyed = ("idempotency-key", "one");
    let first = server.ask("POST", "/v1/runs", &[JSON, ASYNC, keyed], body.as_bytes());
    let id = id_of(&first);
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let result = wait_for(&server, &id);
    let again = server.ask("POST", "/v1/runs", &[JSON, ASYNC, keyed], body.as_bytes());
    assert_eq!((id_of(&again), again.json()["status"].clone()), (id.clone(), json!("exited")));
    assert_eq!((again.headers["idempotency-replayed"].as_str(), &again.headers["x-run-id"]), ("true", &id));
    let waited = server.ask("POST", "/v1/runs", &[JSON, keyed], body.as_bytes());
    assert_eq!((waited.result(), &waited.headers["x-run-id"]), (result.clone(), &id));
    let mut streamed = server.stream_with(&body, &[keyed]);
    assert_eq!(streamed.next().unwrap().0, "start");
    assert_eq!(streamed.all().pop().unwrap(), ("end".into(), result));
}

#[test]
fn a_run_that_somebody_wants_asynchronously_outlives_the_client_that_started_it() {
    let (server, mark) = (Server::start(), mark());
    let body = sleeper(&mark).to_string();
    let keyed = ("idempotency-key", "shared");
    let waiting = server.send("POST", "/v1/runs", &[JSON, keyed], body.as_bytes());
    eventually("it runs", || alive(&mark) == 1);
    let id = id_of(&server.ask("POST", "/v1/runs", &[JSON, ASYNC, keyed], body.as_bytes()));
    drop(waiting);
    // By the time the server has noticed that another client has gone, it has noticed it of the first one, too.
    let other = crate::server::mark();
    drop(server.stream(&sleeper(&other)));
    eventually("the other is gone", || alive(&other) == 0);
    assert_eq!(server.get(&format!("/v1/runs/{id}")).json()["status"], json!("running"));
    assert_eq!(alive(&mark), 1);
}

#[test]
fn a_server_that_stops_lets_accepted_runs_end_and_tells_their_followers() {
    let (mut server, mark) = (Server::start(), mark());
    let body = json!({"language": "python", "code": "import time; time.sleep(1); print('done')", "args": [mark], "limits": {"disk_bytes": 33_000_000}});
    let id = id_of(&submit(&server, &body));
    let follower = follow(&server, &id);
    eventually("it runs", || alive(&mark) == 1);
    server.signal(Signal::TERM);
    let (name, end) = follower.all().pop().unwrap();
    assert_eq!((name.as_str(), &end["stdout"]), ("end", &json!("done\n")));
    assert!(server.wait().success());
}

#[test]
fn a_server_that_stops_kills_accepted_runs_at_the_deadline() {
    let mut server = Server::with("", &["--drain", "100ms"]);
    let mark = mark();
    let id = id_of(&submit(&server, &sleeper(&mark)));
    let follower = follow(&server, &id);
    eventually("it runs", || alive(&mark) == 1);
    server.signal(Signal::TERM);
    let (name, end) = follower.all().pop().unwrap();
    assert_eq!((name.as_str(), &end["status"]), ("end", &json!("cancelled")));
    assert!(server.wait().success());
    assert_eq!(alive(&mark), 0);
}
