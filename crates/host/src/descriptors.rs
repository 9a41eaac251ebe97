//! The record locks of a box (`fcntl`), which the kernel neither limits nor charges to anybody.
//!
//! The kernel has no counter for them. They can be read from the directory of each process, but not every 20 ms. In a
//! container, they are counted after so many calls for one (`rations.rs`). In a native box, they are
//! counted only after the kernel's own memory has grown, on the host as a whole, and only on some descriptors if there are many.
//! A program that wants to make locks quickly has to spread them over many files: each one on a file takes
//! longer than the one before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
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
        Ok(count(&processes()?, any_number(), MOST)?.locks.saturating_mul(LOCK))
    }
}

/// Counts the locks of a box whose programs ask for each of them, all of them, after so many calls.
#[derive(Debug, Default)]
pub struct AskedLocks {
    /// The calls since there has been a process that cannot be looked at. Each may have made a lock.
    unseen: u64,
}

impl AskedLocks {
    /// What the locks of these processes count for, after so many more calls.
    ///
    /// # Errors
    /// They cannot be counted.
    pub fn memory<P: AsRef<Path>>(&mut self, processes: &[P], calls: u32) -> io::Result<u64> {
        let found = count(processes, 0, u64::MAX)?;
        self.unseen = if found.hidden { self.unseen + u64::from(calls) } else { 0 };
        Ok((found.locks + self.unseen).saturating_mul(LOCK))
    }
}

/// What was found in the processes of a box.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    locks: u64,
    /// There is a process that may not be looked at.
    hidden: bool,
}

/// An estimate, if there are more descriptors than the most that are looked at: every so manieth is, beginning with the
/// given one.
fn count<P: AsRef<Path>>(processes: &[P], first: u64, most: u64) -> io::Result<Found> {
    let mut tables = Vec::with_capacity(processes.len());
    for process in processes {
        tables.extend(Table::of(process.as_ref())?);
    }
    let all: u64 = tables.iter().map(|table| table.size).sum();
    let step = all.div_ceil(most).max(1);
    let (mut next, mut begin) = (first % step, 0);
    let mut found = Found { locks: 0, hidden: false };
    for Table { task, size } in tables {
        while next < begin + size {
            match locks_of(&task, next - begin) {
                Ok(locks) => found.locks += locks * step,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.hidden = true,
                Err(error) => return Err(error),
            }
            next += step;
        }
        begin += size;
    }
    Ok(found)
}

/// The descriptors of a process, which all its threads share.
struct Table {
    /// The directory of a thread that still has them. The first one may have ended before the others.
    task: PathBuf,
    /// How many numbers there are for descriptors.
    size: u64,
}

impl Table {
    /// `None` if the process is gone.
    fn of(process: &Path) -> io::Result<Option<Table>> {
        let table = |task: PathBuf| {
            table_size(&task).map(|size| if size > 0 { Some(Table { task, size }) } else { None })
        };
        if let Some(found) = table(process.to_owned())? {
            return Ok(Some(found));
        }
        for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            if let Some(found) = table(task.path())? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// None, if the thread is gone.
fn table_size(task: &Path) -> io::Result<u64> {
    let Some(status) = if_there(fs::read_to_string(task.join("status")))? else { return Ok(0) };
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    Ok(size.unwrap_or_default())
}

/// An ordinary user may not look at a process that is not dumpable (proc(5)): PID 1, which makes no locks, and a program
/// whose file nobody may read.
fn locks_of(task: &Path, descriptor: u64) -> io::Result<u64> {
    let file = task.join("fdinfo").join(descriptor.to_string());
    let text = if_there(fs::read_to_string(file))?.unwrap_or_default();
    Ok(text.lines().filter(|line| line.starts_with("lock:")).count() as u64)
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
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
        let locks = |processes: &[&str]| count(processes, 0, MOST).unwrap().locks;
        let before = locks(&["/proc/self"]);
        file.lock_shared().unwrap();
        assert_eq!(locks(&["/proc/self"]), before + 1);
        assert_eq!(locks(&["/proc/self", "/proc/no such process"]), before + 1);
        let asked = AskedLocks::default().memory(&["/proc/self"], 9).unwrap();
        assert_eq!(asked, (before + 1) * LOCK, "all processes can be looked at");
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
