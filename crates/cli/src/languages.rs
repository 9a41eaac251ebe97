//! `belljar languages`: the languages that can run here, and how to install the others.

use std::process::ExitCode;

use belljar_core::language::Language;
use belljar_core::request::BackendChoice;
use belljar_wire::{LanguageStatus, Languages, Problem, backend_of, to_json};

use crate::args::{Choices, HostArgs, Verbosity};
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::table::aligned;
use crate::{compose, doctor};

pub(crate) fn run(args: &HostArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    match languages(args, environment) {
        Ok(languages) => {
            say(&match (args.json, verbosity) {
                (true, _) => to_json(&languages),
                (false, Verbosity::Verbose) => wide_table(&languages),
                (false, Verbosity::Normal | Verbosity::Quiet) => table(&languages),
            });
            ExitCode::SUCCESS
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn languages(args: &HostArgs, environment: Environment<'_>) -> Result<Languages, Problem> {
    let settings = Settings::gather(&args.choices(), args.config.as_deref(), environment)?;
    let choice = doctor::backend_choice(&settings)?;
    let engine = compose::engine(settings.host, None);
    Ok(Languages::of(&engine, choice)?)
}

/// Where the runtime of one language is.
pub(crate) fn find(name: &str, environment: Environment<'_>) -> Result<String, Problem> {
    let settings = Settings::gather(&Choices::default(), None, environment)?;
    let engine = compose::engine(settings.host, None);
    let backend = backend_of(&engine, BackendChoice::Auto)?;
    Ok(backend.runtime(Language::parse(name)?)?.location)
}

fn table(languages: &Languages) -> String {
    aligned(["LANGUAGE", "RUNTIME", "PATH OR HOW TO INSTALL"], languages.languages.iter().map(cells))
}

/// With the names and file extensions that lead to a language.
fn wide_table(languages: &Languages) -> String {
    let row = |status: &LanguageStatus| {
        let [name, runtime, place] = cells(status);
        let language = Language::by_name(&name);
        let joined = |words: &[&str]| if words.is_empty() { "-".to_owned() } else { words.join(", ") };
        let aliases = language.map_or_else(String::new, |language| joined(language.aliases));
        let endings = language.map_or_else(String::new, |language| joined(language.endings));
        [name, aliases, endings, runtime, place]
    };
    let heading = ["LANGUAGE", "ALIASES", "EXTENSIONS", "RUNTIME", "PATH OR HOW TO INSTALL"];
    aligned(heading, languages.languages.iter().map(row))
}

fn cells(language: &LanguageStatus) -> [String; 3] {
    let runtime = language.runtime.clone().unwrap_or_else(|| "missing".to_owned());
    let place = language.location.as_ref().or(language.hint.as_ref()).cloned().unwrap_or_default();
    [language.name.to_string(), runtime, place]
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::backend::{BackendError, RuntimeInfo};

    #[test]
    fn the_table_says_where_a_runtime_is_or_how_to_install_it() {
        let status = |name: &str, runtime: Option<(&str, &str)>| {
            let language = Language::by_name(name).unwrap();
            let found = runtime
                .map(|(label, location)| RuntimeInfo { label: label.into(), location: location.into() });
            let hint = format!("apt install {}", language.package);
            LanguageStatus::new(language, found.ok_or(BackendError::RuntimeMissing { language, hint }))
        };
        let python = status("python", Some(("CPython 3.11.7", "/usr/bin/python3")));
        let languages = Languages { languages: vec![python, status("lua", None)] };
        insta::assert_snapshot!(table(&languages), @"
        LANGUAGE  RUNTIME         PATH OR HOW TO INSTALL
        python    CPython 3.11.7  /usr/bin/python3
        lua       missing         apt install lua5.4
        ");
        insta::assert_snapshot!(wide_table(&languages), @"
        LANGUAGE  ALIASES               EXTENSIONS  RUNTIME         PATH OR HOW TO INSTALL
        python    py, python3, cpython  py, pyw     CPython 3.11.7  /usr/bin/python3
        lua       -                     lua         missing         apt install lua5.4
        ");
    }
}
