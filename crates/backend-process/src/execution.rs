//! One program without a box, from its start to its end.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_core::backend::{BackendError, BoxFuture, Ending, Event, Execution, Finished, Stream};
use belljar_core::limits::{BoxLimits, Bytes};
use belljar_core::outcome::{CollectedFile, Start};
use belljar_core::path::BoxPath;
use belljar_core::request::Glob;
use belljar_host::collect::{self, Wanted};
use belljar_host::reexec::{self, Reexecuted};
use belljar_jail::codec;
use belljar_jail::message::{self, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe::Receiver;

use crate::order::{Said, Stop, SupervisorOrder};
use crate::scratch::Scratch;
use crate::supervisor::SUPERVISOR;

/// The most output that is read at once.
const BUFFER: usize = 64 * 1024;
/// How long a program may take to be started.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a supervisor may be silent before it is sent SIGCONT, in case it was stopped.
const SILENCE: Duration = Duration::from_millis(200);
/// How long a pipe may be silent if its last writer is out of reach.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long to wait for a supervisor to remove what a run has left. A very large directory takes longer, and the
/// supervisor finishes alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an execution needs to know about the request.
pub(crate) struct Terms {
    pub(crate) runtime: String,
    pub(crate) limits: BoxLimits,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) collect: Vec<Glob>,
    /// The part of the run's directory from which they are collected.
    pub(crate) collect_from: &'static str,
    /// The most bytes of collected files.
    pub(crate) collected: Bytes,
    pub(crate) source: BoxPath,
}

/// A program that runs under a supervisor.
pub(crate) struct Supervised {
    supervisor: Supervisor,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    buffer: Vec<u8>,
    terms: Terms,
    /// The program, which leads its own process group.
    main: Option<Pid>,
    ended: Option<Ended>,
    /// Whether the supervisor died before it could report how the program ended.
    abandoned: bool,
    /// Dropped after the supervisor, in case that was killed.
    scratch: Scratch,
}

#[derive(Clone, Copy)]
struct Ended {
    status: i32,
    stop: Stop,
    cpu: Duration,
    memory_peak: u64,
    /// Whether the reason has been written to stderr.
    told: bool,
}

/// The result of a run whose supervisor was killed: the kernel kills the program.
const UNKNOWN_END: Ended =
    Ended { status: 9, stop: Stop::None, cpu: Duration::ZERO, memory_peak: 0, told: false };

