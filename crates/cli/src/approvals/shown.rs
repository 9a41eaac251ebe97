//! An approval as a person reads it: the code with what was found in it, and everything else that the decision covers.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use belljar_core::finding::{Finding, Position, Severity};
use belljar_core::language::Language;
use belljar_ledger::approvals::Found;
use belljar_wire::{Approval, ApprovalDecision, ApprovalFile, ApprovalStatus};

use super::highlight;
use crate::audit::on_one_line;
use crate::output::inert;

/// How many files are shown one by one; the digest covers all of them.
const FILES_SHOWN: usize = 100;

/// All of it, with colors.
pub(super) fn described(found: &Found) -> String {
    let Found { approval, findings } = found;
    let rows = rows(approval).into_iter().filter(|(_, value)| !value.is_empty());
    let mut text: String = rows.map(|(name, value)| format!("{name:<12}{}\n", on_one_line(&value))).collect();
    for (at, file) in approval.request.files.iter().take(FILES_SHOWN).enumerate() {
        let name = if at == 0 { "files" } else { "" };
        text.push_str(&format!("{name:<12}{}\n", on_one_line(&file_in_words(file))));
    }
    let more = approval.request.files.len().saturating_sub(FILES_SHOWN);
    if more > 0 {
        text.push_str(&format!("{:<12}and {more} more; --json shows them\n", ""));
    }
    text.push('\n');
    for part in parts(approval) {
        let own: Vec<&Finding> = findings.iter().filter(|finding| finding.within == part.within).collect();
        text.push_str(&part.listing(&own));
        text.push_str("\n\n");
    }
    text.push_str(&elsewhere(approval, findings));
    text.push_str(&covered(approval));
    text
}

/// A text that a decision covers, and what findings call it.
struct Part<'a> {
    within: Option<String>,
    name: String,
    text: &'a str,
    language: Option<&'a str>,
}

/// The code, and what else there is to read.
fn parts(approval: &Approval) -> Vec<Part<'_>> {
    let language = Some(approval.language.as_str());
    let code = Part { within: None, name: "the code".to_owned(), text: &approval.code, language };
    let stdin = approval.request.stdin.iter().map(|stdin| ("standard input", stdin));
    let files = approval.request.files.iter().map(|file| (file.path.as_str(), file));
    let others = stdin.chain(files).filter_map(|(name, file)| {
        let text = file.text.as_deref().filter(|text| !text.is_empty())?;
        let language = Language::by_file_name(&file.path).map(|language| language.name);
        Some(Part { within: Some(name.to_owned()), name: on_one_line(name), text, language })
    });
    std::iter::once(code).chain(others).collect()
}

