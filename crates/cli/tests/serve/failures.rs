//! What is nobody's fault but the server's or its host's.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Resource, Rlimit, geteuid, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Server, eventually};

/// The user that nothing belongs to.
const NOBODY: u32 = 65534;

fn hello() -> Value {
    json!({"language": "sh", "code": "echo hello"})
}

#[test]
fn a_box_that_cannot_be_built_is_an_internal_error() {
    // Boxes that are made beside the runs have descriptors, too, for as long as they are being made.
    let server = Server::with("[pool]\nenabled = false\n", &[]);
    assert_eq!(server.post("/v1/runs", &hello()).status, 200, "the control");
    let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(4096) };
    let mut failed = None;
    eventually("what was open for the run before is closed", || {
        // Enough for a connection, and not for the pipes of a box.
        let most = u64::try_from(descriptors(&server)).unwrap() + 4;
        prlimit(Some(server.pid()), Resource::Nofile, limit(most)).unwrap();
        let answer = server.post("/v1/runs", &hello());
        failed = (answer.status != 200).then_some(answer);
        failed.is_some()
    });
    let failed = failed.unwrap();
    assert_eq!(failed.error(), (500, "internal".into(), String::new()));
    let message = failed.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("os error 24"), "{message}");
    let id = failed.headers["x-run-id"].clone();
    prlimit(Some(server.pid()), Resource::Nofile, limit(4096)).unwrap();
    assert_eq!(server.post("/v1/runs", &hello()).result()["stdout"], json!("hello\n"));
    let listed = server.get("/v1/runs?status=failed").result();
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(
        (&listed["runs"][0]["id"], &listed["runs"][0]["error"]["code"]),
        (&json!(id), &json!("internal"))
    );
    assert_eq!(server.get(&format!("/v1/runs/{id}")).error().0, 500);
    let events = server.follow(&format!("/v1/runs/{id}/events"), &[]).all();
    assert_eq!(events, [("error".to_owned(), failed.json())]);
}

#[test]
fn a_guarantee_that_the_host_cannot_keep_is_named() {
    let server = of_nobody("[server.allow]\nwaive = ['memory', 'pids', 'cpu']\n");
    let refused = server.post("/v1/runs", &hello());
    assert_eq!(refused.error(), (501, "guarantee_unmet".into(), String::new()));
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("memory"), "{:?}", refused.json());
    let ready = server.get("/readyz");
    assert_eq!(ready.error(), (503, "backend_unavailable".into(), String::new()));
    // The control: the same host runs it for a request that waives the guarantee.
    let waived = json!({"language": "sh", "code": "echo hello", "waive": ["memory", "pids", "cpu"]});
    assert_eq!(server.post("/v1/runs", &waived).result()["stdout"], json!("hello\n"));
}

/// The operator is told at the start, and what the log says to write is enough.
#[test]
fn a_server_that_will_refuse_runs_says_so_and_what_to_write_where() {
    let server = of_nobody("[limits]\ntimeout = '60s'\n");
    eventually("it is told", || server.log().contains("runs are refused on this host: "));
    let log = server.log();
    let place = format!(" at the top of {}, and restart", server.config_path().display());
    assert!(log.contains(&place) && !log.contains("--waive"), "{log}");
    let waiver = &log[log.find("waive = [").unwrap()..log.find(&place).unwrap()];
    let refused = server.post("/v1/runs", &hello()).json();
    let hint = refused["error"]["hint"].as_str().unwrap();
    assert!(hint.contains(waiver) && !hint.contains("--waive"), "{hint}");
    let control = of_nobody(&format!("{waiver}\n[limits]\ntimeout = '60s'\n"));
    assert_eq!(control.post("/v1/runs", &hello()).result()["stdout"], json!("hello\n"));
    let own = json!({"language": "sh", "code": "true", "waive": ["network"]});
    assert_eq!(control.post("/v1/runs", &own).error().0, 403, "nothing else may be waived");
    assert!(!control.log().contains("runs are refused"), "{}", control.log());
}

#[test]
fn a_doctor_does_not_call_ready_what_refuses_runs() {
    let (folder, binary) = folder_of_nobody("");
    let doctor = |more: &[&str]| {
        let mut command = Command::new(&binary);
        command.arg("doctor").args(more).uid(NOBODY).gid(NOBODY).current_dir(folder.path());
        let output = command.env("BELLJAR_STATE_DIR", folder.path().join("state")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = doctor(&["--backend", "native"]);
    assert_eq!(status, Some(1));
    assert!(said.starts_with("Runs are refused: ") && said.contains("\nnative: refuses runs\n"), "{said}");
    let (_, told) = doctor(&["--backend", "native", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["default"], &told["backends"][0]["ready"]), (&Value::Null, &json!(false)));
    std::fs::write(folder.path().join("belljar.toml"), "waive = ['memory', 'pids', 'cpu']\n").unwrap();
    let (status, said) = doctor(&["--backend", "native", "--config", "belljar.toml"]);
    assert_eq!(status, Some(0));
    assert!(said.contains("\nnative: ready\n"), "{said}");
}

#[test]
fn a_guarantee_that_the_operator_waives_is_not_missed_by_any_surface() {
    let server = of_nobody("waive = ['memory', 'pids', 'cpu']\n");
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(server.post("/v1/runs", &hello()).result()["stdout"], json!("hello\n"));
    let piston = json!({"language": "dash", "version": "*", "files": [{"content": "echo hello"}]});
    assert_eq!(server.post("/api/v2/execute", &piston).result()["run"]["stdout"], json!("hello\n"));
    let fusion = json!({"language": "bash", "code": "echo hello"});
    assert_eq!(server.post("/run_code", &fusion).result()["run_result"]["stdout"], json!("hello\n"));
}

/// A server of a user who may not make cgroups, so that some guarantees cannot be kept.
fn of_nobody(config: &str) -> Server {
    let (folder, binary) = folder_of_nobody(config);
    let mut command = Command::new(&binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]).uid(NOBODY).gid(NOBODY);
    Server::spawn_in(command, folder.path().join("state"), folder)
}

/// A directory of that user's, with a configuration and the program.
fn folder_of_nobody(config: &str) -> (TempDir, PathBuf) {
    assert!(geteuid().is_root(), "only root can start a program as somebody else");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("belljar.toml"), config).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let binary = folder.path().join("belljar");
    std::fs::copy(env!("CARGO_BIN_EXE_belljar"), &binary).unwrap();
    (folder, binary)
}

pub(crate) fn descriptors(server: &Server) -> usize {
    let path = format!("/proc/{}/fd", server.pid().as_raw_nonzero());
    std::fs::read_dir(path).unwrap().count()
}
