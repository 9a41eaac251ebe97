//! A running program, as the kernel reports it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::CpuSet;

/// More than `/proc/PID/stat` has.
const MOST: u64 = 4096;
/// In the flags of a process: it will not run another instruction of user code.
const PF_EXITING: u64 = 0x4;
/// What is shown instead of an address to a reader that may not inspect the process.
const HIDDEN: u64 = 1;

/// One process, by its directory in `/proc`, which is empty when that process is gone.
pub(crate) struct Program {
    directory: OwnedFd,
    pid: Option<Pid>,
}

impl Program {
    pub(crate) fn at(directory: OwnedFd) -> Program {
        let pid = Stat::read(&directory).map(|stat| stat.pid);
        Program { directory, pid }
    }

    /// Its exit status, as `waitpid` gives it, if it is exiting and has no other threads.
    pub(crate) fn exit_status(&self) -> Option<i32> {
        let stat = Stat::read(&self.directory)?;
        (stat.threads <= 1).then(|| stat.exit_status()).flatten()
    }

    /// Its exit status, if all of its threads are exiting, as an exit listener has shown.
    pub(crate) fn status_at_exit(&self) -> Option<i32> {
        Stat::read(&self.directory)?.exit_status()
    }

    /// Whether we may read its status.
    pub(crate) fn is_readable(&self) -> bool {
        Stat::read(&self.directory).is_some_and(|stat| stat.code > HIDDEN)
    }

    /// Makes it continue on a different CPU when `wake` wakes it. Then its end is noticed while the kernel frees its
    /// memory, and not afterwards. The kernel would do so itself, except in a virtual machine, where an idle CPU may
    /// look preempted. What `wake` gives the program must not be all that it waits for: it may use every CPU again
    /// before it gets the rest.
    pub(crate) fn wake_elsewhere<T>(&self, wake: impl FnOnce() -> T) -> T {
        let confined = self.leave_this_cpu();
        let woken = wake();
        if let Some((pid, all)) = confined {
            let _ = rustix::thread::sched_setaffinity(Some(pid), &all);
        }
        woken
    }

    /// Returns the CPUs that it may use otherwise, if that is more than this CPU.
    fn leave_this_cpu(&self) -> Option<(Pid, CpuSet)> {
        // It is alive, as far as its keeper has reported, so the number is still its own.
        let pid = self.pid?;
        let all = rustix::thread::sched_getaffinity(Some(pid)).ok()?;
        let mut others = all;
        others.unset(rustix::thread::sched_getcpu());
        if others.count() == 0 {
            return None;
        }
        rustix::thread::sched_setaffinity(Some(pid), &others).ok().map(|()| (pid, all))
    }
}

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    pid: Pid,
    flags: u64,
    threads: u64,
    /// The start address of the program's code: zero once its memory has been freed.
    code: u64,
    status: i32,
}

impl Stat {
    fn read(directory: &OwnedFd) -> Option<Stat> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = rustix::fs::openat(directory, "stat", flags, Mode::empty()).ok()?;
        let mut text = Vec::with_capacity(512);
        File::from(stat).take(MOST).read_to_end(&mut text).ok()?;
        Stat::parse(&String::from_utf8_lossy(&text))
    }

    /// Fields are counted from the last parenthesis, because the program chooses the name before it.
    fn parse(text: &str) -> Option<Stat> {
        let (front, fields) = text.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // `proc_pid_stat(5)` counts from 1, and the state is field 3.
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            pid: Pid::from_raw(front.split(' ').next()?.parse().ok()?)?,
            flags: field(9)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            code: field(26)?.parse().ok()?,
            status: field(52)?.parse().ok()?,
        })
    }

    /// A status that is hidden from us looks like success.
    fn exit_status(&self) -> Option<i32> {
        (self.flags & PF_EXITING != 0 && self.code != HIDDEN).then_some(self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, flags: u64, code: u64, status: i32) -> Stat {
        let zeros = |count| vec!["0"; count].join(" ");
        let text = format!("7 ({name}) R {} {flags} {} {code} {} {status}\n", zeros(5), zeros(16), zeros(25));
        Stat::parse(&text).unwrap()
    }

    #[test]
    fn a_program_that_exits_has_a_status() {
        assert_eq!(stat("python3", PF_EXITING | 0x40_0000, 4096, 0).exit_status(), Some(0));
        assert_eq!(stat("python3", PF_EXITING, 0, 0x300).exit_status(), Some(0x300), "its memory is gone");
    }

    #[test]
    fn a_program_that_goes_on_has_none() {
        assert_eq!(stat("python3", 0x40_0000, 4096, 0).exit_status(), None);
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn a_status_that_is_hidden_is_none() {
        assert_eq!(stat("python3", PF_EXITING, HIDDEN, 0).exit_status(), None);
    }

    #[test]
    fn a_name_cannot_be_taken_for_fields() {
        let forged = stat("x) R 0 0 0 0 0 4 0 0 0 0 0 0 0 0 0 0 1", 0, 4096, 0);
        assert_eq!(forged.exit_status(), None);
        assert_eq!(stat("a) b", PF_EXITING, 4096, 9).exit_status(), Some(9), "the control");
    }

    #[test]
    fn the_fields_are_where_this_kernel_has_them() {
        let this = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let this = Program::at(this);
        assert_eq!((this.exit_status(), this.is_readable()), (None, true));
        let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let place = format!("/proc/{}", child.id());
        let place = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let program = Program::at(place);
        while program.exit_status().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(program.exit_status(), Some(0x300));
        child.wait().unwrap();
        assert_eq!(program.exit_status(), None, "it is gone");
    }

    #[test]
    fn it_is_woken_on_another_cpu_and_may_use_every_cpu_again() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let place = format!("/proc/{}", child.id());
        let place = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let of_child = || rustix::thread::sched_getaffinity(Some(pid)).unwrap();
        let all = of_child();
        let here = rustix::thread::sched_getcpu();
        let mut this = CpuSet::new();
        this.set(here);
        rustix::thread::sched_setaffinity(None, &this).unwrap();
        let meanwhile = Program::at(place).wake_elsewhere(of_child);
        assert_eq!(meanwhile.is_set(here), all.count() == 1, "unless there is no other");
        assert_eq!(of_child(), all);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
