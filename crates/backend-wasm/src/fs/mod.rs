//! All the files that a program can see. They are in memory and disappear with the run; under `/work` the caller's
//! directory shows through, read-only. Everything is counted before it is stored.

mod budget;
mod content;
mod walk;
mod workspace;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use belljar_core::outcome::CollectedFile;

pub(crate) use budget::Budget;
pub(crate) use walk::{Follow, Found, Place};
pub(crate) use workspace::Workspace;

use crate::wasi::abi::{Errno, FileStat, FileType};
use content::Content;

/// The number of a file in memory; never reused.
pub(crate) type Ino = u64;

pub(crate) const ROOT: Place = Place::Node(1);
/// The longest name.
const MAX_NAME: usize = 255;
/// The most links that one file may have in addition to its first name.
const MAX_LINKS: u32 = 1 << 16;
/// The longest time that a search for files to collect may take: names and patterns may have been crafted to be slow.
const MAX_SEARCH: Duration = Duration::from_secs(10);
/// Positions in a directory from here on belong to the caller's names.
const HOST_NAMES: u64 = 1 << 62;

/// The files of one run.
#[derive(Debug)]
pub(crate) struct Files {
    nodes: HashMap<Ino, Node>,
    /// The last number that was assigned, to a file or to a name.
    last: u64,
    workspace: Option<Workspace>,
    /// The directories in memory through which a part of the workspace shows.
    overlays: HashMap<PathBuf, Ino>,
    pub(crate) budget: Budget,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    /// Whether the program may change it.
    writable: bool,
    links: u32,
    opened: u32,
    modified: u64,
}

#[derive(Debug)]
enum Kind {
    Dir(Directory),
    File(Content),
    Link(String),
    Device(Device),
}

#[derive(Debug)]
struct Directory {
    parent: Ino,
    names: BTreeMap<String, Entry>,
    /// The part of the workspace that shows through.
    under: Option<PathBuf>,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
struct Entry {
    ino: Ino,
    /// Its position in the order in which names are listed.
    position: u64,
}

/// A special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those in /dev")]
pub(crate) enum Device {
    Null,
    Zero,
    Random,
    Stdin,
    Stdout,
    Stderr,
}

/// An open file.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A directory.
    Dir(Place),
    /// A file in memory.
    File(Ino),
    /// A file of the workspace.
    Host(File),
    /// A device.
    Device(Device),
}

/// How something is to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) follow: Follow,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) directory: bool,
    pub(crate) truncate: bool,
    pub(crate) write: bool,
}

/// An entry of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) position: u64,
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    pub(crate) name: String,
}

impl Files {
    /// An empty root, which the program cannot change.
    pub(crate) fn new(budget: Budget) -> Files {
        let root = Node {
            kind: Kind::Dir(Directory { parent: 1, names: BTreeMap::new(), under: None }),
            writable: false,
            links: 1,
            opened: 0,
            modified: now(),
        };
        // Positions 1 and 2 are those of `.` and `..`.
        let overlays = HashMap::new();
        Files { nodes: HashMap::from([(1, root)]), last: 2, workspace: None, overlays, budget }
    }

