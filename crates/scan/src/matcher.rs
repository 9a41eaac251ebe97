//! Matches facts with rules and collects findings: a bounded number, with bounded and harmless text.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use belljar_core::finding::{Finding, Launch, Launched, Position, Severity};

use crate::Report;
use crate::command::Command;
use crate::rules::{Rules, Use};
use crate::view::{Dialect, Fact, Sink, Span, Value};

/// Of one rule. The rest is counted.
const MOST_OF_A_RULE: usize = 20;
/// Of all.
pub(crate) const MOST_FINDINGS: usize = 200;
/// How much else a program may run before nobody follows it any more.
pub(crate) const MOST_LAUNCHES: usize = 1000;
/// Code in code in code.
const DEEPEST: usize = 4;
/// Of all code in code, in bytes.
const MOST_CODE: usize = 8 << 20;
/// Functions whose first argument is a file of their own language that they run.
const RUN_A_FILE: [&str; 2] = ["runpy.run_path", "child_process.fork"];
/// In characters.
pub(crate) const EXCERPT: usize = 160;

/// Code that remains to be read.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) dialect: Dialect,
    pub(crate) text: Rc<str>,
    pub(crate) origin: Origin,
    depth: usize,
}

/// Where code is in the text that was given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// It begins at this offset.
    At(usize),
    /// It was put together there.
    Within(Span),
}

/// What was found so far, and what is being read.
#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    rules: &'a Rules,
    allowed_imports: Option<&'a [String]>,
    /// By the offset at which they begin, and the rule.
    found: BTreeMap<(usize, usize), Found>,
    counts: HashMap<usize, usize>,
    pending: VecDeque<Pending>,
    seen_code: HashSet<(Dialect, Rc<str>)>,
    code_left: usize,
    current: Pending,
    by_tokens: bool,
    launches: Vec<Launch>,
    seen_launches: HashSet<(Dialect, Launched)>,
}

