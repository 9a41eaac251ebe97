//! Tokens of any language: for those without a syntax tree, for code that does not parse, and to see how deeply code is
//! nested before a recursive parser reads it.

use std::rc::Rc;

use crate::names::{Names, path};
use crate::view::{Dialect, Fact, Sink, Span, Value};
use crate::words;

/// A token that rules care about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    /// A name, with dots, colons and arrows in it: `std::process::Command`.
    Word(&'a str),
    /// The inside of a text in quotes, as it is written.
    Text(&'a str),
    /// Text in backquotes, which several languages run as a command.
    Backquoted(&'a str),
    Symbol(u8),
    NewLine,
}

/// How comments begin, which differs most between languages.
#[derive(Debug, Clone, Copy)]
struct Lexicon {
    hash: bool,
    slashes: bool,
    dashes: bool,
    percent: bool,
    triple_quotes: bool,
}

impl Lexicon {
    fn of(dialect: Dialect) -> Lexicon {
        let none =
            Lexicon { hash: false, slashes: false, dashes: false, percent: false, triple_quotes: false };
        match dialect {
            Dialect::Python => Lexicon { hash: true, triple_quotes: true, ..none },
            Dialect::Shell => Lexicon { hash: true, ..none },
            Dialect::JavaScript | Dialect::TypeScript => Lexicon { slashes: true, ..none },
            Dialect::Other("ruby" | "perl" | "r") => Lexicon { hash: true, ..none },
            Dialect::Other("php") => Lexicon { hash: true, slashes: true, ..none },
            Dialect::Other("lua") => Lexicon { dashes: true, ..none },
            Dialect::Other(_) => Lexicon { slashes: true, ..none },
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    lexicon: Lexicon,
}

impl<'a> Lexer<'a> {
    fn of(dialect: Dialect, text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, lexicon: Lexicon::of(dialect) }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn begins_comment(&self) -> bool {
        let Lexicon { hash, slashes, dashes, percent, .. } = self.lexicon;
        match self.byte(0) {
            b'#' => hash,
            b'/' => slashes && self.byte(1) == b'/',
            b'-' => dashes && self.byte(1) == b'-',
            b'%' => percent,
            _ => false,
        }
    }

    fn skip_to(&mut self, end: &str) {
        self.at = self.text[self.at..].find(end).map_or(self.text.len(), |found| self.at + found + end.len());
    }

    /// The inside of a text in quotes. It ends at the quote that is not behind a backslash.
    fn quoted(&mut self, quote: u8) -> &'a str {
        let bytes = self.text.as_bytes();
        let thrice = [quote; 3];
        if self.lexicon.triple_quotes && bytes[self.at..].starts_with(&thrice) {
            let start = self.at + 3;
            self.at = start;
            let end = str::from_utf8(&thrice).unwrap_or_default().to_owned();
            self.skip_to(&end);
            return self.text.get(start..self.at.saturating_sub(3).max(start)).unwrap_or_default();
        }
        let start = self.at + 1;
        let mut end = start;
        while end < bytes.len() && bytes[end] != quote {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        let end = self.text.floor_char_boundary(end.min(bytes.len()));
        self.at = (end + 1).min(bytes.len());
        self.text.get(start..end).unwrap_or_default()
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        loop {
            while is_part(self.byte(0)) {
                self.at += 1;
            }
            let joint = match (self.byte(0), self.byte(1)) {
                (b'.', next) if is_part(next) => 1,
                (b':', b':') | (b'-', b'>') if is_part(self.byte(2)) => 2,
                _ => break,
            };
            self.at += joint;
        }
        &self.text[start..self.at]
    }

    fn next(&mut self) -> Option<(Span, Token<'a>)> {
        loop {
            let start = self.at;
            let byte = *self.text.as_bytes().get(self.at)?;
            if self.begins_comment() {
                self.at = self.text[self.at..].find('\n').map_or(self.text.len(), |found| self.at + found);
                continue;
            }
            if self.lexicon.slashes && byte == b'/' && self.byte(1) == b'*' {
                self.at += 2;
                self.skip_to("*/");
                continue;
            }
            let token = match byte {
                b'\n' => {
                    self.at += 1;
                    Token::NewLine
                }
                b'"' | b'\'' => Token::Text(self.quoted(byte)),
                b'`' => Token::Backquoted(self.quoted(byte)),
                _ if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 => Token::Word(self.word()),
                _ if byte.is_ascii_whitespace() => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.at += 1;
                    Token::Symbol(byte)
                }
            };
            return Some((Span::new(start, self.at), token));
        }
    }
}

/// An upper bound of how deeply a recursive parser would have to nest: brackets, indentation, and at each level the
/// tokens since the last separator, because operators nest, too.
pub(crate) fn depth(dialect: Dialect, text: &str) -> usize {
    let mut lexer = Lexer::of(dialect, text);
    let mut levels: Vec<usize> = vec![0];
    let (mut total, mut deepest, mut previous_is_operator, mut at_line_start) = (0usize, 0, false, false);
    let mut is_continued = false;
    while let Some((span, token)) = lexer.next() {
        let is_word = matches!(token, Token::Word(word) if word != "else" && word != "elif");
        let top = levels.last_mut().map_or(0, |top| *top);
        let resets = match token {
            Token::Symbol(b',' | b';') => true,
            Token::NewLine => dialect == Dialect::Python && levels.len() == 1 && !is_continued,
            Token::Word(_) | Token::Text(_) | Token::Backquoted(_) | Token::Symbol(_) => {
                at_line_start && is_word && !previous_is_operator
            }
        };
        if resets && let Some(top_level) = levels.last_mut() {
            total -= top;
            *top_level = 0;
        }
        match token {
            Token::Symbol(b'(' | b'[' | b'{') => {
                levels.push(0);
                total += 1;
            }
            Token::Symbol(b')' | b']' | b'}') if levels.len() > 1 => {
                total -= levels.pop().unwrap_or(0) + 1;
            }
            Token::NewLine => {
                let indent =
                    text.as_bytes()[span.end..].iter().take_while(|byte| **byte == b' ' || **byte == b'\t');
                deepest = deepest.max(total + indent.count());
            }
            Token::Word(_) | Token::Text(_) | Token::Backquoted(_) | Token::Symbol(_) => {
                let links = if let Token::Word(word) = token { word.matches('.').count() } else { 0 };
                if let Some(top_level) = levels.last_mut() {
                    *top_level += 1 + links;
                    total += 1 + links;
                }
            }
        }
        deepest = deepest.max(total);
        is_continued = token == Token::Symbol(b'\\');
        if token != Token::NewLine {
            previous_is_operator = matches!(token, Token::Symbol(symbol) if !b")]}".contains(&symbol));
        }
        at_line_start = token == Token::NewLine;
    }
    deepest
}

/// Reads code by its tokens: names that are followed by a bracket are called, texts are texts, and the words after
/// `import`, `require` and their like are modules.
pub(crate) fn read(dialect: Dialect, text: &str, sink: &mut dyn Sink) {
    if dialect == Dialect::Shell {
        return words::read(text, sink);
    }
    let mut reader = Reader { dialect, names: Names::new(), sink, tokens: Vec::new() };
    let mut lexer = Lexer::of(dialect, text);
    while let Some(token) = lexer.next() {
        reader.tokens.push(token);
        // A window is enough: nothing here looks further.
        if reader.tokens.len() > 4096 {
            reader.read_all(1024);
        }
    }
    reader.read_all(0);
}

struct Reader<'a, 's> {
    dialect: Dialect,
    names: Names,
    sink: &'s mut dyn Sink,
    tokens: Vec<(Span, Token<'a>)>,
}

const IMPORTING: [&str; 12] = [
    "import",
    "from",
    "require",
    "require_relative",
    "require_once",
    "include",
    "include_once",
    "use",
    "library",
    "load",
    "source",
    "package",
];

impl Reader<'_, '_> {
    fn read_all(&mut self, but: usize) {
        let tokens = std::mem::take(&mut self.tokens);
        let end = tokens.len().saturating_sub(but);
        for index in 0..end {
            self.read_at(&tokens, index);
        }
        self.tokens = tokens.into_iter().skip(end).collect();
    }

    fn read_at(&mut self, tokens: &[(Span, Token<'_>)], index: usize) {
        let Some((span, token)) = tokens.get(index) else { return };
        match token {
            Token::Text(text) => self.sink.see(*span, Fact::Text(unescaped(text))),
            Token::Backquoted(text) => {
                let language = Dialect::Shell;
                if matches!(self.dialect, Dialect::Other("ruby" | "perl" | "php")) {
                    self.sink.see(*span, Fact::Construct("backquotes"));
                    self.sink
                        .see(*span, Fact::Code { language, text: unescaped(text), at: Some(span.start + 1) });
                }
                self.sink.see(*span, Fact::Text(unescaped(text)));
            }
            Token::Word(word) => self.read_word(tokens, index, *span, word),
            Token::Symbol(b'#') if self.dialect == Dialect::Other("c") => self.read_include(tokens, index),
            Token::Symbol(_) | Token::NewLine => {}
        }
    }

    fn read_word(&mut self, tokens: &[(Span, Token<'_>)], index: usize, span: Span, word: &str) {
        let name = normal(word);
        let by_preprocessor = self.dialect == Dialect::Other("c");
        if IMPORTING.contains(&word) && !by_preprocessor {
            self.read_import(tokens, index);
        }
        let next = tokens.get(index + 1).map(|(_, token)| token);
        self.follow_assignment(tokens, index, &name);
        let resolved = match name.split_once('.') {
            None => self.names.one(&name),
            Some((first, rest)) => {
                let base = self.names.one(first);
                self.names.attribute(&base, rest)
            }
        };
        let Some(resolved) = resolved.path().cloned() else { return };
        if let Some((_, last)) = resolved.rsplit_once('.') {
            self.sink.see(span, Fact::Attribute(last.into()));
        }
        let (calls, arguments) = match next {
            Some(Token::Symbol(b'(')) => (true, arguments(&tokens[index + 2..])),
            // A command without brackets, as Ruby and Perl have them.
            Some(Token::Text(_)) => (true, arguments(&tokens[index + 1..])),
            Some(Token::Word(_) | Token::Backquoted(_) | Token::Symbol(_) | Token::NewLine) | None => {
                (false, Vec::new())
            }
        };
        if calls {
            let end = tokens.get(index + 1).map_or(span.end, |(span, _)| span.start);
            self.sink.see(Span::new(span.start, end.max(span.end)), Fact::Call(resolved, arguments));
        } else {
            self.sink.see(span, Fact::Name(resolved));
        }
        let forks = |offset: usize| matches!(tokens.get(index + offset), Some((_, Token::Word("fork"))));
        let loops = matches!(word, "while" | "for" | "until" | "loop" | "do");
        if (loops && (1..9).any(forks)) || (word == "fork" && (1..4).any(forks)) {
            self.sink.see(span, Fact::Construct("fork-in-loop"));
        }
    }

    /// `name = other.name` makes the one stand for the other.
    fn follow_assignment(&mut self, tokens: &[(Span, Token<'_>)], index: usize, name: &str) {
        let token = |offset: usize| tokens.get(index + offset).map(|(_, token)| token);
        if token(1) != Some(&Token::Symbol(b'=')) || token(2) == Some(&Token::Symbol(b'=')) {
            return;
        }
        if let Some(Token::Word(other)) = token(2)
            && token(3) != Some(&Token::Symbol(b'('))
        {
            self.names.bind(name, path(&normal(other)));
        }
    }

    fn read_import(&mut self, tokens: &[(Span, Token<'_>)], index: usize) {
        let following = tokens[index + 1..].iter().take(40);
        let mut in_brackets = false;
        for (span, token) in following {
            match token {
                Token::Word("static" | "as" | "type" | "namespace" | "function") => {}
                Token::Word(module) => {
                    self.sink.see(*span, Fact::Import(normal(module)));
                    if !in_brackets {
                        return;
                    }
                }
                Token::Text(module) => {
                    self.sink.see(*span, Fact::Import((*module).into()));
                    if !in_brackets {
                        return;
                    }
                }
                Token::Symbol(b'(') => in_brackets = true,
                Token::Symbol(b')') => return,
                Token::NewLine if !in_brackets => return,
                Token::Backquoted(_) | Token::Symbol(_) | Token::NewLine => {}
            }
        }
    }

    /// `#include <sys/ptrace.h>`
    fn read_include(&mut self, tokens: &[(Span, Token<'_>)], index: usize) {
        if !matches!(tokens.get(index + 1), Some((_, Token::Word("include")))) {
            return;
        }
        let line = tokens[index + 2..].iter().take(12).take_while(|(_, token)| *token != Token::NewLine);
        let mut name = String::new();
        let mut end = None;
        for (span, token) in line {
            match token {
                Token::Word(word) | Token::Text(word) => name.push_str(word),
                Token::Symbol(b'/') => name.push('/'),
                Token::Backquoted(_) | Token::Symbol(_) | Token::NewLine => {}
            }
            end = Some(span.end);
        }
        if let (Some(end), Some((start, _))) = (end, tokens.get(index)) {
            self.sink.see(Span::new(start.start, end), Fact::Import(name.into()));
        }
    }
}

/// The literal arguments of a call, up to its closing bracket or the end of the line.
fn arguments(tokens: &[(Span, Token<'_>)]) -> Vec<Value> {
    let (mut arguments, mut depth, mut fresh) = (Vec::new(), 0usize, true);
    for (_, token) in tokens.iter().take(60) {
        match token {
            Token::Symbol(b')') if depth == 0 => break,
            Token::Symbol(b'(') => depth += 1,
            Token::Symbol(b')') => depth -= 1,
            Token::Symbol(b',') => fresh = true,
            Token::Text(text) | Token::Backquoted(text) => {
                arguments.push(Value::Text(unescaped(text)));
                fresh = false;
            }
            Token::Word(word) if fresh => {
                arguments.push(if depth == 0 { path(&normal(word)) } else { Value::Unknown });
                fresh = false;
            }
            Token::NewLine if depth == 0 && !fresh => break,
            Token::Symbol(b';') => break,
            Token::Symbol(b'$' | b'@' | b'&') if fresh => {
                arguments.push(Value::Unknown);
                fresh = false;
            }
            Token::Word(_) | Token::Symbol(_) | Token::NewLine => {}
        }
    }
    arguments
}

/// One way to write a name: with dots.
fn normal(word: &str) -> Rc<str> {
    if word.contains([':', '-']) { word.replace("::", ".").replace("->", ".").into() } else { word.into() }
}

fn unescaped(text: &str) -> Rc<str> {
    if !text.contains('\\') {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some('x') => {
                    let digits: String = chars.clone().take(2).collect();
                    match u8::from_str_radix(&digits, 16) {
                        Ok(byte) if digits.len() == 2 => {
                            plain.push(char::from(byte));
                            chars.nth(1);
                        }
                        Ok(_) | Err(_) => plain.push('x'),
                    }
                }
                Some(other) => plain.push(other),
                None => {}
            },
            other => plain.push(other),
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl Sink for Seen {
        fn see(&mut self, _: Span, fact: Fact) {
            match fact {
                Fact::Import(name) => self.0.push(format!("import {name}")),
                Fact::Call(name, arguments) => {
                    let texts = arguments.iter().filter_map(Value::text).map(|text| format!(" {text}"));
                    self.0.push(format!("call {name}{}", texts.collect::<String>()));
                }
                Fact::Construct(name) => self.0.push(name.to_owned()),
                Fact::Name(_)
                | Fact::Attribute(_)
                | Fact::Text(_)
                | Fact::Command(_)
                | Fact::Code { .. }
                | Fact::Launch(..)
                | Fact::Unreadable(_) => {}
            }
        }
    }

    fn seen(language: &str, text: &str) -> Vec<String> {
        let mut seen = Seen::default();
        read(Dialect::of(language).unwrap(), text, &mut seen);
        seen.0
    }

    #[test]
    fn calls_and_imports_are_seen_in_every_language() {
        assert_eq!(
            seen("ruby", "require 'open3'\nsystem \"id\" # system 'x'"),
            ["import open3", "call require open3", "call system id"]
        );
        assert_eq!(
            seen("c", "#include <sys/ptrace.h>\nint x = system(\"id\"); /* system(1) */"),
            ["import sys/ptrace.h", "call system id"]
        );
        assert_eq!(
            seen("go", "import (\n\t\"fmt\"\n\t\"os/exec\"\n)\nexec.Command(\"sh\", \"-c\")"),
            ["import fmt", "import os/exec", "call import fmt", "call exec.Command sh -c"]
        );
        assert_eq!(seen("rust", "use std::process::Command;"), ["import std.process.Command"]);
        assert_eq!(seen("lua", "local e = os.execute\ne('ls') -- os.exit()"), ["call os.execute ls"]);
        assert_eq!(seen("perl", "fork while fork;"), ["fork-in-loop", "fork-in-loop"]);
    }

    #[test]
    fn depth_counts_brackets_indentation_and_operators() {
        let deep = |text: &str| depth(Dialect::Python, text);
        assert!(deep("x = [1, 2, 3]\n".repeat(1000).as_str()) < 20);
        assert!(deep(&format!("x = [{}]", "1, ".repeat(5000))) < 20);
        for text in ["(", "-", "not ", "lambda: ", "a.b.c[0].", "a.", "1 +\\\n"] {
            assert!(deep(&text.repeat(10_000)) >= 10_000, "{text}");
        }
        assert!(deep("\"((((((((((\" # ((((((((((((\n") < 5);
        let javascript = "function f(x) {\n  return x\n}\nif (a) { b() }\nelse c()\n".repeat(1000);
        assert!(depth(Dialect::JavaScript, &javascript) < 50, "{}", depth(Dialect::JavaScript, &javascript));
        assert!(depth(Dialect::JavaScript, &"if (a) {} else ".repeat(10_000)) >= 10_000);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s)[ -~\\n\\u{80}-\\u{ffff}]{0,200}") {
            for language in ["python", "ruby", "c", "lua", "bash"] {
                seen(language, &text);
                depth(Dialect::of(language).unwrap(), &text);
            }
        }
    }
}
