//! Version 2: one hierarchy, delegated from above. Which part of it is ours depends on the process:
//!
//! | we are                                         | boxes are made                                           |
//! |------------------------------------------------|----------------------------------------------------------|
//! | in a cgroup that was delegated to us           | in it, and we move to its leaf `keeper`                  |
//! | root                                           | at the top of what is mounted                            |
//! | root of a container that sees only its own     | there too, and we move to a leaf, as above               |
//! | a user with a systemd manager                  | in a scope that we ask it for, and we move to its leaf   |
//!
//! We move because a cgroup that delegates memory to its children may hold no processes itself ("no internal
//! processes", cgroup-v2.rst). We move no other process: if there are others, the cgroup is theirs as much as ours.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::guarantee::{Guarantee, Standing};
use rustix::process::{Pid, geteuid, getpid};

use super::box_cgroup::TASKS;
use super::mounts::{self, Kind, Mount, Writable};
use super::systemd::{Manager, Scope, ScopeError};
use super::{
    BoxCgroup, BoxName, Caps, CgroupError, Controller, Demand, Group, Knob, MemoryCounters, RejectedWay,
    Settings, Verdicts, Version, chain, make_box_dir, make_parent_dir, members, name, sweep_boxes,
    write_value,
};

/// The part of the hierarchy of version 2 in which boxes are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V2 {
    pub(super) ground: Ground,
    /// The directory that holds the boxes.
    pub(super) parent: PathBuf,
    pub(super) verdicts: Verdicts,
}

/// A cgroup that we may divide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) claim: Claim,
    pub(super) base: PathBuf,
}

/// Why we may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// We are root, and it is the top.
    Top,
    /// We are in it, and it was delegated to us.
    Own,
    /// A systemd manager made it for this process.
    Scope,
}

/// The leaf that this process moves to.
const LEAF: &str = "keeper";

/// The files of a cgroup that belong to the user it is delegated to (cgroups(7), "Delegation").
pub(super) const DELEGATED: [&str; 3] = ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"];

/// How deep boxes are nested in a server's delegated cgroup.
pub(super) const DEPTH_OF_BOXES: &str = "2";

/// The cgroups that a server makes in its delegated one, besides those of boxes.
pub(super) fn made_by_a_server(granted: &Path) -> Vec<PathBuf> {
    let boxes = super::parent_name().ok();
    boxes.as_deref().into_iter().chain([LEAF]).map(|name| granted.join(name)).collect()
}

/// The controllers that boxes need.
const WANTED: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

