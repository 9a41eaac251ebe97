//! Drops root privileges. A server that is started as root continues in an unprivileged process. The process
//! that was started stays root and becomes its parent: it forwards signals and output, and does three things on request.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use belljar_core::allowance::Workspaces;
use belljar_jail::message::{self, Configured};
use belljar_jail::privilege_drop::{ParentLine, ServerProcess, Split};
use belljar_native::privilege_drop::{Obstruction, PrivilegeDrop, Surroundings};
use belljar_server::Config;
use belljar_wire::{Code, Problem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, geteuid, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::socket::{Socket, SocketFile};
use super::{callers, notify};
use crate::configuration::Configuration;
use crate::problem;
use crate::settings::{Environment, Host, Settings};

/// How long the server may take to end after its last run.
const PATIENCE: Duration = Duration::from_secs(15);

/// Which process the server is.
pub(super) enum Home {
    /// The one that was started, with the privileges that it had. The file of its socket is its own to remove.
    Here(Option<SocketFile>),
    /// An unprivileged one, with a line to the root parent.
    Unprivileged(ParentLine),
}

/// What this process is from now on.
pub(super) enum Role {
    /// The server, which listens here.
    Server(Home, Socket),
    /// The root parent; the server has ended with this status.
    RootParent(ExitCode),
}

/// A request of the server to its root parent: one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParentRequest {
    /// Send the current configuration.
    Configuration = b'c' as isize,
    /// Tell systemd that the server is ready.
    Ready = b'r' as isize,
    /// Remove the file of the socket, and tell systemd that the server is stopping.
    Stopping = b's' as isize,
}

impl ParentRequest {
    const ALL: [ParentRequest; 3] =
        [ParentRequest::Configuration, ParentRequest::Ready, ParentRequest::Stopping];

    fn byte(self) -> u8 {
        self as u8
    }
}

impl Home {
    /// Logs whether the server runs as root.
    pub(super) fn tell(&self) {
        match self {
            Home::Here(_) if geteuid().is_root() => tracing::warn!("the server runs as root"),
            Home::Here(_) => {}
            Home::Unprivileged(_) => tracing::info!("the server has dropped root privileges"),
        }
    }

