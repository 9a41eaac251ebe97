//! `belljar scan`: dangerous or suspicious things in code, as a compiler would say it, as JSON or as SARIF.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use belljar_core::finding::{Finding, Severity};
use belljar_core::language::Language;
use belljar_core::request::Code;
use belljar_engine::{RunError, Subject};
use belljar_wire::{Problem, SarifRule, ScanRequest, ScanResult, sarif, to_json};
use clap::{Args, ValueHint};

use crate::args::Choices;
use crate::output::inert;
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::source::{self, Place};
use crate::{offered, scanner};

pub(crate) const USAGE: &str = "belljar scan [LANGUAGE] [FILE | -] [-c CODE] [OPTIONS]";

/// The exit status if there is a finding that matters.
const FOUND: u8 = 1;
/// How much of a long line is shown, in characters.
const WIDTH: usize = 160;

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Language, file with the code, or both; `-` reads the code from standard input
    #[arg(value_name = "LANGUAGE] [FILE", num_args = 0..=2, value_hint = ValueHint::FilePath)]
    words: Vec<OsString>,

    /// Code to scan
    #[arg(short = 'c', long, value_name = "TEXT", allow_hyphen_values = true)]
    code: Option<String>,

    /// Language or alias [default: from the file extension or the `#!` line]
    #[arg(short, long, value_name = "NAME", value_parser = offered::languages(), hide_possible_values = true)]
    language: Option<String>,

    /// The only modules that the code may import, separated by commas; repeatable
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    allowed_imports: Option<Vec<String>>,

    /// Exit with status 1 if there is a finding of this severity or a higher one
    #[arg(long, value_name = "SEVERITY", default_value = "high", value_parser = offered::severity())]
    fail_on: Severity,

    /// Print the findings as JSON
    #[arg(long, conflicts_with = "sarif")]
    json: bool,

    /// Print the findings as SARIF 2.1.0, for code hosts and editors
    #[arg(long)]
    sarif: bool,
}

