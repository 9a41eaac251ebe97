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

/// Writes the files beneath `directory`, which is created if it does not exist.
///
/// # Errors
/// The path at fault and what the system said.
pub(crate) fn write_beneath(directory: &Path, files: &[CollectedFile]) -> Result<(), (String, io::Error)> {
    let shown = |path: &str| format!("{}/{}", directory.display(), path.escape_debug());
    let root = open_root(directory).map_err(|cause| (directory.display().to_string(), cause))?;
    for file in files {
        write_one(&root, file).map_err(|cause| (shown(&file.path), cause))?;
    }
    Ok(())
}

fn open_root(directory: &Path) -> io::Result<OwnedFd> {
    std::fs::create_dir_all(directory)?;
    // Links in this path are the caller's own, so they are followed.
    Ok(openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn write_one(root: &OwnedFd, file: &CollectedFile) -> io::Result<()> {
    let path = BoxPath::parse(&file.path).map_err(io::Error::other)?;
    let (folders, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
    let mut parent = root.try_clone()?;
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        parent = enter(&parent, folder)?;
    }
    replace(&parent, name, &file.content)
}

fn enter(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Writes a new file and renames it, so that what had the name before (a link, a device, a file with a second hard
/// link) is replaced and never written through.
fn replace(parent: &OwnedFd, name: &str, content: &[u8]) -> io::Result<()> {
    let aside = format!(".belljar-{}", std::process::id());
    let file = openat(parent, &aside, NEW_FILE, Mode::from_raw_mode(0o666))?;
    let written = File::from(file).write_all(content);
    let placed = written.and_then(|()| Ok(renameat(parent.as_fd(), &aside, parent.as_fd(), name)?));
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

    #[test]
    fn files_land_beneath_the_directory_with_their_folders() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("not/there/yet");
        write_beneath(&target, &[file("a.txt"), file("b/c/d.txt"), file("b/c/e.txt")]).unwrap();
        assert_eq!(fs::read(target.join("a.txt")).unwrap(), b"new");
        assert_eq!(fs::read(target.join("b/c/d.txt")).unwrap(), b"new");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
    }

    #[test]
    fn an_existing_file_is_replaced_and_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, target) = (folder.path().join("outside"), folder.path().join("target"));
        fs::write(&outside, "old").unwrap();
        fs::create_dir(&target).unwrap();
        symlink(&outside, target.join("link")).unwrap();
        fs::hard_link(&outside, target.join("hard")).unwrap();
        write_beneath(&target, &[file("link"), file("hard")]).unwrap();
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
        let (path, _) = write_beneath(&target, &[file("b/c.txt")]).unwrap_err();
        assert!(path.ends_with("target/b/c.txt"), "{path}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_leads_out_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        for path in ["../x", "/etc/x", "a/../../x", ""] {
            assert!(write_beneath(&target, &[file(path)]).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_in_the_way_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        assert!(write_beneath(folder.path(), &[file("a")]).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
