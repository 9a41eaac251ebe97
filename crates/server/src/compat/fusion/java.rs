//! Java, as SandboxFusion runs it: compiled by a command of its own, with assertions, and with the archives among the
//! files on the class path.
//!
//! Ours compiles and runs in one command, which takes half the time. What differs is told here, by variables that the
//! `java` command reads and by the way in which it reports that the code does not compile.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_wire::LocalFile;

use super::result::Commands;

/// More options for `java`. It says on stderr that it has read them.
const OPTIONS: &str = "JDK_JAVA_OPTIONS";
const ASSERTIONS: &str = "-ea";
const NOTE: &str = "NOTE: Picked up JDK_JAVA_OPTIONS: -ea\n";

/// The last line of `java` for code that does not compile.
const NOT_COMPILED: &str = "error: compilation failed";

/// The variables that make `java` do as theirs does. Tests are written as assertions, which count for nothing without
/// the option.
pub(super) fn variables(files: &[LocalFile]) -> BTreeMap<String, String> {
    let archives = files.iter().map(|file| file.path.as_str()).filter(|path| path.ends_with(".jar"));
    let class_path = std::iter::once(".").chain(archives).collect::<Vec<_>>().join(":");
    BTreeMap::from([(OPTIONS.to_owned(), ASSERTIONS.to_owned()), ("CLASSPATH".to_owned(), class_path)])
}

/// The one command as the two that a client expects.
pub(super) fn told(commands: Commands) -> Commands {
    let Commands { run: Some(mut command), .. } = commands else { return commands };
    if let Some(rest) = command.stderr.strip_prefix(NOTE) {
        command.stderr = rest.to_owned();
    }
    let compiled = command.return_code != Some(1) || !command.stderr.trim_end().ends_with(NOT_COMPILED);
    match compiled {
        true => {
            Commands { compile: Some(super::result::Command::compiled(Duration::ZERO)), run: Some(command) }
        }
        false => Commands { compile: Some(command), run: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_on_the_class_path() {
        let file = |path: &str| LocalFile { path: path.to_owned(), content: Vec::new(), executable: false };
        let variables = variables(&[file("a.jar"), file("data.txt"), file("lib/b.jar")]);
        assert_eq!(variables["CLASSPATH"], ".:a.jar:lib/b.jar");
        assert_eq!(variables[OPTIONS], "-ea");
    }
}
