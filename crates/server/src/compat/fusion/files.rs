//! Files in and out. Theirs may lie anywhere on a machine; ours lie in the working directory, whatever it is called.

use std::collections::BTreeMap;

use belljar_core::outcome::CollectedFile;
use belljar_core::path::BoxPath;
use belljar_wire::LocalFile;

use super::invalid::{Fault, no_text};
use crate::compat::encoding::{from_base64, to_base64};
use crate::compat::shallow::{Entries, Shallow};

/// The working directory of every box.
const WORKING_DIR: &str = "/sandbox/";

/// The longest path that is looked at; a box takes none that is longer.
const MAX_PATH: usize = 1024;

/// By how many names one file may be asked for: it is in the answer by each of them.
const MAX_NAMES: usize = 8;

/// Their server does not write a file whose path contains this.
const IGNORED: &str = "IGNORE_THIS_FILE";

/// The files of a request: their paths, and what is in them, in base64. One without content is left out, as there.
pub(super) fn given(files: Entries<Shallow>) -> Result<Vec<LocalFile>, Fault> {
    let files = match files {
        Entries::Nothing => return Ok(Vec::new()),
        Entries::Object(files) => files,
        Entries::TooMany => {
            return Err(Fault::at(&["files"], "too_long", "Dictionary should have fewer items"));
        }
        Entries::NotAnObject => {
            return Err(Fault::at(&["files"], "dict_type", "Input should be a valid dictionary"));
        }
    };
    files.into_iter().filter_map(|(path, content)| file(&path, content).transpose()).collect()
}

fn file(path: &str, content: Shallow) -> Result<Option<LocalFile>, Fault> {
    if path.len() > MAX_PATH {
        return Err(Fault::at(&["files"], "value_error", "Value error, a path is too long"));
    }
    let place = ["files", path];
    if content == Shallow::Nothing || path.contains(IGNORED) {
        return Ok(None);
    }
    let content = content.into_text().ok_or_else(|| no_text(&place))?;
    let wrong = || Fault::at(&place, "value_error", "Value error, the content is not base64");
    let content = from_base64(&content).ok_or_else(wrong)?;
    let path = BoxPath::parse(relative(path))
        .map_err(|invalid| Fault::at(&place, "value_error", format!("Value error, {}", invalid.message)))?;
    Ok(Some(LocalFile { path: path.as_str().to_owned(), content, executable: false }))
}

/// The files that are to be fetched: by the path that is meant in the working directory, the names that the client has
/// for it. What cannot be there is left out, as a file that is not there would be.
#[derive(Debug, Default)]
pub(super) struct Fetch(BTreeMap<String, Vec<String>>);

impl Fetch {
    pub(super) fn new(names: Vec<String>) -> Result<Fetch, Fault> {
        let mut fetch = Fetch::default();
        for name in names {
            let Ok(path) = BoxPath::parse(relative(&name)) else { continue };
            let known = fetch.0.entry(path.as_str().to_owned()).or_default();
            known.push(name);
            if known.len() > MAX_NAMES {
                let message = format!("Value error, a file is asked for by more than {MAX_NAMES} names");
                return Err(Fault::at(&["fetch_files"], "value_error", message));
            }
        }
        Ok(fetch)
    }

    /// How often the content of a file can be in the answer.
    pub(super) fn copies(&self) -> usize {
        self.0.values().map(Vec::len).max().unwrap_or(0)
    }

    /// The patterns that mean them, and nothing else.
    pub(super) fn patterns(&self) -> Vec<String> {
        self.0.keys().map(|path| literally(path)).collect()
    }

    /// What was brought back, by the client's names.
    pub(super) fn fetched(&self, files: &[CollectedFile]) -> BTreeMap<String, String> {
        let wanted = files.iter().filter_map(|file| Some((file, self.0.get(&file.path)?)));
        wanted
            .flat_map(|(file, names)| names.iter().map(|name| (name.clone(), to_base64(&file.content))))
            .collect()
    }
}

fn relative(path: &str) -> &str {
    path.strip_prefix(WORKING_DIR).unwrap_or(path)
}

/// A pattern that means one path.
pub(super) fn literally(path: &str) -> String {
    let escaped = |c: char| if "*?[]".contains(c) { format!("[{c}]") } else { c.to_string() };
    path.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::request::Glob;

    fn read(json: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
        let files = given(serde_json::from_str(json).unwrap())
            .map_err(|fault| serde_json::to_string(&fault).unwrap())?;
        Ok(files.into_iter().map(|file| (file.path, file.content)).collect())
    }

    #[test]
    fn files_come_in_base64_and_lie_in_the_working_directory() {
        let files =
            read(r#"{"a/b": "/w==", "/sandbox/c": "", "d": null, "e/IGNORE_THIS_FILE": "YQ=="}"#).unwrap();
        assert_eq!(files, [("c".to_owned(), vec![]), ("a/b".to_owned(), vec![0xff])]);
        assert_eq!(read("null"), Ok(vec![]));
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused_at_its_place() {
        for path in ["../x", "/etc/passwd", "/sandbox/../x", ""] {
            let fault = read(&format!(r#"{{"{path}": ""}}"#)).unwrap_err();
            assert!(fault.contains(&format!(r#""loc":["body","files","{path}"]"#)), "{fault}");
        }
        let long = "x".repeat(2000);
        assert!(read(&format!(r#"{{"{long}": ""}}"#)).unwrap_err().contains("a path is too long"));
        assert!(read(r#"{"a": "!"}"#).unwrap_err().contains("is not base64"));
        assert!(read(r#"{"a": 1}"#).unwrap_err().contains("string_type"));
        assert!(read("[]").unwrap_err().contains("dict_type"));
    }

    #[test]
    fn a_file_is_fetched_by_every_name_that_it_was_asked_for_by() {
        let names = ["a*.txt", "/sandbox/a*.txt", "../x", "/etc/passwd", "b/c"];
        let fetch = Fetch::new(names.map(str::to_owned).to_vec()).unwrap();
        assert_eq!(fetch.copies(), 2);
        assert_eq!(fetch.patterns(), ["a[*].txt", "b/c"]);
        let files = [("a*.txt", 1), ("other", 2)]
            .map(|(path, byte)| CollectedFile { path: path.into(), content: vec![byte] });
        let fetched = fetch.fetched(&files);
        assert_eq!(
            fetched.into_iter().collect::<Vec<_>>(),
            [("/sandbox/a*.txt".to_owned(), "AQ==".to_owned()), ("a*.txt".to_owned(), "AQ==".to_owned()),]
        );
    }

    #[test]
    fn one_file_cannot_be_asked_for_by_any_number_of_names() {
        let names = |number: usize| (0..number).map(|n| format!("{}a", "./".repeat(n))).collect();
        assert!(Fetch::new(names(MAX_NAMES)).is_ok());
        let fault = serde_json::to_string(&Fetch::new(names(MAX_NAMES + 1)).unwrap_err()).unwrap();
        assert!(fault.contains(r#""loc":["body","fetch_files"]"#), "{fault}");
    }

    #[test]
    fn a_path_means_itself_alone() {
        for path in ["a*b", "[x]", "?", "plain/path.txt"] {
            let pattern = Glob::parse(&literally(path)).unwrap();
            assert!(pattern.matches(path), "{path}");
        }
        assert!(!Glob::parse(&literally("a*b")).unwrap().matches("axb"));
    }
}
