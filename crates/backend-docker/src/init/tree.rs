//! The program of a run and everything that it starts: fed, read, counted, reaped and finally killed.

use std::io::{self, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::inside::SANDBOX;
use belljar_host::rations::Rations;
use belljar_host::sockets::BEYOND_LIMIT;
use belljar_jail::seccomp::Listener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus};

use super::confine::confined;
use super::counters::{Counters, Usage};
use super::{Line, Unbuffered};
use crate::frame::{End, LONGEST, Said, StartProgram, Told};

/// How often the counters are read.
const LOOK: Duration = Duration::from_millis(20);
/// A shorter piece of output is followed by a pause, so that a program that writes single bytes does not make a message of
/// each. The container pays for making messages, but the host pays for carrying them: 2 s of CPU time for each of its own.
const SMALL: usize = 4096;
const PAUSE: Duration = Duration::from_millis(2);
/// How long a runtime may take to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(20);

/// The program of a run, and its descendants.
pub(super) struct Tree<'a> {
    order: &'a StartProgram,
    leader: Option<Pid>,
    /// The write ends for the program, until it has them.
    ends: Option<(PipeWriter, PipeWriter)>,
    stdout: Outlet,
    stderr: Outlet,
    stdin: Feed,
    gate: Feed,
    /// Becomes readable when a child has died.
    deaths: UnixStream,
    heard: Vec<u8>,
    counters: Counters,
    /// Decides on some of their calls.
    listener: Option<Listener>,
    rations: Rations,
    before: Usage,
    cpu_limit: Option<Duration>,
    cpu_exhausted: bool,
    /// They held too much kernel memory that the memory limit does not bound.
    memory_exhausted: bool,
    killed: bool,
    looked: Instant,
    peak: u64,
}

/// A pipe out of the program.
struct Outlet {
    /// Gone at its end.
    pipe: Option<io::PipeReader>,
    /// When it is read again.
    pause: Option<Instant>,
}

/// A pipe into the program, and the data still to be written.
#[derive(Default)]
struct Feed {
    pipe: Option<OwnedFd>,
    waiting: Vec<u8>,
    complete: bool,
    /// There is no reader any more.
    broken: bool,
}

impl<'a> Tree<'a> {
    pub(super) fn new(order: &'a StartProgram, listener: Option<Listener>) -> io::Result<Tree<'a>> {
        let ((stdout, out), (stderr, err)) = (io::pipe()?, io::pipe()?);
        let (deaths, bell) = UnixStream::pair()?;
        deaths.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, bell)?;
        Ok(Tree {
            order,
            leader: None,
            ends: Some((out, err)),
            stdout: Outlet { pipe: Some(stdout), pause: None },
            stderr: Outlet { pipe: Some(stderr), pause: None },
            stdin: Feed::default(),
            gate: Feed::default(),
            deaths,
            heard: Vec::new(),
            counters: Counters::open(listener.is_some()),
            listener,
            rations: Rations::default(),
            before: Usage::default(),
            cpu_limit: None,
            cpu_exhausted: false,
            memory_exhausted: false,
            killed: false,
            looked: Instant::now(),
            peak: 0,
        })
    }

