//! How a keeper gets into a template (`template.rs`), and back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

use crate::fault::{Doing, Fault};

/// A keeper in a template, where it clones PID 1. Its way back is by descriptors: there is no path from there.
pub(crate) struct Visit {
    home: OwnedFd,
    root: OwnedFd,
}

impl Visit {
    pub(crate) fn begin(template: BorrowedFd<'_>) -> Result<Visit, Fault> {
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let home = open("/proc/self/ns/mnt").doing(|| "open the keeper's mount namespace")?;
        let root = open("/").doing(|| "open the keeper's root directory")?;
        enter(template).doing(|| "enter the template")?;
        Ok(Visit { home, root })
    }

    /// Entering a mount namespace makes its root the root directory, which was another one if the server runs in a
    /// `chroot`.
    pub(crate) fn end(self) -> Result<(), Fault> {
        let returned = enter(self.home.as_fd())
            .and_then(|()| Ok(rustix::process::fchdir(&self.root)?))
            .and_then(|()| Ok(rustix::process::chroot(".")?));
        returned.doing(|| "leave the template")
    }
}

fn enter(mounts: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?)
}