    /// Makes a directory and its parents, for the box and not for the program.
    pub(crate) fn furnish_dir(&mut self, path: &str, writable: bool) -> Result<Ino, Errno> {
        let mut at = 1;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = match self.dir(at)?.names.get(name) {
                Some(entry) => entry.ino,
                None => self.furnish_new_dir(at, name)?,
            };
        }
        self.node_mut(at)?.writable = writable;
        Ok(at)
    }

    fn furnish_new_dir(&mut self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        let (above, writable) = (self.dir(parent)?.under.clone(), self.node(parent)?.writable);
        let under = above.map(|above| above.join(name)).filter(|path| self.is_host_dir(path));
        let kind = Kind::Dir(Directory { parent, names: BTreeMap::new(), under: under.clone() });
        let ino = self.add(parent, name, kind, writable)?;
        if let Some(under) = under {
            self.overlays.insert(under, ino);
        }
        Ok(ino)
    }

    /// Makes a file, for the box.
    pub(crate) fn furnish_file(&mut self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let writable = self.furnished(dir).is_some_and(|ino| self.node(ino).is_ok_and(|node| node.writable));
        let parent = self.furnish_dir(dir, writable)?;
        let mut content = Content::default();
        if content.write_at(0, bytes, &mut self.budget)? < bytes.len() {
            return Err(Errno::Nospc);
        }
        self.add(parent, name, Kind::File(content), writable).map(drop)
    }

    /// Makes a device.
    pub(crate) fn furnish_device(&mut self, path: &str, device: Device) -> Result<(), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.furnish_dir(dir, false)?;
        self.add(parent, name, Kind::Device(device), true).map(drop)
    }

    /// Shows a workspace through this directory.
    pub(crate) fn furnish_workspace(&mut self, path: &str, workspace: Workspace) -> Result<(), Errno> {
        let ino = self.furnish_dir(path, false)?;
        self.workspace = Some(workspace);
        self.dir_mut(ino)?.under = Some(PathBuf::new());
        self.overlays.insert(PathBuf::new(), ino);
        Ok(())
    }

    /// The nearest existing directory on the way to this one.
    fn furnished(&self, path: &str) -> Option<Ino> {
        let mut at = 1;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.dir(at).ok()?.names.get(name) {
                Some(entry) => at = entry.ino,
                None => return Some(at),
            }
        }
        Some(at)
    }

    /// Opens something, or makes it.
    pub(crate) fn open(&mut self, start: &Place, path: &str, how: Opening) -> Result<Opened, Errno> {
        let follow = if how.create && how.exclusive { Follow::No } else { how.follow };
        let found = self.walk(start, path, follow)?;
        let opened = match &found.place {
            Some(_) if how.create && how.exclusive => return Err(Errno::Exist),
            Some(place) => self.open_place(place.clone(), how)?,
            None if !how.create || how.directory || found.is_to_be_dir => return Err(Errno::Noent),
            None => {
                let parent = self.changeable(&found.parent)?;
                Opened::File(self.add(parent, &found.name, Kind::File(Content::default()), true)?)
            }
        };
        if (how.directory || found.is_to_be_dir) && !matches!(opened, Opened::Dir(_)) {
            return Err(Errno::Notdir);
        }
        if let Opened::File(ino) = opened {
            let node = self.node_mut(ino)?;
            node.opened += 1;
        }
        Ok(opened)
    }

    fn open_place(&mut self, place: Place, how: Opening) -> Result<Opened, Errno> {
        let changes = how.write || how.truncate;
        match &place {
            Place::Host(path) => {
                let stat = self.workspace()?.stat(path)?;
                match stat.kind {
                    FileType::Directory if changes => Err(Errno::Isdir),
                    FileType::Directory => Ok(Opened::Dir(place)),
                    FileType::Symlink => Err(Errno::Loop),
                    FileType::Regular | FileType::Device | FileType::Unknown if changes => Err(Errno::Rofs),
                    FileType::Regular | FileType::Device | FileType::Unknown => {
                        Ok(Opened::Host(self.workspace()?.file(path)?))
                    }
                }
            }
            Place::Node(ino) => {
                let Files { nodes, budget, .. } = self;
                let node = nodes.get_mut(ino).ok_or(Errno::Noent)?;
                match &mut node.kind {
                    Kind::Dir(_) if changes => Err(Errno::Isdir),
                    Kind::Dir(_) => Ok(Opened::Dir(place)),
                    Kind::Link(_) => Err(Errno::Loop),
                    Kind::Device(device) => Ok(Opened::Device(*device)),
                    Kind::File(_) if changes && !node.writable => Err(Errno::Rofs),
                    Kind::File(content) => {
                        if how.truncate {
                            content.resize(0, budget)?;
                            node.modified = now();
                        }
                        Ok(Opened::File(*ino))
                    }
                }
            }
        }
    }

    /// Closes an open file. If it has no name any more, it is removed.
    pub(crate) fn close(&mut self, ino: Ino) {
        if let Ok(node) = self.node_mut(ino) {
            node.opened = node.opened.saturating_sub(1);
            self.forget_if_unused(ino);
        }
    }

    /// Reads from a file that is open.
    pub(crate) fn read_at(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        Ok(self.content(ino)?.read_at(offset, buffer))
    }

    /// Writes to a file that is open.
    pub(crate) fn write_at(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.change(ino, |content, budget| content.write_at(offset, bytes, budget))
    }

    /// Makes a file that is open longer or shorter.
    pub(crate) fn resize(&mut self, ino: Ino, size: u64) -> Result<(), Errno> {
        self.change(ino, |content, budget| content.resize(size, budget))
    }

    /// How long a file is.
    pub(crate) fn size(&self, ino: Ino) -> Result<u64, Errno> {
        Ok(self.content(ino)?.size())
    }

    /// What is known of something.
    pub(crate) fn stat(&self, place: &Place) -> Result<FileStat, Errno> {
        let ino = match place {
            Place::Host(path) => return self.workspace()?.stat(path),
            Place::Node(ino) => *ino,
        };
        let node = self.node(ino)?;
        let (kind, size) = match &node.kind {
            Kind::Dir(_) => (FileType::Directory, 0),
            Kind::File(content) => (FileType::Regular, content.size()),
            Kind::Link(target) => (FileType::Symlink, target.len() as u64),
            Kind::Device(_) => (FileType::Device, 0),
        };
        Ok(FileStat { ino, kind, links: u64::from(node.links), size, modified: node.modified })
    }

    /// Sets the modification time.
    pub(crate) fn set_modified(&mut self, place: &Place, time: u64) -> Result<(), Errno> {
        let Place::Node(ino) = place else { return Err(Errno::Rofs) };
        let node = self.node_mut(*ino)?;
        if !node.writable {
            return Err(Errno::Rofs);
        }
        node.modified = time;
        Ok(())
    }

    /// Makes a directory.
    pub(crate) fn create_dir(&mut self, start: &Place, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.vacancy(start, path)?;
        let kind = Kind::Dir(Directory { parent, names: BTreeMap::new(), under: None });
        self.add(parent, &name, kind, true).map(drop)
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(&mut self, target: &str, start: &Place, path: &str) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::Noent);
        }
        let (parent, name) = self.vacancy(start, path)?;
        self.add(parent, &name, Kind::Link(target.to_owned()), true).map(drop)
    }

    /// Gives a file another name.
    pub(crate) fn link(
        &mut self,
        from: (&Place, &str),
        follow: Follow,
        to: (&Place, &str),
    ) -> Result<(), Errno> {
        let Place::Node(ino) = self.walk(from.0, from.1, follow)?.existing()? else {
            return Err(Errno::Xdev);
        };
        let node = self.node(ino)?;
        match node.kind {
            Kind::Dir(_) | Kind::Device(_) => return Err(Errno::Perm),
            _ if !node.writable || node.links >= MAX_LINKS => return Err(Errno::Perm),
            Kind::File(_) | Kind::Link(_) => {}
        }
        let (parent, name) = self.vacancy(to.0, to.1)?;
        self.enter(parent, &name, ino)?;
        self.node_mut(ino)?.links += 1;
        Ok(())
    }

    /// The target of a link.
    pub(crate) fn read_link(&self, start: &Place, path: &str) -> Result<String, Errno> {
        let place = self.walk(start, path, Follow::No)?.existing()?;
        self.target(&place)?.ok_or(Errno::Inval)
    }

    /// Removes a file's name.
    pub(crate) fn unlink(&mut self, start: &Place, path: &str) -> Result<(), Errno> {
        let found = self.walk(start, path, Follow::No)?;
        let ino = self.removable(&found)?;
        if matches!(self.node(ino)?.kind, Kind::Dir(_)) {
            return Err(Errno::Isdir);
        }
        if found.is_to_be_dir {
            return Err(Errno::Notdir);
        }
        self.remove(&found)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&mut self, start: &Place, path: &str) -> Result<(), Errno> {
        let found = self.walk(start, path, Follow::No)?;
        let ino = self.removable(&found)?;
        if !self.dir(ino)?.names.is_empty() {
            return Err(Errno::Notempty);
        }
        self.remove(&found)
    }

    /// Moves something; what was there before is replaced.
    pub(crate) fn rename(&mut self, from: (&Place, &str), to: (&Place, &str)) -> Result<(), Errno> {
        let from = self.walk(from.0, from.1, Follow::No)?;
        let to = self.walk(to.0, to.1, Follow::No)?;
        let ino = self.removable(&from)?;
        let parent = self.changeable(&to.parent)?;
        check_name(&to.name)?;
        if let Some(there) = &to.place {
            if *there == Place::Node(ino) {
                return Ok(());
            }
            self.check_replaceable(ino, self.removable(&to)?)?;
        }
        let is_dir = matches!(self.node(ino)?.kind, Kind::Dir(_));
        if is_dir && self.is_within(parent, ino)? {
            return Err(Errno::Inval);
        }
        if !is_dir && (from.is_to_be_dir || to.is_to_be_dir) {
            return Err(Errno::Notdir);
        }
        if to.place.is_some() {
            self.remove(&to)?;
        }
        self.withdraw(&from)?;
        self.enter(parent, &to.name, ino)?;
        if let Kind::Dir(dir) = &mut self.node_mut(ino)?.kind {
            dir.parent = parent;
        }
        Ok(())
    }

    /// The names in a directory after a position.
    pub(crate) fn list(&self, place: &Place, after: u64) -> Result<Vec<Listed>, Errno> {
        let mut listed = Vec::new();
        for (position, name, place) in [(1, ".", place.clone()), (2, "..", self.parent(place)?)] {
            if position > after {
                let ino = self.stat(&place)?.ino;
                let kind = FileType::Directory;
                listed.push(Listed { position, ino, kind, name: name.to_owned() });
            }
        }
        let (own, under) = match place {
            Place::Host(path) => (None, Some(path.as_path())),
            Place::Node(ino) => self.dir(*ino).map(|dir| (Some(dir), dir.under.as_deref()))?,
        };
        if let Some(dir) = own {
            let mut own: Vec<_> = dir.names.iter().filter(|(_, entry)| entry.position > after).collect();
            own.sort_by_key(|(_, entry)| entry.position);
            for (name, entry) in own {
                let kind = self.stat(&Place::Node(entry.ino))?.kind;
                listed.push(Listed { position: entry.position, ino: entry.ino, kind, name: name.clone() });
            }
        }
        if let Some(under) = under {
            let hidden = |name: &str| own.is_some_and(|dir| dir.names.contains_key(name));
            let names = self.workspace()?.names(under)?.into_iter();
            let names = names.filter(|(name, _)| !hidden(name)).zip(HOST_NAMES..);
            listed.extend(
                names.filter(|(_, position)| *position > after).map(|((name, kind), position)| Listed {
                    position,
                    ino: position,
                    kind,
                    name,
                }),
            );
        }
        Ok(listed)
    }

    /// The requested regular files beneath a directory, sorted by name, as far as they fit, and how many do not.
    pub(crate) fn collect(
        &self,
        dir: &str,
        wanted: impl Fn(&str) -> bool,
        room: u64,
    ) -> (Vec<CollectedFile>, usize) {
        let Some(top) = self.furnished(dir) else { return (Vec::new(), 0) };
        let (mut found, mut pending) = (Vec::new(), vec![(String::new(), top)]);
        let began = Instant::now();
        while let Some((above, ino)) = pending.pop() {
            let Ok(dir) = self.dir(ino) else { continue };
            for (name, entry) in dir.names.iter().take_while(|_| began.elapsed() < MAX_SEARCH) {
                let path = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
                match self.node(entry.ino).map(|node| &node.kind) {
                    Ok(Kind::Dir(_)) if path.len() < crate::wasi::abi::MAX_PATH => {
                        pending.push((path, entry.ino))
                    }
                    Ok(Kind::File(content)) if wanted(&path) => found.push((path, content)),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let (mut room, all) = (room, found.len());
        let fits = found.into_iter().filter_map(|(path, content)| {
            room = room.checked_sub(content.size())?;
            Some(CollectedFile { path, content: content.to_vec() })
        });
        let files: Vec<_> = fits.collect();
        let left_out = all - files.len();
        (files, left_out)
    }

    /// Where something new may be made: the directory, and the name.
    fn vacancy(&self, start: &Place, path: &str) -> Result<(Ino, String), Errno> {
        let found = self.walk(start, path, Follow::No)?;
        if found.place.is_some() {
            return Err(Errno::Exist);
        }
        Ok((self.changeable(&found.parent)?, found.name))
    }

    /// A directory in memory that the program may change.
    fn changeable(&self, place: &Place) -> Result<Ino, Errno> {
        match place {
            Place::Node(ino) if self.node(*ino)?.writable => self.dir(*ino).map(|_| *ino),
            Place::Node(_) | Place::Host(_) => Err(Errno::Rofs),
        }
    }

    /// Something whose name may be removed.
    fn removable(&self, found: &Found) -> Result<Ino, Errno> {
        let place = found.place.as_ref().ok_or(Errno::Noent)?;
        if found.name.is_empty() {
            return Err(Errno::Busy);
        }
        self.changeable(&found.parent)?;
        match place {
            Place::Node(ino) => Ok(*ino),
            Place::Host(_) => Err(Errno::Rofs),
        }
    }

    fn check_replaceable(&self, ino: Ino, there: Ino) -> Result<(), Errno> {
        match (&self.node(ino)?.kind, &self.node(there)?.kind) {
            (Kind::Dir(_), Kind::Dir(dir)) if dir.names.is_empty() => Ok(()),
            (Kind::Dir(_), Kind::Dir(_)) => Err(Errno::Notempty),
            (Kind::Dir(_), _) => Err(Errno::Notdir),
            (_, Kind::Dir(_)) => Err(Errno::Isdir),
            (_, _) => Ok(()),
        }
    }

    /// Whether a directory is another, or beneath it.
    fn is_within(&self, mut dir: Ino, other: Ino) -> Result<bool, Errno> {
        while dir != other && dir != 1 {
            dir = self.dir(dir)?.parent;
        }
        Ok(dir == other)
    }

    /// A new file with its first name.
    fn add(&mut self, parent: Ino, name: &str, kind: Kind, writable: bool) -> Result<Ino, Errno> {
        self.last += 1;
        let ino = self.last;
        let node = Node { kind, writable, links: 1, opened: 0, modified: now() };
        self.enter(parent, name, ino)?;
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    fn enter(&mut self, parent: Ino, name: &str, ino: Ino) -> Result<(), Errno> {
        check_name(name)?;
        self.dir(parent)?;
        self.budget.take_entry()?;
        self.last += 1;
        let entry = Entry { ino, position: self.last };
        self.dir_mut(parent)?.names.insert(name.to_owned(), entry);
        self.node_mut(parent)?.modified = now();
        Ok(())
    }

    /// Removes a name, and the file if it has no other.
    fn remove(&mut self, found: &Found) -> Result<(), Errno> {
        let ino = self.withdraw(found)?;
        let node = self.node_mut(ino)?;
        node.links = node.links.saturating_sub(1);
        self.forget_if_unused(ino);
        Ok(())
    }

    fn withdraw(&mut self, found: &Found) -> Result<Ino, Errno> {
        let parent = self.changeable(&found.parent)?;
        let entry = self.dir_mut(parent)?.names.remove(&found.name).ok_or(Errno::Noent)?;
        self.node_mut(parent)?.modified = now();
        self.budget.give_entry();
        Ok(entry.ino)
    }

    fn forget_if_unused(&mut self, ino: Ino) {
        if self.node(ino).is_ok_and(|node| node.links == 0 && node.opened == 0)
            && let Some(Node { kind: Kind::File(content), .. }) = self.nodes.remove(&ino)
        {
            self.budget.give_blocks(content.blocks());
        }
    }

    fn change<T>(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Content, &mut Budget) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let node = self.nodes.get_mut(&ino).ok_or(Errno::Badf)?;
        let Kind::File(content) = &mut node.kind else { return Err(Errno::Inval) };
        node.modified = now();
        change(content, &mut self.budget)
    }

    fn content(&self, ino: Ino) -> Result<&Content, Errno> {
        match &self.node(ino)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Dir(_) | Kind::Link(_) | Kind::Device(_) => Err(Errno::Inval),
        }
    }

    fn node(&self, ino: Ino) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::Noent)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::Noent)
    }

    fn dir(&self, ino: Ino) -> Result<&Directory, Errno> {
        match &self.node(ino)?.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) | Kind::Link(_) | Kind::Device(_) => Err(Errno::Notdir),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> Result<&mut Directory, Errno> {
        match &mut self.node_mut(ino)?.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) | Kind::Link(_) | Kind::Device(_) => Err(Errno::Notdir),
        }
    }

    fn workspace(&self) -> Result<&Workspace, Errno> {
        self.workspace.as_ref().ok_or(Errno::Noent)
    }

    fn is_host_dir(&self, path: &Path) -> bool {
        let stat = self.workspace().and_then(|workspace| workspace.stat(path));
        stat.is_ok_and(|stat| stat.kind == FileType::Directory)
    }
}