#[derive(Debug)]
struct Found {
    span: Span,
    detail: String,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(
        rules: &'a Rules,
        allowed_imports: Option<&'a [String]>,
        first: Pending,
    ) -> Matcher<'a> {
        Matcher {
            rules,
            allowed_imports,
            found: BTreeMap::new(),
            counts: HashMap::new(),
            pending: VecDeque::from([first.clone()]),
            seen_code: HashSet::new(),
            code_left: MOST_CODE,
            current: first,
            by_tokens: false,
            launches: Vec::new(),
            seen_launches: HashSet::new(),
        }
    }

    /// The next code to read.
    pub(crate) fn next(&mut self) -> Option<Pending> {
        self.current = self.pending.pop_front()?;
        self.by_tokens = false;
        Some(self.current.clone())
    }

    /// From here on the code is read by its tokens.
    pub(crate) fn read_by_tokens(&mut self) {
        self.by_tokens = true;
    }

    /// All findings, in the order of the text, and what else is run.
    pub(crate) fn finish(mut self, text: &str) -> Report {
        self.combine();
        let lines = Lines::of(text);
        let mut findings: Vec<Finding> = Vec::new();
        for ((_, rule), Found { span, detail }) in &self.found {
            let Some(known) = self.rules.get(*rule) else { continue };
            let left_out = self.counts.get(rule).map_or(0, |count| count.saturating_sub(MOST_OF_A_RULE));
            let first = findings.iter().all(|finding| finding.rule != known.id);
            let more = if first && left_out > 0 { format!(" ({left_out} more)") } else { String::new() };
            let message = format!("{}{detail}{more}", known.message);
            findings.push(lines.finding(known.id.clone(), known.severity, message, *span));
        }
        if findings.len() > MOST_FINDINGS {
            findings = the_most_telling(findings);
        }
        Report { findings, launches: self.launches }
    }

    fn launch(&mut self, span: Span, dialect: Dialect, what: Launched) {
        let Some(language) = dialect.language() else { return };
        if !self.seen_launches.insert((dialect, what.clone())) {
            return;
        }
        if self.launches.len() == MOST_LAUNCHES {
            self.construct(span, "too-much-code-in-code", Detail::None);
            return;
        }
        self.launches.push(Launch { language, what });
    }

    /// Rules that need several others match where the last of those did.
    fn combine(&mut self) {
        for (index, together) in self.rules.combined() {
            let place = |id: &String| {
                let of_rule = |rule: usize| self.rules.get(rule).is_some_and(|rule| is_named(&rule.id, id));
                self.found.iter().find(|((_, rule), _)| of_rule(*rule)).map(|(_, found)| found.span)
            };
            let places: Option<Vec<Span>> = together.iter().map(place).collect();
            if let Some(span) = places.and_then(|places| places.into_iter().max_by_key(|span| span.start)) {
                let found = Found { span, detail: String::new() };
                self.found.insert((span.start, index), found);
            }
        }
    }

    fn hit(&mut self, rule: usize, span: Span, detail: Detail<'_>) {
        let Some(known) = self.rules.get(rule) else { return };
        let language = known.language();
        if language != "any" && language != self.current.dialect.name() {
            return;
        }
        let span = self.in_root(span);
        let key = (span.start, rule);
        if let Some(known) = self.found.get_mut(&key) {
            // A name and the call of it: the call says more.
            known.span.end = known.span.end.max(span.end);
            return;
        }
        let count = self.counts.entry(rule).or_default();
        *count += 1;
        if *count > MOST_OF_A_RULE {
            return;
        }
        let how = match (self.by_tokens, self.current.dialect) {
            (true, dialect) => {
                format!(" (found by tokens: there is no syntax tree of this {} code)", dialect.name())
            }
            (false, _) => String::new(),
        };
        let found = Found { span, detail: format!("{}{how}", detail.text()) };
        self.found.insert(key, found);
    }

    fn in_root(&self, span: Span) -> Span {
        match self.current.origin {
            Origin::At(offset) => Span::new(offset + span.start, offset + span.end),
            Origin::Within(outer) => outer,
        }
    }

    fn all_hits(&mut self, span: Span, detail: Detail<'_>, find: impl FnOnce(&Rules, &mut dyn FnMut(usize))) {
        let mut hits = Vec::new();
        find(self.rules, &mut |rule| hits.push(rule));
        for rule in hits {
            self.hit(rule, span, detail);
        }
    }

    fn import(&mut self, span: Span, module: &str) {
        self.all_hits(span, Detail::Name(module), |rules, found| rules.of_import(module, found));
        let is_code_of_the_root = self.current.depth == 0 || self.current.dialect != Dialect::Shell;
        if let Some(allowed) = self.allowed_imports
            && is_code_of_the_root
            && !module.starts_with('.')
            && !allowed.iter().any(|name| is_within(module, name))
        {
            self.construct(span, "import-not-allowed", Detail::Name(module));
        }
    }

    fn call(&mut self, span: Span, name: &str, arguments: &[Value]) {
        self.all_hits(span, Detail::Name(name), |rules, found| rules.of_call(name, arguments, found));
        if RUN_A_FILE.contains(&name)
            && let Some(path) = arguments.first().and_then(Value::text)
        {
            self.launch(span, self.current.dialect, Launched::File(vec![path.to_string()]));
        }
        let meant = self.rules.use_of(self.current.dialect, name);
        match (meant, arguments.first()) {
            (Some(Use::Shell), Some(Value::Text(text) | Value::Decoded(text))) => {
                self.code(span, Dialect::Shell, text, None);
            }
            (Some(Use::Code), Some(_)) => {
                // The last argument of `Function` is its body; that of others is the only one.
                if let Some(text) = arguments.iter().rev().find_map(Value::text) {
                    self.code(span, self.current.dialect, text, None);
                }
            }
            (Some(Use::Import), Some(Value::Text(module) | Value::Decoded(module))) => {
                let module = module.clone();
                self.import(span, &module);
            }
            (Some(Use::Import), Some(_)) => self.construct(span, "computed-import", Detail::None),
            (Some(Use::Spawn), Some(_)) => self.spawn(span, arguments),
            (Some(Use::Shell), _) | (Some(Use::Code | Use::Import | Use::Spawn), None) | (None, _) => {}
        }
    }

    fn spawn(&mut self, span: Span, arguments: &[Value]) {
        let mut words: Vec<Rc<str>> = Vec::new();
        for argument in arguments {
            match argument {
                Value::Text(text) | Value::Decoded(text) => words.push(text.clone()),
                Value::List(items) => words.extend(items.iter().map(|item| match item.text() {
                    Some(text) => text.clone(),
                    None => Rc::from("?"),
                })),
                Value::Path(_) | Value::Number(_) | Value::Map(_) | Value::Unknown => {}
            }
        }
        if let [only] = words.as_slice()
            && only.contains(char::is_whitespace)
        {
            let only = only.clone();
            self.code(span, Dialect::Shell, &only, None);
        } else if let Some(command) = Command::of(&words) {
            // It has the standard input of the program, unless that gives it another.
            if let Some(dialect) = command.interprets_stdin() {
                self.launch(span, dialect, Launched::Stdin);
            }
            self.command(span, &command);
        }
    }

    fn command(&mut self, span: Span, command: &Command) {
        self.all_hits(span, Detail::Name(&command.name), |rules, found| rules.of_command(command, found));
        // Other wrappers are of interest only if they run nothing.
        for wrapper in command.wrappers.iter().filter(|name| matches!(name.as_ref(), "sudo" | "doas")) {
            if let Some(alone) = Command::of(std::slice::from_ref(wrapper)) {
                self.all_hits(span, Detail::Name(wrapper), |rules, found| rules.of_command(&alone, found));
            }
        }
        if let Some((dialect, code, _)) = &command.code {
            self.code(span, *dialect, code, None);
        }
        if let Some((dialect, what)) = command.launches() {
            self.launch(span, dialect, what);
        }
    }

    fn construct(&mut self, span: Span, name: &str, detail: Detail<'_>) {
        self.all_hits(span, detail, |rules, found| rules.of_construct(name, found));
    }

    fn code(&mut self, span: Span, dialect: Dialect, text: &Rc<str>, at: Option<usize>) {
        if text.trim().is_empty() || !self.seen_code.insert((dialect, text.clone())) {
            return;
        }
        let depth = self.current.depth + 1;
        let Some(left) = self.code_left.checked_sub(text.len()).filter(|_| depth <= DEEPEST) else {
            self.construct(span, "too-much-code-in-code", Detail::None);
            return;
        };
        self.code_left = left;
        let origin = match (at, self.current.origin) {
            (Some(at), Origin::At(offset)) => Origin::At(offset + at),
            (_, origin @ Origin::Within(_)) => origin,
            (None, Origin::At(_)) => Origin::Within(self.in_root(span)),
        };
        self.pending.push_back(Pending { dialect, text: text.clone(), origin, depth });
    }
}

