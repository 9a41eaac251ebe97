//! A program that runs, as the kernel tells of it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::CpuSet;

/// More than `/proc/PID/stat` has.
const MOST: u64 = 4096;
/// In the flags of a process: it will not run another instruction of its own.
const PF_EXITING: u64 = 0x4;

/// One process, by its directory in `/proc`, which is empty when that process is gone.
pub(crate) struct Program(OwnedFd);

impl Program {
    pub(crate) fn at(directory: OwnedFd) -> Program {
        Program(directory)
    }

    /// How it ends, as `waitpid` gives it, if it is about to and was alone in its thread group.
    pub(crate) fn exit_status(&self) -> Option<i32> {
        exit_status(&stat(&self.0)?)
    }

    /// Has it go on elsewhere than on this CPU when `wake` wakes it. Whoever waits for its end then hears of it while the
    /// kernel takes it apart, and not after. The kernel would do so itself, but for one in a virtual machine, to which an
    /// idle CPU looks as if somebody else had it. What `wake` gives it must not be all that it waits for: it may use every
    /// CPU again before it gets that.
    pub(crate) fn wake_elsewhere<T>(&self, wake: impl FnOnce() -> T) -> T {
        let confined = self.leave_this_cpu();
        let woken = wake();
        if let Some((pid, all)) = confined {
            let _ = rustix::thread::sched_setaffinity(Some(pid), &all);
        }
        woken
    }

    /// Returns what it may use otherwise, if that is more than this CPU.
    fn leave_this_cpu(&self) -> Option<(Pid, CpuSet)> {
        let pid = Pid::from_raw(stat(&self.0)?.split(' ').next()?.parse().ok()?)?;
        let all = rustix::thread::sched_getaffinity(Some(pid)).ok()?;
        let mut others = all;
        others.unset(rustix::thread::sched_getcpu());
        if others.count() == 0 {
            return None;
        }
        rustix::thread::sched_setaffinity(Some(pid), &others).ok().map(|()| (pid, all))
    }
}

fn stat(directory: &OwnedFd) -> Option<String> {
    let stat = rustix::fs::openat(directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = Vec::with_capacity(512);
    File::from(stat).take(MOST).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The fields are counted from the last parenthesis: before it is a name of the program's own choice.
fn exit_status(stat: &str) -> Option<i32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    // `proc_pid_stat(5)` counts from 1 and has the state third.
    let field = |number: usize| fields.get(number - 3);
    let flags: u64 = field(9)?.parse().ok()?;
    let threads: u64 = field(20)?.parse().ok()?;
    (flags & PF_EXITING != 0 && threads <= 1).then(|| field(52)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, flags: u64, threads: u64, status: i32) -> String {
        let zeros = |count| vec!["0"; count].join(" ");
        format!("7 ({name}) R {} {flags} {} {threads} {} {status}\n", zeros(5), zeros(10), zeros(31))
    }

    #[test]
    fn a_program_that_exits_has_a_status() {
        assert_eq!(exit_status(&stat("python3", PF_EXITING | 0x40_0000, 1, 0)), Some(0));
        assert_eq!(exit_status(&stat("python3", PF_EXITING, 1, 0x300)), Some(0x300));
    }

    #[test]
    fn a_program_that_goes_on_has_none() {
        assert_eq!(exit_status(&stat("python3", 0x40_0000, 1, 0)), None);
        assert_eq!(exit_status(&stat("python3", PF_EXITING, 2, 0)), None, "another thread goes on");
        assert_eq!(exit_status(""), None);
    }

    #[test]
    fn a_name_cannot_be_taken_for_fields() {
        let forged = stat("x) R 0 0 0 0 0 4 0 0 0 0 0 0 0 0 0 0 1", 0, 1, 0);
        assert_eq!(exit_status(&forged), None);
        assert_eq!(exit_status(&stat("a) b", PF_EXITING, 1, 9)), Some(9), "the control");
    }

    #[test]
    fn the_fields_are_where_this_kernel_has_them() {
        let this = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(Program::at(this).exit_status(), None);
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
