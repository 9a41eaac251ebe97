//! The calls of the system interface, each under its own name.

#![allow(clippy::unnecessary_wraps, reason = "every call answers in the same way")]
#![allow(clippy::too_many_arguments, reason = "the interface has as many")]

use std::os::unix::fs::FileExt;
use std::time::Duration;

use belljar_core::backend::Stream;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use super::abi::{Errno, FOLLOW, Fault, FileStat, FileType, Memory, fdflags, oflags, rights};
use super::descriptors::{Descriptor, What};
use crate::fs::{Device, Follow, Opening, Place, now};
use crate::guest::Guest;

pub(super) use super::poll::poll_oneoff;

type Done = Result<(), Fault>;

/// The most that one call reads or writes; for more, the program calls again.
const MAX_TRANSFER: u32 = 1 << 20;

pub(super) fn args_get(memory: &mut Memory<'_>, guest: &mut Guest, list: u32, text: u32) -> Done {
    put_strings(memory, &guest.system.args, list, text)
}

pub(super) fn args_sizes_get(memory: &mut Memory<'_>, guest: &mut Guest, count: u32, size: u32) -> Done {
    put_sizes(memory, &guest.system.args, count, size)
}

pub(super) fn environ_get(memory: &mut Memory<'_>, guest: &mut Guest, list: u32, text: u32) -> Done {
    put_strings(memory, &guest.system.env, list, text)
}

pub(super) fn environ_sizes_get(memory: &mut Memory<'_>, guest: &mut Guest, count: u32, size: u32) -> Done {
    put_sizes(memory, &guest.system.env, count, size)
}

pub(super) fn clock_res_get(memory: &mut Memory<'_>, _: &mut Guest, clock: u32, out: u32) -> Done {
    if clock > 3 {
        return Err(Errno::Inval.into());
    }
    Ok(memory.put_u64(out, 1000)?)
}

pub(super) fn clock_time_get(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    clock: u32,
    _precision: u64,
    out: u32,
) -> Done {
    Ok(memory.put_u64(out, time_of(guest, clock)?)?)
}

pub(super) fn fd_advise(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, _: u64, _: u64, _: u32) -> Done {
    guest.check_open(fd)
}

pub(super) fn fd_allocate(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, offset: u64, length: u64) -> Done {
    let ino = guest.writable_file(fd)?;
    let size = offset.checked_add(length).ok_or(Errno::Fbig)?;
    if size > guest.system.files.size(ino)? {
        guest.system.files.resize(ino, size)?;
    }
    Ok(())
}

pub(super) fn fd_close(_: &mut Memory<'_>, guest: &mut Guest, fd: u32) -> Done {
    Ok(guest.system.descriptors.close(fd, &mut guest.system.files)?)
}

pub(super) fn fd_datasync(memory: &mut Memory<'_>, guest: &mut Guest, fd: u32) -> Done {
    fd_sync(memory, guest, fd)
}

pub(super) fn fd_fdstat_get(memory: &mut Memory<'_>, guest: &mut Guest, fd: u32, out: u32) -> Done {
    let kind = guest.stat(fd)?.kind;
    let descriptor = guest.system.descriptors.get(fd)?;
    let mut record = [0; 24];
    record[0] = kind as u8;
    record[2..4].copy_from_slice(&descriptor.flags.to_le_bytes());
    record[8..16].copy_from_slice(&descriptor.rights.to_le_bytes());
    let inherited = if kind == FileType::Directory { rights::ALL } else { 0 };
    record[16..24].copy_from_slice(&inherited.to_le_bytes());
    Ok(memory.put(out, &record)?)
}

pub(super) fn fd_fdstat_set_flags(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, flags: u32) -> Done {
    let flags = flags_of(flags)?;
    guest.system.descriptors.get_mut(fd)?.flags = flags;
    Ok(())
}

pub(super) fn fd_fdstat_set_rights(
    _: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    base: u64,
    _inheriting: u64,
) -> Done {
    let descriptor = guest.system.descriptors.get_mut(fd)?;
    if base & !descriptor.rights != 0 {
        return Err(Errno::Perm.into());
    }
    descriptor.rights = base;
    Ok(())
}

pub(super) fn fd_filestat_get(memory: &mut Memory<'_>, guest: &mut Guest, fd: u32, out: u32) -> Done {
    let stat = guest.stat(fd)?;
    Ok(memory.put_stat(out, &stat)?)
}

pub(super) fn fd_filestat_set_size(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, size: u64) -> Done {
    let ino = guest.writable_file(fd)?;
    Ok(guest.system.files.resize(ino, size)?)
}