    /// Reads the current configuration.
    pub(super) fn configuration(
        &self,
        named: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Configuration, Problem> {
        match self {
            Home::Here(_) => Configuration::choose(named, environment),
            Home::Unprivileged(line) => ask_for_configuration(line),
        }
    }

    /// Whether this server has given up root's rights.
    pub(super) fn is_unprivileged(&self) -> bool {
        matches!(self, Home::Unprivileged(_))
    }

    /// Tells systemd the state of the server, which systemd accepts only from the process that it started; a server that
    /// stops has no socket any more, so that clients look for another one.
    pub(super) fn say(&self, environment: Environment<'_>, request: ParentRequest) {
        match self {
            Home::Here(file) => carry_out(environment, file.as_ref(), request),
            Home::Unprivileged(line) => {
                if let Err(cause) = rustix::io::write(&line.requests, &[request.byte()]) {
                    tracing::warn!(%cause, "cannot reach the parent process");
                }
            }
        }
    }
}

/// Drops root privileges, if this is root.
pub(super) fn drop_root(
    settings: &mut Settings,
    config: &Config,
    approvals: Option<&Path>,
    environment: Environment<'_>,
    choose: &dyn Fn() -> Result<Configuration, Problem>,
    mut socket: Socket,
) -> Result<Role, Problem> {
    if !geteuid().is_root() || settings.server.keep_root {
        let file = socket.file.take();
        return Ok(Role::Server(Home::Here(file), socket));
    }
    let prepared = PrivilegeDrop::prepare(&surroundings(&settings.host));
    if prepared.is_ok() {
        socket.can_be_guarded_unprivileged()?;
    }
    match prepared.and_then(|prepared| perform(prepared, &settings.host, config, approvals)) {
        Ok((Split::Server(line), prepared)) => {
            settings.host.found_runtimes = prepared.runtimes;
            settings.host.swept = prepared.swept;
            if let Some(file) = socket.file.take() {
                file.leave();
            }
            Ok(Role::Server(Home::Unprivileged(line), socket))
        }
        Ok((Split::RootParent(server), prepared)) => {
            let file = socket.file.take();
            drop(socket);
            let patience = config.drain + PATIENCE;
            let file = file.as_ref();
            let status = RootParent { server: &server, environment, choose, patience, file }.serve();
            drop(prepared);
            Ok(Role::RootParent(status))
        }
        Err(Obstruction::Needless) => {
            let file = socket.file.take();
            Ok(Role::Server(Home::Here(file), socket))
        }
        Err(Obstruction::Cannot(why)) => {
            let message = format!("cannot drop root privileges: {why}");
            let hint = "start the server as an ordinary user, or write keep-root = true in [server] to run it as root";
            Err(Problem::new(Code::Internal, message, hint))
        }
    }
}

fn perform(
    mut prepared: PrivilegeDrop,
    host: &Host,
    config: &Config,
    approvals: Option<&Path>,
) -> Result<(Split, PrivilegeDrop), Obstruction> {
    reach_docker(host, &mut prepared);
    if let Some(dir) = &host.wasm_dir {
        prepared.take_to_believe(&dir.join("wasm"));
    }
    // The server has the key of its ledger in memory. Nothing that it starts needs the file.
    if let Some(dir) = &host.state_dir {
        prepared.withhold(&dir.join(belljar_ledger::key::FILE));
    }
    if let Some(audit) = &config.audit {
        for name in belljar_ledger::FILES {
            prepared.take_to_write(&audit.dir, name)?;
        }
    }
    if let Some(dir) = approvals {
        for name in belljar_ledger::approvals::FILES {
            prepared.take_to_write(dir, name)?;
        }
    }
    for workspaces in callers(config).map(|allowance| &allowance.workspaces) {
        if let Workspaces::Beneath(roots) = workspaces {
            roots.iter().for_each(|root| prepared.take_along(root));
        }
    }
    Ok((prepared.perform()?, prepared))
}

fn surroundings(host: &Host) -> Surroundings {
    Surroundings {
        search_path: host.search_path.clone(),
        home: host.home.clone(),
        runtime_dir: host.runtime_dir.clone(),
        state_dir: host.state_dir.clone(),
        overrides: host.runtimes.clone(),
    }
}

/// Access to the socket of Docker amounts to root. So the server gets it only if the settings mention Docker, and only
/// through the group of the socket.
fn reach_docker(host: &Host, prepared: &mut PrivilegeDrop) {
    const GROUP_MAY_USE: u32 = 0o060;
    let Some(socket) = host.docker.socket().filter(|_| host.docker.is_wanted()) else { return };
    let Ok(found) = socket.metadata() else { return };
    if !found.file_type().is_socket() {
        return;
    }
    if found.mode() & GROUP_MAY_USE == GROUP_MAY_USE && found.gid() != 0 {
        prepared.rights.groups.push(found.gid());
    }
    if let Some(dir) = socket.parent() {
        prepared.take_along(dir);
    }
}

fn ask_for_configuration(line: &ParentLine) -> Result<Configuration, Problem> {
    let unheard = |cause: io::Error| {
        let message = format!("the parent process does not answer: {cause}");
        Problem::new(Code::Internal, message, "restart the server")
    };
    rustix::io::write(&line.requests, &[ParentRequest::Configuration.byte()])
        .map_err(|cause| unheard(cause.into()))?;
    let heard = message::receive(&line.answers).map_err(unheard)?;
    let (configured, beside) = heard.ok_or_else(|| unheard(io::ErrorKind::BrokenPipe.into()))?;
    match (configured, beside.into_iter().next()) {
        (Configured::File { path }, Some(file)) => {
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).map_err(unheard)?;
            Ok(Configuration { path: path.into(), text: Some(text) })
        }
        (Configured::Nothing { path }, _) => Ok(Configuration { path: path.into(), text: None }),
        (Configured::Unreadable { message, hint }, _) => {
            Err(Problem::new(Code::InvalidRequest, message, hint))
        }
        (Configured::File { .. }, None) => Err(unheard(io::ErrorKind::InvalidData.into())),
    }
}

fn carry_out(environment: Environment<'_>, file: Option<&SocketFile>, request: ParentRequest) {
    match request {
        ParentRequest::Ready => notify::tell(environment, "READY=1"),
        ParentRequest::Stopping => {
            if let Some(file) = file {
                file.remove();
            }
            notify::tell(environment, "STOPPING=1");
        }
        ParentRequest::Configuration => {}
    }
}

/// The process that stays behind as root. Whatever the server does, it waits only for the end of the server.
struct RootParent<'a> {
    server: &'a ServerProcess,
    environment: Environment<'a>,
    choose: &'a dyn Fn() -> Result<Configuration, Problem>,
    /// How long the server may take to stop.
    patience: Duration,
    /// The file of its socket, which it cannot remove.
    file: Option<&'a SocketFile>,
}

