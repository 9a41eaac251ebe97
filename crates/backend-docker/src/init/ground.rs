//! What PID 1 finds and makes before anything else runs: the parts of the one disk, and the filter.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::inside::SANDBOX;
use belljar_jail::seccomp::{Filter, Listener};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::counters;
use crate::extras::{SETTINGS, TERMINALS};
use crate::frame::Surroundings;

/// The directory of the disk that is not the code's working space, but the target of `/tmp` and `/dev/shm`.
pub(crate) const OWN: &str = ".belljar";

/// The devices that a program needs.
pub(super) const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// Those of terminals: a link, and the one that is different for each process.
const TERMINAL_DEVICES: &[&str] = &["ptmx", "tty"];
const STREAMS: &[&str] = &["fd", "stdin", "stdout", "stderr"];
/// More processes than a trial allows.
const MANY: usize = 40;

/// Whether there is a file system for terminals.
pub(super) fn has_terminals() -> bool {
    Path::new(TERMINALS).join("ptmx").exists()
}

/// The path of a part of the disk, as links name it.
pub(crate) fn part(name: &str) -> String {
    format!("{SANDBOX}/{OWN}/{name}")
}

/// Makes the parts of the disk, loads the filter, and reports the environment. Also returns the filter's listener.
pub(super) fn lay() -> io::Result<(Surroundings, Option<Listener>)> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let filtered = status("Seccomp").is_some_and(|mode| mode != "0");
    DirBuilder::new().mode(0o755).create(format!("{SANDBOX}/{OWN}"))?;
    for name in ["tmp", "shm"] {
        fs::create_dir(part(name))?;
        fs::set_permissions(part(name), Permissions::from_mode(0o1777))?;
    }
    // If the engine has given us a `/dev` directory, shared memory is a part of the disk like any other. Nothing is
    // written there afterwards.
    if fs::symlink_metadata("/dev/shm").is_err() {
        std::os::unix::fs::symlink(part("shm"), "/dev/shm")?;
        tidy_devices();
        fs::set_permissions("/dev", Permissions::from_mode(0o555))?;
    }
    // The engine's filter cannot express everything that ours does; under an engine without a filter it is the only
    // one.
    let listener = load_filter();
    Ok((Surroundings { own_filter: listener.is_ok(), ..surroundings(filtered)? }, listener.ok().flatten()))
}

/// This process and all that it starts are under the filter. Returns its listener, which gVisor does not offer.
fn load_filter() -> io::Result<Option<Listener>> {
    match Filter::contained().load_listened() {
        Ok(listener) => {
            let listener = Listener::new(listener);
            listener.wake_on_the_same_cpu();
            Ok(Some(listener))
        }
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            Filter::unlistened().load().map(|()| None)
        }
        Err(_) => Filter::standard().load().map(|()| None),
    }
}

/// An engine puts more into the directory than programs need: links into the kernel, and terminals even if there are none.
fn tidy_devices() {
    let terminals = has_terminals();
    let wanted = |name: &str| {
        let always = DEVICES.contains(&name) || STREAMS.contains(&name) || name == "shm";
        always || (terminals && TERMINAL_DEVICES.contains(&name))
    };
    for entry in fs::read_dir("/dev").into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(wanted) {
            // A mount cannot be removed, and was configured on purpose.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Tries what takes too long to be tried at every start.
pub(super) fn look_closer(seen: Surroundings) -> Surroundings {
    let value = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
    let settings = SETTINGS
        .into_iter()
        .filter_map(|(name, _)| value(name).map(|value| (name.to_owned(), value.trim().to_owned())));
    let terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx");
    Surroundings {
        processes: try_processes(),
        terminals: terminal.is_ok(),
        settings: settings.collect(),
        ..seen
    }
}

/// How many processes there can be at a time: as many copies of this binary as can be started, up to a number beyond
/// the limit of a trial.
fn try_processes() -> u64 {
    let mut many: Vec<Child> = Vec::new();
    while many.len() < MANY {
        let mut command = Command::new(super::PROGRAM);
        match command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(one) => many.push(one),
            Err(_) => break,
        }
    }
    for one in &mut many {
        let _ = one.kill();
        let _ = one.wait();
    }
    many.len() as u64
}

fn surroundings(filtered: bool) -> io::Result<Surroundings> {
    let disk = rustix::fs::statvfs(SANDBOX)?;
    let capabilities = ["CapEff", "CapPrm", "CapBnd"].map(|name| status(name).unwrap_or_default());
    Ok(Surroundings {
        uid: rustix::process::geteuid().as_raw(),
        capabilities: capabilities.join(" "),
        no_new_privs: status("NoNewPrivs").is_some_and(|word| word == "1"),
        filtered,
        own_filter: false,
        root_read_only: is_root_read_only(),
        interfaces: interfaces(),
        disk_bytes: disk.f_blocks * disk.f_frsize,
        disk_files: disk.f_files,
        one_disk: ["/tmp", "/dev/shm"].iter().all(|path| on_the_disk(Path::new(path))),
        memory_limit: counters::memory_limit(),
        pids_limit: counters::pids_limit(),
        cpu_quota: counters::has_quota(),
        processes: 0,
        terminals: false,
        settings: Vec::new(),
    })
}

/// From the mount table: the last mount at a path is the visible one.
fn is_root_read_only() -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut roots = table.lines().rev().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next()? == "/").then_some(words.nth(1)?)
    });
    roots.next().is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

fn on_the_disk(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    matches!((device(path), device(Path::new(SANDBOX))), (Ok(there), Ok(here)) if there == here)
}

fn status(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn interfaces() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    // The kernel puts these into every namespace; they lead nowhere without a capability that no process here has.
    let idle =
        ["lo", "tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6tnl0", "ip6gre0"];
    names.filter(|name| !idle.contains(&name.as_str())).collect()
}
