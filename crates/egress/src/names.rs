//! The box's name server: asks the host's for what the box may ask for, and remembers what the answers were.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_core::egress::{Egress, Reason, canonical, is_name};
use rustix::net::{RecvFlags, SendFlags};

use crate::dns::{Kind, Outcome, Question};
use crate::host_socket;
use crate::routes::{Routes, Way};
use crate::tally::{Pace, Tally};

/// How long a name server may take before the next is asked, and how often each is.
const PATIENCE: Duration = Duration::from_millis(1500);
const TRIES: usize = 2;
/// The most questions that are being answered at a time, and in a second.
const MAX_LOOKUPS: usize = 64;
const PER_SECOND: u32 = 100;
/// The most addresses that are remembered, and names for each.
const MAX_PINNED: usize = 4096;
const MAX_NAMES: usize = 64;

/// The names of one box.
#[derive(Debug)]
pub(crate) struct Names {
    servers: Vec<SocketAddr>,
    routes: Rc<Routes>,
    /// What each address was resolved from. It stays so for as long as the box lives.
    pinned: HashMap<IpAddr, Vec<String>>,
    lookups: Vec<Lookup>,
    pace: Pace,
}

/// A question that the host's name server has not answered yet.
#[derive(Debug)]
struct Lookup {
    question: Question,
    /// Who asked.
    asker: SocketAddr,
    socket: OwnedFd,
    id: u16,
    tries: usize,
    deadline: Instant,
}

/// An answer for the box.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) to: SocketAddr,
    pub(crate) message: Vec<u8>,
}

impl Names {
    pub(crate) fn new(servers: Vec<SocketAddr>, routes: Rc<Routes>, now: Instant) -> Names {
        let pace = Pace::new(PER_SECOND, now);
        Names { servers, routes, pinned: HashMap::new(), lookups: Vec::new(), pace }
    }

    /// What this address was resolved from.
    pub(crate) fn of(&self, address: IpAddr) -> Vec<&str> {
        let names = self.pinned.get(&canonical(address));
        names.map(|names| names.iter().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Takes a question of the box, and answers it if that is possible at once.
    pub(crate) fn ask(
        &mut self,
        asker: SocketAddr,
        message: &[u8],
        egress: &Egress,
        tally: &mut Tally,
        now: Instant,
    ) -> Option<Reply> {
        let question = Question::parse(message)?;
        let judged = match egress.resolve(&question.name) {
            Ok(()) if !is_name(&question.name) => Err(Reason::NotAllowed),
            Ok(()) if !self.pace.take(now) || self.lookups.len() >= MAX_LOOKUPS => Err(Reason::TooFast),
            judged => judged,
        };
        let outcome = match (judged, question.kind) {
            (Err(reason), _) => {
                tally.refuse(&question.name, None, reason);
                if reason == Reason::TooFast { Outcome::Failed } else { Outcome::NoSuchName }
            }
            // Nothing but addresses is needed to reach a host.
            (Ok(()), Kind::Other(_)) => Outcome::Found,
            (Ok(()), Kind::V4 | Kind::V6) => match self.begin(question.clone(), asker, now) {
                Some(()) => return None,
                None => Outcome::Failed,
            },
        };
        Some(Reply { to: asker, message: question.answer(outcome, &[], 1) })
    }

    fn begin(&mut self, question: Question, asker: SocketAddr, now: Instant) -> Option<()> {
        let (socket, id) = self.send(&question, 0)?;
        let deadline = now + PATIENCE;
        self.lookups.push(Lookup { question, asker, socket, id, tries: 1, deadline });
        Some(())
    }

    /// Asks one of the servers. Each question has a socket of its own, and so a port and a number that nobody can guess.
    fn send(&self, question: &Question, tries: usize) -> Option<(OwnedFd, u16)> {
        let server = self.servers.get(tries % self.servers.len().max(1))?;
        let mut id = [0; 2];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).ok()?;
        let id = u16::from_ne_bytes(id);
        let socket = host_socket::connect_datagrams(*server).ok()?;
        rustix::net::send(&socket, &question.to_server(id)?, SendFlags::NOSIGNAL).ok()?;
        Some((socket, id))
    }

    /// The sockets on which answers are awaited.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lookups.iter().map(|lookup| lookup.socket.as_fd())
    }

    /// When to look again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.lookups.iter().map(|lookup| lookup.deadline).min()
    }

    /// Reads the answers that have arrived, and gives up on those that have not.
    pub(crate) fn look(&mut self, egress: &Egress, tally: &mut Tally, now: Instant) -> Vec<Reply> {
        let mut replies = Vec::new();
        for mut lookup in std::mem::take(&mut self.lookups) {
            match lookup.read() {
                Some(answer) => {
                    let (outcome, addresses) =
                        self.accept(&lookup.question, answer.outcome, &answer.addresses, egress, tally);
                    let message = lookup.question.answer(outcome, &addresses, answer.ttl);
                    replies.push(Reply { to: lookup.asker, message });
                }
                None if now < lookup.deadline => self.lookups.push(lookup),
                None => match self.send(&lookup.question, lookup.tries) {
                    Some((socket, id)) if lookup.tries < TRIES * self.servers.len() => {
                        (lookup.socket, lookup.id) = (socket, id);
                        (lookup.tries, lookup.deadline) = (lookup.tries + 1, now + PATIENCE);
                        self.lookups.push(lookup);
                    }
                    _ => {
                        let message = lookup.question.answer(Outcome::Failed, &[], 1);
                        replies.push(Reply { to: lookup.asker, message });
                    }
                },
            }
        }
        replies
    }

    /// Of these addresses, those that the name may stand for. They are remembered.
    fn accept(
        &mut self,
        question: &Question,
        outcome: Outcome,
        addresses: &[IpAddr],
        egress: &Egress,
        tally: &mut Tally,
    ) -> (Outcome, Vec<IpAddr>) {
        let mut accepted = Vec::new();
        let mut refused = false;
        for address in addresses.iter().map(|address| canonical(*address)) {
            match egress.answer(address) {
                Err(reason) => {
                    refused = true;
                    tally.refuse(&question.name, None, reason);
                }
                // A program that gets an address to which there is no way tries that first.
                Ok(()) if self.routes.way_to(address) == Way::None => {}
                Ok(()) => accepted.push(address),
            }
        }
        // An answer of the other kind of addresses would not be of use, and is not expected.
        accepted.retain(|address| address.is_ipv4() == (question.kind == Kind::V4));
        accepted.iter().for_each(|address| self.pin(*address, &question.name));
        let outcome = if refused && accepted.is_empty() { Outcome::NoSuchName } else { outcome };
        (outcome, accepted)
    }

    fn pin(&mut self, address: IpAddr, name: &str) {
        if self.pinned.len() >= MAX_PINNED && !self.pinned.contains_key(&address) {
            return;
        }
        let names = self.pinned.entry(address).or_default();
        if names.len() < MAX_NAMES && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
}

impl Lookup {
    fn read(&self) -> Option<crate::dns::Answer> {
        let mut buffer = [0; 4096];
        // What does not answer the question is ignored: anybody may have sent it.
        while let Ok((_, length)) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
            if let Some(answer) = self.question.read_answer(self.id, &buffer[..length]) {
                return Some(answer);
            }
        }
        None
    }
}
