//! The gateway as a process: how it is started, told what to do, and asked for its report.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use belljar_core::egress::{NetworkEvent, Reason};
use belljar_core::outcome::{DeniedHost, NetworkUse};
use belljar_host::reexec::{self, Reexecuted};
use belljar_jail::{HelperLimits, confine_gateway, message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::gateway::Gateway;
use crate::order::{self, MAX_REPORT, Order};
use crate::routes::Routes;
use crate::vault::{Authority, Vault};

/// The name under which the binary starts itself again as a gateway.
pub const GATEWAY: &str = "belljar-gateway";

/// What a gateway may use: buffers for as many connections as a box can have, and a report.
const LIMITS: HelperLimits = HelperLimits { memory: 1 << 30, cpu: Duration::MAX, file_size: MAX_REPORT };
/// How long a gateway may take for its report, and to be loaded and make a certificate.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
const BEGINNING: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// The only words of the conversation, besides events, which the gateway tells by itself.
const ORDER: &str = "order";
const REPORT: &str = "report";
const CERTIFY: &str = "certify";
/// The most events that are read before the report. The socket holds fewer.
const MAX_UNREAD: usize = 1024;

/// A gateway, seen from the process that started it. Dropping it ends it, and the network of its box with it.
#[derive(Debug)]
pub struct GatewayProcess {
    process: Reexecuted,
    report: File,
    connected: bool,
}

impl GatewayProcess {
    /// Starts it. It waits for its order.
    ///
    /// # Errors
    /// The system's.
    pub fn start() -> io::Result<GatewayProcess> {
        let report = File::from(rustix::fs::memfd_create(GATEWAY, MemfdFlags::CLOEXEC)?);
        Ok(GatewayProcess { process: reexec::start_as(GATEWAY)?, report, connected: false })
    }

    /// Has it become a certificate authority, for the secrets in its order. Returns the certificate, as PEM, that the box
    /// is to trust. Its key never leaves the gateway.
    ///
    /// # Errors
    /// It is gone, it was built without secrets, or the system's.
    pub fn certify(&mut self) -> io::Result<String> {
        message::send(&self.process.socket, &CERTIFY.to_owned(), &[])?;
        self.wait(&BEGINNING)?;
        match message::receive::<String>(&self.process.socket)? {
            Some((certificate, _)) => Ok(certificate),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Gives it the far end of a box's uplink.
    ///
    /// # Errors
    /// It is gone, or the system's.
    pub fn connect(&mut self, order: &Order, uplink: &OwnedFd) -> io::Result<()> {
        let mut text = File::from(rustix::fs::memfd_create(ORDER, MemfdFlags::CLOEXEC)?);
        text.write_all(order.to_text().as_bytes())?;
        text.rewind()?;
        let beside = [text.as_fd(), uplink.as_fd(), self.report.as_fd()];
        message::send(&self.process.socket, &ORDER.to_owned(), &beside)?;
        self.connected = true;
        Ok(())
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Another handle on the socket between the two, to wait for events.
    ///
    /// # Errors
    /// The system's.
    pub fn share_socket(&self) -> io::Result<OwnedFd> {
        self.process.socket.try_clone()
    }

    /// An event that has been told, if there is one. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; anything else if there will be no more.
    pub fn hear(&self) -> io::Result<Option<NetworkEvent>> {
        match message::receive_at_once::<String>(&self.process.socket)? {
            Some((line, _)) => Ok(order::read_event(&line)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Waits for an answer.
    fn wait(&self, patience: &Timespec) -> io::Result<()> {
        let mut answer = [PollFd::new(&self.process.socket, PollFlags::IN)];
        match rustix::io::retry_on_intr(|| poll(&mut answer, Some(patience)))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Asks what the box did with its network, and ends it. Also returns the events that nobody has heard.
    #[must_use]
    pub fn finish(mut self) -> (NetworkUse, Vec<NetworkEvent>) {
        let mut events = Vec::new();
        if !self.connected {
            return (NetworkUse::default(), events);
        }
        match self.ask(&mut events) {
            Ok(used) => (used, events),
            Err(_) => (NetworkUse { denied: vec![lost()], ..NetworkUse::default() }, events),
        }
    }

    fn ask(&mut self, events: &mut Vec<NetworkEvent>) -> io::Result<NetworkUse> {
        message::send_at_once(&self.process.socket, &REPORT.to_owned(), &[])?;
        loop {
            self.wait(&PATIENCE)?;
            match message::receive::<String>(&self.process.socket)? {
                Some((word, _)) if word == REPORT => break,
                Some((line, _)) if events.len() < MAX_UNREAD => {
                    let event = order::read_event(&line).ok_or(io::ErrorKind::InvalidData)?;
                    events.push(event);
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let mut text = Vec::new();
        self.report.rewind()?;
        (&self.report).take(MAX_REPORT).read_to_end(&mut text)?;
        let (used, rest) = order::read_report(&String::from_utf8_lossy(&text));
        events.extend(rest);
        Ok(used)
    }
}

impl Drop for GatewayProcess {
    /// It has nothing to clean up.
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.process.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.process.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Runs as a gateway until the end, if the process has that name. `main` calls this early.
#[must_use]
pub fn run_as_gateway(argv0: Option<&OsStr>) -> Option<ExitCode> {
    (argv0 == Some(OsStr::new(GATEWAY))).then(|| match live() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// The life of a gateway. Its standard input is the socket to its parent, whose end ends it.
fn live() -> io::Result<()> {
    belljar_jail::close_inherited()?;
    let parent = io::stdin().as_fd().try_clone_to_owned()?;
    let Some((mut word, mut beside)) = message::receive::<String>(&parent)? else { return Ok(()) };
    let mut authority = None;
    if word == CERTIFY {
        let own = authority.insert(Authority::new()?);
        message::send(&parent, &own.pem(), &[])?;
        match message::receive::<String>(&parent)? {
            Some(next) => (word, beside) = next,
            None => return Ok(()),
        }
    }
    let beside: [OwnedFd; 3] = beside.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    let [text, uplink, report] = beside;
    if word != ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut order = String::new();
    File::from(text).read_to_string(&mut order)?;
    let mut order = Order::from_text(&order).ok_or(io::ErrorKind::InvalidData)?;
    let vault = Vault::open(std::mem::take(&mut order.secrets), &order.roots, authority.as_ref())?;
    let routes = Routes::open()?;
    // Everything that it needs is open. From here on it reads what strangers wrote.
    confine_gateway(LIMITS)?;
    let mut gateway = Gateway::new(order, uplink, routes, vault);
    gateway.run(&parent);
    let rest = gateway.last_news();
    File::from(report).write_all(order::report(gateway.used(), &rest).as_bytes())?;
    // If the box is gone first, the parent will ask.
    if message::receive::<String>(&parent)?.is_some() {
        message::send(&parent, &REPORT.to_owned(), &[])?;
    }
    Ok(())
}

fn lost() -> DeniedHost {
    DeniedHost { host: "*".to_owned(), port: None, reason: Reason::Lost.text(), count: 1 }
}
