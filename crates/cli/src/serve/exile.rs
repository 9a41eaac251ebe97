//! Where the server lives: with what it was started with, or, if that was root, in exile, without any of root's rights.
//! What stays behind then is the steward, which passes on what it is told and does two things that the server asks it for.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use belljar_core::allowance::Workspaces;
use belljar_jail::exile::{Departure, Exiled};
use belljar_jail::message::{self, Configured, Plea};
use belljar_native::exile::{Passage, Surroundings};
use belljar_server::Config;
use belljar_wire::{Code, Problem};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, geteuid, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{callers, notify};
use crate::problem;
use crate::settings::{Configuration, Environment, Host, Settings};

/// Where the server lives.
pub(super) enum Home {
    /// Where it was started, with the rights that it was started with. If these are root's and were not to be, why.
    Here(Option<String>),
    /// In exile, with a line to its steward.
    Exile(OwnedFd),
}

impl Home {
    /// What an operator should know of it.
    pub(super) fn tell(&self) {
        match self {
            Home::Here(None) => {}
            Home::Here(Some(why)) => tracing::warn!(why, "the server keeps root's rights"),
            Home::Exile(_) => tracing::info!("the server has left root's rights behind"),
        }
    }

    /// The configuration that there is now.
    pub(super) fn configuration(
        &self,
        named: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Configuration, Problem> {
        match self {
            Home::Here(_) => Configuration::choose(named, environment),
            Home::Exile(line) => ask_for_configuration(line),
        }
    }

    /// Has systemd told how the server is: it listens to the process that it started.
    pub(super) fn say(&self, environment: Environment<'_>, plea: Plea) {
        match self {
            Home::Here(_) => tell_systemd(environment, plea),
            Home::Exile(line) => {
                if let Err(cause) = message::send(line, &plea, &[]) {
                    tracing::warn!(%cause, "the steward does not listen");
                }
            }
        }
    }
}

/// What becomes of this process.
pub(super) enum Fate {
    /// It is the server, which listens here.
    Server(Home, TcpListener),
    /// The server has come and gone.
    Steward(ExitCode),
}

/// Leaves root's rights behind, if this is root and it can be done.
pub(super) fn depart(
    settings: &mut Settings,
    config: &Config,
    environment: Environment<'_>,
    choose: &dyn Fn() -> Result<Configuration, Problem>,
    listener: TcpListener,
) -> Fate {
    if !geteuid().is_root() || settings.server.keep_root {
        return Fate::Server(Home::Here(None), listener);
    }
    match travel(&settings.host, config) {
        Ok((Departure::Left(line), passage)) => {
            // The first of a language counts.
            let others = std::mem::take(&mut settings.host.runtimes);
            settings.host.runtimes = passage.runtimes.into_iter().chain(others).collect();
            settings.host.state_dir = passage.state_dir;
            Fate::Server(Home::Exile(line), listener)
        }
        Ok((Departure::Stayed(server), passage)) => {
            drop(listener);
            let status = Steward { server: &server, environment, choose }.serve();
            drop(passage);
            Fate::Steward(status)
        }
        Err(why) => Fate::Server(Home::Here(Some(why)), listener),
    }
}

fn travel(host: &Host, config: &Config) -> Result<(Departure, Passage), String> {
    let mut passage = Passage::prepare(&surroundings(host))?;
    reach_docker(host, &mut passage);
    if let Some(dir) = &host.wasm_dir {
        passage.take_to_believe(&dir.join("wasm"));
    }
    for workspaces in callers(config).map(|allowance| &allowance.workspaces) {
        if let Workspaces::Beneath(roots) = workspaces {
            roots.iter().for_each(|root| passage.take_along(root));
        }
    }
    Ok((passage.leave()?, passage))
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

/// Docker obeys whoever reaches its socket, as root. So the server reaches it only where somebody said that it is to use it.
fn reach_docker(host: &Host, passage: &mut Passage) {
    let Some(socket) = host.docker.is_wanted().then(|| host.docker.socket()) else { return };
    if let Ok(found) = socket.metadata() {
        passage.terms.groups.push(found.gid());
    }
    if let Some(dir) = socket.parent() {
        passage.take_along(dir);
    }
}

fn ask_for_configuration(line: &OwnedFd) -> Result<Configuration, Problem> {
    let unheard = |cause: io::Error| {
        let message = format!("the steward does not answer: {cause}");
        Problem::new(Code::Internal, message, "start the server anew")
    };
    message::send(line, &Plea::Configuration, &[]).map_err(unheard)?;
    let heard = message::receive(line).map_err(unheard)?;
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

fn tell_systemd(environment: Environment<'_>, plea: Plea) {
    match plea {
        Plea::Ready => notify::tell(environment, "READY=1"),
        Plea::Stopping => notify::tell(environment, "STOPPING=1"),
        Plea::Configuration => {}
    }
}

/// Who stays behind as root.
struct Steward<'a> {
    server: &'a Exiled,
    environment: Environment<'a>,
    choose: &'a dyn Fn() -> Result<Configuration, Problem>,
}

impl Steward<'_> {
    /// Until the server is gone.
    fn serve(&self) -> ExitCode {
        if let Err(cause) = self.attend() {
            let message = format!("cannot look after the server: {cause}");
            problem::report(&Problem::new(Code::Internal, message, "start it anew"), false);
            let _ = pidfd_send_signal(&self.server.pidfd, Signal::KILL);
        }
        match self.server.end().map(ended) {
            Ok(Ended::Exited(code)) => ExitCode::from(code),
            Ok(Ended::Killed(signal)) => {
                let message = format!("the server was killed by signal {signal}");
                problem::report(&Problem::new(Code::Internal, message, "its log may tell why"), false);
                ExitCode::from(128_u8.saturating_add(signal))
            }
            Err(_) => ExitCode::FAILURE,
        }
    }

    fn attend(&self) -> io::Result<()> {
        let signals = [(SIGTERM, Signal::TERM), (SIGINT, Signal::INT), (SIGHUP, Signal::HUP)];
        let mut heard = Vec::with_capacity(signals.len());
        for (number, signal) in signals {
            let (ours, theirs) = UnixStream::pair()?;
            signal_hook::low_level::pipe::register(number, theirs)?;
            ours.set_nonblocking(true)?;
            heard.push((ours, signal));
        }
        let mut on_the_line = true;
        loop {
            let mut fds = vec![PollFd::new(&self.server.pidfd, PollFlags::IN)];
            fds.extend(heard.iter().map(|(stream, _)| PollFd::new(stream, PollFlags::IN)));
            if on_the_line {
                fds.push(PollFd::new(&self.server.line, PollFlags::IN));
            }
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            for ((stream, signal), _) in heard.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                while (&*stream).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
                let _ = pidfd_send_signal(&self.server.pidfd, *signal);
            }
            if on_the_line && ready[heard.len() + 1] {
                on_the_line = self.obey();
            }
        }
    }

