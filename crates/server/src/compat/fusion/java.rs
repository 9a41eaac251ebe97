//! Java, as SandboxFusion runs it: with assertions, and with the archives among the files on the class path. Variables that
//! the `java` command reads tell it so.

use std::collections::BTreeMap;

use belljar_wire::LocalFile;

use super::result::Commands;

/// More options for `java`. It says on stderr that it has read them.
const OPTIONS: &str = "JDK_JAVA_OPTIONS";
const ASSERTIONS: &str = "-ea";
const NOTE: &str = "NOTE: Picked up JDK_JAVA_OPTIONS: -ea\n";

/// The variables that make `java` do as theirs does. Tests are written as assertions, which count for nothing without
/// the option.
pub(super) fn variables(files: &[LocalFile]) -> BTreeMap<String, String> {
    let archives = files.iter().map(|file| file.path.as_str()).filter(|path| path.ends_with(".jar"));
    let class_path = std::iter::once(".").chain(archives).collect::<Vec<_>>().join(":");
    BTreeMap::from([(OPTIONS.to_owned(), ASSERTIONS.to_owned()), ("CLASSPATH".to_owned(), class_path)])
}

/// The commands without what `java` says about its options.
pub(super) fn told(mut commands: Commands) -> Commands {
    for command in commands.compile.iter_mut().chain(&mut commands.run) {
        if let Some(rest) = command.stderr.strip_prefix(NOTE) {
            command.stderr = rest.to_owned();
        }
    }
    commands
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
