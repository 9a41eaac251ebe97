//! The bytes of a file in memory. Holes take no space, so a file costs only what was written to it.

use std::collections::BTreeMap;

use super::budget::{BLOCK, Budget};
use crate::wasi::abi::Errno;

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Content {
    size: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl Content {
    /// How long it is.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// How many blocks it takes.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Reads from an offset; returns how much was read.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let mut done = 0;
        while done < length {
            let (index, within) = locate(offset + done as u64);
            let count = (BLOCK - within).min(length - done);
            let piece = &mut buffer[done..done + count];
            match self.blocks.get(&index) {
                Some(block) => piece.copy_from_slice(&block[within..within + count]),
                None => piece.fill(0),
            }
            done += count;
        }
        length
    }

    /// Writes at an offset; returns how much fitted.
    ///
    /// # Errors
    /// Nothing fitted.
    pub(crate) fn write_at(
        &mut self,
        offset: u64,
        bytes: &[u8],
        budget: &mut Budget,
    ) -> Result<usize, Errno> {
        let room = usize::try_from(budget.largest_file().saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 && !bytes.is_empty() {
            return Err(Errno::Fbig);
        }
        let bytes = &bytes[..bytes.len().min(room)];
        let mut done = 0;
        while done < bytes.len() {
            let (index, within) = locate(offset + done as u64);
            let block = match self.block(index, budget) {
                Ok(block) => block,
                Err(_) if done > 0 => break,
                Err(full) => return Err(full),
            };
            let count = (BLOCK - within).min(bytes.len() - done);
            block[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        self.size = self.size.max(offset + done as u64);
        Ok(done)
    }

    /// Makes it longer, with a hole at the end, or shorter.
    pub(crate) fn resize(&mut self, size: u64, budget: &mut Budget) -> Result<(), Errno> {
        if size > budget.largest_file() {
            return Err(Errno::Fbig);
        }
        if size < self.size {
            let gone = self.blocks.split_off(&size.div_ceil(BLOCK as u64));
            budget.give_blocks(gone.len());
            let (index, within) = locate(size);
            if let Some(block) = self.blocks.get_mut(&index) {
                block[within..].fill(0);
            }
        }
        self.size = size;
        Ok(())
    }

    /// All of it.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(0)];
        self.read_at(0, &mut bytes);
        bytes
    }

    fn block(&mut self, index: u64, budget: &mut Budget) -> Result<&mut [u8; BLOCK], Errno> {
        use std::collections::btree_map::Entry;
        match self.blocks.entry(index) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(free) => {
                budget.take_block()?;
                Ok(free.insert(Box::new([0; BLOCK])))
            }
        }
    }
}

/// The block, and the offset in it.
#[allow(clippy::cast_possible_truncation, reason = "a remainder of BLOCK")]
fn locate(offset: u64) -> (u64, usize) {
    (offset / BLOCK as u64, (offset % BLOCK as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::limits::LimitsRequest;

    fn budget(disk: u64) -> Budget {
        let request = LimitsRequest { disk: Some(disk), ..LimitsRequest::default() };
        Budget::new(&request.resolve().unwrap().0)
    }

    #[test]
    fn what_was_written_is_read_and_holes_are_zeroes_that_cost_nothing() {
        let (mut file, mut budget) = (Content::default(), budget(1 << 20));
        assert_eq!(file.write_at(10_000, b"end", &mut budget), Ok(3));
        assert_eq!((file.size(), file.blocks()), (10_003, 1));
        let mut bytes = [9; 5];
        assert_eq!(file.read_at(9_998, &mut bytes), 5);
        assert_eq!(&bytes, b"\0\0end");
        assert_eq!(file.read_at(10_003, &mut bytes), 0);
        file.resize(10_001, &mut budget).unwrap();
        file.resize(10_003, &mut budget).unwrap();
        assert_eq!(&file.to_vec()[10_000..], b"e\0\0");
    }

    #[test]
    fn the_budget_ends_a_write_where_it_is_full_and_gets_back_what_is_cut_off() {
        let (mut file, mut budget) = (Content::default(), budget(1 << 20));
        let mut other = Content::default();
        assert_eq!(other.write_at(0, &[1; 8192], &mut budget), Ok(8192));
        assert_eq!(file.write_at(0, &vec![1; 2 << 20], &mut budget), Ok((1 << 20) - 8192));
        assert_eq!(file.write_at(1 << 19, b"in place", &mut budget), Ok(8));
        assert_eq!(other.write_at(8192, b"x", &mut budget), Err(Errno::Nospc));
        file.resize(4096, &mut budget).unwrap();
        assert_eq!(other.write_at(8192, b"x", &mut budget), Ok(1));
        assert_eq!(file.write_at(1 << 20, b"x", &mut budget), Err(Errno::Fbig));
        assert_eq!(file.resize((1 << 20) + 1, &mut budget), Err(Errno::Fbig));
    }

    #[test]
    fn files_and_the_modules_memory_share_one_limit() {
        let request = LimitsRequest { memory: Some(16 << 20), ..LimitsRequest::default() };
        let mut budget = Budget::new(&request.resolve().unwrap().0);
        assert!(budget.grow(15 << 20) && !budget.grow(17 << 20));
        let mut file = Content::default();
        assert_eq!(file.write_at(0, &vec![1; 2 << 20], &mut budget), Ok(1 << 20));
        assert!(!budget.grow((15 << 20) + 65536));
        assert_eq!(budget.peak(), 16 << 20);
    }
}
