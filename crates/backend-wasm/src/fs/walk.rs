//! Resolves a path, name by name. Links are resolved from their own directory, and none leads out: the root's parent is
//! the root.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::{Files, Ino, Kind, MAX_NAME, ROOT};
use crate::wasi::abi::{Errno, FileType, MAX_PATH};

/// The most links in one path.
const MAX_HOPS: usize = 40;

/// Where something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory.
    Node(Ino),
    /// In the workspace, at this path beneath it.
    Host(PathBuf),
}

/// Whether a link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum Follow {
    Yes,
    No,
}

/// The result of resolving a path.
#[derive(Debug)]
pub(crate) struct Found {
    /// The directory that the last name is in.
    pub(crate) parent: Place,
    /// The last name; empty if the path ends in a directory without a name, such as `..`.
    pub(crate) name: String,
    /// What exists there, if anything.
    pub(crate) place: Option<Place>,
    /// Whether the path requires a directory.
    pub(crate) is_to_be_dir: bool,
}

impl Found {
    /// What is there.
    pub(crate) fn existing(self) -> Result<Place, Errno> {
        self.place.ok_or(Errno::Noent)
    }
}

impl Files {
    /// Resolves a path from a directory. A leading slash is ignored: a path is always relative to a directory.
    pub(crate) fn walk(&self, start: &Place, path: &str, follow: Follow) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno::Noent);
        }
        let is_to_be_dir = path.ends_with('/') || path.ends_with("/.");
        let mut names = names_of(path);
        let (mut at, mut hops) = (start.clone(), 0);
        let mut arrived = (at.clone(), String::new());
        while let Some(name) = names.pop_front() {
            self.check_dir(&at)?;
            if name == ".." {
                at = self.parent(&at)?;
                arrived = (at.clone(), String::new());
                continue;
            }
            if name.len() > MAX_NAME {
                return Err(Errno::Nametoolong);
            }
            let Some(next) = self.lookup(&at, &name)? else {
                if !names.is_empty() {
                    return Err(Errno::Noent);
                }
                return Ok(Found { parent: at, name, place: None, is_to_be_dir });
            };
            let goes_on = !names.is_empty() || follow == Follow::Yes || is_to_be_dir;
            match self.target(&next)?.filter(|_| goes_on) {
                Some(target) => {
                    hops += 1;
                    if hops > MAX_HOPS || target.len() > MAX_PATH {
                        return Err(Errno::Loop);
                    }
                    if target.starts_with('/') {
                        at = ROOT;
                    }
                    arrived = (at.clone(), String::new());
                    let mut ahead = names_of(&target);
                    ahead.append(&mut names);
                    names = ahead;
                }
                None => {
                    arrived = (at, name);
                    at = next;
                }
            }
        }
        let (parent, name) = arrived;
        Ok(Found { parent, name, place: Some(at), is_to_be_dir })
    }

    /// The directory above.
    pub(super) fn parent(&self, place: &Place) -> Result<Place, Errno> {
        match place {
            Place::Node(ino) => Ok(Place::Node(self.dir(*ino)?.parent)),
            Place::Host(path) => Ok(self.overlaid(path.parent().unwrap_or(Path::new("")))),
        }
    }

    /// The target of a link, if it is one.
    pub(super) fn target(&self, place: &Place) -> Result<Option<String>, Errno> {
        match place {
            Place::Node(ino) => match &self.node(*ino)?.kind {
                Kind::Link(target) => Ok(Some(target.clone())),
                Kind::Dir(_) | Kind::File(_) | Kind::Device(_) => Ok(None),
            },
            Place::Host(path) if self.workspace()?.stat(path)?.kind == FileType::Symlink => {
                self.workspace()?.link(path).map(Some)
            }
            Place::Host(_) => Ok(None),
        }
    }

    fn lookup(&self, dir: &Place, name: &str) -> Result<Option<Place>, Errno> {
        let under = match dir {
            Place::Host(path) => path,
            Place::Node(ino) => {
                let dir = self.dir(*ino)?;
                if let Some(entry) = dir.names.get(name) {
                    return Ok(Some(Place::Node(entry.ino)));
                }
                let Some(under) = &dir.under else { return Ok(None) };
                under
            }
        };
        let path = under.join(name);
        match self.workspace()?.stat(&path) {
            Ok(_) => Ok(Some(Place::Host(path))),
            Err(Errno::Noent) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn check_dir(&self, place: &Place) -> Result<(), Errno> {
        match place {
            Place::Node(ino) => self.dir(*ino).map(drop),
            Place::Host(path) if self.is_host_dir(path) => Ok(()),
            Place::Host(_) => Err(Errno::Notdir),
        }
    }

    /// The directory at a path of the workspace, with what was put over it.
    fn overlaid(&self, path: &Path) -> Place {
        self.overlays.get(path).map_or_else(|| Place::Host(path.to_owned()), |ino| Place::Node(*ino))
    }
}

fn names_of(path: &str) -> VecDeque<String> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned).collect()
}
