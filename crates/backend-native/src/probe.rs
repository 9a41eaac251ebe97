//! Finds out what this host can do by doing it: a trial box is built exactly like a real one. Version numbers and settings
//! are read only afterwards, to explain a failure.

use std::path::{Path, PathBuf};

use belljar_jail::plan::Opener;
use belljar_jail::{Fault, landlock};

use crate::cgroup::{self, Cgroups};
use crate::host::Host;
use crate::{probe_cache, trial};

/// Reads the cached result of an earlier probe, if it still holds; otherwise probes.
pub(crate) fn remember_or_probe(state_dir: Option<&Path>, runtime_dir: Option<PathBuf>) -> Host {
    let settings = cgroup::Settings { runtime_dir };
    if let Some(host) = state_dir.and_then(|dir| probe_cache::recall(dir, &settings)) {
        return host;
    }
    // Cgroups first: probing them may move this process, and keepers must start where it is then.
    let host = probe(Cgroups::probe(&settings));
    if let Some(dir) = state_dir {
        probe_cache::keep(dir, &host);
    }
    host
}

/// Probes everything.
fn probe(cgroups: Cgroups) -> Host {
    let landlock = landlock::abi();
    let (opener, boxes) = try_openers(landlock > 0);
    let counts_processes = boxes.is_ok() && trial::process_limit_holds(opener, landlock > 0);
    Host { opener, boxes, counts_processes, landlock, cgroups }
}

/// Tries root's way first, if this is root: it works with interpreters in private directories, and gives each box its
/// own host uid. If root lacks the rights for it (in a container, say), the ordinary user's way may still work.
fn try_openers(landlock: bool) -> (Opener, Result<(), Fault>) {
    if rustix::process::geteuid().is_root() && trial::box_can_be_built(Opener::Keeper, landlock).is_ok() {
        return (Opener::Keeper, Ok(()));
    }
    (Opener::Init, trial::box_can_be_built(Opener::Init, landlock))
}
