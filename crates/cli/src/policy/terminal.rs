//! `belljar run` asks the person who started it about a run that the policy wants approved.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::sync::Arc;

use belljar_engine::{Answer, Approver, Ask, Unapprovable, Verdict};
use belljar_wire::Problem;

use crate::output::inert;
use crate::scan::Scanned;

/// Who decides about the runs of `belljar run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decider {
    /// Whoever sits at the terminal.
    Person,
    /// Everything is approved: `--yes`.
    Always,
    /// There is no terminal.
    Nobody,
}

/// An approver for one run. Without a terminal, those are asked who decide about the runs of others, if there are such.
pub(crate) fn approver(
    yes: bool,
    elsewhere: impl FnOnce() -> Result<Option<Arc<dyn Approver>>, Problem>,
) -> Result<Arc<dyn Approver>, Problem> {
    let decider = match yes {
        true => Decider::Always,
        false if io::stderr().is_terminal() => Decider::Person,
        false => return Ok(elsewhere()?.unwrap_or_else(|| Arc::new(Decider::Nobody))),
    };
    Ok(Arc::new(decider))
}

impl Approver for Decider {
    /// It blocks, on a thread that has nothing else to do.
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable> {
        let verdict = |approved, reason: Option<&str>| {
            let (by, reason) = (ask.origin.caller.to_string(), reason.map(str::to_owned));
            Answer::Decided(Verdict { approved, by, reason, approval_id: None })
        };
        match self {
            Decider::Always => Ok(verdict(true, None)),
            Decider::Nobody => {
                let why = "there is no terminal to ask on; --yes approves it".to_owned();
                Err(Unapprovable { why })
            }
            Decider::Person => match question(&ask) {
                Ok(approved) => Ok(verdict(approved, None)),
                Err(cause) => Err(Unapprovable { why: format!("the terminal cannot be used: {cause}") }),
            },
        }
    }
}

/// Shows what was found, and asks. The answer comes from the terminal itself: standard input may be the program's.
fn question(ask: &Ask) -> io::Result<bool> {
    let mut terminal = BufReader::new(OpenOptions::new().read(true).write(true).open("/dev/tty")?);
    let mut stderr = anstream::stderr();
    for scanned in scanned(ask) {
        stderr.write_all(scanned.described().as_bytes())?;
    }
    writeln!(stderr, "The policy wants this run approved: {}", inert(&ask.decision.reason))?;
    write!(stderr, "Run it? [y/N] ")?;
    stderr.flush()?;
    let mut line = String::new();
    terminal.read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// What was found in each part of the run in which something was.
fn scanned(ask: &Ask) -> Vec<Scanned> {
    let mut parts: Vec<Option<&str>> = Vec::new();
    for finding in &ask.findings {
        if !parts.contains(&finding.within.as_deref()) {
            parts.push(finding.within.as_deref());
        }
    }
    let of_part = |within: Option<&str>| {
        let findings = ask.findings.iter().filter(|finding| finding.within.as_deref() == within);
        let (name, code) = match within {
            None => (ask.code.file_name().map_or("<code>", |name| name.as_str()), ask.code.bytes()),
            Some(name) => (name, text_of(ask, name).map_or(&[][..], str::as_bytes)),
        };
        Scanned { name: name.to_owned(), code: code.to_vec(), findings: findings.cloned().collect() }
    };
    parts.into_iter().map(of_part).collect()
}

fn text_of<'a>(ask: &'a Ask, name: &str) -> Option<&'a str> {
    let file = ask.run.files.iter().find(|file| file.digested.path == name);
    file.or(ask.run.stdin.as_ref().filter(|_| name == "standard input"))?.text.as_deref()
}
