//! `[policy]` in `belljar.toml`, for all and for each key.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::finding::Severity;
use belljar_core::language::Language;
use belljar_core::limits::{Bytes, Cpus, parse_duration};
use belljar_core::policy::{
    Above, Action, AllowedImports, Conditions, NetworkCondition, Pattern, Policy, Preset, Rule, Written,
    parse_allowed_imports,
};
use belljar_core::request::{BackendChoice, BackendName};
use belljar_wire::{Code, Problem};
use serde::Deserialize;
use toml::Spanned;

use crate::settings::Scalar;

/// The table `[policy]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct PolicyTable {
    preset: Option<Spanned<String>>,
    default: Option<Spanned<String>>,
    rules: Vec<Spanned<RuleTable>>,
    allowed_imports: BTreeMap<String, Spanned<Vec<String>>>,
}

/// One of its rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    when: WhenTable,
    then: Spanned<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct WhenTable {
    severity: Option<Spanned<String>>,
    rule: Option<Spanned<OneOrMore>>,
    language: Option<Spanned<OneOrMore>>,
    backend: Option<Spanned<OneOrMore>>,
    network: Option<Spanned<OneOrMore>>,
    image: Option<Spanned<OneOrMore>>,
    workspace: Option<Spanned<OneOrMore>>,
    timeout_above: Option<Spanned<Scalar>>,
    cpu_time_above: Option<Spanned<Scalar>>,
    memory_above: Option<Spanned<Scalar>>,
    cpus_above: Option<Spanned<Scalar>>,
    pids_above: Option<Spanned<Scalar>>,
    disk_above: Option<Spanned<Scalar>>,
    output_limit_above: Option<Spanned<Scalar>>,
}

/// A list of one word may be written as that word.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn words(&self) -> &[String] {
        match self {
            OneOrMore::One(word) => std::slice::from_ref(word),
            OneOrMore::More(words) => words,
        }
    }
}

/// The file that a policy is read from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyFile<'a> {
    /// As messages name it.
    pub(crate) path: &'a str,
    pub(crate) text: &'a str,
}