impl Supervised {
    /// Starts the program.
    pub(crate) async fn begin(
        order: &SupervisorOrder,
        scratch: Scratch,
        stdin: OwnedFd,
        terms: Terms,
    ) -> Result<Supervised, BackendError> {
        let (stdout, stdout_end) = pipe().map_err(setup("make a pipe for stdout"))?;
        let (stderr, stderr_end) = pipe().map_err(setup("make a pipe for stderr"))?;
        let supervisor = Supervisor::start().map_err(setup("start the supervisor"))?;
        supervisor
            .order(order, [stdin, stdout_end, stderr_end])
            .map_err(setup("send the program to the supervisor"))?;
        let (stdout, stderr, buffer) = (Some(stdout), Some(stderr), Vec::with_capacity(BUFFER));
        let (main, ended, abandoned) = (None, None, false);
        let mut running =
            Supervised { supervisor, stdout, stderr, buffer, terms, main, ended, abandoned, scratch };
        match tokio::time::timeout(START_LIMIT, running.hear_start()).await {
            Ok(started) => started.map(|()| running),
            Err(_) => Err(setup("start the program: it took too long")(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn hear_start(&mut self) -> Result<(), BackendError> {
        match self.supervisor.hear().await.map_err(setup("receive the supervisor's report"))? {
            Some(Said::Started { main }) => {
                self.main = Pid::from_raw(main);
                Ok(())
            }
            Some(Said::Failed { doing, errno }) => Err(failure(doing, errno)),
            Some(Said::Ended { .. }) | None => {
                Err(setup("start the program: its supervisor died")(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    async fn happens(&mut self) -> Result<News, BackendError> {
        loop {
            if let (Some(ended), None, None) = (&mut self.ended, &self.stdout, &self.stderr) {
                let reason = (ended.stop == Stop::Pids && !ended.told).then_some(self.terms.limits.pids);
                ended.told = true;
                return Ok(reason.map_or(News::Ended, |pids| self.note(pids)));
            }
            let happened = tokio::select! {
                () = readable(self.stdout.as_ref()) => Happened::Readable(Stream::Stdout),
                () = readable(self.stderr.as_ref()) => Happened::Readable(Stream::Stderr),
                () = tokio::time::sleep(LAST_WORDS), if self.abandoned => Happened::Silence,
                said = self.supervisor.hear(), if self.ended.is_none() => {
                    Happened::Said(said.map_err(setup("receive the supervisor's report"))?)
                }
            };
            match happened {
                Happened::Readable(stream) => {
                    if let Some(length) = self.read(stream) {
                        return Ok(News::Output(stream, length));
                    }
                }
                Happened::Said(Some(Said::Failed { doing, errno })) => return Err(failure(doing, errno)),
                Happened::Said(Some(Said::Started { .. })) => {}
                Happened::Said(Some(Said::Ended { status, stop, cpu_micros, memory_peak })) => {
                    let cpu = Duration::from_micros(cpu_micros);
                    self.ended = Some(Ended { status, stop, cpu, memory_peak, told: false });
                }
                Happened::Said(None) => self.abandon(),
                Happened::Silence => (self.stdout, self.stderr) = (None, None),
            }
        }
    }

    /// The supervisor was killed, and the kernel has killed the program. Its process group can still be found;
    /// processes that have left it are out of reach, and must not delay the end of the output.
    fn abandon(&mut self) {
        if let Some(group) = self.main {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.ended = Some(UNKNOWN_END);
        self.abandoned = true;
    }

    /// There is no status for too many processes, so this line explains the signal.
    fn note(&mut self, pids: u32) -> News {
        self.buffer.clear();
        let text = format!("Process limit exceeded: more than {pids} processes and threads\n");
        self.buffer.extend_from_slice(text.as_bytes());
        News::Output(Stream::Stderr, self.buffer.len())
    }

    /// Reads what is available; `None` if that is nothing, or the end of the stream.
    fn read(&mut self, stream: Stream) -> Option<usize> {
        self.buffer.clear();
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        match pipe.as_ref()?.try_read_buf(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(0) | Err(_) => {
                *pipe = None;
                None
            }
            Ok(length) => Some(length),
        }
    }

    fn ending(&self, ended: &Ended) -> Ending {
        let signal = u8::try_from(ended.status & 0x7f).unwrap_or_default();
        let spent = self.terms.cpu_time.is_some_and(|limit| ended.cpu >= limit);
        match (ended.stop, signal) {
            (Stop::Memory, _) => Ending::OutOfMemory,
            (Stop::CpuTime, _) => Ending::CpuTimeExhausted,
            (Stop::None, 1..) if spent => Ending::CpuTimeExhausted,
            (Stop::None | Stop::Pids, 0) => {
                Ending::Exited(u8::try_from((ended.status >> 8) & 0xff).unwrap_or_default())
            }
            (Stop::None | Stop::Pids, signal) => Ending::Signaled(signal),
        }
    }

    fn collect(&self) -> (Vec<CollectedFile>, usize) {
        if self.terms.collect.is_empty() {
            return (Vec::new(), 0);
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(dir) =
            rustix::fs::open(self.scratch.root().join(self.terms.collect_from), flags, Mode::empty())
        else {
            return (Vec::new(), 0);
        };
        let wanted = Wanted {
            patterns: &self.terms.collect,
            source: self.terms.source.as_str(),
            hidden: None,
            bytes: self.terms.collected.get(),
            names: self.terms.limits.max_files(),
        };
        collect::collect(&dir, &wanted)
    }

    fn close(mut self) -> Finished {
        let ended = self.ended.unwrap_or(UNKNOWN_END);
        let (ending, (files, left_out)) = (self.ending(&ended), self.collect());
        self.supervisor.dismiss();
        Finished {
            ending,
            cpu: ended.cpu,
            memory_peak: ended.memory_peak,
            files,
            left_out,
            changes: None,
            network: None,
        }
    }
}

impl Execution for Supervised {
    fn start(&self) -> Start {
        Start::Cold
    }

    fn runtime(&self) -> &str {
        &self.terms.runtime
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async {
            Ok(match self.happens().await? {
                News::Output(stream, length) => Event::Output(stream, &self.buffer[..length]),
                News::Ended => Event::Ended,
            })
        })
    }

    fn kill(&mut self) {
        self.supervisor.kill_tree();
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>> {
        Box::pin(async {
            let closing = tokio::task::spawn_blocking(move || self.close());
            closing.await.map_err(|fault| setup("finish the run")(io::Error::other(fault)))
        })
    }
}

/// An event whose output is still in the buffer, with its length.
enum News {
    Output(Stream, usize),
    Ended,
}

enum Happened {
    Readable(Stream),
    Said(Option<Said>),
    Silence,
}

/// The caller's side of a supervisor. Dropping it ends the run.
struct Supervisor {
    pidfd: OwnedFd,
    /// `None` once it is closed.
    socket: Option<UnixDatagram>,
}

impl Supervisor {
    /// Starts this same binary again: one thread, no environment, none of our memory.
    fn start() -> io::Result<Supervisor> {
        let Reexecuted { pidfd, socket, .. } = reexec::start_as(SUPERVISOR)?;
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Supervisor { pidfd, socket: Some(UnixDatagram::from_std(socket)?) })
    }

    fn order(&self, order: &SupervisorOrder, streams: [OwnedFd; 3]) -> io::Result<()> {
        let bytes = codec::encode(order);
        let mut payload = File::from(rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?);
        payload.write_all(&bytes)?;
        payload.rewind()?;
        let request = Request::Make { plan_offset: 0, plan_length: bytes.len() as u64 };
        let [stdin, stdout, stderr] = &streams;
        let beside = [payload.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        message::send(self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?, &request, &beside)
    }

    /// The next message; `None` if it has died.
    async fn hear(&self) -> io::Result<Option<Said>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        loop {
            match tokio::time::timeout(SILENCE, socket.readable()).await {
                Ok(readable) => readable?,
                Err(_) => self.wake(),
            }
            let heard = socket.try_io(Interest::READABLE, || message::receive(socket));
            match heard {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Ok(other?.map(|(said, _)| said)),
            }
        }
    }

    fn kill_tree(&self) {
        if let Some(socket) = &self.socket {
            let _ = message::send(socket, &Request::Kill, &[]);
        }
        self.wake();
    }

    /// The code may have stopped it: both have the same user.
    fn wake(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::CONT);
    }

    /// Disconnects, and waits until it is gone, and with it the processes and the directory. If that takes long, it
    /// finishes alone.
    fn dismiss(&mut self) {
        self.socket = None;
        self.wake();
        if self.is_gone_within(PATIENCE) {
            return;
        }
        if let Ok(pidfd) = self.pidfd.try_clone() {
            let _ = std::thread::Builder::new().stack_size(64 * 1024).spawn(move || {
                let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            });
        }
    }

    fn is_gone_within(&self, patience: Duration) -> bool {
        if let Ok(patience) = Timespec::try_from(patience) {
            let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&patience));
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // Nothing to wait for: it has been waited for already.
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.socket.is_some() {
            self.dismiss();
        }
    }
}

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}

/// A step in this process that failed.
pub(crate) fn setup(step: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Setup {
        step: step.to_owned(),
        hint:
            "check the limits on open files and processes (ulimit -n, ulimit -u) and the free space in TMPDIR"
                .into(),
        source,
    }
}

/// A step in the supervisor that failed.
fn failure(doing: String, errno: i32) -> BackendError {
    let source = io::Error::from_raw_os_error(errno);
    let hint = if source.kind() == io::ErrorKind::PermissionDenied {
        "set TMPDIR to a directory in which programs may be executed"
    } else {
        "`belljar languages` shows what can run here"
    };
    BackendError::Setup { step: doing, hint: hint.to_owned(), source }
}
