//! One connection of the box: the box's half, which ends in the TCP/IP stack here, and a socket of the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::egress::Reason;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use smoltcp::socket::tcp;

use crate::inspect::{Broken, Inspector, Refused};
use crate::tally::Tally;
use crate::vault::Relay;

mod relayed;

/// What the stack holds of a connection, in each direction.
const FROM_BOX: usize = 64 << 10;
const TO_BOX: usize = 128 << 10;
/// The most of one connection that is carried before others have their turn.
const TURN: usize = 256 << 10;

/// The host's half of a connection.
#[derive(Debug)]
pub(crate) struct Flow {
    host: OwnedFd,
    inspector: Option<Inspector>,
    /// If it is for a host that has a secret, what stands between the two halves.
    relay: Option<Box<Relay>>,
    /// What the relay has for the box, and how much of it has been given.
    answered: Vec<u8>,
    given: usize,
    /// What has been looked at and not sent yet, and how much of it has been sent.
    passed: Vec<u8>,
    sent: usize,
    /// Whether the host's socket has something, as far as is known, and takes something.
    readable: bool,
    writable: bool,
    /// The other end sends no more.
    ended: bool,
    /// The box sends no more, and the other end knows.
    shut: bool,
    /// The relay knows that the box sends no more.
    told: bool,
    /// It was refused, or the other end is gone: nothing more is carried.
    failed: bool,
    /// Bytes that left the box, and that came into it.
    carried: (u64, u64),
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    GoesOn,
    /// It has more to do right now.
    HasMore,
    Over,
    Refused(Refused),
}

impl Flow {
    pub(crate) fn new(host: OwnedFd, inspector: Option<Inspector>) -> Flow {
        Flow {
            host,
            inspector,
            relay: None,
            answered: Vec::new(),
            given: 0,
            passed: Vec::new(),
            sent: 0,
            readable: true,
            writable: true,
            ended: false,
            shut: false,
            told: false,
            failed: false,
            carried: (0, 0),
        }
    }

    /// Bytes that left the box, and that came into it.
    pub(crate) fn carried(&self) -> (u64, u64) {
        self.carried
    }

