//! Reads code before it runs, and reports what it does that somebody may want to know, approve or refuse.
//!
//! A program is parsed into a syntax tree, ruff's for Python, oxc's for JavaScript and TypeScript, tree-sitter's for shells;
//! what has no grammar here, does not parse, or is a large shell script, is read by its tokens. Each front end turns its tree into the same few
//! facts: imports, calls with full names and literal arguments, texts, commands. The rules in `rules/` match facts, so
//! a rule is data and needs no knowledge of trees. Import aliases, simple assignments and texts that are put together
//! from literals are followed. Code in code is read, too, as what it is: the argument of `bash -c`, a here-document
//! for Python, a decoded text that is given to `exec`.
//!
//! No scan can tell what a program will do. Isolation keeps its promises whatever a scan finds; `docs/scan.md` lists
//! what a scan cannot see, and what holds that.
//!
//! The code is hostile. Whoever has something to lose reads it in a process that has nothing to lose. This crate itself
//! does no I/O; its work and its results are bounded, except for the parsers' own time.

#![forbid(unsafe_code)]

mod command;
mod javascript;
mod matcher;
pub mod message;
mod names;
mod python;
mod rules;
mod script;
mod shell;
mod tokens;
mod view;
mod words;

use std::thread;

use belljar_core::finding::{Finding, Launch};
use belljar_core::language::Language;

pub use rules::{Rule, rules};

use matcher::{Matcher, Pending};
use view::{Dialect, Fact, Sink, Span};

/// Code to be scanned.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it is written in.
    pub language: Language,
    /// Its text.
    pub code: &'a [u8],
    /// The only modules that it may import, if there are such.
    pub allowed_imports: Option<&'a [String]>,
    /// Whether its syntax trees are made.
    pub trees: Trees,
}

/// Whether syntax trees are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trees {
    /// Where there is a grammar.
    Wanted,
    /// The parser was tried and failed.
    Failed,
}

/// More levels than this are not parsed.
const DEEPEST: usize = 20_000;
/// Up to so many, the stack of any thread suffices.
const SHALLOW: usize = 150;
/// The most shell code of which trees are made, in bytes, and what a tree costs however small it is. tree-sitter reads 3.5 MB of
/// bash in a second, the other parsers three times as much.
const MOST_PARSED_SHELL: usize = 128 << 10;
const SHELL_OVERHEAD: usize = 64;
/// What the deepest takes in a build without optimization, with room to spare.
const STACK: usize = 256 << 20;

/// What a scan says about code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What was found, in the order of the text.
    pub findings: Vec<Finding>,
    /// What else the code runs.
    pub launches: Vec<Launch>,
}

/// Scans code. Findings are in the order of the text.
#[must_use]
pub fn scan(request: &Request<'_>) -> Vec<Finding> {
    examine(request).findings
}

/// Scans code, and says what else it runs.
#[must_use]
pub fn examine(request: &Request<'_>) -> Report {
    let text = String::from_utf8_lossy(request.code);
    let Some(dialect) = Dialect::of(request.language.name) else { return Report::default() };
    if let Ok(report) = scan_to(SHALLOW, dialect, &text, request) {
        return report;
    }
    let scanned = thread::scope(|scope| {
        let deeply = || scan_to(DEEPEST, dialect, &text, request);
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, deeply);
        thread.ok().and_then(|thread| thread.join().ok())
    });
    match scanned {
        Some(Ok(report)) => report,
        // Code that is too deep even for that is read by its tokens there; so this is a lack of memory for the stack.
        Some(Err(Deeper)) | None => examine(&Request { trees: Trees::Failed, ..*request }),
    }
}

/// Code is nested more deeply than the stack allows.
#[derive(Debug)]
struct Deeper;

/// Scans code of which no more than so many levels are parsed.
fn scan_to(limit: usize, dialect: Dialect, text: &str, request: &Request<'_>) -> Result<Report, Deeper> {
    let mut matcher = Matcher::new(rules::compiled(), request.allowed_imports, Pending::root(dialect, text));
    check_characters(text, &mut matcher);
    let mut shell_left = MOST_PARSED_SHELL;
    while let Some(part) = matcher.next() {
        if is_too_large(&part, request.trees, &mut shell_left) {
            matcher.see(Span::new(0, 0), Fact::Construct("large-script"));
            read_tokens(&part, &mut matcher);
        } else {
            read(&part, request.trees, limit, &mut matcher)?;
        }
    }
    Ok(matcher.finish(text))
}

/// Whether there is more shell code than trees are made of.
fn is_too_large(part: &Pending, trees: Trees, left: &mut usize) -> bool {
    if part.dialect != Dialect::Shell || trees == Trees::Failed {
        return false;
    }
    match left.checked_sub(part.text.len() + SHELL_OVERHEAD) {
        Some(rest) => {
            *left = rest;
            false
        }
        None => true,
    }
}

fn read(part: &Pending, trees: Trees, limit: usize, matcher: &mut Matcher<'_>) -> Result<(), Deeper> {
    if matches!(part.dialect, Dialect::Other(_)) {
        read_tokens(part, matcher);
        return Ok(());
    }
    let trouble = match trees {
        Trees::Failed => Some("too-expensive"),
        Trees::Wanted => match tokens::depth(part.dialect, &part.text) {
            depth if depth <= limit => None,
            _ if limit < DEEPEST => return Err(Deeper),
            _ => Some("too-deep"),
        },
    };
    match trouble {
        None => read_tree(part, matcher),
        Some(trouble) => {
            matcher.see(Span::new(0, 0), Fact::Construct(trouble));
            read_tokens(part, matcher);
        }
    }
    Ok(())
}

fn read_tokens(part: &Pending, matcher: &mut Matcher<'_>) {
    matcher.read_by_tokens();
    tokens::read(part.dialect, &part.text, matcher);
}

fn read_tree(part: &Pending, matcher: &mut Matcher<'_>) {
    let whole = match part.dialect {
        Dialect::Python => python::read(&part.text, matcher),
        Dialect::JavaScript | Dialect::TypeScript => javascript::read(part.dialect, &part.text, matcher),
        Dialect::Shell => shell::read(&part.text, matcher),
        Dialect::Other(_) => Tree::Absent,
    };
    if whole == Tree::Absent {
        read_tokens(part, matcher);
    }
}

/// Whether a parser made a tree, of the whole text or at least of most of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Made,
    Absent,
}

/// Characters that make code look like other code (CVE-2021-42574).
fn check_characters(text: &str, matcher: &mut Matcher<'_>) {
    if text.is_ascii() {
        return;
    }
    for (at, c) in text.char_indices().filter(|(at, c)| *at > 0 && matcher::is_deceptive(*c)).take(20) {
        matcher.see(Span::new(at, at + c.len_utf8()), Fact::Construct("deceptive-characters"));
    }
}
