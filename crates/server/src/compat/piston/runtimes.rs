//! What can run here, by the names that Piston has for it.

use axum::extract::State;
use axum::{Extension, Json};
use belljar_core::language::Language;
use belljar_core::request::Network;
use belljar_engine::Engine;
use belljar_wire::{Code, Problem};
use serde::Serialize;

use super::PistonRefusal;
use super::version::Version;
use crate::caller::Caller;
use crate::defaults::Defaults;
use crate::http::App;
use crate::runs::Runs;

/// Where Piston's name for a language is another than ours.
const NAMES: &[(&str, &str)] = &[("cpp", "c++"), ("r", "rscript"), ("sh", "dash")];

/// Piston's aliases that are none of ours, and the language that is meant. Its `sh` is bash.
const ALIASES: &[(&str, &str)] = &[
    ("sh", "bash"),
    ("node-js", "javascript"),
    ("node-javascript", "javascript"),
    ("node-ts", "typescript"),
    ("tsc", "typescript"),
    ("ts5", "typescript"),
    ("typescript5", "typescript"),
];

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
    aliases: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
}

/// `GET /api/v2/runtimes`.
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<Told>>, PistonRefusal> {
    let known = known(&app, &caller).await?;
    Ok(Json(
        known.into_iter().filter_map(|(language, version)| Some(Told::new(language, version?))).collect(),
    ))
}

/// Every language that the caller may use, with its version if it is installed.
pub(super) async fn known(
    app: &App,
    caller: &Caller,
) -> Result<Vec<(Language, Option<Version>)>, PistonRefusal> {
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
    let Some((language, named)) = by_name(name) else { return Ok(None) };
    let named = named.to_owned();
    let (runs, caller) = (runs.clone(), caller.clone());
    // It may start an interpreter and wait for its answer.
    let asking = tokio::task::spawn_blocking(move || label(runs.engine(), caller.defaults(), language));
    let version = asking.await.unwrap_or_else(|_| Err(lost()))?.map(|label| Version::of_label(&label));
    let meant = |version: &Version| version.satisfies(range) && version.satisfies(&named);
    Ok(version.filter(meant).map(|version| Runtime { language, version }))
}

/// Piston's name for a language.
pub(super) fn name_of(language: Language) -> &'static str {
    NAMES.iter().find(|(ours, _)| *ours == language.name).map_or(language.name, |(_, theirs)| theirs)
}

/// The language that a client means, and the versions of it: `python3.11` is Python in any version 3.11.
fn by_name(name: &str) -> Option<(Language, &str)> {
    let any_version = |language: Language| (language, "*");
    plain_name(name).map(any_version).or_else(|| {
        let (name, version) = name.split_at(name.find(|c: char| c.is_ascii_digit())?);
        Some((plain_name(name)?, version))
    })
}

fn plain_name(name: &str) -> Option<Language> {
    let named = NAMES.iter().find(|(_, theirs)| *theirs == name).map(|(ours, _)| *ours);
    let alias = || ALIASES.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
    Language::by_name(named.or_else(alias).unwrap_or(name))
}

impl Told {
    fn new(language: Language, version: Version) -> Told {
        let name = name_of(language);
        let ours = std::iter::once(&language.name).chain(language.aliases).copied();
        let theirs = ALIASES.iter().filter(|(_, ours)| *ours == language.name).map(|(theirs, _)| *theirs);
        let means_it = |alias: &&str| *alias != name && plain_name(alias) == Some(language);
        let plain = ours.chain(theirs).filter(means_it).map(str::to_owned);
        let aliases = plain.chain(versioned_aliases(language, version)).collect();
        let runtime = (language.name == "javascript").then_some("node");
        Told { language: name, version: version.to_string(), aliases, runtime }
    }
}

/// Piston's aliases that say which version it is.
fn versioned_aliases(language: Language, version: Version) -> Vec<String> {
    let (major, minor) = version.major_and_minor();
    match language.name {
        "python" => vec![format!("py{major}"), format!("python{major}.{minor}")],
        "ruby" => vec![format!("ruby{major}")],
        "php" => vec![format!("php{major}")],
        _ => Vec::new(),
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
            assert!(!told.aliases.iter().any(|alias| *alias == told.language));
            for name in told.aliases.iter().map(String::as_str).chain([told.language]) {
                assert_eq!(by_name(name).map(|(meant, _)| meant), Some(language), "{name}");
            }
        }
        assert_eq!(by_name("html"), None);
    }

    #[test]
    fn pistons_own_aliases_are_known() {
        for (alias, meant, version) in [
            ("c++", "cpp", "*"),
            ("g++", "cpp", "*"),
            ("sh", "bash", "*"),
            ("dash", "sh", "*"),
            ("node-js", "javascript", "*"),
            ("node-javascript", "javascript", "*"),
            ("node-ts", "typescript", "*"),
            ("tsc", "typescript", "*"),
            ("ts5", "typescript", "*"),
            ("py3", "python", "3"),
            ("python3", "python", "*"),
            ("python3.11", "python", "3.11"),
            ("python2", "python", "2"),
            ("ruby3", "ruby", "3"),
            ("php8", "php", "8"),
            ("rscript", "r", "*"),
        ] {
            let found = by_name(alias).map(|(language, version)| (language.name, version));
            assert_eq!(found, Some((meant, version)), "{alias}");
        }
        let python = Told::new(Language::by_name("python").unwrap(), Version::of_label("CPython 3.11.7"));
        for alias in ["py", "py3", "python3", "python3.11"] {
            assert!(python.aliases.iter().any(|known| known == alias), "{alias}: {:?}", python.aliases);
        }
        assert!(
            !Told::new(Language::by_name("sh").unwrap(), Version::default())
                .aliases
                .contains(&"sh".to_owned())
        );
    }
}
