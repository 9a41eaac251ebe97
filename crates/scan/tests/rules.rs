//! Every rule has programs that it must match and programs that it must not match: the files in `cases/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test whose case cannot be set up has failed")]

use std::collections::BTreeMap;
use std::path::Path;

use belljar_core::finding::{Finding, Severity};
use belljar_core::language::Language;
use belljar_scan::{Request, Trees, rules, scan};

/// A program of a file in which each begins with a line `=== heading`.
struct Program {
    heading: String,
    code: String,
}

fn programs(path: &Path) -> Vec<Program> {
    let text = std::fs::read_to_string(path).unwrap();
    let text = format!("\n{text}");
    let parts = text.split("\n=== ").skip(1).map(|part| part.split_once('\n').unwrap());
    parts.map(|(heading, code)| Program { heading: heading.to_owned(), code: format!("{code}\n") }).collect()
}

fn files(folder: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn found(language: &str, code: &str) -> Vec<Finding> {
    let allowed: Option<Vec<String>> = code
        .lines()
        .find_map(|line| line.trim_start_matches(['#', '/', ' ']).strip_prefix("allowed: "))
        .map(|list| list.split(", ").map(str::to_owned).collect());
    scan(&Request {
        language: Language::by_name(language).unwrap(),
        code: code.as_bytes(),
        allowed_imports: allowed.as_deref(),
        trees: Trees::Wanted,
    })
}

#[test]
fn each_rule_matches_what_it_must_and_nothing_else() {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for file in files("cases") {
        for Program { heading, code } in programs(&file) {
            let words: Vec<&str> = heading.split(' ').collect();
            let rule = words[0];
            let language = words.get(2).copied().unwrap_or_else(|| rule.split('.').next().unwrap());
            let findings = found(language, &code);
            let matched = findings.iter().any(|finding| finding.rule == rule);
            let count = counts.entry(rule.to_owned()).or_default();
            match words[1] {
                "yes" => count.0 += 1,
                "no" => count.1 += 1,
                other => panic!("{heading}: {other} is neither yes nor no"),
            }
            if matched != (words[1] == "yes") {
                let rules: Vec<_> = findings.iter().map(|finding| finding.rule.as_str()).collect();
                wrong.push(format!("{heading}\n{code}found: {rules:?}\n"));
            }
        }
    }
    // These are about code that is large or takes long to make; they have tests of their own.
    for rule in ["any.scan.too-deep", "any.scan.too-expensive", "any.scan.large-script"] {
        counts.entry(rule.to_owned()).or_default().0 += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for rule in rules() {
        let (yes, no) = counts.get(&rule.id).copied().unwrap_or_default();
        assert!(yes > 0 && no > 0, "{}: {yes} programs that match, {no} that do not", rule.id);
    }
    for id in counts.keys() {
        assert!(rules().iter().any(|rule| rule.id == *id), "{id} is not a rule");
    }
}

/// More of it than trees are made of, which does nothing.
fn padded(code: &str) -> String {
    format!("{}{code}", "# nothing to see here\n".repeat(140 * 1024 / 22))
}

#[test]
fn each_rule_matches_the_same_in_a_script_that_is_too_large_for_a_tree() {
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files("cases") {
        for Program { heading, code } in programs(&file) {
            let words: Vec<&str> = heading.split(' ').collect();
            let language = words.get(2).copied().unwrap_or_else(|| words[0].split('.').next().unwrap());
            // Words are read without a look at the syntax between them.
            if !matches!(language, "bash" | "sh" | "zsh") || words[0] == "any.scan.unreadable" {
                continue;
            }
            count += 1;
            let findings = found(language, &padded(&code));
            let rules: Vec<_> = findings.iter().map(|finding| finding.rule.as_str()).collect();
            assert!(rules.contains(&"any.scan.large-script"), "{heading}: {rules:?}");
            if rules.contains(&words[0]) != (words[1] == "yes") {
                wrong.push(format!("{heading}\n{code}found: {rules:?}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "only {count} programs");
}

#[test]
fn ordinary_scripts_raise_nothing_above_low_if_they_are_too_large_for_a_tree() {
    for file in files("benign") {
        let language = file.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
        for Program { heading, code } in programs(&file) {
            if !matches!(language.as_str(), "bash" | "sh" | "zsh") {
                continue;
            }
            for finding in found(&language, &padded(&code)) {
                let Finding { rule, severity, excerpt, .. } = finding;
                assert!(
                    severity <= Severity::Low && rule != "any.scan.unreadable",
                    "{language} {heading}: {rule}\n    {excerpt}"
                );
            }
        }
    }
}

#[test]
fn ordinary_programs_raise_nothing_above_low() {
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files("benign") {
        let language = file.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
        for Program { heading, code } in programs(&file) {
            count += 1;
            for finding in found(&language, &code) {
                if finding.severity > Severity::Low || finding.rule == "any.scan.unreadable" {
                    let Finding { rule, message, excerpt, .. } = finding;
                    wrong.push(format!("{language} {heading}: {rule} {message}\n    {excerpt}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 200, "only {count} programs");
}

#[test]
fn the_documentation_lists_every_rule() {
    let row = |rule: &belljar_scan::Rule| {
        format!("| `{}` | {} | {} | {} |\n", rule.id, rule.severity, rule.message, rule.why)
    };
    let rows: String = rules().iter().map(row).collect();
    let table =
        format!("| rule | severity | what the code does | why that matters |\n|---|---|---|---|\n{rows}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scan.md");
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.ends_with(&table), "the table at the end of docs/scan.md should be:\n{table}");
}
