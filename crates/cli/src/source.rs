//! Finds out which code to run, where it is, and in which language.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_core::language::Language;
use belljar_core::request::MAX_CODE;
use belljar_core::{Field, Invalid};
use belljar_wire::{Code, LocalCode, LocalFile, Problem};

mod workspace;

/// What the words of the command line mean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meant {
    language: Option<Language>,
    pub(crate) place: Place,
}

/// Where the code is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    CommandLine(String),
    Stdin,
    File(PathBuf),
}

/// Decides what the words mean: the first is a language if it names one, else a file.
pub(crate) fn meant(
    words: &[OsString],
    language: Option<&str>,
    code: Option<&str>,
    stdin_is_a_terminal: bool,
) -> Result<Meant, Problem> {
    let flagged = language.map(Language::parse).transpose()?;
    let (spoken, file) = match words {
        [] => (None, None),
        [only] => match (by_word(only), code) {
            (Some(language), _) => (Some(language), None),
            // With -c, a single word can only be meant as a language.
            (None, Some(_)) if flagged.is_none() => return Err(unknown_language(only).into()),
            (None, _) => (None, Some(only)),
        },
        [first, second, ..] => {
            let language = by_word(first).ok_or_else(|| unknown_language(first))?;
            (Some(language), Some(second))
        }
    };
    if let (Some(flagged), Some(spoken)) = (flagged, spoken) {
        let message = format!("the language is given twice: --language {flagged} and {spoken}");
        let hint = format!("leave one out; write ./{spoken} for a file of that name");
        return Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Language));
    }
    let place = match (code, file) {
        (Some(_), Some(file)) => {
            let message = format!("the code is given twice: with -c and in {}", file.display());
            let hint = "leave one out; arguments for the program go after --";
            return Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Code));
        }
        (Some(code), None) => Place::CommandLine(code.to_owned()),
        (None, Some(file)) if file == "-" => Place::Stdin,
        (None, Some(file)) => Place::File(file.into()),
        (None, None) if stdin_is_a_terminal => {
            let hint = "try belljar run python -c 'print(2**64)', or name a file, or pipe the code in";
            return Err(Problem::new(Code::InvalidRequest, "there is no code to run", hint).at(Field::Code));
        }
        (None, None) => Place::Stdin,
    };
    Ok(Meant { language: flagged.or(spoken), place })
}

impl Meant {
    /// Reads the code and determines its language. The default counts if the code does not tell. A file beneath the
    /// workspace is code that stays where it is, unless one of `over` takes its place.
    pub(crate) fn read(
        self,
        default: Option<Language>,
        workspace: Option<&Path>,
        over: &[LocalFile],
    ) -> Result<(Language, LocalCode), Problem> {
        let code = self.find(workspace, over)?;
        let language = self
            .language
            .or_else(|| code.file_name.as_deref().and_then(Language::by_file_name))
            .or_else(|| Language::by_first_line(&code.bytes))
            .or(default)
            .ok_or_else(|| undetermined(&self.place))?;
        Ok((language, code))
    }

    fn find(&self, workspace: Option<&Path>, over: &[LocalFile]) -> Result<LocalCode, Problem> {
        let path = match &self.place {
            Place::CommandLine(text) => return Ok(unnamed(text.clone().into_bytes())),
            Place::Stdin => {
                let read = bounded(io::stdin().lock());
                return read.map(unnamed).map_err(|cause| unreadable(&"standard input", &cause, None));
            }
            Place::File(path) => path,
        };
        if let Some(inside) = workspace.and_then(|workspace| workspace::place_of(workspace, path)) {
            return inside.read(path, over);
        }
        let bytes = read_file(path).map_err(|cause| unreadable(&path.display(), &cause, self.slip(path)))?;
        let file_name = path.file_name().and_then(OsStr::to_str).map(str::to_owned);
        Ok(LocalCode { bytes, file_name, in_workspace: false })
    }

    /// The error for a single word that is not a file but similar to a language.
    fn slip(&self, path: &Path) -> Option<Invalid> {
        let plain = self.language.is_none() && path.extension().is_none() && path.components().count() == 1;
        plain
            .then(|| unknown_language(path.as_os_str()))
            .filter(|invalid| invalid.hint.contains("did you mean"))
    }
}

fn unnamed(bytes: Vec<u8>) -> LocalCode {
    LocalCode { bytes, file_name: None, in_workspace: false }
}

fn by_word(word: &OsStr) -> Option<Language> {
    word.to_str().and_then(Language::by_name)
}

fn unknown_language(word: &OsStr) -> Invalid {
    let word = word.to_string_lossy();
    // The caller has checked that no language has this name, so this is always an error.
    Language::parse(&word).err().unwrap_or_else(|| Invalid {
        field: Field::Language,
        message: format!("unknown language '{word}'"),
        hint: "`belljar languages` lists what can run here".to_owned(),
        too_large: false,
    })
}

