//! What a run did to its workspace, read from the layer of an overlay that took its writes.
//!
//! The code named and wrote everything in the layer. Its processes are dead, so nothing changes any more; but names,
//! links, sizes and depth can be anything. So every path is opened beneath its root without following a link, and what
//! is listed, compared and quoted is bounded.
//!
//! In the layer, overlayfs marks a removed name with a character device 0:0, and a directory that hides the one
//! beneath it with the attribute `user.overlay.opaque`. The code can make neither: overlayfs refuses that.

mod patch;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::outcome::Changes;
use belljar_jail::with_files_of;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use self::patch::{Patch, Side};

/// The most names that are looked at, in the layer and beneath it.
const MAX_NAMES: usize = 100_000;
/// The most files that are listed, and the most bytes of their names.
const MAX_LISTED: usize = 10_000;
const MAX_LISTED_BYTES: usize = 512 << 10;
/// The deepest directory that is looked into.
const MAX_DEPTH: usize = 64;
/// The most bytes that are compared: a file of the code's may be a hole of any size.
const MAX_COMPARED: u64 = 256 << 20;
/// The most time that all of it may take.
const MAX_TIME: Duration = Duration::from_secs(5);

/// A workspace with a layer over it.
#[derive(Debug)]
pub struct Layered<'a> {
    /// The workspace as it was, and as the code saw it.
    pub before: BorrowedFd<'a>,
    /// What the code wrote.
    pub layer: BorrowedFd<'a>,
    /// The code's user on the host. What it could not read is not quoted.
    pub code: u32,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Added,
    Changed,
    Removed,
}

/// What has been found so far, and how much more may be.
struct Survey<'a> {
    workspace: &'a Layered<'a>,
    found: Vec<(PathBuf, Change)>,
    names: usize,
    listed: usize,
    compared: u64,
    began: Instant,
    truncated: bool,
}

impl Layered<'_> {
    /// Everything that the run added, changed and removed. Directories are not listed, only what is in them.
    #[must_use]
    pub fn changes(&self) -> Changes {
        let mut survey = Survey {
            workspace: self,
            found: Vec::new(),
            names: 0,
            listed: 0,
            compared: 0,
            began: Instant::now(),
            truncated: false,
        };
        survey.walk();
        survey.report()
    }

    /// Opens what was at this path, with the rights of the code.
    fn open_before(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        with_files_of(self.code, || open(self.before, path, flags))
    }

    /// What was at this path. An error: nobody may know, or nothing was there.
    fn stat_before(&self, path: &Path) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.open_before(path, OFlags::PATH)?)?)
    }

    fn stat_layer(&self, path: &Path) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(open(self.layer, path, OFlags::PATH)?)?)
    }

    /// Whether a directory of the layer hides what is beneath it.
    fn is_opaque(&self, path: &Path) -> bool {
        let mut value = [0; 8];
        let dir = open(self.layer, path, OFlags::DIRECTORY);
        dir.and_then(|dir| Ok(rustix::fs::fgetxattr(dir, "user.overlay.opaque", &mut value[..])?))
            .is_ok_and(|length| value[..length.min(8)] == *b"y")
    }
}

