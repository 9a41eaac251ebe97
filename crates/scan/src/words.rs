//! The view of a shell script by its words, without a syntax tree: for scripts that are too large for tree-sitter, whose
//! grammar of bash takes 0.3 s for a megabyte, and for code that a parser gave up.
//!
//! It reads as a shell does: quotes, expansions, substitutions, here-documents and comments are what they are to bash, and
//! reserved words begin and end groups of commands. It does not check that they do so in the right order, because whoever
//! wants to hide a command gains nothing by an error in the script. Where it cannot tell how a text goes on (a quote without an
//! end), the rest is read a second time, as commands between separators.

use std::collections::HashMap;
use std::rc::Rc;

use belljar_core::finding::Launched;

use crate::command::Command;
use crate::script::{self, LONGEST, Simple, Word};
use crate::view::{Dialect, Fact, Sink, Span};

/// How deeply substitutions are followed. What is deeper is read as if the brackets were separators.
const DEEPEST: usize = 32;
/// The most words of a command that matter.
const MOST_WORDS: usize = 2000;
/// How often each byte may be looked at in search of a closing bracket, on average.
const FUEL: usize = 8;

/// Reads a script.
pub(crate) fn read(text: &str, sink: &mut dyn Sink) {
    script::find_fork_bombs(text, sink);
    let mut reader = Reader {
        text,
        sink,
        at: 0,
        end: text.len(),
        variables: HashMap::new(),
        waiting: Vec::new(),
        documents: Vec::new(),
        depth: 0,
        fuel: FUEL * text.len(),
        torn: None,
        tests_end: true,
    };
    reader.list(Until::End);
    if let Some(torn) = reader.torn {
        read_between_separators(&text[torn..], torn, sink);
    }
}

/// What stands between separators is a command.
fn read_between_separators(text: &str, offset: usize, sink: &mut dyn Sink) {
    let mut start = offset;
    for part in text.split([';', '|', '&', '\n', '(', ')', '{', '}', '`']) {
        let words =
            part.split_whitespace().take(200).map(|word| Rc::from(word.trim_matches(['"', '\'', '$'])));
        let words: Vec<Rc<str>> = words.collect();
        if let Some(command) = Command::of(&words) {
            let at = start + (part.len() - part.trim_start().len());
            sink.see(Span::new(at, start + part.trim_end().len()), Fact::Command(command));
        }
        start += part.len() + 1;
    }
}

/// Where a list of commands ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    End,
    Bracket,
}

/// A here-document that begins after this line.
#[derive(Debug)]
struct Waiting {
    delimiter: String,
    strips_tabs: bool,
    is_literal: bool,
    number: usize,
}

/// A command of a pipeline.
#[derive(Debug, Default)]
struct Stage {
    words: Vec<Word>,
    /// The first and the last byte, if there are any.
    span: Option<Span>,
    /// Here-strings.
    fed: Vec<Word>,
    /// The numbers of its here-documents.
    documents: Vec<usize>,
    reads: Option<Rc<str>>,
    writes: Option<Rc<str>>,
    /// Its first word is reserved, such as `for`.
    is_clause: bool,
    /// What the words are, taken apart.
    command: Option<Command>,
    /// It is what stands behind a group of commands, of which one runs its standard input as this.
    group: Option<Option<Dialect>>,
}

impl Stage {
    fn is_empty(&self) -> bool {
        self.span.is_none() && !self.is_clause
    }

    /// `export X=y`
    fn declares(&self) -> bool {
        let first = self.words.first().map(|word| word.text.as_ref());
        matches!(first, Some("export" | "declare" | "typeset" | "local" | "readonly"))
    }

    fn cover(&mut self, from: usize, to: usize) {
        let start = self.span.map_or(from, |span| span.start);
        self.span = Some(Span::new(start, to));
    }

    /// Whether its standard input is in the script.
    fn is_fed(&self) -> bool {
        !self.fed.is_empty() || !self.documents.is_empty()
    }

    fn interprets_stdin(&self) -> Option<Dialect> {
        self.command.as_ref().and_then(Command::interprets_stdin)
    }
}

