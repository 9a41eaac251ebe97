//! What an account of the engine's becomes in the ledger: the values of its columns, without secrets, and of limited size.

use std::time::{SystemTime, UNIX_EPOCH};

use belljar_core::finding;
use belljar_core::guarantee::Guarantee;
use belljar_core::language::Language;
use belljar_core::limits::{BoxLimits, ExecutionLimits};
use belljar_core::outcome::{DeniedHost, Outcome, Stage};
use belljar_core::policy;
use belljar_core::request::Code;
use belljar_engine::{Account, Asked, Compiler, Digested, Excerpt, Fate, Origin, Ran, RunId};
use belljar_wire::{
    AuditCompile, AuditFile, AuditRequest, Decision, Finding, Limits, NetworkDenied, RunResult, Usage,
};
use rusqlite::types::Value;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::chain::hex;
use crate::redact::Redactor;
use crate::schema::{LABELLED, label};

/// How much of the code is kept. Its digest covers all of it.
const MOST_CODE: usize = 256 << 10;
/// What is read beyond the end of what is kept, so that a secret across that end is recognized.
const MARGIN: usize = 4 << 10;
/// How many files are listed.
const MOST_FILES: usize = 1000;
/// How much of each argument, name or message is kept, and of how many arguments.
const MOST_TEXT: usize = 4 << 10;
const MOST_ARGS: usize = 64;
/// How many findings are kept. A scan reports fewer.
const MOST_FINDINGS: usize = 1000;

/// The values of a record's columns, apart from those that its place in the chain gives it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub(crate) values: Vec<(&'static str, Value)>,
    /// What it is found by.
    pub(crate) words: String,
}

impl Entry {
    /// What is kept of an account.
    #[must_use]
    pub fn new(account: &Account, redactor: &Redactor) -> Entry {
        let secrets: Vec<&str> = account.asked.env.iter().map(belljar_core::request::EnvVar::value).collect();
        Draft { redactor, secrets, redactions: 0 }.entry(account)
    }

    /// A note that attempts were not recorded.
    #[must_use]
    pub fn unrecorded(count: u64, redactor: &Redactor) -> Entry {
        let plural = if count == 1 { "attempt was" } else { "attempts were" };
        let account = Account {
            id: RunId::new().to_string(),
            at: SystemTime::now(),
            origin: Origin { caller: "belljar".into(), ..Origin::default() },
            asked: Asked::default(),
            findings: Vec::new(),
            decision: None,
            fate: Fate::Failed(format!("{count} {plural} not recorded, because the ledger was full")),
        };
        let mut entry = Entry::new(&account, redactor);
        for (name, value) in &mut entry.values {
            if *name == "status" {
                *value = Value::Text("unrecorded".to_owned());
            }
        }
        entry
    }
}

impl Entry {
    /// What it is found by: its words, and its values that are searched for.
    pub(crate) fn words_and_labels(&self) -> String {
        let labelled = self.values.iter().filter(|(name, _)| LABELLED.contains(name));
        let labels = labelled.filter_map(|(name, value)| {
            let Value::Text(text) = value else { return None };
            Some(label(name, text))
        });
        labels.fold(self.words.clone(), |words, label| words + "\n" + &label)
    }
}

struct Draft<'a> {
    redactor: &'a Redactor,
    secrets: Vec<&'a str>,
    redactions: u64,
}

