//! The directory of one run: made for it, readable only by its user, and removed afterwards.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::rand::{GetRandomFlags, getrandom};

const PREFIX: &str = "belljar-";

/// Where the code works, and from where its files are collected.
pub(crate) const HOME: &str = "sandbox";
/// For temporary files, and for what a compiler makes.
pub(crate) const TMP: &str = "tmp";
/// The copy of a workspace.
pub(crate) const WORK: &str = "work";

/// Directories deeper than this are moved up before they are removed: neither paths nor the number of open directories
/// may exceed the kernel's limits.
const DEPTH: usize = 8;

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    root: PathBuf,
    /// Tells a sweep that it is in use.
    _hold: OwnedFd,
}

/// Why a directory was not copied.
#[derive(Debug)]
pub(crate) enum Uncopied {
    /// It is larger than what the run may write.
    TooMuch,
    Failed {
        path: PathBuf,
        source: io::Error,
    },
}

impl Scratch {
    /// Makes one. Its name contains its owner.
    pub(crate) fn make(temp_dir: &Path) -> io::Result<Scratch> {
        let mut random = [0_u8; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let (pid, birth, random) =
            (std::process::id(), born("self").unwrap_or(0), u64::from_le_bytes(random));
        let root = temp_dir.join(format!("{PREFIX}{pid}-{birth}-{random:016x}"));
        DirBuilder::new().mode(0o700).create(&root)?;
        let scratch = Scratch { _hold: hold(&root)?, root };
        for dir in [HOME, TMP] {
            DirBuilder::new().mode(0o700).create(scratch.root.join(dir))?;
        }
        Ok(scratch)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// Marks a run's directory as in use, for as long as this is open.
pub(crate) fn hold(root: &Path) -> io::Result<OwnedFd> {
    let directory = open(root)?;
    flock(&directory, FlockOperation::NonBlockingLockShared)?;
    Ok(directory)
}

fn open(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(root, flags, Mode::empty())?)
}

/// Puts a file into a directory that nothing else uses yet. It replaces what is in its way; no link is followed.
pub(crate) fn put(dir: &Path, path: &str, content: &[u8], executable: bool) -> io::Result<()> {
    let target = dir.join(path);
    let mut parent = dir.to_owned();
    for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
        if let Component::Normal(name) = part {
            parent.push(name);
            make_way(&parent, true)?;
        }
    }
    make_way(&target, false)?;
    let mode = if executable { 0o755 } else { 0o644 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(&target)?.write_all(content)
}

fn make_way(path: &Path, for_directory: bool) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && for_directory => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if for_directory { fs::create_dir(path) } else { Ok(()) }
}

/// Copies a directory: files, directories, and links as links. Devices, pipes and sockets are left out. Returns the
/// number of bytes.
pub(crate) fn copy(from: &Path, to: &Path, bytes: u64, names: u64) -> Result<u64, Uncopied> {
    let (mut left, mut names) = (bytes, names);
    let mut pending = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = pending.pop() {
        let failed = |source: io::Error| Uncopied::Failed { path: from.clone(), source };
        DirBuilder::new().mode(0o700).create(&to).map_err(failed)?;
        for entry in fs::read_dir(&from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let failed = |source: io::Error| Uncopied::Failed { path: from.clone(), source };
            let found = fs::symlink_metadata(&from).map_err(failed)?;
            names = names.checked_sub(1).ok_or(Uncopied::TooMuch)?;
            if found.is_dir() {
                pending.push((from, to));
            } else if found.is_symlink() {
                fs::read_link(&from).and_then(|target| symlink(target, &to)).map_err(failed)?;
            } else if found.is_file() {
                left = left.checked_sub(found.len()).ok_or(Uncopied::TooMuch)?;
                fs::copy(&from, &to).map_err(failed)?;
                let mode = found.permissions().mode() & 0o777 | 0o600;
                fs::set_permissions(&to, Permissions::from_mode(mode)).map_err(failed)?;
            }
        }
    }
    Ok(bytes - left)
}

/// Removes the directory of a run whose processes are dead, whatever is in it.
pub(crate) fn remove(root: &Path) {
    if fs::symlink_metadata(root).is_err() {
        return;
    }
    // What is still mounted in there must not be removed.
    if !let_mounts_go(root) {
        return;
    }
    if fs::remove_dir_all(root).is_err() {
        flatten(root);
        let _ = fs::remove_dir_all(root);
    }
}

/// Makes every directory accessible, and moves deep ones up.
fn flatten(root: &Path) {
    let mut moved = 0_u64;
    let mut pending = vec![(root.to_owned(), 0)];
    while let Some((dir, depth)) = pending.pop() {
        let _ = fs::set_permissions(&dir, Permissions::from_mode(0o700));
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if depth < DEPTH {
                pending.push((path, depth + 1));
                continue;
            }
            let _ = fs::set_permissions(&path, Permissions::from_mode(0o700));
            let up = root.join(format!("moved-{moved}"));
            moved += 1;
            if fs::rename(&path, &up).is_ok() {
                pending.push((up, 1));
            }
        }
    }
}

