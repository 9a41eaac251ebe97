//! Version 1: a hierarchy for each controller, or for several that are mounted together. Only root can use it: there is
//! no safe way to delegate a part of it to an ordinary user.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use belljar_core::guarantee::{Guarantee, Standing};
use belljar_host::sockets::BUFFERS_LIMIT;

use super::box_cgroup::TASKS;
use super::mounts::{self, Kind, Mount};
use super::{
    BoxCgroup, BoxName, Caps, CgroupError, Controller, Demand, Group, Knob, MemoryCounters, RejectedWay,
    Verdicts, Version, chain,
};

/// The hierarchies of version 1 in which boxes are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V1 {
    /// In each, the path with which the directories of boxes begin.
    pub(super) hierarchies: Vec<Group>,
    pub(super) verdicts: Verdicts,
}

/// The hierarchies that have controllers we use, each with the directory for our boxes; none if version 1 has nothing
/// to limit with.
pub(super) fn find(mounts: &[Mount], parent: &str) -> Option<Vec<Group>> {
    let mut hierarchies: Vec<Group> = Vec::new();
    for controller in Controller::ALL {
        let has = |mount: &&Mount| match &mount.kind {
            Kind::V1 { options } => options.iter().any(|option| option == controller.name()),
            Kind::V2 => false,
        };
        let Some(mount) = mounts::preferred(mounts.iter().filter(has)) else { continue };
        let dir = mount.point.join(parent);
        match hierarchies.iter_mut().find(|hierarchy| hierarchy.dir == dir) {
            Some(hierarchy) => hierarchy.controllers.push(controller),
            None => hierarchies.push(Group { dir, controllers: vec![controller] }),
        }
    }
    // A hierarchy that only counts does not limit: then version 2 may.
    let limits = |group: &Group| group.controllers != [Controller::CpuAcct];
    hierarchies.iter().any(limits).then_some(hierarchies)
}

impl V1 {
    pub(super) fn probe(found: &[Group]) -> Result<V1, RejectedWay> {
        let refused = |error: CgroupError| RejectedWay { fix: remedy(&error).into(), why: chain(&error) };
        let mut obstacle = None;
        let name = BoxName::next()
            .map_err(|source| refused(CgroupError::Read { file: "/proc/self/stat".into(), source }))?;
        let mut usable = |home: &&Group| {
            let dir = Version::V1.box_dir(&home.dir, &name);
            match make_dir(&dir) {
                Ok(()) => fs::remove_dir(dir).is_ok(),
                Err(error) => {
                    obstacle.get_or_insert(error);
                    false
                }
            }
        };
        let hierarchies: Vec<Group> = found.iter().filter(&mut usable).cloned().collect();
        if let (true, Some(error)) = (hierarchies.is_empty(), obstacle) {
            return Err(refused(error));
        }
        let unknown = Standing::Unmet { why: String::new(), fix: String::new() };
        let mut v1 = V1 { hierarchies, verdicts: Verdicts::by_asking(|_| unknown.clone()) };
        let trial = v1.design(&name);
        trial.make_dirs().map_err(refused)?;
        v1.verdicts = Verdicts::by_asking(|guarantee| standing(guarantee, trial.prove(guarantee)));
        trial.remove().map_err(refused)?;
        Ok(v1)
    }

    pub(super) fn design(&self, name: &BoxName) -> BoxCgroup {
        let mut designed = BoxCgroup::new(Version::V1);
        for home in &self.hierarchies {
            let dir = Version::V1.box_dir(&home.dir, name);
            designed.groups.push(Group { dir, controllers: home.controllers.clone() });
        }
        designed
    }

    /// The result of a probe that found no problem.
    pub(super) fn known_good(hierarchies: Vec<Group>) -> V1 {
        V1 { hierarchies, verdicts: Verdicts::by_asking(kept) }
    }
}

/// Dropping the box removes what exists of it, even if this fails half way.
pub(super) fn make_dirs(cgroup: &BoxCgroup) -> Result<(), CgroupError> {
    cgroup.groups.iter().try_for_each(|group| make_dir(&group.dir))
}

