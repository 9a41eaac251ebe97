//! Bringing files back. Everything here was named and written by hostile code; its tree is dead, so at least it
//! holds still.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::outcome::CollectedFile;
use belljar_core::request::Glob;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};

/// The deepest directory that is looked into.
const MAX_DEPTH: usize = 64;
/// The most bytes of paths that are kept: names cost hostile code nothing that its disk would count.
const MAX_PATHS: usize = 16 << 20;
/// The longest that is looked for files. Even many names take a fraction of it, unless names and patterns were made for
/// each other to take long.
const MAX_SEARCH: Duration = Duration::from_secs(10);

/// What to look for, and how much of it may come back.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub patterns: &'a [Glob],
    /// The code's own file, which no wildcard means.
    pub source: &'a str,
    /// The most bytes that all files together may have.
    pub bytes: u64,
    /// The most names that are looked at.
    pub names: u64,
}

impl Wanted<'_> {
    fn means(&self, path: &str) -> bool {
        self.patterns
            .iter()
            .any(|glob| if path == self.source { glob.is_literally(path) } else { glob.matches(path) })
    }
}

/// The regular files beneath a directory that are wanted, in the order of their names. Links, devices, pipes and
/// sockets are not followed or opened, and nothing outside of the directory is ever touched.
pub fn collect(dir: &OwnedFd, wanted: &Wanted<'_>) -> Vec<CollectedFile> {
    let mut found = find(dir.as_fd(), wanted);
    found.sort();
    let mut room = wanted.bytes;
    found.into_iter().filter_map(|path| read(dir.as_fd(), path, &mut room)).collect()
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

fn read(root: BorrowedFd<'_>, path: PathBuf, room: &mut u64) -> Option<CollectedFile> {
    let file = File::from(open(root, &path, OFlags::NONBLOCK).ok()?);
    let metadata = file.metadata().ok()?;
    // A file may say that it is larger than anything it could have written; then it is not read at all.
    if !metadata.is_file() || metadata.len() > *room {
        return None;
    }
    let mut content = Vec::new();
    file.take(*room).read_to_end(&mut content).ok()?;
    *room -= content.len() as u64;
    Some(CollectedFile { path: shown(&path), content })
}

fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), beneath)?)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).to_string_lossy().into_owned()
}