    /// The box's half.
    pub(crate) fn box_socket() -> tcp::Socket<'static> {
        let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
        let mut socket = tcp::Socket::new(buffer(FROM_BOX), buffer(TO_BOX));
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(Duration::from_millis(1).into()));
        socket
    }

    pub(crate) fn host(&self) -> BorrowedFd<'_> {
        self.host.as_fd()
    }

    /// What to wait for at the host's socket.
    pub(crate) fn interest(&self, socket: &tcp::Socket<'_>) -> PollFlags {
        let mut interest = PollFlags::empty();
        if !self.readable && !self.ended && socket.can_send() {
            interest |= PollFlags::IN;
        }
        if !self.writable {
            interest |= PollFlags::OUT;
        }
        interest
    }

    pub(crate) fn wake(&mut self, events: PollFlags) {
        self.readable |= events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        self.writable |= events.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR);
    }

    /// Carries what can be carried, in both directions.
    pub(crate) fn carry(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Fate {
        if socket.state() == tcp::State::SynReceived {
            return Fate::GoesOn;
        }
        match self.carry_both(socket, tally) {
            Err(fate) => {
                self.fail(socket);
                // The other end is told in the same way.
                let _ = rustix::net::sockopt::set_socket_linger(&self.host, Some(Duration::ZERO));
                fate
            }
            Ok(_) if tally.is_spent() => {
                self.fail(socket);
                spent()
            }
            Ok(_) if matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait) => Fate::Over,
            Ok(true) => Fate::HasMore,
            Ok(false) => Fate::GoesOn,
        }
    }

    /// Returns whether there is more.
    fn carry_both(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Result<bool, Fate> {
        if self.relay.is_none() {
            let more = self.carry_up(socket, tally)?;
            // From here on, what the host sends is for the relay.
            if self.relay.is_none() {
                return self.carry_down(socket, tally).map(|also| more || also);
            }
        }
        self.carry_relayed(socket, tally)
    }

    fn fail(&mut self, socket: &mut tcp::Socket<'_>) {
        self.failed = true;
        socket.abort();
    }

    /// Takes what the stack still has from the box, whose half is over.
    pub(crate) fn take_rest(&mut self, socket: &mut tcp::Socket<'_>) -> Result<(), Refused> {
        if self.failed {
            return Ok(());
        }
        self.passed.drain(..std::mem::take(&mut self.sent));
        if self.relay.is_some() {
            return self.take_rest_relayed(socket);
        }
        let (inspector, passed) = (&mut self.inspector, &mut self.passed);
        while socket.can_recv() {
            let taken = socket.recv(|bytes| match inspector.as_mut().filter(|one| !one.has_passed()) {
                Some(inspector) => (bytes.len(), inspector.pass(bytes, passed)),
                None => {
                    passed.extend_from_slice(bytes);
                    (bytes.len(), Ok(()))
                }
            });
            taken.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Sends what was taken. Once all of it is sent, the end of the connection tells the other end.
    pub(crate) fn carry_rest(&mut self, tally: &mut Tally) -> Fate {
        while self.writable && !self.failed && self.sent < self.passed.len() && tally.may_send() {
            if tally.is_spent() {
                return spent();
            }
            if let Err(fate) = self.send_passed(tally) {
                return fate;
            }
        }
        if self.failed || self.sent == self.passed.len() { Fate::Over } else { Fate::GoesOn }
    }

    /// From the box to the host. Returns whether there is more.
    fn carry_up(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Result<bool, Fate> {
        let mut carried = 0;
        while self.writable && carried < TURN && tally.may_send() {
            if self.sent < self.passed.len() {
                let sent = self.send_passed(tally)?;
                carried += sent;
            } else if !socket.can_recv() {
                break;
            } else if let Some(inspector) = self.inspector.as_mut().filter(|one| !one.has_passed()) {
                (self.sent, self.passed) = (0, Vec::new());
                let passed = socket.recv(|bytes| (bytes.len(), inspector.pass(bytes, &mut self.passed)));
                passed.map_err(|_| Fate::Over)?.map_err(Fate::Refused)?;
                if let Some(relay) = inspector.take_relay() {
                    (self.inspector, self.relay) = (None, Some(Box::new(relay.map_err(Fate::from)?)));
                    return Ok(true);
                }
            } else {
                self.inspector = None;
                let host = self.host.as_fd();
                let sent = socket.recv(|bytes| match send(host, bytes) {
                    Ok(sent) => (sent, Ok(sent)),
                    Err(error) => (0, Err(error)),
                });
                carried += self.note_sent(sent.map_err(|_| Fate::Over)?, tally)?;
            }
        }
        self.shut_if_done(socket);
        Ok(self.writable && socket.can_recv() && tally.may_send())
    }

    fn send_passed(&mut self, tally: &mut Tally) -> Result<usize, Fate> {
        let sent = self.note_sent(send(self.host.as_fd(), &self.passed[self.sent..]), tally)?;
        self.sent += sent;
        Ok(sent)
    }

    fn note_sent(&mut self, sent: Result<usize, Errno>, tally: &mut Tally) -> Result<usize, Fate> {
        match sent {
            Ok(sent) => {
                tally.count_up(sent);
                self.carried.0 += sent as u64;
                Ok(sent)
            }
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(_) => Err(Fate::Over),
        }
    }

    /// The box has sent all that it will send, and all of it is sent on.
    fn shut_if_done(&mut self, socket: &tcp::Socket<'_>) {
        let ended = has_ended(socket);
        if self.relay.is_some() && !self.told {
            return;
        }
        if ended && !self.shut && socket.recv_queue() == 0 && self.sent == self.passed.len() {
            self.shut = true;
            let _ = rustix::net::shutdown(&self.host, Shutdown::Write);
        }
    }

    /// From the host to the box. Returns whether there is more.
    fn carry_down(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Result<bool, Fate> {
        let mut carried = 0;
        while self.readable && !self.ended && socket.can_send() && carried < TURN && tally.may_receive() {
            let host = self.host.as_fd();
            let received = socket.send(|room| match rustix::net::recv(host, room, RecvFlags::empty()) {
                Ok((_, length)) => (length, Ok(length)),
                Err(error) => (0, Err(error)),
            });
            match received.map_err(|_| Fate::Over)? {
                Ok(0) => {
                    self.ended = true;
                    socket.close();
                }
                Ok(length) => {
                    tally.count_down(length);
                    self.carried.1 += length as u64;
                    carried += length;
                }
                Err(Errno::AGAIN) => self.readable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Fate::Over),
            }
        }
        Ok(self.readable && !self.ended && socket.can_send() && tally.may_receive())
    }
}

impl From<Broken> for Fate {
    fn from(broken: Broken) -> Fate {
        match broken {
            Broken::Refused(refused) => Fate::Refused(refused),
            Broken::Over => Fate::Over,
        }
    }
}

/// The box sends no more.
fn has_ended(socket: &tcp::Socket<'_>) -> bool {
    use tcp::State::{CloseWait, Closing, LastAck, TimeWait};
    matches!(socket.state(), CloseWait | Closing | LastAck | TimeWait)
}

fn send(host: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(host, bytes, SendFlags::NOSIGNAL)
}

fn spent() -> Fate {
    Fate::Refused(Refused { name: None, reason: Reason::Spent })
}