impl Draft<'_> {
    fn entry(mut self, account: &Account) -> Entry {
        let Account { asked, fate, findings, decision, .. } = account;
        let (ran, why) = match fate {
            Fate::Ran(ran) => (Some(&**ran), None),
            Fate::Refused(why) | Fate::Failed(why) => (None, Some(why)),
        };
        let error = why.map(|why| self.short(why));
        let code = asked.code.as_ref().map(|code| self.code(code));
        let [stdout, stderr] = [ran.map(|ran| &ran.stdout), ran.map(|ran| &ran.stderr)]
            .map(|excerpt| excerpt.map(|excerpt| self.stream(excerpt)));
        let compile = ran.and_then(|ran| Some(self.compiler(ran.compile.as_ref()?, ran.stage)));
        let request = self.request(asked);
        let files: Vec<_> = asked.files.iter().take(MOST_FILES).map(|file| self.file(file)).collect();
        let produced = ran.map_or(&[][..], |ran| &ran.produced).iter().take(MOST_FILES);
        let produced: Vec<_> = produced.map(|(path, size)| self.returned(path, *size)).collect();
        let findings = self.findings(findings);
        let used = ran.map(|ran| self.used(ran));
        let decided = decision.as_ref().map_or(Value::Null, |decision| json(&self.decision(decision)));
        let compiler = compile.as_ref().map(|compile| [compile.stdout.as_ref(), compile.stderr.as_ref()]);
        let [said, complained] = compiler.unwrap_or_default();
        let words = [code.as_ref(), stdout.as_ref(), stderr.as_ref(), said, complained, error.as_ref()];
        let words = words.into_iter().flatten().chain(findings.iter().map(|finding| &finding.rule));
        let words = words.map(String::as_str).collect::<Vec<_>>().join("\n");
        let mut values = of_origin(account).to_vec();
        values.extend([
            ("language", text(&self.short(&asked.language))),
            ("code", optional(code)),
            ("code_bytes", count(asked.code.as_ref().map(|code| code.bytes().len() as u64))),
            ("code_sha256", optional(asked.code.as_ref().map(|code| hex(&Sha256::digest(code.bytes()))))),
            ("request", json(&request)),
            ("files", json(&files)),
            ("limits", asked.limits.map_or(Value::Null, |limits| json(&stated(&asked.language, limits)))),
            ("network", optional(ran.map(|ran| ran.network.clone()).or_else(|| asked.network.clone()))),
            ("backend", optional(asked.backend.map(|name| name.name().to_owned()))),
            ("image", optional(ran.and_then(|ran| ran.image.clone()).or_else(|| asked.image.clone()))),
            ("findings", json(&findings)),
            ("decision", decided),
            ("decider", optional(decision.as_ref().map(|decision| decision.by.clone()))),
            ("status", text(status(fate))),
            ("exit_code", ran.map_or(Value::Null, |ran| Value::Integer(ran.outcome.exit_code().into()))),
            ("error", optional(error)),
            ("stdout", optional(stdout)),
            ("stderr", optional(stderr)),
            ("stdout_bytes", count(ran.map(|ran| length(&ran.stdout)))),
            ("stderr_bytes", count(ran.map(|ran| length(&ran.stderr)))),
            ("produced", json(&produced)),
        ]);
        values.extend(outcome(ran, used.as_ref(), compile.as_ref(), asked));
        values.push(("redactions", count(Some(self.redactions))));
        Entry { values, words }
    }

    fn code(&mut self, code: &Code) -> String {
        let bytes = &code.bytes()[..code.bytes().len().min(MOST_CODE + MARGIN)];
        let text = String::from_utf8_lossy(bytes);
        let most = text.len().min(MOST_CODE);
        let mut kept = self.part(&text, 0..most);
        if code.bytes().len() > MOST_CODE {
            kept.push_str("\n[... the rest is not recorded ...]\n");
        }
        kept
    }

    /// Beginning and end, without the margins that were read for the sake of secrets.
    fn stream(&mut self, excerpt: &Excerpt) -> String {
        let Excerpt { head, tail, missing } = excerpt;
        let head = String::from_utf8_lossy(head);
        if *missing == 0 {
            return self.part(&head, 0..head.len());
        }
        let tail = String::from_utf8_lossy(tail);
        let first = self.part(&head, 0..head.len().saturating_sub(MARGIN));
        let last = self.part(&tail, MARGIN.min(tail.len())..tail.len());
        let missing = missing + (2 * MARGIN) as u64;
        format!("{first}\n[... about {missing} bytes are not recorded ...]\n{last}")
    }

    /// A compiler that ended the run wrote what the run wrote: that is recorded once.
    fn compiler(&mut self, compiler: &Compiler, stage: Stage) -> AuditCompile {
        let Compiler { outcome, stdout, stderr, usage, cached } = compiler;
        let [stdout, stderr] =
            [stdout, stderr].map(|excerpt| (stage == Stage::Run).then(|| self.stream(excerpt)));
        AuditCompile {
            exit_code: outcome.exit_code(),
            timed_out: matches!(outcome, Outcome::TimedOut(_)),
            stdout,
            stderr,
            usage: Some((*usage).into()),
            cached: *cached,
        }
    }

    fn request(&mut self, asked: &Asked) -> AuditRequest {
        AuditRequest {
            args: asked.args.iter().take(MOST_ARGS).map(|arg| self.short(arg)).collect(),
            env: asked.env.iter().take(MOST_FILES).map(|variable| self.short(variable.name())).collect(),
            stdin: asked.stdin.as_ref().map(digested),
            collect: asked.collect.iter().map(|pattern| self.short(pattern)).collect(),
            secrets: asked.secrets.iter().map(|host| self.short(host)).collect(),
            workspace: asked.workspace.as_deref().map(|path| self.short(path)),
            files_omitted: asked.files.len().saturating_sub(MOST_FILES) as u64,
        }
    }

    /// Its name is the caller's choice, as text is.
    fn file(&mut self, file: &Digested) -> AuditFile {
        let AuditFile { path, size, sha256 } = digested(file);
        AuditFile { path: self.short(&path), size, sha256 }
    }

    /// The program's choice.
    fn returned(&mut self, path: &str, size: u64) -> AuditFile {
        AuditFile { path: self.short(path), size: Some(size), sha256: None }
    }

    /// The excerpts are code, and so may have secrets; a message can name a part of it.
    fn findings(&mut self, findings: &[finding::Finding]) -> Vec<Finding> {
        let mut kept: Vec<_> = findings.iter().take(MOST_FINDINGS).map(Finding::from).collect();
        for finding in &mut kept {
            finding.message = self.short(&finding.message);
            finding.excerpt = self.short(&finding.excerpt);
            finding.within = finding.within.as_deref().map(|name| self.short(name));
        }
        kept
    }

    /// Its reason can quote the code.
    fn decision(&mut self, decision: &policy::Decision) -> Decision {
        let mut kept = Decision::from(decision);
        (kept.rule, kept.reason) = (self.short(&kept.rule), self.short(&kept.reason));
        kept
    }

    /// What the program used, and what it tried to reach in vain. A name may carry what the code wants to get out.
    fn used(&mut self, ran: &Ran) -> Used {
        let network = ran.network_use.as_ref();
        let usage = Usage {
            network_up_bytes: network.map(|network| network.up),
            network_down_bytes: network.map(|network| network.down),
            ..Usage::from(ran.usage)
        };
        let denied = |denied: &DeniedHost| {
            let host = self.short(&denied.host);
            NetworkDenied { host, ..NetworkDenied::from(denied) }
        };
        let network_denied = network.map(|network| network.denied.iter().map(denied).collect());
        Used { usage, network_denied }
    }

    fn short(&mut self, text: &str) -> String {
        let window = &text[..text.floor_char_boundary(MOST_TEXT + MARGIN)];
        self.part(window, 0..window.len().min(MOST_TEXT))
    }

    fn part(&mut self, text: &str, part: std::ops::Range<usize>) -> String {
        let (clean, count) = self.redactor.clean_part(text, part, &self.secrets);
        self.redactions += count;
        clean.into_owned()
    }
}

