//! Ready policies.

use crate::finding::Severity;
use crate::policy::{Action, AllowedImports, Conditions, Policy, Rule, Written};

/// A policy that Belljar brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Everything runs.
    Open,
    /// What a scan finds critical is denied; what is high needs an approval.
    Standard,
    /// What is high is denied, what is medium needs an approval, and only some modules may be imported.
    Strict,
}

/// Modules of Python that only compute.
const PYTHON: &[&str] = &[
    "abc",
    "argparse",
    "array",
    "ast",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "colorsys",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "io",
    "itertools",
    "json",
    "keyword",
    "locale",
    "math",
    "matplotlib",
    "numbers",
    "numpy",
    "operator",
    "pandas",
    "pprint",
    "random",
    "re",
    "scipy",
    "secrets",
    "seaborn",
    "sklearn",
    "statistics",
    "string",
    "struct",
    "sympy",
    "sys",
    "textwrap",
    "time",
    "timeit",
    "token",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "uuid",
    "warnings",
    "zlib",
    "zoneinfo",
    "__future__",
];
/// Modules of Node that only compute.
const JAVASCRIPT: &[&str] = &[
    "assert",
    "buffer",
    "crypto",
    "events",
    "path",
    "perf_hooks",
    "querystring",
    "string_decoder",
    "timers",
    "url",
    "util",
    "node:assert",
    "node:buffer",
    "node:crypto",
    "node:events",
    "node:path",
    "node:perf_hooks",
    "node:querystring",
    "node:string_decoder",
    "node:timers",
    "node:url",
    "node:util",
];

impl Preset {
    /// All of them, the most permissive first.
    pub const ALL: [Preset; 3] = [Preset::Open, Preset::Standard, Preset::Strict];

    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Open => "open",
            Preset::Standard => "standard",
            Preset::Strict => "strict",
        }
    }

    /// Finds a preset by its name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The policy.
    #[must_use]
    pub fn policy(self) -> Policy {
        let origin = Written::in_words(&format!("the preset {}", self.name()));
        let rule = |severity: Severity, then: Action| Rule {
            when: Conditions { severity: Some(severity), ..Conditions::default() },
            then,
            origin: origin.clone(),
        };
        let list = |language: &'static str, modules: &[&str]| AllowedImports {
            language,
            modules: modules.iter().map(|name| (*name).to_owned()).collect(),
            origin: origin.clone(),
        };
        let (rules, allowed_imports) = match self {
            Preset::Open => (Vec::new(), Vec::new()),
            Preset::Standard => (
                vec![rule(Severity::Critical, Action::Deny), rule(Severity::High, Action::Approve)],
                Vec::new(),
            ),
            Preset::Strict => (
                vec![rule(Severity::High, Action::Deny), rule(Severity::Medium, Action::Approve)],
                vec![list("python", PYTHON), list("javascript", JAVASCRIPT), list("typescript", JAVASCRIPT)],
            ),
        };
        Policy { rules, default: Action::Allow, default_origin: origin.clone(), allowed_imports }
    }
}
