//! What may run: rules that the operator wrote, of which the first that matches a request decides.
//!
//! A policy looks at the request, at the backend that would run it and at what a scan found in the code. It says what is
//! to be done; the engine does it, before there is an `Admitted`.

mod condition;
mod preset;

use std::fmt;
use std::sync::Arc;

use crate::finding::Finding;
use crate::language::Language;
use crate::request::{BackendName, RunRequest};
use crate::{Field, Invalid};

pub use condition::{Above, Conditions, NetworkCondition, Pattern};
pub use preset::Preset;

/// What is done with a request, in ascending order of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It runs.
    Allow,
    /// It runs, and the result says why that was worth a thought.
    Warn,
    /// It runs if a person approves it.
    Approve,
    /// It does not run.
    Deny,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 4] = [Action::Allow, Action::Warn, Action::Approve, Action::Deny];

    /// The contract's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Warn => "warn",
            Action::Approve => "approve",
            Action::Deny => "deny",
        }
    }

    /// Finds an action by its name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a part of a policy is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The file, or what else it comes from, such as `the preset standard`.
    pub place: Arc<str>,
    /// The line, counted from one, if it is a file.
    pub line: Option<usize>,
}

impl Written {
    /// In no file.
    #[must_use]
    pub fn in_words(place: &str) -> Written {
        Written { place: place.into(), line: None }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.place),
            None => f.write_str(&self.place),
        }
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What must all be so.
    pub when: Conditions,
    /// What is done then.
    pub then: Action,
    /// Where it is written.
    pub origin: Written,
}

/// The only modules that code in a language may import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedImports {
    /// The language's name.
    pub language: &'static str,
    /// The modules. Each stands for everything in it, too.
    pub modules: Vec<String>,
    /// Where it is written.
    pub origin: Written,
}

/// What may run.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The rules, in the order in which they are looked at.
    pub rules: Vec<Rule>,
    /// What is done with a request that no rule matches.
    pub default: Action,
    /// Where that is written.
    pub default_origin: Written,
    /// The modules that may be imported, for languages that have such a list.
    pub allowed_imports: Vec<AllowedImports>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::open()
    }
}

/// Languages in which a scan can tell what is imported.
pub const LANGUAGES_WITH_IMPORTS: [&str; 3] = ["python", "javascript", "typescript"];
/// The rules of the scan for imports that are not on the list.
const NOT_ALLOWED: &str = "*.imports.not-allowed";

impl Policy {
    /// Everything runs. This is the preset `open`.
    #[must_use]
    pub fn open() -> Policy {
        Preset::Open.policy()
    }

    /// Whether it allows everything, so that nothing has to be looked at.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.rules.is_empty() && self.default == Action::Allow && self.allowed_imports.is_empty()
    }

    /// Whether code in this language must be scanned before it can be decided upon.
    #[must_use]
    pub fn needs_findings(&self, language: Language) -> bool {
        self.rules.iter().any(|rule| rule.when.looks_at_findings(language))
            // Code in one language can start a program in another.
            || !self.allowed_imports.is_empty()
    }

    /// The modules that code in this language may import, if there is a list: those of the policy, of the request, or those
    /// that are on both lists. A request can only take away.
    #[must_use]
    pub fn imports(&self, language: Language, request: Option<&[String]>) -> Option<Vec<String>> {
        let own = self.list_for(language.name);
        match (own, request) {
            (None, None) => None,
            (Some(own), None) => Some(own.modules.clone()),
            (None, Some(asked)) => Some(asked.to_vec()),
            (Some(own), Some(asked)) => Some(common(&own.modules, asked)),
        }
    }

    /// The list of a language. TypeScript and JavaScript import each other, so the list of one is for both, unless each has
    /// its own.
    fn list_for(&self, language: &str) -> Option<&AllowedImports> {
        let of = |name: &str| self.allowed_imports.iter().find(|list| list.language == name);
        of(language).or_else(|| match language {
            "javascript" => of("typescript"),
            "typescript" => of("javascript"),
            _ => None,
        })
    }

    /// What is done with a request that would run on this backend.
    #[must_use]
    pub fn decide(&self, request: &RunRequest, backend: Option<BackendName>, findings: &[Finding]) -> Ruling {
        if let Some(ruling) = narrowed(request, findings) {
            return ruling;
        }
        let asked = condition::Asked { request, backend, findings };
        for rule in &self.rules {
            if let Some(reason) = rule.when.matched(&asked) {
                return Ruling::new(rule.then, rule.when.to_string(), reason, rule.origin.clone());
            }
        }
        if let Some(ruling) = self.on_imports(findings) {
            return ruling;
        }
        let reason = "no rule of the policy matches it".to_owned();
        Ruling::new(self.default, "default".to_owned(), reason, self.default_origin.clone())
    }

    /// A list of imports is a rule after all others: what is not on it is denied.
    fn on_imports(&self, findings: &[Finding]) -> Option<Ruling> {
        let (found, list) = not_allowed(findings)
            .find_map(|found| Some((found, self.list_for(found.rule.split('.').next()?)?)))?;
        let rule = format!("allowed-imports.{}", list.language);
        Some(Ruling::new(Action::Deny, rule, condition::described(found), list.origin.clone()))
    }
}

