//! Cgroups: they limit a whole tree of processes, count what it used, and allow killing it at once.
//!
//! Each box has its own cgroup, named after the process that owns it ([`BoxName`]). On version 1 that is a directory
//! `belljar.<name>` in each hierarchy that has one of our controllers. On version 2 it is a single one, in a directory
//! `belljar` that exists only while there are boxes, because there limits are delegated from above. What differs
//! between the two versions is data: the [`Knob`]s that set a limit, and the files of the counters. Making, limiting,
//! removing and sweeping are the same for both.
//!
//! Whether a limit can be enforced is found by setting it ([`Cgroups::probe`]), because neither the version, nor being
//! root, nor the list of controllers decides it: a container may have all three and a read-only mount.
//!
//! Nothing here moves a process into a box's cgroup. The jail does, in the cheapest way ([`CgroupEntry`]): moving
//! another process costs milliseconds.
//!
//! All of this blocks, usually for microseconds.

mod clear;
mod grant;
mod mounts;
mod name;
mod systemd;
mod text;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::guarantee::{Guarantee, Standing};
use belljar_core::limits::BoxLimits;
use belljar_host::sockets::Sockets;
use belljar_jail::plan::CgroupEntry;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

pub use grant::Grant;
pub use name::BoxName;
pub use text::{Stale, TextError};
pub use v1::V1;
pub use v2::V2;

/// How this host lets us limit a tree of processes, found by making a cgroup and writing to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroups {
    /// By the controllers of version 1, as root.
    V1(V1),
    /// By the controllers of version 2.
    V2(V2),
    /// Not at all.
    Unavailable {
        /// The reason that was observed.
        why: String,
        /// The command or the change that would help.
        fix: String,
    },
}

/// The relevant part of the caller's environment, which is read elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// `XDG_RUNTIME_DIR`: where the user's systemd manager listens.
    pub runtime_dir: Option<PathBuf>,
}

impl Cgroups {
    /// Makes a cgroup, sets each limit, reads each counter and removes it again.
    ///
    /// On cgroup v2 this process may itself be moved: into a scope that the user's systemd manager makes for it, and
    /// into a leaf `keeper`, because a cgroup that limits its children may not hold processes. Processes spawned
    /// earlier stay where they were, so call this first.
    #[must_use]
    pub fn probe(settings: &Settings) -> Cgroups {
        match parent_name() {
            Ok(parent) => Cgroups::probe_beneath(&parent, settings),
            Err(error) => Cgroups::unreadable("/proc/self/ns/pid", &error),
        }
    }

    /// `parent` is the name of the directory that holds all boxes.
    fn probe_beneath(parent: &str, settings: &Settings) -> Cgroups {
        let mounts = match mounts::mounts() {
            Ok(mounts) => mounts,
            Err(error) => return Cgroups::unreadable("/proc/self/mountinfo", &error),
        };
        let found = match v1::find(&mounts, parent) {
            Some(hierarchies) => V1::probe(&hierarchies).map(Cgroups::V1),
            None => V2::probe(&mounts, parent, settings).map(Cgroups::V2),
        };
        found.unwrap_or_else(|Refusal { why, fix }| Cgroups::Unavailable { why, fix })
    }

    fn unreadable(file: &str, error: &io::Error) -> Cgroups {
        Cgroups::Unavailable { why: format!("{file} cannot be read: {error}"), fix: "mount /proc".into() }
    }

    /// Whether a limit can be enforced here. Of the guarantees, cgroups provide memory, pids and cpu.
    #[must_use]
    pub fn standing(&self, guarantee: Guarantee) -> Standing {
        match self {
            Cgroups::V1(v1) => v1.verdicts.standing(guarantee),
            Cgroups::V2(v2) => v2.verdicts.standing(guarantee),
            Cgroups::Unavailable { why, fix } => Standing::Unmet { why: why.clone(), fix: fix.clone() },
        }
    }

