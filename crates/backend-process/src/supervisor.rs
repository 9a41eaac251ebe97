//! The supervisor: the process between `belljar` and a program that gets no box.
//!
//! It is this same binary, started again. It is a subreaper, so every process that comes from the program stays its
//! descendant, even daemons, which fork twice and leave the session. So it can check all of them, and kill them: when
//! the program ends, when a limit is exceeded, on request, and when its parent is gone. Finally it removes the run's
//! directory.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use belljar_jail::message::{self, Request};
use belljar_jail::plan::Resource;
use belljar_jail::{codec, leash, used_by_children};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::order::{Said, Stop, SupervisorOrder, Watch};
use crate::{scratch, tree};

/// The name under which the binary starts itself again as a supervisor.
pub(crate) const SUPERVISOR: &str = "belljar-supervisor";

/// How often the processes are checked.
const INTERVAL: Duration = Duration::from_millis(20);
/// The largest order: arguments and environment have their own limits.
const MOST: u64 = 16 << 20;
/// How many processes above its limit a run may have between two checks. The kernel counts all processes of a user, so
/// there must be room for those of other runs.
const NEIGHBOURS: u64 = 1000;

/// The life of a supervisor. Its standard input is the socket to the caller.
pub(crate) fn live() -> ExitCode {
    let Ok(caller) = rustix::stdio::stdin().try_clone_to_owned() else { return ExitCode::FAILURE };
    match receive(&caller) {
        Ok(Some((order, streams))) => {
            let root = order.scratch.clone();
            let _hold = scratch::hold(&root);
            Supervisor { caller, order, streams: Some(streams), stop: Stop::None, peak: 0 }.conduct();
            scratch::remove(&root);
        }
        Ok(None) => {}
        Err(fault) => say(&caller, &failed("receive the order", &fault)),
    }
    ExitCode::SUCCESS
}

/// The program's ends of its streams.
struct Streams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

fn receive(caller: &OwnedFd) -> io::Result<Option<(SupervisorOrder, Streams)>> {
    let Some((request, descriptors)) = message::receive(caller)? else { return Ok(None) };
    let Request::Make { plan_length, .. } = request else { return Ok(None) };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
    let (payload, stdin, stdout, stderr) = (next()?, next()?, next()?, next()?);
    let mut bytes = Vec::new();
    std::fs::File::from(payload).take(plan_length.min(MOST)).read_to_end(&mut bytes)?;
    let order = codec::decode(&bytes).map_err(io::Error::other)?;
    Ok(Some((order, Streams { stdin, stdout, stderr })))
}

struct Supervisor {
    caller: OwnedFd,
    order: SupervisorOrder,
    /// Closed when the program has them.
    streams: Option<Streams>,
    stop: Stop,
    peak: u64,
}

/// How the program ended.
enum End {
    /// By itself.
    Own(i32),
    /// We killed it, or the caller did.
    Killed,
}

impl Supervisor {
    /// From the program's start to the death of all processes, and until the caller no longer needs the directory.
    fn conduct(mut self) {
        if let Err(fault) = self.become_subreaper() {
            return say(&self.caller, &failed("become the supervisor", &fault));
        }
        let main = match self.start() {
            Ok(main) => main,
            Err(fault) => {
                let doing = format!("start {}", self.order.command.program.display());
                return say(&self.caller, &failed(&doing, &fault));
            }
        };
        say(&self.caller, &Said::Started { main: main.as_raw_nonzero().get() });
        let end = self.follow(main);
        self.finish(main, &end);
    }

