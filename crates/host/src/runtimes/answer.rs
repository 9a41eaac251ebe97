//! Reads what a runtime said about itself.

use std::path::PathBuf;

use belljar_core::language::Answer;

const LONGEST_LABEL: usize = 80;

/// What a runtime said.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Name and version.
    pub label: String,
    /// The real executable, if it was told.
    pub executable: Option<PathBuf>,
    /// Other files and directories that it needs. They exist.
    pub places: Vec<PathBuf>,
}

impl Answered {
    /// `None` if there is no label in it that one could show.
    pub(super) fn read(answer: Answer, text: &str) -> Option<Answered> {
        let label = label(answer, text)?;
        let presentable =
            !label.is_empty() && label.len() <= LONGEST_LABEL && !label.contains(char::is_control);
        if !presentable {
            return None;
        }
        let mut places: Vec<PathBuf> = told_paths(answer, text).filter(|path| path.exists()).collect();
        let executable = places.iter().position(|path| path.is_file()).map(|index| places.remove(index));
        Some(Answered { label, executable, places })
    }
}

fn label(answer: Answer, text: &str) -> Option<String> {
    match answer {
        Answer::Told => text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned()),
        Answer::Version(names) => Some(format!("{} {}", name(names, text)?, version(text)?)),
        Answer::Settings { names, version, .. } => {
            Some(format!("{} {}", name(names, text)?, setting(text, version)?))
        }
    }
}

fn told_paths(answer: Answer, text: &str) -> impl Iterator<Item = PathBuf> {
    let home = match answer {
        Answer::Settings { home, .. } => setting(text, home),
        Answer::Told | Answer::Version(_) => None,
    };
    text.lines().chain(home).filter(|line| line.starts_with('/')).map(PathBuf::from)
}

fn name(names: &[&'static str], text: &str) -> Option<&'static str> {
    names.iter().find(|name| text.contains(**name)).or(names.last()).copied()
}

fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let settings = text.lines().filter_map(|line| line.split_once(" = "));
    settings.into_iter().find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// The first thing that looks like a version: numbers with a dot between them.
fn version(text: &str) -> Option<&str> {
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let mut runs = text.split(|c| !number(c)).map(|run| run.trim_matches('.'));
    runs.find(|run| run.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: Answer, text: &str, label: Option<&str>) {
        assert_eq!(Answered::read(answer, text).map(|answered| answered.label).as_deref(), label, "{text}");
    }

    #[test]
    fn the_label_is_the_name_that_occurs_and_the_first_version() {
        let c = Answer::Version(&["clang", "gcc"]);
        check(c, "gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright", Some("gcc 12.2.0"));
        check(c, "cc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright", Some("gcc 12.2.0"));
        check(c, "Debian clang version 14.0.6\nTarget: x", Some("clang 14.0.6"));
        check(Answer::Version(&["Go"]), "go1.19.8\n/usr/lib/go", Some("Go 1.19.8"));
        check(Answer::Version(&["LuaJIT", "Lua"]), "LuaJIT 2.1.0-beta3 -- ", Some("LuaJIT 2.1.0"));
        check(Answer::Version(&["Go"]), "no number", None);
    }

    #[test]
    fn settings_are_read_by_their_keys() {
        let java =
            Answer::Settings { names: &["OpenJDK", "Java"], version: "java.version", home: "java.home" };
        let text =
            "    java.class.version = 61.0\n    java.home = /usr\n    java.version = 17.0.15\n  OpenJDK VM";
        let expected = Answered {
            label: "OpenJDK 17.0.15".to_owned(),
            executable: None,
            places: vec![PathBuf::from("/usr")],
        };
        assert_eq!(Answered::read(java, text), Some(expected));
        check(java, "openjdk version 17", None);
    }

    #[test]
    fn the_first_file_is_the_executable_and_what_does_not_exist_is_not_needed() {
        let text = "X 1\n/usr\n/bin/sh\n/no/such/place\n/bin/ls\nnoise";
        let expected = Answered {
            label: "X 1".to_owned(),
            executable: Some(PathBuf::from("/bin/sh")),
            places: vec![PathBuf::from("/usr"), PathBuf::from("/bin/ls")],
        };
        assert_eq!(Answered::read(Answer::Told, text), Some(expected));
    }

    #[test]
    fn a_label_that_could_harm_a_terminal_is_no_answer() {
        check(Answer::Told, "\u{1b}[2Jgotcha", None);
        check(Answer::Told, &"x".repeat(81), None);
        check(Answer::Told, "\n \n", None);
    }
}
