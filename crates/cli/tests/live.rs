//! What only a running program shows: output as it comes, terminals, readers that leave or stall, signals. These
//! need a host that can make boxes, and fail on one that cannot.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const PATIENCE: Duration = Duration::from_secs(120);

/// Started with the default actions for signals, whatever started the tests.
fn belljar(words: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_belljar"), "run"]).args(words);
    command.stdin(Stdio::null());
    command
}

/// The children of `belljar`, counted by a program that it runs: its parent is the supervisor, whose parent is `belljar`.
const COUNT_CHILDREN: &str = "belljar=$(awk '/^PPid/ { print $2 }' /proc/$PPID/status); \
                              wc -w < /proc/$belljar/task/$belljar/children";

fn run(words: &[&str]) -> Output {
    belljar(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn until(what: &str, mut true_at_last: impl FnMut() -> bool) {
    let began = Instant::now();
    while !true_at_last() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process anywhere on the host was started with this word.
fn is_alive(word: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|entry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).collect::<Vec<_>>().contains(&word.as_bytes())
            && arguments.starts_with(b"sleep")
    })
}

/// How long to sleep, in seconds, so that no other process on this machine sleeps for as long.
fn time_of_our_own(number: i32) -> String {
    format!("200.{number:03}{}", std::process::id())
}

fn wait(mut child: Child) -> Option<i32> {
    let mut code = None;
    until("the command ended", || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    code.unwrap().code()
}

#[test]
fn no_box_is_made_ahead_for_a_run_that_goes_elsewhere() {
    let ran = run(&["sh", "-c", COUNT_CHILDREN, "--backend", "process"]);
    assert_eq!(stdout(&ran).trim(), "1", "the supervisor, and nobody else: {ran:?}");
}

#[test]
fn the_exit_status_is_the_programs_own_or_the_contracts() {
    assert_eq!(run(&["bash", "-c", "exit 3"]).status.code(), Some(3));
    assert_eq!(run(&["bash", "-c", "kill -SEGV $$"]).status.code(), Some(139));
    let late = run(&["bash", "-c", "printf partial >&2; sleep 200", "--timeout", "3s"]);
    assert_eq!(late.status.code(), Some(124));
    assert_eq!(String::from_utf8_lossy(&late.stderr), "partial\nExecution timed out after 3s\n");
    let script = "x=$(head -c 200000000 /dev/zero | tr '\\0' y)";
    let large = run(&["bash", "-c", script, "--memory", "32M"]);
    assert_eq!(large.status.code(), Some(137), "{large:?}");
    assert_eq!(String::from_utf8_lossy(&large.stderr), "Memory limit exceeded (32M)\n");
}

#[test]
fn output_passes_through_as_it_comes() {
    let mut child = belljar(&["bash", "-c", "echo early; sleep 200", "--timeout", "200s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut early = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early\n");
    assert!(child.try_wait().unwrap().is_none(), "before the program ends");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(wait(child), Some(143));
}

#[test]
fn a_signal_ends_the_box_and_then_the_command() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let word = time_of_our_own(code);
        let script = format!("sleep {word} & sleep {word}");
        let child = belljar(&["bash", "-c", &script, "--timeout", "200s"]).spawn().unwrap();
        until("the program runs", || is_alive(&word));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(wait(child), Some(code));
        assert!(!is_alive(&word), "a process outlived the command");
    }
}

