//! What can run here, by the names that Piston has for it.

use axum::extract::State;
use axum::{Extension, Json};
use belljar_core::language::Language;
use belljar_core::request::Network;
use belljar_engine::Engine;
use belljar_wire::{Code, Problem};
use serde::Serialize;

use super::Refusal;
use super::version::Version;
use crate::caller::Caller;
use crate::defaults::Defaults;
use crate::http::App;
use crate::runs::Runs;

/// Where Piston's name for a language is another than ours.
const NAMES: &[(&str, &str)] = &[("cpp", "c++"), ("r", "rscript"), ("sh", "dash")];

/// A language that can run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runtime {
    pub(super) language: Language,
    pub(super) version: Version,
}

/// A runtime as Piston tells it.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    language: &'static str,
    version: String,
    aliases: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
}

/// `GET /api/v2/runtimes`.
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<Told>>, Refusal> {
    let known = known(&app, &caller).await?;
    Ok(Json(
        known.into_iter().filter_map(|(language, version)| Some(Told::new(language, version?))).collect(),
    ))
}

/// Every language that the caller may use, with its version if it is installed.
pub(super) async fn known(app: &App, caller: &Caller) -> Result<Vec<(Language, Option<Version>)>, Refusal> {
    let languages = app.languages.get(&app.runs, caller).await?.languages;
    let permitted = |language: &Language| caller.allowance().languages.contains(&language.name);
    let known = Language::all().filter(permitted).map(|language| {
        let status = languages.iter().find(|status| status.name == language.name);
        (language, status.and_then(|status| status.runtime.as_deref()).map(Version::of_label))
    });
    Ok(known.collect())
}

/// The runtime that a client means by a language and a range of versions, if it is installed.
pub(super) async fn find(
    runs: &Runs,
    caller: &Caller,
    name: &str,
    range: &str,
) -> Result<Option<Runtime>, Problem> {
    let Some(language) = by_name(name) else { return Ok(None) };
    let (runs, caller) = (runs.clone(), caller.clone());
    // It may start an interpreter and wait for its answer.
    let asking = tokio::task::spawn_blocking(move || label(runs.engine(), caller.defaults(), language));
    let version = asking.await.unwrap_or_else(|_| Err(lost()))?.map(|label| Version::of_label(&label));
    Ok(version.filter(|version| version.satisfies(range)).map(|version| Runtime { language, version }))
}

/// Piston's name for a language.
pub(super) fn name_of(language: Language) -> &'static str {
    NAMES.iter().find(|(ours, _)| *ours == language.name).map_or(language.name, |(_, theirs)| theirs)
}

fn by_name(name: &str) -> Option<Language> {
    let theirs = NAMES.iter().find(|(_, theirs)| *theirs == name);
    Language::by_name(theirs.map_or(name, |(ours, _)| ours))
}

impl Told {
    fn new(language: Language, version: Version) -> Told {
        let name = name_of(language);
        let all = std::iter::once(&language.name).chain(language.aliases).copied();
        let aliases = all.filter(|alias| *alias != name).collect();
        let runtime = (language.name == "javascript").then_some("node");
        Told { language: name, version: version.to_string(), aliases, runtime }
    }
}

/// What would run a language, `CPython 3.11.7`, if anything would.
fn label(engine: &Engine, defaults: &Defaults, language: Language) -> Result<Option<String>, Problem> {
    let placement = engine.place(defaults.backend(), &Network::None, &defaults.waived())?;
    Ok(placement.backend.runtime(language).ok().map(|runtime| runtime.label))
}

fn lost() -> Problem {
    let message = "the question what can run here was not answered";
    Problem::new(Code::Internal, message, "this is a bug in Belljar; see the server's log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_is_found_by_pistons_name_by_ours_and_by_each_alias() {
        for language in Language::all() {
            let told = Told::new(language, Version::default());
            assert!(!told.aliases.contains(&told.language));
            for name in told.aliases.into_iter().chain([told.language, language.name]) {
                assert_eq!(by_name(name), Some(language), "{name}");
            }
        }
        assert_eq!(by_name("c++").unwrap().name, "cpp");
        assert_eq!(by_name("html"), None);
    }
}
