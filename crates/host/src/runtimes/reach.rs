//! Determines the smallest part of the host that a runtime must see.
//!
//! A path that a runtime names is shown as it is if it clearly belongs to the runtime alone. A path that others share
//! is narrowed to the parts that hold programs. A path that holds a person's files, or the whole system, is refused.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{UnusableProgram, is_home};

/// What every box sees of the host, read-only, as far as it exists. Not included: `/usr/local`, `/opt`, `/var`, `/srv`,
/// `/home`, `/root`, `/run`, `/sys`, `/boot`, and everything in `/etc` except these. `docs/packages.md` says for each part
/// of `/etc` why it is shown or not.
pub const BASE_SYSTEM: &[&str] = &[
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/include",
    "/usr/share",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/os-release",
    // Public certificates, where Debian, Arch and Fedora keep them. Private keys are elsewhere.
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates/extracted",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    // What programs that draw need, and what fontconfig has found out about the fonts.
    "/etc/fonts",
    "/var/cache/fontconfig",
    "/etc/matplotlibrc",
    "/etc/ImageMagick-6",
    "/etc/ImageMagick-7",
];

/// The files in `/etc` that a box has its own versions of, which the host's must not replace.
const SYNTHETIC: &[&str] = &[
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
];

/// The parts of a prefix that hold programs and libraries. Not `etc`, `var` or `src`.
const PARTS: &[&str] = &["bin", "lib", "lib32", "lib64", "libexec", "include", "share"];

/// Where a link out of a runtime's own tree may lead and still belong to the system, not to a person.
const SYSTEM_PLACES: &[&str] = &["/etc", "/opt", "/usr", "/var/lib"];

/// Directories below the first level that many packages share.
const CROWDED: &[&str] = &["/etc/ssl", "/usr/local", "/var/lib", "/var/cache", "/run/user"];

/// The file that marks a Python virtual environment.
const VIRTUAL_ENVIRONMENT: &str = "pyvenv.cfg";

/// A tree with more entries than this is not searched for links any further.
const MOST_ENTRIES: usize = 100_000;

/// Whether every box sees this path anyway.
pub(super) fn is_in_base_system(path: &Path) -> bool {
    BASE_SYSTEM.iter().any(|base| path.starts_with(base))
}

/// The path and its targets, link by link; the last is not a link.
pub(super) fn links(path: &Path) -> Vec<PathBuf> {
    const LONGEST_CHAIN: usize = 40; // As the kernel's own, path_resolution(7).
    let mut chain = vec![path.to_owned()];
    let mut at = path.to_owned();
    while let Ok(target) = fs::read_link(&at) {
        if chain.len() > LONGEST_CHAIN {
            break;
        }
        at = if target.is_absolute() { target } else { beside(&at, &target) };
        chain.push(at.clone());
    }
    chain
}

fn beside(link: &Path, target: &Path) -> PathBuf {
    super::with_real_parent(&link.parent().unwrap_or(link).join(target))
}

/// These paths, parents first, without those inside another.
pub(super) fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.iter().any(|parent| path.starts_with(parent)) {
            kept.push(path);
        }
    }
    kept
}