    /// Makes the cgroup of a box. Limits that can be enforced here must be set; the others are set as far as possible.
    ///
    /// # Errors
    /// The cgroup cannot be made, or a limit that could be set before cannot be set now. Nothing is left behind.
    pub fn create(&self, name: &BoxName, limits: &BoxLimits) -> Result<BoxCgroup, CgroupError> {
        let made = self.design(name)?;
        made.make_dirs()?;
        let caps = Caps::from(limits);
        let limited = made.limit(&caps);
        if let (Err(CgroupError::SetLimit { .. }), Cgroups::V2(v2)) = (&limited, self) {
            // The owner of the cgroups above ours (systemd, at the top) may have switched controllers off.
            v2.enable_controllers();
            made.limit(&caps)?;
        } else {
            limited?;
        }
        Ok(made)
    }

    /// The cgroup of a box, with its name and path. A cgroup v1 does not exist before
    /// [`make_now`](BoxCgroup::make_now).
    ///
    /// # Errors
    /// It cannot be made. Nothing is left behind.
    pub fn design(&self, name: &BoxName) -> Result<BoxCgroup, CgroupError> {
        let (mut designed, verdicts) = match self {
            Cgroups::V1(v1) => (v1.design(name), &v1.verdicts),
            Cgroups::V2(v2) => (v2.make(name)?, &v2.verdicts),
            Cgroups::Unavailable { why, fix } => {
                return Err(CgroupError::Unavailable { why: why.clone(), fix: fix.clone() });
            }
        };
        designed.promised = verdicts.kept();
        Ok(designed)
    }

    /// Removes what crashed predecessors left, and nothing else; returns how many boxes that was. If there is nothing
    /// to do, it costs reading one directory.
    pub fn sweep(&self) -> usize {
        match self {
            Cgroups::V1(v1) => sweep_boxes(Version::V1, &v1.hierarchies),
            Cgroups::V2(v2) => v2.sweep(),
            Cgroups::Unavailable { .. } => 0,
        }
    }
}

/// The cgroup of one box. Dropping it kills what is still in it and removes it, as a last resort: [`remove`] also
/// reports.
///
/// [`remove`]: BoxCgroup::remove
#[derive(Debug)]
pub struct BoxCgroup {
    version: Version,
    /// In the order they were made; the first marks that the box exists, and so is removed last.
    groups: Vec<Group>,
    /// The guarantees that this host can enforce, whose limits may not fail.
    promised: Vec<Guarantee>,
}