    /// Starts the program with a pipe for its code, and waits until it reads that.
    pub(super) fn park(&mut self, source: &str) -> io::Result<()> {
        let path = Path::new(SANDBOX).join(source);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o644))?;
        self.start_program()?;
        let began = Instant::now();
        loop {
            // It can be opened without blocking only when a process has it open for reading.
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(gate) => {
                    self.gate = Feed { pipe: Some(gate), ..Feed::default() };
                    return Ok(());
                }
                Err(Errno::NXIO) if began.elapsed() < BOOT_LIMIT && self.reap()?.is_none() => {}
                Err(error) => return Err(error.into()),
            }
            self.answer()?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts the run: writes the code into the pipe of a parked program, or starts the program.
    pub(super) fn start(&mut self, code: &[u8], cpu_ms: Option<u64>) -> io::Result<()> {
        self.before = self.counters.read()?;
        self.cpu_limit = cpu_ms.map(Duration::from_millis);
        if self.leader.is_none() {
            self.start_program()?;
        } else if let Some(leader) = self.leader {
            limit_cpu(leader, self.cpu_limit);
        }
        self.gate.waiting = code.to_vec();
        self.gate.complete = true;
        self.gate.pump();
        Ok(())
    }

    /// Follows it to its end. `None` if belljar has disconnected.
    pub(super) fn follow(&mut self, line: &mut Line) -> io::Result<Option<End>> {
        let status = loop {
            if let Some(status) = self.reap()? {
                break status;
            }
            if !self.wait(line)? {
                self.kill();
                return Ok(None);
            }
        };
        self.look()?;
        self.kill();
        self.reap_all()?;
        self.drain(line)?;
        self.end(status).map(Some)
    }

    fn start_program(&mut self) -> io::Result<()> {
        let words = &self.order.command;
        let (out, err) = self.ends.take().ok_or(io::ErrorKind::BrokenPipe)?;
        can_be_run(words.first().ok_or(io::ErrorKind::InvalidInput)?)?;
        let mut command = confined(words);
        command.env_clear().process_group(0).current_dir(&self.order.cwd).stdout(out).stderr(err);
        command.envs(self.order.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped());
        let mut child = command.spawn()?;
        self.counters.await_program(child.id());
        let leader = Pid::from_child(&child);
        limit_cpu(leader, self.cpu_limit);
        self.leader = Some(leader);
        if let Some(pipe) = child.stdin.take().map(OwnedFd::from) {
            rustix::io::ioctl_fionbio(&pipe, true)?;
            self.stdin.pipe = Some(pipe);
            self.stdin.pump();
        }
        Ok(())
    }

    /// Waits for an event, and handles it. False if belljar has disconnected.
    fn wait(&mut self, line: &mut Line) -> io::Result<bool> {
        let ready = self.poll(line)?;
        if ready.deaths {
            while matches!((&self.deaths).read(&mut [0; 64]), Ok(1..)) {}
        }
        if ready.stdout {
            self.stdout.pass_on(Said::Stdout, line)?;
        }
        if ready.stderr {
            self.stderr.pass_on(Said::Stderr, line)?;
        }
        let taken = self.stdin.pump();
        if taken > 0 {
            line.say(&Said::Taken(taken))?;
        }
        self.gate.pump();
        self.answer()?;
        if self.looked.elapsed() >= LOOK {
            self.look()?;
        }
        if ready.line { self.hear(line) } else { Ok(true) }
    }

    /// Decides on the calls that wait. Those for locks and connections wait while these are counted, so that their number is
    /// bounded at any time, however little this process gets of the CPU.
    fn answer(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        self.rations.answer(listener, || self.counters.netlink())?;
        while let Some(count) = self.rations.next_count() {
            if self.counters.count(count)? > BEYOND_LIMIT {
                self.memory_exhausted |= !self.killed;
                self.kill();
                return Ok(());
            }
            self.rations.answer(listener, || self.counters.netlink())?;
        }
        Ok(())
    }

    fn poll(&self, line: &Line) -> io::Result<Ready> {
        let mut watched = vec![
            PollFd::from_borrowed_fd(line.from.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.deaths.as_fd(), PollFlags::IN),
        ];
        let now = Instant::now();
        let stdout = watch(&mut watched, self.stdout.awaited(now), PollFlags::IN);
        let stderr = watch(&mut watched, self.stderr.awaited(now), PollFlags::IN);
        let listener = self.listener.as_ref().filter(|_| !self.rations.are_used_up());
        watch(&mut watched, listener, PollFlags::IN);
        for feed in [&self.stdin, &self.gate] {
            let pipe = feed.pipe.as_ref().filter(|_| !feed.waiting.is_empty());
            watch(&mut watched, pipe, PollFlags::OUT);
        }
        let pauses = [&self.stdout, &self.stderr].map(|outlet| outlet.pause_left(now));
        let timeout = pauses.into_iter().flatten().fold(LOOK, Duration::min);
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |index: Option<usize>| index.is_some_and(|at| !watched[at].revents().is_empty());
        Ok(Ready {
            line: is_ready(Some(0)),
            deaths: is_ready(Some(1)),
            stdout: is_ready(stdout),
            stderr: is_ready(stderr),
        })
    }

    fn hear(&mut self, line: &mut Line) -> io::Result<bool> {
        let mut piece = vec![0; LONGEST];
        let count = Unbuffered(&line.from).read(&mut piece)?;
        if count == 0 {
            return Ok(false);
        }
        self.heard.extend_from_slice(&piece[..count]);
        while let Some(told) = Told::take(&mut self.heard)? {
            match told {
                Told::Stdin(bytes) => self.stdin.waiting.extend(bytes),
                Told::StdinEnd => self.stdin.complete = true,
                Told::Kill => self.kill(),
                Told::StartProgram(_)
                | Told::Supply(_)
                | Told::Content(_)
                | Told::Question(_)
                | Told::Look => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        let taken = self.stdin.pump();
        if taken > 0 {
            line.say(&Said::Taken(taken))?;
        }
        Ok(true)
    }

    /// Enforces what the kernel only counts: the CPU time of all processes, the kernel memory that the memory limit
    /// does not bound, and that an OOM kill of one process ends them all. What cannot be counted must not go on.
    fn look(&mut self) -> io::Result<()> {
        self.looked = Instant::now();
        let usage = self.counters.read().inspect_err(|_| self.kill())?;
        self.peak = self.peak.max(usage.memory_peak);
        let cpu = usage.cpu.saturating_sub(self.before.cpu);
        if !self.killed && self.cpu_limit.is_some_and(|limit| cpu > limit) {
            self.cpu_exhausted = true;
            self.kill();
        }
        if !self.killed && usage.oom_kills > self.before.oom_kills {
            self.kill();
        }
        if !self.killed && usage.beyond_limit > BEYOND_LIMIT {
            self.memory_exhausted = true;
            self.kill();
        }
        Ok(())
    }

    /// Every process except this one: the kernel does not let it kill itself this way.
    fn kill(&mut self) {
        self.killed = true;
        let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
    }

    /// Reaps whatever has died. Returns how the program ended, if it is among them.
    fn reap(&mut self) -> io::Result<Option<WaitStatus>> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.leader => {
                    self.leader = None;
                    return Ok(Some(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(Errno::CHILD) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn reap_all(&mut self) -> io::Result<()> {
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::CHILD) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Forwards what is left in the pipes, whose other ends are all closed.
    fn drain(&mut self, line: &mut Line) -> io::Result<()> {
        self.ends = None;
        while self.stdout.pipe.is_some() {
            self.stdout.pass_on(Said::Stdout, line)?;
        }
        while self.stderr.pipe.is_some() {
            self.stderr.pass_on(Said::Stderr, line)?;
        }
        Ok(())
    }

    fn end(&self, status: WaitStatus) -> io::Result<End> {
        let usage = self.counters.read()?;
        let cpu = usage.cpu.saturating_sub(self.before.cpu);
        let spent = self.cpu_limit.is_some_and(|limit| cpu >= limit);
        let signal = status.terminating_signal().and_then(|signal| u8::try_from(signal).ok());
        Ok(End {
            code: status.exit_status().and_then(|code| u8::try_from(code).ok()),
            signal,
            cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
            memory_peak: self.peak.max(usage.memory_peak),
            out_of_memory: self.memory_exhausted || usage.oom_kills > self.before.oom_kills,
            cpu_exhausted: self.cpu_exhausted || (spent && signal.is_some()),
        })
    }
}

/// Adds a descriptor to the poll set, if there is one. Returns its index.
fn watch<'a>(watched: &mut Vec<PollFd<'a>>, what: Option<&'a impl AsFd>, flags: PollFlags) -> Option<usize> {
    watched.push(PollFd::new(what?, flags));
    Some(watched.len() - 1)
}

/// What can be read without blocking.
#[allow(clippy::struct_excessive_bools, reason = "one for each thing that is waited for")]
struct Ready {
    line: bool,
    deaths: bool,
    stdout: bool,
    stderr: bool,
}

impl Outlet {
    /// The pipe, if it is to be read now.
    fn awaited(&self, now: Instant) -> Option<&io::PipeReader> {
        self.pipe.as_ref().filter(|_| self.pause_left(now).is_none())
    }

    fn pause_left(&self, now: Instant) -> Option<Duration> {
        let left = self.pause?.saturating_duration_since(now);
        (self.pipe.is_some() && !left.is_zero()).then_some(left)
    }

    /// Reads what is available and forwards it.
    fn pass_on(&mut self, said: impl Fn(Vec<u8>) -> Said, line: &mut Line) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let mut piece = vec![0; LONGEST];
        match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut *piece)) {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(count) => {
                piece.truncate(count);
                self.pause = (count < SMALL).then(|| Instant::now() + PAUSE);
                line.say(&said(piece))?;
            }
        }
        Ok(())
    }
}