    /// Terminal signals are for the caller alone. A process that has stopped us cannot keep us from noticing its death.
    fn become_subreaper(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::CONT))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        if self.order.watch.is_some() {
            rustix::thread::set_no_new_privs(true)?;
        }
        Ok(())
    }

    fn start(&mut self) -> io::Result<Pid> {
        let Streams { stdin, stdout, stderr } = self.streams.take().ok_or(io::ErrorKind::NotFound)?;
        let command = &self.order.command;
        let mut started = Command::new(&command.program);
        started.env_clear().envs(command.env.iter().filter_map(|text| variable(text)));
        started.current_dir(&command.cwd).stdin(stdin);
        started.stdout(stdout).stderr(stderr);
        if let [name, arguments @ ..] = command.argv.as_slice() {
            started.arg0(OsStr::from_bytes(name));
            started.args(arguments.iter().map(|word| OsStr::from_bytes(word)));
        }
        leash(&mut started, self.order.watch.as_ref().map(rlimits).unwrap_or_default());
        let child = started.spawn()?;
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Until the program ends, or there is a reason to kill it.
    fn follow(&mut self, main: Pid) -> End {
        let Ok(pidfd) = pidfd_open(main, PidfdFlags::empty()) else { return End::Killed };
        loop {
            let told = self.wait(&pidfd);
            let mut ended = None;
            tree::reap(|pid, status| {
                if pid == main {
                    ended = Some(status.as_raw());
                }
            });
            match ended {
                Some(status) => return End::Own(status),
                None if told || self.is_over_a_limit() => return End::Killed,
                None => {}
            }
        }
    }

    /// Waits for an event; returns whether the caller wants the run to end, or is gone.
    fn wait(&self, pidfd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(&self.caller, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
        let _ = poll(&mut fds, Timespec::try_from(INTERVAL).ok().as_ref());
        !fds[0].revents().is_empty()
    }

    fn is_over_a_limit(&mut self) -> bool {
        let Some(watch) = &self.order.watch else { return false };
        let used = tree::used();
        self.peak = self.peak.max(used.resident);
        self.stop = verdict(watch, &used, tree::proportional_memory);
        self.stop != Stop::None
    }

    fn finish(self, main: Pid, end: &End) {
        let status = tree::destroy(main);
        let status = match end {
            End::Own(status) => *status,
            End::Killed => status.unwrap_or(Signal::KILL.as_raw()),
        };
        let used = used_by_children();
        let memory_peak = self.peak.max(used.max_rss);
        let (cpu_micros, stop) = (used.cpu_micros, self.stop);
        say(&self.caller, &Said::Ended { status, stop, cpu_micros, memory_peak });
        // The caller now collects files, and disconnects when it has them; or it dies, which looks the same.
        while let Ok(Some(_)) = message::receive::<Request>(&self.caller) {}
    }
}

/// Which limit has been exceeded. Shared pages are counted exactly only if that could make the difference.
fn verdict(watch: &Watch, used: &tree::Used, proportional: impl Fn() -> u64) -> Stop {
    let cpu_micros = u64::try_from(used.cpu.as_micros()).unwrap_or(u64::MAX);
    if watch.cpu_micros.is_some_and(|limit| cpu_micros > limit) {
        Stop::CpuTime
    } else if used.resident > watch.memory && proportional() > watch.memory {
        Stop::Memory
    } else if used.tasks > watch.pids {
        Stop::Pids
    } else {
        Stop::None
    }
}

/// The rlimits of each process. The one on their number is a second line behind the check of all processes: it keeps a
/// fork bomb from growing without bound in between. The kernel does not apply it to root.
fn rlimits(watch: &Watch) -> Vec<(Resource, u64)> {
    let mut rlimits = watch.rlimits.clone();
    rlimits.push((Resource::NProc, tasks_of_user() + watch.pids + NEIGHBOURS));
    rlimits
}

/// How many processes and threads the user has now.
fn tasks_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::getuid().as_raw();
    let is_process = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
    let tasks = entries.filter_map(|entry| std::fs::metadata(entry.path().join("task")).ok());
    tasks.filter(|tasks| tasks.uid() == own).map(|tasks| tasks.nlink().saturating_sub(2).max(1)).sum()
}

fn variable(text: &[u8]) -> Option<(&OsStr, &OsStr)> {
    let at = text.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&text[..at]), OsStr::from_bytes(&text[at + 1..])))
}

/// If the caller is gone, there is no one to tell, and the poll reports it.
fn say(caller: &OwnedFd, said: &Said) {
    let _ = message::send(caller, said, &[]);
}

fn failed(doing: &str, fault: &io::Error) -> Said {
    Said::Failed { doing: doing.to_owned(), errno: fault.raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Used;

    #[test]
    fn a_tree_is_stopped_for_what_it_uses_too_much_of() {
        let watch = Watch { rlimits: Vec::new(), memory: 100, pids: 10, cpu_micros: Some(5_000) };
        let within = Used { tasks: 10, resident: 100, cpu: Duration::from_millis(5) };
        let stop = |used: Used, shares: u64| verdict(&watch, &used, || shares);
        assert_eq!(stop(within, 0), Stop::None);
        assert_eq!(stop(Used { tasks: 11, ..within }, 0), Stop::Pids);
        assert_eq!(stop(Used { cpu: Duration::from_millis(6), ..within }, 0), Stop::CpuTime);
        assert_eq!(stop(Used { resident: 101, ..within }, 101), Stop::Memory);
        assert_eq!(stop(Used { resident: 500, ..within }, 99), Stop::None, "they share what they have");
    }
}
