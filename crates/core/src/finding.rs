//! What a scan of code found before the code ran.

use std::fmt;

use crate::language::Language;

/// How much a finding matters, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Ordinary programs do this, too.
    Low,
    /// Few programs need this.
    Medium,
    /// Programs that do this mean harm more often than not, or cannot be read.
    High,
    /// There is no harmless reason to do this in a sandbox.
    Critical,
}

impl Severity {
    /// All of them, in ascending order.
    pub const ALL: [Severity; 5] =
        [Severity::Info, Severity::Low, Severity::Medium, Severity::High, Severity::Critical];

    /// The contract's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
            Severity::Critical => "critical",
        }
    }

    /// Finds a severity by its name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Severity> {
        Severity::ALL.into_iter().find(|severity| severity.name() == name)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One place in the code that a rule matched. Its text is bounded, and harmless for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule, such as `python.process.spawn`.
    pub rule: String,
    /// How much it matters.
    pub severity: Severity,
    /// What the code does there.
    pub message: String,
    /// Where it begins.
    pub start: Position,
    /// Where it ends: the position after its last character.
    pub end: Position,
    /// The line on which it begins, or a part of that line.
    pub excerpt: String,
    /// What it is in, if that is not the code itself: a file of the request, a cell of a notebook, the environment.
    pub within: Option<String>,
}

/// Other code that a program runs, as far as its text names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// As what it is run.
    pub language: Language,
    /// What is run.
    pub what: Launched,
}

/// What a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Launched {
    /// The first of these that is a file: the others may be values of options.
    File(Vec<String>),
    /// A file that is executed by itself, as what its first line says.
    Program(String),
    /// What comes through standard input.
    Stdin,
}

/// A position in a text. Lines and columns are counted from one, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severities_are_ordered_and_known_by_their_names() {
        assert!(Severity::ALL.is_sorted());
        for severity in Severity::ALL {
            assert_eq!(Severity::by_name(severity.name()), Some(severity));
        }
        assert_eq!(Severity::by_name("High"), None);
    }
}