impl PolicyFile<'_> {
    fn written(&self, at: usize) -> Written {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Written { place: self.path.into(), line: Some(line) }
    }

    /// Something that cannot be understood, with its line.
    fn wrong<T>(&self, value: &Spanned<T>, message: &str, hint: &str) -> Problem {
        let message = format!("{}: {message}", self.written(value.span().start));
        Problem::new(Code::InvalidRequest, message, hint)
    }

    fn preset(&self, name: &Spanned<String>) -> Result<Preset, Problem> {
        Preset::by_name(name.get_ref()).ok_or_else(|| {
            let message = format!("there is no preset '{}'", name.get_ref().escape_debug());
            self.wrong(name, &message, "the presets are open, standard and strict")
        })
    }

    fn action(&self, name: &Spanned<String>) -> Result<Action, Problem> {
        Action::by_name(name.get_ref()).ok_or_else(|| {
            let message = format!("'{}' is nothing that a policy can do", name.get_ref().escape_debug());
            self.wrong(name, &message, "write allow, warn, approve or deny")
        })
    }

    fn rule(&self, rule: &Spanned<RuleTable>) -> Result<Rule, Problem> {
        let RuleTable { when, then } = rule.get_ref();
        Ok(Rule {
            when: self.conditions(when)?,
            then: self.action(then)?,
            origin: self.written(rule.span().start),
        })
    }

    fn conditions(&self, when: &WhenTable) -> Result<Conditions, Problem> {
        let severities = Severity::ALL.map(Severity::name).join(", ");
        let severity = when.severity.as_ref().map(|name| {
            Severity::by_name(name.get_ref()).ok_or_else(|| {
                let message = format!("'{}' is not a severity", name.get_ref().escape_debug());
                self.wrong(name, &message, &format!("the severities are {severities}"))
            })
        });
        Ok(Conditions {
            severity: severity.transpose()?,
            rules: self.each(when.rule.as_ref(), "name a rule such as python.process.*", rule_pattern)?,
            languages: self.each(when.language.as_ref(), "`belljar languages` lists them", language)?,
            backends: self.each(when.backend.as_ref(), "`belljar doctor --all` lists them", backend)?,
            networks: self.each(
                when.network.as_ref(),
                "write none, full, allow or allow:HOST",
                NetworkCondition::parse,
            )?,
            images: self.each(when.image.as_ref(), "name an image such as python:*", pattern)?,
            workspaces: self.each(when.workspace.as_ref(), "write an absolute path", absolute)?,
            above: self.above(when)?,
        })
    }

    fn above(&self, when: &WhenTable) -> Result<Above, Problem> {
        let time = |text: &str| parse_duration(text).ok();
        let size = |text: &str| Bytes::parse(text).ok();
        Ok(Above {
            timeout: self.one::<Duration>(when.timeout_above.as_ref(), "30s", time)?,
            cpu_time: self.one(when.cpu_time_above.as_ref(), "30s", time)?,
            memory: self.one(when.memory_above.as_ref(), "512M", size)?,
            cpus: self.one(when.cpus_above.as_ref(), "2", |text| {
                text.parse().ok().and_then(|cpus| Cpus::parse(cpus).ok())
            })?,
            pids: self.one(when.pids_above.as_ref(), "50", |text| text.parse().ok())?,
            disk: self.one(when.disk_above.as_ref(), "64M", size)?,
            output: self.one(when.output_limit_above.as_ref(), "1M", size)?,
        })
    }

    fn one<T>(
        &self,
        value: Option<&Spanned<Scalar>>,
        example: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = value else { return Ok(None) };
        let Scalar(text) = value.get_ref();
        parse(text).map(Some).ok_or_else(|| {
            let message = format!("'{}' is not a limit", text.escape_debug());
            self.wrong(value, &message, &format!("write a value such as {example}"))
        })
    }

    fn each<T>(
        &self,
        value: Option<&Spanned<OneOrMore>>,
        hint: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, Problem> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let words = value.get_ref().words();
        if words.is_empty() {
            return Err(self.wrong(value, "an empty list never matches", hint));
        }
        let known = |word: &String| {
            parse(word).ok_or_else(|| {
                self.wrong(value, &format!("'{}' is not known here", word.escape_debug()), hint)
            })
        };
        words.iter().map(known).collect()
    }

    fn imports(&self, name: &str, modules: &Spanned<Vec<String>>) -> Result<AllowedImports, Problem> {
        let invalid =
            |fault: belljar_core::Invalid| self.wrong(modules, &fault.message.clone(), &fault.hint.clone());
        let language = Language::parse(name).map_err(invalid)?;
        let known = parse_allowed_imports(language, modules.get_ref().clone()).map_err(invalid)?;
        let origin = self.written(modules.span().start);
        Ok(AllowedImports { language: language.name, modules: known, origin })
    }
}

fn rule_pattern(word: &str) -> Option<Pattern> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_*".contains(c);
    let known = |pattern: &Pattern| {
        let of_scanner = belljar_scan::rules().iter().map(|rule| rule.id.as_str());
        of_scanner.chain(belljar_engine::OWN_RULES).any(|id| pattern.matches(id))
    };
    Some(Pattern(word.to_owned())).filter(|pattern| word.chars().all(plain) && known(pattern))
}

fn pattern(word: &str) -> Option<Pattern> {
    (!word.is_empty()).then(|| Pattern(word.to_owned()))
}

fn language(word: &str) -> Option<&'static str> {
    Language::by_name(word).map(|language| language.name)
}

fn backend(word: &str) -> Option<BackendName> {
    match BackendChoice::parse(word) {
        Ok(BackendChoice::Named(name)) => Some(name),
        Ok(BackendChoice::Auto) | Err(_) => None,
    }
}

fn absolute(word: &str) -> Option<PathBuf> {
    Some(PathBuf::from(word)).filter(|path| path.is_absolute())
}

impl PolicyTable {
    /// The policy for all callers.
    pub(crate) fn read(&self, file: PolicyFile<'_>) -> Result<Policy, Problem> {
        self.before(&Policy::open(), file)
    }