impl RootParent<'_> {
    /// Works until the server has ended.
    fn serve(&self) -> ExitCode {
        if let Err(cause) = self.attend() {
            let message = format!("cannot supervise the server: {cause}");
            problem::report(&Problem::new(Code::Internal, message, "restart the server"), false);
            let _ = pidfd_send_signal(&self.server.pidfd, Signal::KILL);
        }
        let ended = self.server.end().map(Ended::from_status);
        self.pass_on_output();
        match ended {
            Ok(Ended::Exited(code)) => ExitCode::from(code),
            Ok(Ended::Killed(signal)) => {
                let message = format!("the server was killed by signal {signal}");
                problem::report(
                    &Problem::new(Code::Internal, message, "see the server's log for the cause"),
                    false,
                );
                ExitCode::from(128_u8.saturating_add(signal))
            }
            Err(_) => ExitCode::FAILURE,
        }
    }

    fn attend(&self) -> io::Result<()> {
        let told = [(SIGTERM, Signal::TERM), (SIGINT, Signal::INT), (SIGHUP, Signal::HUP)];
        let told = told.map(|(number, signal)| Told::listen_for(number, signal));
        let told = told.into_iter().collect::<io::Result<Vec<_>>>()?;
        let (mut server, mut deadline) = (Connected { asks: true, writes: true }, None);
        loop {
            let Woken { ended, told: signals, requests, output } = self.wait(&told, server, deadline)?;
            if requests {
                server.asks = self.obey();
            }
            if output {
                server.writes = self.pass_on_output();
            }
            if ended {
                return Ok(());
            }
            for signal in signals {
                let _ = pidfd_send_signal(&self.server.pidfd, signal);
                if signal != Signal::HUP {
                    deadline.get_or_insert_with(|| Instant::now() + self.patience);
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let _ = pidfd_send_signal(&self.server.pidfd, Signal::KILL);
                deadline = None;
            }
        }
    }

    fn wait(&self, told: &[Told], server: Connected, deadline: Option<Instant>) -> io::Result<Woken> {
        let Connected { asks, writes } = server;
        let (requests, output) =
            (asks.then_some(&self.server.requests), writes.then_some(&self.server.output));
        let mut fds = vec![PollFd::new(&self.server.pidfd, PollFlags::IN)];
        fds.extend(told.iter().map(|told| PollFd::new(&told.heard, PollFlags::IN)));
        fds.extend(requests.into_iter().chain(output).map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()))?;
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = || ready.next().unwrap_or_default();
        let ended = next();
        let told = told.iter().filter(|_| next()).map(Told::signal).collect();
        Ok(Woken { ended, told, requests: asks && next(), output: writes && next() })
    }

    /// Answers the requests of the server. `false`: it has closed the pipe, or cannot be answered.
    fn obey(&self) -> bool {
        let mut said = [0; 16];
        let Ok(length @ 1..) = rustix::io::read(&self.server.requests, &mut said) else { return false };
        said[..length].iter().all(|byte| {
            match ParentRequest::ALL.into_iter().find(|request| request.byte() == *byte) {
                Some(ParentRequest::Configuration) => self.hand_over_configuration().is_ok(),
                Some(request @ (ParentRequest::Ready | ParentRequest::Stopping)) => {
                    carry_out(self.environment, self.file, request);
                    true
                }
                None => false,
            }
        })
    }

    fn hand_over_configuration(&self) -> io::Result<()> {
        let say = |configured: &Configured, beside: &[BorrowedFd<'_>]| {
            message::send_at_once(&self.server.answers, configured, beside)
        };
        match (self.choose)() {
            Ok(Configuration { path, text: Some(text) }) => {
                let mut file = File::from(memfd_create("configuration", MemfdFlags::CLOEXEC)?);
                file.write_all(text.as_bytes())?;
                file.rewind()?;
                say(&Configured::File { path: shown(&path.display()) }, &[file.as_fd()])
            }
            Ok(Configuration { path, text: None }) => {
                say(&Configured::Nothing { path: shown(&path.display()) }, &[])
            }
            Err(Problem { error, .. }) => {
                let (message, hint) = (shown(&error.message), shown(&error.hint));
                say(&Configured::Unreadable { message, hint }, &[])
            }
        }
    }

    /// Copies the output of the server to stderr. `false`: there will be no more.
    fn pass_on_output(&self) -> bool {
        let mut piece = [0; 4096];
        loop {
            match rustix::io::read(&self.server.output, &mut piece) {
                Ok(length @ 1..) => drop(io::stderr().write_all(&piece[..length])),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
                Ok(0) | Err(_) => return false,
            }
        }
    }
}

/// Which of its pipes the server has not closed.
#[derive(Clone, Copy)]
struct Connected {
    asks: bool,
    writes: bool,
}

/// What woke the root parent up.
struct Woken {
    ended: bool,
    told: Vec<Signal>,
    requests: bool,
    output: bool,
}

/// A signal that is forwarded.
struct Told {
    heard: UnixStream,
    signal: Signal,
}

impl Told {
    fn listen_for(number: i32, signal: Signal) -> io::Result<Told> {
        let (heard, telling) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(number, telling)?;
        heard.set_nonblocking(true)?;
        Ok(Told { heard, signal })
    }

    fn signal(&self) -> Signal {
        while (&self.heard).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        self.signal
    }
}

/// As much of it as fits into a message.
fn shown(text: &impl Display) -> String {
    text.to_string().chars().take(500).collect()
}

enum Ended {
    Exited(u8),
    Killed(u8),
}

impl Ended {
    /// As `waitpid` gives it.
    fn from_status(status: i32) -> Ended {
        let byte = |value: i32| u8::try_from(value & 0xff).unwrap_or(u8::MAX);
        match status & 0x7f {
            0 => Ended::Exited(byte(status >> 8)),
            signal => Ended::Killed(byte(signal)),
        }
    }
}
