//! What this host can do for a box (`probe.rs` finds out), and what that means for each guarantee.

use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_jail::Fault;
use belljar_jail::plan::Opener;

use crate::cgroup::Cgroups;
use crate::errors::hint;

/// The result of the probe.
#[derive(Debug)]
pub(crate) struct Host {
    /// Which process opens the sources, which tells root's way of making boxes from an ordinary user's.
    pub(crate) opener: Opener,
    /// Whether a box can be built, and if not, at which step it fails.
    pub(crate) boxes: Result<(), Fault>,
    /// Whether the limit on processes holds without a cgroup.
    pub(crate) counts_processes: bool,
    pub(crate) landlock: u32,
    pub(crate) cgroups: Cgroups,
}

impl Host {
    /// What the probe means for each guarantee.
    pub(crate) fn offer(&self) -> Offer {
        Offer::by_asking(|guarantee| match &self.boxes {
            Err(fault) => Standing::Unmet { why: fault.to_string(), fix: hint(fault) },
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