/// What was read since the last end of a line.
#[derive(Debug)]
struct Line<'t> {
    script: &'t str,
    stage: Stage,
    pipeline: Vec<Stage>,
    finished: Vec<Vec<Stage>>,
    /// The last pipeline that was told. It flows on if its group does: `{ curl x; } | sh`.
    told: Vec<Stage>,
    /// The groups that are open.
    groups: Vec<Group>,
    cases: usize,
}

/// Commands in brackets, or between reserved words.
#[derive(Debug)]
struct Group {
    kind: Kind,
    /// What a command in it runs its standard input as.
    interprets: Option<Dialect>,
}

/// What a group is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bracket,
    Reserved,
}

impl Line<'_> {
    fn new(script: &str) -> Line<'_> {
        let (stage, pipeline, finished) = (Stage::default(), Vec::new(), Vec::new());
        Line { script, stage, pipeline, finished, told: Vec::new(), groups: Vec::new(), cases: 0 }
    }

    fn end_stage(&mut self) {
        let mut stage = std::mem::take(&mut self.stage);
        if stage.is_empty() {
            return;
        }
        if !stage.is_clause {
            script::split_command(self.script, &mut stage.words);
            stage.command = Command::of(&script::texts(&stage.words));
        }
        if self.pipeline.is_empty()
            && !stage.is_fed()
            && stage.reads.is_none()
            && let Some(language) = stage.interprets_stdin()
            && let Some(group) = self.groups.last_mut()
        {
            group.interprets = Some(language);
        }
        self.pipeline.push(stage);
    }

    fn pipe(&mut self) {
        let follows_group = self.stage.group.is_some() && self.pipeline.is_empty();
        self.end_stage();
        if follows_group {
            let before = self.finished.pop().unwrap_or_else(|| std::mem::take(&mut self.told));
            self.pipeline.splice(0..0, before);
        }
    }

    fn end_pipeline(&mut self) {
        self.end_stage();
        if !self.pipeline.is_empty() {
            self.finished.push(std::mem::take(&mut self.pipeline));
        }
    }

    fn open(&mut self, kind: Kind) {
        self.end_pipeline();
        self.groups.push(Group { kind, interprets: None });
    }

    /// Ends the group that a reserved word ends.
    fn close(&mut self) {
        self.end_pipeline();
        let inner = self.groups.pop_if(|group| group.kind == Kind::Reserved);
        self.leave(inner.and_then(|group| group.interprets));
    }

    /// Ends the group that a bracket ends, and what is open in it. Whether there is one.
    fn close_bracket(&mut self) -> bool {
        self.end_pipeline();
        let Some(index) = self.groups.iter().rposition(|group| group.kind == Kind::Bracket) else {
            return false;
        };
        let interprets = self.groups.drain(index..).find_map(|group| group.interprets);
        self.leave(interprets);
        true
    }

    fn leave(&mut self, interprets: Option<Dialect>) {
        if let Some(outer) = self.groups.last_mut() {
            outer.interprets = outer.interprets.or(interprets);
        }
        self.stage.group = Some(interprets);
    }
}

struct Reader<'t, 's> {
    text: &'t str,
    sink: &'s mut dyn Sink,
    at: usize,
    /// Nothing from here on is read.
    end: usize,
    variables: HashMap<&'t str, Rc<str>>,
    waiting: Vec<Waiting>,
    /// The here-documents that were read, by their numbers.
    documents: Vec<Option<Span>>,
    depth: usize,
    fuel: usize,
    /// Where a quote begins that does not end.
    torn: Option<usize>,
    /// Whether every `[[` so far had an end.
    tests_end: bool,
}

