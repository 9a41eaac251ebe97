//! Every descendant of this process, wherever it has moved: a subreaper does not lose any.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group};

/// The most processes that are examined at once; the kill repeats for the rest.
const MOST: usize = 50_000;

/// What the processes use now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) tasks: u64,
    /// Resident memory, with shared pages counted for each process that has them.
    pub(crate) resident: u64,
    pub(crate) cpu: Duration,
}

/// Examines all processes.
pub(crate) fn used() -> Used {
    let own = Stat::read("self").map_or(0, |own| own.waited_ticks);
    let page = rustix::param::page_size() as u64;
    let descendants = descendants();
    let ticks: u64 = descendants.values().map(|stat| stat.own_ticks + stat.waited_ticks).sum();
    Used {
        tasks: descendants.values().map(|stat| stat.threads.max(1)).sum(),
        resident: descendants.values().map(|stat| stat.resident_pages * page).sum(),
        cpu: Duration::from_millis((own + ticks) * 1000 / rustix::param::clock_ticks_per_second().max(1)),
    }
}

/// The memory of all processes, with each shared page counted once. Takes longer than [`used`].
pub(crate) fn proportional_memory() -> u64 {
    let page = rustix::param::page_size() as u64;
    descendants().iter().map(|(pid, stat)| share_of(*pid).unwrap_or(stat.resident_pages * page)).sum()
}

fn share_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"))?;
    kib.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Kills all processes and waits until none is left; returns how `main` ended, if that was not known yet.
pub(crate) fn destroy(main: Pid) -> Option<i32> {
    let mut status = None;
    let mut pause = Duration::from_micros(100);
    loop {
        kill_all();
        let left = reap(|pid, ended| {
            if pid == main {
                status = Some(ended.as_raw());
            }
        });
        // No child is left, and every orphan would have become one: nothing is left.
        if !left {
            return status;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reaps whatever has ended. Returns whether a child is left.
pub(crate) fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Groups first: a process cannot fork away from a signal to its group.
fn kill_all() {
    let found = descendants();
    let own = rustix::process::getpgrp().as_raw_nonzero().get();
    let groups: BTreeSet<i32> = found.values().map(|stat| stat.group).filter(|group| *group != own).collect();
    for group in groups.into_iter().filter(|group| *group > 1).filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for pid in found.into_keys().filter(|pid| *pid > 1).filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The fields of a process that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    group: i32,
    own_ticks: u64,
    waited_ticks: u64,
    threads: u64,
    resident_pages: u64,
}

impl Stat {
    fn read(process: &str) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The second field is the program's name, which may contain anything, including parentheses.
    fn parse(text: &str) -> Option<Stat> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at - 3)?.parse::<i64>().ok();
        let count = |at: usize| number(at).map(|value| u64::try_from(value).unwrap_or(0));
        let id = |at: usize| number(at).and_then(|value| i32::try_from(value).ok());
        Some(Stat {
            parent: id(4)?,
            group: id(5)?,
            own_ticks: count(14)? + count(15)?,
            waited_ticks: count(16)? + count(17)?,
            threads: count(20)?,
            resident_pages: count(24)?,
        })
    }
}

/// All descendants now. A process that is being forked or orphaned meanwhile may be missed, and is found the next time.
fn descendants() -> BTreeMap<i32, Stat> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    match children(own) {
        Ok(first) => follow(first, |pid| children(pid).unwrap_or_default()),
        Err(_) => {
            let families = families();
            let of = |pid: i32| families.get(&pid).cloned().unwrap_or_default();
            follow(of(own), of)
        }
    }
}

fn follow(mut pending: Vec<i32>, children: impl Fn(i32) -> Vec<i32>) -> BTreeMap<i32, Stat> {
    let mut found = BTreeMap::new();
    while let Some(pid) = pending.pop() {
        if found.len() >= MOST || found.contains_key(&pid) {
            continue;
        }
        if let Some(stat) = Stat::read(&pid.to_string()) {
            found.insert(pid, stat);
            pending.extend(children(pid));
        }
    }
    found
}

/// The children of a process, of all its threads, from the kernel's list.
fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("children"))?;
        found.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Ok(found)
}

/// The children of every process, if the kernel has no such list (`CONFIG_PROC_CHILDREN`).
fn families() -> BTreeMap<i32, Vec<i32>> {
    let mut families: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(stat) = Stat::read(&i32::to_string(&pid)) {
            families.entry(stat.parent).or_default().push(pid);
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_brackets_hides_nothing() {
        let rest = "S 7 8 8 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 5 0 100 1000000 42 18446744073709551615";
        let stat = Stat::parse(&format!("9 (a) R 1 (b)) {rest}")).unwrap();
        assert_eq!((stat.parent, stat.group, stat.threads, stat.resident_pages), (7, 8, 5, 42));
        assert_eq!((stat.own_ticks, stat.waited_ticks), (30, 70));
        assert_eq!(Stat::parse("9 (short) S 1"), None);
    }

    #[test]
    fn both_ways_to_find_children_find_them() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        while !families().contains_key(&pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Other tests may have started children of this process, too.
        assert!(children(own).unwrap().contains(&pid) && families()[&own].contains(&pid));
        let listed = follow(vec![pid], |pid| children(pid).unwrap_or_default());
        let families = families();
        let searched = follow(vec![pid], |pid| families.get(&pid).cloned().unwrap_or_default());
        for grandchild in listed.keys().filter(|found| **found != pid) {
            let _ = kill_process(Pid::from_raw(*grandchild).unwrap(), Signal::KILL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(listed.contains_key(&pid) && listed.len() == 2, "{listed:?}");
        assert_eq!(listed.keys().collect::<Vec<_>>(), searched.keys().collect::<Vec<_>>());
    }
}
