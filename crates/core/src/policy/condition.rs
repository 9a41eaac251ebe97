//! The conditions of a rule.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::finding::{Finding, Severity};
use crate::language::Language;
use crate::limits::{Bytes, Cpus, show_duration};
use crate::request::{BackendName, Network, RunRequest};

/// What a rule looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) request: &'a RunRequest,
    pub(super) backend: Option<BackendName>,
    pub(super) findings: &'a [Finding],
}

/// What must be so for a rule to match: everything that is stated. A list matches if one of its items does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions {
    /// A finding has this severity or a higher one.
    pub severity: Option<Severity>,
    /// A finding is of one of these rules of the scan. If a severity is stated, too, it is that of the same finding.
    pub rules: Vec<Pattern>,
    /// The code is written in one of these languages.
    pub languages: Vec<&'static str>,
    /// One of these backends would run it.
    pub backends: Vec<BackendName>,
    /// It asks for one of these networks.
    pub networks: Vec<NetworkCondition>,
    /// It would run in one of these images.
    pub images: Vec<Pattern>,
    /// It is shown one of these directories of the host, or a directory in one of them.
    pub workspaces: Vec<PathBuf>,
    /// It asks for more than this.
    pub above: Above,
}

/// Limits above which a rule matches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the limits")]
pub struct Above {
    pub timeout: Option<Duration>,
    pub cpu_time: Option<Duration>,
    pub memory: Option<Bytes>,
    pub cpus: Option<Cpus>,
    pub pids: Option<u32>,
    pub disk: Option<Bytes>,
    pub output: Option<Bytes>,
}

/// A network that a request may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkCondition {
    /// `none`.
    None,
    /// `full`.
    Full,
    /// `allow:` with a host that matches.
    Allow(Pattern),
}

impl NetworkCondition {
    /// `none`, `full`, `allow` or `allow:HOST`, where HOST may have stars.
    #[must_use]
    pub fn parse(text: &str) -> Option<NetworkCondition> {
        match text.split_once(':') {
            None if text == "none" => Some(NetworkCondition::None),
            None if text == "full" => Some(NetworkCondition::Full),
            None if text == "allow" => Some(NetworkCondition::Allow(Pattern("*".to_owned()))),
            Some(("allow", host)) if !host.is_empty() => {
                Some(NetworkCondition::Allow(Pattern(host.to_owned())))
            }
            _ => None,
        }
    }

    fn matches(&self, network: &Network) -> bool {
        match (self, network) {
            (NetworkCondition::None, Network::None) | (NetworkCondition::Full, Network::Full) => true,
            (NetworkCondition::Allow(pattern), Network::Allow(hosts)) => {
                hosts.iter().any(|host| pattern.matches(host))
            }
            _ => false,
        }
    }
}

impl fmt::Display for NetworkCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkCondition::None => f.write_str("none"),
            NetworkCondition::Full => f.write_str("full"),
            NetworkCondition::Allow(Pattern(host)) if host == "*" => f.write_str("allow"),
            NetworkCondition::Allow(pattern) => write!(f, "allow:{pattern}"),
        }
    }
}

/// Text in which a star stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Whether this is such a text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        glob(&self.0, text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parts between the stars occur one after the other; the first one begins the text, the last one ends it.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

impl Conditions {
    /// Whether it takes a scan to know whether they hold for code in this language.
    pub(super) fn looks_at_findings(&self, language: Language) -> bool {
        let of_this_language = self.languages.is_empty() || self.languages.contains(&language.name);
        (self.severity.is_some() || !self.rules.is_empty()) && of_this_language
    }

    /// Why they hold, in words, if they do.
    pub(super) fn matched(&self, asked: &Asked<'_>) -> Option<String> {
        let Asked { request, backend, findings } = asked;
        let (sandbox, execution) = (&request.sandbox, &request.execution);
        let mut why = Why::default();
        why.unless(self.languages.is_empty(), || {
            let language = execution.language.name;
            self.languages.contains(&language).then(|| format!("the language is {language}"))
        })?;
        why.unless(self.backends.is_empty(), || {
            let backend = backend.filter(|backend| self.backends.contains(backend))?;
            Some(format!("the backend is {backend}"))
        })?;
        why.unless(self.networks.is_empty(), || {
            let network = &sandbox.network;
            let matches = self.networks.iter().any(|condition| condition.matches(network));
            matches.then(|| format!("the network is {network}"))
        })?;
        why.unless(self.images.is_empty(), || {
            let image = asked.image()?;
            let matches = self.images.iter().any(|pattern| pattern.matches(image));
            matches.then(|| format!("the image is {image}"))
        })?;
        why.unless(self.workspaces.is_empty(), || {
            let path = sandbox.workspace.as_ref()?.as_path();
            let beneath = self.workspaces.iter().any(|root| plain(path).starts_with(root));
            beneath.then(|| format!("the workspace is {}", path.display()))
        })?;
        self.above.matched(request, &mut why)?;
        why.unless(self.severity.is_none() && self.rules.is_empty(), || self.found(findings))?;
        Some(why.in_words())
    }

