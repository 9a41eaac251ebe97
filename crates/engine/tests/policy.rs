//! Nothing runs that the policy denies, or that a person has not approved.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

#[allow(dead_code, reason = "these tests need less of it than others")]
mod scripted;

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_core::allowance::Allowance;
use belljar_core::backend::Ending;
use belljar_core::finding::{Finding, Launch, Launched, Position, Severity};
use belljar_core::language::Language;
use belljar_core::limits::LimitsRequest;
use belljar_core::outcome::{Outcome, Report};
use belljar_core::path::BoxPath;
use belljar_core::policy::{Action, Policy, Preset};
use belljar_core::request::{
    BackendChoice, Code, EnvVar, ExecutionRequest, Extras, InputFile, Network, RunRequest, SandboxRequest,
    Stdin,
};
use belljar_engine::{
    Account, Admission, Answer, Approver, Ask, Engine, Fate, Kept, Origin, Pending, Place, Prepared,
    Recorder, Rights, RunError, RunId, Scanned, Scanner, Scanning, Scans, Slots, Subject, Unapprovable,
    Unobserved, Unrecordable, Unscanned, Verdict,
};
use scripted::{Script, Scripted};
use tokio::sync::oneshot;

fn request(code: &str) -> RunRequest {
    let (box_limits, limits) = LimitsRequest::default().resolve().unwrap();
    let sandbox = SandboxRequest {
        backend: BackendChoice::Auto,
        waived: Vec::new(),
        limits: box_limits,
        network: Network::None,
        secrets: Vec::new(),
        workspace: None,
        env: Vec::new(),
        image: None,
    };
    let execution = ExecutionRequest {
        language: Language::by_name("python").unwrap(),
        code: Code::parse(code.as_bytes().to_vec(), None).unwrap(),
        args: Vec::new(),
        stdin: Stdin::Empty,
        files: Vec::new(),
        collect: Vec::new(),
        limits,
        extras: Extras::default(),
        allowed_imports: None,
    };
    RunRequest { sandbox, execution }
}

/// Finds severities by their names in the code, and imports that are not allowed. `sources FILE`, `starts FILE` and `reads`
/// run a file or standard input. It counts.
#[derive(Debug, Default)]
struct Words(AtomicUsize);

impl Scanner for Words {
    fn scan(&self, subject: &Subject) -> Result<Scanned, Unscanned> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(subject.code.bytes()).into_owned();
        if text.contains("unreadable") {
            return Err(Unscanned { reason: "it hurts".to_owned() });
        }
        let start = Position { line: 1, column: 1 };
        let found = |rule: &str, severity| Finding {
            rule: rule.to_owned(),
            severity,
            message: "was found".to_owned(),
            start,
            end: start,
            excerpt: String::new(),
            within: None,
        };
        let named = Severity::ALL.into_iter().filter(|severity| text.contains(severity.name()));
        let mut findings: Vec<_> = named.map(|severity| found("python.test.word", severity)).collect();
        if let (Some(allowed), Some(module)) = (&subject.allowed_imports, text.strip_prefix("import "))
            && !allowed.iter().any(|name| name == module)
        {
            findings.push(found("python.imports.not-allowed", Severity::High));
        }
        let language = Language::by_name("bash").unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let launched = words.iter().zip(words.iter().skip(1).chain(["" as &str].iter()));
        let launched = launched.filter_map(|(word, next)| match *word {
            "sources" => Some(Launched::File(vec!["-x".to_owned(), (*next).to_owned()])),
            "starts" => Some(Launched::Program((*next).to_owned())),
            "reads" => Some(Launched::Stdin),
            _ => None,
        });
        let launches = launched.map(|what| Launch { language, what }).collect();
        Ok(Scanned { findings, launches })
    }
}

fn engine(backend: &Arc<Scripted>) -> Engine {
    let engine = Engine::new(vec![backend.clone()], |unread| Ok(Prepared::unchanged(unread)));
    engine.with_scanner(Arc::new(Words::default()), Scanning::OnRequest)
}

