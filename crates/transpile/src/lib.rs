//! Makes code readable for its runtime: TypeScript becomes JavaScript, and a JavaScript module gets the ending by
//! which Node knows one.
//!
//! The code is unread, and a parser is a large target: a few kilobytes of brackets overflow its stack, and the 240
//! bytes of `x<(a=` written 24 times and closed keep it busy for hours, because each level is tried twice. Neither
//! can be ruled out by looking at the text beforehand, and a thread can be neither killed nor survived. So the
//! parser runs in a worker ([`belljar_worker`]), started for one file, within the limits of the run. That costs a
//! millisecond or two, and only where it is needed: TypeScript, and JavaScript in which one of the words `import`,
//! `export` and `await` occurs.
//!
//! Types are removed without being checked. Enums, namespaces, parameter properties and decorators (the
//! `experimentalDecorators` kind) are translated; everything else is left as modern as it was written. JSX becomes
//! `React.createElement`, and nothing is imported that the code does not import itself.
//!
//! The result ends in an inline source map, so a Node that is started with `--enable-source-maps` reports the
//! lines of the TypeScript. That flag costs no time that can be measured; without it the map is a comment.

mod diagnose;
mod strip;
mod worker;

use std::time::Duration;

use belljar_core::language::{Preparation, java};
use belljar_core::limits::Bytes;
use belljar_core::outcome::{Outcome, Usage};

pub use worker::JOBS;
use worker::{Failure, Reply, Task};

/// Code as its runtime will read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The name of its file.
    pub name: String,
    /// The text.
    pub text: Vec<u8>,
}

/// Why code cannot be prepared. For the caller either is an ordinary ending of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranspileError {
    /// It does not parse; or it cannot, within limits that are far from anything that a person writes. For stderr: one
    /// paragraph for each error, with the position and the reason, the line, and a mark under it.
    Syntax(String),
    /// A limit of the run ended the parser.
    Limit(Outcome),
}

/// What preparing may take at most: what the run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Memory.
    pub memory: Bytes,
    /// Wall-clock time.
    pub timeout: Duration,
    /// CPU time.
    pub cpu_time: Option<Duration>,
}

/// Prepares the code of a file called `name`, and says what that took. Blocks as long as a worker takes, which is
/// bounded. The calling program must call [`belljar_worker::run_as_worker`] with [`JOBS`] first in its `main`.
///
/// JavaScript is never refused: code that cannot be parsed is passed on unchanged, and Node decides.
pub fn prepare(
    preparation: Preparation,
    name: &str,
    text: &[u8],
    budget: Budget,
) -> (Result<Prepared, TranspileError>, Usage) {
    match preparation {
        Preparation::None => (Ok(unchanged(name, text)), Usage::default()),
        Preparation::DetectModule => {
            let (prepared, usage) = name_as_module(name, text, budget);
            (Ok(prepared), usage)
        }
        Preparation::StripTypes => strip_types(name, text, budget),
        Preparation::NameAfterType => (Ok(name_after_type(name, text)), Usage::default()),
    }
}

fn unchanged(name: &str, text: &[u8]) -> Prepared {
    Prepared { name: name.to_owned(), text: text.to_owned() }
}

/// The directory stays what it is.
fn name_after_type(name: &str, text: &[u8]) -> Prepared {
    let Some(wanted) = java::Types::of(text).file_name() else { return unchanged(name, text) };
    let renamed = name.rsplit_once('/').map_or(wanted.clone(), |(dir, _)| format!("{dir}/{wanted}"));
    Prepared { name: renamed, text: text.to_owned() }
}

fn name_as_module(name: &str, text: &[u8], budget: Budget) -> (Prepared, Usage) {
    let Some(stem) = name.strip_suffix(".js").filter(|_| mentions_module_syntax(text)) else {
        return (unchanged(name, text), Usage::default());
    };
    let (reply, usage) = worker::ask(Task::DetectModule, name, text, budget);
    let prepared = match reply {
        Ok(Reply::Module(_)) => Prepared { name: format!("{stem}.mjs"), text: text.to_owned() },
        Ok(Reply::Script(_) | Reply::Errors(_)) | Err(_) => unchanged(name, text),
    };
    (prepared, usage)
}

/// Whether the code could be a module at all. None of these words can be written with escapes.
fn mentions_module_syntax(text: &[u8]) -> bool {
    text.windows(6).any(|word| word == b"import" || word == b"export")
        || text.windows(5).any(|word| word == b"await")
}

fn strip_types(name: &str, text: &[u8], budget: Budget) -> (Result<Prepared, TranspileError>, Usage) {
    if let Err(invalid) = str::from_utf8(text) {
        let message = format!("{name}: the code is not UTF-8: byte {} is wrong\n", invalid.valid_up_to() + 1);
        return (Err(TranspileError::Syntax(message)), Usage::default());
    }
    let (reply, usage) = worker::ask(Task::StripTypes, name, text, budget);
    let prepared = match reply {
        Ok(Reply::Script(text)) => Ok(Prepared { name: stripped_name(name, "js"), text }),
        Ok(Reply::Module(text)) => Ok(Prepared { name: stripped_name(name, "mjs"), text }),
        Ok(Reply::Errors(message)) => Err(TranspileError::Syntax(message)),
        Err(Failure::Limit(outcome)) => Err(TranspileError::Limit(outcome)),
        Err(failure @ Failure::Worker(_)) => Err(TranspileError::Syntax(format!("{name}: {failure}\n"))),
    };
    (prepared, usage)
}

/// The name of the JavaScript for a TypeScript file. The extensions `.mts` and `.cts` determine the kind.
fn stripped_name(name: &str, detected: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, "ts" | "tsx")) => format!("{stem}.{detected}"),
        Some((stem, "mts")) => format!("{stem}.mjs"),
        Some((stem, "cts")) => format!("{stem}.cjs"),
        Some(_) | None => format!("{name}.{detected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_needs_nothing_is_left_alone() {
        let text = b"import os\nawait = \xff";
        let budget = Budget { memory: Bytes::new(1), timeout: Duration::ZERO, cpu_time: None };
        let (prepared, usage) = prepare(Preparation::None, "main.py", text, budget);
        assert_eq!((prepared, usage), (Ok(unchanged("main.py", text)), Usage::default()));
    }

    #[test]
    fn javascript_without_the_words_needs_no_parser() {
        assert!(!mentions_module_syntax(b"const fs = require('fs'); console.log(1)"));
        for text in ["import 'a'", "export {}", "await f()", "x;import"] {
            assert!(mentions_module_syntax(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_ending_says_which_kind_of_javascript_it_became() {
        for (name, script, module) in [
            ("main.ts", "main.js", "main.mjs"),
            ("a.b.tsx", "a.b.js", "a.b.mjs"),
            ("main.mts", "main.mjs", "main.mjs"),
            ("main.cts", "main.cjs", "main.cjs"),
            ("script", "script.js", "script.mjs"),
        ] {
            assert_eq!(stripped_name(name, "js"), script);
            assert_eq!(stripped_name(name, "mjs"), module);
        }
    }
}
