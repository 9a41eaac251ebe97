//! One ledger for several servers. Each server that root starts is a user of its own, so a group shares the files; what
//! runs in boxes is not in it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};

use crate::audit::{assert_whole, audit, belljar, exported, hello};
use crate::pool::{descendants, run_warm};
use crate::server::{Server, eventually};

const NOBODY: u32 = 65534;
const FILES: [&str; 4] = ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.head"];

/// A server that records in this directory.
fn recording(state: &Path, config: &str) -> Server {
    start(Command::new(env!("CARGO_BIN_EXE_belljar")), state, config)
}

fn start(mut command: Command, state: &Path, config: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("belljar.toml"), config).unwrap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
    Server::spawn_in(command, state.to_owned(), folder)
}

fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.log());
}

/// The codes that the server's own audit log has, the newest first.
fn read_by(server: &Server) -> Vec<String> {
    let answer = server.get("/v1/audit?limit=200");
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let listed: Value = serde_json::from_slice(&answer.body).unwrap();
    let records = listed["records"].as_array().unwrap();
    records.iter().map(|record| record["code"].as_str().unwrap().to_owned()).collect()
}

fn field(pid: Pid, name: &str) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().map(|word| word.parse().unwrap()).collect())
}

fn group_of(state: &Path) -> u32 {
    fs::read_to_string(state.join("servers.group")).unwrap().trim().parse().unwrap()
}

/// Root owns the files, and the servers' group may write to them.
fn assert_shared(state: &Path, group: u32) {
    for name in FILES {
        let found = fs::metadata(state.join(name)).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (0, group, 0o660), "{name}");
    }
    let key = fs::metadata(state.join("ledger.key")).unwrap();
    assert_eq!((key.uid(), key.gid(), key.mode() & 0o777), (0, 0, 0o600));
}

#[test]
fn servers_of_root_write_and_read_one_ledger_in_whichever_order_they_come_and_go() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let durable = "[audit]\ndurable = true\n[pool]\nenabled = false\n";
    let first = recording(&state, durable);
    let (group, mut expected) = (group_of(&state), BTreeSet::new());
    let mut ask = |server: &Server, mark: &str| {
        server.post("/v1/runs", &hello(mark)).result();
        expected.insert(format!("echo {mark}"));
        assert_eq!(read_by(server).into_iter().collect::<BTreeSet<_>>(), expected, "{mark}");
    };
    ask(&first, "alone");
    let second = recording(&state, durable);
    assert_ne!(field(first.pid(), "Uid:"), field(second.pid(), "Uid:"), "each is a user of its own");
    ask(&second, "second");
    ask(&first, "first_beside_second");
    assert_shared(&state, group);
    // The older one ends, the newer one is killed, and root reads in between.
    stop(first);
    ask(&second, "second_alone");
    kill_process(second.pid(), Signal::KILL).unwrap();
    drop(second);
    assert_whole(&state);
    let third = recording(&state, durable);
    ask(&third, "third");
    let fourth = recording(&state, durable);
    ask(&fourth, "fourth");
    // Both processes of the newer one are killed at once.
    let _ = kill_process(fourth.pid(), Signal::KILL);
    drop(fourth);
    ask(&third, "third_alone");
    stop(third);
    assert_eq!(exported(&state).len(), expected.len());
    assert_whole(&state);
    assert_shared(&state, group);
    assert_eq!(group_of(&state), group, "it stays");
    let left: BTreeSet<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known = |name: &String| {
        FILES.contains(&name.as_str())
            || ["ledger.key", "servers.group", "belljar.toml"].contains(&name.as_str())
            || name.starts_with("approvals")
            || name.starts_with("host-")
            || name.starts_with("runtime-")
    };
    assert!(left.iter().all(known), "{left:?}");
}

#[test]
fn servers_that_write_at_the_same_time_leave_a_whole_ledger() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let servers: Vec<_> = (0..3).map(|_| recording(&state, "[pool]\nenabled = false\n")).collect();
    std::thread::scope(|scope| {
        for (number, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for run in 0..8 {
                    server.post("/v1/runs", &hello(&format!("by_{number}_{run}"))).result();
                }
            });
        }
    });
    servers.into_iter().for_each(stop);
    let records = exported(&state);
    let codes: BTreeSet<_> = records.iter().map(|record| record["code"].as_str().unwrap()).collect();
    assert_eq!((records.len(), codes.len()), (24, 24));
    assert_whole(&state);
}