/// The first finding of every rule, and the most severe of the others. So nobody can hide what one rule found behind
/// findings of others.
fn the_most_telling(findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = HashSet::new();
    let mut ranked: Vec<(bool, Finding)> =
        findings.into_iter().map(|finding| (!seen.insert(finding.rule.clone()), finding)).collect();
    ranked.sort_by_key(|(again, finding)| (*again, std::cmp::Reverse(finding.severity)));
    ranked.truncate(MOST_FINDINGS);
    let mut kept: Vec<Finding> = ranked.into_iter().map(|(_, finding)| finding).collect();
    kept.sort_by_key(|finding| finding.start);
    kept
}

impl Pending {
    pub(crate) fn root(dialect: Dialect, text: &str) -> Pending {
        Pending { dialect, text: text.into(), origin: Origin::At(0), depth: 0 }
    }
}

impl Sink for Matcher<'_> {
    fn see(&mut self, span: Span, fact: Fact) {
        match fact {
            Fact::Import(module) => self.import(span, &module),
            Fact::Call(name, arguments) => self.call(span, &name, &arguments),
            Fact::Name(name) => {
                self.all_hits(span, Detail::Name(&name), |rules, found| rules.of_name(&name, found))
            }
            Fact::Attribute(name) => {
                self.all_hits(span, Detail::Name(&name), |rules, found| rules.of_attribute(&name, found));
            }
            Fact::Text(text) => self.all_hits(span, Detail::None, |rules, found| rules.of_text(&text, found)),
            Fact::Command(command) => self.command(span, &command),
            Fact::Construct(name) => self.construct(span, name, Detail::None),
            Fact::Code { language, text, at } => self.code(span, language, &text, at),
            Fact::Launch(dialect, what) => self.launch(span, dialect, what),
            Fact::Unreadable(why) => self.construct(span, "unreadable", Detail::Reason(&why)),
        }
    }
}

/// `a.b.c` and `*.b.c`, or `x.credentials` for all that are about credentials.
fn is_named(id: &str, pattern: &str) -> bool {
    id == pattern || id.ends_with(pattern)
}

fn is_within(module: &str, allowed: &str) -> bool {
    let module = module.strip_prefix("node:").unwrap_or(module);
    module.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/', ':']))
}

/// What a message says beyond the rule's own words.
#[derive(Debug, Clone, Copy)]
enum Detail<'a> {
    None,
    Name(&'a str),
    Reason(&'a str),
}

impl Detail<'_> {
    fn text(self) -> String {
        match self {
            Detail::None => String::new(),
            Detail::Name(name) => format!(": {}", inert(name.trim_start_matches("?."), 60)),
            Detail::Reason(why) => format!(": {}", inert(why, EXCERPT)),
        }
    }
}

/// Text without control characters, and without those that change the direction or that cannot be seen.
pub(crate) fn inert(text: &str, most: usize) -> String {
    let shown = text.chars().take(most).map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c });
    let mut shown: String = shown.collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

/// Control characters, and the format characters with which text can be made to look like another text.
pub(crate) fn is_harmful(c: char) -> bool {
    (c.is_control() && c != '\t') || is_deceptive(c)
}

/// Characters that change the order in which others are shown (CVE-2021-42574), or that are not shown at all.
pub(crate) fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

/// A text and where its lines begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, starts }
    }

    fn finding(&self, rule: String, severity: Severity, message: String, span: Span) -> Finding {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.floor_char_boundary(span.end.max(start));
        let excerpt = self.excerpt(start);
        let (start, end) = (self.position(start), self.position(end));
        Finding { rule, severity, message, start, end, excerpt, within: None }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.line(offset);
        let start = self.starts.get(line - 1).copied().unwrap_or_default();
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Position { line: number(line), column: number(column) }
    }

    /// The number of the line that an offset is in.
    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).max(1)
    }

    /// The line, or the part of it that begins a little before the offset.
    fn excerpt(&self, offset: usize) -> String {
        let start = self.starts.get(self.line(offset) - 1).copied().unwrap_or_default();
        if offset - start < EXCERPT / 2 {
            let line = self.text[start..].lines().next().unwrap_or_default();
            return inert(line.trim_start(), EXCERPT).trim_end().to_owned();
        }
        let before = self.text.floor_char_boundary(offset - EXCERPT / 4);
        let line = self.text[before..].lines().next().unwrap_or_default();
        format!("…{}", inert(line, EXCERPT))
    }
}
