//! Workers: processes that parse what strangers wrote. A parser is a large target, its time cannot be bounded from within,
//! and a thread can be neither killed nor survived. So a worker is this same program, started again, under limits that
//! the kernel enforces, with nothing to lose ([`belljar_jail::confine_parser`]): no file, no socket but the one to its
//! parent, no right, no other process that it could touch.
//!
//! There are two ways to have one. A [`Worker`] of one's own, for one question, costs a millisecond or two. A [`Pool`]
//! starts workers ahead, off the path of any request, and a question costs two messages. A worker of a pool answers many
//! questions, one after the other, so code that takes a worker over could falsify later answers (of this worker, for a
//! while): what depends on the answers must not be the isolation of anything.
//!
//! Both sides of a worker speak in frames over a socket pair: a length, then bytes. What comes from a worker is as hostile
//! as what it reads, so whoever asks decodes the answer with that in mind.

#![forbid(unsafe_code)]

mod pool;

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use belljar_jail::{HelperLimits, confine_parser, renew_cpu_time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

pub use pool::{Asked, Pool};

/// Something that a worker can be asked to do. It gets the question and its limits.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// What it is called on a worker's command line.
    pub name: &'static str,
    /// Gets ready for it, before the first question and before the worker is confined.
    pub prepare: fn(),
    /// Does it. An error ends the worker.
    pub perform: fn(Vec<u8>, Limits) -> io::Result<Vec<u8>>,
}

/// What a worker may use for one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time, which its parent watches.
    pub wall: Duration,
    /// CPU time.
    pub cpu: Duration,
    /// Memory, for as long as it lives, in bytes.
    pub memory: u64,
}

/// What it took to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// CPU time.
    pub cpu: Duration,
    /// The most memory that the worker ever had, in bytes.
    pub memory_peak: u64,
}

/// Why there is no answer. The worker is gone.
#[derive(Debug)]
pub enum Failure {
    /// A limit ended it.
    TooMuch(Excess),
    /// It could not be started or communicated with, or it answered nonsense.
    Broken(io::Error),
}

/// Which limit it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// Wall-clock time.
    Wall,
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// The stack.
    Depth,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::TooMuch(Excess::Wall | Excess::Cpu) => f.write_str("the code takes too long to parse"),
            Failure::TooMuch(Excess::Memory | Excess::Depth) => {
                f.write_str("the code is nested too deeply or too large")
            }
            Failure::Broken(source) => write!(f, "the parser could not be run: {source}"),
        }
    }
}

/// The process name that makes this program a worker.
const WORKER: &str = "belljar-worker";
/// The longest question and the longest answer, in bytes. Removing types can make code larger by far.
const LONGEST: usize = 32 << 20;
/// What a worker may write to the file for its last words, in bytes.
const LAST_WORDS: u64 = 64 << 10;

/// Does a worker's work if this process was started as one. `main` returns what this returns, if anything.
#[must_use]
pub fn run_as_worker(jobs: &[Job]) -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next()? != OsStr::new(WORKER) {
        return None;
    }
    let mut word = || args.next()?.into_string().ok();
    let name = word()?;
    let job = jobs.iter().find(|job| job.name == name)?;
    let [wall, cpu, memory] = [word()?.parse().ok()?, word()?.parse().ok()?, word()?.parse().ok()?];
    let limits = Limits { wall: Duration::from_micros(wall), cpu: Duration::from_micros(cpu), memory };
    Some(match work(job, limits) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = writeln!(io::stderr(), "{cause}");
            ExitCode::FAILURE
        }
    })
}

