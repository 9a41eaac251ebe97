//! Virtual environments as runtimes: of Python, and of shells that call it.

use serde_json::json;

use crate::pool::run_warm;
use crate::server::Server;
use crate::zygote::{Installation, has, stdout};

/// An ordinary one has no packages of the user or of the system, and may be a copy instead of a link.
#[test]
fn modules_of_an_ordinary_virtual_environment_are_preloaded() {
    for options in [&[] as &[&str], &["--copies"]] {
        let installation = Installation::made_with(options);
        let server = installation.serve("plain", "seen = []\n");
        for _ in 0..2 {
            let code = has("plain", "import plain\nprint(plain.seen, sys.prefix)\nplain.seen.append(1)");
            let expected = format!("True\n[] {}\n", installation.prefix().display());
            assert_eq!(stdout(&run_warm(&server, &code)), expected, "{options:?}");
        }
        assert_eq!(server.get("/v1/pool").result()["languages"][0]["problem"], json!(null), "{options:?}");
        assert!(!server.log().contains("WARN"), "{}", server.log());
    }
}

/// The zygote's own way in leaves nothing behind for programs to find.
#[test]
fn a_child_of_the_zygote_boots_like_a_cold_run() {
    let installation = Installation::made_with(&[]);
    let server = installation.serve("plain", "");
    let look = "import encodings, sys\nprint(sys.path, len(sys.path_hooks), sorted(vars(encodings)), \
                encodings.search_function.__code__.co_firstlineno, sorted(sys.flags), list(sys.path_importer_cache)[-1])";
    let warm = run_warm(&server, &json!({"language": "python", "code": look}));
    let cold = server
        .post("/v1/runs", &json!({"language": "python", "code": look, "limits": {"disk_bytes": 32 << 20}}))
        .result();
    assert_eq!((&cold["start"], cold["exit_code"].as_u64()), (&json!("cold"), Some(0)), "{cold}");
    assert_eq!(stdout(&warm), stdout(&cold));
    assert_eq!((&warm["stderr"], &cold["stderr"]), (&json!(""), &json!("")));
}

#[test]
fn a_shell_finds_the_python_that_is_configured() {
    let installation = Installation::made_with(&[]);
    let configured = Server::with(&installation.configured(), &[]);
    let prefix = format!("{}\n", installation.prefix().display());
    let ask = "for python in python python3; do $python -c 'import sys; print(sys.prefix)'; done";
    for shell in ["bash", "sh"] {
        let body = json!({"language": shell, "code": ask});
        assert_eq!(stdout(&configured.post("/v1/runs", &body).result()), prefix.repeat(2), "{shell}");
    }
    let body = json!({"language": "bash", "code": "python3 -c 'import sys; print(sys.prefix)'"});
    assert_ne!(stdout(&Server::start().post("/v1/runs", &body).result()), prefix, "the control");
}
