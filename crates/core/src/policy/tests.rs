use std::path::Path;
use std::time::Duration;

use super::*;
use crate::finding::{Position, Severity};
use crate::limits::{Bytes, LimitsRequest};
use crate::path::Workspace;
use crate::request::{BackendChoice, Code, ExecutionRequest, Extras, Network, SandboxRequest, Stdin};

fn request() -> RunRequest {
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
        code: Code::parse(b"1".to_vec(), None).unwrap(),
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

fn finding(rule: &str, severity: Severity, line: u32) -> Finding {
    let start = Position { line, column: 1 };
    Finding {
        rule: rule.to_owned(),
        severity,
        message: "does something".to_owned(),
        start,
        end: start,
        excerpt: String::new(),
        within: None,
    }
}

fn policy(rules: Vec<(Conditions, Action)>) -> Policy {
    let rule = |(at, (when, then)): (usize, (Conditions, Action))| {
        let origin = Written { place: "belljar.toml".into(), line: Some(at + 1) };
        Rule { when, then, origin }
    };
    Policy { rules: rules.into_iter().enumerate().map(rule).collect(), ..Policy::open() }
}

fn at_least(severity: Severity) -> Conditions {
    Conditions { severity: Some(severity), ..Conditions::default() }
}

fn of_rule(pattern: &str) -> Conditions {
    Conditions { rules: vec![Pattern(pattern.to_owned())], ..Conditions::default() }
}

fn action(policy: &Policy, findings: &[Finding]) -> Action {
    policy.decide(&request(), Some(BackendName::Native), findings).decision.action
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(vec![
        (of_rule("python.process.*"), Action::Warn),
        (at_least(Severity::High), Action::Deny),
        (at_least(Severity::Info), Action::Approve),
    ]);
    let spawn = finding("python.process.spawn", Severity::High, 3);
    let other = finding("python.network.socket", Severity::Critical, 7);
    assert_eq!(action(&policy, std::slice::from_ref(&spawn)), Action::Warn);
    assert_eq!(action(&policy, std::slice::from_ref(&other)), Action::Deny);
    assert_eq!(action(&policy, &[other.clone(), spawn]), Action::Warn, "rules are in order, not findings");
    assert_eq!(action(&policy, &[finding("python.x.y", Severity::Low, 1)]), Action::Approve);
    assert_eq!(action(&policy, &[]), Action::Allow);

    let ruling = policy.decide(&request(), None, &[other.clone(), other]);
    assert_eq!(ruling.origin.to_string(), "belljar.toml:2");
    assert_eq!(ruling.decision.rule, "{ severity = \"high\" }");
    assert_eq!(
        ruling.decision.reason,
        "python.network.socket (critical) in line 7: does something, and one more finding"
    );
}

#[test]
fn a_severity_and_a_rule_are_about_the_same_finding() {
    let when = Conditions { severity: Some(Severity::High), ..of_rule("python.process.*") };
    let policy = policy(vec![(when, Action::Deny)]);
    let low = finding("python.process.spawn", Severity::Low, 1);
    let high = finding("python.network.socket", Severity::High, 1);
    assert_eq!(action(&policy, &[low, high]), Action::Allow);
    assert_eq!(action(&policy, &[finding("python.process.spawn", Severity::High, 1)]), Action::Deny);
}

#[test]
fn presets_do_what_their_names_say() {
    let decide = |preset: Preset, severity| action(&preset.policy(), &[finding("python.a.b", severity, 1)]);
    let expected = [
        (Severity::Low, [Action::Allow, Action::Allow, Action::Allow]),
        (Severity::Medium, [Action::Allow, Action::Allow, Action::Approve]),
        (Severity::High, [Action::Allow, Action::Approve, Action::Deny]),
        (Severity::Critical, [Action::Allow, Action::Deny, Action::Deny]),
    ];
    for (severity, actions) in expected {
        assert_eq!(Preset::ALL.map(|preset| decide(preset, severity)), actions, "{severity}");
    }
    assert_eq!(Preset::ALL.map(|preset| preset.policy().is_open()), [true, false, false]);
    let python = Language::by_name("python").unwrap();
    assert_eq!(Preset::ALL.map(|preset| preset.policy().needs_findings(python)), [false, true, true]);
    assert_eq!(
        Preset::Strict.policy().imports(python, None).map(|list| list.contains(&"os".to_owned())),
        Some(false)
    );
    for preset in Preset::ALL {
        assert_eq!(Preset::by_name(preset.name()), Some(preset));
    }
}

/// Conditions, a request that they match, and one that they do not.
type Case = (&'static str, Conditions, fn(&mut RunRequest), fn(&mut RunRequest));

fn cases() -> Vec<Case> {
    let none = Conditions::default;
    let memory = Above { memory: Some(Bytes::new(256 << 20)), ..Above::default() };
    let cpu_time = Above { cpu_time: Some(Duration::from_secs(5)), ..Above::default() };
    let network = |text: &str| Conditions {
        networks: vec![NetworkCondition::parse(text).unwrap()],
        ..Conditions::default()
    };
    let unchanged: fn(&mut RunRequest) = |_| {};
    vec![
        ("language", Conditions { languages: vec!["ruby", "python"], ..none() }, unchanged, |r| {
            r.execution.language = Language::by_name("lua").unwrap();
        }),
        ("full", network("full"), |r| r.sandbox.network = Network::Full, unchanged),
        ("none", network("none"), unchanged, |r| r.sandbox.network = Network::Full),
        (
            "hosts",
            network("allow"),
            |r| r.sandbox.network = Network::parse("allow:a.org").unwrap(),
            |r| {
                r.sandbox.network = Network::Full;
            },
        ),
        (
            "a host",
            network("allow:*.evil.org"),
            |r| r.sandbox.network = Network::parse("allow:a.org,b.evil.org").unwrap(),
            |r| r.sandbox.network = Network::parse("allow:a.org").unwrap(),
        ),
        (
            "image",
            Conditions { images: vec![Pattern("evil/*".to_owned())], ..none() },
            |r| r.sandbox.image = Some("evil/python:3".to_owned()),
            |r| r.sandbox.image = Some("python:3".to_owned()),
        ),
        (
            "workspace",
            Conditions { workspaces: vec!["/srv/secret".into()], ..none() },
            |r| r.sandbox.workspace = Some(Workspace::parse(Path::new("/srv/a/../secret/b")).unwrap()),
            |r| r.sandbox.workspace = Some(Workspace::parse(Path::new("/srv/secrets")).unwrap()),
        ),
        (
            "memory",
            Conditions { above: memory, ..none() },
            |r| r.sandbox.limits.memory = Bytes::new(1 << 30),
            unchanged,
        ),
        ("cpu time", Conditions { above: cpu_time, ..none() }, unchanged, |r| {
            r.execution.limits.cpu_time = Some(Duration::from_secs(5));
        }),
    ]
}

#[test]
fn a_condition_holds_or_not() {
    for (what, when, matching, other) in cases() {
        let policy = policy(vec![(when, Action::Deny)]);
        let decide = |change: fn(&mut RunRequest)| {
            let mut request = request();
            change(&mut request);
            policy.decide(&request, Some(BackendName::Native), &[]).decision.action
        };
        assert_eq!((decide(matching), decide(other)), (Action::Deny, Action::Allow), "{what}");
    }
}

#[test]
fn a_backend_is_the_one_that_would_run_it() {
    let when = Conditions { backends: vec![BackendName::Docker], ..Conditions::default() };
    let policy = policy(vec![(when, Action::Deny)]);
    let decide = |backend| policy.decide(&request(), Some(backend), &[]).decision.action;
    assert_eq!((decide(BackendName::Docker), decide(BackendName::Native)), (Action::Deny, Action::Allow));
}

#[test]
fn all_conditions_of_a_rule_must_hold() {
    let when = Conditions {
        languages: vec!["python"],
        networks: vec![NetworkCondition::Full],
        ..at_least(Severity::Medium)
    };
    let policy = policy(vec![(when, Action::Deny)]);
    let found = [finding("python.a.b", Severity::Medium, 1)];
    assert_eq!(action(&policy, &found), Action::Allow);
    let mut full = request();
    full.sandbox.network = Network::Full;
    let ruling = policy.decide(&full, None, &found);
    assert_eq!(ruling.decision.action, Action::Deny);
    assert_eq!(
        ruling.decision.reason,
        "the language is python; the network is full; python.a.b (medium) in line 1: does something"
    );
    assert_eq!(policy.decide(&full, None, &[]).decision.action, Action::Allow);
}

#[test]
fn a_rule_about_findings_needs_a_scan_only_for_its_languages() {
    let when = Conditions { languages: vec!["ruby"], ..at_least(Severity::Low) };
    let policy = policy(vec![(when, Action::Deny)]);
    let needs = |name| policy.needs_findings(Language::by_name(name).unwrap());
    assert_eq!((needs("ruby"), needs("python")), (true, false));
}

#[test]
fn imports_that_are_not_on_the_list_are_denied_after_all_rules() {
    let list = AllowedImports {
        language: "python",
        modules: vec!["json".to_owned(), "os.path".to_owned()],
        origin: Written { place: "belljar.toml".into(), line: Some(9) },
    };
    let bare = Policy { allowed_imports: vec![list], ..Policy::open() };
    let found = [finding("python.imports.not-allowed", Severity::High, 1)];
    let ruling = bare.decide(&request(), None, &found);
    assert_eq!(
        (ruling.decision.action, ruling.origin.to_string()),
        (Action::Deny, "belljar.toml:9".to_owned())
    );
    assert_eq!(ruling.decision.rule, "allowed-imports.python");
    assert_eq!(action(&bare, &[]), Action::Allow);
    let bash = Language::by_name("bash").unwrap();
    assert!(bare.needs_findings(bash), "a shell can start Python");
    let node = AllowedImports { language: "javascript", ..bare.allowed_imports[0].clone() };
    let node = Policy { allowed_imports: vec![node], ..Policy::open() };
    let found_in_typescript = [finding("typescript.imports.not-allowed", Severity::High, 1)];
    assert_eq!(action(&node, &found_in_typescript), Action::Deny, "they import each other");
    assert_eq!(action(&node, &found), Action::Allow, "the control: Python has no list");
    let lenient = Policy { rules: policy(vec![(at_least(Severity::High), Action::Warn)]).rules, ..bare };
    assert_eq!(action(&lenient, &found), Action::Warn);
}

#[test]
fn a_request_can_only_take_imports_away() {
    let python = Language::by_name("python").unwrap();
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let list = AllowedImports {
        language: "python",
        modules: strings(&["json", "os.path", "xml"]),
        origin: Written::in_words("here"),
    };
    let policy = Policy { allowed_imports: vec![list], ..Policy::open() };
    let narrowed = |asked: &[&str]| policy.imports(python, Some(&strings(asked))).unwrap();
    assert_eq!(narrowed(&["json", "socket"]), ["json"]);
    assert_eq!(narrowed(&["os", "xml.dom"]), ["os.path", "xml.dom"]);
    assert_eq!(narrowed(&["js", "xmlrpc"]), Vec::<String>::new());
    assert_eq!(Policy::open().imports(python, Some(&strings(&["socket"]))), Some(strings(&["socket"])));
    assert_eq!(Policy::open().imports(python, None), None);
}

#[test]
fn a_star_stands_for_any_text() {
    for (pattern, text, matches) in [
        ("python.process.*", "python.process.spawn", true),
        ("python.process.*", "python.processes.spawn", false),
        ("*.imports.not-allowed", "javascript.imports.not-allowed", true),
        ("*", "", true),
        ("a*a", "a", false),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c", false),
        ("a", "ab", false),
    ] {
        assert_eq!(Pattern(pattern.to_owned()).matches(text), matches, "{pattern} {text}");
    }
}

#[test]
fn actions_are_ordered_and_known_by_their_names() {
    assert!(Action::ALL.is_sorted());
    for action in Action::ALL {
        assert_eq!(Action::by_name(action.name()), Some(action));
    }
}