fn backend() -> Arc<Scripted> {
    Script::of(Vec::new(), Ending::Exited(0)).backend()
}

/// Whether anything was started.
fn has_run(backend: &Scripted) -> bool {
    !backend.log.lock().unwrap().is_empty()
}

async fn admit(engine: &Engine, policy: &Policy, request: RunRequest) -> Result<Admission, RunError> {
    admit_from(&Origin::default(), engine, policy, request).await
}

async fn admit_from(
    origin: &Origin,
    engine: &Engine,
    policy: &Policy,
    request: RunRequest,
) -> Result<Admission, RunError> {
    let rights = Rights { allowance: &Allowance::everything(), policy, scans: None };
    engine.admit(origin, rights, request).await
}

async fn run(engine: &Engine, policy: &Policy, request: RunRequest) -> Result<Report, RunError> {
    let admission = admit(engine, policy, request).await?;
    engine.carry_out(&RunId::new(), admission, &mut Unobserved, pending()).await
}

fn stderr(report: &Report) -> String {
    String::from_utf8_lossy(&report.stderr.to_bytes()).into_owned()
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_does_not_run_and_is_a_result() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let denied = run(&engine(&backend), &standard, request("critical")).await.unwrap();
    assert!(!has_run(&backend));
    assert_eq!((denied.outcome, denied.outcome.exit_code()), (Outcome::Denied, 126));
    assert_eq!(denied.enforcement.kept(), [], "nothing ran, so nothing was kept");
    assert_eq!(stderr(&denied), "Denied by policy: python.test.word (critical) in line 1: was found\n");
    let decision = denied.decision.unwrap();
    assert_eq!((decision.action, decision.by.as_str()), (Action::Deny, "policy"));
    assert_eq!(decision.rule, "{ severity = \"critical\" }");
    assert_eq!(denied.findings.len(), 1);

    let allowed = run(&engine(&backend), &standard, request("medium")).await.unwrap();
    assert!(has_run(&backend), "the control");
    assert_eq!((allowed.outcome, allowed.decision.unwrap().action), (Outcome::Exited(0), Action::Allow));
}

#[tokio::test(start_paused = true)]
async fn an_open_policy_scans_and_decides_nothing() {
    let backend = backend();
    let report = run(&engine(&backend), &Policy::open(), request("critical unreadable")).await.unwrap();
    assert_eq!((report.outcome, report.decision, report.findings.len()), (Outcome::Exited(0), None, 0));
}

#[tokio::test(start_paused = true)]
async fn code_that_cannot_be_scanned_does_not_run_if_the_policy_wants_to_know() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let failed = run(&engine(&backend), &standard, request("unreadable")).await.unwrap_err();
    assert!(matches!(failed, RunError::Unscanned(_)), "{failed}");
    let blind = Engine::new(vec![backend.clone()], |unread| Ok(Prepared::unchanged(unread)));
    let failed = run(&blind, &standard, request("1")).await.unwrap_err();
    assert!(matches!(failed, RunError::Unscanned(_)), "{failed}");
    assert!(!has_run(&backend));
    run(&blind, &Policy::open(), request("1")).await.unwrap();
    assert!(has_run(&backend), "the control");
}

