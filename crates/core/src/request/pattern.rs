//! File patterns. Both the pattern and the file names may be hostile, so matching takes at most as many steps as the
//! product of their lengths.

use std::iter::once;
use std::str::Chars;

use crate::{Field, Invalid};

/// The most patterns that one run takes.
pub const MAX_PATTERNS: usize = 64;
/// The most bytes that a pattern may have.
pub const MAX_PATTERN: usize = 1024;

/// A pattern for files beneath the working directory. `?` matches one character of a name, `*` any number of them,
/// `[a-z]` one character in the range and `[!a-z]` one outside it; `**` matches any number of directories. None of them
/// matches the dot that a hidden name begins with: that has to be written, as in a shell.
#[derive(Debug, Clone)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
    is_optional: bool,
}

impl Glob {
    /// All patterns of a run.
    ///
    /// # Errors
    /// Too many of them, or one that [`parse`](Glob::parse) rejects.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Glob>, Invalid> {
        if texts.len() > MAX_PATTERNS {
            let message = format!("there are {} patterns; at most {MAX_PATTERNS} are accepted", texts.len());
            return Err(Invalid::too_large(Field::Collect, message, "use wildcards, such as 'out/**/*.csv'"));
        }
        texts.iter().map(|text| Glob::parse(text)).collect()
    }

    /// `*.png`, `out/**/*.csv`, `result.json`.
    ///
    /// # Errors
    /// A pattern that is too long, malformed, or that could name something outside the working directory.
    pub fn parse(text: &str) -> Result<Glob, Invalid> {
        if text.len() > MAX_PATTERN {
            let message =
                format!("a pattern is {} bytes long; at most {MAX_PATTERN} are accepted", text.len());
            return Err(Invalid::too_large(Field::Collect, message, "use wildcards, such as 'out/**/*.csv'"));
        }
        let refuse = |why: &str| {
            Invalid::new(
                Field::Collect,
                format!("the pattern '{}' {why}", text.escape_debug()),
                "name files inside the working directory, such as 'plot.png' or 'out/**/*.csv'",
            )
        };
        let text = text.strip_prefix("./").unwrap_or(text);
        if text.is_empty() || text.contains('\0') {
            return Err(refuse("is not a pattern"));
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(refuse("leads out of the working directory"));
        }
        let parts = parts(text).map_err(|why| refuse(&format!("is malformed: {why}")))?;
        // Wildcards alone ask for whatever there is, which may be nothing.
        let is_optional = text.bytes().all(|byte| b"*/".contains(&byte));
        Ok(Glob { text: text.to_owned(), parts, is_optional })
    }

    /// Whether it matches a relative path. A `*` does not match a slash; `**` does.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        // For each number of names, whether the parts so far can match exactly that many.
        let mut covered: Vec<bool> = once(true).chain(names.iter().map(|_| false)).collect();
        for part in &self.parts {
            covered = part.extend(&covered, &names);
        }
        covered.last() == Some(&true)
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same for files that need not be there: if none matches, nothing is said about it.
    #[must_use]
    pub fn optional(self) -> Glob {
        Glob { is_optional: true, ..self }
    }

    /// Whether the files that it matches need not be there.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.is_optional
    }

    /// Whether it names exactly this path, without wildcards.
    #[must_use]
    pub fn is_literally(&self, path: &str) -> bool {
        self.text == path
    }
}

/// The part between two slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of names.
    Names,
    /// One name.
    Name(Vec<Token>),
}

/// What matches characters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Slash,
    /// `*`
    Any,
    /// `?`
    One,
    Char(char),
    /// `[…]`, or `[!…]` if negated: ranges from a first to a last character.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Part {
    fn extend(&self, covered: &[bool], names: &[&str]) -> Vec<bool> {
        match self {
            Part::Names => {
                let passable = once(false).chain(names.iter().map(|name| !is_hidden(name)));
                let so_far = |before: &mut bool, (here, passable): (&bool, bool)| {
                    *before = *here || (*before && passable);
                    Some(*before)
                };
                covered.iter().zip(passable).scan(false, so_far).collect()
            }
            Part::Name(tokens) => {
                let fits = |(here, name): (&bool, &&str)| *here && is_name(tokens, name);
                once(false).chain(covered.iter().zip(names).map(fits)).collect()
            }
        }
    }
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Token::Slash | Token::Any => false,
            Token::One => true,
            Token::Char(own) => *own == c,
            Token::Class { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated
            }
        }
    }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