    /// The policy of a key: its own rules are looked at first, then those for all.
    pub(crate) fn read_for_key(&self, general: &Policy, file: PolicyFile<'_>) -> Result<Policy, Problem> {
        self.before(general, file)
    }

    fn before(&self, general: &Policy, file: PolicyFile<'_>) -> Result<Policy, Problem> {
        let preset = self.preset.as_ref().map(|name| file.preset(name)).transpose()?;
        let preset = preset.map(|preset| preset.policy()).unwrap_or_default();
        let mut rules = self.rules.iter().map(|rule| file.rule(rule)).collect::<Result<Vec<_>, _>>()?;
        rules.extend(preset.rules);
        rules.extend_from_slice(&general.rules);
        let mut allowed_imports = Vec::new();
        for (language, modules) in &self.allowed_imports {
            allowed_imports.push(file.imports(language, modules)?);
        }
        for list in preset.allowed_imports.iter().chain(&general.allowed_imports) {
            if !allowed_imports.iter().any(|own| own.language == list.language) {
                allowed_imports.push(list.clone());
            }
        }
        let (default, default_origin) = match (&self.default, &self.preset) {
            (Some(default), _) => (file.action(default)?, file.written(default.span().start)),
            (None, Some(_)) if general.is_open() => (preset.default, preset.default_origin),
            (None, _) => (general.default, general.default_origin.clone()),
        };
        Ok(Policy { rules, default, default_origin, allowed_imports })
    }
}

/// The policies of a configuration: for all, and for each key in order.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) general: Arc<Policy>,
    pub(crate) of_keys: Vec<Arc<Policy>>,
}

