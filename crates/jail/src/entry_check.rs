//! A program that a zygote sent into a box, seen from outside: the keeper inspects it before PID 1 accepts it as the
//! box's program.
//!
//! The program was confined on its way in, by a list of system calls that a process of the zygote performed. That is
//! not taken on trust: what the kernel reports about the process is compared with the plan, and whatever can be done
//! from outside is done here.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::fault::{Doing, Fault};
use crate::message::NAMESPACES;
use crate::plan::{Birth, Plan, Step};
use crate::sys;

/// The process id of a box's program, inside the box.
const FIRST_COMMAND: &str = "2";
/// How long a process that enters a box may take until it waits for its code, and how often that is checked.
const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_micros(200);

/// The pipes in place of files.
fn gates(plan: &Plan) -> impl Iterator<Item = &Path> {
    plan.build.iter().filter_map(|step| if let Step::Pipe(path) = step { Some(path.as_path()) } else { None })
}

/// Inspects and limits the only process in the box besides PID 1, and says why it cannot be the program, if so. Returns
/// the pipe for its code, as soon as it waits for that, and its directory in `/proc`. That directory is empty once the
/// process is gone, even if another process gets the same id.
pub(crate) fn approve(
    init: Pid,
    working_dir: Option<&OwnedFd>,
    plan: &Plan,
) -> Result<(OwnedFd, OwnedFd), Fault> {
    let entered = only_child(init).doing(|| "find the process that entered the box")?;
    let place = place_of(entered).doing(|| "open the process that entered the box")?;
    limit(entered, plan)?;
    let doubt = |what: &str| format!("verify that the process that entered the box {what}");
    in_the_same_box(init, entered).doing(|| doubt("is entirely inside it"))?;
    let status = std::fs::read_to_string(proc_of(entered, "status")).doing(|| doubt("is alive"))?;
    without_rights(&status, plan.identity.code.outside).doing(|| doubt("has no privileges"))?;
    nothing_shared(entered).doing(|| doubt("shares no memory"))?;
    // It cannot regain any of that. What it holds while it boots, it must close before it gets its code.
    let gate = await_at_gate(working_dir, plan)?;
    no_spare_descriptors(entered, plan).doing(|| doubt("has no spare descriptors"))?;
    Ok((gate, place))
}

/// The directory in `/proc` of the program that PID 1 has started, if that is its only child.
pub(crate) fn place_of_program(init: Pid) -> Option<OwnedFd> {
    only_child(init).and_then(place_of).ok()
}

fn place_of(process: Pid) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(proc_of(process, ""), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Waits until the process that entered the box waits for its code, and returns the pipe for it. A pipe can be opened
/// for writing only when a process has it open for reading.
fn await_at_gate(working_dir: Option<&OwnedFd>, plan: &Plan) -> Result<OwnedFd, Fault> {
    let began = Instant::now();
    let gate = gates(plan).next().and_then(Path::file_name).zip(working_dir);
    let (name, dir) = gate.ok_or(io::ErrorKind::NotFound).doing(|| "find the pipe for the code")?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NXIO) if began.elapsed() < PATIENCE => std::thread::sleep(GLANCE),
            opened => return opened.doing(|| "wait until the process that entered the box reads its code"),
        }
    }
}

fn only_child(init: Pid) -> io::Result<Pid> {
    let init = init.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children"))?;
    let mut numbers = children.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(number)), None) => Pid::from_raw(number).ok_or(io::ErrorKind::NotFound.into()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The owner of the box's user namespace has every right over its processes, which we may not have as root.
fn limit(entered: Pid, plan: &Plan) -> Result<(), Fault> {
    let Birth::Forked { by } = plan.birth else { return Ok(()) };
    let mut rlimits = plan.confinement.rlimits.iter();
    sys::acting_as(by, || rlimits.try_for_each(|(of, value)| sys::set_limit(Some(entered), *of, *value)))
        .doing(|| "set resource limits from outside")
}

fn in_the_same_box(init: Pid, entered: Pid) -> io::Result<()> {
    for name in NAMESPACES {
        let of = |pid| std::fs::read_link(proc_of(pid, &format!("ns/{name}")));
        refuse_unless(of(init)? == of(entered)?)?;
    }
    let cgroup = |pid| std::fs::read(proc_of(pid, "cgroup"));
    refuse_unless(cgroup(init)? == cgroup(entered)?)
}

fn without_rights(status: &str, user: u32) -> io::Result<()> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim)
    };
    let user = format!("{user}\t{user}\t{user}\t{user}");
    let no_capability = |name| field(name).is_some_and(|bits| bits.bytes().all(|digit| digit == b'0'));
    let kept = field("Uid") == Some(&user)
        && field("Gid") == Some(&user)
        && field("Groups") == Some("")
        && ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].into_iter().all(no_capability)
        && field("NoNewPrivs") == Some("1")
        && field("Seccomp") == Some("2")
        && field("Threads") == Some("1")
        && field("NSpid").is_some_and(|numbers| numbers.split('\t').next_back() == Some(FIRST_COMMAND));
    refuse_unless(kept)
}

