//! What the parts of a shell script do: commands, pipelines, redirections, here-documents. It is the same whether they were
//! read from a syntax tree (`shell.rs`) or by their words (`words.rs`).

use std::rc::Rc;

use belljar_core::finding::Launched;
use belljar_core::language::Language;

use crate::command::Command;
use crate::names::{Decode, from_base64, from_hex};
use crate::view::{Dialect, Fact, Sink, Span};

/// The longest text that a variable is followed with, in bytes.
pub(crate) const LONGEST: usize = 4 << 10;

/// Programs that bring something from elsewhere.
const DOWNLOADERS: [&str; 5] = ["curl", "wget", "fetch", "aria2c", "lwp-download"];

/// What a word becomes, as far as that is known, and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct Word {
    pub(crate) text: Rc<str>,
    pub(crate) span: Span,
}

/// A command, and where it is written.
#[derive(Debug)]
pub(crate) struct Simple<'a> {
    pub(crate) script: &'a str,
    pub(crate) span: Span,
    pub(crate) words: &'a [Word],
    /// Its here-strings.
    pub(crate) fed: &'a [Word],
    /// Where it has its standard input from, unless that is in the script.
    pub(crate) input: Option<Launched>,
}

impl Simple<'_> {
    /// Tells what it does. The command is what its words are, taken apart.
    pub(crate) fn tell(self, command: Option<Command>, sink: &mut dyn Sink) {
        for word in self.words {
            sink.see(word.span, Fact::Text(word.text.clone()));
        }
        let Some(mut command) = command else { return };
        let plain = texts(self.words);
        if let Some((language, text, index)) = command.code.take() {
            let at = self.words.get(index).and_then(|word| exact(self.script, word.span, &text));
            sink.see(self.span, Fact::Code { language, text, at });
        }
        if let Some(language) = command.interprets_stdin() {
            for word in self.fed {
                let at = exact(self.script, word.span, &word.text);
                sink.see(self.span, Fact::Code { language, text: word.text.clone(), at });
            }
            if let Some(what) = &self.input {
                sink.see(self.span, Fact::Launch(language, what.clone()));
            }
        }
        self.tell_text_that_is_run(&command, &plain, sink);
        let executed = plain.iter().position(|word| matches!(word.as_ref(), "-exec" | "-execdir" | "-ok"));
        if let Some(inner) = executed.and_then(|at| Command::of(&plain[at + 1..])) {
            sink.see(self.span, Fact::Command(inner));
        }
        sink.see(self.span, Fact::Command(command));
    }

    /// `eval "$x"`, `trap 'x' EXIT`, `bash -c "$(curl x)"`
    fn tell_text_that_is_run(&self, command: &Command, plain: &[Rc<str>], sink: &mut dyn Sink) {
        let name = command.name.as_ref();
        let runs_text = matches!(name, "eval" | "trap");
        if runs_text && let Some(text) = plain.get(1) {
            let text = if name == "eval" { plain[1..].join(" ").into() } else { text.clone() };
            let only = self.words.get(1).filter(|_| self.words.len() == 2);
            let at = only.and_then(|word| exact(self.script, word.span, &text));
            sink.see(self.span, Fact::Code { language: Dialect::Shell, text, at });
        }
        let runs_code = command.interprets_stdin().is_some()
            || runs_text
            || matches!(name, "source" | "." | "bash" | "sh" | "zsh" | "dash");
        if runs_code && contains_download(written(self.script, self.span)) {
            sink.see(self.span, Fact::Construct("download-and-run"));
        }
    }
}

/// The texts of words.
pub(crate) fn texts(words: &[Word]) -> Vec<Rc<str>> {
    words.iter().map(|word| word.text.clone()).collect()
}

/// A variable that holds a whole command is split where it is not in quotes.
pub(crate) fn split_command(script: &str, words: &mut Vec<Word>) {
    if let Some(Word { text, span }) = words.first().cloned()
        && text.contains(' ')
        && written(script, span).starts_with('$')
    {
        let split = text.split_whitespace().map(|word| Word { text: word.into(), span }).collect::<Vec<_>>();
        words.splice(0..1, split);
    }
}

/// Tells what flows through the commands of a pipeline into an interpreter at its end. `None` is a command that is not known.
pub(crate) fn tell_pipeline(
    script: &str,
    span: Span,
    first: Span,
    commands: &[Option<Command>],
    sink: &mut dyn Sink,
) {
    let [earlier @ .., Some(last)] = commands else { return };
    let Some(language) = last.interprets_stdin() else { return };
    let mut flowing: Option<Rc<str>> = None;
    let mut is_decoded = false;
    for command in earlier.iter().flatten() {
        let name = command.name.as_ref();
        let has = |flag: &str| command.flags.iter().any(|known| known.as_ref() == flag);
        if DOWNLOADERS.contains(&name) {
            sink.see(span, Fact::Construct("download-and-run"));
        }
        let decoded = |text: Option<Rc<str>>, decode: Decode| {
            text.and_then(|text| String::from_utf8(decode(&text)?).ok()).map(Rc::from)
        };
        flowing = match name {
            "echo" | "printf" => Some(command.operands.join(" ").into()),
            "base64" if has("-d") || has("--decode") || has("-D") => {
                is_decoded = true;
                decoded(flowing, from_base64)
            }
            "xxd" if has("-r") => {
                is_decoded = true;
                decoded(flowing, from_hex)
            }
            "rev" => flowing.map(|text| text.chars().rev().collect::<String>().into()),
            "cat" | "tee" if command.operands.is_empty() => flowing,
            _ => None,
        };
        is_decoded |= matches!(name, "rev" | "gunzip" | "zcat");
    }
    if is_decoded {
        sink.see(span, Fact::Construct("decode-and-run"));
    }
    if let Some(text) = flowing {
        let at = exact(script, first, &text);
        sink.see(span, Fact::Code { language, text, at });
    }
}