/// Whether the tokens match a name. Only the last `*` reached so far is ever extended: whatever an earlier one could
/// match instead, this one can match as well.
fn is_name(tokens: &[Token], name: &str) -> bool {
    if is_hidden(name) && tokens.first() != Some(&Token::Char('.')) {
        return false;
    }
    let (mut tokens, mut left) = (tokens, name.chars());
    let mut again: Option<(&[Token], Chars<'_>)> = None;
    loop {
        if let [Token::Any, after @ ..] = tokens {
            again = Some((after, left.clone()));
            tokens = after;
            continue;
        }
        match (tokens, left.next()) {
            ([], None) => return true,
            ([token, after @ ..], Some(c)) if token.takes(c) => tokens = after,
            _ => {
                let Some((after, from)) = &mut again else { return false };
                if from.next().is_none() {
                    return false;
                }
                (tokens, left) = (after, from.clone());
            }
        }
    }
}

fn parts(text: &str) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    for name in tokens(text)?.split(|token| *token == Token::Slash) {
        let part = match name {
            [Token::Any, Token::Any] => Part::Names,
            _ if name.windows(2).any(|pair| pair == [Token::Any, Token::Any]) => {
                return Err("'**' stands for directories and must be between slashes");
            }
            _ => Part::Name(name.to_vec()),
        };
        if part != Part::Names || parts.last() != Some(&Part::Names) {
            parts.push(part);
        }
    }
    end_with_a_name(&mut parts);
    Ok(parts)
}