#[test]
fn a_reader_that_leaves_cancels_the_run_quietly() {
    let mut child = belljar(&["bash", "-c", "while :; do echo y; sleep 0.01; done", "--timeout", "60s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 2];
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    assert_eq!(wait(child), Some(141));
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn a_reader_that_stalls_does_not_stop_the_clock() {
    let word = &time_of_our_own(1);
    let script = format!("sleep {word} & yes");
    let mut child =
        belljar(&["bash", "-c", &script, "--timeout", "4s"]).stdout(Stdio::piped()).spawn().unwrap();
    until("the program runs", || is_alive(word));
    until("the deadline has come, though nobody reads", || !is_alive(word));
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert!(all.starts_with(b"y\ny\n") && all.len() > 1 << 20);
    assert_eq!(wait(child), Some(124));
}

#[test]
fn escapes_are_inert_on_a_terminal_and_untouched_in_a_pipe() {
    let script = r"printf '\033]0;owned\007\302\233m\n'";
    let raw = run(&["bash", "-c", script]);
    assert_eq!(raw.stdout, b"\x1b]0;owned\x07\xc2\x9bm\n");
    let shown = on_a_terminal(belljar(&["bash", "-c", script]));
    assert_eq!(shown, "^[]0;owned^G\\x9bm\r\n");
}

/// What a terminal is sent; its driver turns `\n` into `\r\n`.
fn on_a_terminal(mut command: Command) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let inside = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    assert!(command.stdout(inside).status().unwrap().success());
    drop(command);
    let (mut shown, mut reader) = (Vec::new(), File::from(terminal));
    // The end of a terminal that nobody has open any more is EIO (pty(7)).
    let _ = reader.read_to_end(&mut shown);
    String::from_utf8(shown).unwrap()
}

#[test]
fn head_and_tail_are_shown_and_the_middle_is_counted() {
    let output = run(&["bash", "-c", "printf '%01000d' 7", "--output-limit", "20"]);
    assert_eq!(stdout(&output), "0000000000\n[... 980 bytes omitted ...]\n0000000007");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn files_go_in_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.txt"), "abc").unwrap();
    let mut command = belljar(&["bash", "-c", "mkdir out; rev data/in.txt > out/o.txt; echo no > other"]);
    command.args(["--file", "in.txt:data/in.txt", "--collect", "out/*", "--collect-to", "got"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |path: &str| fs::read_to_string(folder.path().join(path));
    assert_eq!(read("got/out/o.txt").unwrap().trim(), "cba");
    assert!(read("got/other").is_err());
}

#[test]
fn a_pattern_that_no_file_matches_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = belljar(&["bash", "-c", "echo 1 > a.txt", "--collect", "*.txt", "--collect", "*.png"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "Nothing to collect: no file matches '*.png'\n");
    assert_eq!(fs::read_to_string(folder.path().join("a.txt")).unwrap(), "1\n");
}

#[test]
fn a_file_that_is_not_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "old").unwrap();
    let code = r"echo new | tee a b $'c\x1b[2J' > $'d\xff'";
    let collect = |more: &[&str]| {
        let mut command = belljar(&["bash", "-c", code, "--collect", "*"]);
        let output = command.args(more).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = collect(&[]);
    assert_eq!(
        said,
        "warning: 'a' was not written: it exists already\n\
         warning: 'c\\u{1b}[2J' was not written: its name is not valid UTF-8, or has a control character\n\
         warning: 'd\u{fffd}' was not written: its name is not valid UTF-8, or has a control character\n\
         warning: existing files are replaced only with --overwrite\n"
    );
    assert_eq!((status, fs::read_to_string(folder.path().join("a")).unwrap().as_str()), (Some(0), "old"));
    let (status, said) = collect(&[]);
    assert_eq!(status, Some(125), "nothing is left to write: {said}");
    assert!(
        said.starts_with("error: the program ran, but 'a' was not written: it exists already; "),
        "{said}"
    );
    assert!(said.contains("hint: replace existing files with --overwrite"), "{said}");
    assert_eq!(collect(&["--overwrite"]).0, Some(0));
    assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), "new\n");
}

#[test]
fn standard_input_is_passed_on_request_only() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "from a file\n").unwrap();
    let with = |more: &[&str], path: &Path| {
        let mut command = belljar(&["bash", "-c", "cat"]);
        stdout(&command.args(more).stdin(File::open(path).unwrap()).output().unwrap())
    };
    assert_eq!(with(&[], &input), "");
    assert_eq!(with(&["--stdin", "-"], &input), "from a file\n");
    assert_eq!(with(&["--stdin", input.to_str().unwrap()], Path::new("/dev/null")), "from a file\n");
}

#[test]
fn explaining_does_nothing() {
    let output = run(&["bash", "-c", "echo ran", "--explain"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!output.stdout.is_empty() && !stdout(&output).contains("ran\n"));
    let json = run(&["bash", "-c", "echo ran", "--explain", "--json"]);
    assert!(stdout(&json).starts_with("{\n  \"plan\": ["));
}

#[test]
fn output_on_request_in_base64() {
    let output = run(&["bash", "-c", r"printf '\377'", "--json", "--base64"]);
    assert!(stdout(&output).contains("\"stdout_base64\": \"/w==\""), "{output:?}");
    assert!(stdout(&output).contains("\"stdout\": \"\u{fffd}\""));
}
