//! The open files of a program.

use std::fs::File;

use belljar_core::backend::Stream;

use super::abi::{Errno, rights};
use crate::fs::{Device, Files, Ino, Opened, Place, ROOT};

/// The most that may be open at a time.
const MAX_OPEN: usize = 256;
/// The directory from which every path starts.
const ROOT_FD: u32 = 3;

/// An open file.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) what: What,
    /// As in `fdflags`.
    pub(crate) flags: u16,
    pub(crate) rights: u64,
    pub(crate) offset: u64,
}

/// What is open.
#[derive(Debug)]
pub(crate) enum What {
    /// Standard input.
    Stdin,
    /// Standard output or error.
    Output(Stream),
    /// A directory.
    Dir(Place),
    /// A file in memory.
    File(Ino),
    /// A file of the workspace.
    Host(File),
    /// A device.
    Device(Device),
}

impl From<Opened> for What {
    fn from(opened: Opened) -> What {
        match opened {
            Opened::Dir(place) => What::Dir(place),
            Opened::File(ino) => What::File(ino),
            Opened::Host(file) => What::Host(file),
            Opened::Device(Device::Stdin) => What::Stdin,
            Opened::Device(Device::Stdout) => What::Output(Stream::Stdout),
            Opened::Device(Device::Stderr) => What::Output(Stream::Stderr),
            Opened::Device(device) => What::Device(device),
        }
    }
}

/// All of them, by number.
#[derive(Debug)]
pub(crate) struct Descriptors(Vec<Option<Descriptor>>);

impl Descriptors {
    /// The initial ones: the streams, and the root.
    pub(crate) fn new() -> Descriptors {
        let open = |what, rights| Some(Descriptor { what, flags: 0, rights, offset: 0 });
        Descriptors(vec![
            open(What::Stdin, rights::READ),
            open(What::Output(Stream::Stdout), rights::WRITE),
            open(What::Output(Stream::Stderr), rights::WRITE),
            open(What::Dir(ROOT), rights::ALL),
        ])
    }

    /// The name of a directory that was open from the start.
    pub(crate) fn preopened(&self, fd: u32) -> Result<&'static str, Errno> {
        let is_root = fd == ROOT_FD && matches!(self.get(fd)?.what, What::Dir(ROOT));
        if is_root { Ok("/") } else { Err(Errno::Badf) }
    }

    /// An open file.
    pub(crate) fn get(&self, fd: u32) -> Result<&Descriptor, Errno> {
        self.0.get(fd as usize).and_then(Option::as_ref).ok_or(Errno::Badf)
    }

    /// An open file that has this right.
    pub(crate) fn with_right(&self, fd: u32, right: u64) -> Result<&Descriptor, Errno> {
        let descriptor = self.get(fd)?;
        if descriptor.rights & right == 0 { Err(Errno::Badf) } else { Ok(descriptor) }
    }

    /// An open file, to be changed.
    pub(crate) fn get_mut(&mut self, fd: u32) -> Result<&mut Descriptor, Errno> {
        self.0.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::Badf)
    }

    /// An open directory.
    pub(crate) fn dir(&self, fd: u32) -> Result<Place, Errno> {
        match &self.get(fd)?.what {
            What::Dir(place) => Ok(place.clone()),
            What::Stdin | What::Output(_) | What::File(_) | What::Host(_) | What::Device(_) => {
                Err(Errno::Notdir)
            }
        }
    }

    /// Whether one more may be opened.
    pub(crate) fn check_room(&self) -> Result<(), Errno> {
        let full = self.0.len() >= MAX_OPEN && self.0.iter().all(Option::is_some);
        if full { Err(Errno::Mfile) } else { Ok(()) }
    }

    /// Gives it the lowest number that is free.
    pub(crate) fn add(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        self.check_room()?;
        let free = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[free] = Some(descriptor);
        u32::try_from(free).map_err(|_| Errno::Mfile)
    }

    /// Closes one.
    pub(crate) fn close(&mut self, fd: u32, files: &mut Files) -> Result<(), Errno> {
        let closed = self.0.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::Badf)?;
        if let What::File(ino) = closed.what {
            files.close(ino);
        }
        Ok(())
    }

    /// Gives one the number of another, which is closed.
    pub(crate) fn renumber(&mut self, from: u32, to: u32, files: &mut Files) -> Result<(), Errno> {
        self.get(from)?;
        self.get(to)?;
        if from != to {
            self.close(to, files)?;
            self.0.swap(from as usize, to as usize);
        }
        Ok(())
    }
}
