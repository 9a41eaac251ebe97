//! One run with a network, and what came of it.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;

use belljar_conformance::{User, belljar_of};
use serde_json::Value;

use crate::world::WORLD;

/// What the code of every run can use.
pub(crate) const PRELUDE: &str = r#"
import errno, http.client, json, socket, ssl, sys, time
socket.setdefaulttimeout(10)
def attempt(work):
    try:
        return work()
    except socket.gaierror as fault:
        return "no such name"
    except OSError as fault:
        return errno.errorcode.get(fault.errno, repr(fault))
def connect(host, port):
    return attempt(lambda: socket.create_connection((host, port)).close() or "connected")
def exchange(host, port, data, family=None):
    def work():
        with socket.create_connection((host, port)) as s:
            s.sendall(data)
            return s.recv(4096).decode("latin1").strip() or "closed"
    return attempt(work)
def get(host, path="/", name=None, port=80):
    def work():
        c = http.client.HTTPConnection(host, port)
        c.request("GET", path, headers={"Host": name or host})
        answer = c.getresponse()
        return (answer.read().decode() or answer.getheader("Location") or "").strip()
    try:
        return attempt(work)
    except http.client.HTTPException as fault:
        return type(fault).__name__
def hello(name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
def datagram(host, port, family=socket.AF_INET):
    def work():
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.connect((host, port))
        s.send(b"ping")
        return s.recv(100).decode()
    return attempt(work)
"#;

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) result: Value,
}

impl Ran {
    /// What it printed, line by line.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.result["stdout"].as_str().unwrap_or_default().lines().collect()
    }

    /// What was refused: host, port and reason.
    pub(crate) fn denied(&self) -> Vec<(String, u64, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let denied = self.result["network_denied"].as_array().cloned().unwrap_or_default();
        let one = |one: &Value| (text(&one["host"]), one["port"].as_u64().unwrap_or(0), text(&one["reason"]));
        denied.iter().map(one).collect()
    }
}

thread_local! {
    static USER: Cell<User> = const { Cell::new(User::Root) };
}

/// Has a case start its boxes as this user. The world around them is root's.
pub(crate) fn as_user(user: User, case: fn()) {
    USER.set(user);
    case();
}

pub(crate) fn belljar(network: &str) -> Command {
    configured("belljar.toml", network)
}

/// With this configuration.
pub(crate) fn configured(file: &str, network: &str) -> Command {
    belljar_with(&WORLD.file(file), network)
}

fn belljar_with(config: &Path, network: &str) -> Command {
    let user = USER.get();
    let mut command = belljar_of(user);
    command
        .args(["run", "--json", "--config"])
        .arg(config)
        .args(["--network", network])
        .env("BELLJAR_BACKEND", "native");
    if user == User::Nobody {
        // Cgroups keep these, and an ordinary user may have none.
        command.args(["memory", "cpu", "pids"].iter().flat_map(|guarantee| ["--waive", guarantee]));
    }
    command
}

/// Runs Python code with this network.
pub(crate) fn run(network: &str, code: &str) -> Ran {
    finish(&mut run_with(&WORLD.file("belljar.toml"), network, code))
}

/// The same with another configuration, to be [finished](finish).
pub(crate) fn run_with(config: &Path, network: &str, code: &str) -> Command {
    let mut command = belljar_with(config, network);
    command.args(["--timeout", "300s", "python", "-c"]).arg(format!("{PRELUDE}\n{code}"));
    command
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let result: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    Ran { result }
}

/// Runs code that prints one line for each of these expressions.
pub(crate) fn evaluate(network: &str, expressions: &[&str]) -> (Vec<String>, Ran) {
    let code: String = expressions.iter().map(|expression| format!("print({expression})\n")).collect();
    let ran = run(network, &code);
    let lines: Vec<_> = ran.lines().iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(lines.len(), expressions.len(), "{}", ran.result);
    (lines, ran)
}

/// The gateway that this process has started, or one of those that it has started.
pub(crate) fn gateway_of(parent: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| line.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.into_iter().find_map(|child| {
        let name = std::fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?;
        if name.starts_with("belljar-gateway") { Some(child) } else { gateway_of(child) }
    })
}

pub(crate) fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process.try_into().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}
