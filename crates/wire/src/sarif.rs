//! Findings as SARIF 2.1.0 (OASIS), which code hosts and editors read.

use belljar_core::finding::{Finding, Severity};
use serde_json::{Value, json};

/// What SARIF wants to know about a rule.
#[derive(Debug, Clone, Copy)]
pub struct SarifRule<'a> {
    /// Its id.
    pub id: &'a str,
    /// How much it matters.
    pub severity: Severity,
    /// What the code does that it matches.
    pub message: &'a str,
    /// Why that matters.
    pub why: &'a str,
}

/// A log of one scan of one file. Only those rules are listed that found something.
#[must_use]
pub fn sarif<'a>(findings: &[Finding], rules: impl Iterator<Item = SarifRule<'a>>, file: &str) -> String {
    let found = |rule: &SarifRule<'_>| findings.iter().any(|finding| finding.rule == rule.id);
    let rules: Vec<SarifRule<'a>> = rules.filter(found).collect();
    let index = |finding: &Finding| rules.iter().position(|rule| rule.id == finding.rule);
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "belljar scan",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules.iter().map(described).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": findings.iter().map(|finding| result(finding, index(finding), file)).collect::<Vec<_>>(),
        }],
    });
    crate::to_json(&log)
}

fn described(rule: &SarifRule<'_>) -> Value {
    json!({
        "id": rule.id,
        "shortDescription": {"text": rule.message},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": level(rule.severity)},
        "properties": {"security-severity": score(rule.severity), "tags": ["security"]},
    })
}

fn result(finding: &Finding, rule: Option<usize>, file: &str) -> Value {
    json!({
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": level(finding.severity),
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": file},
            "region": {
                "startLine": finding.start.line, "startColumn": finding.start.column,
                "endLine": finding.end.line, "endColumn": finding.end.column,
                "snippet": {"text": finding.excerpt},
            },
        }}],
    })
}

/// SARIF has fewer.
fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Info | Severity::Low => "note",
        Severity::Medium => "warning",
        Severity::High | Severity::Critical => "error",
    }
}

/// What GitHub reads: a score as CVSS has it.
fn score(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "0.0",
        Severity::Low => "3.0",
        Severity::Medium => "5.0",
        Severity::High => "8.0",
        Severity::Critical => "9.5",
    }
}
