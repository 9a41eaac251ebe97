//! What the processes have used, from the container's own cgroup; if that is not visible, from `/proc`.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use belljar_host::descriptors::{AskedLocks, Locks};
use belljar_host::rations::Count;
use belljar_host::sockets::{Queues, Sockets};

use super::confine::is_confining_itself;

const V1: &str = "/sys/fs/cgroup";
const NONE_AT_ALL: u64 = 1 << 60;
/// No counter is longer.
const LONGEST: usize = 4096;

/// What the processes have used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    pub(super) memory_peak: u64,
    pub(super) oom_kills: u64,
    /// Kernel memory that the memory limit does not bound.
    pub(super) beyond_limit: u64,
}

/// The counters, opened before any code runs, so that nothing the code does can keep them from being read.
#[derive(Debug)]
pub(super) struct Counters {
    cpu: Option<Cpu>,
    peak: Option<File>,
    /// On version 1, socket buffers, which the memory limit does not include.
    buffers: Option<Buffers>,
    oom_kills: Option<File>,
    sockets: Option<Sockets>,
    locks: LockCount,
    /// The process that will be the program, as long as it is still this binary.
    starting: Cell<Option<u32>>,
}

/// How the locks of files are counted.
#[derive(Debug)]
enum LockCount {
    /// After so many calls, each of which has to be asked for.
    Asked(AskedLocks),
    /// Now and then. Without a listener for the filter, nothing can be asked for.
    Watched(RefCell<Locks>),
}

#[derive(Debug)]
enum Buffers {
    /// The cgroup counts them, because they have a limit: their peak, and what they are now.
    Counted { peak: File, now: File },
    /// It does not: not every engine that is told of a limit sets it.
    Listed(Queues),
}

#[derive(Debug)]
enum Cpu {
    V1(File),
    V2(File),
}

impl Counters {
    /// Opens them. Locks may have to be asked for.
    pub(super) fn open(asked: bool) -> Counters {
        let v1 = open("cpuacct/cpuacct.usage").or_else(|| open("cpu,cpuacct/cpuacct.usage")).map(Cpu::V1);
        Counters {
            cpu: v1.or_else(|| open("cpu.stat").map(Cpu::V2)),
            peak: open("memory/memory.max_usage_in_bytes").or_else(|| open("memory.peak")),
            buffers: Buffers::open(),
            oom_kills: open("memory/memory.oom_control").or_else(|| open("memory.events")),
            sockets: Sockets::of_process(Path::new("/proc/self")).ok(),
            locks: if asked {
                LockCount::Asked(AskedLocks::default())
            } else {
                LockCount::Watched(RefCell::default())
            },
            starting: Cell::new(None),
        }
    }

    /// This process is about to become the program. What it uses until then is not the program's memory.
    pub(super) fn await_program(&self, pid: u32) {
        self.starting.set(Some(pid));
    }

    /// How much kernel memory the locks of all processes can hold, or the sockets.
    pub(super) fn count(&mut self, what: Count) -> io::Result<u64> {
        match (what, &mut self.locks) {
            (Count::Locks { calls }, LockCount::Asked(locks)) => locks.memory(&others(), calls),
            (Count::Locks { .. }, LockCount::Watched(_)) => Ok(0),
            (Count::Connections, _) => {
                let sockets = self.sockets.as_ref().map(Sockets::memory).transpose()?;
                let buffers = self.buffers.as_ref().map(Buffers::read).transpose()?;
                Ok(sockets.unwrap_or_default() + buffers.map_or(0, |(_, now)| now))
            }
        }
    }

    /// How many netlink sockets there are.
    pub(super) fn netlink(&self) -> io::Result<usize> {
        self.sockets.as_ref().map_or(Ok(0), Sockets::netlink)
    }