/// What a runtime needs, as far as it is known.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    home: Option<&'a Path>,
    mounts: Vec<PathBuf>,
    /// Directories that belong to the runtime alone: links in them are its own.
    own: Vec<PathBuf>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(home: Option<&'a Path>) -> Reach<'a> {
        Reach { home, mounts: Vec::new(), own: Vec::new() }
    }

    /// Adds a path that the runtime says it needs. If it does not exist, it is not needed.
    pub(super) fn add_needed(&mut self, path: &Path) -> Result<(), UnusableProgram> {
        let Ok(real) = path.canonicalize() else { return Ok(()) };
        if real == Path::new("/usr") {
            return Ok(());
        }
        // A path is needed under both its names: the runtime knows one of them, or works out the other.
        if is_in_base_system(&real) {
            self.show(path);
            self.note_own(real);
        } else if is_shared_prefix(&real, self.home) || is_virtual_environment(&real) {
            self.add_parts(&real);
            self.add_parts(path);
        } else if self.is_too_broad(&real) {
            return Err(UnusableProgram::TooBroad { path: real });
        } else {
            self.show_readable(&real)?;
            self.show(path);
            self.note_own(real);
        }
        Ok(())
    }

    /// For a runtime that named no path: the usual directories around a `bin`, if it is in one.
    pub(super) fn add_guessed_prefix(&mut self, program: &Path) {
        let Some(bin) = program.parent().filter(|parent| parent.ends_with("bin")) else { return };
        let Some(prefix) = bin.parent() else { return };
        if !is_in_base_system(bin) && (is_shared_prefix(prefix, self.home) || !self.is_too_broad(prefix)) {
            self.add_parts(prefix);
        }
    }

    /// Adds the program itself, and every link on the way to it.
    pub(super) fn add_program(&mut self, program: &Path) -> Result<(), UnusableProgram> {
        for hop in links(program) {
            self.show(&hop);
        }
        let Ok(real) = program.canonicalize() else {
            return Err(UnusableProgram::NoProgram { path: program.to_owned() });
        };
        self.show(&real);
        if may_read(&real, Needs::Execution) {
            Ok(())
        } else {
            Err(UnusableProgram::Unreadable { path: real })
        }
    }

    /// Everything, parents first, none inside another.
    pub(super) fn into_mounts(mut self) -> Vec<PathBuf> {
        self.add_link_targets();
        outermost(self.mounts)
    }

    fn add_parts(&mut self, prefix: &Path) {
        // A person's `share` is where desktop programs keep that person's data.
        let personal = prefix.parent().is_some_and(|parent| is_home(parent, self.home));
        let parts =
            PARTS.iter().filter(|part| !(personal && **part == "share")).map(|part| prefix.join(part));
        for part in parts.filter(|part| part.is_dir() && may_read(part, Needs::Entry)) {
            self.show(&part);
        }
        if is_virtual_environment(prefix) {
            self.show(&prefix.join(VIRTUAL_ENVIRONMENT));
        }
    }

    fn note_own(&mut self, directory: PathBuf) {
        if !BASE_SYSTEM.iter().any(|base| directory == Path::new(base)) {
            self.own.push(directory);
        }
    }

    fn show_readable(&mut self, path: &Path) -> Result<(), UnusableProgram> {
        let needs = if path.is_dir() { Needs::Entry } else { Needs::Reading };
        if !may_read(path, needs) {
            return Err(UnusableProgram::Unreadable { path: path.to_owned() });
        }
        self.show(path);
        Ok(())
    }

    fn show(&mut self, path: &Path) {
        if !self.sees(path) {
            self.mounts.push(path.to_owned());
        }
    }

    fn sees(&self, path: &Path) -> bool {
        is_in_base_system(path)
            || path == Path::new("/usr")
            || self.mounts.iter().any(|mount| path.starts_with(mount))
    }

    fn is_too_broad(&self, path: &Path) -> bool {
        let top_level = path.components().count() <= 2;
        let above_home = self.home.is_some_and(|home| home.starts_with(path));
        top_level
            || above_home
            || is_home(path, self.home)
            || CROWDED.iter().any(|crowded| path == Path::new(crowded))
    }

    /// Distributions keep the configuration of a runtime in `/etc` and link to it from its own tree.
    fn add_link_targets(&mut self) {
        let mut budget = MOST_ENTRIES;
        let mut targets = HashSet::new();
        // A runtime names its prefix, and then the directories in it: each is searched once.
        for dir in outermost(std::mem::take(&mut self.own)) {
            collect_link_targets(&dir, &mut budget, &mut targets);
        }
        let mut targets: Vec<PathBuf> =
            targets.into_iter().filter_map(|target| self.shown_for(&target)).collect();
        targets.sort();
        for target in targets {
            self.show(&target);
        }
    }

    /// What to show so that a link to `target` works, if it should.
    fn shown_for(&self, target: &Path) -> Option<PathBuf> {
        let of_the_system = SYSTEM_PLACES.iter().any(|place| target.starts_with(place));
        if self.sees(target) || !of_the_system || SYNTHETIC.iter().any(|own| target == Path::new(own)) {
            return None;
        }
        // The files of one configuration directory belong together.
        let directory = target.parent().filter(|dir| dir.starts_with("/etc") && !self.is_too_broad(dir));
        let shown = directory.filter(|_| target.is_file()).unwrap_or(target);
        let needs = if shown.is_dir() { Needs::Entry } else { Needs::Reading };
        (!self.is_too_broad(shown) && may_read(shown, needs)).then(|| shown.to_owned())
    }
}