pub(super) fn fd_filestat_set_times(
    _: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    _accessed: u64,
    modified: u64,
    which: u32,
) -> Done {
    let place = match &guest.system.descriptors.get(fd)?.what {
        What::Dir(place) => place.clone(),
        What::File(ino) => Place::Node(*ino),
        What::Stdin | What::Output(_) | What::Host(_) | What::Device(_) => return Err(Errno::Rofs.into()),
    };
    guest.set_times(&place, modified, which)
}

pub(super) fn fd_pread(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    pieces: u32,
    count: u32,
    offset: u64,
    out: u32,
) -> Done {
    guest.check_seekable(fd)?;
    guest.read(memory, fd, (pieces, count), Some(offset), out)
}

pub(super) fn fd_prestat_get(memory: &mut Memory<'_>, guest: &mut Guest, fd: u32, out: u32) -> Done {
    let name = guest.system.descriptors.preopened(fd)?;
    memory.put_u32(out, 0)?;
    Ok(memory.put_length(out.checked_add(4).ok_or(Errno::Fault)?, name.len())?)
}

pub(super) fn fd_prestat_dir_name(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    out: u32,
    length: u32,
) -> Done {
    let name = guest.system.descriptors.preopened(fd)?;
    if (length as usize) < name.len() {
        return Err(Errno::Nametoolong.into());
    }
    Ok(memory.put(out, name.as_bytes())?)
}

pub(super) fn fd_pwrite(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    pieces: u32,
    count: u32,
    offset: u64,
    out: u32,
) -> Done {
    guest.check_seekable(fd)?;
    guest.write(memory, fd, (pieces, count), Some(offset), out)
}

pub(super) fn fd_read(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    pieces: u32,
    count: u32,
    out: u32,
) -> Done {
    guest.read(memory, fd, (pieces, count), None, out)
}

pub(super) fn fd_readdir(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    buffer: u32,
    length: u32,
    position: u64,
    out: u32,
) -> Done {
    let place = guest.system.descriptors.dir(fd)?;
    let length = length.min(MAX_TRANSFER);
    let mut lines = Vec::new();
    for listed in guest.system.files.list(&place, position)? {
        lines.extend_from_slice(&listed.position.to_le_bytes());
        lines.extend_from_slice(&listed.ino.to_le_bytes());
        let name = u32::try_from(listed.name.len()).map_err(|_| Errno::Overflow)?;
        lines.extend_from_slice(&name.to_le_bytes());
        lines.extend_from_slice(&[listed.kind as u8, 0, 0, 0]);
        lines.extend_from_slice(listed.name.as_bytes());
        // An entry that does not fit is cut off, which tells the program that there is more.
        if lines.len() >= length as usize {
            break;
        }
    }
    lines.truncate(length as usize);
    memory.put(buffer, &lines)?;
    Ok(memory.put_length(out, lines.len())?)
}

pub(super) fn fd_renumber(_: &mut Memory<'_>, guest: &mut Guest, from: u32, to: u32) -> Done {
    Ok(guest.system.descriptors.renumber(from, to, &mut guest.system.files)?)
}

pub(super) fn fd_seek(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    offset: i64,
    whence: u32,
    out: u32,
) -> Done {
    guest.check_seekable(fd)?;
    let from = match whence {
        0 => 0,
        1 => guest.system.descriptors.get(fd)?.offset,
        2 => guest.stat(fd)?.size,
        _ => return Err(Errno::Inval.into()),
    };
    let to = from.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok()).ok_or(Errno::Inval)?;
    guest.system.descriptors.get_mut(fd)?.offset = to;
    Ok(memory.put_u64(out, to)?)
}

pub(super) fn fd_sync(_: &mut Memory<'_>, guest: &mut Guest, fd: u32) -> Done {
    guest.check_open(fd)
}

pub(super) fn fd_tell(memory: &mut Memory<'_>, guest: &mut Guest, fd: u32, out: u32) -> Done {
    guest.check_seekable(fd)?;
    Ok(memory.put_u64(out, guest.system.descriptors.get(fd)?.offset)?)
}

pub(super) fn fd_write(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    pieces: u32,
    count: u32,
    out: u32,
) -> Done {
    guest.write(memory, fd, (pieces, count), None, out)
}

pub(super) fn path_create_directory(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    path: u32,
    length: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    Ok(guest.system.files.create_dir(&dir, &path)?)
}

pub(super) fn path_filestat_get(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    out: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    let stat = guest.stat_named(&dir, &path, follow(flags))?;
    Ok(memory.put_stat(out, &stat)?)
}