/// What a request does not want imported is not imported, whatever the policy says.
fn narrowed(request: &RunRequest, findings: &[Finding]) -> Option<Ruling> {
    request.execution.allowed_imports.as_ref()?;
    let reason = condition::described(not_allowed(findings).next()?);
    let ruling =
        Ruling::new(Action::Deny, "allowed_imports".to_owned(), reason, Written::in_words("the request"));
    Some(Ruling { decision: Decision { by: "request".to_owned(), ..ruling.decision }, ..ruling })
}

/// The most modules on a list, and the longest name of one.
const MOST_IMPORTS: usize = 1000;
const LONGEST_IMPORT: usize = 256;

/// The list of imports of a request.
///
/// # Errors
/// Names that are none, too many of them, or a language in which nobody checks what is imported.
pub fn parse_allowed_imports(language: Language, modules: Vec<String>) -> Result<Vec<String>, Invalid> {
    let field = Field::AllowedImports;
    if !LANGUAGES_WITH_IMPORTS.contains(&language.name) {
        let message = format!("what {language} imports cannot be checked");
        let hint = format!("leave it out; it is for {}", LANGUAGES_WITH_IMPORTS.join(", "));
        return Err(Invalid::new(field, message, hint));
    }
    let is_module =
        |name: &String| !name.is_empty() && name.len() <= LONGEST_IMPORT && !name.contains(char::is_control);
    if modules.len() > MOST_IMPORTS || !modules.iter().all(is_module) {
        let message = format!(
            "a list of allowed imports has at most {MOST_IMPORTS} names of at most {LONGEST_IMPORT} bytes each"
        );
        return Err(Invalid::new(field, message, "name the modules, such as json or os.path"));
    }
    Ok(modules)
}

/// Findings about imports that are on no list.
pub fn not_allowed(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| condition::glob(NOT_ALLOWED, &finding.rule))
}

/// The modules that are on both lists, themselves or as a part of one that is.
fn common(own: &[String], asked: &[String]) -> Vec<String> {
    let within = |module: &str, outer: &str| {
        module == outer || module.strip_prefix(outer).is_some_and(|rest| rest.starts_with(['.', '/', ':']))
    };
    let narrower = |left: &String, right: &String| {
        if within(left, right) { Some(left.clone()) } else { within(right, left).then(|| right.clone()) }
    };
    let mut both: Vec<String> =
        own.iter().flat_map(|one| asked.iter().filter_map(move |other| narrower(one, other))).collect();
    both.sort();
    both.dedup();
    both
}

/// What a policy says about a request, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// What callers are told about it.
    pub decision: Decision,
    /// Where the rule is written: for the operator, not for callers.
    pub origin: Written,
}

impl Ruling {
    fn new(action: Action, rule: String, reason: String, origin: Written) -> Ruling {
        let decision = Decision { action, rule, reason, by: POLICY.to_owned(), approval_id: None };
        Ruling { decision, origin }
    }
}

/// Who decides if no person does.
const POLICY: &str = "policy";

/// The contract's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What was done with the request.
    pub action: Action,
    /// The rule, as it is written in the policy.
    pub rule: String,
    /// What made the rule match; or the reason of the person who decided.
    pub reason: String,
    /// `policy`, or the name of the person who decided.
    pub by: String,
    /// The approval, if a person was asked.
    pub approval_id: Option<String>,
}

impl Decision {
    /// A denial that no rule of the policy made.
    #[must_use]
    pub fn denial(rule: &str, reason: String, by: &str) -> Decision {
        Decision { action: Action::Deny, rule: rule.to_owned(), reason, by: by.to_owned(), approval_id: None }
    }
}

#[cfg(test)]
mod tests;
