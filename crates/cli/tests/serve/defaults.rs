//! What a request gets where it does not say.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::keys::{new_key, post};
use crate::server::{Server, eventually};

fn sleeper() -> Value {
    json!({"language": "sh", "code": "sleep 60"})
}

#[test]
fn the_configuration_speaks_for_requests_that_do_not() {
    let server = Server::with(
        "waive = ['network', 'disk']\n[limits]\ntimeout = '2s'\n[server.allow]\nwaive = ['network']\n",
        &[],
    );
    let result = server.post("/v1/runs", &sleeper()).result();
    assert_eq!(result["status"], json!("timed_out"));
    // The caller may do without the one, and not without the other.
    assert_eq!(result["isolation"]["waived"], json!(["network"]));
    let own = json!({"language": "sh", "code": "sleep 2.5", "limits": {"timeout_ms": 60_000}});
    assert_eq!(server.post("/v1/runs", &own).result()["status"], json!("exited"));
    let piston =
        json!({"language": "dash", "version": "*", "files": [{"content": "head -c 4096 /dev/zero"}]});
    assert_eq!(server.post("/api/v2/execute", &piston).result()["run"]["code"], json!(0));
}

#[test]
fn a_default_that_is_more_than_the_caller_may_have_is_cut() {
    let (held, free) = (new_key("held"), new_key("free"));
    let config = format!(
        "network = 'full'\n[limits]\npids = 7\n{}allow = {{ network = 'none', limits = {{ pids = 3 }} }}\n{}allow = \
         {{ network = 'full' }}\n",
        held.stanza, free.stanza
    );
    let server = Server::with(&config, &[]);
    let many = json!({"language": "bash", "code": "for i in 1 2 3 4 5; do sleep 1 & done; wait; echo $?"});
    let result = post(&server, &held.key, &many).result();
    assert_eq!(result["network"], json!("none"));
    assert!(result["stderr"].as_str().unwrap().contains("fork"), "{result}");
    // The other one gets what the configuration says.
    assert_eq!(post(&server, &free.key, &many).result()["network"], json!("full"));
    let quiet = json!({"language": "bash", "network": "none", "code": many["code"]});
    assert_eq!(post(&server, &free.key, &quiet).result()["stdout"], json!("0\n"));
}

#[test]
fn a_reload_changes_what_requests_get() {
    let server = Server::with("[limits]\ntimeout = '60s'\n", &[]);
    let short = json!({"language": "sh", "code": "sleep 0.5"});
    assert_eq!(server.post("/v1/runs", &short).result()["status"], json!("exited"));
    std::fs::write(server.config_path(), "[limits]\ntimeout = '100ms'\n").unwrap();
    server.signal(Signal::HUP);
    eventually("the new limit holds", || {
        server.post("/v1/runs", &short).result()["status"] == json!("timed_out")
    });
}

#[test]
fn a_default_that_no_request_could_have_keeps_the_server_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("belljar.toml"), "[limits]\nmemory = '1K'\n").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the defaults for requests are not valid: ") && text.contains("memory"), "{text}");
}

#[test]
fn nobody_may_ask_for_more_than_the_machine_has() {
    let server = Server::start();
    let ask = |limits: Value| {
        server.post("/v1/runs", &json!({"language": "sh", "code": "echo hello", "limits": limits}))
    };
    for (field, most) in [
        ("memory_bytes", json!(1_u64 << 44)),
        ("cpus", json!(1024)),
        ("pids", json!(32_768)),
        ("timeout_ms", json!(86_400_000)),
    ] {
        assert_eq!(
            ask(json!({field: most})).error(),
            (403, "forbidden".into(), format!("limits.{field}")),
            "{field}"
        );
    }
    let control = json!({"memory_bytes": 256 << 20, "cpus": 1, "pids": 200, "timeout_ms": 60_000});
    assert_eq!(ask(control).result()["stdout"], "hello\n");
    let generous = Server::with("[server.allow]\nlimits = { timeout = '24h', pids = 2000 }\n", &[]);
    let allowed = json!({"timeout_ms": 86_400_000, "pids": 2000});
    let allowed = json!({"language": "sh", "code": "echo hello", "limits": allowed});
    assert_eq!(generous.post("/v1/runs", &allowed).result()["stdout"], "hello\n", "the operator decides");
}
