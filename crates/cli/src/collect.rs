//! Writes the files that a run left to a directory of the caller. Their names and contents are untrusted: every step
//! goes through an open directory, and none follows a link.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_core::outcome::CollectedFile;
use belljar_core::path::BoxPath;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::WRONLY).union(OFlags::CLOEXEC);

/// Directories that version control systems read commands from: `core.fsmonitor` in `.git/config`, for one, is run by
/// `git status`. The names are compared without case, as some file systems do.
const VERSION_CONTROL: [&str; 3] = [".git", ".hg", ".svn"];

/// What happens to a file that exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// A file that was not written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' was not written: {why}", path.escape_debug())]
pub(crate) struct Unwritten {
    path: String,
    pub(crate) why: WhyUnwritten,
}

/// Why a file is not written, although it could be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WhyUnwritten {
    #[error("it exists already")]
    Exists,
    #[error("a directory has that name")]
    IsDirectory,
    #[error("a symbolic link or a file is in the place of its directory")]
    InTheWay,
    #[error("files in .git, .hg and .svn can make those programs run commands")]
    VersionControl,
    #[error("its name is not valid UTF-8, or has a control character")]
    Unprintable,
    #[error("{0}")]
    Path(String),
}

/// Writes the files beneath `directory`, which is created if it does not exist. Returns those that it refused to write.
///
/// # Errors
/// The path at fault and what the system said.
pub(crate) fn write_beneath(
    directory: &Path,
    files: &[CollectedFile],
    existing: Existing,
) -> Result<Vec<Unwritten>, (String, io::Error)> {
    let shown = |path: &str| format!("{}/{}", directory.display(), path.escape_debug());
    let root = open_root(directory).map_err(|cause| (directory.display().to_string(), cause))?;
    let mut unwritten = Vec::new();
    for CollectedFile { path, content } in files {
        match write_one(&root, path, content, existing) {
            Ok(()) => {}
            Err(Failure::Refused(why)) => unwritten.push(Unwritten { path: path.clone(), why }),
            Err(Failure::System(cause)) => return Err((shown(path), cause)),
        }
    }
    Ok(unwritten)
}

/// Why one file was not written.
enum Failure {
    Refused(WhyUnwritten),
    System(io::Error),
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Failure {
        Failure::System(cause)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::System(errno.into())
    }
}