impl V2 {
    /// Tries each way to get a cgroup for boxes, the best first. If all fail, says why for each.
    pub(super) fn probe(mounts: &[Mount], parent: &str, settings: &Settings) -> Result<V2, RejectedWay> {
        let scene = Scene::look(mounts, settings)?;
        let mut refusals: Vec<RejectedWay> = Vec::new();
        for claim in scene.claims() {
            match scene.settle(claim).and_then(|ground| V2::prove(ground, parent)) {
                Ok(v2) => return Ok(v2),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let fix = refusals.last().map(|refusal| refusal.fix.clone()).unwrap_or_default();
        let reasons: Vec<String> = refusals.into_iter().map(|refusal| refusal.why).collect();
        Err(RejectedWay { why: reasons.join("; "), fix })
    }

    /// The same cgroup as an earlier probe found, without setting every limit again. `base` is where it was; a scope is
    /// made again for each process.
    pub(super) fn known_good(
        claim: Claim,
        base: &Path,
        parent: &str,
        settings: &Settings,
    ) -> Result<V2, RejectedWay> {
        let ground = match claim {
            Claim::Top => Ground { claim, base: base.to_owned() },
            Claim::Own | Claim::Scope => {
                let mounts = mounts::mounts().map_err(|error| unreadable("/proc/self/mountinfo", &error))?;
                Scene::look(&mounts, settings)?.settle(claim)?
            }
        };
        if claim == Claim::Own && ground.base != base {
            let why = format!(
                "the cgroup of this process is now {}, not {}",
                ground.base.display(),
                base.display()
            );
            return Err(RejectedWay { why, fix: String::new() });
        }
        let v2 = V2 { parent: ground.base.join(parent), ground, verdicts: Verdicts::by_asking(kept) };
        Ok(v2)
    }

    fn prove(ground: Ground, parent: &str) -> Result<V2, RejectedWay> {
        let unknown = Standing::Unmet { why: String::new(), fix: String::new() };
        let mut v2 = V2 {
            parent: ground.base.join(parent),
            ground,
            verdicts: Verdicts::by_asking(|_| unknown.clone()),
        };
        let refused = |error: CgroupError| RejectedWay { fix: remedy(&error).into(), why: chain(&error) };
        let name = BoxName::next().map_err(|error| unreadable("/proc/self/stat", &error))?;
        let trial = v2.make(&name).map_err(refused)?;
        v2.enable_controllers();
        let obstacles = enable(&v2.ground.base);
        v2.verdicts =
            Verdicts::by_asking(|guarantee| standing(guarantee, trial.prove(guarantee), &obstacles));
        trial.remove().map_err(refused)?;
        if v2.verdicts.kept().is_empty() {
            let Standing::Unmet { why, fix } = v2.verdicts.memory else { return Ok(v2) };
            return Err(RejectedWay { why, fix });
        }
        Ok(v2)
    }

    pub(super) fn make(&self, name: &BoxName) -> Result<BoxCgroup, CgroupError> {
        let mut made = BoxCgroup::new(Version::V2);
        let dir = Version::V2.box_dir(&self.parent, name);
        make_box_dir(&dir, || {
            make_parent_dir(&self.parent)?;
            self.enable_controllers();
            Ok(())
        })?;
        made.groups.push(Group { dir, controllers: Controller::ALL.to_vec() });
        Ok(made)
    }

    /// Enables the controllers for the boxes. A failure here shows when a limit is set.
    pub(super) fn enable_controllers(&self) {
        enable(&self.ground.base);
        enable(&self.parent);
    }

    pub(super) fn sweep(&self) -> usize {
        let beneath = |dir: PathBuf| {
            let home = [Group { dir, controllers: Controller::ALL.to_vec() }];
            let swept = sweep_boxes(Version::V2, &home);
            let _ = fs::remove_dir(&home[0].dir);
            swept
        };
        let ours = beneath(self.parent.clone());
        // Scopes of our predecessors are next to ours; systemd removes them once they are empty.
        ours + self.scopes_beside().into_iter().map(beneath).sum::<usize>()
    }

    /// The directories that hold boxes, in the scopes of other processes.
    fn scopes_beside(&self) -> Vec<PathBuf> {
        let (Claim::Scope, Some(slice), Some(parent)) =
            (self.ground.claim, self.ground.base.parent(), self.parent.file_name())
        else {
            return Vec::new();
        };
        let Ok(entries) = fs::read_dir(slice) else { return Vec::new() };
        let scopes = entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.ground.base);
        let is_scope = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(SCOPE_PREFIX) && name.ends_with(".scope")
        };
        scopes.filter(is_scope).map(|scope| scope.join(parent)).collect()
    }
}

/// The position and user of this process.
#[derive(Debug)]
struct Scene {
    mount: Mount,
    /// The directory of the cgroup that we are in, if it is visible; not the leaf that we may have moved to.
    own: Option<PathBuf>,
    uid: u32,
    manager: Manager,
}

impl Scene {
    fn look(mounts: &[Mount], settings: &Settings) -> Result<Scene, RejectedWay> {
        let Some(mount) = mounts::preferred(mounts.iter().filter(|mount| mount.kind == Kind::V2)) else {
            let fix = "mount -t cgroup2 none /sys/fs/cgroup".into();
            return Err(RejectedWay { why: "no cgroup hierarchy is mounted".into(), fix });
        };
        if mount.writable == Writable::No {
            return Err(read_only(&mount.point));
        }
        let uid = geteuid().as_raw();
        let own = mounts::own_v2_cgroup().map_err(|error| unreadable("/proc/self/cgroup", &error))?;
        Ok(Scene {
            own: own.and_then(|own| mount.dir_of(&own)).map(without_leaf),
            mount: mount.clone(),
            uid,
            manager: Manager::of_user(uid, settings.runtime_dir.as_deref()),
        })
    }