#[tokio::test(start_paused = true)]
async fn files_that_are_code_are_scanned_too() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let with = |path: &str, content: &str| {
        let mut request = request("import helper");
        let (path, content) = (BoxPath::parse(path).unwrap(), content.as_bytes().to_vec());
        request.execution.files = vec![InputFile { path, content, executable: false }];
        request
    };
    let code = [
        ("helper.py", "critical"),
        ("helper.PY", "critical"),
        ("run", "#!/bin/sh\ncritical"),
        ("x.sh", "\0critical"),
    ];
    for (path, content) in code {
        let denied = run(&engine(&backend), &standard, with(path, content)).await.unwrap();
        assert_eq!(denied.outcome, Outcome::Denied, "{path}");
        assert!(stderr(&denied).contains(&format!("(in {path})")), "{}", stderr(&denied));
    }
    let large = format!("#{}", "x".repeat(5 << 20));
    let unread = run(&engine(&backend), &Preset::Strict.policy(), with("large.py", &large)).await.unwrap();
    assert_eq!(unread.outcome, Outcome::Denied);
    for (path, content) in [("json.pyc", "x"), ("tool", "\x7fELF")] {
        let compiled = run(&engine(&backend), &Preset::Strict.policy(), with(path, content)).await.unwrap();
        assert_eq!(compiled.outcome, Outcome::Denied, "{path}");
    }
    assert!(!has_run(&backend));
    let data = run(&engine(&backend), &standard, with("data.csv", "critical")).await.unwrap();
    assert_eq!(data.outcome, Outcome::Exited(0), "the control");
}

fn with_files(code: &str, files: &[(&str, &str)]) -> RunRequest {
    let mut request = request(code);
    let file = |(path, content): &(&str, &str)| {
        let (path, content) = (BoxPath::parse(path).unwrap(), content.as_bytes().to_vec());
        InputFile { path, content, executable: false }
    };
    request.execution.files = files.iter().map(file).collect();
    request
}

#[tokio::test(start_paused = true)]
async fn files_that_the_code_runs_are_scanned_whatever_they_are_called() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let outcome = async |code: &str, files: &[(&str, &str)]| {
        run(&engine(&backend), &standard, with_files(code, files)).await.unwrap()
    };
    for code in ["sources data.txt", "sources ./data.txt", "sources /work/data.txt", "starts ./data.txt"] {
        let denied = outcome(code, &[("data.txt", "critical")]).await;
        assert_eq!(denied.outcome, Outcome::Denied, "{code}");
        assert_eq!(denied.findings[0].within.as_deref(), Some("data.txt"), "{code}");
    }
    let chained =
        [("a.txt", "sources b.txt"), ("b.txt", "sources a.txt sources c.txt"), ("c.txt", "critical")];
    assert_eq!(outcome("sources a.txt", &chained).await.outcome, Outcome::Denied, "one runs the next");
    let alike = [("x.txt", "harmless"), ("deep/x.txt", "critical")];
    assert_eq!(outcome("sources x.txt", &alike).await.outcome, Outcome::Denied, "any that may be meant");
    assert!(!has_run(&backend));
    for (code, file) in [("opens data.txt", "critical"), ("sources other.txt", "critical")] {
        assert_eq!(
            outcome(code, &[("data.txt", file)]).await.outcome,
            Outcome::Exited(0),
            "the control: {code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_the_code_loads_are_scanned_whatever_they_are_called() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let outcome = async |language: &str, code: &str, files: &[(&str, &str)]| {
        let mut request = with_files(code, files);
        request.execution.language = Language::by_name(language).unwrap();
        run(&engine(&backend), &standard, request).await.unwrap()
    };
    for (language, code, file) in [
        ("javascript", "require('./d.txt')", "d.txt"),
        ("javascript", "require('./d')", "d"),
        ("typescript", "require('./x')", "x/d.txt"),
        ("ruby", "load './d.txt'", "d.txt"),
        ("ruby", "load computed", "d.txt"),
        ("perl", "do './d.txt'", "d.txt"),
        ("c", "#include \"d.txt\"", "d.txt"),
        ("cpp", "no word", "e.h"),
        ("rust", "include!(\"d.txt\");", "d.txt"),
        ("python", "exec(open('d.txt').read())", "d.txt"),
    ] {
        let denied = outcome(language, code, &[(file, "critical")]).await;
        assert_eq!(denied.outcome, Outcome::Denied, "{language}: {code}");
        assert_eq!(denied.findings[0].within.as_deref(), Some(file), "{language}: {code}");
        assert_eq!(denied.findings.len(), 1, "{language}: {code}");
    }
    for code in ["include 'd.txt';", "include $computed;"] {
        let denied = outcome("php", code, &[("d.txt", "<?= critical")]).await;
        assert_eq!(denied.outcome, Outcome::Denied, "{code}");
    }
    let both = outcome("javascript", "require('./d.py')", &[("d.py", "critical")]).await;
    assert_eq!(
        (both.outcome, both.findings.len()),
        (Outcome::Denied, 2),
        "as what it is called and as what loads it"
    );
    let chained = [("a.txt", "load './b.txt'"), ("b.txt", "critical")];
    assert_eq!(
        outcome("ruby", "load './a.txt'", &chained).await.outcome,
        Outcome::Denied,
        "one loads the next"
    );
    let helper = [("helper.rb", "load './b.txt'"), ("b.txt", "critical")];
    assert_eq!(outcome("python", "x", &helper).await.outcome, Outcome::Denied, "in the language of a file");
    assert!(!has_run(&backend));
    for (language, code) in [("ruby", "puts File.read('d.txt')"), ("python", "print(open('d.txt').read())")] {
        let ran = outcome(language, code, &[("d.txt", "critical")]).await;
        assert_eq!(ran.outcome, Outcome::Exited(0), "the control: {language}: {code}");
    }
    let quiet = outcome("ruby", "load './d.txt'", &[("d.txt", "low")]).await;
    assert_eq!(quiet.findings, [], "what does not parse is no finding there");
}

