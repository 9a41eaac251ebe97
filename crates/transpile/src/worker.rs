//! A worker is this program, started again to parse one file under limits that the kernel enforces.
//!
//! Both files that connect it with its parent are in memory rather than pipes: neither side can block the other, and a
//! worker that dies half-way leaves no broken pipe behind.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, set_parent_process_death_signal, setrlimit,
};

use crate::strip;

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    DetectModule,
    StripTypes,
}

/// What a worker found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The JavaScript of a script; empty where only detection was asked for.
    Script(Vec<u8>),
    /// The same of a module.
    Module(Vec<u8>),
    /// Syntax errors, ready to be shown.
    Errors(String),
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A limit ended it. All limits are far from anything that a person writes.
    TooMuch(Excess),
    /// It could not be started or communicated with.
    Broken(io::Error),
}

/// Which limit it was, as far as the signal tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Time,
    DepthOrSize,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::TooMuch(Excess::Time) => f.write_str("the code takes too long to parse"),
            Failure::TooMuch(Excess::DepthOrSize) => {
                f.write_str("the code is nested too deeply or too large")
            }
            Failure::Broken(source) => write!(f, "the parser could not be run: {source}"),
        }
    }
}

/// The process name that makes this program a worker.
const WORKER: &str = "belljar-transpile";

/// The kernel counts in whole seconds. The largest code that is accepted, 4 MiB, takes a fraction of one.
const CPU_SECONDS: u64 = 2;
/// For a worker that gets no CPU, or is stopped.
const DEADLINE: Timespec = Timespec { tv_sec: 15, tv_nsec: 0 };
/// Address space, the stack included.
const MEMORY: u64 = 1 << 30;
/// A release build takes about 1 KiB for each level of nesting.
const STACK: usize = 256 << 20;
/// The result: indentation can make it larger than the code by far.
const OUTPUT: u64 = 32 << 20;

/// Has a worker do `task` for a file called `name`.
pub(crate) fn ask(task: Task, name: &str, text: &[u8]) -> Result<Reply, Failure> {
    let mut output = memory_file()?;
    let child = start(task, name, text, &output).map_err(Failure::Broken)?;
    let status = await_end(child).map_err(Failure::Broken)?;
    if let Some(failure) = failure(status) {
        return Err(failure);
    }
    let mut reply = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut reply)).map_err(Failure::Broken)?;
    Reply::decode(reply).ok_or_else(|| Failure::Broken(io::ErrorKind::InvalidData.into()))
}

/// Does a worker's work if this process was started as one. `main` returns what this returns, if anything.
#[must_use]
pub fn run_as_worker() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next()? != OsStr::new(WORKER) {
        return None;
    }
    let task = Task::by_word(args.next()?.to_str()?)?;
    let name = args.next()?.into_string().ok()?;
    Some(match work(task, &name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn memory_file() -> Result<File, Failure> {
    let fd = memfd_create(WORKER, MemfdFlags::CLOEXEC).map_err(|errno| Failure::Broken(errno.into()))?;
    Ok(File::from(fd))
}

fn start(task: Task, name: &str, text: &[u8], output: &File) -> io::Result<Child> {
    let mut input = File::from(memfd_create(WORKER, MemfdFlags::CLOEXEC)?);
    input.write_all(text)?;
    input.rewind()?;
    Command::new("/proc/self/exe")
        .arg0(WORKER)
        .args([task.word(), name])
        .env_clear()
        .current_dir("/")
        .stdin(input)
        .stdout(output.try_clone()?)
        .stderr(Stdio::null())
        .spawn()
}

fn await_end(mut child: Child) -> io::Result<ExitStatus> {
    let ended = Pid::from_raw(child.id().cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .and_then(|pidfd| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&DEADLINE)));
    if ended != Ok(1) {
        child.kill()?;
    }
    child.wait()
}

/// A worker that used up its CPU time, or reached the deadline, was killed. One that ran out of stack or memory
/// aborted. One that ended by itself is not a worker: the program does not call [`run_as_worker`], or the parser
/// panicked.
fn failure(status: ExitStatus) -> Option<Failure> {
    let of_time = [Signal::XCPU.as_raw(), Signal::KILL.as_raw()];
    match status.signal() {
        Some(signal) if of_time.contains(&signal) => Some(Failure::TooMuch(Excess::Time)),
        Some(_) => Some(Failure::TooMuch(Excess::DepthOrSize)),
        None if status.success() => None,
        None => Some(Failure::Broken(io::Error::other(format!("its process ended with {status}")))),
    }
}

fn work(task: Task, name: &str) -> io::Result<()> {
    confine()?;
    let mut text = String::new();
    let is_text = io::stdin().lock().read_to_string(&mut text).is_ok();
    let name = name.to_owned();
    let reply = match is_text {
        true => with_a_large_stack(move || task.perform(&name, &text))?,
        false => Reply::Script(Vec::new()),
    };
    let mut output = io::stdout().lock();
    output.write_all(&[reply.tag()])?;
    output.write_all(reply.bytes())?;
    output.flush()
}

fn confine() -> io::Result<()> {
    let limit = |resource, most| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::Cpu, CPU_SECONDS)?;
    limit(Resource::As, MEMORY)?;
    limit(Resource::Fsize, OUTPUT)?;
    Ok(limit(Resource::Core, 0)?)
}

fn with_a_large_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let thread = thread::Builder::new().stack_size(STACK).spawn(work)?;
    thread.join().map_err(|_| io::Error::other("the parser panicked"))
}

impl Task {
    fn word(self) -> &'static str {
        match self {
            Task::DetectModule => "detect-module",
            Task::StripTypes => "strip-types",
        }
    }

    fn by_word(word: &str) -> Option<Task> {
        [Task::DetectModule, Task::StripTypes].into_iter().find(|task| task.word() == word)
    }

    fn perform(self, name: &str, text: &str) -> Reply {
        match self {
            Task::DetectModule => strip::detect_module(text),
            Task::StripTypes => strip::strip_types(name, text),
        }
    }
}

impl Reply {
    fn tag(&self) -> u8 {
        match self {
            Reply::Script(_) => b'S',
            Reply::Module(_) => b'M',
            Reply::Errors(_) => b'E',
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Reply::Script(text) | Reply::Module(text) => text,
            Reply::Errors(message) => message.as_bytes(),
        }
    }

    fn decode(mut tagged: Vec<u8>) -> Option<Reply> {
        let text = tagged.split_off(1.min(tagged.len()));
        match tagged.first()? {
            b'S' => Some(Reply::Script(text)),
            b'M' => Some(Reply::Module(text)),
            b'E' => String::from_utf8(text).ok().map(Reply::Errors),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_survives_the_way_to_the_parent() {
        for reply in [Reply::Script(vec![]), Reply::Module(b"x".to_vec()), Reply::Errors("é".to_owned())] {
            let tagged = [&[reply.tag()], reply.bytes()].concat();
            assert_eq!(Reply::decode(tagged), Some(reply));
        }
        assert_eq!(Reply::decode(vec![]), None);
        assert_eq!(Reply::decode(b"?".to_vec()), None);
    }

    #[test]
    fn every_task_is_known_by_its_word() {
        for task in [Task::DetectModule, Task::StripTypes] {
            assert_eq!(Task::by_word(task.word()), Some(task));
        }
        assert_eq!(Task::by_word("format-disk"), None);
    }
}