pub(crate) fn run(args: &ScanArgs, environment: Environment<'_>) -> ExitCode {
    match scan(args, environment) {
        Ok(scanned) => {
            scanned.tell(args);
            let matters = scanned.findings.iter().any(|finding| finding.severity >= args.fail_on);
            if matters { ExitCode::from(FOUND) } else { ExitCode::SUCCESS }
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

pub(crate) struct Scanned {
    pub(crate) name: String,
    pub(crate) code: Vec<u8>,
    pub(crate) findings: Vec<Finding>,
}

fn scan(args: &ScanArgs, environment: Environment<'_>) -> Result<Scanned, Problem> {
    let terminal = std::io::stdin().is_terminal();
    let meant = source::meant(&args.words, args.language.as_deref(), args.code.as_deref(), terminal);
    let meant = meant.map_err(for_scan)?;
    let name = match &meant.place {
        Place::CommandLine(_) => "<command line>".to_owned(),
        Place::Stdin => "<stdin>".to_owned(),
        Place::File(path) => path.display().to_string(),
    };
    let default = Settings::gather(&Choices::default(), None, environment)?.language;
    let (language, code) = meant.read(default, None, &[]).map_err(for_scan)?;
    let subject = subject(language, code.bytes, args.allowed_imports.clone())?;
    let findings = scanner::single().scan(&subject).map_err(RunError::from)?.findings;
    Ok(Scanned { name, code: subject.code.bytes().to_vec(), findings })
}

/// The checks are those of a request over HTTP.
fn subject(language: Language, code: Vec<u8>, allowed: Option<Vec<String>>) -> Result<Subject, Problem> {
    let request =
        ScanRequest { language: language.name.to_owned(), code: String::new(), allowed_imports: allowed };
    Ok(Subject { code: Code::parse(code, None)?, ..Subject::try_from(request)? })
}

/// What is wrong with the words is said in the same way for both commands.
fn for_scan(mut problem: Problem) -> Problem {
    problem.error.hint = problem.error.hint.replace("belljar run", "belljar scan");
    problem.error.message = problem.error.message.replace("no code to run", "no code to scan");
    problem
}

impl Scanned {
    fn tell(&self, args: &ScanArgs) {
        if args.json {
            say(&to_json(&ScanResult::new(&self.findings)));
        } else if args.sarif {
            let rules = belljar_scan::rules().iter().map(|rule| SarifRule {
                id: &rule.id,
                severity: rule.severity,
                message: &rule.message,
                why: &rule.why,
            });
            say(&sarif(&self.findings, rules, &self.name));
        } else {
            let _ = anstream::stdout().write_all(self.described().as_bytes());
        }
    }

    /// All findings as a compiler shows its errors, and how many there are.
    pub(crate) fn described(&self) -> String {
        let text = String::from_utf8_lossy(&self.code);
        let lines: Vec<&str> = text.split('\n').collect();
        let mut shown: String = self.findings.iter().map(|finding| self.one(finding, &lines)).collect();
        shown.push_str(&self.summary());
        shown
    }

    fn one(&self, finding: &Finding, lines: &[&str]) -> String {
        let number = usize::try_from(finding.start.line).unwrap_or(1);
        let line = lines.get(number.saturating_sub(1)).copied().unwrap_or_default();
        let (line, marked) = marked(line, finding);
        let column = finding.start.column;
        let shortened = usize::try_from(column).is_ok_and(|column| column > WIDTH);
        let why =
            belljar_scan::rules().iter().find(|rule| rule.id == finding.rule).map(|rule| rule.why.as_str());
        let place = if shortened { format!("{} (column {column})", self.name) } else { self.name.clone() };
        let snippet = Snippet::source(line)
            .line_start(number)
            .path(inert(&place))
            .annotation(AnnotationKind::Primary.span(marked));
        let level = level(finding.severity);
        let title = level.primary_title(finding.message.as_str()).id(finding.rule.as_str()).element(snippet);
        let report = [title.element(Level::NOTE.message(why.unwrap_or_default()))];
        Renderer::styled().render(&report) + "\n\n"
    }

    fn summary(&self) -> String {
        if self.findings.is_empty() {
            return "nothing found\n".to_owned();
        }
        let counts = Severity::ALL.iter().rev().filter_map(|severity| {
            let count = self.findings.iter().filter(|finding| finding.severity == *severity).count();
            (count > 0).then(|| format!("{count} {severity}"))
        });
        let total = self.findings.len();
        let noun = if total == 1 { "finding" } else { "findings" };
        format!("{total} {noun}: {}\n", counts.collect::<Vec<_>>().join(", "))
    }
}

/// The line, or the part around the finding, harmless for a terminal, and which bytes of it are to be marked.
fn marked(line: &str, finding: &Finding) -> (String, std::ops::Range<usize>) {
    let index = |column: u32| usize::try_from(column).unwrap_or(usize::MAX).saturating_sub(1);
    let start = index(finding.start.column);
    let end = if finding.end.line == finding.start.line { index(finding.end.column) } else { usize::MAX };
    let first = if start < WIDTH { 0 } else { start - WIDTH / 4 };
    let (mut shown, mut mark) = (String::new(), None::<(usize, usize)>);
    for (at, c) in line.trim_end().chars().enumerate().skip(first).take(WIDTH) {
        let before = shown.len();
        shown.push_str(&inert(c.encode_utf8(&mut [0; 4])));
        if (start..end.max(start + 1)).contains(&at) {
            mark = Some((mark.map_or(before, |(begin, _)| begin), shown.len()));
        }
    }
    let (begin, end) = mark.unwrap_or((shown.len(), shown.len()));
    (shown, begin..end)
}

fn level(severity: Severity) -> Level<'static> {
    match severity {
        Severity::Info => Level::INFO.with_name("info"),
        Severity::Low => Level::NOTE.with_name("low"),
        Severity::Medium => Level::WARNING.with_name("medium"),
        Severity::High => Level::ERROR.with_name("high"),
        Severity::Critical => Level::ERROR.with_name("critical"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::finding::Position;

    fn finding(start: (u32, u32), end: (u32, u32)) -> Finding {
        let position = |(line, column)| Position { line, column };
        Finding {
            rule: "python.process.spawn".to_owned(),
            severity: Severity::Medium,
            message: "starts another program: os.system".to_owned(),
            start: position(start),
            end: position(end),
            excerpt: String::new(),
            within: None,
        }
    }

    #[test]
    fn a_finding_is_shown_as_a_compiler_shows_an_error() {
        let code = b"import os\n\tos.system('\x1b[2J')\n".to_vec();
        let findings = vec![finding((2, 2), (2, 19))];
        let scanned = Scanned { name: "a.py".to_owned(), code, findings };
        let plain = anstream::adapter::strip_str(&scanned.described()).to_string();
        insta::assert_snapshot!(plain, @r"
        medium[python.process.spawn]: starts another program: os.system
         --> a.py:2:2
          |
        2 |     os.system('^[[2J')
          |     ^^^^^^^^^^^^^^^^^^
          |
          = note: What the other program does is not in this code. Its words were scanned as far as they are known.

        1 finding: 1 medium
        ");
    }

    #[test]
    fn of_a_long_line_the_part_around_the_finding_is_shown() {
        let line = format!("{}!{}", "a".repeat(1000), "b".repeat(1000));
        let (shown, mark) = marked(&line, &finding((1, 1001), (1, 1002)));
        assert_eq!((shown.len(), &shown[mark]), (WIDTH, "!"));
        let (shown, mark) = marked("ab", &finding((1, 1), (3, 1)));
        assert_eq!((shown.as_str(), mark), ("ab", 0..2));
        assert_eq!(marked("", &finding((1, 5), (1, 9))), (String::new(), 0..0));
    }
}
