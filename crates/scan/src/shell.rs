//! The view of a shell script, from tree-sitter's tree. The grammar is bash's; what sh and zsh have beyond it is rare.

use std::collections::HashMap;
use std::rc::Rc;

use belljar_core::finding::Launched;
use belljar_core::language::Language;
use tree_sitter::{Node, Parser};

use crate::Tree;
use crate::command::Command;
use crate::names::{Decode, from_base64, from_hex};
use crate::view::{Dialect, Fact, Sink, Span};

/// How many errors of the parser are reported.
const MOST_ERRORS: usize = 3;
/// How deeply words are taken apart.
const FAR: usize = 8;
/// The longest text that a variable is followed with, in bytes.
const LONGEST: usize = 4 << 10;

/// Reads a script.
pub(crate) fn read(text: &str, sink: &mut dyn Sink) -> Tree {
    find_fork_bombs(text, sink);
    let mut parser = Parser::new();
    if parser.set_language(&tree_sitter_bash::LANGUAGE.into()).is_err() {
        return Tree::Absent;
    }
    let Some(tree) = parser.parse(text, None) else { return Tree::Absent };
    let mut reader = Reader { text, sink, variables: HashMap::new(), errors: 0 };
    let mut cursor = tree.walk();
    loop {
        reader.visit(cursor.node());
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Tree::Made;
            }
        }
    }
}

/// `:(){ :|:& };:` under any name.
fn find_fork_bombs(text: &str, sink: &mut dyn Sink) {
    for (at, _) in text.match_indices("()") {
        let around = |from: usize, to: usize| {
            (text.floor_char_boundary(from), text.floor_char_boundary(to.min(text.len())))
        };
        let (from, to) = around(at.saturating_sub(40), at + 200);
        let before = text[from..at].trim_end();
        let name = before.rsplit([' ', '\t', '\n', ';', '&', '|', '\'', '"']).next().unwrap_or_default();
        let body: String = text[at + 2..to].chars().filter(|c| !c.is_whitespace()).collect();
        let calls_itself = body.trim_start_matches(['{', '(']).starts_with(&format!("{name}|{name}&"));
        if !name.is_empty() && calls_itself {
            let start = from + before.len() - name.len();
            sink.see(Span::new(start, at + 2), Fact::Construct("fork-bomb"));
        }
    }
}

struct Reader<'t, 's> {
    text: &'t str,
    sink: &'s mut dyn Sink,
    variables: HashMap<String, Rc<str>>,
    errors: usize,
}

/// Programs that bring something from elsewhere.
const DOWNLOADERS: [&str; 5] = ["curl", "wget", "fetch", "aria2c", "lwp-download"];

fn span(node: Node<'_>) -> Span {
    Span::new(node.start_byte(), node.end_byte())
}