/// What was found in something that is not shown as text.
fn elsewhere(approval: &Approval, findings: &[Finding]) -> String {
    let shown: Vec<Option<String>> = parts(approval).into_iter().map(|part| part.within).collect();
    let others: Vec<&Finding> = findings.iter().filter(|finding| !shown.contains(&finding.within)).collect();
    let lines = others.iter().map(|finding| {
        let Finding { rule, severity, message, start, excerpt, .. } = finding;
        let excerpt = if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") };
        on_one_line(&format!("{severity} {rule}: {message}, line {}{excerpt}", start.line)) + "\n"
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("{lines}\n") }
}

fn rows(approval: &Approval) -> Vec<(&'static str, String)> {
    let Approval { policy, request, .. } = approval;
    let from = approval.peer.as_deref().map(|peer| format!(", from {peer}")).unwrap_or_default();
    let limits = serde_json::to_string(&request.limits).unwrap_or_default();
    let workspace = request.workspace.as_ref().map(|path| {
        format!("{path}, {}", if request.writable { "writable for the run" } else { "read-only" })
    });
    vec![
        ("approval", format!("{}, {}", approval.id, approval.status.name())),
        ("asked", format!("{}, expires {}", approval.created_at, approval.expires_at)),
        ("caller", format!("{} through {}{from}", approval.caller, approval.surface)),
        ("rule", policy.rule.clone()),
        ("why", policy.reason.clone()),
        ("decision", approval.decision.as_ref().map(decision_in_words).unwrap_or_default()),
        ("language", approval.language.clone()),
        ("backend", request.backend.clone()),
        ("image", request.image.clone().unwrap_or_default()),
        ("network", request.network.clone()),
        ("secrets of", request.secrets.join(", ")),
        ("limits", limits),
        ("waived", request.waive.join(", ")),
        ("args", request.args.iter().map(|arg| format!("{arg:?}")).collect::<Vec<_>>().join(" ")),
        ("env", request.env.join(", ")),
        ("stdin", request.stdin.as_ref().map(file_in_words).unwrap_or_default()),
        ("workspace", workspace.unwrap_or_default()),
        ("returns", request.collect.join(", ")),
    ]
}

fn decision_in_words(decision: &ApprovalDecision) -> String {
    let ApprovalDecision { approved, by, at, reason, remembered_until } = decision;
    let word = if *approved { "approved" } else { "denied" };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let until =
        remembered_until.as_ref().map(|until| format!(", remembered until {until}")).unwrap_or_default();
    format!("{word} by {by} at {at}{until}{reason}")
}

fn file_in_words(file: &ApprovalFile) -> String {
    let hidden = match (&file.text, file.size) {
        (Some(_), _) | (None, None) => "",
        (None, Some(_)) => ", not shown: it is not text, or too large",
    };
    let size = file.size.map(|size| format!("{size} bytes")).unwrap_or_else(|| "a stream".to_owned());
    let digest = file.sha256.as_deref().map(|digest| format!(" sha256:{digest}")).unwrap_or_default();
    format!("{} {size}{digest}{hidden}", file.path).trim().to_owned()
}

fn covered(approval: &Approval) -> String {
    let Approval { digest, requests, waiting, status, request, .. } = approval;
    let mut text = String::from(
        "A decision covers exactly this run of this caller: code, files, standard input, arguments, environment, limits,\n\
         network, image and backend. If any of them changes, it has to be asked for again.\n",
    );
    if request.workspace.is_some() {
        text.push_str("It does not cover what is in the workspace.\n");
    }
    if request.stdin.as_ref().is_some_and(|stdin| stdin.sha256.is_none()) {
        text.push_str("It does not cover what comes through standard input, which is a stream.\n");
    }
    if *requests > 1 {
        text.push_str(&format!(
            "{requests} requests have asked for it; the decision is for all that wait.\n"
        ));
    }
    if *waiting == 0 && *status == ApprovalStatus::Pending {
        text.push_str(
            "No request waits for it at the moment; a decision is for the next one, until it expires.\n",
        );
    }
    text + &format!("sha256:{}\n", on_one_line(digest))
}

impl Part<'_> {
    /// The text with numbers of lines, and each finding where it is.
    fn listing(&self, findings: &[&Finding]) -> String {
        let title = match (findings.len(), &self.within) {
            (0, None) => "nothing was found in the code".to_owned(),
            (0, Some(_)) => self.name.clone(),
            (1, _) => format!("1 finding in {}", self.name),
            (many, _) => format!("{many} findings in {}", self.name),
        };
        let scanned = self.within.is_none() || !findings.is_empty();
        let kind = if scanned { "scan" } else { "file" };
        listing(self.text, self.language, findings, kind, &title)
    }
}

fn listing(
    code: &str,
    language: Option<&str>,
    findings: &[&Finding],
    kind: &'static str,
    title: &str,
) -> String {
    let safe = Safe::of(code);
    let labels: Vec<_> = findings
        .iter()
        .map(|finding| {
            let Finding { rule, severity, message, .. } = finding;
            (safe.span(finding), *severity, on_one_line(&format!("{severity} {rule}: {message}")))
        })
        .collect();
    let snippet = labels.iter().fold(Snippet::source(safe.text.as_str()).fold(false), |snippet, label| {
        let (span, severity, text) = label;
        let kind =
            if *severity >= Severity::High { AnnotationKind::Primary } else { AnnotationKind::Context };
        snippet.annotation(kind.span(span.clone()).label(text.as_str()))
    });
    let level = if findings.is_empty() { Level::NOTE } else { Level::WARNING };
    let drawn = Renderer::styled().render(&[level.with_name(kind).primary_title(title).element(snippet)]);
    match language {
        Some(language) => highlight::colored(&drawn, &safe.text, language),
        None => drawn,
    }
}

/// Text that is harmless for a terminal, and where the characters of the original are in it.
struct Safe {
    text: String,
    /// For each line, where each of its characters begins, and where the line ends.
    lines: Vec<Vec<usize>>,
}

