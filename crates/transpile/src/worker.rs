//! A worker is this program, started again to parse one file under limits that the kernel enforces.
//!
//! Both files that connect it with its parent are in memory rather than pipes: neither side can block the other, and a
//! worker that dies half-way leaves no broken pipe behind.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use belljar_core::outcome::{Outcome, TimeLimit, Usage};
use belljar_jail::{HelperLimits, confine_parser};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::{Budget, strip};

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
    /// A limit of the run ended it.
    Limit(Outcome),
    /// A limit of its own ended it. All of these are far from anything that a person writes.
    TooMuch(Excess),
    /// It could not be started or communicated with.
    Broken(io::Error),
}

/// Which limit it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Wall,
    Cpu,
    Memory,
    Depth,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Limit(_) => f.write_str("the code takes more to parse than the run may use"),
            Failure::TooMuch(Excess::Wall | Excess::Cpu) => f.write_str("the code takes too long to parse"),
            Failure::TooMuch(Excess::Memory | Excess::Depth) => {
                f.write_str("the code is nested too deeply or too large")
            }
            Failure::Broken(source) => write!(f, "the parser could not be run: {source}"),
        }
    }
}

/// The process name that makes this program a worker.
const WORKER: &str = "belljar-transpile";

/// The largest code that is accepted, 4 MiB, takes a fraction of this.
const CPU: Duration = Duration::from_secs(2);
/// For a worker that gets no CPU, or is stopped.
const PATIENCE: Duration = Duration::from_secs(15);
/// Memory of its own, the stack included.
const MEMORY: u64 = 1 << 30;
/// A release build takes about 1 KiB for each level of nesting.
const STACK: u64 = 256 << 20;
/// The result: indentation can make it larger than the code by far.
const OUTPUT: u64 = 32 << 20;

/// Has a worker do `task` for a file called `name`, and says what that took.
pub(crate) fn ask(task: Task, name: &str, text: &[u8], budget: Budget) -> (Result<Reply, Failure>, Usage) {
    let began = Instant::now();
    let (reply, spent) = match converse(task, name, text, budget) {
        Ok((reply, spent)) => (Ok(reply), Some(spent)),
        Err(failure) => (Err(failure), None),
    };
    let wall = began.elapsed();
    let Spent { cpu, memory_peak } = spent.unwrap_or_else(|| Spent::at_most(wall, budget));
    (reply, Usage { wall, cpu, memory_peak, ..Usage::default() })
}

fn converse(task: Task, name: &str, text: &[u8], budget: Budget) -> Result<(Reply, Spent), Failure> {
    let allowed = Allowed::within(budget);
    let mut output = memory_file()?;
    let child = start(task, name, text, &output, &allowed).map_err(Failure::Broken)?;
    let status = await_end(child, allowed.wall).map_err(Failure::Broken)?;
    let mut said = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut said)).map_err(Failure::Broken)?;
    if let Some(excess) = excess(status, &said) {
        return Err(budget.blame(excess));
    }
    if !status.success() {
        return Err(Failure::Broken(io::Error::other(format!("its process ended with {status}"))));
    }
    decode(said).ok_or_else(|| Failure::Broken(io::ErrorKind::InvalidData.into()))
}

/// What a worker may use.
struct Allowed {
    wall: Duration,
    cpu: Duration,
    memory: u64,
}

impl Allowed {
    fn within(budget: Budget) -> Allowed {
        Allowed {
            wall: budget.timeout.min(PATIENCE),
            cpu: budget.cpu_time.map_or(CPU, |limit| limit.min(CPU)),
            memory: budget.memory.get().min(MEMORY),
        }
    }

    /// As words of a command line.
    fn words(&self) -> [String; 2] {
        [self.cpu.as_micros().to_string(), self.memory.to_string()]
    }
}

impl Budget {
    /// Whether it was the run's limit that was exceeded, or one of the worker's own.
    fn blame(self, excess: Excess) -> Failure {
        match (excess, self.cpu_time) {
            (Excess::Wall, _) if self.timeout <= PATIENCE => {
                Failure::Limit(Outcome::TimedOut(TimeLimit::Wall(self.timeout)))
            }
            (Excess::Cpu, Some(limit)) if limit <= CPU => {
                Failure::Limit(Outcome::TimedOut(TimeLimit::Cpu(limit)))
            }
            (Excess::Memory, _) if self.memory.get() <= MEMORY => Failure::Limit(Outcome::OutOfMemory),
            (Excess::Wall | Excess::Cpu | Excess::Memory | Excess::Depth, _) => Failure::TooMuch(excess),
        }
    }
}

/// Does a worker's work if this process was started as one. `main` returns what this returns, if anything.
#[must_use]
pub fn run_as_worker() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next()? != OsStr::new(WORKER) {
        return None;
    }
    let mut word = || args.next()?.into_string().ok();
    let task = Task::by_word(&word()?)?;
    let (cpu, memory) = (word()?.parse().ok()?, word()?.parse().ok()?);
    let limits = HelperLimits { cpu: Duration::from_micros(cpu), memory, file_size: OUTPUT };
    let name = word()?;
    Some(match work(task, name, limits) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = writeln!(io::stderr(), "{cause}");
            ExitCode::FAILURE
        }
    })
}

fn memory_file() -> Result<File, Failure> {
    let fd = memfd_create(WORKER, MemfdFlags::CLOEXEC).map_err(|errno| Failure::Broken(errno.into()))?;
    Ok(File::from(fd))
}