pub(super) fn path_filestat_set_times(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    _accessed: u64,
    modified: u64,
    which: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    let place = guest.system.files.walk(&dir, &path, follow(flags))?.existing()?;
    guest.set_times(&place, modified, which)
}

pub(super) fn path_link(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    from: u32,
    flags: u32,
    path: u32,
    length: u32,
    to: u32,
    new: u32,
    new_length: u32,
) -> Done {
    let (dir, path) = guest.named(memory, from, path, length)?;
    let (new_dir, new) = guest.named(memory, to, new, new_length)?;
    Ok(guest.system.files.link((&dir, &path), follow(flags), (&new_dir, &new))?)
}

pub(super) fn path_open(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    look: u32,
    path: u32,
    length: u32,
    how: u32,
    base: u64,
    _inheriting: u64,
    flags: u32,
    out: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    let flags = flags_of(flags)?;
    guest.system.descriptors.check_room()?;
    let opening = Opening {
        follow: follow(look),
        create: how & oflags::CREATE != 0,
        exclusive: how & oflags::EXCLUSIVE != 0,
        directory: how & oflags::DIRECTORY != 0,
        truncate: how & oflags::TRUNCATE != 0,
        // Libraries open a directory with every right, but it may not be written to.
        write: base & rights::WRITE != 0 && how & oflags::DIRECTORY == 0,
    };
    let what = What::from(open_as_allowed(guest, &dir, &path, opening, base)?);
    let rights = if matches!(what, What::Dir(_)) { rights::ALL & !rights::WRITE } else { base & rights::ALL };
    let opened = guest.system.descriptors.add(Descriptor { what, flags, rights, offset: 0 })?;
    Ok(memory.put_u32(out, opened)?)
}

pub(super) fn path_readlink(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    path: u32,
    length: u32,
    buffer: u32,
    room: u32,
    out: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    let target = guest.system.files.read_link(&dir, &path)?;
    let target = &target.as_bytes()[..target.len().min(room as usize)];
    memory.put(buffer, target)?;
    Ok(memory.put_length(out, target.len())?)
}

pub(super) fn path_remove_directory(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    path: u32,
    length: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    Ok(guest.system.files.remove_dir(&dir, &path)?)
}

pub(super) fn path_rename(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    from: u32,
    path: u32,
    length: u32,
    to: u32,
    new: u32,
    new_length: u32,
) -> Done {
    let (dir, path) = guest.named(memory, from, path, length)?;
    let (new_dir, new) = guest.named(memory, to, new, new_length)?;
    Ok(guest.system.files.rename((&dir, &path), (&new_dir, &new))?)
}

pub(super) fn path_symlink(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    target: u32,
    target_length: u32,
    fd: u32,
    path: u32,
    length: u32,
) -> Done {
    let target = memory.path(target, target_length)?;
    let (dir, path) = guest.named(memory, fd, path, length)?;
    Ok(guest.system.files.symlink(&target, &dir, &path)?)
}

pub(super) fn path_unlink_file(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    path: u32,
    length: u32,
) -> Done {
    let (dir, path) = guest.named(memory, fd, path, length)?;
    Ok(guest.system.files.unlink(&dir, &path)?)
}

/// There are no signals.
pub(super) fn proc_raise(_: &mut Memory<'_>, _: &mut Guest, _signal: u32) -> Done {
    Err(Errno::Nosys.into())
}

pub(super) fn random_get(memory: &mut Memory<'_>, guest: &mut Guest, buffer: u32, length: u32) -> Done {
    // In pieces, so that a program that asks for much can be stopped meanwhile.
    for piece in memory.bytes_mut(buffer, length)?.chunks_mut(MAX_TRANSFER as usize) {
        guest.link.check()?;
        fill_randomly(piece)?;
    }
    Ok(())
}

pub(super) fn sched_yield(_: &mut Memory<'_>, _: &mut Guest) -> Done {
    std::thread::yield_now();
    Ok(())
}

pub(super) fn sock_accept(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, _: u32, _: u32) -> Done {
    no_socket(guest, fd)
}

pub(super) fn sock_recv(
    _: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
) -> Done {
    no_socket(guest, fd)
}

pub(super) fn sock_send(
    _: &mut Memory<'_>,
    guest: &mut Guest,
    fd: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
) -> Done {
    no_socket(guest, fd)
}

pub(super) fn sock_shutdown(_: &mut Memory<'_>, guest: &mut Guest, fd: u32, _: u32) -> Done {
    no_socket(guest, fd)
}

impl Guest {
    fn check_open(&self, fd: u32) -> Done {
        self.system.descriptors.get(fd)?;
        Ok(())
    }

