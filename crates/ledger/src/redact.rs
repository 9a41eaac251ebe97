//! Takes secrets out of text before it is stored.

use std::borrow::Cow;
use std::ops::Range;

use regex::Regex;

use crate::error::LedgerError;

/// What a secret looks like, by its name. If a pattern has a group `secret`, only that is replaced.
const USUAL: [(&str, &str); 14] = [
    (
        "private-key",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
    ),
    ("aws-key", r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b"),
    ("aws-secret", r#"(?i)aws_?secret_?(?:access_?)?key["']?\s*[:=]\s*["']?(?<secret>[0-9a-z/+=]{40})"#),
    ("bearer-token", r"(?i)\bbearer\s+(?<secret>[a-z0-9._~+/=-]{16,})"),
    ("basic-auth", r"(?i)\bauthorization:\s*basic\s+(?<secret>[a-z0-9+/=]{8,})"),
    ("api-key", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    ("stripe-key", r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("github-token", r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
    ("gitlab-token", r"\bglpat-[A-Za-z0-9_-]{16,}"),
    ("slack-token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("google-key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("belljar-key", r"\bbj_[0-9a-f]{64}\b"),
    ("url-password", r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]*:(?<secret>[^\s/@]+)@"),
];

/// A password or the like that is given a value in quotes.
const ASSIGNED: &str = r#"(?i)(?:password|passwd|passphrase|secret|api_?key|access_?token|auth_?token)["']?\s*[:=]\s*["'](?<secret>[^"'\s]{6,})["']"#;

/// Values of environment variables that are shorter than this stay: `1` and `true` are no secrets, and are everywhere.
const SHORTEST_VALUE: usize = 6;

/// Knows what secrets look like.
#[derive(Debug)]
pub struct Redactor {
    patterns: Vec<(String, Regex)>,
}

impl Redactor {
    /// The usual patterns, and some more.
    ///
    /// # Errors
    /// One that is not a regular expression.
    pub fn new(more: &[String]) -> Result<Redactor, LedgerError> {
        let usual = USUAL.into_iter().chain([("password", ASSIGNED)]);
        let usual = usual.map(|(name, pattern)| (name, pattern.to_owned()));
        let more = more.iter().map(|pattern| ("configured", pattern.clone()));
        let compile = |(name, pattern): (&str, String)| match Regex::new(&pattern) {
            Ok(regex) => Ok((name.to_owned(), regex)),
            Err(source) => Err(LedgerError::Pattern { pattern, source }),
        };
        Ok(Redactor { patterns: usual.chain(more).map(compile).collect::<Result<_, _>>()? })
    }

    /// A text without its secrets, and how many they were. `values` are secrets themselves.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str, values: &[&str]) -> (Cow<'a, str>, u64) {
        self.clean_part(text, 0..text.len(), values)
    }

    /// A part of a text without its secrets. One that lies across the edge of the part is recognized, too.
    #[must_use]
    pub fn clean_part<'a>(&self, text: &'a str, part: Range<usize>, values: &[&str]) -> (Cow<'a, str>, u64) {
        let part = text.floor_char_boundary(part.start)..text.floor_char_boundary(part.end);
        let mut found: Vec<(Range<usize>, &str)> = self.secrets(text, values);
        found.retain(|(at, _)| at.start < part.end && at.end > part.start);
        if found.is_empty() {
            return (Cow::Borrowed(&text[part]), 0);
        }
        found.sort_by_key(|(at, _)| (at.start, std::cmp::Reverse(at.end)));
        let (mut clean, mut end, mut count) = (String::with_capacity(part.len()), part.start, 0);
        for (at, name) in found {
            // A secret inside another was taken out with it; of one that overlaps another, the rest goes, too.
            if at.end <= end && at.start < end {
                continue;
            }
            clean.push_str(&text[end..at.start.max(end)]);
            clean.push_str("[redacted:");
            clean.push_str(name);
            clean.push(']');
            end = at.end.min(part.end).max(end);
            count += 1;
        }
        clean.push_str(&text[end..part.end]);
        (Cow::Owned(clean), count)
    }

    fn secrets<'a>(&'a self, text: &str, values: &[&str]) -> Vec<(Range<usize>, &'a str)> {
        let mut found = Vec::new();
        for (name, pattern) in &self.patterns {
            for matched in pattern.captures_iter(text) {
                let secret = matched.name("secret").or_else(|| matched.get(0));
                found.extend(
                    secret.filter(|secret| !secret.is_empty()).map(|secret| (secret.range(), &**name)),
                );
            }
        }
        for value in values.iter().filter(|value| value.len() >= SHORTEST_VALUE) {
            found.extend(text.match_indices(value).map(|(at, _)| (at..at + value.len(), "env")));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        Redactor::new(&["hunter[0-9]+".to_owned()])
            .unwrap()
            .clean(text, &["s3cret-value", "1"])
            .0
            .into_owned()
    }

    #[test]
    fn secrets_are_replaced_by_their_kind() {
        // In pieces, so that nobody who looks for keys in source code finds these.
        let cases = [
            (["k = 'AKIA", "IOSFODNN7EXAMPLE'"], "k = '[redacted:aws-key]'"),
            (
                ["aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "/bPxRfiCYEXAMPLEKEY"],
                "aws_secret_access_key = [redacted:aws-secret]",
            ),
            (
                ["Authorization: Bearer abc", "defghijklmnop.qr"],
                "Authorization: Bearer [redacted:bearer-token]",
            ),
            (["client('sk-", "abcdefghijklmnop1234')"], "client('[redacted:api-key]')"),
            (["ghp_", "abcdefghijklmnopqrstuvwxyz0123456789 x"], "[redacted:github-token] x"),
            (["postgres://me:pa", "ss@db/x"], "postgres://me:[redacted:url-password]@db/x"),
            (
                ["-----BEGIN RSA PRIVATE", " KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest"],
                "[redacted:private-key]\nrest",
            ),
            (["-----BEGIN PRIVATE", " KEY-----\nabc without an end"], "[redacted:private-key]"),
            (["password = \"correct", "horse\""], "password = \"[redacted:password]\""),
            (["it is hunter", "22."], "it is [redacted:configured]."),
            (["echo s3cret", "-value"], "echo [redacted:env]"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(&text.concat()), expected);
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "print(1)",
            "bearer of news",
            "a sk-short one",
            "https://example.org:8080/a@b",
            "password = input('password: ')",
            "ä€😀",
            "",
        ] {
            assert_eq!(clean(text), text);
        }
    }

    #[test]
    fn a_secret_that_lies_across_the_edge_of_a_part_is_found() {
        let redactor = Redactor::new(&[]).unwrap();
        let text = format!("head AKIA{} tail ä", "ABCDEFGHIJKLMNOP");
        let part = |part: Range<usize>| redactor.clean_part(&text, part, &[]).0.into_owned();
        assert_eq!(part(0..10), "head [redacted:aws-key]");
        assert_eq!(part(12..30), "[redacted:aws-key] tail");
        assert_eq!(part(26..text.len()), "tail ä");
        assert_eq!(part(0..text.len() - 1), "head [redacted:aws-key] tail ");
    }

    #[test]
    fn secrets_that_overlap_leave_nothing_of_either() {
        let redactor = Redactor::new(&["abcd".into(), "cdef".into(), "bc".into()]).unwrap();
        assert_eq!(redactor.clean("xabcdefy", &[]).0, "x[redacted:configured][redacted:configured]y");
        assert_eq!(redactor.clean("xabcdefy", &[]).1, 2);
        assert!(Redactor::new(&["(".into()]).is_err());
    }
}
