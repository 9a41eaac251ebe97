//! The gateway: the process that carries what the box may send, and refuses the rest.
//!
//! It has one thread and one loop. Packets of the box come from its uplink; connections end in a TCP/IP stack in this
//! process, and go on as sockets of the host. What arrives is judged first ([`Egress`]), so that a connection that is not
//! allowed is refused before the host has heard of it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_core::egress::{Egress, NetworkEvent, NetworkStep, Passage, Reason, Transport, canonical};
use belljar_core::outcome::NetworkUse;
use belljar_jail::uplink::{BOX_ADDRESSES, NAME_SERVER};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpListenEndpoint};

use crate::flow::{Fate, Flow};
use crate::host_socket;
use crate::inspect::{Demand, Inspector, Refused};
use crate::names::Names;
use crate::order::{EgressLimits, Order};
use crate::packet::{self, Content, Packet, Segment};
use crate::routes::{Routes, Way};
use crate::tally::{Pace, Tally};
use crate::uplink::Uplink;
use crate::vault::Vault;

const NAME_SERVICE: u16 = 53;
/// The most packets that are read before connections have their turn.
const PACKETS: usize = 128;
/// How long it waits if nothing is expected.
const IDLE: Duration = Duration::from_secs(10);
/// After so much silence, an exchange of datagrams is over.
const DATAGRAMS_END: Duration = Duration::from_secs(60);

/// The two ends of a connection: in the box, and outside.
type Ends = (SocketAddr, SocketAddr);

/// The state of the gateway.
pub(crate) struct Gateway {
    egress: Rc<Egress>,
    vault: Rc<Vault>,
    routes: Rc<Routes>,
    limits: EgressLimits,
    uplink: Uplink,
    stack: Interface,
    sockets: SocketSet<'static>,
    /// Connections that the other end has not accepted yet, with their first packets.
    awaited: HashMap<Ends, Awaited>,
    flows: HashMap<Ends, (SocketHandle, Flow)>,
    /// Connections that are over for the box, and where they went: the other end has not taken all that the box sent.
    leaving: Vec<(SocketAddr, Flow)>,
    datagrams: HashMap<Ends, Datagrams>,
    names: Names,
    tally: Tally,
    pace: Pace,
    began: Instant,
    /// Some connection has more to carry right now.
    busy: bool,
    /// How often connections had their turn.
    turns: usize,
}

struct Awaited {
    host: OwnedFd,
    segment: Segment,
    packet: Vec<u8>,
    inspector: Option<Inspector>,
}

struct Datagrams {
    host: OwnedFd,
    last: Instant,
    /// Bytes that left the box, and that came into it.
    carried: (u64, u64),
}

/// Why the loop has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The parent wants a report, or is gone.
    Asked,
    /// The box is gone.
    Unplugged,
}

/// Whose descriptor it was.
#[derive(Clone, Copy)]
enum Source {
    Parent,
    Uplink,
    Names,
    Awaited(Ends),
    Flow(Ends),
    /// By its place in the list.
    Leaving(usize),
    Datagrams(Ends),
}

impl Gateway {
    pub(crate) fn new(order: Order, uplink: OwnedFd, routes: Routes, vault: Vault) -> Gateway {
        let (began, mut uplink, routes) = (Instant::now(), Uplink::new(uplink), Rc::new(routes));
        let mut random = [0; 8];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let mut config = Config::new(HardwareAddress::Ip);
        // Sequence numbers must not be guessed.
        config.random_seed = u64::from_ne_bytes(random);
        let mut stack = Interface::new(config, &mut uplink, smoltcp::time::Instant::ZERO);
        // Every address is ours: where packets may go has been decided before they reach the stack.
        stack.set_any_ip(true);
        Gateway {
            egress: Rc::new(order.egress),
            vault: Rc::new(vault),
            routes: routes.clone(),
            limits: order.limits,
            uplink,
            stack,
            sockets: SocketSet::new(Vec::new()),
            awaited: HashMap::new(),
            flows: HashMap::new(),
            leaving: Vec::new(),
            datagrams: HashMap::new(),
            names: Names::new(order.servers, routes, began),
            tally: Tally::new(order.limits, began),
            pace: Pace::new(order.limits.connections_per_second, began),
            began,
            busy: false,
            turns: 0,
        }
    }