impl Survey<'_> {
    /// Walks through the layer, without recursion: it may be deep.
    fn walk(&mut self) {
        let mut pending = vec![PathBuf::from(".")];
        while let Some(dir) = pending.pop() {
            let Ok(entries) = open(self.workspace.layer, &dir, OFlags::DIRECTORY) else { continue };
            for (name, _) in self.names_in(entries) {
                let path = dir.join(name);
                let Ok(found) = self.workspace.stat_layer(&path) else { continue };
                self.note(&path, &found);
                if is_dir(&found) {
                    self.go_down(path, &mut pending);
                }
            }
        }
    }

    fn note(&mut self, path: &Path, found: &Stat) {
        let before = self.workspace.stat_before(path);
        match (before, found) {
            (Ok(before), found) if is_whiteout(found) => self.remove(path, &before),
            (_, found) if is_whiteout(found) => {}
            (Ok(before), found) if is_dir(found) && is_dir(&before) => {
                if self.workspace.is_opaque(path) {
                    self.remove_hidden(path);
                }
            }
            (Ok(before), found) if is_dir(found) => self.remove(path, &before),
            (_, found) if is_dir(found) => {}
            (Ok(before), _) if is_dir(&before) => {
                self.remove_hidden(path);
                self.list(path.to_owned(), Change::Added);
            }
            (Ok(before), found) => {
                if !self.is_same(path, &before, found) {
                    self.list(path.to_owned(), Change::Changed);
                }
            }
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
                self.list(path.to_owned(), Change::Added);
            }
            // There was something that the code could replace, but not read.
            (Err(_), _) => self.list(path.to_owned(), Change::Changed),
        }
    }

    fn remove(&mut self, path: &Path, before: &Stat) {
        if is_dir(before) {
            self.remove_hidden(path);
        } else {
            self.list(path.to_owned(), Change::Removed);
        }
    }

    /// Lists every file of a directory that is hidden, unless the layer has one of the same name: that has been or will
    /// be listed for itself.
    fn remove_hidden(&mut self, dir: &Path) {
        let mut pending = vec![dir.to_owned()];
        while let Some(dir) = pending.pop() {
            let Ok(entries) = self.workspace.open_before(&dir, OFlags::DIRECTORY) else { continue };
            for (name, kind) in self.names_in(entries) {
                let path = dir.join(name);
                let replaced = self.workspace.stat_layer(&path).is_ok_and(|found| !is_dir(&found));
                if kind == FileType::Directory {
                    self.go_down(path, &mut pending);
                } else if !replaced {
                    self.list(path, Change::Removed);
                }
            }
        }
    }

    fn go_down(&mut self, dir: PathBuf, pending: &mut Vec<PathBuf>) {
        if dir.components().count() < MAX_DEPTH {
            pending.push(dir);
        } else {
            self.truncated = true;
        }
    }

    /// The names in a directory, as long as there may be more.
    fn names_in(&mut self, dir: OwnedFd) -> Vec<(std::ffi::OsString, FileType)> {
        let mut names = Vec::new();
        for entry in Dir::new(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.names += 1;
            if self.names > MAX_NAMES || self.began.elapsed() > MAX_TIME {
                self.truncated = true;
                break;
            }
            names.push((std::ffi::OsStr::from_bytes(name).to_owned(), entry.file_type()));
        }
        names
    }

    fn list(&mut self, path: PathBuf, change: Change) {
        self.listed += path.as_os_str().len();
        if self.found.len() >= MAX_LISTED || self.listed > MAX_LISTED_BYTES {
            self.truncated = true;
            return;
        }
        self.found.push((path, change));
    }

    /// Whether a file has its old content, although overlayfs has copied it: the code may only have opened it.
    fn is_same(&mut self, path: &Path, before: &Stat, found: &Stat) -> bool {
        let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
        if kind(before) != kind(found) || patch::is_executable(before) != patch::is_executable(found) {
            return false;
        }
        let workspace = self.workspace;
        match kind(found) {
            FileType::Symlink => {
                let before = workspace.open_before(path, OFlags::PATH).and_then(read_link);
                let found = open(workspace.layer, path, OFlags::PATH).and_then(read_link);
                matches!((before, found), (Ok(before), Ok(found)) if before == found)
            }
            FileType::RegularFile if before.st_size == found.st_size => {
                let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
                self.compared = self.compared.saturating_add(size);
                if self.compared > MAX_COMPARED {
                    self.truncated = true;
                    return false;
                }
                let before = workspace.open_before(path, OFlags::NONBLOCK);
                let found = open(workspace.layer, path, OFlags::NONBLOCK);
                before.and_then(|before| Ok(have_same_bytes(before, found?))).unwrap_or(false)
            }
            FileType::RegularFile
            | FileType::Directory
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => false,
        }
    }

    fn report(mut self) -> Changes {
        self.found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut changes = Changes::default();
        let mut patch = Patch::until(self.began + MAX_TIME);
        for (path, change) in &self.found {
            let shown = shown(path);
            let before = || self.side_before(path);
            let after = || self.side_after(path);
            match change {
                Change::Added => {
                    patch.add(path, Side::Absent, after());
                    changes.added.push(shown);
                }
                Change::Changed => {
                    patch.add(path, before(), after());
                    changes.changed.push(shown);
                }
                Change::Removed => {
                    patch.add(path, before(), Side::Absent);
                    changes.removed.push(shown);
                }
            }
        }
        let (text, cut) = patch.finish();
        Changes { patch: text, truncated: self.truncated || cut, ..changes }
    }

    fn side_before(&self, path: &Path) -> Side {
        self.workspace.open_before(path, OFlags::NONBLOCK).map_or(Side::Other, Side::read)
    }

    fn side_after(&self, path: &Path) -> Side {
        open(self.workspace.layer, path, OFlags::NONBLOCK).map_or(Side::Other, Side::read)
    }
}

fn is_dir(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode).is_dir()
}

fn is_whiteout(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
}

fn read_link(link: OwnedFd) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(link, "", Vec::new())?.into_bytes())
}

fn have_same_bytes(one: OwnedFd, other: OwnedFd) -> bool {
    let (mut one, mut other) = (File::from(one), File::from(other));
    let (mut ones, mut others) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let (Ok(one), Ok(other)) = (read_full(&mut one, &mut ones), read_full(&mut other, &mut others))
        else {
            return false;
        };
        if ones[..one] != others[..other] {
            return false;
        }
        if one == 0 {
            return true;
        }
    }
}

fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Opens a path beneath a root, whatever the code made of the names on the way. With `PATH`, a link is opened itself.
fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    // The last component may be a link that is to be looked at, so links are refused one directory at a time.
    let (parent, name) = (path.parent(), path.file_name());
    let (Some(parent), Some(name)) = (parent.filter(|parent| !parent.as_os_str().is_empty()), name) else {
        return Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), beneath)?);
    };
    let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let straight = beneath | ResolveFlags::NO_SYMLINKS;
    let parent = match rustix::fs::openat2(root, parent, on_the_way, Mode::empty(), straight) {
        // What was a link or a file before has become a directory since, or the other way round.
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(io::ErrorKind::NotFound.into()),
        other => other?,
    };
    Ok(rustix::fs::openat2(parent, name, flags, Mode::empty(), beneath)?)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
