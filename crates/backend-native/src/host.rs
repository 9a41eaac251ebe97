//! What this host can do, found by doing it: a trial box is built exactly like a real one. Version numbers and settings
//! are read only afterwards, to explain a failure.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_jail::Fault;
use belljar_jail::landlock;
use belljar_jail::message::Reply;
use belljar_jail::plan::{IdPair, Identity, Opener};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::cgroup::{self, Cgroups};
use crate::keeper::{Keeper, OrderError, ProgramEnds};
use crate::layout::{CODE_ID, Draft};
use crate::{probe_cache, trial};

/// The result of the probe.
#[derive(Debug)]
pub(crate) struct Host {
    /// Which process opens the sources, which tells root's way of making boxes from an ordinary user's.
    pub(crate) opener: Opener,
    /// Whether a box can be built, and if not, at which step it fails.
    pub(crate) boxes: Result<(), Obstacle>,
    /// Whether the limit on processes holds without a cgroup.
    pub(crate) counts_processes: bool,
    pub(crate) landlock: u32,
    pub(crate) cgroups: Cgroups,
}

impl Host {
    /// Reads the cached result of an earlier probe, if it still holds; otherwise probes.
    pub(crate) fn remember_or_probe(state_dir: Option<&Path>, runtime_dir: Option<PathBuf>) -> Host {
        let settings = cgroup::Settings { runtime_dir };
        if let Some(host) = state_dir.and_then(|dir| probe_cache::recall(dir, &settings)) {
            return host;
        }
        // Cgroups first: probing them may move this process, and keepers must start where it is then.
        let host = Host::probe(Cgroups::probe(&settings));
        if let Some(dir) = state_dir {
            probe_cache::keep(dir, &host);
        }
        host
    }

    /// Probes everything.
    pub(crate) fn probe(cgroups: Cgroups) -> Host {
        let landlock = landlock::abi();
        let (opener, boxes) = try_openers(landlock > 0);
        let counts_processes = boxes.is_ok() && trial::process_limit_holds(opener, landlock > 0);
        Host { opener, boxes, counts_processes, landlock, cgroups }
    }

    /// What the probe means for each guarantee.
    pub(crate) fn offer(&self) -> Offer {
        Offer::by_asking(|guarantee| match &self.boxes {
            Err(obstacle) => Standing::Unmet { why: obstacle.to_string(), fix: obstacle.hint() },
            Ok(()) => self.standing(guarantee),
        })
    }

    fn standing(&self, guarantee: Guarantee) -> Standing {
        let kept = |how: String| Standing::Kept { how };
        match guarantee {
            Guarantee::Filesystem => kept(match self.landlock {
                0 => "private root, read-only mounts (this kernel has no Landlock)".to_owned(),
                abi => format!("private root, read-only mounts, Landlock ABI {abi}"),
            }),
            Guarantee::Network => kept(
                "a network namespace of its own; the way out, if any, is a gateway that allows what is named"
                    .into(),
            ),
            Guarantee::Disk => kept("one tmpfs, limited in bytes and number of files".into()),
            Guarantee::Syscalls => kept("seccomp allow-list".into()),
            Guarantee::Privileges => kept(match self.opener {
                Opener::Keeper => "no capabilities, no_new_privs, a separate host uid for each box".into(),
                Opener::Init if rustix::process::geteuid().is_root() => return root_outside(),
                Opener::Init => "no capabilities, no_new_privs, a user namespace for each box".into(),
            }),
            Guarantee::Pids if self.counts_processes && !self.cgroups_keep(Guarantee::Pids) => {
                kept("RLIMIT_NPROC in the box's own user namespace".into())
            }
            Guarantee::Memory | Guarantee::Pids | Guarantee::Cpu => self.cgroups.standing(guarantee),
        }
    }

    fn cgroups_keep(&self, guarantee: Guarantee) -> bool {
        matches!(self.cgroups.standing(guarantee), Standing::Kept { .. })
    }
}

/// If root may not give boxes separate host uids, the code runs with root's own uid, as far as the host can tell.
fn root_outside() -> Standing {
    Standing::Unmet {
        why: "root cannot give the code a separate uid on the host".into(),
        fix: "run belljar as an ordinary user, or give it CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID".into(),
    }
}

/// Tries root's way first, if this is root: it works with interpreters in private directories, and gives each box its
/// own host uid. If root lacks the rights for it (in a container, say), the ordinary user's way may still work.
fn try_openers(landlock: bool) -> (Opener, Result<(), Obstacle>) {
    if rustix::process::geteuid().is_root() && trial::box_can_be_built(Opener::Keeper, landlock).is_ok() {
        return (Opener::Keeper, Ok(()));
    }
    (Opener::Init, trial::box_can_be_built(Opener::Init, landlock))
}

