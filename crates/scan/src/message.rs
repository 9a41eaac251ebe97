//! Questions and answers as bytes, for a scanner in another process. An answer comes from a process that has read hostile
//! code, so it is believed nothing that it need not say: rules and severities come from the table, and text is made
//! harmless again.

use belljar_core::finding::{Finding, Launch, Launched, Position};
use belljar_core::language::Language;

use crate::command::MOST_WORDS;
use crate::matcher::{EXCERPT, MOST_FINDINGS, MOST_LAUNCHES, inert};
use crate::{Report, Request, Trees, examine, rules};

/// Longer than any message of ours.
const MESSAGE: usize = 400;

/// The request as bytes.
#[must_use]
pub fn question(request: &Request<'_>) -> Vec<u8> {
    let trees = match request.trees {
        Trees::Wanted => "t",
        Trees::Failed => "f",
    };
    // The names of modules have no line breaks; one with a line break would be no module of any program.
    let allowed = request.allowed_imports.map(|names| format!("={}", names.join("\n"))).unwrap_or_default();
    let head = [request.language.name, trees, &allowed].join("\0");
    [head.as_bytes(), b"\0", request.code].concat()
}

/// Scans what a question asks for. `None` if it is none.
#[must_use]
pub fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let mut parts = question.splitn(4, |byte| *byte == 0);
    let mut word = || str::from_utf8(parts.next()?).ok();
    let (language, trees, allowed) = (Language::by_name(word()?)?, word()?, word()?);
    let trees = if trees == "t" { Trees::Wanted } else { Trees::Failed };
    let allowed: Option<Vec<String>> = allowed
        .strip_prefix('=')
        .map(|names| names.split('\n').filter(|name| !name.is_empty()).map(str::to_owned).collect());
    let request = Request { language, code: parts.next()?, allowed_imports: allowed.as_deref(), trees };
    let Report { findings, launches } = examine(&request);
    let mut bytes = length(launches.len()).to_vec();
    bytes.extend(launches.iter().flat_map(encoded_launch));
    bytes.extend(findings.iter().flat_map(encoded));
    Some(bytes)
}

/// What an answer says. `None` if it is none.
#[must_use]
pub fn report(answer: &[u8]) -> Option<Report> {
    let mut rest = answer;
    let count = usize::try_from(number(&mut rest)?).ok().filter(|count| *count <= MOST_LAUNCHES)?;
    let launches = (0..count).map(|_| decoded_launch(&mut rest)).collect::<Option<Vec<_>>>()?;
    Some(Report { findings: findings(rest)?, launches })
}

fn findings(answer: &[u8]) -> Option<Vec<Finding>> {
    let mut rest = answer;
    let mut findings = Vec::new();
    while !rest.is_empty() && findings.len() < 2 * MOST_FINDINGS {
        findings.push(decoded(&mut rest)?);
    }
    Some(findings)
}

fn length(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn encoded_launch(launch: &Launch) -> Vec<u8> {
    let Launch { language, what } = launch;
    let (kind, words): (usize, &[String]) = match what {
        Launched::Stdin => (0, &[]),
        Launched::Program(path) => (1, std::slice::from_ref(path)),
        Launched::File(words) => (2, words),
    };
    let mut bytes = [length(kind), length(words.len())].concat();
    for text in std::iter::once(language.name).chain(words.iter().map(String::as_str)) {
        bytes.extend(length(text.len()));
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn decoded_launch(rest: &mut &[u8]) -> Option<Launch> {
    let (kind, count) = (number(rest)?, number(rest)?);
    let language = Language::by_name(&text(rest)?)?;
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST_WORDS)?;
    let mut words = (0..count).map(|_| text(rest)).collect::<Option<Vec<_>>>()?;
    let what = match kind {
        0 => Launched::Stdin,
        1 => Launched::Program(words.pop()?),
        2 => Launched::File(words),
        _ => return None,
    };
    Some(Launch { language, what })
}

fn encoded(finding: &Finding) -> Vec<u8> {
    let index = rules().iter().position(|rule| rule.id == finding.rule).unwrap_or(usize::MAX);
    let number = length;
    let mut bytes = number(index).to_vec();
    for position in [finding.start, finding.end] {
        bytes.extend(position.line.to_le_bytes());
        bytes.extend(position.column.to_le_bytes());
    }
    for text in [&finding.message, &finding.excerpt] {
        bytes.extend(number(text.len()));
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn decoded(rest: &mut &[u8]) -> Option<Finding> {
    let rule = rules().get(usize::try_from(number(rest)?).ok()?)?;
    let mut position = || Some(Position { line: number(rest)?.max(1), column: number(rest)?.max(1) });
    let (start, end) = (position()?, position()?);
    let (message, excerpt) = (text(rest)?, text(rest)?);
    Some(Finding {
        rule: rule.id.clone(),
        severity: rule.severity,
        message: inert(&message, MESSAGE),
        start,
        end,
        excerpt: inert(&excerpt, EXCERPT + 2),
        within: None,
    })
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_le_bytes(*number))
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan;
    use proptest::prelude::*;

    fn request(code: &str) -> Request<'_> {
        let language = Language::by_name("python").unwrap();
        Request { language, code: code.as_bytes(), allowed_imports: None, trees: Trees::Wanted }
    }

    #[test]
    fn findings_survive_the_way_to_the_parent() {
        let request = request("import os\n\0os.system('é')\nos.setuid(0)\n");
        let expected = scan(&request);
        assert!(expected.len() > 1);
        assert_eq!(report(&answer(&question(&request)).unwrap()).unwrap().findings, expected);
        let allowed = ["json".to_owned(), "re".to_owned()];
        let request = Request { allowed_imports: Some(&allowed), ..request };
        let narrowed = report(&answer(&question(&request)).unwrap()).unwrap().findings;
        assert_eq!(narrowed, scan(&request));
        assert!(narrowed.iter().any(|finding| finding.rule == "python.imports.not-allowed"));
    }

    #[test]
    fn what_else_is_run_survives_the_way_to_the_parent() {
        let request = request("import os\nos.system('bash -x a.txt; ./b; bash -s')\n");
        let expected = examine(&request);
        assert_eq!(expected.launches.len(), 3, "{expected:?}");
        assert_eq!(report(&answer(&question(&request)).unwrap()), Some(expected));
    }

    #[test]
    fn a_scanner_that_was_taken_over_cannot_send_what_is_harmful() {
        let mut finding = scan(&request("import os; os.system('x')")).remove(0);
        finding.excerpt = format!("\x1b[2J\u{202e}{}", "x".repeat(10_000));
        let decoded = findings(&encoded(&finding)).unwrap().remove(0);
        assert!(decoded.excerpt.starts_with("\u{fffd}[2J\u{fffd}xxx"), "{}", decoded.excerpt);
        assert!(decoded.excerpt.len() < 400);
        assert_eq!(findings(b"\xff\xff\xff\xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_findings_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (report(&bytes), answer(&bytes));
        }
    }
}