impl<'t> Reader<'t, '_> {
    fn byte(&self, ahead: usize) -> u8 {
        let at = self.at + ahead;
        if at < self.end { self.text.as_bytes()[at] } else { 0 }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..self.end).unwrap_or_default()
    }

    fn slice(&self, from: usize, to: usize) -> &'t str {
        self.text.get(from..to).unwrap_or_default()
    }

    /// Reads commands up to the end, or to the bracket that closes them.
    fn list(&mut self, until: Until) {
        let mut line = Line::new(self.text);
        while self.at < self.end {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => self.end_of_line(&mut line),
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'\\', b'\n') => self.at += 2,
                (b'#', _) => self.skip_comment(),
                (b'|', b'|') | (b'&', b'&') => self.separator(&mut line, 2),
                (b'|', next) => {
                    self.at += if next == b'&' { 2 } else { 1 };
                    line.pipe();
                }
                (b'&', b'>') => self.redirect(&mut line),
                (b'&', _) => self.separator(&mut line, 1),
                (b';', b';' | b'&') => self.end_of_case(&mut line),
                (b';', _) => self.separator(&mut line, 1),
                (b'(', _) => self.opening(&mut line),
                (b')', _) => {
                    self.at += 1;
                    if !line.close_bracket() && until == Until::Bracket {
                        break;
                    }
                }
                (b'<' | b'>', next) if next != b'(' => self.redirect(&mut line),
                _ => self.next_word(&mut line),
            }
        }
        line.end_pipeline();
        self.tell(&mut line);
    }

    fn separator(&mut self, line: &mut Line<'_>, length: usize) {
        self.at += length;
        line.end_pipeline();
    }

    fn skip_comment(&mut self) {
        self.at = self.rest().find('\n').map_or(self.end, |found| self.at + found);
    }

    fn end_of_line(&mut self, line: &mut Line<'_>) {
        self.at += 1;
        self.read_documents();
        let goes_on = line.stage.is_empty() && !line.pipeline.is_empty();
        if !goes_on {
            line.end_pipeline();
            self.tell(line);
        }
    }

    /// `;;`, `;&` and `;;&`. What follows is the pattern of another case.
    fn end_of_case(&mut self, line: &mut Line<'_>) {
        self.at += 2;
        if self.byte(0) == b'&' {
            self.at += 1;
        }
        line.end_pipeline();
        if line.cases > 0 {
            self.pattern();
        }
    }

    /// `a | b)`, which are no commands.
    fn pattern(&mut self) {
        self.skip_blanks_and_lines();
        if self.rest().starts_with("esac") {
            return;
        }
        if self.byte(0) == b'(' {
            self.at += 1;
        }
        while self.at < self.end {
            match self.byte(0) {
                b' ' | b'\t' | b'\r' | b'|' => self.at += 1,
                b')' => {
                    self.at += 1;
                    return;
                }
                b'\n' | b';' | b'&' | b'<' | b'>' | b'(' => return,
                _ if self.word(Place::Argument).is_none() => self.at += 1,
                _ => {}
            }
        }
    }

    fn skip_blanks_and_lines(&mut self) {
        loop {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => {
                    self.at += 1;
                    self.read_documents();
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'\\', b'\n') => self.at += 2,
                (b'#', _) => self.skip_comment(),
                _ => return,
            }
        }
    }

    /// A bracket: of arithmetic, of a function that is defined, or of commands for a shell of their own.
    fn opening(&mut self, line: &mut Line<'_>) {
        if let Some(end) = self.arithmetic_end(self.at) {
            self.substitutions(self.at + 2, end);
            self.at = end;
            line.stage.cover(end, end);
            return;
        }
        self.at += 1;
        let blanks = self.rest().bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        if line.stage.words.len() == 1 && self.byte(blanks) == b')' {
            self.at += blanks + 1;
            line.stage = Stage::default();
            return;
        }
        line.open(Kind::Bracket);
    }

    fn next_word(&mut self, line: &mut Line<'_>) {
        let place = if line.stage.is_empty() { Place::Command } else { Place::Argument };
        let start = self.at;
        let Some(word) = self.word(place) else {
            // Nothing begins a word here: a bracket that was left over.
            self.at = self.text.ceil_char_boundary((self.at + 1).min(self.end)).max(start + 1);
            return;
        };
        let written = self.slice(word.span.start, word.span.end);
        let is_descriptor = written.bytes().all(|byte| byte.is_ascii_digit());
        if is_descriptor && matches!(self.byte(0), b'<' | b'>') {
            return;
        }
        if line.stage.words.is_empty() && !line.stage.is_clause {
            if self.reserved(line, written) || self.assignment(&word) {
                return;
            }
        } else if written == "in" && line.stage.is_clause && self.begins_case(line) {
            line.stage = Stage::default();
            self.pattern();
            return;
        } else if line.stage.declares() {
            self.assignment(&word);
        } else if matches!(written, "do" | "{") && line.stage.is_clause && line.stage.words.len() <= 2 {
            // `for x do`, without a list of words and what ends it.
            line.end_pipeline();
            return;
        }
        line.stage.cover(word.span.start, word.span.end);
        if line.stage.words.len() < MOST_WORDS {
            line.stage.words.push(word);
        }
    }

    fn begins_case(&self, line: &Line<'_>) -> bool {
        line.stage.words.first().is_some_and(|first| first.text.as_ref() == "case")
    }

    /// Whether a word was reserved and is done with.
    fn reserved(&mut self, line: &mut Line<'_>, written: &str) -> bool {
        match written {
            "if" | "while" | "until" | "{" => line.open(Kind::Reserved),
            "then" | "else" | "elif" | "do" | "!" | "coproc" => {}
            "fi" | "done" | "}" => line.close(),
            "esac" => {
                line.cases = line.cases.saturating_sub(1);
                line.close();
            }
            "[[" if self.tests_end => {
                self.test();
                line.stage.cover(self.at, self.at);
            }
            "function" => {
                self.skip_blanks_and_lines();
                self.word(Place::Argument);
            }
            "for" | "select" | "case" => {
                line.open(Kind::Reserved);
                line.cases += usize::from(written == "case");
                line.stage.is_clause = true;
                return false;
            }
            _ => return false,
        }
        true
    }

    /// `[[ a < b && c =~ (d|e) ]]`, in which nothing is a command but substitutions.
    fn test(&mut self) {
        let start = self.at;
        while self.at < self.end && self.byte(0) != b';' {
            match self.word(Place::Argument) {
                Some(word) if self.slice(word.span.start, word.span.end) == "]]" => return,
                Some(_) => {}
                None => self.at += 1,
            }
        }
        // It has no end, so it is no test.
        self.tests_end = false;
        self.at = start;
    }

    /// Whether a word is an assignment, which is followed.
    fn assignment(&mut self, word: &Word) -> bool {
        let written = self.slice(word.span.start, word.span.end);
        let Some((name, _)) = written.split_once('=') else { return false };
        let name = name.strip_suffix('+').unwrap_or(name);
        let bare = name.split('[').next().unwrap_or(name);
        let is_name = bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if bare.is_empty() || !is_name || bare.starts_with(|c: char| c.is_ascii_digit()) {
            return false;
        }
        if written.ends_with('=') && self.byte(0) == b'(' {
            self.array();
            return true;
        }
        let value: Rc<str> = word.text.split_once('=').map_or("", |(_, value)| value).into();
        self.sink.see(word.span, Fact::Text(value.clone()));
        if value.len() <= LONGEST {
            self.variables.insert(name, value);
        }
        true
    }

    /// `(a b c)` behind `x=`.
    fn array(&mut self) {
        self.at += 1;
        while self.at < self.end {
            self.skip_blanks_and_lines();
            match self.byte(0) {
                b')' => {
                    self.at += 1;
                    return;
                }
                _ => match self.word(Place::Argument) {
                    Some(word) => self.sink.see(word.span, Fact::Text(word.text)),
                    // An array has no separators, so this is none.
                    None => return,
                },
            }
        }
    }

    /// `< file`, `2>> file`, `<<E`, `<<< text`.
    fn redirect(&mut self, line: &mut Line<'_>) {
        let start = self.at;
        if self.rest().starts_with("<<") && !self.rest().starts_with("<<<") {
            self.here_document(line);
            return;
        }
        let is_text = self.rest().starts_with("<<<");
        while matches!(self.byte(0), b'<' | b'>' | b'&' | b'|') && self.at < start + 3 {
            if self.at > start && self.byte(0) == b'<' && self.byte(1) == b'(' {
                break;
            }
            self.at += 1;
        }
        let operator = self.slice(start, self.at);
        while matches!(self.byte(0), b' ' | b'\t') || (self.byte(0), self.byte(1)) == (b'\\', b'\n') {
            self.at += if self.byte(0) == b'\\' { 2 } else { 1 };
        }
        let Some(word) = self.word(Place::Argument) else { return };
        line.stage.cover(start, word.span.end);
        if is_text {
            line.stage.fed.push(word);
            return;
        }
        script::tell_redirect(Span::new(start, word.span.end), operator, &word, self.sink);
        if operator.starts_with('<') {
            line.stage.reads = Some(word.text);
        } else {
            line.stage.writes = Some(word.text);
        }
    }

    fn here_document(&mut self, line: &mut Line<'_>) {
        let start = self.at;
        self.at += 2;
        let strips_tabs = self.byte(0) == b'-';
        self.at += usize::from(strips_tabs);
        while matches!(self.byte(0), b' ' | b'\t') {
            self.at += 1;
        }
        let (mut delimiter, mut is_literal, mut quote) = (String::new(), false, None);
        for c in self.rest().chars() {
            match (c, quote) {
                (c, Some(open)) if c == open => quote = None,
                ('\'' | '"', None) => (quote, is_literal) = (Some(c), true),
                ('\\', None) => is_literal = true,
                ('\n', _) => break,
                (' ' | '\t' | '\r' | ';' | '|' | '&' | '<' | '>' | '(' | ')', None) => break,
                (c, _) => delimiter.push(c),
            }
            self.at += c.len_utf8();
        }
        line.stage.cover(start, self.at);
        line.stage.documents.push(self.documents.len());
        self.waiting.push(Waiting { delimiter, strips_tabs, is_literal, number: self.documents.len() });
        self.documents.push(None);
    }

    /// The documents that begin with this line.
    fn read_documents(&mut self) {
        for Waiting { delimiter, strips_tabs, is_literal, number } in std::mem::take(&mut self.waiting) {
            let start = self.at;
            let mut end = self.end;
            while self.at < self.end {
                let length = self.rest().find('\n').unwrap_or(self.end - self.at);
                let written = self.slice(self.at, self.at + length);
                let written = if strips_tabs { written.trim_start_matches('\t') } else { written };
                let here = self.at;
                self.at = (self.at + length + 1).min(self.end);
                if written.trim_end_matches('\r') == delimiter {
                    end = here;
                    break;
                }
            }
            let after = self.at;
            self.sink.see(Span::new(start, end), Fact::Text(self.slice(start, end).into()));
            if let Some(document) = self.documents.get_mut(number) {
                *document = Some(Span::new(start, end));
            }
            if !is_literal {
                self.substitutions(start, end);
            }
            self.at = after;
        }
    }

    /// Reads the substitutions in a text that is no command itself.
    fn substitutions(&mut self, from: usize, to: usize) {
        if self.depth == DEEPEST {
            self.sink.see(Span::new(from, from), Fact::Construct("too-deep"));
            return;
        }
        self.depth += 1;
        let (at, end) = (self.at, self.end);
        (self.at, self.end) = (from, to.min(end));
        let mut ignored = String::new();
        while let Some(found) = self.rest().find(['$', '`', '\\']) {
            self.at += found;
            match (self.byte(0), self.byte(1)) {
                (b'\\', _) => self.skip_char_after_backslash(),
                (b'$', b'(' | b'{') => self.expansion(Quoted::Not, &mut ignored),
                (b'`', _) => self.backquoted(&mut ignored),
                _ => self.at += 1,
            }
            ignored.clear();
        }
        (self.at, self.end) = (at, end);
        self.depth -= 1;
    }

    fn skip_char_after_backslash(&mut self) {
        self.at += 1;
        self.at += self.rest().chars().next().map_or(0, char::len_utf8);
    }

    /// A word. `None` if none begins here.
    fn word(&mut self, place: Place) -> Option<Word> {
        let start = self.at;
        self.at += plain_length(self.rest());
        if ends_word(self.byte(0)) && self.at > start {
            return Some(Word { text: self.slice(start, self.at).into(), span: Span::new(start, self.at) });
        }
        let mut text = self.slice(start, self.at).to_owned();
        while self.at < self.end {
            match (self.byte(0), self.byte(1)) {
                (b'<' | b'>', b'(') => self.substitution(&mut text),
                (b'(', _) if place == Place::Argument && text.ends_with(['?', '*', '+', '@', '!']) => {
                    match self.closing(self.at, b'(', b')', SingleQuotes::Quote) {
                        Some(end) => {
                            self.substitutions(self.at, end);
                            text.push_str(self.slice(self.at, end));
                            self.at = end;
                        }
                        None => break,
                    }
                }
                (byte, _) if ends_word(byte) => break,
                (b'\\', b'\n') => self.at += 2,
                (b'\\', _) => {
                    let before = self.at + 1;
                    self.skip_char_after_backslash();
                    text.push_str(self.slice(before, self.at));
                }
                (b'\'', _) => self.single_quoted(&mut text),
                (b'"', _) => self.double_quoted(&mut text),
                (b'$', b'\'') => self.ansi_quoted(&mut text),
                (b'$', b'"') => self.at += 1,
                (b'$', _) => self.expansion(Quoted::Not, &mut text),
                (b'`', _) => self.backquoted(&mut text),
                _ => {
                    let length = plain_length(self.rest()).max(1);
                    text.push_str(self.slice(self.at, self.at + length));
                    self.at += length;
                }
            }
        }
        (self.at > start).then(|| Word { text: text.into(), span: Span::new(start, self.at) })
    }

    fn single_quoted(&mut self, text: &mut String) {
        self.at += 1;
        match self.rest().find('\'') {
            Some(length) => {
                text.push_str(self.slice(self.at, self.at + length));
                self.at += length + 1;
            }
            None => self.tear(self.at - 1, text),
        }
    }

    /// A quote does not end.
    fn tear(&mut self, quote: usize, text: &mut String) {
        if self.torn.is_none() {
            self.torn = Some(quote + 1);
            let why = "a quote begins here and does not end".to_owned();
            self.sink.see(Span::new(quote, quote + 1), Fact::Unreadable(why));
        }
        text.push_str(self.rest());
        self.at = self.end;
    }

    fn double_quoted(&mut self, text: &mut String) {
        let quote = self.at;
        self.at += 1;
        while let Some(length) = self.rest().find(['"', '\\', '$', '`']) {
            text.push_str(self.slice(self.at, self.at + length));
            self.at += length;
            match (self.byte(0), self.byte(1)) {
                (b'"', _) => {
                    self.at += 1;
                    return;
                }
                (b'\\', b'\n') => self.at += 2,
                (b'\\', b'"' | b'$' | b'`' | b'\\') => {
                    text.push(char::from(self.byte(1)));
                    self.at += 2;
                }
                (b'$', _) => self.expansion(Quoted::Doubly, text),
                (b'`', _) => self.backquoted(text),
                _ => {
                    text.push('\\');
                    self.at += 1;
                }
            }
        }
        self.tear(quote, text);
    }

    fn ansi_quoted(&mut self, text: &mut String) {
        let start = self.at;
        self.at += 2;
        while let Some(length) = self.rest().find(['\'', '\\']) {
            self.at += length;
            if self.byte(0) == b'\'' {
                self.at += 1;
                text.push_str(&script::ansi_c(self.slice(start, self.at)));
                return;
            }
            self.skip_char_after_backslash();
        }
        self.tear(start + 1, text);
    }

    /// `$x`, `${x}`, `$(x)`, `$((x))`. What is not known stays as it is written.
    fn expansion(&mut self, quoted: Quoted, text: &mut String) {
        let start = self.at;
        match self.byte(1) {
            b'(' => match self.arithmetic_end(self.at + 1) {
                Some(end) => {
                    self.substitutions(start + 3, end);
                    self.at = end;
                    text.push_str(self.slice(start, end));
                }
                None => self.substitution(text),
            },
            b'{' => match self.parameter_end(quoted) {
                Some(end) => {
                    let name = self.slice(start + 2, end - 1);
                    if name.contains(['$', '`']) {
                        self.substitutions(start + 2, end - 1);
                    }
                    self.at = end;
                    self.push_variable(name, start, text);
                }
                None => self.literally(2, text),
            },
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                self.at += 1 + self.rest().bytes().skip(1).take_while(is_part).count();
                self.push_variable(self.slice(start + 1, self.at), start, text);
            }
            b'@' | b'*' | b'#' | b'?' | b'$' | b'!' | b'-' | b'0'..=b'9' => self.literally(2, text),
            _ => self.literally(1, text),
        }
    }

    fn literally(&mut self, length: usize, text: &mut String) {
        text.push_str(self.slice(self.at, self.at + length));
        self.at += length;
    }

    fn push_variable(&self, name: &str, start: usize, text: &mut String) {
        match self.variables.get(name) {
            Some(value) => text.push_str(value),
            None => text.push_str(self.slice(start, self.at)),
        }
    }

    /// `$(x)`, `<(x)` and `>(x)`.
    fn substitution(&mut self, text: &mut String) {
        let start = self.at;
        if self.depth == DEEPEST {
            self.sink.see(Span::new(start, start + 1), Fact::Construct("too-deep"));
            self.literally(1, text);
            return;
        }
        self.depth += 1;
        self.at += 2;
        self.list(Until::Bracket);
        self.depth -= 1;
        let inner = self.slice(start + 2, self.at.saturating_sub(1)).trim();
        let only = Some(inner).filter(|inner| !inner.contains(['\n', '&']));
        match only.and_then(script::echoed) {
            Some(said) => text.push_str(&said),
            None => text.push_str(self.slice(start, self.at)),
        }
    }

    /// `` `x` ``, which ends at the next backquote that is not behind a backslash.
    fn backquoted(&mut self, text: &mut String) {
        let start = self.at;
        self.at += 1;
        let mut has_escapes = false;
        while let Some(length) = self.rest().find(['`', '\\']) {
            self.at += length;
            if self.byte(0) == b'`' {
                break;
            }
            has_escapes = true;
            self.skip_char_after_backslash();
        }
        if self.byte(0) != b'`' {
            self.at = start + 1;
            self.tear(start, text);
            return;
        }
        let after = self.at + 1;
        let inner = self.slice(start + 1, self.at);
        if has_escapes || self.depth == DEEPEST {
            let code = inner.replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\");
            let fact = Fact::Code { language: Dialect::Shell, text: code.into(), at: None };
            self.sink.see(Span::new(start, after), fact);
        } else {
            let end = std::mem::replace(&mut self.end, self.at);
            self.at = start + 1;
            self.depth += 1;
            self.list(Until::End);
            self.depth -= 1;
            self.end = end;
        }
        self.at = after;
        match script::echoed(inner.trim()) {
            Some(said) => text.push_str(&said),
            None => text.push_str(self.slice(start, after)),
        }
    }

    /// Where `((x))` ends, if that is what begins at an offset. A shell looks for the end in the same way.
    fn arithmetic_end(&mut self, from: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        if bytes.get(from..from + 2) != Some(b"((") {
            return None;
        }
        let inner = self.closing(from + 1, b'(', b')', SingleQuotes::Quote)?;
        (inner < self.end && bytes.get(inner) == Some(&b')')).then_some(inner + 1)
    }

    /// Where `${x}` ends. In double quotes, single quotes in it mean something only to patterns, as in `${x#'}'}`.
    fn parameter_end(&mut self, quoted: Quoted) -> Option<usize> {
        let inner = self.rest().get(2..).unwrap_or_default();
        let operator = inner.bytes().skip(1).find(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        let is_pattern = matches!(operator, Some(b'#' | b'%' | b'/' | b'^' | b','));
        let single =
            if quoted == Quoted::Not || is_pattern { SingleQuotes::Quote } else { SingleQuotes::Plain };
        self.closing(self.at + 1, b'{', b'}', single)
    }

    /// The offset after the bracket that closes the one at this offset.
    fn closing(&mut self, from: usize, open: u8, close: u8, single: SingleQuotes) -> Option<usize> {
        let bytes = &self.text.as_bytes()[..self.end];
        let (mut level, mut at) = (0usize, from);
        let mut quote = None;
        while let Some(byte) = bytes.get(at) {
            match self.fuel.checked_sub(1) {
                Some(left) => self.fuel = left,
                None => {
                    self.sink.see(Span::new(from, from + 1), Fact::Construct("too-expensive"));
                    return None;
                }
            }
            match (*byte, quote) {
                (b'\\', None | Some(b'"')) => at += 1,
                (byte, Some(open)) if byte == open => quote = None,
                (_, Some(_)) => {}
                (b'\'', None) if single == SingleQuotes::Plain => {}
                (b'\'' | b'"', None) => quote = Some(*byte),
                (byte, None) if byte == open => level += 1,
                (byte, None) if byte == close => {
                    level -= 1;
                    if level == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Tells what the commands of a line do.
    fn tell(&mut self, line: &mut Line<'_>) {
        for pipeline in std::mem::take(&mut line.finished) {
            self.tell_pipeline(&pipeline);
            line.told = pipeline;
        }
    }

    fn tell_pipeline(&mut self, pipeline: &[Stage]) {
        for (index, stage) in pipeline.iter().enumerate() {
            self.tell_stage(stage, index > 0);
        }
        let mut spans = pipeline.iter().filter_map(|stage| stage.span);
        let Some(first) = spans.next() else { return };
        let whole = Span::new(first.start, spans.next_back().map_or(first.end, |last| last.end));
        if pipeline.len() > 1 {
            let commands: Vec<Option<Command>> = pipeline.iter().map(|stage| stage.command.clone()).collect();
            script::tell_pipeline(self.text, whole, first, &commands, self.sink);
        }
        self.tell_documents(pipeline, whole);
    }

    fn tell_stage(&mut self, stage: &Stage, is_piped: bool) {
        let Some(span) = stage.span else { return };
        let file = stage.reads.as_ref().map(|path| Launched::File(vec![path.to_string()]));
        if let (Some(Some(language)), Some(what)) = (stage.group, &file) {
            self.sink.see(span, Fact::Launch(language, what.clone()));
        }
        let input = file.or_else(|| Some(Launched::Stdin).filter(|_| !is_piped && !stage.is_fed()));
        let simple = Simple { script: self.text, span, words: &stage.words, fed: &stage.fed, input };
        simple.tell(stage.command.clone(), self.sink);
    }

    /// A document may be code: of the command that reads it, or of the last one of the pipeline, which does so in the end.
    fn tell_documents(&mut self, pipeline: &[Stage], whole: Span) {
        let file = pipeline.iter().rev().find_map(|stage| stage.writes.as_deref());
        let last = pipeline.last().and_then(Stage::interprets_stdin);
        for stage in pipeline.iter().filter(|stage| stage.is_fed()) {
            let reader = stage.group.flatten().or_else(|| stage.interprets_stdin()).or(last);
            let Some(language) = script::language_of_document(reader, file) else { continue };
            for document in stage.documents.iter().filter_map(|number| *self.documents.get(*number)?) {
                let text = self.slice(document.start, document.end).into();
                self.sink.see(whole, Fact::Code { language, text, at: Some(document.start) });
            }
            for word in &stage.fed {
                let at = script::exact(self.text, word.span, &word.text);
                self.sink.see(whole, Fact::Code { language, text: word.text.clone(), at });
            }
        }
    }
}

/// Where a word stands. Some patterns are words only among arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Command,
    Argument,
}

/// Whether an expansion stands in double quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoted {
    Not,
    Doubly,
}

/// Whether single quotes mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SingleQuotes {
    Quote,
    Plain,
}

fn ends_word(byte: u8) -> bool {
    matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n' | b';' | b'|' | b'&' | b'(' | b')' | b'<' | b'>')
}

/// How long the part of a word is in which nothing has a meaning of its own.
fn plain_length(text: &str) -> usize {
    let is_plain = |byte: &u8| !ends_word(*byte) && !matches!(byte, b'\\' | b'\'' | b'"' | b'$' | b'`');
    text.bytes().take_while(|byte| is_plain(byte)).count()
}
