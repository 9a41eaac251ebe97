//! Reads the choice of pyenv and its relatives (rbenv, nodenv, plenv, jenv), without running them.
//!
//! Their shims are scripts that start other scripts until they have read two files, which takes ten times as long as the
//! runtime itself needs to answer. The layout is the same for all of them: `ROOT/shims/NAME`, the chosen version in
//! `ROOT/version`, the program in `ROOT/versions/VERSION/bin/NAME`. Only this plain case is read here. For everything
//! else the shim is asked, and what was found here is asked like any other program.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{RuntimeSettings, is_program, is_script};

/// A file with a version is a line. What is longer is something else.
const LONGEST_CHOICE: u64 = 256;

/// The program that a shim would start.
pub(super) fn chosen(candidate: &Path, settings: &RuntimeSettings) -> Option<PathBuf> {
    let shims = candidate.parent().filter(|dir| dir.ends_with("shims"))?;
    let root = shims.parent()?;
    if !is_script(candidate) || is_overruled(settings) {
        return None;
    }
    let version = only_version(&root.join("version"))?;
    let program = root.join("versions").join(version).join("bin").join(candidate.file_name()?);
    is_program(&program).then_some(program)
}

/// A variable, or a file in the directory in which programs are asked, goes before the choice for everywhere.
fn is_overruled(settings: &RuntimeSettings) -> bool {
    let is_choice = |name: &std::ffi::OsStr| name.to_str().is_none_or(|name| name.ends_with("-version"));
    let by_variable = settings.manager_env.iter().any(|(name, _)| {
        name.to_str().is_none_or(|name| name.ends_with("_VERSION") || name.ends_with("_ROOT"))
    });
    by_variable
        || fs::read_dir("/")
            .map_or(true, |entries| entries.flatten().any(|entry| is_choice(&entry.file_name())))
}

/// The version in this file, if it is one, and can be the name of a directory.
fn only_version(file: &Path) -> Option<String> {
    let found = fs::metadata(file).ok()?;
    if !found.is_file() || found.len() > LONGEST_CHOICE {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    let mut words = text.split([':', ' ', '\t', '\r', '\n']).filter(|word| !word.is_empty());
    let (version, None) = (words.next()?, words.next()) else { return None };
    let mut parts = Path::new(version).components();
    let is_name =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == version);
    (is_name && !version.starts_with('#')).then(|| version.to_owned())
}
