//! Every mistake that a caller can make gets one `error:`, one `hint:` and the right exit status, before any box
//! is built.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

struct Belljar {
    folder: tempfile::TempDir,
}

impl Belljar {
    fn new() -> Belljar {
        Belljar { folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(words).current_dir(self.folder.path()).env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    fn run_reading(&self, words: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A child that refuses before it reads has closed the pipe, which is no fault of the test.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn refusal(output: &Output) -> (String, String) {
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    let mut lines = stderr.lines();
    let message = lines.next().unwrap().strip_prefix("error: ").unwrap().to_owned();
    let hint = lines.next().unwrap().strip_prefix("hint: ").unwrap().to_owned();
    assert_eq!(lines.next(), None, "{stderr}");
    (message, hint)
}

#[test]
fn an_unknown_language_suggests_the_nearest() {
    let belljar = Belljar::new();
    let (message, hint) = refusal(&belljar.run(&["run", "pyhton", "-c", "print(1)"]));
    assert_eq!(message, "unknown language 'pyhton'");
    assert!(hint.starts_with("did you mean 'python'?"), "{hint}");
}

#[test]
fn code_that_is_no_code_is_refused() {
    let belljar = Belljar::new();
    let (message, _) = refusal(&belljar.run_reading(&["run", "python"], b"print(1)\0"));
    assert_eq!(message, "the code has a NUL byte at offset 8, so it is not source text");
    let (message, _) = refusal(&belljar.run_reading(&["run", "python", "-"], &vec![b'#'; 10_000_000]));
    assert_eq!(message, "the code is 10000000 bytes long; at most 4194304 are accepted");
}

#[test]
fn a_file_that_cannot_be_read_is_a_clear_error() {
    let belljar = Belljar::new();
    let (message, _) = refusal(&belljar.run(&["run", "gone.py"]));
    assert_eq!(message, "cannot read the code from gone.py: No such file or directory (os error 2)");
    let (message, _) = refusal(&belljar.run(&["run", "python", "."]));
    assert_eq!(message, "cannot read the code from .: Is a directory (os error 21)");
    fs::write(belljar.path().join("notes"), "hello").unwrap();
    let (message, hint) = refusal(&belljar.run(&["run", "notes"]));
    assert_eq!(message, "cannot tell which language notes is written in");
    assert_eq!(hint, "name the language, as in belljar run python notes");
}

#[test]
fn limits_out_of_range_or_malformed_are_refused() {
    let belljar = Belljar::new();
    for option in [
        "--timeout",
        "--compile-timeout",
        "--cpu-time",
        "--memory",
        "--compile-memory",
        "--cpus",
        "--pids",
        "--disk",
        "--output-limit",
    ] {
        for value in ["0", "100000000000000000000", "lots", ""] {
            let (message, hint) = refusal(&belljar.run(&["run", "python", "-c", "1", option, value]));
            assert!(message.contains(&option[2..]), "{option} {value}: {message}");
            assert!(!hint.is_empty());
        }
    }
}

#[test]
fn a_workspace_must_be_a_directory_and_not_the_whole_machine() {
    let belljar = Belljar::new();
    fs::write(belljar.path().join("file"), "").unwrap();
    let refused = |name: &str| refusal(&belljar.run(&["run", "python", "-c", "1", "--workspace", name])).0;
    assert_eq!(refused("gone"), "cannot mount the workspace gone: No such file or directory (os error 2)");
    assert_eq!(refused("file"), "cannot mount the workspace file: not a directory");
    assert_eq!(refused("/"), "the workspace '/' would show the whole machine to the code");
    assert_eq!(refused("/usr/.."), "the workspace '/' would show the whole machine to the code");
}

#[test]
fn a_file_stays_beneath_the_working_directory() {
    let belljar = Belljar::new();
    fs::write(belljar.path().join("a"), "").unwrap();
    let refused = |given: &str| refusal(&belljar.run(&["run", "python", "-c", "1", "--file", given])).0;
    assert_eq!(refused("a:../b"), "the path '../b' leads out of the working directory");
    assert_eq!(refused("a:/etc/b"), "the path '/etc/b' is absolute");
    assert_eq!(refused("a:"), "the path '' is empty");
    assert_eq!(refused("gone"), "cannot copy the file gone: No such file or directory (os error 2)");
    assert_eq!(refused("."), "cannot copy the file .: is a directory");
    let both = belljar.run(&["run", "python", "-c", "1", "--file", "a", "--file", "a"]);
    assert_eq!(refusal(&both).0, "two files are to be 'a'");
}

#[test]
fn the_remaining_options_say_what_they_want() {
    let belljar = Belljar::new();
    let refused = |option: &str, value: &str| {
        let (message, hint) = refusal(&belljar.run(&["run", "python", "-c", "1", option, value]));
        format!("{message} | {hint}")
    };
    assert!(
        refused("--env", "HOME").starts_with("the variable 'HOME' has no value | write --env HOME=VALUE")
    );
    assert!(refused("--env", "A B=1").starts_with("'A B' is not a valid name for an environment variable"));
    assert!(refused("--network", "lan").starts_with("'lan' is not a network"));
    assert!(refused("--backend", "podman").starts_with("unknown backend 'podman'"));
    assert!(
        refused("--waive", "all").starts_with("'all' is not a guarantee | the guarantees are filesystem,")
    );
    assert!(refused("--collect", "../*").contains("leads out of the working directory"));
    assert!(refused("--stdin", "gone").starts_with("cannot read the input of the program from gone:"));
    assert!(refused("--config", "gone").starts_with("cannot read the configuration file gone:"));
    assert!(refused("--backend", "kubernetes").starts_with("the kubernetes backend is not available yet"));
    let both = belljar.run_reading(&["run", "python", "-", "--stdin", "-"], b"print(1)");
    assert_eq!(refusal(&both).0, "standard input cannot be both the code and the input of the program");
}

#[test]
fn usage_errors_of_run_are_failures_of_ours() {
    let belljar = Belljar::new();
    assert_eq!(refusal(&belljar.run(&["run", "--tiemout", "1s"])).0, "unknown option '--tiemout'");
    assert_eq!(refusal(&belljar.run(&["run", "python", "a", "b"])).0, "unexpected argument 'b'");
}

#[test]
fn other_commands_fail_with_two() {
    let belljar = Belljar::new();
    assert_eq!(belljar.run(&["doctor", "--what"]).status.code(), Some(2));
    assert_eq!(belljar.run(&["dance"]).status.code(), Some(2));
    assert_eq!(belljar.run(&["languages", "--config", "gone"]).status.code(), Some(2));
    assert_eq!(belljar.run(&[]).status.code(), Some(2));
}

#[test]
fn with_json_a_failure_is_the_error_object_on_stdout() {
    let belljar = Belljar::new();
    let failed = |words: &[&str]| {
        let output = belljar.run(words);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    insta::assert_snapshot!(failed(&["run", "--json", "python", "-c", "1", "--memory", "0"]), @r#"
    {
      "error": {
        "code": "invalid_request",
        "message": "memory must be between 4M and 16384G, not 0 bytes",
        "hint": "leave it out for the default, 256M",
        "field": "limits.memory_bytes"
      }
    }
    "#);
    insta::assert_snapshot!(failed(&["run", "--json", "--tiemout"]), @r#"
    {
      "error": {
        "code": "invalid_request",
        "message": "unknown option '--tiemout'",
        "hint": "did you mean '--timeout'? See belljar run --help"
      }
    }
    "#);
}

#[test]
fn the_environment_and_the_configuration_are_honoured() {
    let belljar = Belljar::new();
    let with = |name: &str, value: &str| {
        let mut command = belljar.command(&["run", "python", "-c", "1"]);
        refusal(&command.env(name, value).stdin(Stdio::null()).output().unwrap()).0
    };
    assert_eq!(with("BELLJAR_BACKEND", "podman"), "BELLJAR_BACKEND: unknown backend 'podman'");
    assert_eq!(with("CODE_EXEC_SANDBOX", "podman"), "CODE_EXEC_SANDBOX: unknown backend 'podman'");
    assert!(with("BELLJAR_TIMEOUT", "soon").starts_with("BELLJAR_TIMEOUT: 'soon' is not a duration"));
    fs::write(belljar.path().join("belljar.toml"), "[limits]\nmemory = \"lots\"\n").unwrap();
    let (message, _) = refusal(&belljar.run(&["run", "python", "-c", "1", "--config", "belljar.toml"]));
    assert_eq!(message, "limits.memory in belljar.toml: 'lots' is not a size such as 512K, 64M or 1G");
}

#[test]
fn help_and_version_are_answers() {
    let belljar = Belljar::new();
    for words in [&["--help"][..], &["run", "--help"], &["doctor", "--help"], &["--version"]] {
        let output = belljar.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn a_module_of_python_is_recognized_where_a_size_belongs() {
    let belljar = Belljar::new();
    let expected = "-m is short for --memory here, and 'unittest' is not a size";
    for words in [&["run", "python", "-m", "unittest"][..], &["run", "-m", "unittest", "py", "-k", "slow"]] {
        let (message, hint) = refusal(&belljar.run(words));
        assert_eq!(message, expected, "{words:?}");
        assert!(hint.contains("runpy.run_module(\"unittest\", run_name=\"__main__\")"), "{hint}");
        assert!(hint.contains(" --workspace . "), "{hint}");
    }
    let (message, _) = refusal(&belljar.run(&["run", "sh", "-m", "unittest", "-c", "true"]));
    assert_eq!(message, "--memory: 'unittest' is not a size such as 512K, 64M or 1G");
}

/// What the hint says works.
#[test]
fn a_module_of_python_can_be_run() {
    let belljar = Belljar::new();
    let (_, hint) = refusal(&belljar.run(&["run", "python", "-m", "unittest"]));
    let command = hint.split_once(": ").unwrap().1.split_once(" (").unwrap().0;
    let case = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertTrue(True)\n";
    fs::write(belljar.path().join("test_it.py"), case).unwrap();
    let command = command.replace("belljar run", &format!("{} run", env!("CARGO_BIN_EXE_belljar")));
    let output = std::process::Command::new("sh")
        .args(["-c", &command])
        .current_dir(belljar.path())
        .env("BELLJAR_BACKEND", "none")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("Ran 1 test"), "{output:?}");
}