/// Nothing except its streams, and the pipe at which it waits for its code.
fn no_spare_descriptors(entered: Pid, plan: &Plan) -> io::Result<()> {
    let is_gate = |target: &Path| gates(plan).any(|gate| gate == target);
    for entry in std::fs::read_dir(proc_of(entered, "fd"))? {
        let entry = entry?;
        let is_stream = matches!(entry.file_name().to_str(), Some("0" | "1" | "2"));
        refuse_unless(is_stream || is_gate(&std::fs::read_link(entry.path())?))?;
    }
    Ok(())
}

/// A fork copies memory, except for shared mappings: the next program would find what one program left there. A shared
/// mapping of a file that was opened read-only is harmless, because it cannot be written to.
fn nothing_shared(entered: Pid) -> io::Result<()> {
    let maps = std::fs::read(proc_of(entered, "maps"))?;
    for place in shared_places(&String::from_utf8_lossy(&maps)) {
        let link = std::fs::symlink_metadata(proc_of(entered, &format!("map_files/{place}")))?;
        // The mode of this link shows how the file was opened.
        refuse_unless(link.mode() & 0o200 == 0)?;
    }
    Ok(())
}

/// The addresses of shared mappings. A line that cannot be parsed names no address that exists, so it is not found
/// later, which refuses the process.
fn shared_places(maps: &str) -> impl Iterator<Item = &str> {
    maps.lines().filter_map(|line| {
        let (place, rest) = line.split_once(' ').unwrap_or((line, ""));
        let private = rest.split(' ').next().is_some_and(|rights| rights.len() == 4 && rights.ends_with('p'));
        (!private).then_some(place)
    })
}

fn proc_of(pid: Pid, what: &str) -> String {
    format!("/proc/{}/{what}", pid.as_raw_nonzero())
}

fn refuse_unless(kept: bool) -> io::Result<()> {
    if kept { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const CONFINED: &str = "Name:\tpython3\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t \nThreads:\t1\n\
        CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
        CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nNSpid:\t912\t2\n";

    #[test]
    fn a_confined_process_is_approved() {
        without_rights(CONFINED, 7).unwrap();
    }

    #[test]
    fn what_is_mapped_to_be_shared_is_seen() {
        let private = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n";
        let shared = "7f0000001000-7f0000002000 r--s 00000000 00:01 9    /memfd:x (deleted)\n";
        let seen = |maps: &str| shared_places(maps).map(str::to_owned).collect::<Vec<_>>();
        assert!(seen(private).is_empty());
        assert_eq!(seen(&format!("{private}{shared}")), ["7f0000001000-7f0000002000"]);
        assert_eq!(seen("nonsense"), ["nonsense"], "in doubt it is");
    }

    /// For as long as this process lives.
    fn map_shared(file: &std::fs::File) {
        let (place, rights) = (std::ptr::null_mut(), libc::PROT_READ);
        // SAFETY: a new mapping at an address of the kernel's choice, which nobody reads.
        let mapped = unsafe { libc::mmap(place, 4096, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
    }

    #[test]
    fn shared_memory_that_can_be_written_to_is_refused() {
        let this = rustix::process::getpid();
        let writable =
            std::fs::File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        writable.set_len(4096).unwrap();
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", writable.as_raw_fd())).unwrap();
        map_shared(&read_only);
        nothing_shared(this).expect("the control: nobody can write there");
        map_shared(&writable);
        nothing_shared(this).unwrap_err();
    }

    #[test]
    fn a_process_that_kept_anything_is_refused() {
        let spoilt = [
            ("Uid:\t7\t7\t7\t7", "Uid:\t7\t0\t7\t7"),
            ("Gid:\t7\t7\t7\t7", "Gid:\t7\t7\t7\t0"),
            ("Groups:\t ", "Groups:\t27 "),
            ("CapPrm:\t0000000000000000", "CapPrm:\t0000000000000001"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
            ("Seccomp:\t2", "Seccomp:\t0"),
            ("Threads:\t1", "Threads:\t2"),
            ("Seccomp:\t2\n", ""),
            ("NSpid:\t912\t2", "NSpid:\t912\t3"),
        ];
        for (from, to) in spoilt {
            without_rights(&CONFINED.replace(from, to), 7).unwrap_err();
        }
        without_rights(CONFINED, 8).unwrap_err();
    }
}
