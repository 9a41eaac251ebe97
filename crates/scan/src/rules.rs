//! Rules are data: the files in `rules/`. This is their format, and the index that finds the rules for a fact.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};
use belljar_core::finding::Severity;
use serde::Deserialize;

use crate::command::Command;
use crate::view::{Dialect, Value};

/// The files, in the order in which the documentation lists them.
const FILES: [(&str, &str); 6] = [
    ("any.toml", include_str!("../rules/any.toml")),
    ("python.toml", include_str!("../rules/python.toml")),
    ("javascript.toml", include_str!("../rules/javascript.toml")),
    ("bash.toml", include_str!("../rules/bash.toml")),
    ("scripts.toml", include_str!("../rules/scripts.toml")),
    ("compiled.toml", include_str!("../rules/compiled.toml")),
];

/// One rule. What it matches is a list of alternatives, narrowed by the conditions below them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// `LANGUAGE.TOPIC.NAME`, or `any.TOPIC.NAME`. Rules of `javascript` are for TypeScript, too, those of `bash` for all
    /// shells, and those of `c` for C++.
    pub id: String,
    /// How much it matters.
    #[serde(deserialize_with = "severity")]
    pub severity: Severity,
    /// What the code does, for people who read a finding.
    pub message: String,
    /// Why that matters, for people who read the documentation.
    pub why: String,

    /// Modules that are imported. `a` is also `a.b` and `a/b`.
    #[serde(default)]
    imports: Vec<String>,
    /// Functions that are called, by their full names; `a.*` is everything in `a`, `*.b` every method `b`.
    #[serde(default)]
    calls: Vec<String>,
    /// The same, if they are called, read or imported.
    #[serde(default)]
    names: Vec<String>,
    /// Attributes of anything.
    #[serde(default)]
    attributes: Vec<String>,
    /// Parts of texts, without regard to case; `^a` is a text that begins with `a`.
    #[serde(default)]
    strings: Vec<String>,
    /// Programs that are run.
    #[serde(default)]
    commands: Vec<String>,
    /// What a front end recognizes.
    #[serde(default)]
    constructs: Vec<String>,
    /// Other rules that must all have matched somewhere.
    #[serde(default)]
    together: Vec<String>,

    /// Of a call or a command: one of its literal arguments is like one of these. `*` is anything.
    #[serde(default)]
    arguments: Vec<String>,
    /// Arguments that do not count for that; without `arguments`, none of its arguments is like one of these.
    #[serde(default)]
    not_arguments: Vec<String>,
    /// Of a call: its first argument is not a literal.
    #[serde(default)]
    computed: bool,
    /// Of a call: its first argument was encoded in the source.
    #[serde(default)]
    decoded: bool,
    /// Of a command: it has all of these options, each given as alternatives: `-r|--recursive`.
    #[serde(default)]
    flags: Vec<String>,
}

/// What functions of a language do with their arguments, for following code into them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Vocabulary {
    /// Functions that give their first argument to a shell.
    #[serde(default)]
    shell: Vec<String>,
    /// Functions that run a program with these words.
    #[serde(default)]
    spawn: Vec<String>,
    /// Functions that run a text as code of their own language.
    #[serde(default)]
    code: Vec<String>,
    /// Functions that are called with the names of modules.
    #[serde(default)]
    import: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    vocabulary: HashMap<String, Vocabulary>,
    #[serde(rename = "rule")]
    rules: Vec<Rule>,
}

fn severity<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Severity, D::Error> {
    let name = String::deserialize(deserializer)?;
    Severity::by_name(&name).ok_or_else(|| serde::de::Error::custom(format!("'{name}' is not a severity")))
}