impl BoxCgroup {
    fn new(version: Version) -> BoxCgroup {
        BoxCgroup { version, groups: Vec::new(), promised: Vec::new() }
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

    fn make_dirs(&self) -> Result<(), CgroupError> {
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
        self.unless_unmet(
            Guarantee::Memory,
            self.file(Controller::Memory, file).and_then(|file| read_number(&file)),
        )
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
        let counted = self.file(Controller::Pids, "pids.current").and_then(|file| read_number(&file));
        self.unless_unmet(Guarantee::Pids, counted)
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

    fn remove_dirs(&mut self) -> Result<(), CgroupError> {
        while let Some(group) = self.groups.last() {
            remove_dir(&group.dir)
                .map_err(|source| CgroupError::Remove { dir: group.dir.clone(), source })?;
            self.version.remove_parent_of(&group.dir);
            self.groups.pop();
        }
        Ok(())
    }

    /// Kills and removes the cgroups in it. A box has none; one that was delegated to a server is full of them.
    fn remove_those_within(&self) {
        for group in &self.groups {
            // What is left is removed by the next sweep.
            let _ = clear::clear(&group.dir);
        }
    }

    fn limit(&self, caps: &Caps) -> Result<(), CgroupError> {
        self.version
            .knobs(caps)
            .iter()
            .try_for_each(|knob| self.unless_unmet(knob.guarantee(), self.turn(knob)))
    }

    fn turn(&self, knob: &Knob) -> Result<(), CgroupError> {
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
    fn prove(&self, guarantee: Guarantee) -> Result<(), CgroupError> {
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

    fn memory_counters(&self) -> Result<MemoryCounters, CgroupError> {
        match self.version {
            Version::V1 => v1::memory_counters(self),
            Version::V2 => v2::memory_counters(self),
        }
    }

    fn cpu_time(&self) -> Result<Duration, CgroupError> {
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

    fn file(&self, controller: Controller, file: &str) -> Result<PathBuf, CgroupError> {
        let group = self.groups.iter().find(|group| group.controllers.contains(&controller));
        group.map(|group| group.dir.join(file)).ok_or(CgroupError::NoController { controller })
    }

    /// Kills what is still in it, as a last resort: one by one if it cannot be done at once.
    fn end_members(&self) {
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
struct MemoryCounters {
    peak: u64,
    oom_kills: u64,
}

/// Why something could not be done with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no usable cgroup on this host.
    #[error("no cgroup can be made here: {why}")]
    Unavailable {
        /// The reason that was observed.
        why: String,
        /// What would help.
        fix: String,
    },
    /// A directory could not be made.
    #[error("cannot make a cgroup in {}", dir.parent().unwrap_or(dir).display())]
    Make {
        /// Which.
        dir: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The controller is not available.
    #[error("the {controller} controller is not available")]
    NoController {
        /// Which.
        controller: Controller,
    },
    /// The kernel refused a limit.
    #[error("cannot write {value} to {}", file.display())]
    SetLimit {
        /// Where it is set.
        file: PathBuf,
        /// What it was to be.
        value: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A limit was accepted but is not in force.
    #[error("{} is {found} after {value} was written to it", file.display())]
    NotTaken {
        /// Where it was set.
        file: PathBuf,
        /// What it was to be.
        value: String,
        /// What it is.
        found: String,
    },
    /// Memory is limited and swap is not.
    #[error("this host has swap, and no {} to limit it with", file.display())]
    UnlimitedSwap {
        /// What is missing.
        file: PathBuf,
    },
    /// A counter could not be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A counter is not a number.
    #[error("{} holds no number for {wanted}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What was looked for in it.
        wanted: &'static str,
    },
    /// A directory could not be removed.
    #[error("cannot remove the cgroup {}", dir.display())]
    Remove {
        /// Which.
        dir: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// A controller of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the kernel's")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
    /// Counts CPU time, on version 1 only: on version 2 every cgroup does.
    CpuAcct,
}

impl Controller {
    const ALL: [Controller; 4] = [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::CpuAcct];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
            Controller::CpuAcct => "cpuacct",
        }
    }

    fn from_name(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|controller| controller.name() == name)
    }

    /// The guarantee that cannot be enforced without it.
    fn guarantee(self) -> Guarantee {
        match self {
            Controller::Memory => Guarantee::Memory,
            Controller::Pids => Guarantee::Pids,
            Controller::Cpu | Controller::CpuAcct => Guarantee::Cpu,
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A share of the CPUs when they are scarce: the normal one, or a quarter of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Less,
    Usual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn knobs(self, caps: &Caps) -> Vec<Knob> {
        match self {
            Version::V1 => v1::knobs(caps),
            Version::V2 => v2::knobs(caps),
        }
    }

    /// The path of a box with this name. One more level of directories would double the number of cgroups to make and
    /// remove.
    fn box_dir(self, home: &Path, name: &BoxName) -> PathBuf {
        match self {
            Version::V1 => home.with_file_name(prefix(home) + &name.to_string()),
            Version::V2 => home.join(name.to_string()),
        }
    }

    /// The existing boxes.
    fn boxes(self, home: &Path) -> Vec<BoxName> {
        let (dir, prefix) = match self {
            Version::V1 => (home.parent(), prefix(home)),
            Version::V2 => (Some(home), String::new()),
        };
        let entries = dir.and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| BoxName::parse(entry.file_name().to_str()?.strip_prefix(&prefix)?))
            .collect()
    }

    /// Leaves nothing behind when the last box is gone. While there are others, the kernel refuses, which is fine.
    fn remove_parent_of(self, dir: &Path) {
        if let (Version::V2, Some(parent)) = (self, dir.parent()) {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// The prefix of the names of boxes that have no common directory.
fn prefix(home: &Path) -> String {
    let name = home.file_name().unwrap_or_default();
    format!("{}.", name.to_string_lossy())
}

/// A directory, and the controllers that can be reached through its files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    controllers: Vec<Controller>,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Knob {
    controller: Controller,
    file: &'static str,
    value: String,
    demand: Demand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// The guarantee depends on it.
    Must,
    /// The same, unless the file is missing and there is no swap to limit.
    UnlessNoSwap,
    /// An improvement, where the kernel has it.
    Welcome,
}

impl Knob {
    fn new(controller: Controller, file: &'static str, value: impl ToString, demand: Demand) -> Knob {
        Knob { controller, file, value: value.to_string(), demand }
    }

    fn guarantee(&self) -> Guarantee {
        self.controller.guarantee()
    }
}

/// The limits of a box as numbers for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caps {
    memory: u64,
    pids: u32,
    cpu: Bandwidth,
}

impl Caps {
    /// The limits used for probing.
    const TYPICAL: Caps = Caps { memory: 256 << 20, pids: 51, cpu: Bandwidth::of_milli_cpus(1000) };
}

impl From<&BoxLimits> for Caps {
    fn from(limits: &BoxLimits) -> Caps {
        Caps {
            memory: limits.memory.get(),
            // The first process of the box is ours, and does not count against the caller's limit.
            pids: limits.pids.saturating_add(1),
            cpu: Bandwidth::of_milli_cpus(limits.cpus.milli()),
        }
    }
}

/// A CPU rate as the kernel takes it: running time in each period, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bandwidth {
    quota: u64,
    period: u64,
}

impl Bandwidth {
    /// A box that has used up its quota stops until the period is over, so a short period is better: the usual 100 ms
    /// would add up to 50 ms to a run of one millisecond at half a CPU. But the kernel takes no quota below 1 ms and no
    /// period above 1 s.
    const fn of_milli_cpus(milli: u32) -> Bandwidth {
        const PERIOD: u64 = 10_000;
        const SHORTEST_QUOTA: u64 = 1_000;
        const LONGEST_PERIOD: u64 = 1_000_000;
        let milli = if milli == 0 { 1 } else { milli as u64 };
        let for_shortest_quota = (SHORTEST_QUOTA * 1000).div_ceil(milli);
        let period = if for_shortest_quota > PERIOD { for_shortest_quota } else { PERIOD };
        let period = if period > LONGEST_PERIOD { LONGEST_PERIOD } else { period };
        Bandwidth { quota: milli * period / 1000, period }
    }
}

/// The result for each of the guarantees that cgroups provide.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdicts {
    memory: Standing,
    pids: Standing,
    cpu: Standing,
}

impl Verdicts {
    const GUARANTEES: [Guarantee; 3] = [Guarantee::Memory, Guarantee::Pids, Guarantee::Cpu];

    fn by_asking(standing: impl Fn(Guarantee) -> Standing) -> Verdicts {
        Verdicts {
            memory: standing(Guarantee::Memory),
            pids: standing(Guarantee::Pids),
            cpu: standing(Guarantee::Cpu),
        }
    }

    fn standing(&self, guarantee: Guarantee) -> Standing {
        match guarantee {
            Guarantee::Memory => self.memory.clone(),
            Guarantee::Pids => self.pids.clone(),
            Guarantee::Cpu => self.cpu.clone(),
            Guarantee::Filesystem
            | Guarantee::Network
            | Guarantee::Disk
            | Guarantee::Syscalls
            | Guarantee::Privileges => {
                Standing::Unmet { why: format!("{guarantee} is not kept by cgroups"), fix: String::new() }
            }
        }
    }

    fn kept(&self) -> Vec<Guarantee> {
        let keeps = |guarantee: &Guarantee| matches!(self.standing(*guarantee), Standing::Kept { .. });
        Verdicts::GUARANTEES.into_iter().filter(keeps).collect()
    }
}

/// Why a way to make cgroups was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    why: String,
    fix: String,
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The directory that holds the boxes, or the prefix of their names. Each PID namespace except the host's has a
/// different one: to a process of another PID namespace that sees the same cgroups, our process ids mean nothing, and
/// it would take our boxes for abandoned ones.
fn parent_name() -> io::Result<String> {
    /// `PROC_PID_INIT_INO` in the kernel's `proc_ns.h`.
    const HOST: &str = "4026531836";
    let link = fs::read_link("/proc/self/ns/pid")?;
    let link = link.to_string_lossy();
    let inode = link.trim_start_matches("pid:[").trim_end_matches(']');
    Ok(if inode == HOST { "belljar".to_owned() } else { format!("belljar-{inode}") })
}

/// Makes the directory of a box. Its parent may be missing, or be removed at this moment with another process's last
/// box; so this is repeated if necessary.
fn make_box_dir(dir: &Path, make_parent: impl Fn() -> Result<(), CgroupError>) -> Result<(), CgroupError> {
    const ATTEMPTS: u32 = 50;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match fs::create_dir(dir) {
            Ok(()) => return Ok(()),
            Err(source) if is_gone(&source) && attempts < ATTEMPTS => make_parent()?,
            Err(source) => return Err(CgroupError::Make { dir: dir.to_owned(), source }),
        }
    }
}

/// Makes the directory that holds the boxes, if it does not exist.
fn make_parent_dir(dir: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(dir) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Make { dir: dir.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// A cgroup that is being removed answers `ENODEV` to processes that still have it open.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

/// Removes a cgroup whose last process may be exiting.
fn remove_dir(dir: &Path) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_millis(500);
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(50);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && Instant::now() < deadline
                    && !clear::holds_others(dir) =>
            {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes the boxes of dead processes. `homes` are the directories for the parts of each box, in the order in which
/// they are made: a box that is not in the first is in none.
fn sweep_boxes(version: Version, homes: &[Group]) -> usize {
    // In each of them: a process that was removing a box may have died, or found a part of it busy.
    let mut names: Vec<_> = homes.iter().flat_map(|home| version.boxes(&home.dir)).collect();
    names.sort_unstable();
    names.dedup();
    names.iter().filter(|name| !name.owner_lives()).filter(|name| sweep_box(version, homes, name)).count()
}

fn sweep_box(version: Version, homes: &[Group], name: &BoxName) -> bool {
    let at_home = |home: &Group| Group { dir: version.box_dir(&home.dir, name), ..home.clone() };
    let mut leftover = BoxCgroup::new(version);
    leftover.groups = homes.iter().map(at_home).filter(|group| group.dir.exists()).collect();
    leftover.remove_those_within();
    leftover.end_members();
    leftover.remove_dirs().is_ok()
}

/// The processes in a cgroup that we can see.
fn members(dir: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // A process of another PID namespace is shown as 0, which is not a process.
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// The kernel takes a value in one write or not at all.
fn write_value(file: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

/// No file that is read here is longer.
const LONGEST_FILE: usize = 4096;

fn read_text(file: &Path) -> Result<String, CgroupError> {
    let read = || -> io::Result<String> {
        let open = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // Enough for the whole of any of them, so that one read suffices; a second read could see a change.
        let mut text = Vec::with_capacity(LONGEST_FILE);
        rustix::io::read(&open, rustix::buffer::spare_capacity(&mut text))?;
        String::from_utf8(text).map_err(io::Error::other)
    };
    read().map_err(|source| CgroupError::Read { file: file.to_owned(), source })
}

/// A file that is one number.
fn read_number(file: &Path) -> Result<u64, CgroupError> {
    let number = read_text(file)?.trim().parse();
    number.map_err(|_| CgroupError::Malformed { file: file.to_owned(), wanted: "itself" })
}

/// One number of a file of lines `key number`.
fn read_key(file: &Path, key: &'static str) -> Result<u64, CgroupError> {
    let number = keyed(&read_text(file)?, key);
    number.ok_or_else(|| CgroupError::Malformed { file: file.to_owned(), wanted: key })
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Whether memory can be swapped out. If that cannot be determined, assume so.
fn swap_is_on() -> bool {
    fs::read_to_string("/proc/swaps").map_or(true, |text| lists_swap(&text))
}

/// The first line is a heading.
fn lists_swap(swaps: &str) -> bool {
    swaps.lines().count() > 1
}