fn make_dir(dir: &Path) -> Result<(), CgroupError> {
    fs::create_dir(dir).map_err(|source| CgroupError::Make { dir: dir.to_owned(), source })
}

/// The limit on memory and swap together.
pub(super) const TOGETHER: &str = "memory.memsw.limit_in_bytes";

/// How much unused quota may be used later at once.
pub(super) const BURST: &str = "cpu.cfs_burst_us";

/// Memory and swap together may not exceed the limit of memory alone, so no swap is used. The second limit may never be
/// below the first, so it is set later.
pub(super) fn knobs(caps: &Caps) -> Vec<Knob> {
    use Controller::{Cpu, Memory, Pids};
    vec![
        Knob::new(Memory, "memory.limit_in_bytes", caps.memory, Demand::Must),
        Knob::new(Memory, TOGETHER, caps.memory, Demand::UnlessNoSwap),
        Knob::new(Memory, "memory.swappiness", 0, Demand::Welcome),
        // Socket buffers are counted separately, and unlimited by default.
        Knob::new(Memory, "memory.kmem.tcp.limit_in_bytes", caps.memory.min(BUFFERS_LIMIT), Demand::Welcome),
        Knob::new(Pids, "pids.max", caps.pids, Demand::Must),
        Knob::new(Cpu, "cpu.cfs_period_us", caps.cpu.period, Demand::Must),
        Knob::new(Cpu, "cpu.cfs_quota_us", caps.cpu.quota, Demand::Must),
        // Up to one quota that was not used in idle periods may be used later: starting up is not idle.
        Knob::new(Cpu, BURST, caps.cpu.quota, Demand::Welcome),
    ]
}

const PEAK: &str = "memory.max_usage_in_bytes";
const PEAK_OF_BUFFERS: &str = "memory.kmem.tcp.max_usage_in_bytes";
const OOM_KILLS: &str = "memory.oom_control";
const CPU_TIME: &str = "cpuacct.usage";
/// What is read at the end of a run.
pub(super) const COUNTERS: &[(Controller, &str)] = &[
    (Controller::Pids, TASKS),
    (Controller::Memory, PEAK),
    (Controller::Memory, PEAK_OF_BUFFERS),
    (Controller::Memory, OOM_KILLS),
    (Controller::CpuAcct, CPU_TIME),
];

pub(super) fn memory_counters(cgroup: &BoxCgroup) -> Result<MemoryCounters, CgroupError> {
    let memory = cgroup.number(Controller::Memory, PEAK)?;
    // The two may not have been at their peaks at the same time, but neither is left out.
    let sockets = socket_buffers(cgroup, PEAK_OF_BUFFERS)?;
    Ok(MemoryCounters {
        peak: memory.saturating_add(sockets),
        oom_kills: cgroup.number_of(Controller::Memory, OOM_KILLS, "oom_kill")?,
    })
}

/// What the sockets of the box buffer, which the memory limit does not include.
pub(super) fn memory_beyond_limit(cgroup: &BoxCgroup) -> Result<u64, CgroupError> {
    socket_buffers(cgroup, "memory.kmem.tcp.usage_in_bytes")
}

