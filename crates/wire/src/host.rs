//! What a host can do: the answers of `languages` and `doctor`, and of their HTTP counterparts.

use std::sync::Arc;

use belljar_core::backend::{Backend, BackendError, RuntimeInfo};
use belljar_core::guarantee::{Guarantee, Standing, resolve};
use belljar_core::language::Language;
use belljar_core::request::{BackendChoice, BackendName, Network};
use belljar_engine::{Engine, RunError};
use serde::{Deserialize, Serialize};

use crate::{Problem, ToSchema, Word};

/// The languages that the caller may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LanguageList)]
pub struct Languages {
    /// The languages, whether or not they can run on this server.
    pub languages: Vec<LanguageStatus>,
}

impl Languages {
    /// Asks the backend that a run would go to; one that cannot keep every guarantee still knows its runtimes. All
    /// languages are asked for at once: each answer is the start of an interpreter, and most of that is waiting.
    ///
    /// # Errors
    /// That there is no such backend.
    pub fn of(engine: &Engine, choice: BackendChoice) -> Result<Languages, RunError> {
        let backend = backend_of(engine, choice)?;
        let backend = backend.as_ref();
        let ask = |language: Language| move || LanguageStatus::new(language, backend.runtime(language));
        let languages = std::thread::scope(|scope| {
            let asked: Vec<_> =
                Language::all().map(|language| (language, scope.spawn(ask(language)))).collect();
            asked
                .into_iter()
                .map(|(language, answer)| answer.join().unwrap_or_else(|_| ask(language)()))
                .collect()
        });
        Ok(Languages { languages })
    }
}

/// A language, and what runs it on this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Language)]
pub struct LanguageStatus {
    /// The name of the language.
    #[schema(value_type = crate::schema::LanguageName)]
    pub name: Word,
    /// Other names that a request may use for it.
    #[schema(value_type = Vec<crate::schema::LanguageAlias>)]
    pub aliases: Vec<Word>,
    /// Whether it can run on this server.
    pub available: bool,
    /// The name and version of what runs it, or `null` if it is not installed.
    #[schema(required = true)]
    pub runtime: Option<String>,
    /// Where that is installed, or `null` if it is not.
    #[schema(required = true)]
    pub location: Option<String>,
    /// Its default image, for backends that use images.
    #[schema(value_type = Option<String>, required = true)]
    pub image: Option<Word>,
    /// How to install it, or `null` if it can run.
    #[schema(required = true)]
    pub hint: Option<String>,
}

impl LanguageStatus {
    /// What a backend says of a language.
    #[must_use]
    pub fn new(language: Language, runtime: Result<RuntimeInfo, BackendError>) -> LanguageStatus {
        let (runtime, hint) = match runtime {
            Ok(runtime) => (Some(runtime), None),
            Err(error) => (None, Some(Problem::from(error).error.hint)),
        };
        let (label, location) = runtime.map(|found| (found.label, found.location)).unzip();
        LanguageStatus {
            name: language.name.into(),
            aliases: language.aliases.iter().map(|alias| (*alias).into()).collect(),
            available: label.is_some(),
            runtime: label,
            location,
            image: language.image.map(|image| image.reference.into()),
            hint,
        }
    }
}

/// The backends of this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = BackendList)]
pub struct Backends {
    /// The backend of a run that does not name one, or `null` if none can take it.
    #[schema(value_type = Option<crate::schema::BackendName>, required = true)]
    pub default: Option<Word>,
    /// Why no backend can take a run that does not name one, or `null` if one can.
    #[schema(required = true)]
    pub problem: Option<Problem>,
    /// The backends, strongest isolation first.
    pub backends: Vec<BackendStatus>,
}

impl Backends {
    /// Every backend of an engine, and where a run that chooses and waives like this would go.
    #[must_use]
    pub fn of(engine: &Engine, choice: BackendChoice, waived: &[Guarantee]) -> Backends {
        let (default, problem) = match destination(engine, choice, waived) {
            Ok(name) => (Some(name.name().into()), None),
            Err(problem) => (None, Some(problem)),
        };
        let backends = engine.backends().map(|backend| BackendStatus::new(backend, waived)).collect();
        Backends { default, problem, backends }
    }
}

/// A backend, and what it can guarantee on this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Backend)]
pub struct BackendStatus {
    /// The name of the backend.
    #[schema(value_type = crate::schema::BackendName)]
    pub name: Word,
    /// Whether it can run code on this server: it is available, and keeps every guarantee that is not waived.
    pub ready: bool,
    /// Whether it could run code that needs no guarantee which it cannot keep.
    #[serde(skip)]
    #[schema(ignore)]
    pub available: bool,
    /// Whether a request has to name it: `auto` never picks it.
    pub only_by_name: bool,
    /// Why it is not ready, or `null` if it is.
    #[schema(required = true)]
    pub reason: Option<String>,
    /// How to make it ready, or `null` if it is.
    #[schema(required = true)]
    pub hint: Option<String>,
    /// What it can guarantee, and what it cannot.
    pub guarantees: Vec<GuaranteeStatus>,
}