#[test]
fn servers_of_an_ordinary_user_share_a_ledger_too() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    fs::create_dir(&state).unwrap();
    if geteuid().is_root() {
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let server = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        start(command, &state, "[audit]\ndurable = true\n[pool]\nenabled = false\n")
    };
    let servers = [server(), server()];
    // Whether this user can make boxes here does not matter: an attempt that was refused is recorded, too.
    for (number, server) in servers.iter().enumerate() {
        server.post("/v1/runs", &json!({"language": "cobol", "code": format!("by_{number}")}));
        eventually("it is recorded", || read_by(server).len() == number + 1);
    }
    assert!(!state.join("servers.group").exists(), "no group is needed");
    assert_eq!(fs::metadata(state.join("ledger.db")).unwrap().mode() & 0o777, 0o600);
    servers.into_iter().for_each(stop);
    assert_eq!(recorded_for_its_owner(&state), 2);
}

/// How many records there are. The key of a ledger is its owner's, and so is `verify`.
fn recorded_for_its_owner(state: &Path) -> usize {
    let run = |words: &[&str]| {
        let mut command = belljar(state, words);
        command.env("HOME", state).env_remove("BELLJAR_CONFIG");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["audit", "verify"]).contains("the ledger is whole"));
    run(&["audit", "export"]).lines().count()
}

#[test]
fn nothing_in_a_box_is_in_the_group_of_the_ledger() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let server =
        recording(&state, "[pool.languages.python]\nmin = 2\nmax = 2\n[pool.languages.bash]\nmin = 1\n");
    let group = group_of(&state);
    assert_eq!(field(server.pid(), "Groups:"), Some(vec![group]), "the control");
    let code = json!({"language": "bash", "code": "grep ^Groups: /proc/self/status; id -G"});
    let cold = json!({"limits": {"disk_bytes": 33_000_000}});
    let mut seen = BTreeSet::new();
    for result in
        [run_warm(&server, &code), server.post("/v1/runs", &crate::pool::with(code.clone(), &cold)).result()]
    {
        seen.insert(result["start"].as_str().unwrap().to_owned());
        let said = result["stdout"].as_str().unwrap();
        let words: Vec<_> = said.split_whitespace().collect();
        assert_eq!(words, ["Groups:", "1000"], "its own group and no other: {result}");
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["cold", "warm"]);
    let zygotes = json!({"language": "python", "code": "import os; print(os.getgroups())"});
    assert_eq!(run_warm(&server, &zygotes)["stdout"], json!("[]\n"));
    // From outside, where no number is hidden: boxes that wait, zygotes, and PID 1 of each.
    let of_server = field(server.pid(), "Uid:");
    eventually("boxes wait", || of_boxes(&server, &of_server).len() >= 6);
    for pid in of_boxes(&server, &of_server) {
        // One that has ended meanwhile has none.
        assert!(field(pid, "Groups:").is_none_or(|groups| groups.is_empty()), "{pid:?}");
    }
    // Nor is anything that makes them: wardens and keepers are of the server's own user.
    let of_its_user = |pid: &Pid| field(*pid, "Uid:") == of_server;
    let makers: Vec<Pid> = descendants(server.pid()).into_iter().filter(of_its_user).collect();
    assert!(makers.len() >= 2, "{makers:?}");
    for pid in makers {
        assert!(field(pid, "Groups:").is_none_or(|groups| groups.is_empty()), "{}", named(pid));
    }
}

/// What a process is called, for messages.
fn named(pid: Pid) -> String {
    let file = |name: &str| fs::read(format!("/proc/{}/{name}", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&[file("comm"), file("cmdline")].concat()).into_owned()
}

/// The processes beneath a server that are not of its own user.
fn of_boxes(server: &Server, of_server: &Option<Vec<u32>>) -> Vec<Pid> {
    let mut all = descendants(server.pid());
    all.retain(|pid| field(*pid, "Uid:").is_some_and(|uids| Some(uids) != *of_server));
    all
}

#[test]
fn root_does_not_write_to_a_ledger_that_its_servers_write_to() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    stop(recording(&state, ""));
    fs::write(state.join("belljar.toml"), "[audit]\nenabled = true\n").unwrap();
    let refused = belljar(&state, &["run", "sh", "-c", "echo unrecorded"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    assert!(said.contains("servers without root's rights write to it"), "{said}");
    assert!(audit(&state, &["tail"]).status.success(), "it reads it");
}