/// Zero on kernels that do not count them.
fn socket_buffers(cgroup: &BoxCgroup, file: &str) -> Result<u64, CgroupError> {
    match cgroup.number(Controller::Memory, file) {
        Err(CgroupError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(0),
        counted => counted,
    }
}

pub(super) fn cpu_time(cgroup: &BoxCgroup) -> Result<Duration, CgroupError> {
    Ok(Duration::from_nanos(cgroup.number(Controller::CpuAcct, CPU_TIME)?))
}

fn standing(guarantee: Guarantee, proof: Result<(), CgroupError>) -> Standing {
    match proof {
        Ok(()) => kept(guarantee),
        Err(error) => Standing::Unmet { fix: remedy(&error).into(), why: chain(&error) },
    }
}

fn kept(guarantee: Guarantee) -> Standing {
    let how = match guarantee {
        Guarantee::Memory => "memory.limit_in_bytes, swap included (cgroup v1)",
        Guarantee::Pids => "pids.max (cgroup v1)",
        Guarantee::Cpu => "cpu.cfs_quota_us, counted by cpuacct (cgroup v1)",
        Guarantee::Filesystem
        | Guarantee::Network
        | Guarantee::Disk
        | Guarantee::Syscalls
        | Guarantee::Privileges => "",
    };
    Standing::Kept { how: how.into() }
}

fn remedy(error: &CgroupError) -> &'static str {
    match error {
        CgroupError::Make { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            "in a container: start it with --cap-add SYS_ADMIN and, before belljar, run `for controller in \
             /sys/fs/cgroup/*/; do mount -o remount,rw,bind $controller; done`, as the image of deploy/Dockerfile does; \
             or start it with --privileged"
        }
        CgroupError::Make { .. } if rustix::process::geteuid().is_root() => {
            "run as the host's root, with writable cgroups"
        }
        CgroupError::Make { .. } => {
            "run as root, or boot with systemd.unified_cgroup_hierarchy=1: cgroup v1 cannot be delegated to an \
             ordinary user"
        }
        CgroupError::UnlimitedSwap { .. } => "swapoff -a, or boot with swapaccount=1",
        CgroupError::NoController { controller: Controller::Memory } => "boot with cgroup_enable=memory",
        CgroupError::NoController { .. }
        | CgroupError::Unavailable { .. }
        | CgroupError::SetLimit { .. }
        | CgroupError::NotTaken { .. }
        | CgroupError::Read { .. }
        | CgroupError::Malformed { .. }
        | CgroupError::Remove { .. } => {
            "use a kernel with CONFIG_MEMCG, CONFIG_CGROUP_PIDS, CONFIG_CFS_BANDWIDTH and CONFIG_CGROUP_CPUACCT, and \
             their controllers mounted"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cgroup::limits::Bandwidth;
    use crate::cgroup::mounts::Writable;

    fn mount(point: &str, options: &str) -> Mount {
        let options = options.split(',').map(str::to_owned).collect();
        Mount { root: "/".into(), point: point.into(), writable: Writable::Yes, kind: Kind::V1 { options } }
    }

    #[test]
    fn controllers_that_are_mounted_together_share_a_directory() {
        let found = find(
            &[
                mount("/c/systemd", "rw,name=systemd"),
                mount("/c/cpu,cpuacct", "rw,cpu,cpuacct"),
                mount("/c/memory", "rw,memory"),
            ],
            "belljar",
        );
        let group = |dir: &str, controllers: &[Controller]| Group {
            dir: PathBuf::from(dir),
            controllers: controllers.to_vec(),
        };
        assert_eq!(
            found.unwrap(),
            [
                group("/c/memory/belljar", &[Controller::Memory]),
                group("/c/cpu,cpuacct/belljar", &[Controller::Cpu, Controller::CpuAcct]),
            ]
        );
    }

    #[test]
    fn hierarchies_that_limit_nothing_are_not_a_version_1() {
        assert_eq!(
            find(&[mount("/c/systemd", "rw,name=systemd"), mount("/c/acct", "rw,cpuacct")], "belljar"),
            None
        );
        assert_eq!(find(&[], "belljar"), None);
    }

    #[test]
    fn swap_is_limited_after_memory() {
        let caps = Caps { memory: 64 << 20, pids: 11, cpu: Bandwidth::of_milli_cpus(500) };
        let written: Vec<_> =
            knobs(&caps).iter().map(|knob| format!("{}={}", knob.file, knob.value)).collect();
        assert_eq!(
            written,
            [
                "memory.limit_in_bytes=67108864",
                "memory.memsw.limit_in_bytes=67108864",
                "memory.swappiness=0",
                "memory.kmem.tcp.limit_in_bytes=8388608",
                "pids.max=11",
                "cpu.cfs_period_us=10000",
                "cpu.cfs_quota_us=5000",
                "cpu.cfs_burst_us=5000",
            ]
        );
    }
}