/// A guarantee of a backend: how it is kept, or why it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Guarantee)]
pub struct GuaranteeStatus {
    /// The name of the guarantee.
    #[schema(value_type = crate::schema::GuaranteeName)]
    pub name: Word,
    /// Whether the backend keeps it on this server.
    pub kept: bool,
    /// How it is kept. Only if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub how: Option<String>,
    /// Why it is not kept. Only if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub why: Option<String>,
    /// What would help. Only if it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub fix: Option<String>,
}

impl BackendStatus {
    /// What a backend says of itself, for runs that do without these guarantees.
    #[must_use]
    pub fn new(backend: &dyn Backend, waived: &[Guarantee]) -> BackendStatus {
        let unavailable = backend.ready().err().map(|error| Problem::from(error).error);
        let available = unavailable.is_none();
        let problem = unavailable.or_else(|| unmet(backend, waived).map(|problem| problem.error));
        let (reason, hint) = problem.map(|fault| (fault.message, fault.hint)).unzip();
        let guarantees = backend.offer().iter().map(|(guarantee, standing)| {
            let (how, why, fix) = match standing.clone() {
                Standing::Kept { how } => (Some(how), None, None),
                Standing::Unmet { why, fix } => (None, Some(why), Some(fix)),
            };
            GuaranteeStatus { name: guarantee.name().into(), kept: how.is_some(), how, why, fix }
        });
        BackendStatus {
            name: backend.name().name().into(),
            ready: reason.is_none(),
            available,
            only_by_name: !backend.name().is_automatic(),
            reason,
            hint,
            guarantees: guarantees.collect(),
        }
    }
}

/// Why a backend that is available refuses runs: it cannot keep a guarantee. One that has to be named may lack any.
fn unmet(backend: &dyn Backend, waived: &[Guarantee]) -> Option<Problem> {
    if backend.name().is_only_by_name() {
        return None;
    }
    let unmet = resolve(backend.offer(), waived).err()?;
    Some(RunError::Unmet { backend: backend.name(), unmet }.into())
}

/// Where a run that chooses and waives like this would go. No other backend is asked than those that stand before it.
///
/// # Errors
/// What keeps it from being taken.
pub fn destination(
    engine: &Engine,
    choice: BackendChoice,
    waived: &[Guarantee],
) -> Result<BackendName, Problem> {
    Ok(engine.place(choice, &Network::None, waived)?.backend.name())
}

/// The backend that a run would go to, whatever it can keep.
///
/// # Errors
/// That there is none, even among those that cannot keep every guarantee.
pub fn backend_of(engine: &Engine, choice: BackendChoice) -> Result<Arc<dyn Backend>, RunError> {
    engine
        .place(choice, &Network::None, &[])
        .map(|placement| placement.backend)
        .or_else(|refusal| engine.backend_named(choice).ok_or(refusal))
}

/// What a run would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Line by line, for a person.
    pub plan: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_has_a_runtime_or_a_way_to_get_one() {
        let python = Language::by_name("python").unwrap();
        let found = RuntimeInfo { label: "CPython 3.11.7".into(), location: "/usr/bin/python3".into() };
        let here = LanguageStatus::new(python, Ok(found));
        assert!(here.available && here.hint.is_none());
        let hint = "apt install python3".to_owned();
        let missing =
            LanguageStatus::new(python, Err(BackendError::RuntimeMissing { language: python, hint }));
        insta::assert_snapshot!(crate::to_json(&Languages { languages: vec![here, missing] }), @r#"
        {
          "languages": [
            {
              "name": "python",
              "aliases": [
                "py",
                "python3",
                "cpython"
              ],
              "available": true,
              "runtime": "CPython 3.11.7",
              "location": "/usr/bin/python3",
              "image": "python:3.11-slim",
              "hint": null
            },
            {
              "name": "python",
              "aliases": [
                "py",
                "python3",
                "cpython"
              ],
              "available": false,
              "runtime": null,
              "location": null,
              "image": "python:3.11-slim",
              "hint": "apt install python3"
            }
          ]
        }
        "#);
    }

    #[test]
    fn a_backend_lists_what_it_keeps_and_how_or_why_not() {
        let kept = GuaranteeStatus {
            name: "filesystem".into(),
            kept: true,
            how: Some("pivot_root".into()),
            why: None,
            fix: None,
        };
        let unmet = GuaranteeStatus {
            name: "memory".into(),
            kept: false,
            how: None,
            why: Some("no cgroup".into()),
            fix: Some("delegate one".into()),
        };
        let native = BackendStatus {
            name: BackendName::Native.name().into(),
            ready: true,
            available: true,
            only_by_name: false,
            reason: None,
            hint: None,
            guarantees: vec![kept, unmet],
        };
        let backends = Backends { default: Some("native".into()), problem: None, backends: vec![native] };
        insta::assert_snapshot!(crate::to_json(&backends), @r#"
        {
          "default": "native",
          "problem": null,
          "backends": [
            {
              "name": "native",
              "ready": true,
              "only_by_name": false,
              "reason": null,
              "hint": null,
              "guarantees": [
                {
                  "name": "filesystem",
                  "kept": true,
                  "how": "pivot_root"
                },
                {
                  "name": "memory",
                  "kept": false,
                  "why": "no cgroup",
                  "fix": "delegate one"
                }
              ]
            }
          ]
        }
        "#);
    }
}