impl<'t> Reader<'t, '_> {
    fn visit(&mut self, node: Node<'t>) {
        match node.kind() {
            "command" => self.command(node),
            "pipeline" => self.pipeline(node),
            "redirected_statement" => self.redirected(node),
            "variable_assignment" => self.assignment(node),
            "file_redirect" => {
                if let Some(destination) = node.child_by_field_name("destination") {
                    let path = self.word(destination, FAR);
                    self.sink.see(span(destination), Fact::Text(path.clone()));
                    let operator =
                        self.slice(node).trim_start_matches(|c: char| c.is_ascii_digit() || c == '&');
                    let name = if operator.starts_with('>') { ">" } else { "<" };
                    let command = Command {
                        wrappers: Vec::new(),
                        name: name.into(),
                        flags: Vec::new(),
                        operands: vec![path],
                        scripts: Vec::new(),
                        code: None,
                    };
                    self.sink.see(span(node), Fact::Command(command));
                }
            }
            "heredoc_body" => self.sink.see(span(node), Fact::Text(self.slice(node).into())),
            "ERROR" => self.error(node, "this is not understood"),
            _ if node.is_missing() => self.error(node, "something is missing here"),
            _ => {}
        }
    }

    fn slice(&self, node: Node<'_>) -> &'t str {
        self.text.get(node.start_byte()..node.end_byte()).unwrap_or_default()
    }

    fn error(&mut self, node: Node<'_>, what: &str) {
        self.errors += 1;
        if self.errors <= MOST_ERRORS {
            self.sink.see(span(node), Fact::Unreadable(what.to_owned()));
        }
    }

    fn assignment(&mut self, node: Node<'t>) {
        let (Some(name), Some(value)) = (node.child_by_field_name("name"), node.child_by_field_name("value"))
        else {
            return;
        };
        let text = self.word(value, FAR);
        self.sink.see(span(value), Fact::Text(text.clone()));
        if text.len() <= LONGEST {
            self.variables.insert(self.slice(name).to_owned(), text);
        }
    }

    /// The words of a command, and where each of them is.
    fn words(&self, node: Node<'t>) -> Vec<(Rc<str>, Node<'t>)> {
        let mut cursor = node.walk();
        let mut words = Vec::new();
        for child in node.named_children(&mut cursor).take(2000) {
            match child.kind() {
                "variable_assignment" | "file_redirect" | "herestring_redirect" | "comment" => {}
                _ => words.push((self.word(child, FAR), child)),
            }
        }
        // A variable that holds a whole command is split where it is not in quotes.
        if let Some((first, at)) = words.first().cloned()
            && first.contains(' ')
            && self.slice(at).starts_with('$')
        {
            let split = first.split_whitespace().map(|word| (Rc::from(word), at)).collect::<Vec<_>>();
            words.splice(0..1, split);
        }
        words
    }

    fn taken_apart(&self, node: Node<'t>) -> Option<Command> {
        let words: Vec<Rc<str>> = self.words(node).into_iter().map(|(word, _)| word).collect();
        Command::of(&words)
    }

    fn command(&mut self, node: Node<'t>) {
        let words = self.words(node);
        for (word, at) in &words {
            self.sink.see(span(*at), Fact::Text(word.clone()));
        }
        let plain: Vec<Rc<str>> = words.iter().map(|(word, _)| word.clone()).collect();
        let Some(mut command) = Command::of(&plain) else { return };
        if let Some((language, text, index)) = command.code.take() {
            let at = words.get(index).and_then(|(_, node)| self.exact(*node, &text));
            self.sink.see(span(node), Fact::Code { language, text, at });
        }
        self.herestring(node, &command);
        if let Some(language) = command.interprets_stdin()
            && let Some(what) = self.input(node)
        {
            self.sink.see(span(node), Fact::Launch(language, what));
        }
        let runs_text = matches!(command.name.as_ref(), "eval" | "trap");
        if runs_text && let Some(text) = plain.get(1) {
            let text =
                if command.name.as_ref() == "eval" { plain[1..].join(" ").into() } else { text.clone() };
            let at = words.get(1).filter(|_| words.len() == 2).and_then(|(_, node)| self.exact(*node, &text));
            self.sink.see(span(node), Fact::Code { language: Dialect::Shell, text, at });
        }
        let runs_code = command.interprets_stdin().is_some()
            || runs_text
            || matches!(command.name.as_ref(), "source" | "." | "bash" | "sh" | "zsh" | "dash");
        if runs_code && self.contains_download(node) {
            self.sink.see(span(node), Fact::Construct("download-and-run"));
        }
        let executed = plain.iter().position(|word| matches!(word.as_ref(), "-exec" | "-execdir" | "-ok"));
        if let Some(inner) = executed.and_then(|at| Command::of(&plain[at + 1..])) {
            self.sink.see(span(node), Fact::Command(inner));
        }
        self.sink.see(span(node), Fact::Command(command));
    }

    /// Where a command has its standard input from: a file, or that of the script. `None` if it is something in the script,
    /// which is read where it is.
    fn input(&self, node: Node<'t>) -> Option<Launched> {
        let mut inner = node;
        for _ in 0..FAR {
            let mut cursor = inner.walk();
            let mut redirects = inner.named_children(&mut cursor);
            if redirects.any(|child| matches!(child.kind(), "heredoc_redirect" | "herestring_redirect")) {
                return None;
            }
            let mut cursor = inner.walk();
            let files = inner.named_children(&mut cursor).filter(|child| child.kind() == "file_redirect");
            let read = files.filter(|child| self.slice(*child).trim_start_matches('0').starts_with('<'));
            if let Some(path) = read.filter_map(|redirect| redirect.child_by_field_name("destination")).last()
            {
                return Some(Launched::File(vec![self.word(path, FAR).to_string()]));
            }
            let Some(outer) = inner.parent() else { break };
            let is_fed =
                outer.kind() == "pipeline" && outer.named_child(0).is_some_and(|first| first != inner);
            if is_fed {
                return None;
            }
            inner = outer;
        }
        Some(Launched::Stdin)
    }

    /// `python3 <<< 'code'`
    fn herestring(&mut self, node: Node<'t>, command: &Command) {
        let mut cursor = node.walk();
        let redirects =
            node.named_children(&mut cursor).filter(|child| child.kind() == "herestring_redirect");
        let words: Vec<Node<'t>> = redirects.filter_map(|redirect| redirect.named_child(0)).collect();
        for (word, language) in words.into_iter().zip(command.interprets_stdin()) {
            let text = self.word(word, FAR);
            let at = self.exact(word, &text);
            self.sink.see(span(node), Fact::Code { language, text, at });
        }
    }

    /// Whether a substitution in a command runs a program that downloads.
    fn contains_download(&self, node: Node<'t>) -> bool {
        let text = self.slice(node);
        let substitutes = text.contains("$(") || text.contains("<(") || text.contains('`');
        substitutes && DOWNLOADERS.iter().any(|name| text.contains(&format!("{name} ")))
    }

    /// Where a text begins if it stands in the script as it is.
    fn exact(&self, node: Node<'t>, text: &str) -> Option<usize> {
        self.slice(node).find(text).map(|offset| node.start_byte() + offset)
    }

    fn pipeline(&mut self, node: Node<'t>) {
        let mut cursor = node.walk();
        let stages: Vec<Node<'t>> = node
            .named_children(&mut cursor)
            .map(|child| match child.kind() {
                "redirected_statement" => child.child_by_field_name("body").unwrap_or(child),
                _ => child,
            })
            .take(20)
            .collect();
        let commands: Vec<Option<Command>> = stages.iter().map(|stage| self.taken_apart(*stage)).collect();
        let [earlier @ .., Some(last)] = commands.as_slice() else { return };
        let Some(language) = last.interprets_stdin() else { return };
        let mut flowing: Option<Rc<str>> = None;
        let mut is_decoded = false;
        for command in earlier.iter().flatten() {
            let name = command.name.as_ref();
            let has = |flag: &str| command.flags.iter().any(|known| known.as_ref() == flag);
            if DOWNLOADERS.contains(&name) {
                self.sink.see(span(node), Fact::Construct("download-and-run"));
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
            self.sink.see(span(node), Fact::Construct("decode-and-run"));
        }
        if let Some(text) = flowing {
            let at = stages.first().and_then(|stage| self.exact(*stage, &text));
            self.sink.see(span(node), Fact::Code { language, text, at });
        }
    }

    fn redirected(&mut self, node: Node<'t>) {
        let body = node.child_by_field_name("body");
        let mut cursor = node.walk();
        let mut documents = Vec::new();
        let mut destination = None;
        for redirect in node.named_children(&mut cursor) {
            match redirect.kind() {
                "heredoc_redirect" => {
                    self.heredoc(redirect, body, &mut documents, &mut destination);
                }
                "herestring_redirect" => {
                    if let Some(word) = redirect.named_child(0) {
                        let text = self.word(word, FAR);
                        documents.push((text.clone(), self.exact(word, &text), body));
                    }
                }
                "file_redirect" => destination = redirect.child_by_field_name("destination"),
                _ => {}
            }
        }
        for (text, at, reader) in documents {
            let reader =
                reader.filter(|reader| reader.kind() == "command").and_then(|node| self.taken_apart(node));
            let written = destination.and_then(|destination| {
                let name = self.word(destination, FAR);
                Language::by_file_name(&name).and_then(|language| Dialect::of(language.name))
            });
            if let Some(language) = reader.and_then(|command| command.interprets_stdin()).or(written) {
                self.sink.see(span(node), Fact::Code { language, text, at });
            }
        }
    }

    fn heredoc(
        &self,
        redirect: Node<'t>,
        body: Option<Node<'t>>,
        documents: &mut Vec<(Rc<str>, Option<usize>, Option<Node<'t>>)>,
        destination: &mut Option<Node<'t>>,
    ) {
        let mut cursor = redirect.walk();
        let (mut document, mut reader) = (None, body);
        for part in redirect.named_children(&mut cursor) {
            match part.kind() {
                "heredoc_body" => document = Some(part),
                "pipeline" => {
                    let last = u32::try_from(part.named_child_count()).unwrap_or(0).checked_sub(1);
                    reader = last.and_then(|last| part.named_child(last));
                }
                "file_redirect" => *destination = part.child_by_field_name("destination"),
                _ => {}
            }
        }
        if let Some(document) = document {
            documents.push((self.slice(document).into(), Some(document.start_byte()), reader));
        }
    }

    /// What a word becomes, as far as that is known. What is not known stays as it is written.
    fn word(&self, node: Node<'t>, far: usize) -> Rc<str> {
        let raw = self.slice(node);
        let Some(far) = far.checked_sub(1) else { return raw.into() };
        match node.kind() {
            "word" => raw.replace('\\', "").into(),
            "raw_string" => raw.trim_matches('\'').into(),
            "ansi_c_string" => ansi_c(raw).into(),
            "string" | "concatenation" | "command_name" | "translated_string" => self.assembled(node, far),
            "simple_expansion" | "expansion" => {
                let name = raw.trim_start_matches(['$', '{']).trim_end_matches('}');
                match self.variables.get(name) {
                    Some(value) => value.clone(),
                    None => raw.into(),
                }
            }
            "command_substitution" => self.substituted(node).unwrap_or_else(|| raw.into()),
            _ => raw.into(),
        }
    }

    fn assembled(&self, node: Node<'t>, far: usize) -> Rc<str> {
        let mut cursor = node.walk();
        let mut whole = String::new();
        let (mut at, end) = match node.kind() {
            "string" => (node.start_byte() + 1, node.end_byte().saturating_sub(1)),
            _ => (node.start_byte(), node.end_byte()),
        };
        for part in node.named_children(&mut cursor) {
            // What stands between the parts of a text in quotes is text, too.
            whole.push_str(self.text.get(at..part.start_byte()).unwrap_or_default());
            match part.kind() {
                "string_content" => {
                    whole.push_str(&self.slice(part).replace("\\\"", "\"").replace("\\$", "$"))
                }
                _ => whole.push_str(&self.word(part, far)),
            }
            at = part.end_byte();
        }
        whole.push_str(self.text.get(at..end).unwrap_or_default());
        whole.into()
    }

    /// `$(echo x)` is `x`.
    fn substituted(&self, node: Node<'t>) -> Option<Rc<str>> {
        let only = node.named_child(0).filter(|child| child.kind() == "command")?;
        let text = self.slice(only);
        let words = text.strip_prefix("echo ").or_else(|| text.strip_prefix("printf "))?;
        let plain = !words.contains(['$', '`', '|', ';']);
        plain.then(|| words.trim().trim_matches(['\'', '"']).into())
    }
}

/// `$'\x72m'`
fn ansi_c(raw: &str) -> String {
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