/// Which run it was, and who asked for it.
fn of_origin(account: &Account) -> [(&'static str, Value); 5] {
    let Account { id, at, origin, .. } = account;
    [
        ("id", text(id)),
        ("at", Value::Integer(millis(*at))),
        ("caller", text(&origin.caller)),
        ("surface", text(origin.surface.name())),
        ("peer", optional(origin.peer.map(|peer| peer.to_string()))),
    ]
}

/// What a program used, as it is recorded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Used {
    #[serde(flatten)]
    pub(crate) usage: Usage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network_denied: Option<Vec<NetworkDenied>>,
}

/// What is known only of runs that took place.
fn outcome(
    ran: Option<&Ran>,
    used: Option<&Used>,
    compile: Option<&AuditCompile>,
    asked: &Asked,
) -> [(&'static str, Value); 7] {
    let names = |guarantees: &[Guarantee]| json(&guarantees.iter().map(|one| one.name()).collect::<Vec<_>>());
    [
        ("usage", used.map_or(Value::Null, json)),
        ("compile", compile.map_or(Value::Null, json)),
        ("stage", optional(ran.map(|ran| RunResult::stage_of(ran.stage).to_owned()))),
        ("start", optional(ran.map(|ran| RunResult::start_of(ran.start).to_owned()))),
        ("runtime", optional(ran.map(|ran| ran.runtime.clone()))),
        ("kept", names(ran.map_or(&[], |ran| &ran.kept))),
        ("waived", names(ran.map_or(&asked.waived, |ran| &ran.waived))),
    ]
}

fn status(fate: &Fate) -> &'static str {
    match fate {
        Fate::Refused(_) => "refused",
        Fate::Failed(_) => "failed",
        Fate::Ran(ran) => RunResult::status_of(ran.outcome),
    }
}