    /// An open directory, and a path from there.
    fn named(&self, memory: &Memory<'_>, fd: u32, path: u32, length: u32) -> Result<(Place, String), Fault> {
        Ok((self.system.descriptors.dir(fd)?, memory.path(path, length)?))
    }

    fn stat_named(&self, dir: &Place, path: &str, follow: Follow) -> Result<FileStat, Errno> {
        let found = self.system.files.walk(dir, path, follow)?;
        let is_to_be_dir = found.is_to_be_dir;
        let stat = self.system.files.stat(&found.existing()?)?;
        if is_to_be_dir && stat.kind != FileType::Directory { Err(Errno::Notdir) } else { Ok(stat) }
    }

    /// What is known of an open file.
    fn stat(&self, fd: u32) -> Result<FileStat, Errno> {
        let bare = |kind| FileStat { ino: u64::from(fd), kind, links: 1, size: 0, modified: 0 };
        match &self.system.descriptors.get(fd)?.what {
            // The first three are pipes; a stream opened by its name in `/dev` is a device, though not a terminal.
            What::Stdin | What::Output(_) if fd < 3 => Ok(bare(FileType::Unknown)),
            What::Stdin | What::Output(_) | What::Device(_) => Ok(bare(FileType::Device)),
            What::Dir(place) => self.system.files.stat(place),
            What::File(ino) => self.system.files.stat(&Place::Node(*ino)),
            What::Host(file) => {
                let about = file.metadata().map_err(|_| Errno::Io)?;
                Ok(FileStat { size: about.len(), ..bare(FileType::Regular) })
            }
        }
    }

    fn set_times(&mut self, place: &Place, modified: u64, which: u32) -> Done {
        let time = match which & 12 {
            4 => modified,
            8 => now(),
            0 => return Ok(()),
            _ => return Err(Errno::Inval.into()),
        };
        Ok(self.system.files.set_modified(place, time)?)
    }

    fn writable_file(&self, fd: u32) -> Result<crate::fs::Ino, Errno> {
        let descriptor = self.system.descriptors.get(fd)?;
        match descriptor.what {
            What::File(ino) if descriptor.rights & rights::WRITE != 0 => Ok(ino),
            What::Stdin
            | What::Output(_)
            | What::Dir(_)
            | What::File(_)
            | What::Host(_)
            | What::Device(_) => Err(Errno::Inval),
        }
    }

    fn check_seekable(&self, fd: u32) -> Result<(), Errno> {
        match self.system.descriptors.get(fd)?.what {
            What::Stdin | What::Output(_) => Err(Errno::Spipe),
            What::Dir(_) => Err(Errno::Badf),
            What::File(_) | What::Host(_) | What::Device(_) => Ok(()),
        }
    }

    /// Reads into the first piece that has room, and returns how much; a read may be short.
    fn read(
        &mut self,
        memory: &mut Memory<'_>,
        fd: u32,
        pieces: (u32, u32),
        at: Option<u64>,
        out: u32,
    ) -> Done {
        let piece = first_piece(memory, pieces)?;
        let descriptor = self.system.descriptors.with_right(fd, rights::READ)?;
        let Some((address, length)) = piece else { return Ok(memory.put_u32(out, 0)?) };
        let buffer = memory.bytes_mut(address, length)?;
        let offset = at.unwrap_or(descriptor.offset);
        let read = match &descriptor.what {
            What::Stdin => self.link.read(buffer)?,
            What::File(ino) => self.system.files.read_at(*ino, offset, buffer)?,
            What::Host(file) => file.read_at(buffer, offset).map_err(|_| Errno::Io)?,
            What::Device(device) => read_device(*device, buffer)?,
            What::Dir(_) => return Err(Errno::Isdir.into()),
            What::Output(_) => return Err(Errno::Badf.into()),
        };
        if at.is_none() {
            self.system.descriptors.get_mut(fd)?.offset = offset.saturating_add(read as u64);
        }
        Ok(memory.put_length(out, read)?)
    }

