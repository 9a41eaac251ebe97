//! Paths inside the box and on the host: parsed once, so that later layers can trust them.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::{Field, Invalid};

/// The longest path inside a box: well below `PATH_MAX`, so that a prefix always fits.
const MAX_LENGTH: usize = 1024;
const MAX_COMPONENT: usize = 255;

/// A relative path beneath the working directory: no `..`, no root, no NUL, no empty component.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoxPath(String);

impl BoxPath {
    /// Accepts `a/b.txt`; refuses everything that could name a place outside the working directory.
    ///
    /// # Errors
    /// Names `files` as the field.
    pub fn parse(text: &str) -> Result<BoxPath, Invalid> {
        let refuse = |why: &str| {
            Err(Invalid::new(
                Field::Files,
                format!("the path '{}' {why}", text.escape_debug()),
                "use a path inside the working directory, such as data/input.csv",
            ))
        };
        if text.is_empty() {
            return refuse("is empty");
        }
        if text.len() > MAX_LENGTH {
            return refuse("is too long");
        }
        if text.contains('\0') {
            return refuse("contains a NUL byte");
        }
        let mut clean = Vec::new();
        for component in Path::new(text).components() {
            match component {
                Component::Normal(name) => clean.push(name.to_str().unwrap_or_default()),
                Component::CurDir => {}
                Component::ParentDir => return refuse("leads out of the working directory"),
                Component::RootDir | Component::Prefix(_) => return refuse("is absolute"),
            }
        }
        if clean.is_empty() || text.ends_with('/') {
            return refuse("names a directory");
        }
        if clean.iter().any(|name| name.len() > MAX_COMPONENT) {
            return refuse("has a name of more than 255 bytes");
        }
        Ok(BoxPath(clean.join("/")))
    }

    /// The path as text, relative.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directories above it, outermost first: `a/b/c` has `a` and `a/b`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(end, _)| &self.0[..end])
    }
}

impl fmt::Display for BoxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A directory of the host that a request names, to be shown at `/work`. The backend checks whether it exists; that it
/// is not the whole machine is checked here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    path: PathBuf,
    writes: Writes,
}

/// What becomes of what the code writes to the workspace. The directory of the host stays as it is in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// The workspace is read-only.
    Refused,
    /// It goes to a layer over the workspace, which is gone after the run.
    Discarded,
    /// The same, and the result says what was changed.
    Reported,
}

impl Workspace {
    /// Accepts an absolute path that is not `/`. The workspace is read-only.
    ///
    /// # Errors
    /// Names `workspace` as the field.
    pub fn parse(path: &Path) -> Result<Workspace, Invalid> {
        let hint = "name the project's own directory, such as --workspace .";
        if !path.is_absolute() {
            let message = format!("the workspace '{}' is not an absolute path", path.display());
            return Err(Invalid::new(Field::Workspace, message, hint));
        }
        if path.components().all(|part| part == Component::RootDir || part == Component::CurDir) {
            return Err(Invalid::new(
                Field::Workspace,
                "the workspace '/' would show the whole machine to the code",
                hint,
            ));
        }
        Ok(Workspace { path: path.to_owned(), writes: Writes::Refused })
    }

    /// The same directory, with this done to what the code writes.
    #[must_use]
    pub fn with_writes(self, writes: Writes) -> Workspace {
        Workspace { writes, ..self }
    }

    /// What becomes of what the code writes there.
    #[must_use]
    pub fn writes(&self) -> Writes {
        self.writes
    }

    /// Whether there is a layer over it that the code can write to.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes != Writes::Refused
    }

    /// The host path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_leave_the_working_directory_are_refused() {
        for text in ["..", "../x", "a/../../x", "/etc/passwd", "", "/", "a/", ".", "a\0b", "x/../y"] {
            assert!(BoxPath::parse(text).is_err(), "{text:?}");
        }
        assert!(BoxPath::parse(&"a".repeat(256)).is_err());
        assert!(BoxPath::parse(&"a/".repeat(600)).is_err());
    }

    #[test]
    fn a_path_is_normalised() {
        assert_eq!(BoxPath::parse("./a//b/./c.txt").unwrap().as_str(), "a/b/c.txt");
        let path = BoxPath::parse("a/b/c").unwrap();
        assert_eq!(path.parents().collect::<Vec<_>>(), ["a", "a/b"]);
    }

    #[test]
    fn the_root_is_no_workspace() {
        for text in ["/", "//", "/.", "relative"] {
            assert!(Workspace::parse(Path::new(text)).is_err(), "{text:?}");
        }
        assert!(Workspace::parse(Path::new("/srv/project")).is_ok());
    }

    proptest! {
        #[test]
        fn a_parsed_path_has_only_plain_components(text in "[a./\\x00-]{0,20}") {
            if let Ok(path) = BoxPath::parse(&text) {
                for name in path.as_str().split('/') {
                    prop_assert!(!name.is_empty() && name != "." && name != ".." && !name.contains('\0'));
                }
            }
        }
    }
}