    /// Carries until the parent asks for a report, or the box is gone.
    pub(crate) fn run(&mut self, parent: &OwnedFd) -> End {
        loop {
            let woken = self.wait(parent);
            for (source, events) in woken {
                match source {
                    Source::Parent => return End::Asked,
                    Source::Uplink if self.receive().is_err() => return End::Unplugged,
                    Source::Uplink | Source::Names => {}
                    Source::Awaited(ends) => self.be_accepted(ends),
                    Source::Flow(ends) => {
                        if let Some((_, flow)) = self.flows.get_mut(&ends) {
                            flow.wake(events);
                        }
                    }
                    Source::Leaving(at) => {
                        if let Some((_, flow)) = self.leaving.get_mut(at) {
                            flow.wake(events);
                        }
                    }
                    Source::Datagrams(ends) => self.bring_back(ends),
                }
            }
            self.turn();
            self.tally.news.tell(parent, Instant::now());
        }
    }

    pub(crate) fn used(&self) -> &NetworkUse {
        &self.tally.used
    }

    /// What has not been told yet, at the end, which is that of all connections.
    pub(crate) fn last_news(&mut self) -> Vec<NetworkEvent> {
        let flows = self.flows.iter().map(|(ends, (_, flow))| (ends.1, flow.carried()));
        let leaving = self.leaving.iter().map(|(to, flow)| (*to, flow.carried()));
        let datagrams = self.datagrams.iter().map(|(ends, one)| (ends.1, one.carried));
        let open: Vec<_> = flows.chain(leaving).chain(datagrams).collect();
        open.into_iter().for_each(|(to, carried)| self.tell_end(to, carried));
        self.tally.news.rest()
    }

    /// One round: what the box has sent, and what can be carried now.
    pub(crate) fn turn(&mut self) {
        let now = Instant::now();
        self.tally.refill(now);
        self.uplink.flush();
        for reply in self.names.look(&self.egress, &mut self.tally, now) {
            self.answer(reply.to, &reply.message);
        }
        self.end_datagrams(now);
        self.poll_stack();
        self.carry();
        self.poll_stack();
        self.sweep();
    }

    fn poll_stack(&mut self) {
        let now = self.now();
        self.stack.poll(now, &mut self.uplink, &mut self.sockets);
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }

