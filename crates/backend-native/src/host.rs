//! What this host can do, found by doing it: a trial box is built exactly like a real one. Version numbers and settings
//! are read only afterwards, to explain a failure.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_jail::Fault;
use belljar_jail::landlock;
use belljar_jail::message::Reply;
use belljar_jail::plan::{IdPair, Identity, Opener};
use rustix::fs::{Mode, OFlags};

use crate::cgroup::{self, Cgroups};
use crate::keeper::{Keeper, OrderError, ProgramEnds};
use crate::layout::{CODE_ID, Draft};
use crate::{memory, trial};

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
        if let Some(host) = state_dir.and_then(|dir| memory::recall(dir, &settings)) {
            return host;
        }
        // Cgroups first: probing them may move this process, and keepers must start where it is then.
        let host = Host::probe(Cgroups::probe(&settings));
        if let Some(dir) = state_dir {
            memory::keep(dir, &host);
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
            Guarantee::Network => kept("network namespace with only a loopback interface".into()),
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
/// GIDs"), below the special numbers.
const ID_BASE: u32 = 0x7200_0000;

/// The first id for boxes, and the number of pairs. In a container with its own range of ids, boxes get the upper half
/// of it.
fn own_ids() -> (u32, u32) {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let ranges = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()?, numbers.next()??);
        Some((first, count))
    });
    let Some((first, count)) = ranges.max_by_key(|(_, count)| *count) else { return (ID_BASE, ID_SLOTS) };
    if first <= ID_BASE && first.saturating_add(count) >= ID_BASE + 2 * ID_SLOTS {
        return (ID_BASE, ID_SLOTS);
    }
    (first + count / 2, (count / 4).max(1))
}

/// The first id for boxes and the number of ids, if no one else uses them. In a container with its own range of ids,
/// others may.
pub(crate) fn ids_of_boxes() -> Option<(u32, u32)> {
    let (base, slots) = own_ids();
    (base == ID_BASE).then_some((base, 2 * slots))
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
            Some((Reply::Hired { .. } | Reply::Ready | Reply::Started, _)) => {}
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
        let about_containers = about_users || self.doing.contains("/proc") || self.doing.contains("private");
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
        if about_containers && in_container {
            return "this is a container: start it with `--security-opt seccomp=unconfined \
                    --security-opt systempaths=unconfined --security-opt apparmor=unconfined`, \
                    or run belljar on the host"
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