    /// Does what the server asks for. `false`: it has hung up.
    fn obey(&self) -> bool {
        match message::receive(&self.server.line) {
            Ok(Some((Plea::Configuration, _))) => self.hand_over_configuration().is_ok(),
            Ok(Some((plea @ (Plea::Ready | Plea::Stopping), _))) => {
                tell_systemd(self.environment, plea);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    fn hand_over_configuration(&self) -> io::Result<()> {
        let line = &self.server.line;
        match (self.choose)() {
            Ok(Configuration { path, text: Some(text) }) => {
                let mut file = File::from(memfd_create("configuration", MemfdFlags::CLOEXEC)?);
                file.write_all(text.as_bytes())?;
                file.rewind()?;
                message::send(line, &Configured::File { path: shown(&path.display()) }, &[file.as_fd()])
            }
            Ok(Configuration { path, text: None }) => {
                message::send(line, &Configured::Nothing { path: shown(&path.display()) }, &[])
            }
            Err(Problem { error, .. }) => {
                let (message, hint) = (shown(&error.message), shown(&error.hint));
                message::send(line, &Configured::Unreadable { message, hint }, &[])
            }
        }
    }
}

/// So much of it as goes into a message.
fn shown(text: &impl Display) -> String {
    text.to_string().chars().take(500).collect()
}

enum Ended {
    Exited(u8),
    Killed(u8),
}

/// A status as `waitpid` gives it.
fn ended(status: i32) -> Ended {
    let byte = |value: i32| u8::try_from(value & 0xff).unwrap_or(u8::MAX);
    match status & 0x7f {
        0 => Ended::Exited(byte(status >> 8)),
        signal => Ended::Killed(byte(signal)),
    }
}
