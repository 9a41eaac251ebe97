//! `belljar languages`: what can run here, and how to get what cannot.

use std::process::ExitCode;

use belljar_core::language::Language;
use belljar_core::request::BackendChoice;
use belljar_wire::{LanguageStatus, Languages, Problem, backend_of, to_json};

use crate::args::{Choices, HostArgs};
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::table::aligned;
use crate::{compose, doctor};

pub(crate) fn run(args: &HostArgs, environment: Environment<'_>) -> ExitCode {
    match languages(args, environment) {
        Ok(languages) => {
            say(&if args.json { to_json(&languages) } else { table(&languages) });
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
    let row = |language: &LanguageStatus| {
        let runtime = language.runtime.clone().unwrap_or_else(|| "missing".to_owned());
        let place = language.location.as_ref().or(language.hint.as_ref()).cloned().unwrap_or_default();
        [language.name.to_owned(), runtime, place]
    };
    aligned(["LANGUAGE", "RUNTIME", "WHERE, OR HOW TO GET IT"], languages.languages.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::backend::{BackendError, RuntimeInfo};

    #[test]
    fn the_table_says_where_a_runtime_is_or_how_to_get_it() {
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
        LANGUAGE  RUNTIME         WHERE, OR HOW TO GET IT
        python    CPython 3.11.7  /usr/bin/python3
        lua       missing         apt install lua5.4
        ");
    }
}