/// All rules, and what finds them.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) all: Vec<Rule>,
    calls: Patterns,
    names: Patterns,
    imports: Patterns,
    attributes: HashMap<String, Vec<usize>>,
    commands: HashMap<String, Vec<usize>>,
    constructs: HashMap<String, Vec<usize>>,
    strings: AhoCorasick,
    /// For each pattern of `strings`: its rule, and whether it matches only at the beginning.
    string_rules: Vec<(usize, bool)>,
    vocabulary: HashMap<String, [Patterns; 4]>,
}

/// What a function does with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Shell,
    Spawn,
    Code,
    Import,
}

/// Every rule, in the order of the files.
pub fn rules() -> &'static [Rule] {
    &compiled().all
}

/// Rules that are embedded in the program are valid, which a test ensures; without them, nothing would be found.
pub(crate) fn compiled() -> &'static Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| match Rules::compile() {
        Ok(rules) => rules,
        Err(cause) => panic!("the rules of this build are invalid: {cause}"),
    });
    &RULES
}

impl Rules {
    fn compile() -> Result<Rules, String> {
        let (mut all, mut vocabulary) = (Vec::new(), HashMap::new());
        for (name, text) in FILES {
            let file: RuleFile = toml::from_str(text).map_err(|cause| format!("{name}: {cause}"))?;
            all.extend(file.rules);
            for (language, words) in file.vocabulary {
                let Vocabulary { shell, spawn, code, import } = words;
                vocabulary
                    .insert(language, [shell, spawn, code, import].map(|list| Patterns::of([(0, &list)])));
            }
        }
        let (mut strings, mut string_rules) = (Vec::new(), Vec::new());
        for (index, rule) in all.iter().enumerate() {
            for pattern in &rule.strings {
                let bare = pattern.strip_prefix('^');
                strings.push(bare.unwrap_or(pattern).to_owned());
                string_rules.push((index, bare.is_some()));
            }
        }
        let automaton = AhoCorasickBuilder::new()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .build(&strings)
            .map_err(|cause| format!("strings: {cause}"))?;
        let calls = Patterns::of(all.iter().enumerate().map(|(index, rule)| (index, &rule.calls)));
        let names = Patterns::of(all.iter().enumerate().map(|(index, rule)| (index, &rule.names)));
        let imports = Patterns::of(all.iter().enumerate().map(|(index, rule)| (index, &rule.imports)));
        let attributes = by_word(&all, |rule| &rule.attributes);
        let commands = by_word(&all, |rule| &rule.commands);
        let constructs = by_word(&all, |rule| &rule.constructs);
        let strings = automaton;
        Ok(Rules {
            all,
            calls,
            names,
            imports,
            attributes,
            commands,
            constructs,
            strings,
            string_rules,
            vocabulary,
        })
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Rule> {
        self.all.get(index)
    }

    /// Calls `found` with the number of each rule for a call of a function.
    pub(crate) fn of_call(&self, name: &str, arguments: &[Value], found: &mut dyn FnMut(usize)) {
        self.calls.find(name, &mut |index| {
            if self.get(index).is_some_and(|rule| rule.accepts_call(arguments)) {
                found(index);
            }
        });
        self.of_name(name, found);
    }

    pub(crate) fn of_name(&self, name: &str, found: &mut dyn FnMut(usize)) {
        self.names.find(name, found);
    }

    /// A module is also everything in it.
    pub(crate) fn of_import(&self, module: &str, found: &mut dyn FnMut(usize)) {
        self.imports.find(module, found);
        for (at, _) in module.match_indices(['.', '/', ':']) {
            self.imports.find(&module[..at], found);
        }
        self.names.find(module, found);
    }

    pub(crate) fn of_attribute(&self, name: &str, found: &mut dyn FnMut(usize)) {
        report(self.attributes.get(name), found);
    }

    pub(crate) fn of_construct(&self, name: &str, found: &mut dyn FnMut(usize)) {
        report(self.constructs.get(name), found);
    }

    pub(crate) fn of_command(&self, command: &Command, found: &mut dyn FnMut(usize)) {
        report(self.commands.get(command.name.as_ref()), &mut |index| {
            if self.get(index).is_some_and(|rule| rule.accepts_command(command)) {
                found(index);
            }
        });
    }

    pub(crate) fn of_text(&self, text: &str, found: &mut dyn FnMut(usize)) {
        for hit in self.strings.find_overlapping_iter(text) {
            if let Some((rule, anchored)) = self.string_rules.get(hit.pattern().as_usize())
                && (!anchored || hit.start() == 0)
            {
                found(*rule);
            }
        }
    }

    /// What a function of a language does with its arguments.
    pub(crate) fn use_of(&self, dialect: Dialect, name: &str) -> Option<Use> {
        let [shell, spawn, code, import] = self.vocabulary.get(dialect.name())?;
        let candidates = [(shell, Use::Shell), (spawn, Use::Spawn), (code, Use::Code), (import, Use::Import)];
        candidates.into_iter().find(|(patterns, _)| patterns.has(name)).map(|(_, meant)| meant)
    }

    /// Rules that need several others.
    pub(crate) fn combined(&self) -> impl Iterator<Item = (usize, &[String])> {
        let combined = self.all.iter().enumerate().filter(|(_, rule)| !rule.together.is_empty());
        combined.map(|(index, rule)| (index, rule.together.as_slice()))
    }
}

impl Rule {
    /// The first part of its id.
    #[must_use]
    pub fn language(&self) -> &str {
        self.id.split('.').next().unwrap_or_default()
    }

