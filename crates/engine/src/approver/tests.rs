use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use belljar_core::guarantee::Guarantee;
use belljar_core::limits::{Bytes, Cpus, LimitsRequest};
use belljar_core::path::{BoxPath, Workspace};
use belljar_core::policy::{Action, Decision};
use belljar_core::request::{BackendChoice, ExecutionRequest, InputFile, Network, SandboxRequest};

use super::*;

fn request() -> RunRequest {
    let (box_limits, limits) = LimitsRequest::default().resolve().unwrap();
    let sandbox = SandboxRequest {
        backend: BackendChoice::Auto,
        waived: Vec::new(),
        limits: box_limits,
        network: Network::None,
        secrets: Vec::new(),
        workspace: Some(Workspace::parse(Path::new("/srv/a")).unwrap()),
        env: env("KEY", "value"),
        image: None,
    };
    let execution = ExecutionRequest {
        language: Language::by_name("python").unwrap(),
        code: Code::parse(b"print(1)".to_vec(), None).unwrap(),
        args: args(&["a", "b"]),
        stdin: Stdin::Bytes(b"in".to_vec()),
        files: vec![file("data.csv", b"1,2", false)],
        collect: globs(&["*.png"]),
        limits,
        extras: Extras::default(),
        allowed_imports: None,
    };
    RunRequest { sandbox, execution }
}

fn env(name: &str, value: &str) -> Vec<EnvVar> {
    EnvVar::parse_all(vec![(name.to_owned(), value.to_owned())]).unwrap()
}