/// Answers questions until there are no more.
fn work(job: &Job, limits: Limits) -> io::Result<()> {
    // These have to be open already: nothing can be opened later.
    let status = File::open("/proc/self/status")?;
    let mut parent = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    // What strangers wrote comes later. A parser may ask here how large its stack is, which takes a file.
    (job.prepare)();
    let confined = HelperLimits { cpu: limits.cpu, memory: limits.memory, file_size: LAST_WORDS };
    confine_parser(confined)?;
    // The first question pays for the start.
    let mut before = Duration::ZERO;
    while let Some(question) = read_frame(&mut parent)? {
        renew_cpu_time(limits.cpu)?;
        let answer = (job.perform)(question, limits)?;
        let now = cpu_time()?;
        let spent = Spent { cpu: now.saturating_sub(before), memory_peak: memory_peak(&status)? };
        before = now;
        parent.write_all(&[&spent.bytes()[..], &length(&answer)?, &answer].concat())?;
    }
    Ok(())
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    match u32::try_from(bytes.len()) {
        Ok(length) if bytes.len() <= LONGEST => Ok(length.to_le_bytes()),
        Ok(_) | Err(_) => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

/// The next question. `None` if the parent has closed the connection.
fn read_frame(parent: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    match parent.read_exact(&mut head) {
        Ok(()) => {}
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(cause) => return Err(cause),
    }
    let length = usize::try_from(u32::from_le_bytes(head)).map_err(io::Error::other)?;
    let mut frame = vec![0; length.min(LONGEST)];
    parent.read_exact(&mut frame)?;
    Ok(Some(frame))
}

fn cpu_time() -> io::Result<Duration> {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).map_err(io::Error::other)
}

fn memory_peak(status: &File) -> io::Result<u64> {
    // Longer than the file, so that one call reads it.
    let mut buffer = [0; 4 << 10];
    let length = status.read_at(&mut buffer, 0)?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = peak.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    Ok(kib << 10)
}

impl Spent {
    const SIZE: usize = 16;

    fn bytes(self) -> [u8; Spent::SIZE] {
        let mut bytes = [0; Spent::SIZE];
        let micros = u64::try_from(self.cpu.as_micros()).unwrap_or(u64::MAX);
        bytes[..8].copy_from_slice(&micros.to_le_bytes());
        bytes[8..].copy_from_slice(&self.memory_peak.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Spent {
        let number = |half: &[u8]| half.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Spent { cpu: Duration::from_micros(number(&bytes[..8])), memory_peak: number(&bytes[8..16]) }
    }
}

/// A running worker. Dropping it ends it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    socket: UnixStream,
    /// What it printed before it died: the standard library's words about a stack or memory that was not enough.
    last_words: File,
    wall: Duration,
}

impl Worker {
    /// Starts a worker for a job. The calling program must call [`run_as_worker`] first in its `main`. The worker dies
    /// with the thread that started it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(job: &Job, limits: Limits) -> io::Result<Worker> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let last_words = File::from(memfd_create(WORKER, MemfdFlags::CLOEXEC)?);
        let words = [limits.wall.as_micros(), limits.cpu.as_micros(), u128::from(limits.memory)];
        let child = Command::new("/proc/self/exe")
            .arg0(WORKER)
            .arg(job.name)
            .args(words.map(|word| word.to_string()))
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(last_words.try_clone()?)
            .stderr(last_words.try_clone()?)
            .spawn()?;
        Ok(Worker { child, socket, last_words, wall: limits.wall })
    }

    /// Asks it. After a failure it is of no use any more.
    ///
    /// # Errors
    /// A limit ended it, or it is broken.
    pub fn ask(&mut self, question: &[u8]) -> Result<(Vec<u8>, Spent), Failure> {
        let mut conversation = Conversation::new(question, self.wall).map_err(Failure::Broken)?;
        let until = conversation.deadline;
        match self.go_on(&mut conversation, until)? {
            Some(answer) => Ok(answer),
            None => Err(self.cause_of_death(true)),
        }
    }

    /// Goes on with a conversation until there is an answer, or for so long. `None` if there is none yet.
    fn go_on(&mut self, conversation: &mut Conversation, until: Instant) -> Result<Option<Answer>, Failure> {
        let sent = match conversation.sent {
            0 => self.near(|socket| conversation.send(socket, until)),
            _ => conversation.send(&mut self.socket, until),
        };
        match sent.and_then(|sent| {
            if sent { conversation.receive(&mut self.socket, until) } else { Ok(Said::NotYet) }
        }) {
            Ok(Said::All(answer, spent)) => Ok(Some((answer, spent))),
            Ok(Said::NotYet) if Instant::now() < conversation.deadline => Ok(None),
            Ok(Said::NotYet) => Err(self.cause_of_death(true)),
            Ok(Said::GoodBye) => Err(self.cause_of_death(false)),
            Err(cause) if is_hang_up(&cause) => Err(self.cause_of_death(false)),
            Err(cause) => Err(Failure::Broken(cause)),
        }
    }

    /// Has the worker go on where this thread is when `wake` wakes it. This thread then waits for the answer, so its CPU is
    /// free, and the other one need not be woken from its sleep, which takes longer than most scans.
    fn near<T>(&mut self, wake: impl FnOnce(&mut UnixStream) -> T) -> T {
        let pid = Pid::from_child(&self.child);
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let all = sched_getaffinity(Some(pid)).ok().filter(|_| sched_setaffinity(Some(pid), &here).is_ok());
        let woken = wake(&mut self.socket);
        if let Some(all) = all {
            let _ = sched_setaffinity(Some(pid), &all);
        }
        woken
    }

    /// Which limit ended it. Running out of stack or of memory ends it with the same signal, or with a panic; then the
    /// last words are the standard library's.
    fn cause_of_death(&mut self, overdue: bool) -> Failure {
        if overdue && let Err(cause) = self.child.kill() {
            return Failure::Broken(cause);
        }
        let (status, said) = match (self.child.wait(), self.read_last_words()) {
            (Ok(status), Ok(said)) => (status, said),
            (Err(cause), _) | (_, Err(cause)) => return Failure::Broken(cause),
        };
        match excess(status, &said) {
            _ if overdue => Failure::TooMuch(Excess::Wall),
            Some(excess) => Failure::TooMuch(excess),
            None => Failure::Broken(io::Error::other(format!("its process ended with {status}"))),
        }
    }

    fn read_last_words(&mut self) -> io::Result<Vec<u8>> {
        let mut said = Vec::new();
        self.last_words.rewind()?;
        (&self.last_words).take(LAST_WORDS).read_to_end(&mut said)?;
        Ok(said)
    }
}

/// An answer and what it took.
pub type Answer = (Vec<u8>, Spent);

/// A question that is being sent, and the answer that is being received. It can stop in between and go on later.
#[derive(Debug)]
struct Conversation {
    frame: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    /// When the worker has to have answered.
    deadline: Instant,
}

/// What has come of a conversation so far.
enum Said {
    All(Vec<u8>, Spent),
    NotYet,
    /// The worker closed the connection before its answer was complete.
    GoodBye,
}

impl Conversation {
    /// How long what comes before an answer is.
    const HEAD: usize = Spent::SIZE + 4;

    fn new(question: &[u8], wall: Duration) -> io::Result<Conversation> {
        let frame = [&length(question)?[..], question].concat();
        Ok(Conversation { frame, sent: 0, received: Vec::new(), deadline: Instant::now() + wall })
    }

    /// Sends what is left of the question. Returns whether that was possible in time.
    fn send(&mut self, socket: &mut UnixStream, until: Instant) -> io::Result<bool> {
        while self.sent < self.frame.len() {
            match socket.write(&self.frame[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    if !await_events(socket, PollFlags::OUT, until)? {
                        return Ok(false);
                    }
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(true)
    }

    fn receive(&mut self, socket: &mut UnixStream, until: Instant) -> io::Result<Said> {
        let mut buffer = [0; 16 << 10];
        while self.received.len() < self.needed()? {
            if !await_events(socket, PollFlags::IN, until)? {
                return Ok(Said::NotYet);
            }
            match socket.read(&mut buffer) {
                Ok(0) => return Ok(Said::GoodBye),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(cause) => return Err(cause),
            }
        }
        let spent = Spent::read(&self.received);
        self.received.truncate(self.needed()?);
        Ok(Said::All(self.received.split_off(Conversation::HEAD), spent))
    }

    /// How many bytes have to be received, as far as that is known.
    fn needed(&self) -> io::Result<usize> {
        let Some(length) = self.received.get(Spent::SIZE..).and_then(<[u8]>::first_chunk::<4>) else {
            return Ok(Conversation::HEAD);
        };
        match usize::try_from(u32::from_le_bytes(*length)) {
            Ok(length) if length <= LONGEST => Ok(Conversation::HEAD + length),
            Ok(_) | Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Whether the events came in time.
fn await_events(socket: &UnixStream, events: PollFlags, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, events)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Drop for Worker {
    /// It has nothing to clean up.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_hang_up(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn excess(status: ExitStatus, said: &[u8]) -> Option<Excess> {
    if status.success() {
        return None;
    }
    let of_cpu = [Signal::PROF.as_raw(), Signal::XCPU.as_raw()];
    match status.signal() {
        Some(signal) if of_cpu.contains(&signal) => Some(Excess::Cpu),
        Some(_) if says(said, "has overflowed its stack") => Some(Excess::Depth),
        Some(_) => Some(Excess::Memory),
        None => (says(said, "out of memory") || says(said, "allocat")).then_some(Excess::Memory),
    }
}

fn says(text: &[u8], words: &str) -> bool {
    text.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_took_survives_the_way_to_the_parent() {
        let spent = Spent { cpu: Duration::from_micros(1_234_567), memory_peak: 64 << 20 };
        assert_eq!(Spent::read(&spent.bytes()), spent);
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        assert!(length(&[0; 10]).is_ok());
        assert!(length(&vec![0; LONGEST + 1]).is_err());
    }
}