    /// Reads them. What could not be opened is counted from `/proc`, or not at all.
    pub(super) fn read(&self) -> io::Result<Usage> {
        let cpu = match &self.cpu {
            Some(Cpu::V1(file)) => Duration::from_nanos(number_in(file)?),
            Some(Cpu::V2(file)) => Duration::from_micros(keyed_in(file, "usage_usec")?),
            None => cpu_of_processes(),
        };
        let (peak_of_buffers, buffers) =
            self.buffers.as_ref().map(Buffers::read).transpose()?.unwrap_or((0, 0));
        let peak = self.peak.as_ref().map(number_in).transpose()?;
        let oom_kills = self.oom_kills.as_ref().map(|file| keyed_in(file, "oom_kill")).transpose()?;
        let sockets = self.sockets.as_ref().map(Sockets::memory).transpose()?;
        let locks = match &self.locks {
            LockCount::Asked(_) => 0,
            LockCount::Watched(locks) => locks.borrow_mut().memory(|| Ok(others()))?,
        };
        Ok(Usage {
            cpu,
            memory_peak: peak.map_or_else(|| self.resident(), |peak| peak + peak_of_buffers),
            oom_kills: oom_kills.unwrap_or_default(),
            beyond_limit: (buffers + sockets.unwrap_or_default()).saturating_add(locks),
        })
    }

    /// The memory of all processes, where no cgroup counts it.
    fn resident(&self) -> u64 {
        self.starting.set(self.starting.get().filter(|pid| is_confining_itself(*pid)));
        let counted = |pid: &u32| *pid != 1 && Some(*pid) != self.starting.get();
        let processes = pids().into_iter().filter(counted).filter_map(stat);
        processes.map(|fields| fields.get(23).copied().unwrap_or_default() * 4096).sum()
    }
}

impl Buffers {
    /// `None` on version 2, where they are a part of the memory that is limited.
    fn open() -> Option<Buffers> {
        let limit = number("memory/memory.kmem.tcp.limit_in_bytes")?;
        if limit < NONE_AT_ALL {
            let peak = open("memory/memory.kmem.tcp.max_usage_in_bytes");
            let now = open("memory/memory.kmem.tcp.usage_in_bytes");
            return peak.zip(now).map(|(peak, now)| Buffers::Counted { peak, now });
        }
        Queues::of_process(Path::new("/proc/self")).ok().map(Buffers::Listed)
    }

    /// Their peak as far as it is known, and what they are now.
    fn read(&self) -> io::Result<(u64, u64)> {
        match self {
            Buffers::Counted { peak, now } => Ok((number_in(peak)?, number_in(now)?)),
            Buffers::Listed(queues) => queues.memory().map(|now| (now, now)),
        }
    }
}

pub(super) fn memory_limit() -> Option<u64> {
    number("memory/memory.limit_in_bytes")
        .or_else(|| number("memory.max"))
        .filter(|limit| *limit < NONE_AT_ALL)
}

pub(super) fn pids_limit() -> Option<u64> {
    number("pids/pids.max").or_else(|| number("pids.max"))
}

pub(super) fn has_quota() -> bool {
    let v1 = || Some(text("cpu/cpu.cfs_quota_us")?.parse::<i64>().is_ok_and(|quota| quota > 0));
    let v2 = || Some(!text("cpu.max")?.starts_with("max"));
    v1().or_else(v2).unwrap_or(false)
}

fn text(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("{V1}/{name}")).ok()?.trim().to_owned())
}

fn number(name: &str) -> Option<u64> {
    text(name)?.parse().ok()
}

fn open(name: &str) -> Option<File> {
    File::open(format!("{V1}/{name}")).ok()
}

fn text_in(file: &File) -> io::Result<String> {
    let mut text = vec![0; LONGEST];
    let length = file.read_at(&mut text, 0)?;
    text.truncate(length);
    String::from_utf8(text).map_err(io::Error::other)
}

fn number_in(file: &File) -> io::Result<u64> {
    text_in(file)?.trim().parse().map_err(io::Error::other)
}

fn keyed_in(file: &File, key: &str) -> io::Result<u64> {
    let text = text_in(file)?;
    let mut values =
        text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    values.next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// CPU time of all live processes, and of those that this process has reaped. In the clock of `/proc`, which has a
/// hundred ticks to the second everywhere.
fn cpu_of_processes() -> Duration {
    let ticks: u64 =
        pids().into_iter().filter_map(stat).map(|fields| fields.iter().skip(13).take(4).sum::<u64>()).sum();
    Duration::from_millis(ticks * 10)
}

/// The directories of all processes except this one.
fn others() -> Vec<String> {
    let first = |pid: &u32| *pid != 1;
    pids().into_iter().filter(first).map(|pid| format!("/proc/{pid}")).collect()
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// The numeric fields of a process; other fields are 0. The second field may contain anything.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let numbers = rest.split_ascii_whitespace().map(|word| word.parse().unwrap_or_default());
    Some([0, 0].into_iter().chain(numbers).collect())
}
