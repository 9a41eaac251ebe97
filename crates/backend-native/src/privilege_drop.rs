//! What a server that root started needs in order to make boxes without root's rights, and how it gives them up.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::language::Language;
use belljar_host::runtimes::{Runtime, RuntimeSettings, Runtimes};
use belljar_jail::landlock;
use belljar_jail::plan::Opener;
use belljar_jail::privilege_drop::{self, Held, KeptMount, ServerRights, Split};
use rustix::fs::OFlags;

use crate::cgroup::{self, Cgroups, Grant};
use crate::group;
use crate::ids::{Lease, may_grant_ids, user_of_server};
use crate::trial;

/// Where servers note which ids are theirs.
const LEASES: &str = "/run/belljar";

/// The server's environment, as in [`Settings`](crate::Settings).
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "as in Settings")]
pub struct Surroundings {
    pub search_path: OsString,
    pub home: Option<PathBuf>,
    pub runtime_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub overrides: Vec<(Language, PathBuf)>,
}

/// Everything that a server keeps when it drops root's rights.
#[derive(Debug)]
pub struct PrivilegeDrop {
    /// Its user, ids and mounts; more mounts can be added.
    pub rights: ServerRights,
    /// Runtimes that only root can find.
    pub runtimes: Vec<(Language, Runtime)>,
    /// Its part of the cgroups, removed when this is dropped.
    grant: Option<Grant>,
    /// Keeps other servers from having the same ids.
    _lease: Lease,
    /// How many boxes of crashed predecessors were cleaned up on the way.
    pub swept: usize,
}

/// Why a server cannot or need not drop root's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstruction {
    /// It has no rights over the host, only over a container.
    Needless,
    /// It cannot give up root's rights, for this reason.
    Cannot(String),
}

impl PrivilegeDrop {
    /// Makes what must be made as root.
    ///
    /// # Errors
    /// Why the server cannot or need not leave.
    pub fn prepare(from: &Surroundings) -> Result<PrivilegeDrop, Obstruction> {
        if !may_grant_ids() {
            return Err(Obstruction::Needless);
        }
        let lease = Lease::take(Path::new(LEASES)).map_err(|cause| {
            Obstruction::Cannot(format!("cannot reserve ids for the server's boxes in {LEASES}: {cause}"))
        });
        PrivilegeDrop::to_be(user_of_server(), lease?, from).map_err(Obstruction::Cannot)
    }

    fn to_be(user: u32, lease: Lease, from: &Surroundings) -> Result<PrivilegeDrop, String> {
        let cgroups = Cgroups::probe(&cgroup::Settings { runtime_dir: from.runtime_dir.clone() });
        let swept = cgroups.sweep();
        // If root has no cgroups to give away, the server has none either.
        let grant = match &cgroups {
            Cgroups::Unavailable { .. } => None,
            Cgroups::V1(_) | Cgroups::V2(_) => {
                Some(cgroups.grant(user).map_err(|error| cgroup::chain(&error))?)
            }
        };
        let mut rights = ServerRights { user, ids: lease.ids, ..ServerRights::default() };
        if let Some(grant) = &grant {
            rights.replaced = grant.replaced();
            rights.cgroup = grant.entrance();
            rights.orphans = grant.orphans();
        }
        rights.mounts.extend(from.state_dir.as_deref().and_then(|dir| remembered(dir).ok()));
        let runtimes = closed_runtimes(from);
        rights.mounts.extend(runtimes.iter().flat_map(|(_, runtime)| needed(runtime)));
        Ok(PrivilegeDrop { rights, runtimes, grant, _lease: lease, swept })
    }

    /// Adds something to read that only root can reach. What every user can reach needs no mounts.
    pub fn take_along(&mut self, path: &Path) {
        if let Some(path) = path.canonicalize().ok().filter(|path| !privilege_drop::is_open_to_all(path)) {
            self.rights.mounts.push(KeptMount { path, held: Held::AsItIs });
        }
    }

    /// Adds something that root has made, which the server trusts and cannot change.
    pub fn take_to_believe(&mut self, path: &Path) {
        let held = Held::AsItsOwn;
        self.rights.mounts.extend(path.canonicalize().map(|path| KeptMount { path, held }));
    }

    /// Adds a file that the server writes to, and that stays. It is made if it does not exist. It belongs to root and to the
    /// group of this directory's servers, so that several of them can write to it at the same time; none of them can vouch
    /// for what it contains. The directory must be one that only root can write to.
    ///
    /// # Errors
    /// That it cannot be given to the servers.
    pub fn take_to_write(&mut self, dir: &Path, name: &str) -> Result<(), Obstruction> {
        let cannot = |cause: &io::Error| {
            Obstruction::Cannot(format!("cannot give {} to the server: {cause}", dir.join(name).display()))
        };
        let dir = dir.canonicalize().map_err(|cause| cannot(&cause))?;
        let group = group::of_servers(&dir).map_err(|cause| cannot(&cause))?;
        let path = dir.join(name);
        give(&path, group).map_err(|cause| cannot(&cause))?;
        if !self.rights.groups.contains(&group) {
            self.rights.groups.push(group);
        }
        self.rights.mounts.push(KeptMount { path, held: Held::Given });
        Ok(())
    }

    /// Keeps a file out of the copy that the server gets of its state directory.
    pub fn withhold(&mut self, path: &Path) {
        self.rights.withheld.extend(path.canonicalize());
    }

