//! The caller's workspace in a box.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};

use super::{BEHIND, Site, attach_to, new_mount, open_dir, open_in_root, tmpfs};
use crate::plan::Input;
use crate::sys::{self, Subtree};

/// The directory of the scratch space for the layer over a writable workspace: what the code writes, and what overlayfs
/// needs beside that.
const LAYER: &str = "layer";
const UPPER: &str = "layer/upper";
const WORKDIR: &str = "layer/work";
/// How many directories of a workspace are made the code's own, those at the top first.
const MOST_OPENED: usize = 2000;

/// The layer over a writable workspace.
pub(super) struct Layer {
    /// What the code has written.
    pub(super) upper: OwnedFd,
    /// A read-only view of what is beneath, which is mounted nowhere.
    pub(super) before: OwnedFd,
}

impl Site<'_> {
    /// The workspace is the lower layer of an overlay, and the run's own files are the layer above it. So the working
    /// directory holds both, and nothing is written to the host. A socket that a host process has in the workspace
    /// cannot be connected to: the overlay's inode is not the one that process listens on.
    ///
    /// If the code can write there, what it writes goes to a third layer, in the scratch space: it counts as disk.
    pub(super) fn show_workspace(
        &mut self,
        source: u16,
        path: &Path,
        files: &[Input],
        writable: bool,
    ) -> io::Result<()> {
        let tree = self.take_source(source)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        sys::mount_setattr(tree.as_fd(), attributes.bits().into(), Subtree::Whole)?;
        attach_to(&tree, &self.dir_all(Path::new("/.lower"))?)?;

        let own = tmpfs(&[("mode", "755")], MountAttrFlags::empty())?;
        attach_to(&own, &self.dir_all(Path::new("/.own"))?)?;
        for file in files {
            self.put_input(own.as_fd(), file)?;
        }

        let lower = new_mount("overlay", &[("lowerdir", LOWER)], attributes)?;
        let point = self.dir_all(path)?;
        if writable {
            let layer = self.make_layer(lower)?;
            self.open_directories(&layer)?;
            attach_to(&layered(attributes - MountAttrFlags::MOUNT_ATTR_RDONLY)?, &point)?;
            self.layer = Some(layer);
        } else {
            attach_to(&lower, &point)?;
        }
        self.hide(Path::new(".own"))?;
        self.hide(Path::new(".lower"))
    }

    /// The directories of the layer. Its top is the code's, and so becomes the top of the workspace.
    fn make_layer(&self, before: OwnedFd) -> io::Result<Layer> {
        let scratch = self.scratch.as_ref().ok_or(io::ErrorKind::NotFound)?;
        for dir in [LAYER, UPPER, WORKDIR] {
            rustix::fs::mkdirat(scratch, dir, Mode::from_raw_mode(0o755))?;
        }
        let upper = open_dir(scratch.as_fd(), UPPER)?;
        self.give_to_code(&upper)?;
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(0o755))?;
        Ok(Layer { upper, before })
    }

    /// Makes the directories of the workspace the code's own in the layer, where its files could not be mapped to the
    /// code's user. The code can then make, replace and remove files in all of them, though not write into a file that
    /// is there and belongs to somebody else.
    fn open_directories(&self, layer: &Layer) -> io::Result<()> {
        let lower = open_in_root(self.root()?, Path::new("/.lower"), OFlags::DIRECTORY)?;
        if rustix::fs::fstat(&lower)?.st_uid == self.code.inside {
            return Ok(());
        }
        let mut pending = VecDeque::from([PathBuf::from(".")]);
        let mut made = 0;
        while let Some(dir) = pending.pop_front() {
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // A directory that everybody may read, and nobody else's.
            let Ok(before) = rustix::fs::openat2(&layer.before, &dir, flags, Mode::empty(), beneath) else {
                continue;
            };
            if dir != Path::new(".") {
                self.open_directory(layer, &dir, &before)?;
            }
            for entry in rustix::fs::Dir::new(before)?.flatten() {
                let name = entry.file_name().to_bytes();
                if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                    made += 1;
                    if made > MOST_OPENED {
                        return Ok(());
                    }
                    pending.push_back(dir.join(OsStr::from_bytes(name)));
                }
            }
        }
        Ok(())
    }

    fn open_directory(&self, layer: &Layer, dir: &Path, before: &OwnedFd) -> io::Result<()> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(before)?.st_mode & 0o777 | 0o700);
        rustix::fs::mkdirat(&layer.upper, dir, mode)?;
        let made = open_dir(layer.upper.as_fd(), dir)?;
        self.give_to_code(&made)?;
        Ok(rustix::fs::fchmod(&made, mode)?)
    }

    /// Unmounts it here; mounts made from it elsewhere remain.
    fn hide(&self, name: &Path) -> io::Result<()> {
        rustix::process::fchdir(self.root()?)?;
        rustix::mount::unmount(name, UnmountFlags::DETACH)?;
        Ok(rustix::fs::unlinkat(self.root()?, name, AtFlags::REMOVEDIR)?)
    }
}

/// The run's own files over the workspace, as seen from the new root.
const LOWER: &str = ".own:.lower";

/// An overlay of these with the layer on top. In a user namespace, overlayfs may keep its notes about removed
/// directories in `user.*` attributes only. A rename of a directory from below is refused (`EXDEV`), as programs expect
/// between file systems, instead of being noted as a redirection that a reader would have to follow.
fn layered(attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "lowerdir", LOWER)?;
    rustix::mount::fsconfig_set_string(&context, "upperdir", format!("{BEHIND}/{UPPER}"))?;
    rustix::mount::fsconfig_set_string(&context, "workdir", format!("{BEHIND}/{WORKDIR}"))?;
    rustix::mount::fsconfig_set_string(&context, "redirect_dir", "nofollow")?;
    rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
