//! A program that a zygote sent into a box, seen from outside: looked at before it is taken for the box's program.
//!
//! What confines it, it has applied to itself, in the interpreter's own language. So nobody takes its word for it: what
//! the kernel tells of a process is held against what the plan says, and what can be done from outside is done here.

use std::io;
use std::path::Path;

use rustix::process::Pid;

use crate::fault::{Doing, Fault};
use crate::message::NAMESPACES;
use crate::plan::{Birth, Plan, Step};
use crate::sys;

/// Looks at the one process that is in the box beside PID 1, limits it, and says why it cannot be the program, if so.
pub(crate) fn approve(init: Pid, plan: &Plan) -> Result<(), Fault> {
    let entrant = only_child(init).doing(|| "find the process that entered the box")?;
    limit(entrant, plan)?;
    let doubt = |what: &str| format!("verify that what entered the box {what}");
    in_the_same_box(init, entrant).doing(|| doubt("is in it entirely"))?;
    let status = std::fs::read_to_string(proc_of(entrant, "status")).doing(|| doubt("is there"))?;
    without_rights(&status, plan.identity.code.outside).doing(|| doubt("has no rights"))?;
    no_spare_descriptors(entrant, plan).doing(|| doubt("holds nothing"))?;
    nothing_shared(entrant).doing(|| doubt("shares no memory"))
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

/// The owner of the box's users has every right over them, which we may not have as root.
fn limit(entrant: Pid, plan: &Plan) -> Result<(), Fault> {
    let Birth::Forked { by } = plan.birth else { return Ok(()) };
    let mut rlimits = plan.confinement.rlimits.iter();
    sys::acting_as(by, || rlimits.try_for_each(|(of, value)| sys::set_limit(Some(entrant), *of, *value)))
        .doing(|| "set resource limits from outside")
}

fn in_the_same_box(init: Pid, entrant: Pid) -> io::Result<()> {
    for name in NAMESPACES {
        let of = |pid| std::fs::read_link(proc_of(pid, &format!("ns/{name}")));
        refuse_unless(of(init)? == of(entrant)?)?;
    }
    let cgroup = |pid| std::fs::read(proc_of(pid, "cgroup"));
    refuse_unless(cgroup(init)? == cgroup(entrant)?)
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
        && field("Threads") == Some("1");
    refuse_unless(kept)
}

/// Nothing but its streams, and the pipe that it waits for its code at.
fn no_spare_descriptors(entrant: Pid, plan: &Plan) -> io::Result<()> {
    let is_gate =
        |target: &Path| plan.build.iter().any(|step| matches!(step, Step::Pipe(path) if path == target));
    for entry in std::fs::read_dir(proc_of(entrant, "fd"))? {
        let entry = entry?;
        let is_stream = matches!(entry.file_name().to_str(), Some("0" | "1" | "2"));
        refuse_unless(is_stream || is_gate(&std::fs::read_link(entry.path())?))?;
    }
    Ok(())
}

/// A fork copies memory, but not what is mapped to be shared: what one program left there, the next would find.
fn nothing_shared(entrant: Pid) -> io::Result<()> {
    let read =
        |what| std::fs::read(proc_of(entrant, what)).map(|text| String::from_utf8_lossy(&text).into_owned());
    // This is quickly read, and mostly there is nothing.
    refuse_unless(!maps_shared(&read("maps")?) || !writes_shared(&read("smaps")?))
}

fn maps_shared(maps: &str) -> bool {
    maps.lines().any(|line| line.split(' ').nth(1).is_none_or(|rights| rights.ends_with('s')))
}

/// A file that was opened only to be read can be mapped as shared, and nobody can write there.
fn writes_shared(maps: &str) -> bool {
    let mut flags = maps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.any(|flags| flags.split_whitespace().any(|flag| flag == "sh"))
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

    const CONFINED: &str = "Name:\tpython3\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t \nThreads:\t1\n\
        CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
        CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

    #[test]
    fn a_confined_process_is_approved() {
        without_rights(CONFINED, 7).unwrap();
    }

    #[test]
    fn memory_that_others_could_write_to_is_seen() {
        let private = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n";
        let shared = "7f0000001000-7f0000002000 r--s 00000000 00:01 9    /memfd:x (deleted)\n";
        assert!(!maps_shared(private));
        assert!(maps_shared(&format!("{private}{shared}")));
        assert!(maps_shared("nonsense"), "in doubt it is");
        assert!(writes_shared("VmFlags: rd mr mw me ms ac\nVmFlags: rd sh mr mw me ms \n"));
        assert!(!writes_shared("VmFlags: rd mr me ms sd \n"));
    }

    #[test]
    fn whoever_has_kept_something_is_refused() {
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
        ];
        for (from, to) in spoilt {
            without_rights(&CONFINED.replace(from, to), 7).unwrap_err();
        }
        without_rights(CONFINED, 8).unwrap_err();
    }
}