/// Tells of a file that is written or read by `>`, `<` and their like.
pub(crate) fn tell_redirect(span: Span, operator: &str, file: &Word, sink: &mut dyn Sink) {
    sink.see(file.span, Fact::Text(file.text.clone()));
    let operator = operator.trim_start_matches(|c: char| c.is_ascii_digit() || c == '&');
    let name = if operator.starts_with('>') { ">" } else { "<" };
    let command = Command {
        wrappers: Vec::new(),
        name: name.into(),
        flags: Vec::new(),
        operands: vec![file.text.clone()],
        scripts: Vec::new(),
        code: None,
    };
    sink.see(span, Fact::Command(command));
}

/// The language of a document that a script contains: that of the program that reads it, or of the file that it is
/// written to.
pub(crate) fn language_of_document(reader: Option<Dialect>, file: Option<&str>) -> Option<Dialect> {
    let by_name = |name| Language::by_file_name(name).and_then(|language| Dialect::of(language.name));
    reader.or_else(|| file.and_then(by_name))
}

/// What `$(echo x)` becomes: `x`. The text is that of the only command in it.
pub(crate) fn echoed(command: &str) -> Option<Rc<str>> {
    let words = command.strip_prefix("echo ").or_else(|| command.strip_prefix("printf "))?;
    let plain = !words.contains(['$', '`', '|', ';']);
    plain.then(|| words.trim().trim_matches(['\'', '"']).into())
}

/// Where a text begins if it stands in a part of the script as it is.
pub(crate) fn exact(script: &str, within: Span, text: &str) -> Option<usize> {
    written(script, within).find(text).map(|offset| within.start + offset)
}

fn written(script: &str, span: Span) -> &str {
    script.get(span.start..span.end).unwrap_or_default()
}

/// Whether a substitution in a command runs a program that downloads.
fn contains_download(command: &str) -> bool {
    let substitutes = command.contains("$(") || command.contains("<(") || command.contains('`');
    substitutes && DOWNLOADERS.iter().any(|name| command.contains(&format!("{name} ")))
}

/// `:(){ :|:& };:` under any name.
pub(crate) fn find_fork_bombs(text: &str, sink: &mut dyn Sink) {
    for (at, _) in text.match_indices("()") {
        let from = text.floor_char_boundary(at.saturating_sub(40));
        let before = text[from..at].trim_end();
        let name = before.rsplit([' ', '\t', '\n', ';', '&', '|', '\'', '"']).next().unwrap_or_default();
        let to = text.floor_char_boundary((at + 200).min(text.len()));
        let solid = text[at + 2..to].chars().filter(|c| !c.is_whitespace());
        let mut body = solid.skip_while(|c| matches!(c, '{' | '('));
        let mut calls = name.chars().chain(['|']).chain(name.chars()).chain(['&']);
        if !name.is_empty() && calls.all(|c| body.next() == Some(c)) {
            let start = from + before.len() - name.len();
            sink.see(Span::new(start, at + 2), Fact::Construct("fork-bomb"));
        }
    }
}

/// `$'\x72m'`
pub(crate) fn ansi_c(raw: &str) -> String {
    let inner = raw.trim_start_matches("$'").trim_end_matches('\'');
    let mut plain = String::new();
    let mut rest = inner;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let (radix, skip, most) = match after.as_bytes().first() {
            Some(b'x') => (16, 1, 2),
            Some(b'u') => (16, 1, 4),
            Some(b'0'..=b'7') => (8, 0, 3),
            _ => (0, 0, 0),
        };
        let digits = after.get(skip..).unwrap_or_default();
        let count =
            digits.bytes().take(most).take_while(|byte| char::from(*byte).is_digit(radix.max(2))).count();
        let code = u32::from_str_radix(digits.get(..count).unwrap_or_default(), radix.max(2)).ok();
        match code.filter(|_| radix > 0 && count > 0).and_then(char::from_u32) {
            Some(c) => {
                plain.push(c);
                rest = &digits[count..];
            }
            None => {
                let mut chars = after.chars();
                match chars.next() {
                    Some('n') => plain.push('\n'),
                    Some('t') => plain.push('\t'),
                    Some(other) => plain.push(other),
                    None => {}
                }
                rest = chars.as_str();
            }
        }
    }
    plain.push_str(rest);
    plain
}