impl Policies {
    pub(crate) fn read<'a>(
        general: &PolicyTable,
        keys: impl Iterator<Item = Option<&'a PolicyTable>>,
        file: PolicyFile<'_>,
    ) -> Result<Policies, Problem> {
        let general = Arc::new(general.read(file)?);
        let of_key = |table: Option<&PolicyTable>| match table {
            Some(table) => table.read_for_key(&general, file).map(Arc::new),
            None => Ok(general.clone()),
        };
        let of_keys = keys.map(of_key).collect::<Result<_, _>>()?;
        Ok(Policies { general, of_keys })
    }

    /// Whether everything runs, whoever asks.
    pub(crate) fn are_open(&self) -> bool {
        self.general.is_open() && self.of_keys.iter().all(|policy| policy.is_open())
    }

    /// That of the key at this place, which may be one for which nothing is written.
    pub(crate) fn of_key(&self, at: usize) -> &Arc<Policy> {
        self.of_keys.get(at).unwrap_or(&self.general)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        policy: PolicyTable,
        #[serde(default)]
        keys: Vec<Key>,
    }

    #[derive(Deserialize)]
    struct Key {
        policy: Option<PolicyTable>,
    }

    fn read(text: &str) -> Result<Policies, String> {
        let file: File = toml::from_str(text).map_err(|fault| fault.message().to_owned())?;
        let keys = file.keys.iter().map(|key| key.policy.as_ref());
        Policies::read(&file.policy, keys, PolicyFile { path: "b.toml", text })
            .map_err(|problem| problem.error.message)
    }

    #[test]
    fn nothing_written_allows_everything() {
        assert!(read("").unwrap().general.is_open());
        assert!(read("[policy]").unwrap().general.is_open());
    }

    #[test]
    fn own_rules_come_before_those_of_the_preset() {
        let text = "[policy]\npreset = 'standard'\ndefault = 'warn'\nrules = [\n  \
                    { when = { rule = 'python.process.*', language = ['py', 'sh'] }, then = 'allow' },\n]\n";
        let policy = read(text).unwrap().general;
        let shown: Vec<_> =
            policy.rules.iter().map(|rule| format!("{} {} {}", rule.when, rule.then, rule.origin)).collect();
        assert_eq!(
            shown,
            [
                "{ rule = \"python.process.*\", language = [\"python\", \"sh\"] } allow b.toml:5",
                "{ severity = \"critical\" } deny the preset standard",
                "{ severity = \"high\" } approve the preset standard",
            ]
        );
        assert_eq!(
            (policy.default, policy.default_origin.to_string()),
            (Action::Warn, "b.toml:3".to_owned())
        );
    }

    #[test]
    fn the_rules_of_a_key_are_looked_at_first() {
        let text = "[policy]\npreset = 'strict'\n[[keys]]\n[[keys]]\n[keys.policy]\nallowed-imports.python = ['json']\n\
                    [[keys.policy.rules]]\nwhen = { network = 'full' }\nthen = 'deny'\n";
        let policies = read(text).unwrap();
        assert_eq!(policies.of_key(0), &policies.general);
        let key = policies.of_key(1);
        assert_eq!(key.rules[0].origin.to_string(), "b.toml:7");
        assert_eq!(key.rules[1..], policies.general.rules[..]);
        let python = Language::by_name("python").unwrap();
        assert_eq!(key.imports(python, None), Some(vec!["json".to_owned()]));
        let javascript = Language::by_name("javascript").unwrap();
        assert_eq!(key.imports(javascript, None), policies.general.imports(javascript, None));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, message) in [
            ("\npreset = 'lax'", "b.toml:3: there is no preset 'lax'"),
            ("default = 'ask'", "b.toml:2: 'ask' is nothing that a policy can do"),
            (
                "rules = [\n{ when = { severity = 'bad' }, then = 'deny' }]",
                "b.toml:3: 'bad' is not a severity",
            ),
            (
                "rules = [{ when = { rule = 'python.nothing' }, then = 'deny' }]",
                "b.toml:2: 'python.nothing' is not known here",
            ),
            (
                "rules = [{ when = { language = [] }, then = 'deny' }]",
                "b.toml:2: an empty list never matches",
            ),
            (
                "rules = [{ when = { language = 'cobol' }, then = 'deny' }]",
                "b.toml:2: 'cobol' is not known here",
            ),
            ("rules = [{ when = { network = 'lan' }, then = 'deny' }]", "b.toml:2: 'lan' is not known here"),
            ("rules = [{ when = { workspace = 'a' }, then = 'deny' }]", "b.toml:2: 'a' is not known here"),
            (
                "rules = [{ when = { backend = 'auto' }, then = 'deny' }]",
                "b.toml:2: 'auto' is not known here",
            ),
            (
                "rules = [{ when = { memory-above = 'lots' }, then = 'deny' }]",
                "b.toml:2: 'lots' is not a limit",
            ),
            ("allowed-imports.ruby = ['json']", "b.toml:2: what ruby imports cannot be checked"),
            ("allowed-imports.python = ['']", "b.toml:2: a list of allowed imports has"),
        ] {
            let refused = read(&format!("[policy]\n{text}")).unwrap_err();
            assert!(refused.starts_with(message), "{refused}");
        }
        for text in [
            "rule = []",
            "rules = [{ when = { os = 'linux' }, then = 'deny' }]",
            "rules = [{ then = 'deny' }]",
        ] {
            assert!(read(&format!("[policy]\n{text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn every_condition_reads_back_as_it_is_shown() {
        let when = "{ severity = \"low\", rule = \"any.*\", language = [\"python\", \"ruby\"], backend = \"docker\", \
                    network = [\"full\", \"allow:*.org\"], image = \"python:*\", workspace = \"/srv\", \
                    timeout-above = \"1m\", cpu-time-above = \"10s\", memory-above = \"512M\", cpus-above = 1.5, \
                    pids-above = 64, disk-above = \"1G\", output-limit-above = \"2M\" }";
        let policies = read(&format!("[policy]\nrules = [{{ when = {when}, then = 'warn' }}]")).unwrap();
        assert_eq!(policies.general.rules[0].when.to_string(), when);
    }

    #[test]
    fn a_policy_can_name_every_rule_and_no_other() {
        for known in ["python.process.spawn", "any.scan.*"].into_iter().chain(belljar_engine::OWN_RULES) {
            assert!(rule_pattern(known).is_some(), "{known}");
        }
        for unknown in ["any.scan.streamed", "python.nothing.*", "", "any scan"] {
            assert!(rule_pattern(unknown).is_none(), "{unknown}");
        }
    }
}
