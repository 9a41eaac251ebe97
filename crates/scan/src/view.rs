//! The common view of a program that rules match on, whatever it is written in.

use std::rc::Rc;

use belljar_core::finding::Launched;
use belljar_core::language::Language;

use crate::command::Command;

/// A part of a text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }
}

/// One thing that a program does, as far as its text tells.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fact {
    /// It imports a module.
    Import(Rc<str>),
    /// It calls a function, known by its full name, such as `os.system`; where only the method is known, `?.connect`.
    Call(Rc<str>, Vec<Value>),
    /// It mentions something by its full name.
    Name(Rc<str>),
    /// It reads an attribute of anything.
    Attribute(Rc<str>),
    /// It contains a text.
    Text(Rc<str>),
    /// It runs a program with these words.
    Command(Command),
    /// Something that a front end recognizes and that is none of the above, such as `fork-bomb`.
    Construct(&'static str),
    /// It contains code of a language, which begins at an offset of its own text unless it was put together.
    Code { language: Dialect, text: Rc<str>, at: Option<usize> },
    /// It runs what comes through standard input, or a file, as a language.
    Launch(Dialect, Launched),
    /// The front end could not read a part of it.
    Unreadable(String),
}

/// What is known about a value without running the program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Something that has a name: a module, a function, a class.
    Path(Rc<str>),
    Text(Rc<str>),
    /// A text that was encoded in the source.
    Decoded(Rc<str>),
    Number(i64),
    List(Rc<[Value]>),
    Map(Rc<[(Rc<str>, Value)]>),
    Unknown,
}

impl Value {
    /// As text, if it is one.
    pub(crate) fn text(&self) -> Option<&Rc<str>> {
        match self {
            Value::Text(text) | Value::Decoded(text) => Some(text),
            Value::Path(_) | Value::Number(_) | Value::List(_) | Value::Map(_) | Value::Unknown => None,
        }
    }

    /// As a name, if it has one.
    pub(crate) fn path(&self) -> Option<&Rc<str>> {
        match self {
            Value::Path(path) => Some(path),
            Value::Text(_)
            | Value::Decoded(_)
            | Value::Number(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Unknown => None,
        }
    }

    /// The same text, decoded if the other was.
    pub(crate) fn like(&self, text: Rc<str>) -> Value {
        if matches!(self, Value::Decoded(_)) { Value::Decoded(text) } else { Value::Text(text) }
    }
}

/// A family of languages that have one front end and one set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Dialect {
    Python,
    JavaScript,
    TypeScript,
    Shell,
    /// Read by its tokens.
    Other(&'static str),
}

/// The languages that are read by their tokens.
pub(crate) const OTHERS: [&str; 9] = ["ruby", "php", "perl", "lua", "r", "c", "go", "rust", "java"];

impl Dialect {
    pub(crate) fn of(language: &str) -> Option<Dialect> {
        match language {
            "python" => Some(Dialect::Python),
            "javascript" => Some(Dialect::JavaScript),
            "typescript" => Some(Dialect::TypeScript),
            "bash" | "sh" | "zsh" => Some(Dialect::Shell),
            "cpp" => Some(Dialect::Other("c")),
            other => OTHERS.into_iter().find(|known| *known == other).map(Dialect::Other),
        }
    }

    /// A language of this family.
    pub(crate) fn language(self) -> Option<Language> {
        Language::by_name(if self == Dialect::TypeScript { "typescript" } else { self.name() })
    }

    /// The first part of the names of its rules.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Dialect::Python => "python",
            Dialect::JavaScript | Dialect::TypeScript => "javascript",
            Dialect::Shell => "bash",
            Dialect::Other(name) => name,
        }
    }
}

/// Where facts go.
pub(crate) trait Sink {
    fn see(&mut self, span: Span, fact: Fact);
}