/// Reads enough to report how much too long the code is, but not all of an endless device.
fn bounded(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(16 * MAX_CODE as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    bounded(File::open(path)?)
}

fn unreadable(what: &dyn std::fmt::Display, cause: &io::Error, slip: Option<Invalid>) -> Problem {
    if let Some(slip) = slip.filter(|_| cause.kind() == io::ErrorKind::NotFound) {
        let message = format!("'{what}' is neither a language nor a file");
        return Problem::new(Code::InvalidRequest, message, slip.hint).at(Field::Language);
    }
    let message = format!("cannot read the code from {what}: {cause}");
    let hint = "name a readable file, pass the code with -c, or pipe it in";
    Problem::new(Code::InvalidRequest, message, hint).at(Field::Code)
}

fn undetermined(place: &Place) -> Problem {
    let (what, example) = match place {
        Place::CommandLine(_) => ("the code".to_owned(), "belljar run python -c CODE".to_owned()),
        Place::Stdin => ("standard input".to_owned(), "belljar run python -".to_owned()),
        Place::File(path) => (path.display().to_string(), format!("belljar run python {}", path.display())),
    };
    let message = format!("cannot tell which language {what} is written in");
    Problem::new(Code::InvalidRequest, message, format!("name the language, as in {example}"))
        .at(Field::Language)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINAL: bool = true;
    const PIPE: bool = false;

    fn of(
        words: &[&str],
        language: Option<&str>,
        code: Option<&str>,
        terminal: bool,
    ) -> Result<Meant, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        meant(&words, language, code, terminal).map_err(|problem| problem.error.message)
    }

    fn python(place: Place) -> Result<Meant, String> {
        Ok(Meant { language: Language::by_name("python"), place })
    }

    fn file(name: &str) -> Place {
        Place::File(name.into())
    }

    #[test]
    fn the_first_word_is_a_language_if_it_names_one() {
        assert_eq!(of(&["py", "x"], None, None, PIPE), python(file("x")));
        assert_eq!(of(&["python"], None, Some("1"), TERMINAL), python(Place::CommandLine("1".into())));
        assert_eq!(of(&["python"], None, None, PIPE), python(Place::Stdin));
        assert_eq!(of(&["PYTHON", "-"], None, None, TERMINAL), python(Place::Stdin));
    }

    #[test]
    fn a_word_that_names_no_language_is_a_file() {
        assert_eq!(of(&["a.py"], None, None, PIPE), Ok(Meant { language: None, place: file("a.py") }));
        assert_eq!(
            of(&["./python"], None, None, PIPE),
            Ok(Meant { language: None, place: file("./python") })
        );
        assert_eq!(of(&["x"], Some("python"), None, PIPE), python(file("x")));
        assert_eq!(of(&["-"], Some("py"), None, TERMINAL), python(Place::Stdin));
    }

    #[test]
    fn without_a_word_the_code_comes_from_a_pipe_or_is_missing() {
        assert_eq!(of(&[], Some("python"), None, PIPE), python(Place::Stdin));
        assert_eq!(of(&["python"], None, None, TERMINAL), Err("there is no code to run".into()));
        assert_eq!(of(&[], None, None, TERMINAL), Err("there is no code to run".into()));
    }

    #[test]
    fn a_slip_in_a_language_is_not_taken_for_a_file() {
        assert_eq!(of(&["pyhton"], None, Some("1"), PIPE), Err("unknown language 'pyhton'".into()));
        assert_eq!(of(&["pyhton", "a.py"], None, None, PIPE), Err("unknown language 'pyhton'".into()));
        assert_eq!(of(&["a.py"], Some("pyhton"), None, PIPE), Err("unknown language 'pyhton'".into()));
        let lone =
            meant(&["pyhton".into()], None, None, PIPE).unwrap().read(None, None, &[]).unwrap_err().error;
        assert_eq!(lone.message, "'pyhton' is neither a language nor a file");
        assert!(lone.hint.contains("did you mean 'python'?"), "{}", lone.hint);
    }

    #[test]
    fn what_is_given_twice_is_refused() {
        let twice = of(&["a.py"], Some("python"), Some("1"), PIPE);
        assert_eq!(twice, Err("the code is given twice: with -c and in a.py".into()));
        let twice = of(&["bash"], Some("python"), None, PIPE);
        assert_eq!(twice, Err("the language is given twice: --language python and bash".into()));
    }

    #[test]
    fn a_lone_file_needs_no_language() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            Meant { language: None, place: Place::File(path) }.read(None, None, &[])
        };
        assert_eq!(read("a.rb", "#!/bin/sh").unwrap().0.name, "ruby");
        let (language, code) = read("tool", "#!/usr/bin/env python3\nprint(1)").unwrap();
        assert_eq!((language.name, code.file_name.as_deref()), ("python", Some("tool")));
        let python = Language::by_name("python");
        let told = |name: &str| {
            Meant { language: None, place: Place::File(folder.path().join(name)) }.read(python, None, &[])
        };
        assert_eq!(told("a.rb").unwrap().0.name, "ruby", "what the code tells comes first");
        let unknown = read("notes.txt", "hello").unwrap_err().error;
        assert_eq!(told("notes.txt").unwrap().0.name, "python");
        assert!(unknown.message.starts_with("cannot tell which language"), "{}", unknown.message);
        assert!(unknown.hint.starts_with("name the language, as in belljar run python"), "{}", unknown.hint);
    }

    #[test]
    fn a_directory_or_a_missing_file_is_a_clear_error() {
        let read = |path: &str| {
            Meant { language: None, place: file(path) }.read(None, None, &[]).unwrap_err().error.message
        };
        assert_eq!(read("/"), "cannot read the code from /: Is a directory (os error 21)");
        let missing = "cannot read the code from /no/such.py: No such file or directory (os error 2)";
        assert_eq!(read("/no/such.py"), missing);
    }

    #[test]
    fn a_device_without_end_is_not_read_to_the_end() {
        assert_eq!(bounded(io::repeat(b'x')).unwrap().len(), 16 * MAX_CODE);
    }
}
