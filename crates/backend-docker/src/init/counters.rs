//! What the processes have used, from the container's own cgroup; if that is not visible, from `/proc`.

use std::fs;
use std::time::Duration;

const V1: &str = "/sys/fs/cgroup";
const NONE_AT_ALL: u64 = 1 << 60;

/// What the processes have used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    pub(super) memory_peak: u64,
    pub(super) oom_kills: u64,
}

/// Reads the counters.
pub(super) fn usage() -> Usage {
    Usage {
        cpu: cpu().unwrap_or_else(cpu_of_processes),
        memory_peak: number("memory/memory.max_usage_in_bytes")
            .or_else(|| number("memory.peak"))
            .unwrap_or_else(resident),
        oom_kills: keyed("memory/memory.oom_control", "oom_kill")
            .or_else(|| keyed("memory.events", "oom_kill"))
            .unwrap_or_default(),
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

fn cpu() -> Option<Duration> {
    let v1 = || number("cpuacct/cpuacct.usage").or_else(|| number("cpu,cpuacct/cpuacct.usage"));
    v1().map(Duration::from_nanos).or_else(|| keyed("cpu.stat", "usage_usec").map(Duration::from_micros))
}

fn text(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("{V1}/{name}")).ok()?.trim().to_owned())
}

fn number(name: &str) -> Option<u64> {
    text(name)?.parse().ok()
}

fn keyed(name: &str, key: &str) -> Option<u64> {
    let text = text(name)?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// CPU time of all live processes, and of those that this process has reaped. In the clock of `/proc`, which has a
/// hundred ticks to the second everywhere.
fn cpu_of_processes() -> Duration {
    let ticks: u64 = stats().map(|fields| fields.iter().skip(13).take(4).sum::<u64>()).sum();
    Duration::from_millis(ticks * 10)
}

fn resident() -> u64 {
    stats().skip(1).map(|fields| fields.get(23).copied().unwrap_or_default() * 4096).sum()
}

/// The numeric fields of each process, PID 1's first; other fields are skipped. The second field may contain anything.
fn stats() -> impl Iterator<Item = Vec<u64>> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = text.rsplit_once(')')?;
        let numbers = rest.split_ascii_whitespace().map(|word| word.parse().unwrap_or_default());
        Some([0, 0].into_iter().chain(numbers).collect())
    })
}
