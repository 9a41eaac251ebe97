//! The record locks of a box (`fcntl`), which the kernel neither limits nor charges to anybody.
//!
//! The kernel has no counter for them. They can be read from the directory of each process, but not every 20 ms. So they are
//! counted only after the kernel's own memory has grown, on the host as a whole, and only on some descriptors if there are many.
//! A program that wants to make locks quickly has to spread them over many files: each one on a file takes
//! longer than the one before.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;

/// What counts for each lock, whose size is about 200 bytes. No honest program has ten thousand. One that tries to
/// exhaust memory makes as many between two looks, so it may not come near the limit.
const LOCK: u64 = 1600;
/// How much the memory of the kernel has to grow before locks are counted.
const GROWTH: u64 = 2 << 20;
/// The most descriptors that are looked at, about 5 ms of work.
const MOST: u64 = 1024;
/// How long the memory of the kernel is remembered. All boxes of a server ask for it.
const FRESH: Duration = Duration::from_millis(10);

/// Counts the locks of one box.
#[derive(Debug, Default)]
pub struct Locks {
    /// The least memory of the kernel since they were last counted.
    least: Option<u64>,
}

impl Locks {
    /// What the locks of these processes count for, if there is a reason to look at them. A process is given by its directory
    /// in `/proc`.
    ///
    /// # Errors
    /// They cannot be counted.
    pub fn memory<P: AsRef<Path>>(
        &mut self,
        processes: impl FnOnce() -> io::Result<Vec<P>>,
    ) -> io::Result<u64> {
        let Some(now) = kernel_memory() else { return Ok(0) };
        let least = self.least.unwrap_or(now).min(now);
        self.least = Some(least);
        if now - least < GROWTH {
            return Ok(0);
        }
        self.least = Some(now);
        Ok(count(&processes()?, any_number())?.saturating_mul(LOCK))
    }
}

/// An estimate, if there are many descriptors: every so manieth is looked at, beginning with the given one.
fn count<P: AsRef<Path>>(processes: &[P], first: u64) -> io::Result<u64> {
    let mut tables = Vec::with_capacity(processes.len());
    for process in processes {
        tables.push((process.as_ref(), table_size(process.as_ref())?));
    }
    let all: u64 = tables.iter().map(|(_, size)| size).sum();
    let step = all.div_ceil(MOST).max(1);
    let (mut next, mut begin, mut seen) = (first % step, 0, 0);
    for (process, size) in tables {
        while next < begin + size {
            seen += locks_of(process, next - begin)?;
            next += step;
        }
        begin += size;
    }
    Ok(seen * step)
}

/// How many numbers a process has for descriptors. None, if it is gone.
fn table_size(process: &Path) -> io::Result<u64> {
    let Some(status) = if_visible(fs::read_to_string(process.join("status")))? else { return Ok(0) };
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    Ok(size.unwrap_or_default())
}

fn locks_of(process: &Path, descriptor: u64) -> io::Result<u64> {
    let file = process.join("fdinfo").join(descriptor.to_string());
    let text = if_visible(fs::read_to_string(file))?.unwrap_or_default();
    Ok(text.lines().filter(|line| line.starts_with("lock:")).count() as u64)
}

/// An ordinary user may not look at a process that is not dumpable (proc(5)): PID 1, which makes no locks, and a program
/// whose file nobody may read.
fn if_visible<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the kernel holds for its own objects and cannot give back, on the whole host.
fn kernel_memory() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((when, value)) if when.elapsed() < FRESH => value,
        _ => {
            let value = fs::read_to_string("/proc/meminfo").ok().and_then(|text| unreclaimable(&text));
            *last = Some((Instant::now(), value));
            value
        }
    }
}

fn unreclaimable(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("SUnreclaim:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// One that the box cannot foresee.
fn any_number() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_of_this_process_are_counted() {
        let file = fs::File::open("/proc/self/exe").unwrap();
        let before = count(&["/proc/self"], 0).unwrap();
        file.lock_shared().unwrap();
        assert_eq!(count(&["/proc/self"], 0).unwrap(), before + 1);
        assert_eq!(count(&["/proc/self", "/proc/no such process"], 0).unwrap(), before + 1);
    }

    #[test]
    fn the_memory_of_the_kernel_is_read() {
        assert_eq!(unreclaimable("MemTotal: 8 kB\nSUnreclaim:        12 kB\n"), Some(12 << 10));
        assert_eq!(unreclaimable("MemTotal: 8 kB\n"), None);
        assert!(kernel_memory().unwrap() > 1 << 20);
    }

    #[test]
    fn they_are_counted_only_after_it_has_grown() {
        let mut locks = Locks { least: None };
        let none = || -> io::Result<Vec<&str>> { panic!("there is no reason to look") };
        assert_eq!(locks.memory(none).unwrap(), 0);
        let mut locks = Locks { least: Some(0) };
        assert!(locks.memory(|| Ok(vec!["/proc/self"])).is_ok());
        assert!(locks.least > Some(0), "the next time after it has grown again");
    }
}
