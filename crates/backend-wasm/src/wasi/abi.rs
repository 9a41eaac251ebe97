//! The interface between a module and its host: error numbers, flags, and records in the module's memory. The layout is
//! that of `wasi_snapshot_preview1`. Every address and length comes from hostile code and is checked here.

use crate::link::Stopped;

/// Why a call failed, as reported to the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "the names are POSIX's")]
pub(crate) enum Errno {
    Acces = 2,
    Badf = 8,
    Busy = 10,
    Exist = 20,
    Fault = 21,
    Fbig = 22,
    Ilseq = 25,
    Inval = 28,
    Io = 29,
    Isdir = 31,
    Loop = 32,
    Mfile = 33,
    Nametoolong = 37,
    Noent = 44,
    Nospc = 51,
    Nosys = 52,
    Notdir = 54,
    Notempty = 55,
    Notsock = 57,
    Overflow = 61,
    Perm = 63,
    Rofs = 69,
    Spipe = 70,
    Xdev = 75,
}

impl Errno {
    /// The number for the module.
    pub(crate) fn code(self) -> u32 {
        self as u32
    }
}

/// Why a call does not simply succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The module gets an error number.
    Told(Errno),
    /// The program ends here.
    Stopped(Stopped),
    /// The program ends itself, with this status.
    Exit(u32),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        Fault::Told(errno)
    }
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Fault {
        Fault::Stopped(stopped)
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum FileType {
    /// Pipes have no type in this interface.
    Unknown = 0,
    Device = 2,
    Directory = 3,
    Regular = 4,
    Symlink = 7,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "as in stat(2)")]
pub(crate) struct FileStat {
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    pub(crate) links: u64,
    pub(crate) size: u64,
    pub(crate) modified: u64,
}

/// Flags of `path_open`.
pub(crate) mod oflags {
    pub(crate) const CREATE: u32 = 1;
    pub(crate) const DIRECTORY: u32 = 2;
    pub(crate) const EXCLUSIVE: u32 = 4;
    pub(crate) const TRUNCATE: u32 = 8;
}

/// Flags of an open file.
pub(crate) mod fdflags {
    pub(crate) const APPEND: u16 = 1;
    pub(crate) const ALL: u16 = 31;
}

/// What may be done with an open file.
pub(crate) mod rights {
    pub(crate) const READ: u64 = 1 << 1;
    pub(crate) const WRITE: u64 = 1 << 6;
    pub(crate) const ALL: u64 = (1 << 30) - 1;
}

/// Follow a link at the end of a path.
pub(crate) const FOLLOW: u32 = 1;
/// The longest path that is accepted.
pub(crate) const MAX_PATH: usize = 4096;
/// The most pieces that one call may read or write.
const MAX_PIECES: u32 = 1024;

/// The memory of a module.
#[derive(Debug)]
pub(crate) struct Memory<'a>(pub(crate) &'a mut [u8]);