fn length(excerpt: &Excerpt) -> u64 {
    (excerpt.head.len() + excerpt.tail.len()) as u64 + excerpt.missing
}

pub(crate) fn stated(language: &str, (sandbox, execution): (BoxLimits, ExecutionLimits)) -> Limits {
    let is_compiled = Language::by_name(language).is_some_and(|language| language.is_compiled());
    let compile = is_compiled.then_some(execution.compile);
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Limits {
        timeout_ms: Some(millis(execution.timeout)),
        compile_timeout_ms: compile.map(|compile| millis(compile.timeout)),
        cpu_ms: execution.cpu_time.map(millis),
        memory_bytes: Some(sandbox.memory.get()),
        compile_memory_bytes: compile.map(|compile| compile.sandbox.memory.get()),
        cpus: Some(f64::from(sandbox.cpus.milli()) / 1000.0),
        pids: Some(sandbox.pids.into()),
        disk_bytes: Some(sandbox.disk.get()),
        output_bytes: Some(execution.output.get()),
    }
}

pub(crate) fn digested(bytes: &Digested) -> AuditFile {
    let Digested { path, size, sha256 } = bytes;
    AuditFile { path: path.clone(), size: *size, sha256: sha256.as_ref().map(|digest| hex(digest)) }
}

pub(crate) fn millis(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn optional(text: Option<String>) -> Value {
    text.map_or(Value::Null, Value::Text)
}

fn count(number: Option<u64>) -> Value {
    number.map_or(Value::Null, |number| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
}

/// None of the types has a `Serialize` that can fail.
fn json(value: &impl Serialize) -> Value {
    Value::Text(serde_json::to_string(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    fn account(code: &str, stdout: Excerpt) -> Account {
        let ran = Ran {
            outcome: Outcome::Exited(0),
            stdout,
            stderr: Excerpt::default(),
            usage: belljar_core::outcome::Usage::default(),
            compile: None,
            stage: Stage::Run,
            start: belljar_core::outcome::Start::Cold,
            runtime: "Python".to_owned(),
            image: None,
            network: "none".to_owned(),
            network_use: None,
            kept: vec![Guarantee::Disk],
            waived: Vec::new(),
            produced: Vec::new(),
        };
        Account {
            id: "run_1".to_owned(),
            at: SystemTime::now(),
            origin: Origin::default(),
            asked: Asked {
                language: "python".to_owned(),
                code: Some(Code::parse(code.into(), None).unwrap()),
                env: belljar_core::request::EnvVar::parse_all(vec![("TOKEN".into(), "open sesame".into())])
                    .unwrap(),
                ..Asked::default()
            },
            findings: Vec::new(),
            decision: None,
            fate: Fate::Ran(Box::new(ran)),
        }
    }

    fn value(entry: &Entry, wanted: &str) -> String {
        let found = entry.values.iter().find(|(name, _)| *name == wanted).unwrap();
        match &found.1 {
            Value::Text(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            other @ (Value::Null | Value::Real(_) | Value::Blob(_)) => format!("{other:?}"),
        }
    }

    #[test]
    fn every_status_that_is_written_can_be_searched_for() {
        use belljar_core::outcome::TimeLimit;
        use std::time::Duration;

        let ran = |outcome| match account("1", Excerpt::default()).fate {
            Fate::Ran(ran) => Fate::Ran(Box::new(Ran { outcome, ..*ran })),
            other @ (Fate::Refused(_) | Fate::Failed(_)) => other,
        };
        let outcomes = [
            Outcome::Exited(0),
            Outcome::TimedOut(TimeLimit::Wall(Duration::ZERO)),
            Outcome::OutOfMemory,
            Outcome::Signaled(9),
            Outcome::Cancelled(None),
            Outcome::Denied,
        ];
        let ends =
            outcomes.map(ran).into_iter().chain([Fate::Refused(String::new()), Fate::Failed(String::new())]);
        let unrecorded = value(&Entry::unrecorded(1, &Redactor::new(&[]).unwrap()), "status");
        let written: Vec<_> = ends.map(|fate| status(&fate).to_owned()).chain([unrecorded]).collect();
        assert_eq!(written, belljar_wire::AUDIT_STATUSES);
    }

    #[test]
    fn an_entry_has_every_column_in_its_order() {
        let entry = Entry::new(&account("1", Excerpt::default()), &Redactor::new(&[]).unwrap());
        let names: Vec<_> = entry.values.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, schema::filled().collect::<Vec<_>>());
    }

    #[test]
    fn the_value_of_a_variable_is_stored_nowhere() {
        let printed = Excerpt { head: b"it is open sesame!".to_vec(), ..Excerpt::default() };
        let entry = Entry::new(&account("print('open sesame')", printed), &Redactor::new(&[]).unwrap());
        assert!(value(&entry, "request").contains("TOKEN"), "the control");
        assert_eq!(value(&entry, "stdout"), "it is [redacted:env]!");
        assert_eq!(value(&entry, "redactions"), "2");
        assert!(!format!("{entry:?}").contains("open sesame"));
    }

    fn compiled(stage: Stage, exit_code: u8) -> Entry {
        let said = |text: &str| Excerpt { head: text.as_bytes().to_vec(), ..Excerpt::default() };
        let mut account = account("int main() {}", Excerpt::default());
        let Fate::Ran(ran) = &mut account.fate else { unreachable!("it ran") };
        ran.stage = stage;
        ran.compile = Some(Compiler {
            outcome: Outcome::Exited(exit_code),
            stdout: Excerpt::default(),
            stderr: said("warning: open sesame"),
            usage: belljar_core::outcome::Usage::default(),
            cached: false,
        });
        Entry::new(&account, &Redactor::new(&[]).unwrap())
    }

    #[test]
    fn a_compiler_is_recorded_apart_from_its_program_and_without_secrets() {
        let entry = compiled(Stage::Run, 0);
        let compile: AuditCompile = serde_json::from_str(&value(&entry, "compile")).unwrap();
        assert_eq!((compile.exit_code, compile.stderr.as_deref()), (0, Some("warning: [redacted:env]")));
        assert_eq!(value(&entry, "stage"), "run");
        assert!(entry.words.contains("warning"), "what it wrote can be searched for");
        let failed = compiled(Stage::Compile, 1);
        let compile: AuditCompile = serde_json::from_str(&value(&failed, "compile")).unwrap();
        assert_eq!((compile.exit_code, compile.stderr), (1, None), "the run has it already");
        assert_eq!(value(&failed, "stage"), "compile");
    }

    #[test]
    fn names_of_files_are_recorded_without_secrets() {
        let mut account = account("1", Excerpt::default());
        let file = |path: &str| Digested { path: path.to_owned(), size: Some(1), sha256: None };
        account.asked.files = vec![file("plain.txt"), file("open sesame/data.csv")];
        account.asked.collect = vec!["open sesame/*".to_owned()];
        if let Fate::Ran(ran) = &mut account.fate {
            ran.produced = vec![("out-open sesame.png".to_owned(), 2)];
        }
        let entry = Entry::new(&account, &Redactor::new(&[]).unwrap());
        let files: Vec<AuditFile> = serde_json::from_str(&value(&entry, "files")).unwrap();
        assert_eq!(
            (files[0].path.as_str(), files[1].path.as_str()),
            ("plain.txt", "[redacted:env]/data.csv")
        );
        assert!(value(&entry, "produced").contains("out-[redacted:env].png"));
        assert!(!format!("{entry:?}").contains("open sesame"));
    }

    #[test]
    fn what_was_refused_is_recorded_without_secrets() {
        let mut account = account("connect('open sesame')", Excerpt::default());
        let Fate::Ran(ran) = &mut account.fate else { unreachable!("it ran") };
        let host = "open sesame.example.org".to_owned();
        let denied = vec![DeniedHost { host, port: Some(443), reason: "not allowed".to_owned(), count: 2 }];
        ran.network_use = Some(belljar_core::outcome::NetworkUse { up: 1, down: 2, denied });
        let entry = Entry::new(&account, &Redactor::new(&[]).unwrap());
        let used: Used = serde_json::from_str(&value(&entry, "usage")).unwrap();
        assert_eq!((used.usage.network_up_bytes, used.usage.network_down_bytes), (Some(1), Some(2)));
        let denied = used.network_denied.unwrap();
        assert_eq!(
            (denied[0].host.as_str(), denied[0].port, denied[0].count),
            ("[redacted:env].example.org", Some(443), 2)
        );
        assert!(!format!("{entry:?}").contains("open sesame"));
    }

    #[test]
    fn findings_are_recorded_without_secrets_and_found_by_their_rules() {
        let mut account = account("connect('open sesame')", Excerpt::default());
        let at = |column| finding::Position { line: 1, column };
        account.findings = vec![finding::Finding {
            rule: "python.network.connect".to_owned(),
            severity: finding::Severity::Medium,
            message: "connects to open sesame".to_owned(),
            start: at(1),
            end: at(23),
            excerpt: "connect('open sesame')".to_owned(),
            within: None,
        }];
        let entry = Entry::new(&account, &Redactor::new(&[]).unwrap());
        let found: serde_json::Value = serde_json::from_str(&value(&entry, "findings")).unwrap();
        let expected = serde_json::json!([{
            "rule": "python.network.connect", "severity": "medium", "message": "connects to [redacted:env]",
            "line": 1, "column": 1, "end_line": 1, "end_column": 23, "excerpt": "connect('[redacted:env]')",
        }]);
        assert_eq!(found, expected);
        assert!(entry.words.contains("python.network.connect"));
        assert!(!format!("{entry:?}").contains("open sesame"));
    }

    #[test]
    fn a_decision_is_recorded_with_its_reason_and_without_secrets() {
        let mut account = account("1", Excerpt::default());
        assert_eq!(value(&Entry::new(&account, &Redactor::new(&[]).unwrap()), "decision"), "Null");
        let denial =
            policy::Decision::denial("severity = \"high\"", "it says open sesame".to_owned(), "policy");
        account.decision = Some(policy::Decision { approval_id: Some("apr_1".to_owned()), ..denial });
        let entry = Entry::new(&account, &Redactor::new(&[]).unwrap());
        let kept: Decision = serde_json::from_str(&value(&entry, "decision")).unwrap();
        assert_eq!((kept.action.as_str(), kept.reason.as_str()), ("deny", "it says [redacted:env]"));
        assert_eq!(kept.approval_id.as_deref(), Some("apr_1"));
        assert_eq!(value(&entry, "decider"), "policy");
    }

    #[test]
    fn what_is_long_is_cut_and_its_digest_is_not() {
        let code = "x".repeat(MOST_CODE + 10);
        let (head, tail) = (vec![b'a'; 36 << 10], vec![b'b'; 36 << 10]);
        let entry =
            Entry::new(&account(&code, Excerpt { head, tail, missing: 7 }), &Redactor::new(&[]).unwrap());
        assert!(value(&entry, "code").len() < MOST_CODE + 100);
        assert_eq!(value(&entry, "code_bytes"), code.len().to_string());
        assert_eq!(value(&entry, "code_sha256"), hex(&Sha256::digest(code.as_bytes())));
        assert_eq!(value(&entry, "stdout_bytes"), (72 * 1024 + 7).to_string());
        assert!(value(&entry, "stdout").contains("aa\n[... about 8199 bytes are not recorded ...]\nbb"));
    }
}