    /// The claims that we have, the best first. A container's root that finds itself at the top of the hierarchy is in
    /// its own cgroup, regardless of how it was delegated.
    fn claims(&self) -> Vec<Claim> {
        let delegated = self.own.as_ref().is_some_and(|own| is_delegated(own, self.uid));
        let at_the_top = self.own.as_ref() == Some(&self.mount.point) && !is_root_cgroup(&self.mount.point);
        match (self.uid, delegated || at_the_top) {
            (0, true) if at_the_top => vec![Claim::Own],
            (0, true) => vec![Claim::Own, Claim::Top],
            (0, false) => vec![Claim::Top],
            (_, true) => vec![Claim::Own, Claim::Scope],
            (_, false) => vec![Claim::Scope],
        }
    }

    fn settle(&self, claim: Claim) -> Result<Ground, RejectedWay> {
        match (claim, &self.own) {
            (Claim::Top, _) => Ok(Ground { claim, base: self.mount.point.clone() }),
            (Claim::Own, Some(own)) => take_leaf(own).map(|()| Ground { claim, base: own.clone() }),
            (Claim::Own, None) => {
                let why =
                    format!("the cgroup of this process is not visible under {}", self.mount.point.display());
                Err(RejectedWay {
                    why,
                    fix: "mount the whole hierarchy: mount -t cgroup2 none /sys/fs/cgroup".into(),
                })
            }
            (Claim::Scope, _) => {
                let base = self.enter_scope()?;
                take_leaf(&base).map(|()| Ground { claim, base })
            }
        }
    }

    /// Has the user's manager make a scope around this process, unless it has already.
    fn enter_scope(&self) -> Result<PathBuf, RejectedWay> {
        let scope = our_scope().map_err(|error| unreadable("/proc/self/stat", &error))?;
        if let Some(base) = self.base_of(&scope) {
            return Ok(base);
        }
        let started = self.manager.start(&scope);
        if let Some(base) = self.await_scope(&scope, &started) {
            return Ok(base);
        }
        let why = match started {
            Ok(()) => format!("systemd accepted {} but did not move this process there", scope.unit),
            Err(error) => chain(&error),
        };
        Err(RejectedWay { why, fix: NO_SCOPE.into() })
    }