/// A prefix in which an administrator or a person installs all sorts of programs.
fn is_shared_prefix(path: &Path, home: Option<&Path>) -> bool {
    let local = path.file_name().is_some_and(|name| name == ".local");
    path == Path::new("/usr/local") || local && path.parent().is_some_and(|parent| is_home(parent, home))
}

/// It may have been made inside a project, so it is never shown as a whole.
fn is_virtual_environment(path: &Path) -> bool {
    path.join(VIRTUAL_ENVIRONMENT).is_file()
}

fn collect_link_targets(dir: &Path, budget: &mut usize, targets: &mut HashSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if *budget == 0 {
            return;
        }
        *budget -= 1;
        match entry.file_type() {
            // A third of the directories of a Python with packages, and Python itself writes what is in them.
            Ok(kind) if kind.is_dir() && entry.file_name() == "__pycache__" => {}
            Ok(kind) if kind.is_dir() => collect_link_targets(&entry.path(), budget, targets),
            Ok(kind) if kind.is_symlink() => targets.extend(entry.path().canonicalize()),
            Ok(_) | Err(_) => {}
        }
    }
}

/// The access that a path must allow.
#[derive(Debug, Clone, Copy)]
enum Needs {
    Reading,
    Entry,
    Execution,
}

/// Whether code in a box may do so: there it is an unprivileged user, or the ordinary user who started it. The
/// directories above do not matter, because the box does not go through them.
fn may_read(path: &Path, needs: Needs) -> bool {
    let (bits, access) = match needs {
        Needs::Reading => (0o4, Access::READ_OK),
        Needs::Entry | Needs::Execution => (0o5, Access::READ_OK | Access::EXEC_OK),
    };
    if rustix::process::geteuid().is_root() {
        let allowed = |metadata: Metadata| metadata.permissions().mode() & bits == bits;
        return fs::metadata(path).is_ok_and(allowed);
    }
    accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: &str = "/home/someone";

    fn refuses(path: &str, home: &str) -> bool {
        Reach::new(Some(Path::new(home))).is_too_broad(Path::new(path))
    }

    #[test]
    fn a_place_with_more_than_a_runtime_in_it_is_too_broad() {
        for broad in ["/", "/opt", "/home", "/root", "/etc", "/home/other", HOME, "/etc/ssl", "/var/lib"] {
            assert!(refuses(broad, HOME), "{broad}");
        }
        for fit in ["/opt/node-20", "/home/someone/.pyenv/versions/3.11.7", "/etc/perl", "/srv/app/.venv"] {
            assert!(!refuses(fit, HOME), "{fit}");
        }
        assert!(refuses("/data/people", "/data/people/ann"), "it is above the home");
    }

    #[test]
    fn what_the_base_system_has_is_not_mounted_again() {
        let mut reach = Reach::new(None);
        for path in ["/usr", "/usr/lib", "/usr/bin/env", "/bin/sh"] {
            reach.add_needed(Path::new(path)).unwrap();
        }
        assert_eq!(reach.into_mounts(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_shared_prefix_is_narrowed_to_where_programs_live() {
        let mut reach = Reach::new(None);
        reach.add_needed(Path::new("/usr/local")).unwrap();
        let mounts = reach.into_mounts();
        assert!(mounts.contains(&PathBuf::from("/usr/local/lib")), "{mounts:?}");
        assert!(!mounts.iter().any(|mount| mount.ends_with("local") || mount.ends_with("etc")), "{mounts:?}");
    }
}
