//! Many runs in the warm pool, with every ending, during which nothing grows. `bench/soak` is the long version.

use std::fs;
use std::process::Command;

use crate::server::Server;

/// How many runs this one has.
const RUNS: &str = "1000";

#[test]
fn a_thousand_warm_runs_leave_nothing_behind() {
    let server = server_apart();
    let process = server.pid().as_raw_nonzero().to_string();
    let watched = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/soak.py"))
        .args([&server.address.to_string(), &process, RUNS])
        .output()
        .unwrap();
    let (told, wrong) = (String::from_utf8_lossy(&watched.stdout), String::from_utf8_lossy(&watched.stderr));
    assert!(watched.status.success(), "{told}{wrong}");
}

/// A server in a mount namespace of its own, so that what it mounts is not lost among what others do.
fn server_apart() -> Server {
    let folder = tempfile::tempdir().unwrap();
    // Results that are kept fill up first, so that what grows afterwards is a leak.
    let pool = "[server]\nslots = 16\nkeep-runs = 100\n[pool.languages.python]\nmin = 8\nmax = 8\n";
    fs::write(folder.path().join("belljar.toml"), pool).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", env!("CARGO_BIN_EXE_belljar"), "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--config", "belljar.toml"]);
    Server::spawn(command, folder)
}
