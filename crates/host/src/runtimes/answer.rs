//! Parses what a runtime reports about itself.

use std::path::PathBuf;

use belljar_core::language::Answer;

/// What a runtime reported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Name and version.
    pub label: String,
    /// The real executable, if it was reported.
    pub executable: Option<PathBuf>,
    /// Other files and directories that it needs. They exist.
    pub places: Vec<PathBuf>,
}

impl Answered {
    /// `None` if there is no usable label in it.
    pub(super) fn read(answer: Answer, text: &str) -> Option<Answered> {
        let label = answer.label(text)?;
        let mut places: Vec<PathBuf> = told_paths(answer, text).filter(|path| path.exists()).collect();
        let executable = places.iter().position(|path| path.is_file()).map(|index| places.remove(index));
        Some(Answered { label, executable, places })
    }
}

fn told_paths(answer: Answer, text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().chain(answer.home(text)).filter(|line| line.starts_with('/')).map(PathBuf::from)
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
