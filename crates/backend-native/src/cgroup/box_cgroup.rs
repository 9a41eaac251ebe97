//! The cgroup of one box: made, limited, read, killed and removed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::guarantee::Guarantee;
use belljar_core::limits::BoxLimits;
use belljar_host::sockets::Sockets;
use belljar_jail::plan::CgroupEntry;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::{
    Caps, CgroupError, Controller, Demand, Group, Knob, Version, Weight, clear, keyed, members, open_file,
    read_open, read_text, remove_dir, swap_is_on, unreadable, v1, v2, write_value,
};

/// The number of processes and threads in a cgroup, in both versions.
pub(super) const TASKS: &str = "pids.current";

/// The cgroup of one box. Dropping it kills what is still in it and removes it, as a last resort: [`remove`] also
/// reports.
///
/// [`remove`]: BoxCgroup::remove
#[derive(Debug)]
pub struct BoxCgroup {
    pub(super) version: Version,
    /// In the order they were made; the first marks that the box exists, and so is removed last.
    pub(super) groups: Vec<Group>,
    /// The guarantees that this host can enforce, whose limits may not fail.
    pub(super) promised: Vec<Guarantee>,
    /// Counters that are already open.
    open: Vec<(&'static str, OwnedFd)>,
}

impl BoxCgroup {
    pub(super) fn new(version: Version) -> BoxCgroup {
        BoxCgroup { version, groups: Vec::new(), promised: Vec::new(), open: Vec::new() }
    }

    /// Makes one that was only designed, and sets its limits: those that can be enforced here, the others as far as
    /// possible.
    ///
    /// # Errors
    /// It cannot be made, or a limit that could be set before cannot be set now.
    pub fn make_now(&self, limits: &BoxLimits) -> Result<(), CgroupError> {
        self.make_dirs()?;
        self.limit(&Caps::from(limits))
    }

    pub(super) fn make_dirs(&self) -> Result<(), CgroupError> {
        match self.version {
            Version::V1 => v1::make_dirs(self),
            Version::V2 => Ok(()),
        }
    }

    /// How the first process of the box enters it.
    #[must_use]
    pub fn entry(&self) -> CgroupEntry {
        match self.version {
            Version::V1 => {
                CgroupEntry::V1 { tasks: self.groups.iter().map(|group| group.dir.join("tasks")).collect() }
            }
            Version::V2 => self
                .groups
                .first()
                .map_or(CgroupEntry::None, |group| CgroupEntry::V2 { dir: group.dir.clone() }),
        }
    }

    /// Its directories, in the order of removal.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.groups.iter().rev().map(|group| group.dir.clone()).collect()
    }

    /// What to remove if we die: its directories, and the one that holds all boxes if there is one.
    #[must_use]
    pub fn orphans(&self) -> Vec<PathBuf> {
        let with_parent = match self.version {
            Version::V1 => 1,
            Version::V2 => 2,
        };
        self.dirs().iter().flat_map(|dir| dir.ancestors().take(with_parent)).map(Path::to_owned).collect()
    }

