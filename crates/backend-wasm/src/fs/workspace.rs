//! The caller's directory, read-only. [`super::Files`] resolves paths in it name by name, links included, so that the
//! kernel is only ever asked for a name that is not a link, beneath an open directory.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno as HostErrno;

use crate::wasi::abi::{Errno, FileStat, FileType};

/// The most names of one directory that are shown.
const MAX_NAMES: usize = 65_536;

/// A directory of the host.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: OwnedFd,
}

impl Workspace {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> std::io::Result<Workspace> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Workspace { root: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// What is known of a file in it. A link is not followed.
    pub(crate) fn stat(&self, path: &Path) -> Result<FileStat, Errno> {
        let found = self.beneath(path, OFlags::PATH)?;
        Ok(described(&rustix::fs::fstat(found).map_err(told)?))
    }

    /// Opens a regular file: never a host file that has an effect when it is opened.
    pub(crate) fn file(&self, path: &Path) -> Result<File, Errno> {
        if self.stat(path)?.kind != FileType::Regular {
            return Err(Errno::Acces);
        }
        let file = File::from(self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        let kind = described(&rustix::fs::fstat(&file).map_err(told)?).kind;
        if kind == FileType::Regular { Ok(file) } else { Err(Errno::Acces) }
    }

    /// Where a link leads to.
    pub(crate) fn link(&self, path: &Path) -> Result<String, Errno> {
        let link = self.beneath(path, OFlags::PATH)?;
        let target = rustix::fs::readlinkat(link, "", Vec::new()).map_err(told)?;
        target.into_string().map_err(|_| Errno::Ilseq)
    }

    /// The names in a directory, sorted; names that are not valid text are left out.
    pub(crate) fn names(&self, path: &Path) -> Result<Vec<(String, FileType)>, Errno> {
        let dir = self.beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = Dir::new(dir).map_err(told)?.flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?.to_owned();
            (name != "." && name != "..").then(|| (name, kind_of(entry.file_type())))
        });
        let mut names: Vec<_> = named.take(MAX_NAMES).collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(names)
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(
            &self.root,
            OsStr::from_bytes(path.as_os_str().as_bytes()),
            flags,
            Mode::empty(),
            resolve,
        )
        .map_err(told)
    }
}

fn described(stat: &Stat) -> FileStat {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    FileStat {
        ino: stat.st_ino,
        kind: kind_of(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        links: 1,
        size,
        modified: seconds.saturating_mul(1_000_000_000),
    }
}

fn kind_of(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Host;
    match kind {
        Host::RegularFile => FileType::Regular,
        Host::Directory => FileType::Directory,
        Host::Symlink => FileType::Symlink,
        Host::CharacterDevice | Host::BlockDevice => FileType::Device,
        Host::Fifo | Host::Socket | Host::Unknown => FileType::Unknown,
    }
}

fn told(errno: HostErrno) -> Errno {
    match errno {
        HostErrno::NOENT => Errno::Noent,
        HostErrno::NOTDIR => Errno::Notdir,
        HostErrno::ACCESS | HostErrno::PERM => Errno::Acces,
        HostErrno::LOOP => Errno::Loop,
        HostErrno::NAMETOOLONG => Errno::Nametoolong,
        HostErrno::XDEV => Errno::Xdev,
        HostErrno::MFILE | HostErrno::NFILE => Errno::Mfile,
        _ => Errno::Io,
    }
}
