//! What a box may hold in memory and write, counted in one place: the module's own memory and its files are both memory
//! of the host.

use belljar_core::limits::BoxLimits;

use crate::wasi::abi::Errno;

/// The unit of file space.
pub(crate) const BLOCK: usize = 4096;
/// What a name and the record of its file cost the host in addition to the content.
const ENTRY: u64 = 1024;

/// What may be used, and what is used.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: u64,
    disk: u64,
    files: u64,
    linear: u64,
    blocks: u64,
    entries: u64,
    peak: u64,
}

impl Budget {
    /// The budget for these limits.
    pub(crate) fn new(limits: &BoxLimits) -> Budget {
        Budget {
            memory: limits.memory.get(),
            disk: limits.disk.get(),
            files: limits.max_files(),
            linear: 0,
            blocks: 0,
            entries: 0,
            peak: 0,
        }
    }

    /// Whether the module's memory may grow to this size.
    pub(crate) fn grow(&mut self, linear: u64) -> bool {
        let fits = linear.saturating_add(self.held()) <= self.memory;
        if fits {
            self.linear = self.linear.max(linear);
            self.note_peak();
        }
        fits
    }

    /// Takes one block of a file.
    pub(crate) fn take_block(&mut self) -> Result<(), Errno> {
        let block = BLOCK as u64;
        let disk = (self.blocks + 1) * block > self.disk;
        if disk || self.linear + self.held() + block > self.memory {
            return Err(Errno::Nospc);
        }
        self.blocks += 1;
        self.note_peak();
        Ok(())
    }

    /// Gives blocks back.
    pub(crate) fn give_blocks(&mut self, count: usize) {
        self.blocks = self.blocks.saturating_sub(count as u64);
    }

    /// Takes a name.
    pub(crate) fn take_entry(&mut self) -> Result<(), Errno> {
        if self.entries >= self.files || self.linear + self.held() + ENTRY > self.memory {
            return Err(Errno::Nospc);
        }
        self.entries += 1;
        self.note_peak();
        Ok(())
    }

    /// Gives a name back.
    pub(crate) fn give_entry(&mut self) {
        self.entries = self.entries.saturating_sub(1);
    }

    /// The largest size that a file may have.
    pub(crate) fn largest_file(&self) -> u64 {
        self.disk
    }

    /// The most that was ever used, the module's memory included.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    fn held(&self) -> u64 {
        self.blocks * BLOCK as u64 + self.entries * ENTRY
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.linear + self.held());
    }
}
