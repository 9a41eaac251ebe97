//! The view of a shell script, from tree-sitter's tree. The grammar is bash's; what sh and zsh have beyond it is rare.

use std::collections::HashMap;
use std::rc::Rc;

use belljar_core::finding::Launched;
use tree_sitter::{Node, Parser};

use crate::Tree;
use crate::command::Command;
use crate::script::{self, LONGEST, Simple, Word};
use crate::view::{Fact, Sink, Span};

/// How many errors of the parser are reported.
const MOST_ERRORS: usize = 3;
/// How deeply words are taken apart.
const FAR: usize = 8;

/// Reads a script.
pub(crate) fn read(text: &str, sink: &mut dyn Sink) -> Tree {
    script::find_fork_bombs(text, sink);
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

struct Reader<'t, 's> {
    text: &'t str,
    sink: &'s mut dyn Sink,
    variables: HashMap<String, Rc<str>>,
    errors: usize,
}

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
                    let file = self.word_at(destination);
                    script::tell_redirect(span(node), self.slice(node), &file, self.sink);
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

    fn word_at(&self, node: Node<'t>) -> Word {
        Word { text: self.word(node, FAR), span: span(node) }
    }

    /// The words of a command.
    fn words(&self, node: Node<'t>) -> Vec<Word> {
        let mut cursor = node.walk();
        let mut words = Vec::new();
        for child in node.named_children(&mut cursor).take(2000) {
            match child.kind() {
                "variable_assignment" | "file_redirect" | "herestring_redirect" | "comment" => {}
                _ => words.push(self.word_at(child)),
            }
        }
        script::split_command(self.text, &mut words);
        words
    }

    fn taken_apart(&self, node: Node<'t>) -> Option<Command> {
        Command::of(&script::texts(&self.words(node)))
    }

    fn command(&mut self, node: Node<'t>) {
        let (words, fed) = (self.words(node), self.herestrings(node));
        let command = Command::of(&script::texts(&words));
        let reads = command.as_ref().is_some_and(|command| command.interprets_stdin().is_some());
        let input = if reads { self.input(node) } else { None };
        let simple = Simple { script: self.text, span: span(node), words: &words, fed: &fed, input };
        simple.tell(command, self.sink);
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
    fn herestrings(&self, node: Node<'t>) -> Vec<Word> {
        let mut cursor = node.walk();
        let redirects =
            node.named_children(&mut cursor).filter(|child| child.kind() == "herestring_redirect");
        redirects.filter_map(|redirect| redirect.named_child(0)).map(|word| self.word_at(word)).collect()
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
        let first = stages.first().map_or(span(node), |stage| span(*stage));
        script::tell_pipeline(self.text, span(node), first, &commands, self.sink);
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
                        let Word { text, span } = self.word_at(word);
                        documents.push((text.clone(), script::exact(self.text, span, &text), body));
                    }
                }
                "file_redirect" => destination = redirect.child_by_field_name("destination"),
                _ => {}
            }
        }
        for (text, at, reader) in documents {
            let reader =
                reader.filter(|reader| reader.kind() == "command").and_then(|node| self.taken_apart(node));
            let language = script::language_of_document(
                reader.and_then(|command| command.interprets_stdin()),
                destination.map(|destination| self.word(destination, FAR)).as_deref(),
            );
            if let Some(language) = language {
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
            "ansi_c_string" => script::ansi_c(raw).into(),
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
        script::echoed(self.slice(only))
    }
}