    fn wait(&mut self, parent: &OwnedFd) -> Vec<(Source, PollFlags)> {
        let timeout = self.timeout();
        let uplink = if self.uplink.is_full() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut sources = vec![Source::Parent, Source::Uplink];
        let mut fds =
            vec![PollFd::new(parent, PollFlags::IN), PollFd::from_borrowed_fd(self.uplink.socket(), uplink)];
        let mut watch = |source, fd, interest| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, interest));
        };
        self.names.sockets().for_each(|socket| watch(Source::Names, socket, PollFlags::IN));
        for (ends, awaited) in &self.awaited {
            watch(Source::Awaited(*ends), awaited.host.as_fd(), PollFlags::OUT);
        }
        for (ends, (handle, flow)) in &self.flows {
            let interest = flow.interest(self.sockets.get::<tcp::Socket<'_>>(*handle));
            // A descriptor without interest would still report that the other end is gone, again and again.
            if !interest.is_empty() {
                watch(Source::Flow(*ends), flow.host(), interest);
            }
        }
        // What may not pass now is not waited for, but for the time when it may.
        for (at, (_, flow)) in self.leaving.iter().enumerate().filter(|_| self.tally.may_send()) {
            watch(Source::Leaving(at), flow.host(), PollFlags::OUT);
        }
        for (ends, datagrams) in self.datagrams.iter().filter(|_| self.tally.may_receive()) {
            watch(Source::Datagrams(*ends), datagrams.host.as_fd(), PollFlags::IN);
        }
        let timeout = Timespec::try_from(timeout).ok();
        let _ = poll(&mut fds, timeout.as_ref());
        let woken = sources.iter().zip(&fds).map(|(source, fd)| (*source, fd.revents()));
        woken.filter(|(_, events)| !events.is_empty()).collect()
    }

    fn timeout(&mut self) -> Duration {
        if self.busy {
            return Duration::ZERO;
        }
        let now = self.now();
        let stack = self.stack.poll_delay(now, &self.sockets).map(Duration::from);
        let names = self.names.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let others = [names, self.tally.news.interval(), self.tally.next_opening()];
        stack.into_iter().chain(others.into_iter().flatten()).min().unwrap_or(IDLE).min(IDLE)
    }

    /// Reads packets of the box.
    fn receive(&mut self) -> std::io::Result<()> {
        for _ in 0..PACKETS {
            match self.uplink.receive()? {
                Some(packet) => self.take(packet),
                None => break,
            }
        }
        Ok(())
    }

    /// Takes one packet of the box, whatever it is.
    pub(crate) fn take(&mut self, bytes: Vec<u8>) {
        let Some(Packet { source, target, content }) = Packet::parse(&bytes) else { return };
        if !is_box(source) {
            return;
        }
        match content {
            Content::Tcp(segment) => {
                let ends = (SocketAddr::new(source, segment.source), SocketAddr::new(target, segment.target));
                self.take_segment(ends, segment, bytes);
            }
            Content::Udp { source: from, target: to, payload } => {
                let ends = (SocketAddr::new(source, from), SocketAddr::new(target, to));
                if ends.1 == name_server() {
                    self.be_asked(ends.0, payload);
                } else if self.take_datagram(ends, payload).is_err() {
                    let refusal = packet::refuse_datagram(source, target, &bytes);
                    refusal.iter().for_each(|refusal| self.uplink.send(refusal));
                }
            }
            Content::Ping => self.tally.refuse(&target.to_string(), None, Reason::Transport),
            Content::Other => {}
        }
    }

    fn take_segment(&mut self, ends: Ends, segment: Segment, bytes: Vec<u8>) {
        if self.flows.contains_key(&ends) {
            self.uplink.hand_over(bytes);
        } else if segment.opens() {
            // A second first packet says that the box is still waiting.
            if !self.awaited.contains_key(&ends) {
                self.begin(ends, segment, bytes);
            }
        } else if !self.awaited.contains_key(&ends) {
            // The stack knows nothing about it, and says so.
            self.uplink.hand_over(bytes);
        }
    }

    fn begin(&mut self, ends: Ends, segment: Segment, packet: Vec<u8>) {
        let begun = self.admit(Transport::Tcp, ends.1).and_then(|inspector| {
            // Whoever does not answer, or is not there, is no matter for the list of refusals.
            Ok((host_socket::begin_connection(canonical_end(ends.1)).map_err(|_| None)?, inspector))
        });
        match begun {
            Ok((host, inspector)) => {
                self.tell(ends.1, NetworkStep::Allowed);
                self.awaited.insert(ends, Awaited { host, segment, packet, inspector });
            }
            Err(Some(reason)) => {
                self.refuse(ends.1, reason);
                self.reset(ends, &segment);
            }
            Err(None) => self.fail(ends, &segment),
        }
    }

    /// Judges a connection, or an exchange of datagrams. The error has no reason if there is nothing to be told.
    fn admit(&mut self, transport: Transport, to: SocketAddr) -> Result<Option<Inspector>, Option<Reason>> {
        let resolved = self.names.of(to.ip());
        let passage = self.egress.connect(transport, to.ip(), to.port(), &resolved).map_err(Some)?;
        if to == name_server() {
            return Err(Some(Reason::NotAllowed));
        }
        match self.routes.way_to(canonical(to.ip())) {
            Way::Own if !self.egress.names_exactly(transport, to.ip(), to.port()) => {
                return Err(Some(Reason::OwnAddress));
            }
            Way::None => return Err(None),
            Way::Own | Way::Out => {}
        }
        if self.open_now() >= self.limits.connections as usize {
            return Err(Some(Reason::TooMany));
        }
        if !self.pace.take(Instant::now()) {
            return Err(Some(Reason::TooFast));
        }
        if self.tally.is_spent() {
            return Err(Some(Reason::Spent));
        }
        Ok(self.inspector(passage, to))
    }

    pub(crate) fn open_now(&self) -> usize {
        self.awaited.len() + self.flows.len() + self.leaving.len() + self.datagrams.len()
    }

    fn inspector(&self, passage: Passage, to: SocketAddr) -> Option<Inspector> {
        let (names, opaque) = match passage {
            Passage::Named { names, opaque } => (Some(names), opaque),
            Passage::Free if self.egress.refuses_names() || !self.vault.is_empty() => (None, true),
            Passage::Free => return None,
        };
        let known = self.names.of(to.ip()).into_iter().map(str::to_owned).collect();
        let (egress, vault) = (self.egress.clone(), self.vault.clone());
        Some(Inspector::new(Demand { egress, port: to.port(), names, opaque, known, vault }))
    }

    /// The other end has accepted a connection, or not.
    fn be_accepted(&mut self, ends: Ends) {
        let Some(Awaited { host, segment, packet, inspector }) = self.awaited.remove(&ends) else { return };
        if !matches!(rustix::net::sockopt::socket_error(&host), Ok(Ok(()))) {
            return self.fail(ends, &segment);
        }
        let mut socket = Flow::box_socket();
        let here = IpListenEndpoint { addr: Some(ends.1.ip().into()), port: ends.1.port() };
        if socket.listen(here).is_err() {
            return self.reset(ends, &segment);
        }
        self.poll_stack();
        // One that the box has just reset listens again. Then no other socket does, so this packet finds this one.
        self.sweep();
        let handle = self.sockets.add(socket);
        self.uplink.hand_over(packet);
        self.poll_stack();
        if self.sockets.get::<tcp::Socket<'_>>(handle).state() == tcp::State::Listen {
            self.sockets.remove(handle);
            return self.reset(ends, &segment);
        }
        self.flows.insert(ends, (handle, Flow::new(host, inspector)));
    }

    /// Carries a connection that nobody has judged. The product has no such function.
    #[cfg(any(test, feature = "rehearsal"))]
    pub(crate) fn carry_with(&mut self, ends: Ends, host: OwnedFd, segment: Segment, packet: Vec<u8>) {
        self.awaited.insert(ends, Awaited { host, segment, packet, inspector: None });
        self.be_accepted(ends);
    }

    fn carry(&mut self) {
        self.busy = false;
        let mut refused = Vec::new();
        // Each is the first in its turn: with a limit on the rate, the first may be the only one.
        let mut order: Vec<Ends> = self.flows.keys().copied().collect();
        self.turns = self.turns.wrapping_add(1);
        let first = self.turns % order.len().max(1);
        order.rotate_left(first);
        for ends in order {
            let Some((handle, flow)) = self.flows.get_mut(&ends) else { continue };
            match flow.carry(self.sockets.get_mut(*handle), &mut self.tally) {
                Fate::GoesOn | Fate::Over => {}
                Fate::HasMore => self.busy = true,
                Fate::Refused(refusal) => refused.push((ends.1, refusal)),
            }
        }
        let mut over = Vec::new();
        self.leaving.retain_mut(|(to, flow)| {
            match flow.carry_rest(&mut self.tally) {
                Fate::GoesOn | Fate::HasMore => return true,
                Fate::Over => {}
                Fate::Refused(refusal) => refused.push((*to, refusal)),
            }
            over.push((*to, flow.carried()));
            false
        });
        refused.into_iter().for_each(|(to, refusal)| self.note(to, refusal));
        over.into_iter().for_each(|(to, carried)| self.tell_end(to, carried));
    }

    fn note(&mut self, to: SocketAddr, refusal: Refused) {
        match refusal.name {
            Some(name) => self.tally.refuse(&name, Some(to.port()), refusal.reason),
            None => self.refuse(to, refusal.reason),
        }
    }

    /// Forgets the connections that are over for the box, which the stack has told by now. What the box sent is still sent on.
    fn sweep(&mut self) {
        // Whoever is reset before the end of the handshake listens again.
        let is_over = |state| matches!(state, tcp::State::Closed | tcp::State::TimeWait | tcp::State::Listen);
        let state = |handle: SocketHandle| self.sockets.get::<tcp::Socket<'_>>(handle).state();
        let over = self.flows.iter().filter(|(_, (handle, _))| is_over(state(*handle)));
        let over: Vec<Ends> = over.map(|(ends, _)| *ends).collect();
        for ends in over {
            let Some((handle, mut flow)) = self.flows.remove(&ends) else { continue };
            // The stack would keep it for ten seconds.
            let rest = flow.take_rest(self.sockets.get_mut(handle));
            self.sockets.remove(handle);
            match rest.map(|()| flow.carry_rest(&mut self.tally)) {
                Ok(Fate::GoesOn | Fate::HasMore) => {
                    self.leaving.push((ends.1, flow));
                    continue;
                }
                Ok(Fate::Over) => {}
                Ok(Fate::Refused(refusal)) | Err(refusal) => self.note(ends.1, refusal),
            }
            self.tell_end(ends.1, flow.carried());
        }
    }

    fn be_asked(&mut self, asker: SocketAddr, question: &[u8]) {
        let now = Instant::now();
        if let Some(reply) = self.names.ask(asker, question, &self.egress, &mut self.tally, now) {
            self.answer(reply.to, &reply.message);
        }
    }

    fn answer(&mut self, to: SocketAddr, message: &[u8]) {
        let packet = packet::datagram(name_server(), to, message);
        packet.iter().for_each(|packet| self.uplink.send(packet));
    }

    fn take_datagram(&mut self, ends: Ends, payload: &[u8]) -> Result<(), ()> {
        if !self.datagrams.contains_key(&ends) {
            let host = self
                .admit(Transport::Udp, ends.1)
                .and_then(|_| host_socket::connect_datagrams(canonical_end(ends.1)).map_err(|_| None));
            let host = host.map_err(|reason| match reason {
                Some(reason) => self.refuse(ends.1, reason),
                None => self.tell(ends.1, NetworkStep::Failed),
            })?;
            self.tell(ends.1, NetworkStep::Allowed);
            self.datagrams.insert(ends, Datagrams { host, last: Instant::now(), carried: (0, 0) });
        }
        if self.tally.is_spent() {
            self.refuse(ends.1, Reason::Spent);
            return Err(());
        }
        let Some(exchange) = self.datagrams.get_mut(&ends) else { return Err(()) };
        exchange.last = Instant::now();
        if !self.tally.may_send() {
            return Ok(());
        }
        match rustix::net::send(&exchange.host, payload, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.tally.count_up(sent);
                exchange.carried.0 += sent as u64;
            }
            // A datagram may be lost.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => {}
            Err(_) => return Err(()),
        }
        Ok(())
    }

    /// Datagrams from outside, for the box.
    fn bring_back(&mut self, ends: Ends) {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        for _ in 0..PACKETS {
            let exchange = self.datagrams.get_mut(&ends).filter(|_| self.tally.may_receive());
            let Some(exchange) = exchange else { return };
            let Ok((_, length)) = rustix::net::recv(&exchange.host, &mut buffer[..], RecvFlags::empty())
            else {
                return;
            };
            exchange.last = Instant::now();
            self.tally.count_down(length);
            exchange.carried.1 += length as u64;
            let packet = packet::datagram(ends.1, ends.0, &buffer[..length]);
            packet.iter().for_each(|packet| self.uplink.send(packet));
        }
    }

    /// After some silence, an exchange of datagrams is over.
    fn end_datagrams(&mut self, now: Instant) {
        let is_over = |one: &Datagrams| now.saturating_duration_since(one.last) >= DATAGRAMS_END;
        let over: Vec<_> = self.datagrams.extract_if(|_, one| is_over(one)).collect();
        over.into_iter().for_each(|(ends, one)| self.tell_end(ends.1, one.carried));
    }

    /// The name that the box has in mind, if it asked for one; otherwise the address.
    fn host_of(&self, to: SocketAddr) -> String {
        match self.names.of(to.ip()).first() {
            Some(name) => (*name).to_owned(),
            None => to.ip().to_string(),
        }
    }

    fn refuse(&mut self, to: SocketAddr, reason: Reason) {
        self.tally.refuse(&self.host_of(to), Some(to.port()), reason);
    }

    fn tell(&mut self, to: SocketAddr, step: NetworkStep) {
        self.tally.news.add(&self.host_of(to), Some(to.port()), step);
    }

    fn tell_end(&mut self, to: SocketAddr, (up, down): (u64, u64)) {
        self.tell(to, NetworkStep::Closed { up, down });
    }

    /// The other end is not there, or does not want it.
    fn fail(&mut self, ends: Ends, segment: &Segment) {
        self.tell(ends.1, NetworkStep::Failed);
        self.reset(ends, segment);
    }

    fn reset(&mut self, ends: Ends, segment: &Segment) {
        let packet = packet::refuse_connection(ends.0.ip(), ends.1.ip(), segment);
        packet.iter().for_each(|packet| self.uplink.send(packet));
    }
}

fn name_server() -> SocketAddr {
    SocketAddr::from((NAME_SERVER, NAME_SERVICE))
}

fn is_box(source: IpAddr) -> bool {
    source == IpAddr::from(BOX_ADDRESSES.0) || source == IpAddr::from(BOX_ADDRESSES.1)
}

fn canonical_end(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(canonical(end.ip()), end.port())
}

#[cfg(test)]
mod tests;