    /// systemd accepts a job first and moves us a moment later. If it refused because another thread of ours asked for
    /// the same scope, we are moved all the same.
    fn await_scope(&self, scope: &Scope, started: &Result<(), ScopeError>) -> Option<PathBuf> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let patience = match started {
            Ok(()) | Err(ScopeError::Refused { .. }) => PATIENCE,
            Err(ScopeError::NoManager { .. }) => return None,
        };
        let deadline = Instant::now() + patience;
        loop {
            let base = self.base_of(scope);
            if base.is_some() || Instant::now() > deadline {
                return base;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The directory of the scope, if we are in it now.
    fn base_of(&self, scope: &Scope) -> Option<PathBuf> {
        let own = self.mount.dir_of(&mounts::own_v2_cgroup().ok()??)?;
        let base = without_leaf(own);
        (base.file_name()? == scope.unit.as_str()).then_some(base)
    }
}

const SCOPE_PREFIX: &str = "belljar-";

/// One for each process; never shared with a later process that has the same id.
fn our_scope() -> io::Result<Scope> {
    let pid = std::process::id();
    Ok(Scope { unit: format!("{SCOPE_PREFIX}{pid}-{}.scope", name::start_time(pid)?), pid })
}

const NO_SCOPE: &str = "systemd-run --user --scope -p Delegate=yes belljar run …; if there is no user manager, log in \
                        on a console or by ssh, or run: loginctl enable-linger";

/// Moves this process out of the way of its boxes.
fn take_leaf(base: &Path) -> Result<(), RejectedWay> {
    let leaf = base.join(LEAF);
    if members(&leaf).contains(&getpid()) {
        return Ok(());
    }
    let others = others_in(base)?;
    if others > 0 {
        let why = format!("{others} other processes share the cgroup {}", base.display());
        let fix = format!(
            "start Belljar in a cgroup of its own: systemd-run --scope -p Delegate=yes belljar …; in a container, \
             first move everything to a leaf: mkdir {0}/init; while read p; do echo $p > {0}/init/cgroup.procs; done \
             < {0}/cgroup.procs",
            base.display()
        );
        return Err(RejectedWay { why, fix });
    }
    let refused = |error: CgroupError| RejectedWay { fix: remedy(&error).into(), why: chain(&error) };
    make_parent_dir(&leaf).map_err(refused)?;
    let file = leaf.join("cgroup.procs");
    write_value(&file, "0")
        .map_err(|source| refused(CgroupError::SetLimit { file, value: "0".into(), source }))
}

/// A process of another pid namespace is listed as 0.
fn others_in(base: &Path) -> Result<usize, RejectedWay> {
    let file = base.join("cgroup.procs");
    let text = fs::read_to_string(&file).map_err(|error| unreadable(&file.display().to_string(), &error))?;
    let ours = Pid::as_raw(Some(getpid())).to_string();
    Ok(text.lines().filter(|line| *line != ours).count())
}

/// If we, or an ancestor of ours, moved to a leaf, the cgroup for boxes is the one above it.
fn without_leaf(own: PathBuf) -> PathBuf {
    match (own.file_name(), own.parent()) {
        (Some(name), Some(above)) if name == LEAF => above.to_owned(),
        _ => own,
    }
}

/// systemd marks what it delegates, for root and for users; a user may also use cgroups that it owns.
fn is_delegated(own: &Path, uid: u32) -> bool {
    let marked = ["trusted.delegate", "user.delegate"].into_iter().any(|attribute| {
        let mut value = [0; 8];
        matches!(rustix::fs::getxattr(own, attribute, &mut value), Ok(1)) && value[0] == b'1'
    });
    marked || (uid != 0 && fs::metadata(own).is_ok_and(|dir| dir.uid() == uid))
}

/// Only the root of the whole hierarchy has no type.
fn is_root_cgroup(dir: &Path) -> bool {
    !dir.join("cgroup.type").exists()
}

/// Enables the controllers that we want and this cgroup has: one by one, because the kernel takes all or none. Returns
/// those that it refused, and why.
fn enable(dir: &Path) -> Vec<(Controller, io::Error)> {
    let list = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    let has = |list: &str, wanted: Controller| list.split_whitespace().any(|word| word == wanted.name());
    let (available, enabled) = (list("cgroup.controllers"), list("cgroup.subtree_control"));
    let missing = WANTED.into_iter().filter(|wanted| has(&available, *wanted) && !has(&enabled, *wanted));
    let file = dir.join("cgroup.subtree_control");
    missing
        .filter_map(|wanted| write_value(&file, &format!("+{wanted}")).err().map(|error| (wanted, error)))
        .collect()
}

/// How much unused quota may be used later at once.
pub(super) const BURST: &str = "cpu.max.burst";

/// If one process of a box is killed for lack of memory, the whole box dies, so that no half of a program continues.
pub(super) fn knobs(caps: &Caps) -> Vec<Knob> {
    use Controller::{Cpu, Memory, Pids};
    vec![
        Knob::new(Memory, "memory.max", caps.memory, Demand::Must),
        Knob::new(Memory, "memory.swap.max", 0, Demand::UnlessNoSwap),
        Knob::new(Memory, "memory.oom.group", 1, Demand::Welcome),
        Knob::new(Pids, "pids.max", caps.pids, Demand::Must),
        Knob::new(Cpu, "cpu.max", format!("{} {}", caps.cpu.quota, caps.cpu.period), Demand::Must),
        // Up to one quota that was not used in idle periods may be used later: starting up is not idle.
        Knob::new(Cpu, BURST, caps.cpu.quota, Demand::Welcome),
    ]
}

const PEAK: &str = "memory.peak";
const CHARGED: &str = "memory.current";
const EVENTS: &str = "memory.events";
const CPU_TIME: &str = "cpu.stat";
/// What is read at the end of a run.
pub(super) const COUNTERS: &[(Controller, &str)] = &[
    (Controller::Pids, TASKS),
    (Controller::Memory, PEAK),
    (Controller::Memory, EVENTS),
    (Controller::Cpu, CPU_TIME),
];

pub(super) fn memory_counters(cgroup: &BoxCgroup) -> Result<MemoryCounters, CgroupError> {
    let peak = match cgroup.number(Controller::Memory, PEAK) {
        Err(CgroupError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            cgroup.number(Controller::Memory, CHARGED)?
        }
        peak => peak?,
    };
    // A box has no cgroups below its own, so the local events are all there are.
    let oom_kills = cgroup.number_of(Controller::Memory, EVENTS, "oom_kill")?;
    Ok(MemoryCounters { peak, oom_kills })
}

/// What the kernel charged although the limit was reached, as it does for some socket buffers.
pub(super) fn memory_beyond_limit(cgroup: &BoxCgroup, limit: u64) -> Result<u64, CgroupError> {
    Ok(cgroup.number(Controller::Memory, CHARGED)?.saturating_sub(limit))
}

pub(super) fn cpu_time(cgroup: &BoxCgroup) -> Result<Duration, CgroupError> {
    Ok(Duration::from_micros(cgroup.number_of(Controller::Cpu, CPU_TIME, "usage_usec")?))
}

fn standing(
    guarantee: Guarantee,
    proof: Result<(), CgroupError>,
    obstacles: &[(Controller, io::Error)],
) -> Standing {
    let Err(error) = proof else { return kept(guarantee) };
    let obstacle = obstacles.iter().find(|(controller, _)| controller.guarantee() == guarantee);
    let why = match obstacle {
        Some((controller, refusal)) => {
            format!("the {controller} controller cannot be delegated: {refusal}")
        }
        None => chain(&error),
    };
    Standing::Unmet { why, fix: remedy(&error).into() }
}

fn kept(guarantee: Guarantee) -> Standing {
    let how = match guarantee {
        Guarantee::Memory => "memory.max and no swap (cgroup v2)",
        Guarantee::Pids => "pids.max (cgroup v2)",
        Guarantee::Cpu => "cpu.max, counted by cpu.stat (cgroup v2)",
        Guarantee::Filesystem
        | Guarantee::Network
        | Guarantee::Disk
        | Guarantee::Syscalls
        | Guarantee::Privileges => "",
    };
    Standing::Kept { how: how.into() }
}

fn remedy(error: &CgroupError) -> &'static str {
    let is_root = geteuid().is_root();
    match error {
        CgroupError::Make { source, .. } | CgroupError::SetLimit { source, .. }
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            WRITABLE_MOUNT
        }
        CgroupError::UnlimitedSwap { .. } => "swapoff -a, or boot with swapaccount=1",
        CgroupError::Make { .. } if !is_root => NO_SCOPE,
        CgroupError::Make { .. } => "run as the host's root, with writable cgroups",
        _ if is_root => {
            "boot with cgroup_no_v1=all and a kernel that has CONFIG_MEMCG, CONFIG_CGROUP_PIDS and \
             CONFIG_CFS_BANDWIDTH; in a container, let its runtime delegate the controllers"
        }
        CgroupError::Unavailable { .. }
        | CgroupError::NoController { .. }
        | CgroupError::SetLimit { .. }
        | CgroupError::NotTaken { .. }
        | CgroupError::Read { .. }
        | CgroupError::Malformed { .. }
        | CgroupError::Remove { .. } => {
            "as root: mkdir -p /etc/systemd/system/user@.service.d; printf '[Service]\\nDelegate=cpu memory pids\\n' > \
             /etc/systemd/system/user@.service.d/delegate.conf; systemctl daemon-reload; then log in again"
        }
    }
}

const WRITABLE_MOUNT: &str = "in a container: start it with --security-opt writable-cgroups=true (Docker 28), \
                              --security-opt unmask=/sys/fs/cgroup (Podman), or --cap-add SYS_ADMIN and run \
                              `mount -o remount,rw,bind /sys/fs/cgroup` before belljar, as the image of \
                              deploy/Dockerfile does";

fn read_only(mount: &Path) -> RejectedWay {
    RejectedWay { why: format!("{} is mounted read-only", mount.display()), fix: WRITABLE_MOUNT.into() }
}

fn unreadable(file: &str, error: &io::Error) -> RejectedWay {
    RejectedWay {
        why: format!("{file} cannot be read: {error}"),
        fix: "mount /proc and the cgroup hierarchy".into(),
    }
}