fn check_name(name: &str) -> Result<(), Errno> {
    match name {
        "" | "." | ".." => Err(Errno::Exist),
        _ if name.len() > MAX_NAME => Err(Errno::Nametoolong),
        _ => Ok(()),
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::limits::LimitsRequest;

    const READING: Opening = Opening {
        follow: Follow::Yes,
        create: false,
        exclusive: false,
        directory: false,
        truncate: false,
        write: false,
    };
    const MAKING: Opening = Opening { create: true, write: true, ..READING };

    fn files() -> Files {
        let limits = LimitsRequest { disk: Some(1 << 20), ..LimitsRequest::default() };
        let mut files = Files::new(Budget::new(&limits.resolve().unwrap().0));
        files.furnish_dir("/sandbox", true).unwrap();
        files.furnish_dir("/tmp", true).unwrap();
        files.furnish_file("/lib/x.py", b"library").unwrap();
        files
    }

    fn make(files: &mut Files, path: &str, bytes: &[u8]) -> Ino {
        let Opened::File(ino) = files.open(&ROOT, path, MAKING).unwrap() else { panic!("it is a file") };
        files.write_at(ino, 0, bytes).unwrap();
        ino
    }

    fn text(files: &mut Files, path: &str) -> Result<String, Errno> {
        let Opened::File(ino) = files.open(&ROOT, path, READING)? else { return Err(Errno::Isdir) };
        let mut bytes = vec![0; usize::try_from(files.size(ino)?).unwrap()];
        files.read_at(ino, 0, &mut bytes)?;
        files.close(ino);
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_what_was_furnished_as_writable_can_be_written() {
        let mut files = files();
        assert_eq!(text(&mut files, "lib/x.py").unwrap(), "library", "the control");
        make(&mut files, "sandbox/own", b"x");
        for path in ["new", "lib/new", "lib/x.py"] {
            assert_eq!(files.open(&ROOT, path, MAKING).unwrap_err(), Errno::Rofs, "{path}");
        }
        assert_eq!(files.unlink(&ROOT, "lib/x.py"), Err(Errno::Rofs));
        assert_eq!(files.remove_dir(&ROOT, "tmp"), Err(Errno::Rofs));
        assert_eq!(files.rename((&ROOT, "sandbox/own"), (&ROOT, "lib/x.py")), Err(Errno::Rofs));
        assert_eq!(files.rename((&ROOT, "lib/x.py"), (&ROOT, "sandbox/mine")), Err(Errno::Rofs));
        let link = files.link((&ROOT, "lib/x.py"), Follow::Yes, (&ROOT, "sandbox/mine"));
        assert_eq!(link, Err(Errno::Perm), "a second name would not make it writable, but stay off");
        files.symlink("../lib/x.py", &ROOT, "sandbox/link").unwrap();
        assert_eq!(files.open(&ROOT, "sandbox/link", MAKING).unwrap_err(), Errno::Rofs);
    }

    #[test]
    fn a_file_without_a_name_lives_as_long_as_it_is_open_and_gives_its_space_back() {
        let mut files = files();
        // Everything except the block of the library.
        let whole = (1 << 20) - 4096;
        let ino = make(&mut files, "tmp/a", &vec![1; whole]);
        let other = make(&mut files, "tmp/b", &[]);
        files.unlink(&ROOT, "tmp/a").unwrap();
        assert_eq!(files.write_at(other, 0, b"x"), Err(Errno::Nospc), "it is still there");
        assert_eq!(files.size(ino), Ok(whole as u64));
        files.close(ino);
        assert_eq!(files.write_at(other, 0, b"x"), Ok(1));
        assert_eq!(files.size(ino), Err(Errno::Noent));
    }

    #[test]
    fn names_are_counted_and_come_back() {
        let mut files = files();
        let mut made = 0;
        while files.create_dir(&ROOT, &format!("tmp/{made}")).is_ok() {
            made += 1;
        }
        assert!((900..=1024).contains(&made), "{made}");
        assert_eq!(files.symlink("x", &ROOT, "tmp/link"), Err(Errno::Nospc));
        files.remove_dir(&ROOT, "tmp/0").unwrap();
        assert_eq!(files.symlink("x", &ROOT, "tmp/link"), Ok(()));
    }

    #[test]
    fn moving_replaces_what_may_be_replaced_and_makes_no_rings() {
        let mut files = files();
        make(&mut files, "tmp/a", b"a");
        make(&mut files, "tmp/b", b"b");
        files.create_dir(&ROOT, "tmp/d").unwrap();
        files.create_dir(&ROOT, "tmp/d/e").unwrap();
        files.rename((&ROOT, "tmp/a"), (&ROOT, "tmp/b")).unwrap();
        assert_eq!(text(&mut files, "tmp/b").unwrap(), "a");
        assert_eq!(text(&mut files, "tmp/a"), Err(Errno::Noent));
        assert_eq!(files.rename((&ROOT, "tmp/d"), (&ROOT, "tmp/d/e/f")), Err(Errno::Inval));
        assert_eq!(files.rename((&ROOT, "tmp/b"), (&ROOT, "tmp/d")), Err(Errno::Isdir));
        assert_eq!(files.rename((&ROOT, "tmp/d"), (&ROOT, "tmp/b")), Err(Errno::Notdir));
        files.rename((&ROOT, "tmp/d"), (&ROOT, "sandbox/d")).unwrap();
        let dir = files.walk(&ROOT, "sandbox/d/e", Follow::Yes).unwrap().existing().unwrap();
        let above = files.walk(&dir, "../..", Follow::Yes).unwrap().existing().unwrap();
        assert_eq!(above, files.walk(&ROOT, "sandbox", Follow::Yes).unwrap().existing().unwrap());
        assert_eq!(files.remove_dir(&ROOT, "sandbox/d"), Err(Errno::Notempty));
    }

    #[test]
    fn links_are_followed_within_the_box_and_not_for_ever() {
        let mut files = files();
        make(&mut files, "tmp/a", b"a");
        files.symlink("/tmp", &ROOT, "sandbox/absolute").unwrap();
        files.symlink("../../../../tmp/a", &ROOT, "sandbox/up").unwrap();
        files.symlink("round", &ROOT, "sandbox/round").unwrap();
        assert_eq!(text(&mut files, "sandbox/absolute/a").unwrap(), "a");
        assert_eq!(text(&mut files, "sandbox/up").unwrap(), "a");
        assert_eq!(text(&mut files, "sandbox/round"), Err(Errno::Loop));
        assert_eq!(files.read_link(&ROOT, "sandbox/round"), Ok("round".to_owned()));
        assert_eq!(text(&mut files, "tmp/a/b"), Err(Errno::Notdir));
        assert_eq!(text(&mut files, "tmp/a/"), Err(Errno::Notdir));
    }

    #[test]
    fn a_listing_continues_where_it_stopped_although_names_were_removed() {
        let mut files = files();
        for n in 0..10 {
            make(&mut files, &format!("tmp/{n}"), b"");
        }
        let dir = files.walk(&ROOT, "tmp", Follow::Yes).unwrap().existing().unwrap();
        let all = files.list(&dir, 0).unwrap();
        assert_eq!(all.len(), 12);
        let fifth = all[6].position;
        (0..5).for_each(|n| files.unlink(&ROOT, &format!("tmp/{n}")).unwrap());
        let rest: Vec<_> = files.list(&dir, fifth).unwrap().into_iter().map(|listed| listed.name).collect();
        assert_eq!(rest, ["5", "6", "7", "8", "9"]);
    }

    #[test]
    fn files_lie_on_top_of_the_workspace_which_shows_through() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("data")).unwrap();
        std::fs::write(host.path().join("data/old"), "old").unwrap();
        std::fs::write(host.path().join("data/same"), "host").unwrap();
        let mut files = files();
        files.furnish_workspace("/work", Workspace::open(host.path()).unwrap()).unwrap();
        files.furnish_file("/work/data/same", b"box").unwrap();
        assert_eq!(text(&mut files, "work/data/same").unwrap(), "box");
        let Opened::Host(_) = files.open(&ROOT, "work/data/old", READING).unwrap() else {
            panic!("the host's")
        };
        let dir = files.walk(&ROOT, "work/data", Follow::Yes).unwrap().existing().unwrap();
        let names: Vec<_> = files.list(&dir, 2).unwrap().into_iter().map(|listed| listed.name).collect();
        assert_eq!(names, ["same", "old"]);
        for path in ["work/new", "work/data/new", "work/data/old", "work/data/same"] {
            assert_eq!(files.open(&ROOT, path, MAKING).unwrap_err(), Errno::Rofs, "{path}");
        }
    }
}
