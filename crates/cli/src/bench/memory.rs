//! Measures the memory of belljar's own processes while a box runs: the one that was started, and every descendant
//! that runs the same program.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;

/// The processes around a box.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Supervisor {
    /// The sum of the peaks. Two processes that share one address space are counted once. Other shared pages are
    /// counted for each process, so the actual use is lower.
    pub(super) peak_bytes: u64,
    pub(super) processes: Vec<Process>,
}

/// One of them.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Process {
    name: String,
    peak_bytes: u64,
    /// Its memory mappings.
    #[serde(skip)]
    maps: String,
}

impl Process {
    /// Whether the two share one address space, as the undertaker and its parent do: their randomized mappings and
    /// their peaks are the same.
    fn shares_memory_with(&self, other: &Process) -> bool {
        self.peak_bytes == other.peak_bytes && !self.maps.is_empty() && self.maps == other.maps
    }
}

impl fmt::Display for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at its peak (", Megabytes(self.peak_bytes))?;
        for (position, Process { name, peak_bytes, .. }) in self.processes.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", Megabytes(*peak_bytes))?;
        }
        f.write_str(")")
    }
}

struct Megabytes(u64);

impl fmt::Display for Megabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000;
        write!(f, "{}.{} MB", tenths / 10, tenths % 10)
    }
}

/// Runs a box that sleeps, and reads the peaks of the processes around it until it ends. The kernel keeps the peak,
/// so the last reading is the result.
pub(super) fn of_supervisor() -> io::Result<Supervisor> {
    let mut run = Command::new("/proc/self/exe")
        .args(["run", "bash", "-c", "sleep 0.5"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let last = watch(&mut run)?;
    let status = run.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("`belljar run bash` ended with {status}")));
    }
    last.ok_or_else(|| io::Error::other("it was gone before it could be looked at"))
}

fn watch(run: &mut Child) -> io::Result<Option<Supervisor>> {
    let this_program = fs::read_link("/proc/self/exe")?;
    let mut last = None;
    while run.try_wait()?.is_none() {
        let mut processes = Vec::new();
        look_at(run.id(), &this_program, &mut processes);
        if !processes.is_empty() {
            let peak_bytes = processes.iter().map(|process| process.peak_bytes).sum();
            last = Some(Supervisor { peak_bytes, processes });
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(last)
}

/// Collects a process and its descendants that run this program. Processes that end meanwhile are skipped.
fn look_at(pid: u32, program: &PathBuf, found: &mut Vec<Process>) {
    if fs::read_link(format!("/proc/{pid}/exe")).ok().as_ref() != Some(program) {
        return;
    }
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    if let Some(process) = read_process(&read("status"), read("maps"))
        && !found.iter().any(|other| process.shares_memory_with(other))
    {
        found.push(process);
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
        look_at(child, program, found);
    }
}

/// Reads name and peak from `/proc/PID/status`; a process that has ended has no peak.
fn read_process(status: &str, maps: String) -> Option<Process> {
    let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let kilobytes: u64 = value("VmHWM:")?.strip_suffix(" kB")?.parse().ok()?;
    Some(Process { name: value("Name:")?.to_owned(), peak_bytes: kilobytes * 1024, maps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_kernels_own_figure() {
        let status = "Name:\tbelljar\nVmPeak:\t  9000 kB\nVmHWM:\t    5120 kB\nVmRSS:\t    4000 kB\n";
        let read = read_process(status, String::new()).unwrap();
        assert_eq!((&*read.name, read.peak_bytes), ("belljar", 5_242_880));
        assert_eq!(read_process("Name:\tbelljar\nState:\tZ (zombie)\n", String::new()), None);
    }

    #[test]
    fn one_memory_of_two_processes_is_one() {
        let process = |peak_bytes, maps: &str| Process { name: "a".into(), peak_bytes, maps: maps.into() };
        assert!(process(5, "7f00-7f01 rw").shares_memory_with(&process(5, "7f00-7f01 rw")));
        assert!(!process(5, "7f00-7f01 rw").shares_memory_with(&process(5, "7e00-7e01 rw")));
        assert!(!process(5, "7f00-7f01 rw").shares_memory_with(&process(4, "7f00-7f01 rw")));
        assert!(!process(5, "").shares_memory_with(&process(5, "")), "nothing is known of either");
    }

    #[test]
    fn this_very_process_is_found_and_others_are_not() {
        let this_program = fs::read_link("/proc/self/exe").unwrap();
        let mut found = Vec::new();
        look_at(std::process::id(), &this_program, &mut found);
        assert!(found[0].peak_bytes > 0);
        let mut others = Vec::new();
        look_at(std::process::id(), &PathBuf::from("/nonexistent"), &mut others);
        assert_eq!(others, []);
    }

    #[test]
    fn a_supervisor_is_shown_in_megabytes() {
        let process = |name: &str, peak_bytes| Process { name: name.into(), peak_bytes, maps: String::new() };
        let supervisor = Supervisor {
            peak_bytes: 7_950_000,
            processes: vec![process("a", 5_000_000), process("b", 2_950_000)],
        };
        assert_eq!(supervisor.to_string(), "7.9 MB at its peak (a 5.0 MB, b 2.9 MB)");
    }
}
