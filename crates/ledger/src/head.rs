//! How many records there are, outside the database: who cuts the tail of the database off does not shorten this.
//!
//! The file has two slots, which are written in turns, in place. A write that a crash tears leaves the other slot.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::chain::{Hash, signed_head};
use crate::error::{LedgerError, file};
use crate::key::{Key, PublicKey, Signed};

/// Its name, in the state directory.
pub const FILE: &str = "ledger.head";

const SLOT: usize = 128;

/// The last record that is certainly on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    /// What the next record is chained to.
    pub(crate) hash: Hash,
}

/// The file, for one who writes it.
#[derive(Debug)]
pub(crate) struct HeadFile {
    file: File,
    path: PathBuf,
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing was ever written to it, or there is no such file.
    Nothing,
    /// This.
    Head(Head),
    /// Nothing that the key has signed.
    Nonsense,
}

impl HeadFile {
    pub(crate) fn open(dir: &Path) -> Result<HeadFile, LedgerError> {
        let path = dir.join(FILE);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(&path).map_err(file("open", &path))?;
        Ok(HeadFile { file, path })
    }

    pub(crate) fn read(&self, key: &PublicKey) -> Result<Said, LedgerError> {
        said(&self.file, key).map_err(file("read", &self.path))
    }

    /// Says that there are this many records, unless it says that there are more: another process was faster.
    pub(crate) fn advance(&self, key: &Key, head: Head) -> Result<(), LedgerError> {
        self.write(key, head).map_err(file("write", &self.path))
    }

    fn write(&self, key: &Key, head: Head) -> io::Result<()> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let public = key.public();
        let slots = slots(&self.file)?.map(|slot| parse(&slot, &public));
        let newest = slots.iter().flatten().map(|head| head.seq).max();
        let written = if newest.is_some_and(|newest| newest >= head.seq) {
            Ok(())
        } else {
            let older = if slots[0].map(|head| head.seq) <= slots[1].map(|head| head.seq) { 0 } else { 1 };
            let signature = key.sign(&signed_head(head.seq, &head.hash));
            self.file.write_all_at(&render(head, &signature), older * SLOT as u64)
        };
        flock(&self.file, FlockOperation::Unlock)?;
        written
    }

    /// Brings it to the disk.
    pub(crate) fn sync(&self) -> Result<(), LedgerError> {
        self.file.sync_data().map_err(file("sync", &self.path))
    }
}

/// What the file of this directory says.
pub(crate) fn read(dir: &Path, key: &PublicKey) -> Result<Said, LedgerError> {
    let path = dir.join(FILE);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    match File::options().read(true).custom_flags(flags).open(&path) {
        Ok(found) => said(&found, key).map_err(file("read", &path)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Said::Nothing),
        Err(source) => Err(LedgerError::File { doing: "read", path, source }),
    }
}

fn said(file: &File, key: &PublicKey) -> io::Result<Said> {
    let slots = slots(file)?;
    let newest = slots.iter().filter_map(|slot| parse(slot, key)).max_by_key(|head| head.seq);
    Ok(match newest {
        Some(head) => Said::Head(head),
        None if slots.as_flattened().iter().all(|byte| *byte == 0) => Said::Nothing,
        None => Said::Nonsense,
    })
}

fn slots(file: &File) -> io::Result<[[u8; SLOT]; 2]> {
    let mut slots = [[0; SLOT]; 2];
    for (at, slot) in slots.iter_mut().enumerate() {
        let mut read = 0;
        while read < SLOT {
            match file.read_at(&mut slot[read..], (at * SLOT + read) as u64)? {
                0 => break,
                more => read += more,
            }
        }
    }
    Ok(slots)
}

fn render(head: Head, signature: &Signed) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&head.seq.to_le_bytes());
    slot[8..40].copy_from_slice(&head.hash);
    slot[40..104].copy_from_slice(signature);
    slot
}

fn parse(slot: &[u8; SLOT], key: &PublicKey) -> Option<Head> {
    let seq = u64::from_le_bytes(slot[..8].try_into().ok()?);
    let hash: Hash = slot[8..40].try_into().ok()?;
    key.has_signed(&signed_head(seq, &hash), &slot[40..104]).then_some(Head { seq, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_write_leaves_the_head_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::find_or_make(dir.path()).unwrap();
        let said = || read(dir.path(), &key.public()).unwrap();
        assert_eq!(said(), Said::Nothing);
        let file = HeadFile::open(dir.path()).unwrap();
        assert_eq!(said(), Said::Nothing);
        let heads = [1, 2, 3].map(|seq| Head { seq, hash: [u8::try_from(seq).unwrap(); 32] });
        for head in heads {
            file.advance(&key, head).unwrap();
            assert_eq!(said(), Said::Head(head));
        }
        file.advance(&key, heads[1]).unwrap();
        assert_eq!(said(), Said::Head(heads[2]), "it does not go back");
        file.file.write_all_at(&[0xff; 20], 0).unwrap();
        assert_eq!(said(), Said::Head(heads[1]), "the slot of the third is torn");
        file.file.write_all_at(&[0xff; 20], SLOT as u64).unwrap();
        assert_eq!(said(), Said::Nonsense);
    }
}