impl Feed {
    /// Writes what fits. Returns how much of the pending data is gone, including what will never be read.
    fn pump(&mut self) -> u32 {
        let before = self.waiting.len();
        while let Some(pipe) = self.pipe.as_ref().filter(|_| !self.waiting.is_empty()) {
            match rustix::io::retry_on_intr(|| rustix::io::write(pipe, &self.waiting)) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(_) => (self.pipe, self.broken) = (None, true),
            }
        }
        if self.broken {
            self.waiting.clear();
        }
        if self.complete && self.waiting.is_empty() {
            self.pipe = None;
        }
        u32::try_from(before - self.waiting.len()).unwrap_or(u32::MAX)
    }
}

/// Checked in advance: the process that becomes the program could report it only as the program.
fn can_be_run(program: &str) -> io::Result<()> {
    let found = std::fs::metadata(program)?;
    let runs = found.is_file() && found.permissions().mode() & 0o111 != 0;
    if runs { Ok(()) } else { Err(Errno::ACCESS.into()) }
}

/// For each process, in whole seconds: a second line behind the check of all processes.
fn limit_cpu(process: Pid, limit: Option<Duration>) {
    if let Some(limit) = limit {
        let seconds = Some(limit.as_secs() + 2);
        let _ = rustix::process::prlimit(
            Some(process),
            Resource::Cpu,
            Rlimit { current: seconds, maximum: seconds },
        );
    }
}