    /// Kills everything in it at once, if the kernel can: cgroup v2 since Linux 5.14. `false` means that it cannot, and
    /// that the first process of the box must be killed instead, which ends its PID namespace.
    ///
    /// # Errors
    /// The kernel supports it, but it failed.
    pub fn kill(&self) -> io::Result<bool> {
        let (Version::V2, Some(group)) = (self.version, self.groups.first()) else { return Ok(false) };
        match write_value(&group.dir.join("cgroup.kill"), "1") {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets its processes use all the CPU time they can get. Killed processes need some to die, and would have to wait for
    /// their quota and behind everything else on a busy host. What cannot be changed stays as it was.
    pub fn hasten_death(&self) {
        let most = match self.version {
            Version::V1 => [("cpu.cfs_quota_us", "-1"), ("cpu.shares", "262144")],
            Version::V2 => [("cpu.max", "max"), ("cpu.weight", "10000")],
        };
        for (file, value) in most {
            if let Ok(file) = self.file(Controller::Cpu, file) {
                let _ = write_value(&file, value);
            }
        }
    }

    /// Opens what is read at the end of a run, so that each takes one system call there and not three. One that cannot be
    /// opened now is opened when it is read.
    pub fn open_counters(&mut self) {
        let counters = match self.version {
            Version::V1 => v1::COUNTERS,
            Version::V2 => v2::COUNTERS,
        };
        for (controller, name) in counters {
            if let Ok(file) = self.file(*controller, name)
                && let Ok(file) = open_file(&file)
            {
                self.open.push((name, file));
            }
        }
    }

    /// What the box has used so far. Read it after its last process is dead. A counter whose controller this host does
    /// not have (its guarantee is unmet) is zero.
    ///
    /// # Errors
    /// A counter that this host does have cannot be read.
    pub fn counters(&self) -> Result<Counters, CgroupError> {
        let memory = self.unless_unmet(Guarantee::Memory, self.memory_counters())?;
        let cpu = self.cpu_used()?;
        Ok(Counters { cpu, memory_peak: memory.peak, oom_kills: memory.oom_kills })
    }

    /// The CPU time of all its processes so far, as in [`counters`](BoxCgroup::counters).
    ///
    /// # Errors
    /// It is counted here and cannot be read.
    pub fn cpu_used(&self) -> Result<Duration, CgroupError> {
        self.unless_unmet(Guarantee::Cpu, self.cpu_time())
    }

    /// Changes the limits of an existing box, and verifies them.
    ///
    /// # Errors
    /// A limit was refused: the box may already use more. Some of the others may have been changed.
    pub fn relimit(&self, before: &BoxLimits, after: &BoxLimits) -> Result<(), CgroupError> {
        let (old, new) = (self.version.knobs(&Caps::from(before)), self.version.knobs(&Caps::from(after)));
        let mut changed: Vec<Knob> = new.into_iter().filter(|knob| !old.contains(knob)).collect();
        if after.memory.get() > before.memory.get() {
            // Memory and swap together may never be less than memory alone, so together they go first.
            changed.sort_by_key(|knob| knob.file != v1::TOGETHER);
        }
        if after.cpus < before.cpus {
            // A burst may never be more than the quota, so it is lowered first.
            changed.sort_by_key(|knob| ![v1::BURST, v2::BURST].contains(&knob.file));
        }
        let set = |knob: &Knob| self.turn(knob).and_then(|()| self.check(knob));
        changed.iter().try_for_each(|knob| self.unless_unmet(knob.guarantee(), set(knob)))
    }

    /// Leaves most of the CPU time to others when it is scarce, if the kernel supports that. Not all of it: under
    /// lasting load, this box would never make progress.
    pub fn give_way(&self) {
        // If this fails, nothing is worse than before.
        let _ = self.set_weight(Weight::Less);
    }

    /// Takes a normal share of the CPUs again.
    ///
    /// # Errors
    /// The weight was lowered, and cannot be raised again.
    pub fn stop_giving_way(&self) -> Result<(), CgroupError> {
        self.set_weight(Weight::Usual)
    }

    fn set_weight(&self, weight: Weight) -> Result<(), CgroupError> {
        let (file, value) = match (self.version, weight) {
            (Version::V1, Weight::Less) => ("cpu.shares", "256"),
            (Version::V1, Weight::Usual) => ("cpu.shares", "1024"),
            (Version::V2, Weight::Less) => ("cpu.weight", "25"),
            (Version::V2, Weight::Usual) => ("cpu.weight", "100"),
        };
        let knob = Knob::new(Controller::Cpu, file, value, Demand::Must);
        self.unless_unmet(Guarantee::Cpu, self.turn(&knob))
    }

    /// How much memory is charged to it now.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn memory_in_use(&self) -> Result<u64, CgroupError> {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        self.unless_unmet(Guarantee::Memory, self.number(Controller::Memory, file))
    }

    /// How much kernel memory it holds now that its memory limit does not bound.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn memory_beyond_limit(&self, limits: &BoxLimits) -> Result<u64, CgroupError> {
        let beyond = match self.version {
            Version::V1 => v1::memory_beyond_limit(self),
            Version::V2 => v2::memory_beyond_limit(self, limits.memory.get()),
        };
        self.unless_unmet(Guarantee::Memory, beyond)
    }

