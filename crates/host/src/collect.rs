//! Collecting files. Everything here was named and written by hostile code; its processes are dead, so at least nothing
//! changes.

use std::fs::File;
use std::io::{Read, Take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::outcome::CollectedFile;
use belljar_core::request::Glob;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The deepest directory that is searched.
const MAX_DEPTH: usize = 64;
/// The most bytes of paths that are kept: names cost hostile code nothing that its disk limit would count.
const MAX_PATHS: usize = 16 << 20;
/// The longest time that a search for files may take. Even many names take a fraction of it, unless names and patterns
/// were crafted to be slow.
const MAX_SEARCH: Duration = Duration::from_secs(10);

/// What to look for, and how much of it may come back.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// What the caller named.
    pub patterns: &'a [Glob],
    /// The code's own file, which no wildcard matches.
    pub source: &'a str,
    /// A directory that is not the code's, and is not searched.
    pub hidden: Option<&'a str>,
    /// The most bytes that all files together may have.
    pub bytes: u64,
    /// The most names that are examined.
    pub names: u64,
}

impl Wanted<'_> {
    fn means(&self, path: &str) -> bool {
        self.patterns
            .iter()
            .any(|glob| if path == self.source { glob.is_literally(path) } else { glob.matches(path) })
    }
}

/// The requested regular files beneath a directory, sorted by name. Links, devices, pipes and sockets are not followed
/// or opened, and nothing outside the directory is ever touched. Also returns how many were left out, for want of room.
#[must_use]
pub fn collect(dir: &OwnedFd, wanted: &Wanted<'_>) -> (Vec<CollectedFile>, usize) {
    let mut files = Vec::new();
    let left_out = visit(dir, wanted, |path, mut file, _| {
        let mut content = Vec::new();
        if file.read_to_end(&mut content).is_ok() {
            files.push(CollectedFile { path, content });
        }
    });
    (files, left_out)
}

/// The same one by one, for callers that have no room for all at once: each with its path and its size.
pub fn visit(dir: &OwnedFd, wanted: &Wanted<'_>, mut take: impl FnMut(String, Take<File>, u64)) -> usize {
    let mut found = find(dir.as_fd(), wanted);
    found.sort();
    let (mut room, mut left_out) = (wanted.bytes, 0);
    for path in found {
        let Some((file, size)) = open_file(dir.as_fd(), &path) else { continue };
        match room.checked_sub(size) {
            Some(rest) => {
                room = rest;
                take(shown(&path), file.take(size), size);
            }
            None => left_out += 1,
        }
    }
    left_out
}

/// Walks without recursion and without holding a descriptor for each level: a tree may be deeper than both.
fn find(root: BorrowedFd<'_>, wanted: &Wanted<'_>) -> Vec<PathBuf> {
    let (mut found, mut seen, mut kept, began) = (Vec::new(), 0, 0, Instant::now());
    let mut pending = vec![PathBuf::from(".")];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = open(root, &dir, OFlags::DIRECTORY).and_then(|fd| Ok(Dir::new(fd)?)) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            seen += 1;
            if seen > wanted.names || kept > MAX_PATHS || began.elapsed() > MAX_SEARCH {
                return found;
            }
            let path = dir.join(std::ffi::OsStr::from_bytes(name));
            if wanted.hidden.is_some_and(|hidden| shown(&path) == hidden) {
                continue;
            }
            let length = path.as_os_str().len();
            match entry.file_type() {
                FileType::Directory if path.components().count() < MAX_DEPTH => {
                    kept += length;
                    pending.push(path);
                }
                FileType::RegularFile if wanted.means(&shown(&path)) => {
                    kept += length;
                    found.push(path);
                }
                FileType::Directory
                | FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
        }
    }
    found
}

/// With its size, in which a hole counts as much as what could be in its place. `None` if it is not a file after all.
fn open_file(root: BorrowedFd<'_>, path: &Path) -> Option<(File, u64)> {
    let file = File::from(open(root, path, OFlags::NONBLOCK).ok()?);
    let metadata = file.metadata().ok()?;
    metadata.is_file().then_some((file, metadata.len()))
}

fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), beneath) {
        // gVisor does not support it.
        Err(Errno::NOSYS) => open_step_by_step(root, path, flags),
        other => Ok(other?),
    }
}

/// No step follows a link, so none leads out.
fn open_step_by_step(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    let mut dir = root.try_clone_to_owned()?;
    let on_the_way = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    for parent in path.parent().into_iter().flat_map(Path::components) {
        dir = rustix::fs::openat(&dir, parent.as_os_str(), on_the_way, Mode::empty())?;
    }
    let name = path.file_name().unwrap_or(std::ffi::OsStr::new("."));
    Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).to_string_lossy().into_owned()
}