/// `out/**` and `out/**/` mean `out/**/*`: what is beneath the directory, not the directory itself.
fn end_with_a_name(parts: &mut Vec<Part>) {
    if let [.., Part::Names, Part::Name(last)] = parts.as_slice()
        && last.is_empty()
    {
        parts.pop();
    }
    if parts.last() == Some(&Part::Names) {
        parts.push(Part::Name(vec![Token::Any]));
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, &'static str> {
    let text: Vec<char> = text.chars().collect();
    let (mut tokens, mut rest) = (Vec::new(), text.as_slice());
    while let [first, after @ ..] = rest {
        let (token, after) = match first {
            '/' => (Token::Slash, after),
            '*' => (Token::Any, after),
            '?' => (Token::One, after),
            '[' => class(after).ok_or("a '[' has no ']'")?,
            other => (Token::Char(*other), after),
        };
        tokens.push(token);
        rest = after;
    }
    Ok(tokens)
}

/// The class after a `[`, and the rest of the text. The first of its characters may be a `]`.
fn class(text: &[char]) -> Option<(Token, &[char])> {
    let (negated, text) = match text {
        ['!', text @ ..] => (true, text),
        _ => (false, text),
    };
    let end = 1 + text.iter().skip(1).position(|c| *c == ']')?;
    let (members, rest) = text.split_at_checked(end)?;
    Some((Token::Class { negated, ranges: ranges(members) }, rest.get(1..)?))
}

fn ranges(mut members: &[char]) -> Vec<(char, char)> {
    let mut ranges = Vec::new();
    loop {
        match members {
            [first, '-', last, rest @ ..] => {
                ranges.push((*first, *last));
                members = rest;
            }
            [one, rest @ ..] => {
                ranges.push((*one, *one));
                members = rest;
            }
            [] => return ranges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pattern_stays_beneath_the_working_directory() {
        for text in ["/etc/*", "../*", "a/../../b", "", "[", "a/**b"] {
            assert!(Glob::parse(text).is_err(), "{text:?}");
        }
        let glob = Glob::parse("out/**/*.csv").unwrap();
        assert!(glob.matches("out/a/b.csv") && glob.matches("out/b.csv") && !glob.matches("b.csv"));
        assert!(!Glob::parse("*.csv").unwrap().matches("a/b.csv"));
        assert!(Glob::parse("./plot.png").unwrap().is_literally("plot.png"));
    }

    #[test]
    fn wildcards_alone_expect_nothing_in_particular() {
        for (text, is_optional) in
            [("*", true), ("**", true), ("**/*", true), ("*.png", false), ("out/**", false)]
        {
            assert_eq!(Glob::parse(text).unwrap().is_optional(), is_optional, "{text}");
        }
    }

    #[test]
    fn a_wildcard_does_not_match_a_leading_dot_but_a_dot_does() {
        let matches = |pattern: &str, path: &str| Glob::parse(pattern).unwrap().matches(path);
        for pattern in ["*", "**", "**/*", "?env", "[.]env", "[!a]env", "*env", "*.env"] {
            assert!(!matches(pattern, ".env"), "{pattern}");
        }
        for path in [".git/config", "a/.git/config", "a/b/.git", ".git/hooks/x"] {
            assert!(!matches("**", path) && !matches("**/*", path) && !matches("a/**", path), "{path}");
        }
        assert!(!matches("*/config", ".git/config") && !matches("**/config", ".git/config"));
        for pattern in [".env", ".*", ".e?v", "**/.env", "**/.*", "./.env"] {
            assert!(matches(pattern, ".env"), "{pattern}");
        }
        assert!(matches(".cache/**", ".cache/a/b") && !matches(".cache/**", ".cache/.a/b"));
        assert!(matches("**/.cache/*", "a/.cache/b") && matches("*", "a.env") && matches("a*", "a.env"));
    }

    #[test]
    fn two_stars_mean_what_is_beneath() {
        assert!(!Glob::parse("A").unwrap().matches("a"));
        let all = Glob::parse("out/**").unwrap();
        assert!(all.matches("out/a") && all.matches("out/a/b") && !all.matches("out"));
    }

    #[test]
    fn a_pattern_that_invites_backtracking_is_answered() {
        let stars = "*a".repeat(13);
        for (pattern, path) in [
            (format!("{stars}*b/x"), format!("{}/x", "a".repeat(200))),
            ("*a".repeat(500), format!("{}b", "a".repeat(250))),
            (format!("{}b", "**/a/".repeat(200)), "a/".repeat(2000)),
        ] {
            assert!(!Glob::parse(&pattern).unwrap().matches(&path), "{pattern}");
        }
        assert!(Glob::parse(&stars).unwrap().matches(&"a".repeat(200)));
    }

    #[test]
    fn patterns_are_bounded_in_number_and_length() {
        let many = Glob::parse_all(&vec!["a".to_owned(); MAX_PATTERNS + 1]).unwrap_err();
        assert!(many.too_large && many.message.contains("at most 64"), "{many}");
        assert_eq!(Glob::parse_all(&vec!["a".to_owned(); MAX_PATTERNS]).unwrap().len(), MAX_PATTERNS);
        let long = Glob::parse(&"a".repeat(MAX_PATTERN + 1)).unwrap_err();
        assert!(long.too_large && long.message.contains("at most 1024"), "{long}");
        assert_eq!(long.field, Field::Collect);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn it_means_what_others_mean_by_it(
            pattern in r"([ab.?*/!\]-]|\*\*/|/\*\*|\[!?[ab/\]*-]{1,4}\]){1,8}", path in "[ab./-]{0,8}",
        ) {
            let options = glob::MatchOptions {
                case_sensitive: true,
                require_literal_separator: true,
                require_literal_leading_dot: false,
            };
            let stripped = pattern.strip_prefix("./").unwrap_or(&pattern);
            let leads_out = stripped.starts_with('/') || stripped.split('/').any(|part| part == "..");
            match (Glob::parse(&pattern), glob::Pattern::new(stripped)) {
                // Theirs lets `*.a` match `.a`, which shells do not.
                (Ok(ours), Ok(theirs)) if path.split('/').any(is_hidden) => {
                    prop_assert!(!ours.matches(&path) || theirs.matches_with(&path, options));
                }
                (Ok(ours), Ok(theirs)) => {
                    prop_assert_eq!(ours.matches(&path), theirs.matches_with(&path, options));
                }
                (Err(_), Ok(_)) => prop_assert!(leads_out || stripped.is_empty(), "refused: {}", pattern),
                (Ok(_), Err(_)) => prop_assert!(false, "taken: {}", pattern),
                (Err(_), Err(_)) => {}
            }
        }
    }
}