fn args(words: &[&str]) -> Vec<Arg> {
    Arg::parse_all(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
}

fn globs(words: &[&str]) -> Vec<Glob> {
    words.iter().map(|word| Glob::parse(word).unwrap()).collect()
}

fn file(path: &str, content: &[u8], executable: bool) -> InputFile {
    InputFile { path: BoxPath::parse(path).unwrap(), content: content.to_vec(), executable }
}

fn digest_of(request: &RunRequest) -> [u8; 32] {
    digest(&Origin::default(), request, BackendName::Native)
}

/// A change to a request, and what it is called in messages.
type Change = (&'static str, fn(&mut RunRequest));

const CHANGES: &[Change] = &[
    ("code", |r| r.execution.code = Code::parse(b"print(2)".to_vec(), None).unwrap()),
    ("name of the code", |r| {
        let name = BoxPath::parse("main.py").unwrap();
        r.execution.code = Code::parse(b"print(1)".to_vec(), Some(name)).unwrap();
    }),
    ("code in the workspace", |r| {
        let name = BoxPath::parse("main.py").unwrap();
        r.execution.code = Code::in_workspace(b"print(1)".to_vec(), name).unwrap();
    }),
    ("language", |r| r.execution.language = Language::by_name("ruby").unwrap()),
    ("another argument", |r| r.execution.args = args(&["a", "c"])),
    ("where arguments are split", |r| r.execution.args = args(&["ab"])),
    ("no arguments", |r| r.execution.args = Vec::new()),
    ("standard input", |r| r.execution.stdin = Stdin::Bytes(b"on".to_vec())),
    ("no standard input", |r| r.execution.stdin = Stdin::Empty),
    ("a stream as standard input", |r| r.execution.stdin = Stdin::Stream(Box::new(std::io::empty()))),
    ("content of a file", |r| r.execution.files = vec![file("data.csv", b"1,3", false)]),
    ("name of a file", |r| r.execution.files = vec![file("data.tsv", b"1,2", false)]),
    ("mode of a file", |r| r.execution.files = vec![file("data.csv", b"1,2", true)]),
    ("another file", |r| r.execution.files.push(file("b", b"", false))),
    ("collect", |r| r.execution.collect = globs(&["*.jpg"])),
    ("plots", |r| r.execution.extras.plots = true),
    ("hints", |r| r.execution.extras.hints = true),
    ("timeout", |r| r.execution.limits.timeout = Duration::from_secs(11)),
    ("cpu time", |r| r.execution.limits.cpu_time = Some(Duration::from_secs(1))),
    ("output", |r| r.execution.limits.output = Bytes::new(1)),
    ("collected", |r| r.execution.limits.collected = Bytes::new(1)),
    ("compile timeout", |r| r.execution.limits.compile.timeout = Duration::from_secs(31)),
    ("compile cpu time", |r| r.execution.limits.compile.cpu_time = Some(Duration::from_secs(1))),
    ("compile memory", |r| r.execution.limits.compile.sandbox.memory = Bytes::new(1 << 30)),
    ("memory", |r| r.sandbox.limits.memory = Bytes::new(1 << 30)),
    ("cpus", |r| r.sandbox.limits.cpus = Cpus::parse(2.0).unwrap()),
    ("pids", |r| r.sandbox.limits.pids = 51),
    ("disk", |r| r.sandbox.limits.disk = Bytes::new(1 << 30)),
    ("network", |r| r.sandbox.network = Network::Full),
    ("hosts", |r| r.sandbox.network = Network::parse("allow:example.org").unwrap()),
    ("image", |r| r.sandbox.image = Some("python:3.12".to_owned())),
    ("an image without a name", |r| r.sandbox.image = Some(String::new())),
    ("workspace", |r| r.sandbox.workspace = Some(Workspace::parse(Path::new("/srv/b")).unwrap())),
    ("no workspace", |r| r.sandbox.workspace = None),
    ("a writable workspace", |r| {
        let workspace = Workspace::parse(Path::new("/srv/a")).unwrap();
        r.sandbox.workspace = Some(workspace.with_writes(Writes::Discarded));
    }),
    ("name of a variable", |r| r.sandbox.env = env("KEZ", "value")),
    ("value of a variable", |r| r.sandbox.env = env("KEY", "valuf")),
    ("where a variable is split", |r| r.sandbox.env = env("KEYval", "ue")),
    ("waivers", |r| r.sandbox.waived = vec![Guarantee::Memory]),
];

#[test]
fn every_change_to_a_run_is_another_digest() {
    assert_eq!(digest_of(&request()), digest_of(&request()), "the control");
    let mut seen = BTreeMap::from([(digest_of(&request()), "the request itself")]);
    for (what, change) in CHANGES {
        let mut changed = request();
        change(&mut changed);
        let before = seen.insert(digest_of(&changed), what);
        assert_eq!(before, None, "{what}");
    }
}

#[test]
fn a_backend_and_the_cells_of_a_notebook_are_a_part_of_the_digest() {
    let (request, origin) = (request(), Origin::default());
    let cells = Origin { cells: Some(["1 + 1".to_owned()].into()), ..origin.clone() };
    let native = digest(&origin, &request, BackendName::Native);
    assert_ne!(native, digest(&origin, &request, BackendName::Docker));
    assert_ne!(native, digest(&cells, &request, BackendName::Native));
    // Whoever asks, it is the same run.
    let other = Origin { caller: "somebody else".into(), ..origin };
    assert_eq!(native, digest(&other, &request, BackendName::Native));
}

#[test]
fn a_question_has_no_secrets() {
    let decision = Decision {
        action: Action::Approve,
        rule: "default".to_owned(),
        reason: String::new(),
        by: "policy".to_owned(),
        approval_id: None,
    };
    let ask = Ask::new(&Origin::default(), &request(), BackendName::Native, &[], &decision);
    assert_eq!(ask.run.env_names, ["KEY"]);
    let shown = format!("{ask:?}");
    assert!(shown.contains("data.csv") && !shown.contains("value"), "{shown}");
}

#[test]
fn a_question_names_the_hosts_of_secrets() {
    let decision = Decision::denial("default", String::new(), "policy");
    let mut request = request();
    let ask = |request: &_| Ask::new(&Origin::default(), request, BackendName::Native, &[], &decision);
    assert!(ask(&request).run.secrets.is_empty(), "the control");
    request.sandbox.secrets = vec![belljar_core::secret::SecretHost::parse("api.example.com").unwrap()];
    assert_eq!(ask(&request).run.secrets, ["api.example.com"]);
}

#[test]
fn a_question_shows_the_cells_of_a_notebook_and_not_the_program_that_reads_them() {
    let decision = Decision::denial("default", String::new(), "policy");
    let origin = Origin { cells: Some(["cells".to_owned()].into()), ..Origin::default() };
    let ask = Ask::new(&origin, &request(), BackendName::Native, &[], &decision);
    assert_eq!(ask.code.bytes(), b"cells");
    let ask = Ask::new(&Origin::default(), &request(), BackendName::Native, &[], &decision);
    assert_eq!(ask.code.bytes(), b"print(1)", "the control");
}

#[test]
fn a_question_shows_what_is_in_text_files_and_standard_input() {
    let decision = Decision::denial("default", String::new(), "policy");
    let mut request = request();
    let text = |ask: &Ask| -> Vec<Option<String>> {
        ask.run.stdin.iter().chain(&ask.run.files).map(|carried| carried.text.clone()).collect()
    };
    let ask =
        |request: &RunRequest| Ask::new(&Origin::default(), request, BackendName::Native, &[], &decision);
    assert_eq!(text(&ask(&request)), [Some("in".to_owned()), Some("1,2".to_owned())]);
    request.execution.stdin = Stdin::Stream(Box::new(std::io::empty()));
    // Bytes that are no text, and control characters that fill all the room in JSON.
    let large = vec![0x1b; MOST_SHOWN / 6 + 1];
    request.execution.files = vec![
        file("a.bin", b"\xff\xfe", false),
        file("b.txt", &large, false),
        file("c.txt", b"\x1b[2J", false),
    ];
    assert_eq!(text(&ask(&request)), [None, None, None, Some("\u{1b}[2J".to_owned())]);
}