/// Unmounts everything beneath a directory, which takes root. Returns whether nothing is mounted there now.
fn let_mounts_go(root: &Path) -> bool {
    let mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mount_points(&table).filter(|path| path.starts_with(root)).collect::<Vec<_>>()
    };
    for path in mounted().into_iter().rev() {
        let _ = unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    mounted().is_empty()
}

fn mount_points(table: &str) -> impl Iterator<Item = PathBuf> {
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(|path| PathBuf::from(unescaped(path)))
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

/// Removes what earlier runs have left behind whose `belljar` is gone. Returns how many.
pub(crate) fn sweep(temp_dir: &Path) -> u64 {
    let own = rustix::process::geteuid().as_raw();
    let mut swept = 0;
    for entry in fs::read_dir(temp_dir).into_iter().flatten().flatten() {
        let is_left = entry.file_name().to_str().is_some_and(is_orphaned);
        let is_own = || entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_left && is_own() && is_free(&entry.path()) {
            remove(&entry.path());
            swept += 1;
        }
    }
    swept
}

/// Whether a directory is not in use. In another PID namespace that shares the directory for temporary files, process
/// ids mean nothing; locks do.
fn is_free(root: &Path) -> bool {
    open(root).is_ok_and(|directory| flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Whether a name is that of a run's directory whose owner is dead. A process id is reused; a process id with a start
/// time is not.
fn is_orphaned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let [pid, birth, random] = rest.split('-').collect::<Vec<_>>()[..] else { return false };
    let (Ok(pid), Ok(birth)) = (pid.parse::<u32>(), birth.parse::<u64>()) else { return false };
    let is_ours = random.len() == 16 && random.chars().all(|digit| digit.is_ascii_hexdigit());
    is_ours && born(&pid.to_string()) != Some(birth)
}

/// When a process started, in ticks since boot.
fn born(process: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_private_and_goes_whatever_was_made_of_it() {
        let temp = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(temp.path()).unwrap();
        assert_eq!(fs::metadata(scratch.root()).unwrap().permissions().mode() & 0o777, 0o700);
        let mut deep = scratch.root().join(HOME);
        for _ in 0..300 {
            deep.push("directory");
            fs::create_dir(&deep).unwrap();
            fs::write(deep.join("file"), "x").unwrap();
        }
        fs::set_permissions(scratch.root().join(HOME), Permissions::from_mode(0o000)).unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_lies_deep_is_moved_up_and_what_is_linked_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        fs::create_dir_all(root.join("a/b/c/d/e/f/g/h/i/j/k/l")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        symlink(&outside, root.join("a/link")).unwrap();
        flatten(&root);
        assert!(root.join("moved-0").is_dir() && !root.join("a/b/c/d/e/f/g/h/i/j").exists());
        remove(&root);
        assert!(!root.exists() && outside.join("kept").exists());
    }

    #[test]
    fn only_what_a_dead_belljar_left_is_swept() {
        let temp = tempfile::tempdir().unwrap();
        let kept = Scratch::make(temp.path()).unwrap();
        let own = born("self").unwrap();
        let left = temp.path().join(format!("belljar-{}-{}-0123456789abcdef", std::process::id(), own + 1));
        fs::create_dir(&left).unwrap();
        let held = hold(&left).unwrap();
        assert_eq!(sweep(temp.path()), 0, "somebody uses it whom we cannot see");
        drop(held);
        for other in ["belljar-conformance-1", "belljar-1-2", "belljar-x-2-0123456789abcdef", "else"] {
            fs::create_dir(temp.path().join(other)).unwrap();
        }
        assert_eq!(sweep(temp.path()), 1);
        assert!(!left.exists() && kept.root().exists());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 5);
    }

    #[test]
    fn a_file_is_put_where_it_belongs_and_never_through_a_link() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, outside) = (temp.path().join("dir"), temp.path().join("outside"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, dir.join("sub")).unwrap();
        put(&dir, "sub/deep/file", b"x", true).unwrap();
        put(&dir, "sub/deep/file", b"y", false).unwrap();
        assert_eq!(fs::read(dir.join("sub/deep/file")).unwrap(), b"y");
        assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    }

    #[test]
    fn a_copy_has_files_directories_and_links_within_its_bounds() {
        let temp = tempfile::tempdir().unwrap();
        let from = temp.path().join("from");
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/file"), "12345").unwrap();
        symlink("sub/file", from.join("link")).unwrap();
        assert_eq!(copy(&from, &temp.path().join("to"), 7, 3).unwrap(), 5);
        assert_eq!(fs::read_to_string(temp.path().join("to/link")).unwrap(), "12345");
        assert!(matches!(copy(&from, &temp.path().join("2"), 4, 3), Err(Uncopied::TooMuch)));
        assert!(matches!(copy(&from, &temp.path().join("3"), 5, 2), Err(Uncopied::TooMuch)));
    }

    #[test]
    fn mount_points_are_read_with_their_blanks() {
        let table = "29 1 8:1 / /tmp/a\\040b rw,relatime - ext4 /dev/sda1 rw\n30 1 8:1 / / rw - ext4 x rw\n";
        assert_eq!(mount_points(table).collect::<Vec<_>>(), [Path::new("/tmp/a b"), Path::new("/")]);
    }
}