fn start(task: Task, name: &str, text: &[u8], output: &File, allowed: &Allowed) -> io::Result<Child> {
    let mut input = File::from(memfd_create(WORKER, MemfdFlags::CLOEXEC)?);
    input.write_all(text)?;
    input.rewind()?;
    Command::new("/proc/self/exe")
        .arg0(WORKER)
        .arg(task.word())
        .args(allowed.words())
        .arg(name)
        .env_clear()
        .current_dir("/")
        .stdin(input)
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()
}

fn await_end(mut child: Child, patience: Duration) -> io::Result<ExitStatus> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let ended = Pid::from_raw(child.id().cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .and_then(|pidfd| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience)));
    if ended != Ok(1) {
        child.kill()?;
    }
    child.wait()
}

/// Which limit ended a worker. Running out of stack or of memory ends it with the same signal, or with a panic; then
/// the last words are the standard library's.
fn excess(status: ExitStatus, said: &[u8]) -> Option<Excess> {
    if status.success() {
        return None;
    }
    let of_cpu = [Signal::PROF.as_raw(), Signal::XCPU.as_raw()];
    match status.signal() {
        Some(signal) if of_cpu.contains(&signal) => Some(Excess::Cpu),
        Some(signal) if signal == Signal::KILL.as_raw() => Some(Excess::Wall),
        Some(_) if says(said, "has overflowed its stack") => Some(Excess::Depth),
        Some(_) => Some(Excess::Memory),
        None => (says(said, "out of memory") || says(said, "allocat")).then_some(Excess::Memory),
    }
}

fn says(text: &[u8], words: &str) -> bool {
    text.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words.as_bytes()))
}

fn work(task: Task, name: String, limits: HelperLimits) -> io::Result<()> {
    // It has to be open already: nothing can be opened later.
    let mut status = File::open("/proc/self/status")?;
    confine_parser(limits)?;
    let mut text = String::new();
    let reply = match io::stdin().lock().read_to_string(&mut text) {
        Ok(_) => with_a_large_stack(limits.memory, move || task.perform(&name, &text))?,
        Err(cause) if cause.kind() == io::ErrorKind::InvalidData => Reply::Script(Vec::new()),
        Err(cause) => return Err(cause),
    };
    let mut output = io::stdout().lock();
    output.write_all(&Spent::by_now(&mut status)?.bytes())?;
    output.write_all(&[reply.tag()])?;
    output.write_all(reply.bytes())?;
    output.flush()
}

/// The stack may have half of the memory.
fn with_a_large_stack<T: Send + 'static>(
    memory: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let size = usize::try_from((memory / 2).min(STACK)).map_err(io::Error::other)?;
    let thread = thread::Builder::new().stack_size(size).spawn(work).map_err(|cause| {
        // What `pthread_create` answers if there is no memory for the stack.
        if cause.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::OutOfMemory.into() } else { cause }
    })?;
    thread.join().map_err(|_| io::Error::other("the parser panicked"))
}

/// What a worker has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spent {
    cpu: Duration,
    memory_peak: u64,
}

impl Spent {
    const SIZE: usize = 16;

    /// One that was killed did not tell what it had used. It has one thread at a time, so it was not more than this.
    fn at_most(wall: Duration, budget: Budget) -> Spent {
        let Allowed { cpu, memory, .. } = Allowed::within(budget);
        Spent { cpu: wall.min(cpu), memory_peak: memory }
    }

    fn by_now(status: &mut File) -> io::Result<Spent> {
        let mut text = String::new();
        status.read_to_string(&mut text)?;
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = peak.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).map_err(io::Error::other)?;
        Ok(Spent { cpu, memory_peak: kib << 10 })
    }

    fn bytes(self) -> [u8; Spent::SIZE] {
        let mut bytes = [0; Spent::SIZE];
        let micros = u64::try_from(self.cpu.as_micros()).unwrap_or(u64::MAX);
        bytes[..8].copy_from_slice(&micros.to_le_bytes());
        bytes[8..].copy_from_slice(&self.memory_peak.to_le_bytes());
        bytes
    }

    fn read(bytes: [u8; Spent::SIZE]) -> Spent {
        let number = |half: &[u8]| half.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Spent { cpu: Duration::from_micros(number(&bytes[..8])), memory_peak: number(&bytes[8..]) }
    }
}

fn decode(said: Vec<u8>) -> Option<(Reply, Spent)> {
    let (spent, reply) = said.split_first_chunk::<{ Spent::SIZE }>()?;
    Some((Reply::decode(reply.to_vec())?, Spent::read(*spent)))
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
    fn what_it_took_survives_the_way_to_the_parent() {
        let spent = Spent { cpu: Duration::from_micros(1_234_567), memory_peak: 64 << 20 };
        assert_eq!(Spent::read(spent.bytes()), spent);
        assert_eq!(decode(spent.bytes().to_vec()), None);
        assert_eq!(decode([&spent.bytes()[..], b"Sx"].concat()), Some((Reply::Script(b"x".to_vec()), spent)));
    }

    #[test]
    fn every_task_is_known_by_its_word() {
        for task in [Task::DetectModule, Task::StripTypes] {
            assert_eq!(Task::by_word(task.word()), Some(task));
        }
        assert_eq!(Task::by_word("format-disk"), None);
    }
}