impl Safe {
    fn of(code: &str) -> Safe {
        let mut safe = Safe { text: String::with_capacity(code.len()), lines: Vec::new() };
        for (at, line) in code.split('\n').enumerate() {
            if at > 0 {
                safe.text.push('\n');
            }
            let mut columns = Vec::new();
            for c in line.trim_end_matches('\r').chars() {
                columns.push(safe.text.len());
                // A character alone: a carriage return in front of nothing is shown.
                safe.text.push_str(&inert(c.encode_utf8(&mut [0; 4])));
            }
            columns.push(safe.text.len());
            safe.lines.push(columns);
        }
        safe
    }

    fn span(&self, finding: &Finding) -> Range<usize> {
        let start = self.offset(finding.start);
        start..self.offset(finding.end).max(start)
    }

    /// Where a position is. Whoever wrote the file may have written one that is nowhere.
    fn offset(&self, position: Position) -> usize {
        let index = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
        let last = self.lines.last().and_then(|columns| columns.last()).copied().unwrap_or(0);
        let Some(columns) = self.lines.get(index(position.line)) else { return last };
        columns.get(index(position.column)).or(columns.last()).copied().unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_wire::{ApprovalPolicy, ApprovalRequest};

    fn finding(start: (u32, u32), end: (u32, u32)) -> Finding {
        Finding {
            rule: "python.process.spawn".to_owned(),
            severity: Severity::High,
            message: "starts another program: os.system".to_owned(),
            start: Position { line: start.0, column: start.1 },
            end: Position { line: end.0, column: end.1 },
            excerpt: String::new(),
            within: None,
        }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn approval(code: &str) -> Approval {
        Approval {
            id: "apr_1".into(),
            status: ApprovalStatus::Pending,
            created_at: "then".into(),
            expires_at: "later".into(),
            caller: "ci\n\u{1b}[2Jroot".into(),
            surface: "http".into(),
            peer: None,
            policy: ApprovalPolicy { rule: "severity = high".into(), reason: "it spawns".into() },
            language: "python".into(),
            code: code.into(),
            findings: Vec::new(),
            request: ApprovalRequest {
                network: "none".into(),
                backend: "native".into(),
                args: vec!["a b".into(), "\u{1b}]0;x\u{7}".into()],
                files: vec![ApprovalFile {
                    path: "data\r.csv".into(),
                    size: Some(3),
                    sha256: Some("ab".into()),
                    text: None,
                }],
                ..ApprovalRequest::default()
            },
            digest: "00ff".into(),
            requests: 1,
            waiting: 1,
            decision: None,
        }
    }

    #[test]
    fn a_person_sees_whose_secrets_are_used() {
        let mut approval = approval("print(1)");
        let shown = |approval: &Approval| {
            plain(&described(&Found { approval: approval.clone(), findings: Vec::new() }))
        };
        assert!(!shown(&approval).contains("secrets"));
        approval.request.secrets = vec!["api.example.com".into(), "b.example:8443".into()];
        assert!(shown(&approval).contains("\nsecrets of  api.example.com, b.example:8443\n"));
    }

    #[test]
    fn the_code_is_shown_with_its_findings_in_place() {
        let code = "import os\nos.system('\u{1b}[2J')\n";
        let found = Found { approval: approval(code), findings: vec![finding((2, 1), (2, 18))] };
        insta::assert_snapshot!(plain(&described(&found)), @r#"
        approval    apr_1, pending
        asked       then, expires later
        caller      ci ^[[2Jroot through http
        rule        severity = high
        why         it spawns
        language    python
        backend     native
        network     none
        limits      {}
        args        "a b" "\u{1b}]0;x\u{7}"
        files       data .csv 3 bytes sha256:ab, not shown: it is not text, or too large

        scan: 1 finding in the code
          |
        1 | import os
        2 | os.system('^[[2J')
          | ^^^^^^^^^^^^^^^^^^ high python.process.spawn: starts another program: os.system

        A decision covers exactly this run of this caller: code, files, standard input, arguments, environment, limits,
        network, image and backend. If any of them changes, it has to be asked for again.
        sha256:00ff
        "#);
    }

    #[test]
    fn nothing_that_is_shown_moves_the_cursor() {
        let code = "a\r\nb\rc\u{202e}\t\u{9b}31m\n";
        let found = Found {
            approval: approval(code),
            findings: vec![finding((2, 2), (9, 9)), finding((7, 1), (1, 1))],
        };
        let shown = plain(&described(&found));
        let bad = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
        assert_eq!(shown.chars().find(bad), None, "{shown:?}");
        assert!(!shown.contains("\nroot"), "{shown}");
    }

    #[test]
    fn code_has_colors_of_ours_and_none_of_its_own() {
        let code = "import os\nos.system('\u{1b}[2J\u{1b}[31m') # x\n";
        let found = Found { approval: approval(code), findings: vec![finding((2, 1), (2, 18))] };
        let shown = described(&found);
        assert!(shown.contains("\u{1b}[35mimport\u{1b}[0m os\n"), "{shown:?}");
        assert!(
            shown.contains("os.system(\u{1b}[32m'^[[2J^[[31m'\u{1b}[0m) \u{1b}[90m# x\u{1b}[0m\n"),
            "{shown:?}"
        );
        let escapes = shown.split('\u{1b}').skip(1);
        let is_color = |rest: &str| {
            let end = rest.find(|c: char| c != '[' && c != ';' && !c.is_ascii_digit());
            end.is_some_and(|end| rest[end..].starts_with('m'))
        };
        assert!(escapes.clone().count() > 4 && escapes.clone().all(is_color), "{shown:?}");
        assert!(plain(&shown).contains("^^^^^^^^^^^^^^^^^"), "the finding is in its place: {shown}");
    }

    #[test]
    fn colors_are_for_terminals_and_for_those_who_ask() {
        use std::io::Write;
        let found = Found { approval: approval("import os\n"), findings: Vec::new() };
        let written = |choice| {
            let mut stream = anstream::AutoStream::new(Vec::new(), choice);
            stream.write_all(described(&found).as_bytes()).unwrap();
            String::from_utf8(stream.into_inner()).unwrap()
        };
        assert!(written(anstream::ColorChoice::Always).contains("\u{1b}[35mimport"));
        for choice in [anstream::ColorChoice::Auto, anstream::ColorChoice::Never] {
            let shown = written(choice);
            assert!(shown.contains("1 | import os") && !shown.contains('\u{1b}'), "{choice:?}: {shown:?}");
        }
    }

    #[test]
    fn code_without_findings_is_shown_whole() {
        let code = (1..=30).map(|line| format!("line_{line}\n")).collect::<String>();
        let shown = plain(&listing(&code, Some("python"), &[], "scan", "nothing"));
        assert!((1..=30).all(|line| shown.contains(&format!("line_{line}\n"))), "{shown}");
        let shown = plain(&listing(&code, Some("python"), &[&finding((3, 1), (3, 2))], "scan", "something"));
        assert!((1..=30).all(|line| shown.contains(&format!("line_{line}\n"))), "{shown}");
    }

    #[test]
    fn a_finding_is_drawn_on_the_file_that_it_is_in() {
        let mut approval = approval("import helper\n");
        let file = |path: &str, text: &str| {
            let (size, text) = (Some(text.len() as u64), Some(text.to_owned()));
            ApprovalFile { path: path.to_owned(), size, sha256: Some("cd".to_owned()), text }
        };
        approval.request.files =
            vec![file("notes.txt", "be\u{1b}[2Jnign\n"), file("helper.py", "import os\nos.system('id')\n")];
        approval.request.stdin = Some(file("", "1\n2\n"));
        let within = |name: &str| Finding { within: Some(name.to_owned()), ..finding((2, 1), (2, 16)) };
        let findings = vec![within("helper.py"), within("environment")];
        let shown = plain(&described(&Found { approval, findings }));
        let (_, shown) = shown.split_once("\n\n").unwrap();
        insta::assert_snapshot!(shown, @r#"
        scan: nothing was found in the code
          |
        1 | import helper
          |

        file: standard input
          |
        1 | 1
        2 | 2
          |

        file: notes.txt
          |
        1 | be^[[2Jnign
          |

        scan: 1 finding in helper.py
          |
        1 | import os
        2 | os.system('id')
          | ^^^^^^^^^^^^^^^ high python.process.spawn: starts another program: os.system

        high python.process.spawn: starts another program: os.system, line 2

        A decision covers exactly this run of this caller: code, files, standard input, arguments, environment, limits,
        network, image and backend. If any of them changes, it has to be asked for again.
        sha256:00ff
        "#);
    }
}
