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
//! Nothing here moves a process into a box's cgroup. The jail does, in the cheapest way ([`CgroupEntry`](belljar_jail::plan::CgroupEntry)): moving
//! another process costs milliseconds.
//!
//! All of this blocks, usually for microseconds.

mod box_cgroup;
mod clear;
mod error;
mod grant;
mod limits;
mod mounts;
mod name;
mod systemd;
mod text;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::guarantee::{Guarantee, Standing};
use belljar_core::limits::BoxLimits;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

pub use box_cgroup::{BoxCgroup, Counters};
pub use error::CgroupError;
pub use grant::Grant;
pub use limits::Controller;
pub use name::BoxName;
pub use text::{Stale, TextError};
pub use v1::V1;
pub use v2::V2;

use box_cgroup::MemoryCounters;
use limits::{Caps, Demand, Knob, Weight};

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
        found.unwrap_or_else(|RejectedWay { why, fix }| Cgroups::Unavailable { why, fix })
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
struct RejectedWay {
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
    open_file(file).and_then(|open| read_open(&open)).map_err(unreadable(file))
}

fn open_file(file: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn read_open(file: &OwnedFd) -> io::Result<String> {
    // Enough for the whole of any of them, so that one read suffices; a second read could see a change.
    let mut text = Vec::with_capacity(LONGEST_FILE);
    rustix::io::pread(file, rustix::buffer::spare_capacity(&mut text), 0)?;
    String::from_utf8(text).map_err(io::Error::other)
}

fn unreadable(file: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    |source| CgroupError::Read { file: file.to_owned(), source }
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