impl Memory<'_> {
    /// A range of it.
    pub(crate) fn bytes(&self, at: u32, length: u32) -> Result<&[u8], Errno> {
        let at = at as usize;
        self.0.get(at..at.saturating_add(length as usize)).ok_or(Errno::Fault)
    }

    /// A range of it, to be written.
    pub(crate) fn bytes_mut(&mut self, at: u32, length: u32) -> Result<&mut [u8], Errno> {
        let at = at as usize;
        self.0.get_mut(at..at.saturating_add(length as usize)).ok_or(Errno::Fault)
    }

    /// Writes all of it.
    pub(crate) fn put(&mut self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(bytes.len()).map_err(|_| Errno::Fault)?;
        self.bytes_mut(at, length)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a number of 32 bits.
    pub(crate) fn put_u32(&mut self, at: u32, value: u32) -> Result<(), Errno> {
        self.put(at, &value.to_le_bytes())
    }

    /// Writes how long something is.
    pub(crate) fn put_length(&mut self, at: u32, length: usize) -> Result<(), Errno> {
        self.put_u32(at, u32::try_from(length).map_err(|_| Errno::Overflow)?)
    }

    /// Writes a number of 64 bits.
    pub(crate) fn put_u64(&mut self, at: u32, value: u64) -> Result<(), Errno> {
        self.put(at, &value.to_le_bytes())
    }

    /// Reads a number of 32 bits.
    pub(crate) fn u32(&self, at: u32) -> Result<u32, Errno> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    /// Reads a number of 64 bits.
    pub(crate) fn u64(&self, at: u32) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    /// Reads a few bytes.
    pub(crate) fn array<const N: usize>(&self, at: u32) -> Result<[u8; N], Errno> {
        let at = at as usize;
        let bytes = self.0.get(at..at.saturating_add(N)).ok_or(Errno::Fault)?;
        bytes.try_into().map_err(|_| Errno::Fault)
    }

    /// Reads a path.
    pub(crate) fn path(&self, at: u32, length: u32) -> Result<String, Errno> {
        if length as usize > MAX_PATH {
            return Err(Errno::Nametoolong);
        }
        let text = str::from_utf8(self.bytes(at, length)?).map_err(|_| Errno::Ilseq)?;
        if text.contains('\0') {
            return Err(Errno::Inval);
        }
        Ok(text.to_owned())
    }

    /// The addresses and lengths of a list of pieces.
    pub(crate) fn pieces(&self, at: u32, count: u32) -> Result<Vec<(u32, u32)>, Errno> {
        if count > MAX_PIECES {
            return Err(Errno::Inval);
        }
        let piece = |index: u32| {
            let at = at.checked_add(index * 8).ok_or(Errno::Fault)?;
            Ok((self.u32(at)?, self.u32(at.checked_add(4).ok_or(Errno::Fault)?)?))
        };
        (0..count).map(piece).collect()
    }

    /// Writes what is known of a file.
    pub(crate) fn put_stat(&mut self, at: u32, stat: &FileStat) -> Result<(), Errno> {
        let mut record = [0; 64];
        record[8..16].copy_from_slice(&stat.ino.to_le_bytes());
        record[16] = stat.kind as u8;
        record[24..32].copy_from_slice(&stat.links.to_le_bytes());
        record[32..40].copy_from_slice(&stat.size.to_le_bytes());
        for field in [40, 48, 56] {
            record[field..field + 8].copy_from_slice(&stat.modified.to_le_bytes());
        }
        self.put(at, &record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_memory_is_touched() {
        let mut room = [0_u8; 16];
        let mut memory = Memory(&mut room);
        assert_eq!(memory.put_u64(8, 7), Ok(()));
        assert_eq!(memory.u64(8), Ok(7));
        for at in [9, 16, 17, u32::MAX, u32::MAX - 7] {
            assert_eq!(memory.put_u64(at, 1), Err(Errno::Fault), "{at}");
            assert_eq!(memory.u64(at), Err(Errno::Fault), "{at}");
            assert_eq!(memory.bytes(at, u32::MAX), Err(Errno::Fault), "{at}");
        }
        assert_eq!(memory.pieces(0, MAX_PIECES + 1), Err(Errno::Inval));
        assert_eq!(memory.pieces(u32::MAX - 3, 2), Err(Errno::Fault));
    }

    #[test]
    fn a_path_is_text_without_nul_and_not_too_long() {
        let mut room = *b"a/\xc3\xbc\0\xff";
        let memory = Memory(&mut room);
        assert_eq!(memory.path(0, 4), Ok("a/ü".to_owned()));
        assert_eq!(memory.path(0, 5), Err(Errno::Inval));
        assert_eq!(memory.path(5, 1), Err(Errno::Ilseq));
        assert_eq!(memory.path(0, 5000), Err(Errno::Nametoolong));
    }
}