    /// Drops root's rights, if boxes can be made without them.
    ///
    /// # Errors
    /// Why not.
    pub fn perform(&mut self) -> Result<Split, Obstruction> {
        let mut mounts: Vec<KeptMount> = Vec::new();
        for item in std::mem::take(&mut self.rights.mounts) {
            if !mounts.contains(&item) {
                mounts.push(item);
            }
        }
        self.rights.mounts = mounts;
        let split = privilege_drop::split(&self.rights, || {
            trial::box_can_be_built(Opener::Keeper, landlock::abi() > 0)
        });
        let split = split.map_err(|fault| Obstruction::Cannot(fault.to_string()))?;
        if let Split::Server(_) = split {
            // The server must not remove it.
            std::mem::forget(self.grant.take());
        }
        Ok(split)
    }
}

/// A server before this one may have written to the file, but it could not put another in its place. Others may be
/// writing to it now.
fn give(path: &Path, group: u32) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(io::Error::other("it is not an ordinary file"));
    }
    std::os::unix::fs::fchown(&file, Some(0), Some(group))?;
    file.set_permissions(Permissions::from_mode(0o660))
}

/// The cache of root's probes. It is made if it does not exist, so that there is a place to mount it.
fn remembered(dir: &Path) -> io::Result<KeptMount> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    Ok(KeptMount { path: dir.canonicalize()?, held: Held::Copied })
}

/// The runtimes of this host that only root can reach. Programs are asked only if a directory on the way is closed to
/// others, and of those only the ones that may be behind it: to ask them takes most of the time until the first run.
/// The server itself finds what belongs to the base system, when somebody asks for it.
fn closed_runtimes(from: &Surroundings) -> Vec<(Language, Runtime)> {
    let is_closed = |path: &PathBuf| path.exists() && !privilege_drop::is_open_to_all(path);
    let closed = std::env::split_paths(&from.search_path).any(|dir| is_closed(&dir))
        || from.overrides.iter().any(|(_, path)| is_closed(path));
    if !closed {
        return Vec::new();
    }
    let runtimes = Runtimes::new(RuntimeSettings {
        search_path: from.search_path.clone(),
        home: from.home.clone(),
        manager_env: Vec::new(),
        overrides: from.overrides.clone(),
        found: Vec::new(),
        cache_dir: from.state_dir.clone(),
    });
    let asked: Vec<_> = Language::all().filter(|language| runtimes.may_be_elsewhere(*language)).collect();
    let found = find_at_once(&runtimes, &asked);
    found.into_iter().filter(|(_, runtime)| !needed(runtime).is_empty()).collect()
}

/// Asks all of them at the same time: each answer is a program that starts, and mostly waits for its files.
fn find_at_once(runtimes: &Runtimes, languages: &[Language]) -> Vec<(Language, Runtime)> {
    let find = |language: &Language| Some((*language, runtimes.find(*language).ok()?));
    let [one, others @ ..] = languages else { return Vec::new() };
    let found = std::thread::scope(|scope| {
        let asking: Vec<_> = others.iter().map(|language| scope.spawn(move || find(language))).collect();
        let first = find(one);
        let others = asking.into_iter().filter_map(|asked| asked.join().ok().flatten());
        first.into_iter().chain(others).collect()
    });
    wait_to_be_alone();
    found
}

/// A thread that has ended is still counted for a moment, and only a process with a single one can be split.
fn wait_to_be_alone() {
    const LONG_ENOUGH: Duration = Duration::from_secs(1);
    let alone = || std::fs::read_dir("/proc/self/task").map_or(true, |tasks| tasks.count() == 1);
    let began = Instant::now();
    while !alone() && began.elapsed() < LONG_ENOUGH {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The parts of it that are closed to others.
fn needed(runtime: &Runtime) -> Vec<KeptMount> {
    let own = Some(&runtime.program)
        .filter(|program| !runtime.mounts.iter().any(|mount| program.starts_with(mount)));
    let paths = runtime.mounts.iter().chain(own).filter(|path| !privilege_drop::is_open_to_all(path));
    paths.map(|path| KeptMount { path: path.clone(), held: Held::AsItIs }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_closed_to_others_is_asked_before_the_server_leaves() {
        let dir = std::env::temp_dir().join(format!("belljar-closed-{}", std::process::id()));
        let (bin, state) = (dir.join("closed/bin"), dir.join("state"));
        std::fs::create_dir_all(&bin).unwrap();
        for (name, label) in [("lua", "Lua 5.4"), ("ruby", "CRuby 9.1")] {
            let program = bin.join(name);
            std::fs::write(&program, format!("#!/bin/sh\necho '{label}'\necho '{}'\n", program.display()))
                .unwrap();
            std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        }
        let search_path = format!("{}:/usr/bin:/bin", bin.display()).into();
        let from = Surroundings { search_path, state_dir: Some(state.clone()), ..Surroundings::default() };
        let found_with = |mode: u32| {
            std::fs::set_permissions(dir.join("closed"), Permissions::from_mode(mode)).unwrap();
            let found = closed_runtimes(&from);
            let mut names: Vec<_> = found.iter().map(|(language, _)| language.name).collect();
            names.sort_unstable();
            names
        };
        let (open, closed) = (found_with(0o755), found_with(0o700));
        let asked = std::fs::read_dir(&state).unwrap().count();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(open, [""; 0], "whoever leaves can find them later");
        assert_eq!(closed, ["lua", "ruby"]);
        assert_eq!(asked, 2, "the programs of the base system were not");
    }
}