/// The users of a new box's processes. As root, two host ids that no other live box has, because no other live keeper
/// has this process id; otherwise the caller's own id for all of them.
pub(crate) fn identity(opener: Opener, keeper: u32) -> Identity {
    match opener {
        Opener::Init => {
            let outside = rustix::process::geteuid().as_raw();
            Identity { code: IdPair { inside: CODE_ID, outside }, init: None }
        }
        Opener::Keeper => {
            let (base, slots) = own_ids();
            let outside = base + 2 * (keeper % slots);
            Identity {
                code: IdPair { inside: CODE_ID, outside: outside + 1 },
                init: Some(IdPair { inside: 0, outside }),
            }
        }
    }
}

/// More pairs of ids than there can be processes (`PID_MAX_LIMIT` is 2^22).
const ID_SLOTS: u32 = 1 << 22;
/// Above what distributions, systemd and container managers assign (systemd's documentation, "Users, Groups, UIDs and
/// GIDs"), below the special numbers. The first ids are for boxes whose maker is root on this host; the others are for
/// servers that have given up root's rights.
const ID_BASE: u32 = 0x7200_0000;
/// All ids for boxes on this host.
const ID_COUNT: u32 = 27 * 2 * ID_SLOTS;
/// In which servers get their ids: a number of pairs. A server needs as many pairs as there can be processes, which is
/// often far fewer than 2^22.
const UNIT: u32 = 1 << 16;

/// The first id for boxes, and the number of pairs. In a container with its own range of ids, boxes get the upper half
/// of it.
fn own_ids() -> (u32, u32) {
    ids_in(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

fn ids_in(uid_map: &str) -> (u32, u32) {
    let ranges = uid_map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()?, numbers.next()??);
        Some((first, count))
    });
    let Some((first, count)) = ranges.max_by_key(|(_, count)| *count) else { return (ID_BASE, ID_SLOTS) };
    if first <= ID_BASE && first.saturating_add(count) >= ID_BASE + ID_COUNT {
        return (ID_BASE, ID_SLOTS);
    }
    let is_leased =
        first > ID_BASE && (first - ID_BASE).is_multiple_of(2 * UNIT) && count.is_multiple_of(2 * UNIT);
    if is_leased { (first, count / 2) } else { (first + count / 2, (count / 4).max(1)) }
}

/// Ids that no other server of this host has while it is there. A process that takes over one server could otherwise end
/// the boxes of the others.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The first id, and how many.
    pub(crate) ids: (u32, u32),
    /// Locked files, one for each unit.
    _units: Vec<fs::File>,
}

impl Lease {
    /// Takes the first ids that are free, as many as boxes can need at a time.
    ///
    /// # Errors
    /// That the directory cannot be used, or that other servers have all ids.
    pub(crate) fn take(dir: &Path) -> io::Result<Lease> {
        let most = fs::read_to_string("/proc/sys/kernel/pid_max").ok();
        let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(ID_SLOTS);
        Lease::of(dir, most.clamp(1, ID_SLOTS).div_ceil(UNIT))
    }

    fn of(dir: &Path, units: u32) -> io::Result<Lease> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let (mut taken, end) = (Vec::new(), ID_COUNT / (2 * UNIT));
        for unit in ID_SLOTS / UNIT..end {
            match lock(&dir.join(format!("ids-{unit}")))? {
                Some(file) => taken.push(file),
                None => taken.clear(),
            }
            if taken.len() == units as usize {
                let first = ID_BASE + (unit + 1 - units) * 2 * UNIT;
                return Ok(Lease { ids: (first, units * 2 * UNIT), _units: taken });
            }
        }
        Err(io::Error::other("other servers of this host have all of them"))
    }
}

/// The file, if nobody else has locked it. The lock ends with whoever has it.
fn lock(path: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Groups for files that several servers of root's write to (`group.rs`): below the users of servers.
pub(crate) const SHARED_GROUPS: std::ops::Range<u32> = ID_BASE - 2 * ID_SLOTS..ID_BASE - ID_SLOTS;

/// The user of a server that gives up root's rights: outside the ranges for boxes, and another one for each live process.
pub(crate) fn user_of_server() -> u32 {
    ID_BASE - 1 - std::process::id() % ID_SLOTS
}

/// Whether all ids of boxes are this process's to give away. In a container with its own range of ids, others may use
/// them.
pub(crate) fn may_grant_ids() -> bool {
    own_ids() == (ID_BASE, ID_SLOTS)
}

/// Orders one trial box, and returns its exit code.
pub(crate) fn order_trial(keeper: &mut Keeper, draft: Draft) -> Result<i32, Obstacle> {
    let null = || -> io::Result<OwnedFd> {
        Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    };
    let cannot = |error: io::Error| Obstacle::new("send the plan of a trial box", &error);
    let [stdin, stdout, stderr] = [null(), null(), null()];
    let ends = ProgramEnds {
        stdin: stdin.map_err(cannot)?,
        stdout: stdout.map_err(cannot)?,
        stderr: stderr.map_err(cannot)?,
    };
    match keeper.order(draft.plan, &draft.contents, &ends) {
        Ok(()) => {}
        Err(OrderError::Unsent(error)) => return Err(cannot(error)),
        Err(OrderError::Failed(fault)) => return Err(fault.into()),
    }
    let patience = Some(Duration::from_secs(10));
    let socket = keeper.socket().map_err(cannot)?;
    rustix::net::sockopt::set_socket_timeout(socket, rustix::net::sockopt::Timeout::Recv, patience)
        .map_err(|error| cannot(error.into()))?;
    loop {
        match keeper.hear().map_err(|error| Obstacle::new("receive the keeper's report", &error))? {
            Some((
                Reply::Supplied
                | Reply::Uplink
                | Reply::Hired { .. }
                | Reply::Ready
                | Reply::Started
                | Reply::Listening,
                _,
            )) => {}
            Some((Reply::Failed { doing, errno }, _)) => return Err(Obstacle { doing, errno }),
            Some((Reply::Deserted { status } | Reply::Ended { status, .. }, _)) => return Ok(status),
            None => {
                return Err(Obstacle::new("receive the keeper's report", &io::ErrorKind::BrokenPipe.into()));
            }
        }
    }
}

/// The step that failed, and what the kernel said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) doing: String,
    pub(crate) errno: i32,
}