    /// Writes the first piece that is not empty, and returns how much; a write may be short.
    fn write(
        &mut self,
        memory: &mut Memory<'_>,
        fd: u32,
        pieces: (u32, u32),
        at: Option<u64>,
        out: u32,
    ) -> Done {
        let piece = first_piece(memory, pieces)?;
        let descriptor = self.system.descriptors.with_right(fd, rights::WRITE)?;
        let appends = at.is_none() && descriptor.flags & fdflags::APPEND != 0;
        let offset = match descriptor.what {
            What::File(ino) if appends => self.system.files.size(ino)?,
            What::Stdin
            | What::Output(_)
            | What::Dir(_)
            | What::File(_)
            | What::Host(_)
            | What::Device(_) => at.unwrap_or(descriptor.offset),
        };
        let what = match descriptor.what {
            What::Output(stream) => Sink::Output(stream),
            What::File(ino) => Sink::File(ino),
            What::Device(_) => Sink::Nowhere,
            What::Stdin | What::Dir(_) | What::Host(_) => return Err(Errno::Badf.into()),
        };
        let Some((address, length)) = piece else { return Ok(memory.put_u32(out, 0)?) };
        let bytes = memory.bytes(address, length)?;
        let written = match what {
            Sink::Output(stream) => self.link.write(stream, bytes)?,
            Sink::File(ino) => self.system.files.write_at(ino, offset, bytes)?,
            Sink::Nowhere => bytes.len(),
        };
        if at.is_none() {
            self.system.descriptors.get_mut(fd)?.offset = offset.saturating_add(written as u64);
        }
        Ok(memory.put_length(out, written)?)
    }
}

/// Where a write goes.
enum Sink {
    Output(Stream),
    File(crate::fs::Ino),
    Nowhere,
}

/// Libraries ask for every right, even on a directory. One that cannot be opened for writing is opened for reading only.
fn open_as_allowed(
    guest: &mut Guest,
    dir: &Place,
    path: &str,
    opening: Opening,
    base: u64,
) -> Result<crate::fs::Opened, Errno> {
    match guest.system.files.open(dir, path, opening) {
        Err(Errno::Isdir) if base & rights::READ != 0 && !opening.truncate && !opening.create => {
            guest.system.files.open(dir, path, Opening { write: false, ..opening })
        }
        opened => opened,
    }
}

fn follow(flags: u32) -> Follow {
    if flags & FOLLOW != 0 { Follow::Yes } else { Follow::No }
}

fn flags_of(flags: u32) -> Result<u16, Errno> {
    u16::try_from(flags).ok().filter(|flags| flags & !fdflags::ALL == 0).ok_or(Errno::Inval)
}

/// The address and length of the first piece that is not empty, or as much of it as one call transfers.
fn first_piece(memory: &Memory<'_>, (at, count): (u32, u32)) -> Result<Option<(u32, u32)>, Errno> {
    let pieces = memory.pieces(at, count)?;
    let first = pieces.into_iter().find(|(_, length)| *length > 0);
    Ok(first.map(|(address, length)| (address, length.min(MAX_TRANSFER))))
}

fn put_strings(memory: &mut Memory<'_>, strings: &[Vec<u8>], list: u32, text: u32) -> Done {
    let (mut list, mut text) = (list, text);
    for string in strings {
        memory.put_u32(list, text)?;
        memory.put(text, string)?;
        let end = u32::try_from(string.len()).ok().and_then(|length| text.checked_add(length));
        let end = end.ok_or(Errno::Fault)?;
        memory.put(end, &[0])?;
        (list, text) = (list.checked_add(4).ok_or(Errno::Fault)?, end.checked_add(1).ok_or(Errno::Fault)?);
    }
    Ok(())
}

fn put_sizes(memory: &mut Memory<'_>, strings: &[Vec<u8>], count: u32, size: u32) -> Done {
    let bytes: usize = strings.iter().map(|string| string.len() + 1).sum();
    memory.put_length(count, strings.len())?;
    Ok(memory.put_length(size, bytes)?)
}

/// What a clock shows, in nanoseconds. The monotonic one begins with the program.
pub(super) fn time_of(guest: &Guest, clock: u32) -> Result<u64, Errno> {
    match clock {
        0 => Ok(now()),
        1 => Ok(nanoseconds(guest.system.began.elapsed())),
        2 | 3 => Ok(nanoseconds(cpu_time())),
        _ => Err(Errno::Inval),
    }
}

/// The CPU time of this thread, which is the program's only thread.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn read_device(device: Device, buffer: &mut [u8]) -> Result<usize, Errno> {
    match device {
        // The streams were opened as the streams themselves.
        Device::Null | Device::Stdin | Device::Stdout | Device::Stderr => return Ok(0),
        Device::Zero => buffer.fill(0),
        Device::Random => fill_randomly(buffer)?,
    }
    Ok(buffer.len())
}

fn fill_randomly(buffer: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match getrandom(&mut buffer[done..], GetRandomFlags::empty()) {
            Ok(length) => done += length,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Errno::Io),
        }
    }
    Ok(())
}

/// There are no sockets, so whatever is open is not one.
fn no_socket(guest: &Guest, fd: u32) -> Done {
    guest.check_open(fd)?;
    Err(Errno::Notsock.into())
}