fn open_root(directory: &Path) -> io::Result<OwnedFd> {
    std::fs::create_dir_all(directory)?;
    // Links in this path are the caller's own, so they are followed.
    Ok(openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn write_one(root: &OwnedFd, path: &str, content: &[u8], existing: Existing) -> Result<(), Failure> {
    let path = acceptable(path).map_err(Failure::Refused)?;
    let (folders, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
    let mut parent = root.try_clone()?;
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        parent = enter(&parent, folder)?;
    }
    match existing {
        Existing::Keep => create(&parent, name, content),
        Existing::Replace => replace(&parent, name, content),
    }
}

fn acceptable(path: &str) -> Result<BoxPath, WhyUnwritten> {
    // A name that is not UTF-8 arrives with replacement characters, which other names may have in the same places.
    if path.chars().any(|c| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
        return Err(WhyUnwritten::Unprintable);
    }
    let parsed = BoxPath::parse(path).map_err(|invalid| WhyUnwritten::Path(invalid.message))?;
    let is_version_control = |name: &str| VERSION_CONTROL.iter().any(|own| name.eq_ignore_ascii_case(own));
    if parsed.as_str().split('/').any(is_version_control) {
        return Err(WhyUnwritten::VersionControl);
    }
    Ok(parsed)
}

fn enter(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Failure> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => Err(Failure::Refused(WhyUnwritten::InTheWay)),
        opened => Ok(opened?),
    }
}

/// Writes a file that does not exist. `O_EXCL` fails for a link, too, wherever that leads.
fn create(parent: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Failure> {
    let file = match openat(parent, name, NEW_FILE, Mode::from_raw_mode(0o666)) {
        Err(Errno::EXIST) => return Err(Failure::Refused(WhyUnwritten::Exists)),
        opened => opened?,
    };
    File::from(file).write_all(content).map_err(|cause| {
        // The earlier failure is the one to report.
        let _ = unlinkat(parent, name, AtFlags::empty());
        Failure::System(cause)
    })
}

/// Writes a new file and renames it, so that what had the name before (a link, a device, a file with a second hard
/// link) is replaced and never written through.
fn replace(parent: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Failure> {
    let aside = format!(".belljar-{}", std::process::id());
    let file = openat(parent, &aside, NEW_FILE, Mode::from_raw_mode(0o666))?;
    let written = File::from(file).write_all(content).map_err(Failure::from);
    let placed = written.and_then(|()| match renameat(parent.as_fd(), &aside, parent.as_fd(), name) {
        Err(Errno::ISDIR) => Err(Failure::Refused(WhyUnwritten::IsDirectory)),
        renamed => Ok(renamed?),
    });
    if placed.is_err() {
        // The earlier failure is the one to report.
        let _ = unlinkat(parent, &aside, AtFlags::empty());
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn file(path: &str) -> CollectedFile {
        CollectedFile { path: path.into(), content: b"new".to_vec() }
    }

    fn refusals(directory: &Path, paths: &[&str], existing: Existing) -> Vec<WhyUnwritten> {
        let files: Vec<_> = paths.iter().map(|path| file(path)).collect();
        write_beneath(directory, &files, existing).unwrap().into_iter().map(|one| one.why).collect()
    }

    #[test]
    fn files_land_beneath_the_directory_with_their_folders() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("not/there/yet");
        assert_eq!(refusals(&target, &["a.txt", "b/c/d.txt", "b/c/e.txt"], Existing::Keep), []);
        assert_eq!(fs::read(target.join("a.txt")).unwrap(), b"new");
        assert_eq!(fs::read(target.join("b/c/d.txt")).unwrap(), b"new");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
    }

    #[test]
    fn an_existing_file_is_kept_unless_it_may_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "old").unwrap();
        symlink("nowhere", folder.path().join("link")).unwrap();
        let kept = write_beneath(folder.path(), &[file("a"), file("b"), file("link")], Existing::Keep);
        let said: Vec<_> = kept.unwrap().iter().map(ToString::to_string).collect();
        let exists = |name: &str| format!("'{name}' was not written: it exists already");
        assert_eq!(said, [exists("a"), exists("link")]);
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old");
        assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"new", "the others are written");
        assert!(!folder.path().join("nowhere").exists());
        assert_eq!(refusals(folder.path(), &["a"], Existing::Replace), []);
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"new");
    }

    #[test]
    fn an_existing_file_is_replaced_and_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, target) = (folder.path().join("outside"), folder.path().join("target"));
        fs::write(&outside, "old").unwrap();
        fs::create_dir(&target).unwrap();
        symlink(&outside, target.join("link")).unwrap();
        fs::hard_link(&outside, target.join("hard")).unwrap();
        assert_eq!(refusals(&target, &["link", "hard"], Existing::Replace), []);
        assert_eq!(fs::read(&outside).unwrap(), b"old");
        assert_eq!(fs::read(target.join("link")).unwrap(), b"new");
        assert!(!target.join("link").is_symlink());
        assert_eq!(fs::read(target.join("hard")).unwrap(), b"new");
    }

    #[test]
    fn a_link_to_a_folder_outside_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, target) = (folder.path().join("outside"), folder.path().join("target"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&target).unwrap();
        symlink(&outside, target.join("b")).unwrap();
        for existing in [Existing::Keep, Existing::Replace] {
            assert_eq!(refusals(&target, &["b/c.txt"], existing), [WhyUnwritten::InTheWay]);
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_where_version_control_takes_commands_from() {
        let folder = tempfile::tempdir().unwrap();
        for path in [".git/config", "a/.git/hooks/pre-commit", ".git", ".GIT/config", ".hg/hgrc", ".svn/x"] {
            let refused = refusals(folder.path(), &[path], Existing::Replace);
            assert_eq!(refused, [WhyUnwritten::VersionControl], "{path}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let others = [".gitignore", ".github/workflows/x.yml", "git/config"];
        assert_eq!(refusals(folder.path(), &others, Existing::Keep), [], "the control");
    }

    #[test]
    fn a_name_that_cannot_be_shown_or_told_from_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a\nb", "\u{1b}[2J", "a\u{7f}", "\u{9b}1m", "\u{fffd}", "d\u{fffd}/x"];
        for name in names {
            assert_eq!(
                refusals(folder.path(), &[name], Existing::Keep),
                [WhyUnwritten::Unprintable],
                "{name:?}"
            );
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(refusals(folder.path(), &["é ü"], Existing::Keep), [], "the control");
    }

    #[test]
    fn a_name_that_leads_out_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        for path in ["../x", "/etc/x", "a/../../x", ""] {
            assert_eq!(refusals(&target, &[path], Existing::Replace).len(), 1, "{path}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_in_the_way_is_kept_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        assert_eq!(refusals(folder.path(), &["a"], Existing::Keep), [WhyUnwritten::Exists]);
        assert_eq!(refusals(folder.path(), &["a"], Existing::Replace), [WhyUnwritten::IsDirectory]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