    fn accepts_call(&self, arguments: &[Value]) -> bool {
        let first = arguments.first();
        let literal = first.is_some_and(|value| value.text().is_some() || matches!(value, Value::Number(_)));
        if (self.computed && (literal || first.is_none()))
            || (self.decoded && !matches!(first, Some(Value::Decoded(_))))
        {
            return false;
        }
        self.accepts_arguments(arguments.iter().flat_map(texts_of))
    }

    fn accepts_command(&self, command: &Command) -> bool {
        let has = |wanted: &str| command.flags.iter().any(|flag| flag.as_ref() == wanted);
        self.flags.iter().all(|alternatives| alternatives.split('|').any(has))
            && self.accepts_arguments(command.operands.iter().chain(&command.flags).map(AsRef::as_ref))
    }

    fn accepts_arguments<'a>(&self, mut arguments: impl Iterator<Item = &'a str>) -> bool {
        let like = |patterns: &[String], text: &str| patterns.iter().any(|pattern| is_like(pattern, text));
        match self.arguments.is_empty() {
            true => !arguments.any(|text| like(&self.not_arguments, text)),
            false => arguments.any(|text| like(&self.arguments, text) && !like(&self.not_arguments, text)),
        }
    }
}

fn by_word(rules: &[Rule], list: fn(&Rule) -> &Vec<String>) -> HashMap<String, Vec<usize>> {
    let mut words: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, rule) in rules.iter().enumerate() {
        for word in list(rule) {
            words.entry(word.clone()).or_default().push(index);
        }
    }
    words
}

fn report(rules: Option<&Vec<usize>>, found: &mut dyn FnMut(usize)) {
    rules.into_iter().flatten().for_each(|index| found(*index));
}

fn texts_of(value: &Value) -> Vec<&str> {
    match value {
        Value::Text(text) | Value::Decoded(text) | Value::Path(text) => vec![text],
        Value::List(items) => items.iter().filter_map(|item| item.text().map(AsRef::as_ref)).collect(),
        Value::Number(_) | Value::Map(_) | Value::Unknown => Vec::new(),
    }
}

/// Whether a text matches a pattern in which `*` is any number of characters.
pub(crate) fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Names with a `*` at one end, by what is at the other.
#[derive(Debug, Default)]
struct Patterns {
    exact: HashMap<String, Vec<usize>>,
    within: HashMap<String, Vec<usize>>,
    method: HashMap<String, Vec<usize>>,
    /// The most parts that a key has, so that a name of a hundred thousand parts is not looked up as often.
    parts: usize,
}