#[tokio::test(start_paused = true)]
async fn files_that_a_runtime_looks_for_when_it_starts_are_found_and_scanned() {
    let backend = backend();
    let outcome = async |preset: Preset, path: &str, content: &str| {
        run(&engine(&backend), &preset.policy(), with_files("x", &[(path, content)])).await.unwrap()
    };
    let pth = ".local/lib/python3.11/site-packages/e.pth";
    for path in [pth, ".zshenv", ".bashrc", ".local/lib/python3.11/site-packages/usercustomize.py"] {
        let denied = outcome(Preset::Strict, path, "harmless").await;
        assert_eq!(denied.outcome, Outcome::Denied, "{path}");
        assert_eq!(denied.findings[0].rule, "any.files.runs-at-start", "{path}");
        assert_eq!(denied.findings[0].within.as_deref(), Some(path));
        assert_eq!(denied.findings.len(), 1, "{path}");
    }
    for (path, content) in [(pth, "'''\nimport critical"), (".zshenv", "critical")] {
        let denied = outcome(Preset::Standard, path, content).await;
        assert_eq!(denied.findings.len(), 2, "{path}");
        assert!(stderr(&denied).contains("(critical)"), "{}", stderr(&denied));
    }
    let path = outcome(Preset::Standard, pth, "/a/critical/path").await;
    assert_eq!(path.findings.len(), 1, "such a line of it is not run");
    assert!(!has_run(&backend));
    for path in ["package.json", ".env"] {
        assert_eq!(
            outcome(Preset::Strict, path, "x").await.outcome,
            Outcome::Exited(0),
            "the control: {path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn standard_input_that_the_code_runs_is_scanned() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let outcome = async |code: &str, stdin: Stdin| {
        let mut request = request(code);
        request.execution.stdin = stdin;
        run(&engine(&backend), &standard, request).await.unwrap().outcome
    };
    let bytes = || Stdin::Bytes(b"critical".to_vec());
    assert_eq!(outcome("reads", bytes()).await, Outcome::Denied);
    // What cannot be read before is high, and nobody can be asked here.
    assert_eq!(outcome("reads", Stdin::Stream(Box::new(std::io::empty()))).await, Outcome::Denied);
    assert!(!has_run(&backend));
    for (code, stdin) in [("looks at", bytes()), ("reads", Stdin::Empty)] {
        assert_eq!(outcome(code, stdin).await, Outcome::Exited(0), "the control: {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_runs_more_than_once_is_scanned_once() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let words = Arc::new(Words::default());
    let engine = Engine::new(vec![backend.clone()], |unread| Ok(Prepared::unchanged(unread)));
    let engine = engine.with_scanner(words.clone(), Scanning::OnRequest);
    let (scans, allowance) = (Scans::default(), Allowance::everything());
    let scanned = async |code: &str, input: &str, scans: Option<&Scans>| {
        let before = words.0.load(Ordering::Relaxed);
        let mut request = with_files(code, &[("helper.py", "medium")]);
        request.execution.stdin = Stdin::Bytes(input.as_bytes().to_vec());
        let rights = Rights { allowance: &allowance, policy: &standard, scans };
        let admission = engine.admit(&Origin::default(), rights, request).await.unwrap();
        let report = engine.carry_out(&RunId::new(), admission, &mut Unobserved, pending()).await.unwrap();
        (words.0.load(Ordering::Relaxed) - before, report.findings.len())
    };
    assert_eq!(scanned("x", "1", None).await, (2, 1));
    assert_eq!(scanned("x", "2", None).await, (2, 1), "the control");
    assert_eq!(scanned("x", "1", Some(&scans)).await, (2, 1));
    assert_eq!(scanned("x", "2", Some(&scans)).await, (0, 1));
    assert_eq!(scanned("reads", "1", Some(&scans)).await, (2, 1), "other code, and its input");
    assert_eq!(scanned("reads", "low", Some(&scans)).await, (1, 2), "another input");
}

#[tokio::test(start_paused = true)]
async fn variables_that_make_a_runtime_run_other_code_are_found() {
    let (backend, strict) = (backend(), Preset::Strict.policy());
    let with = |name: &str| {
        let mut request = request("x");
        request.sandbox.env = EnvVar::parse_all(vec![(name.to_owned(), "v".to_owned())]).unwrap();
        request
    };
    for name in
        ["BASH_ENV", "NODE_OPTIONS", "PYTHONPATH", "LD_PRELOAD", "SHELLOPTS", "PS4", "GOFLAGS", "HOME"]
    {
        let denied = run(&engine(&backend), &strict, with(name)).await.unwrap();
        assert_eq!(denied.outcome, Outcome::Denied, "{name}");
        assert!(stderr(&denied).contains(name), "{}", stderr(&denied));
    }
    assert!(!has_run(&backend));
    for name in ["GREETING", "PYTHONUNBUFFERED", "NODE_ENV", "RUST_LOG"] {
        let harmless = run(&engine(&backend), &strict, with(name)).await.unwrap();
        assert_eq!(harmless.outcome, Outcome::Exited(0), "the control: {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn cells_of_a_notebook_are_scanned_one_by_one() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let from = |cells: &[&str]| {
        let cells: Arc<[String]> = cells.iter().map(|cell| (*cell).to_owned()).collect();
        Origin { cells: Some(cells), ..Origin::default() }
    };
    let outcome = async |cells: &[&str]| {
        let engine = engine(&backend);
        let admission = admit_from(&from(cells), &engine, &standard, request("the driver")).await.unwrap();
        engine.carry_out(&RunId::new(), admission, &mut Unobserved, pending()).await.unwrap().outcome
    };
    assert_eq!(outcome(&["1", "critical", "2"]).await, Outcome::Denied);
    assert!(!has_run(&backend));
    assert_eq!(outcome(&["1", "2"]).await, Outcome::Exited(0), "the control");
}

#[tokio::test(start_paused = true)]
async fn a_request_can_narrow_what_is_imported() {
    let backend = backend();
    let importing = |module: &str, allowed: &[&str]| {
        let mut request = request(&format!("import {module}"));
        request.execution.allowed_imports = Some(allowed.iter().map(|name| (*name).to_owned()).collect());
        request
    };
    let denied = run(&engine(&backend), &Policy::open(), importing("os", &["json"])).await.unwrap();
    assert_eq!((denied.outcome, has_run(&backend)), (Outcome::Denied, false));
    assert_eq!(denied.decision.unwrap().by, "request");
    // A list that is longer than the policy's does not make it longer.
    let strict = Preset::Strict.policy();
    let denied = run(&engine(&backend), &strict, importing("os", &["os"])).await.unwrap();
    assert_eq!((denied.outcome, has_run(&backend)), (Outcome::Denied, false));
    let allowed = run(&engine(&backend), &strict, importing("json", &["json"])).await.unwrap();
    assert_eq!(allowed.outcome, Outcome::Exited(0), "the control");
}

#[tokio::test(start_paused = true)]
async fn without_somebody_to_ask_a_run_that_needs_an_approval_is_denied() {
    let backend = backend();
    let denied = run(&engine(&backend), &Preset::Standard.policy(), request("high")).await.unwrap();
    assert_eq!((denied.outcome, has_run(&backend)), (Outcome::Denied, false));
    let said = stderr(&denied);
    assert!(said.ends_with("it needs an approval, and nobody can be asked here\n"), "{said}");
}

/// Hands the questions to the test.
#[derive(Debug, Default)]
struct Desk(Mutex<Vec<(Ask, oneshot::Sender<Verdict>)>>);

impl Approver for Desk {
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable> {
        match ask.code.bytes() {
            b"high full" => return Err(Unapprovable { why: "the desk is full".to_owned() }),
            b"high known" => return Ok(Answer::Decided(verdict(true))),
            b"high refused" => return Ok(Answer::Decided(verdict(false))),
            _ => {}
        }
        let (decide, decided) = oneshot::channel();
        self.0.lock().unwrap().push((ask, decide));
        let decided = Box::pin(async { decided.await.unwrap() });
        Ok(Answer::Pending(Pending { approval_id: "apr_1".to_owned(), decided }))
    }
}

fn verdict(approved: bool) -> Verdict {
    Verdict { approved, by: "alice".to_owned(), reason: None, approval_id: None }
}

impl Desk {
    fn decide(&self, verdict: Verdict) -> Ask {
        let (ask, decide) = self.0.lock().unwrap().pop().unwrap();
        decide.send(verdict).unwrap();
        ask
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_a_person_holds_no_slot_and_runs_when_it_is_approved() {
    let (backend, desk, standard) = (backend(), Arc::new(Desk::default()), Preset::Standard.policy());
    let engine = engine(&backend).with_slots(Slots::new(1, 0)).with_approver(desk.clone());
    let admission = admit(&engine, &standard, request("high")).await.unwrap();
    assert_eq!(admission.approval_id(), Some("apr_1"));
    let (id, mut unobserved) = (RunId::new(), Unobserved);
    let mut waiting = Box::pin(engine.carry_out(&id, admission, &mut unobserved, pending()));
    let early = tokio::time::timeout(Duration::from_secs(3600), waiting.as_mut()).await;
    assert!(early.is_err() && !has_run(&backend));
    assert_eq!((engine.slots().unwrap().in_use(), engine.slots().unwrap().waiting()), (0, 0));

    // The only slot is taken while somebody approves it: then it waits for that, too.
    let Ok(Admission::Admitted(other)) = admit(&engine, &standard, request("1")).await else { panic!() };
    let ask = desk.decide(verdict(true));
    assert_eq!((ask.findings.len(), ask.decision.action), (1, Action::Approve));
    assert!(tokio::time::timeout(Duration::from_secs(3600), waiting.as_mut()).await.is_err());
    assert!(!has_run(&backend));
    drop(other);
    let report = waiting.await.unwrap();
    assert!(has_run(&backend));
    assert_eq!(report.outcome, Outcome::Exited(0));
    let decision = report.decision.unwrap();
    assert_eq!((decision.action, decision.by.as_str()), (Action::Approve, "alice"));
    assert_eq!(decision.approval_id.as_deref(), Some("apr_1"));
}

#[tokio::test(start_paused = true)]
async fn what_a_person_does_not_approve_does_not_run() {
    let (backend, desk, standard) = (backend(), Arc::new(Desk::default()), Preset::Standard.policy());
    let engine = engine(&backend).with_approver(desk.clone());
    let admission = admit(&engine, &standard, request("high")).await.unwrap();
    desk.decide(Verdict { reason: Some("not today".to_owned()), ..verdict(false) });
    let report = engine.carry_out(&RunId::new(), admission, &mut Unobserved, pending()).await.unwrap();
    assert_eq!((report.outcome, has_run(&backend)), (Outcome::Denied, false));
    assert_eq!(stderr(&report), "Denied by policy: not today\n");
    let decision = report.decision.unwrap();
    assert_eq!((decision.by.as_str(), decision.approval_id.as_deref()), ("alice", Some("apr_1")));
}

#[tokio::test(start_paused = true)]
async fn a_caller_can_give_up_before_anybody_has_decided() {
    let (backend, desk, standard) = (backend(), Arc::new(Desk::default()), Preset::Standard.policy());
    let engine = engine(&backend).with_approver(desk.clone());
    let admission = admit(&engine, &standard, request("high")).await.unwrap();
    let report = engine.carry_out(&RunId::new(), admission, &mut Unobserved, async { None }).await.unwrap();
    assert_eq!((report.outcome, has_run(&backend)), (Outcome::Cancelled(None), false));
    assert!(desk.0.lock().unwrap()[0].1.is_closed(), "the question is withdrawn");
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_known_at_once_or_not_to_be_had() {
    let (backend, standard) = (backend(), Preset::Standard.policy());
    let engine = engine(&backend).with_approver(Arc::new(Desk::default()));
    for code in ["high full", "high refused"] {
        let report = run(&engine, &standard, request(code)).await.unwrap();
        assert_eq!((report.outcome, has_run(&backend)), (Outcome::Denied, false), "{code}");
    }
    let report = run(&engine, &standard, request("high known")).await.unwrap();
    assert_eq!((report.outcome, has_run(&backend)), (Outcome::Exited(0), true));
}

/// Keeps accounts, with room for one at a time.
#[derive(Debug, Default)]
struct Book {
    held: Mutex<usize>,
    accounts: Mutex<Vec<Account>>,
}

impl Recorder for Book {
    fn reserve(&self) -> Result<Place, Unrecordable> {
        let mut held = self.held.lock().unwrap();
        if *held > 0 {
            return Err(Unrecordable { why: "full".to_owned() });
        }
        *held += 1;
        Ok(Place::Held)
    }

    fn release(&self) {
        *self.held.lock().unwrap() -= 1;
    }

    fn record(&self, account: Box<Account>) -> Option<Kept> {
        self.release();
        self.accounts.lock().unwrap().push(*account);
        None
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_decided_is_recorded_and_a_run_that_waits_holds_no_place() {
    let (backend, desk, book) = (backend(), Arc::new(Desk::default()), Arc::new(Book::default()));
    let standard = Preset::Standard.policy();
    let engine = engine(&backend).with_recorder(book.clone()).with_approver(desk.clone());
    run(&engine, &standard, request("critical")).await.unwrap();
    let waiting = admit(&engine, &standard, request("high")).await.unwrap();
    run(&engine, &standard, request("low")).await.unwrap();
    desk.decide(verdict(true));
    engine.carry_out(&RunId::new(), waiting, &mut Unobserved, pending()).await.unwrap();
    drop(admit(&engine, &standard, request("high")).await.unwrap());
    let accounts = book.accounts.lock().unwrap();
    let recorded: Vec<_> = accounts
        .iter()
        .map(|account| {
            let outcome = match &account.fate {
                Fate::Ran(ran) => Some(ran.outcome),
                Fate::Refused(_) | Fate::Failed(_) => None,
            };
            (outcome, account.decision.as_ref().unwrap().action, account.findings.len())
        })
        .collect();
    assert_eq!(
        recorded,
        [
            (Some(Outcome::Denied), Action::Deny, 1),
            (Some(Outcome::Exited(0)), Action::Allow, 1),
            (Some(Outcome::Exited(0)), Action::Approve, 1),
            (None, Action::Approve, 1),
        ]
    );
    assert_eq!(*book.held.lock().unwrap(), 0);
}