    /// The findings that match, in words: the most severe, and how many more there are.
    fn found(&self, findings: &[Finding]) -> Option<String> {
        let matches = |finding: &&Finding| {
            self.severity.is_none_or(|severity| finding.severity >= severity)
                && (self.rules.is_empty() || self.rules.iter().any(|rule| rule.matches(&finding.rule)))
        };
        let matching: Vec<_> = findings.iter().filter(matches).collect();
        // The first of the most severe ones.
        let worst = matching.iter().rev().max_by_key(|finding| finding.severity)?;
        let more = match matching.len() - 1 {
            0 => String::new(),
            1 => ", and one more finding".to_owned(),
            more => format!(", and {more} more findings"),
        };
        Some(format!("{}{more}", described(worst)))
    }
}

/// A finding in one line.
pub(super) fn described(finding: &Finding) -> String {
    let Finding { rule, severity, message, start, .. } = finding;
    format!("{rule} ({severity}) in line {}: {message}", start.line)
}

impl Asked<'_> {
    /// The image that it names, or that it would get.
    fn image(&self) -> Option<&str> {
        let named = self.request.sandbox.image.as_deref();
        let usual = || {
            let takes_one = self.backend.is_some_and(BackendName::takes_image);
            self.request.execution.language.image.filter(|_| takes_one).map(|image| image.reference)
        };
        named.or_else(usual)
    }
}

/// The path without `..`, as far as the text tells.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

impl Above {
    fn matched(&self, request: &RunRequest, why: &mut Why) -> Option<()> {
        let (sandbox, execution) = (&request.sandbox.limits, &request.execution.limits);
        why.above("timeout", self.timeout, Some(execution.timeout), |time| show_duration(*time))?;
        // Without a limit on CPU time there is only the other one.
        let cpu_time = execution.cpu_time.or(Some(Duration::MAX));
        why.above("cpu-time", self.cpu_time, cpu_time, |time| match *time {
            Duration::MAX => "unlimited".to_owned(),
            time => show_duration(time),
        })?;
        why.above("memory", self.memory, Some(sandbox.memory), Bytes::to_string)?;
        why.above("cpus", self.cpus, Some(sandbox.cpus), Cpus::to_string)?;
        why.above("pids", self.pids, Some(sandbox.pids), u32::to_string)?;
        why.above("disk", self.disk, Some(sandbox.disk), Bytes::to_string)?;
        why.above("output", self.output, Some(execution.output), Bytes::to_string)
    }
}

/// What holds, in words.
#[derive(Default)]
struct Why(Vec<String>);

impl Why {
    /// Adds why a condition holds, unless it is not stated. `None` if it does not hold.
    fn unless(&mut self, unstated: bool, holds: impl FnOnce() -> Option<String>) -> Option<()> {
        if !unstated {
            self.0.push(holds()?);
        }
        Some(())
    }

    fn above<T: PartialOrd>(
        &mut self,
        name: &str,
        most: Option<T>,
        asked: Option<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<()> {
        let Some(most) = most else { return Some(()) };
        let asked = asked.filter(|asked| *asked > most)?;
        self.0.push(format!("{name} is {}, above {}", show(&asked), show(&most)));
        Some(())
    }

    fn in_words(&self) -> String {
        if self.0.is_empty() { "it matches everything".to_owned() } else { self.0.join("; ") }
    }
}

/// As it is written in `belljar.toml`.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.severity.map(|severity| format!("severity = \"{severity}\"")));
        parts.extend(listed("rule", &self.rules));
        parts.extend(listed("language", &self.languages));
        parts.extend(listed("backend", &self.backends));
        parts.extend(listed("network", &self.networks));
        parts.extend(listed("image", &self.images));
        let workspaces: Vec<_> = self.workspaces.iter().map(|path| path.display()).collect();
        parts.extend(listed("workspace", &workspaces));
        let Above { timeout, cpu_time, memory, cpus, pids, disk, output } = self.above;
        parts.extend(timeout.map(|time| format!("timeout-above = \"{}\"", show_duration(time))));
        parts.extend(cpu_time.map(|time| format!("cpu-time-above = \"{}\"", show_duration(time))));
        parts.extend(memory.map(|size| format!("memory-above = \"{size}\"")));
        parts.extend(cpus.map(|cpus| format!("cpus-above = {cpus}")));
        parts.extend(pids.map(|pids| format!("pids-above = {pids}")));
        parts.extend(disk.map(|size| format!("disk-above = \"{size}\"")));
        parts.extend(output.map(|size| format!("output-limit-above = \"{size}\"")));
        if parts.is_empty() { f.write_str("{}") } else { write!(f, "{{ {} }}", parts.join(", ")) }
    }
}

fn listed(name: &str, items: &[impl fmt::Display]) -> Option<String> {
    let quoted: Vec<_> = items.iter().map(|item| quoted(&item.to_string())).collect();
    match quoted.as_slice() {
        [] => None,
        [one] => Some(format!("{name} = {one}")),
        several => Some(format!("{name} = [{}]", several.join(", "))),
    }
}

/// As a string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