impl Patterns {
    fn of<'a>(lists: impl IntoIterator<Item = (usize, &'a Vec<String>)>) -> Patterns {
        let mut patterns = Patterns::default();
        for (index, list) in lists {
            for pattern in list {
                let (map, key) = match (pattern.strip_suffix(".*"), pattern.strip_prefix("*.")) {
                    (Some(base), _) => (&mut patterns.within, base),
                    (None, Some(method)) => (&mut patterns.method, method),
                    (None, None) => (&mut patterns.exact, pattern.as_str()),
                };
                map.entry(key.to_owned()).or_default().push(index);
                patterns.parts = patterns.parts.max(key.split('.').count());
            }
        }
        patterns
    }

    fn find(&self, name: &str, found: &mut dyn FnMut(usize)) {
        let mut all = |list: Option<&Vec<usize>>| list.into_iter().flatten().for_each(|index| found(*index));
        all(self.exact.get(name));
        for (at, _) in name.match_indices('.').take(self.parts) {
            all(self.within.get(&name[..at]));
        }
        for (at, _) in name.rmatch_indices('.').take(self.parts) {
            all(self.method.get(&name[at + 1..]));
        }
    }

    fn has(&self, name: &str) -> bool {
        let mut has = false;
        self.find(name, &mut |_| has = true);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_this_build_are_valid() {
        let rules = Rules::compile().unwrap();
        for (index, rule) in rules.all.iter().enumerate() {
            let parts: Vec<&str> = rule.id.split('.').collect();
            assert_eq!(parts.len(), 3, "{}: LANGUAGE.TOPIC.NAME", rule.id);
            let plain =
                |part: &str| part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            assert!(parts.iter().all(|part| !part.is_empty() && plain(part)), "{}", rule.id);
            assert!(
                parts[0] == "any" || Dialect::of(parts[0]).is_some_and(|d| d.name() == parts[0]),
                "{}",
                rule.id
            );
            assert!(rules.all[..index].iter().all(|other| other.id != rule.id), "{} is there twice", rule.id);
            assert!(!rule.message.is_empty() && rule.message.len() < 100, "{}", rule.id);
            assert!(rule.why.ends_with('.') && !rule.message.ends_with('.'), "{}", rule.id);
            let lists =
                [&rule.imports, &rule.calls, &rule.names, &rule.attributes, &rule.strings, &rule.commands];
            let matches = lists.iter().any(|list| !list.is_empty());
            assert!(
                matches || !rule.constructs.is_empty() || !rule.together.is_empty(),
                "{}: nothing",
                rule.id
            );
            for other in &rule.together {
                assert!(rules.all.iter().any(|rule| rule.id.ends_with(other)), "{}: {other}", rule.id);
            }
        }
    }

    #[test]
    fn an_unknown_field_or_severity_is_refused() {
        let refused = |text: &str| toml::from_str::<RuleFile>(text).is_err();
        let rule = "[[rule]]\nid = 'a.b.c'\nmessage = 'm'\nwhy = 'w.'\n";
        assert!(!refused(&format!("{rule}severity = 'low'\n")));
        assert!(refused(&format!("{rule}severity = 'mild'\n")));
        assert!(refused(&format!("{rule}severity = 'low'\ncall = ['x']\n")));
    }

    #[test]
    fn a_star_is_anything() {
        for (pattern, text) in
            [("/etc/*", "/etc/passwd"), ("*", ""), ("a*c*e", "abcde"), ("/", "/"), ("*.sh", "a.sh")]
        {
            assert!(is_like(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("/etc/*", "/et"), ("/", "/x"), ("a*c", "ab"), ("*.sh", "a.shx")] {
            assert!(!is_like(pattern, text), "{pattern} {text}");
        }
    }
}