    /// How many processes and threads are in it now.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn tasks(&self) -> Result<u64, CgroupError> {
        self.unless_unmet(Guarantee::Pids, self.number(Controller::Pids, TASKS))
    }

    /// The processes in it. There are none any more in a box that has ended.
    ///
    /// # Errors
    /// They cannot be listed, or one of them is not visible from here.
    pub fn processes(&self) -> io::Result<Vec<Pid>> {
        let Some(group) = self.groups.first() else { return Ok(Vec::new()) };
        let list = fs::read_to_string(group.dir.join("cgroup.procs"))?;
        let hidden = || io::Error::other("a process of the box is not visible from here");
        list.lines().map(|line| line.parse().ok().and_then(Pid::from_raw).ok_or_else(hidden)).collect()
    }

    /// The sockets of the network namespace that its processes share.
    ///
    /// # Errors
    /// No process is visible from here.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let pid = *self.processes()?.first().ok_or(io::ErrorKind::NotFound)?;
        let sockets = Sockets::of_process(&Path::new("/proc").join(pid.as_raw_nonzero().to_string()))?;
        // The number may have been reused before the files were opened.
        if self.processes()?.contains(&pid) { Ok(sockets) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Removes it. The box must be dead; the kernel may take a moment to notice.
    ///
    /// # Errors
    /// A directory is still busy, after some waiting.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.remove_dirs()
    }

    pub(super) fn remove_dirs(&mut self) -> Result<(), CgroupError> {
        while let Some(group) = self.groups.last() {
            remove_dir(&group.dir)
                .map_err(|source| CgroupError::Remove { dir: group.dir.clone(), source })?;
            self.version.remove_parent_of(&group.dir);
            self.groups.pop();
        }
        Ok(())
    }

    /// Kills and removes the cgroups in it. A box has none; one that was delegated to a server is full of them.
    pub(super) fn remove_those_within(&self) {
        for group in &self.groups {
            // What is left is removed by the next sweep.
            let _ = clear::clear(&group.dir);
        }
    }

    pub(super) fn limit(&self, caps: &Caps) -> Result<(), CgroupError> {
        self.version
            .knobs(caps)
            .iter()
            .try_for_each(|knob| self.unless_unmet(knob.guarantee(), self.turn(knob)))
    }

    pub(super) fn turn(&self, knob: &Knob) -> Result<(), CgroupError> {
        let file = self.file(knob.controller, knob.file)?;
        match (write_value(&file, &knob.value), knob.demand) {
            (Ok(()), _) | (Err(_), Demand::Welcome) => Ok(()),
            (Err(error), Demand::UnlessNoSwap) if error.kind() == io::ErrorKind::NotFound => {
                if swap_is_on() {
                    Err(CgroupError::UnlimitedSwap { file })
                } else {
                    Ok(())
                }
            }
            (Err(source), Demand::Must | Demand::UnlessNoSwap) => {
                Err(CgroupError::SetLimit { file, value: knob.value.clone(), source })
            }
        }
    }

    /// Sets the limits of one guarantee, verifies them, and reads its counters.
    pub(super) fn prove(&self, guarantee: Guarantee) -> Result<(), CgroupError> {
        for knob in self.version.knobs(&Caps::TYPICAL).iter().filter(|knob| knob.guarantee() == guarantee) {
            self.turn(knob)?;
            self.check(knob)?;
        }
        match guarantee {
            Guarantee::Memory => self.memory_counters().map(drop),
            Guarantee::Cpu => self.cpu_time().map(drop),
            Guarantee::Pids
            | Guarantee::Filesystem
            | Guarantee::Network
            | Guarantee::Disk
            | Guarantee::Syscalls
            | Guarantee::Privileges => Ok(()),
        }
    }

    fn check(&self, knob: &Knob) -> Result<(), CgroupError> {
        if knob.demand != Demand::Must {
            return Ok(());
        }
        let file = self.file(knob.controller, knob.file)?;
        let found = read_text(&file)?.trim().to_owned();
        if found == knob.value {
            return Ok(());
        }
        Err(CgroupError::NotTaken { file, value: knob.value.clone(), found })
    }

    pub(super) fn memory_counters(&self) -> Result<MemoryCounters, CgroupError> {
        match self.version {
            Version::V1 => v1::memory_counters(self),
            Version::V2 => v2::memory_counters(self),
        }
    }

    pub(super) fn cpu_time(&self) -> Result<Duration, CgroupError> {
        match self.version {
            Version::V1 => v1::cpu_time(self),
            Version::V2 => v2::cpu_time(self),
        }
    }

    fn unless_unmet<T: Default>(
        &self,
        guarantee: Guarantee,
        result: Result<T, CgroupError>,
    ) -> Result<T, CgroupError> {
        match result {
            Err(_) if !self.promised.contains(&guarantee) => Ok(T::default()),
            result => result,
        }
    }

    /// A file that is one number.
    pub(super) fn number(&self, controller: Controller, name: &str) -> Result<u64, CgroupError> {
        let number = self.text(controller, name)?.trim().parse();
        number.or_else(|_| self.malformed(controller, name, "itself"))
    }

    /// One number of a file of lines `key number`.
    pub(super) fn number_of(
        &self,
        controller: Controller,
        name: &str,
        key: &'static str,
    ) -> Result<u64, CgroupError> {
        let number = keyed(&self.text(controller, name)?, key);
        number.map_or_else(|| self.malformed(controller, name, key), Ok)
    }

    fn text(&self, controller: Controller, name: &str) -> Result<String, CgroupError> {
        match self.open.iter().find(|(open, _)| *open == name) {
            Some((_, file)) => {
                read_open(file).or_else(|error| Err(unreadable(&self.file(controller, name)?)(error)))
            }
            None => read_text(&self.file(controller, name)?),
        }
    }

    fn malformed(
        &self,
        controller: Controller,
        name: &str,
        wanted: &'static str,
    ) -> Result<u64, CgroupError> {
        Err(CgroupError::Malformed { file: self.file(controller, name)?, wanted })
    }

    pub(super) fn file(&self, controller: Controller, file: &str) -> Result<PathBuf, CgroupError> {
        let group = self.groups.iter().find(|group| group.controllers.contains(&controller));
        group.map(|group| group.dir.join(file)).ok_or(CgroupError::NoController { controller })
    }

    /// Kills what is still in it, as a last resort: one by one if it cannot be done at once.
    pub(super) fn end_members(&self) {
        const ROUNDS: u32 = 100;
        if let Ok(true) = self.kill() {
            return;
        }
        for _ in 0..ROUNDS {
            let members: Vec<Pid> = self.groups.iter().flat_map(|group| members(&group.dir)).collect();
            if members.is_empty() {
                return;
            }
            members.into_iter().for_each(|pid| self.end_member(pid));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Checks membership again after opening a pidfd: the number may have been reused.
    fn end_member(&self, pid: Pid) {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let still_in = self.groups.iter().any(|group| members(&group.dir).contains(&pid));
        if still_in && pid != getpid() {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl Drop for BoxCgroup {
    fn drop(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        self.end_members();
        // The error cannot be reported from here; the next sweep will find it.
        let _ = self.remove_dirs();
    }
}

/// What a box has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// CPU time of the whole tree.
    pub cpu: Duration,
    /// The most memory that was charged at once. On kernels that do not record it (cgroup v2 before Linux 5.19), what
    /// is charged now.
    pub memory_peak: u64,
    /// How many processes the OOM killer killed.
    pub oom_kills: u64,
}

impl Counters {
    /// The same, minus CPU time that was used before.
    #[must_use]
    pub fn since(self, before: Duration) -> Counters {
        Counters { cpu: self.cpu.saturating_sub(before), ..self }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryCounters {
    pub(super) peak: u64,
    pub(super) oom_kills: u64,
}