impl Obstacle {
    pub(crate) fn new(doing: &str, error: &io::Error) -> Obstacle {
        Obstacle { doing: doing.to_owned(), errno: error.raw_os_error().unwrap_or(0) }
    }

    /// What would help, judging by this host's settings.
    pub(crate) fn hint(&self) -> String {
        let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
        let about_users = self.doing.contains("namespaces") || self.doing.contains("users");
        if self.doing.contains("network interface") {
            return "the kernel needs virtual Ethernet devices: `modprobe veth`; or leave the network out"
                .into();
        }
        if self.doing.contains("workspace") {
            return "the workspace must be an ordinary directory, on a filesystem that can be under an overlay".into();
        }
        if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
            && !rustix::process::geteuid().is_root()
        {
            return "AppArmor forbids user namespaces for ordinary users: \
                    `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or run as root"
                .into();
        }
        if about_users && is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
            return "user namespaces are switched off: `sysctl -w kernel.unprivileged_userns_clone=1`".into();
        }
        if about_users && is("/proc/sys/user/max_user_namespaces", "0") {
            return "user namespaces are switched off: `sysctl -w user.max_user_namespaces=10000`".into();
        }
        let in_container = Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
        let forbidden =
            [Errno::PERM, Errno::ACCESS, Errno::NOSYS].iter().any(|errno| errno.raw_os_error() == self.errno);
        if forbidden && in_container {
            return "this is a container: start it with `--cap-add SYS_ADMIN --security-opt seccomp=unconfined \
                    --security-opt systempaths=unconfined --security-opt apparmor=unconfined`, use the image of \
                    deploy/Dockerfile, which needs less, or run belljar on the host"
                .into();
        }
        if about_users {
            return "user namespaces are needed: check `sysctl user.max_user_namespaces` and what runs belljar".into();
        }
        "`belljar doctor` shows what this host can do".into()
    }
}

impl From<Fault> for Obstacle {
    fn from(Fault { doing, errno }: Fault) -> Obstacle {
        Obstacle { doing, errno }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.doing, io::Error::from_raw_os_error(self.errno))
    }
}

#[cfg(test)]
mod id_tests {
    use super::*;

    #[test]
    fn every_server_has_ids_of_its_own() {
        let dir = std::env::temp_dir().join(format!("belljar-ids-{}", std::process::id()));
        let lease = |units| Lease::of(&dir.join("belljar"), units);
        let mut leases = vec![lease(1).unwrap(), lease(64).unwrap(), lease(3).unwrap(), lease(1).unwrap()];
        let mut ranges: Vec<_> =
            leases.iter().map(|Lease { ids: (first, count), .. }| (*first, first + count)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges[0].0 >= ID_BASE + 2 * ID_SLOTS, "the first ids are those of root's own boxes");
        let freed = leases.remove(1).ids;
        assert_eq!(lease(64).unwrap().ids, freed, "the ids of a server that has ended");
        let all: Vec<_> = std::iter::from_fn(|| lease(64).ok()).collect();
        assert_eq!(all.len(), 25);
        assert!(all.iter().all(|Lease { ids: (first, count), .. }| first + count < 0x7FFF_0000));
        assert!(lease(64).unwrap_err().to_string().contains("have all of them"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn boxes_get_ids_that_their_maker_has() {
        assert_eq!(ids_in("         0          0 4294967295\n"), (ID_BASE, ID_SLOTS));
        assert_eq!(ids_in(""), (ID_BASE, ID_SLOTS));
        let (first, count) = (ID_BASE + 70 * 2 * UNIT, 2 * UNIT);
        let map = format!("0 1900000000 1\n{first} {first} {count}\n");
        assert_eq!(ids_in(&map), (first, UNIT));
        assert_eq!(ids_in("0 100000 65536\n"), (32768, 16384));
    }
}
