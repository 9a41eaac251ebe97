//! How a connection is carried that has a relay between its halves.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use smoltcp::socket::tcp;

use super::{Fate, Flow, TURN, has_ended};
use crate::inspect::{Broken, Refused};
use crate::tally::Tally;

/// What is read of the host at a time: one record of TLS.
const PIECE: usize = 16 << 10;

impl Flow {
    /// In both directions, until nothing moves or others have their turn. Returns whether there is more.
    pub(super) fn carry_relayed(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Fate> {
        let mut carried = 0;
        while carried < TURN && !tally.is_spent() {
            let moved = self.relay_up(socket, tally)? + self.relay_down(socket, tally)?;
            if moved == 0 {
                self.shut_if_done(socket);
                return Ok(false);
            }
            carried += moved;
        }
        Ok(true)
    }

    /// More of the box is taken when all that it sent before is on its way. Returns how many bytes moved.
    fn relay_up(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Result<usize, Fate> {
        let Some(relay) = &mut self.relay else { return Ok(0) };
        let mut moved = 0;
        if self.sent == self.passed.len() {
            if relay.takes() && socket.can_recv() {
                let taken = socket.recv(|bytes| (bytes.len(), (bytes.len(), relay.take_from_box(bytes))));
                let (length, taken) = taken.map_err(|_| Fate::Over)?;
                taken?;
                moved += length;
            }
            if relay.takes() && !self.told && has_ended(socket) && socket.recv_queue() == 0 {
                self.told = true;
                relay.end_from_box();
            }
            (self.sent, self.passed) = (0, relay.give_host());
        }
        if self.writable && self.sent < self.passed.len() && tally.may_send() {
            moved += self.send_passed(tally)?;
        }
        Ok(moved)
    }

    /// More of the host is taken when the box has all that it sent before. Returns how many bytes moved.
    fn relay_down(&mut self, socket: &mut tcp::Socket<'_>, tally: &mut Tally) -> Result<usize, Fate> {
        let mut moved = 0;
        if self.given == self.answered.len() {
            moved += self.hear_host(tally)?;
            let Some(relay) = &mut self.relay else { return Ok(0) };
            (self.given, self.answered) = (0, relay.give_box());
            if self.ended && self.answered.is_empty() && socket.may_send() {
                socket.close();
            }
        }
        if self.given < self.answered.len() && socket.can_send() {
            let given = socket.send_slice(&self.answered[self.given..]).map_err(|_| Fate::Over)?;
            self.given += given;
            moved += given;
        }
        Ok(moved)
    }

    fn hear_host(&mut self, tally: &mut Tally) -> Result<usize, Fate> {
        let may = self.readable && !self.ended && tally.may_receive();
        let Some(relay) = self.relay.as_mut().filter(|_| may) else { return Ok(0) };
        let mut buffer = [0; PIECE];
        match rustix::net::recv(&self.host, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => {
                self.ended = true;
                relay.settle();
                Ok(0)
            }
            Ok((_, length)) => {
                tally.count_down(length);
                self.carried.1 += length as u64;
                relay.take_from_host(&buffer[..length])?;
                Ok(length)
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                relay.settle();
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(_) => Err(Fate::Over),
        }
    }

    /// What the stack still has from the box, whose half is over.
    pub(super) fn take_rest_relayed(&mut self, socket: &mut tcp::Socket<'_>) -> Result<(), Refused> {
        let Some(relay) = &mut self.relay else { return Ok(()) };
        while relay.takes() && socket.can_recv() {
            match socket.recv(|bytes| (bytes.len(), relay.take_from_box(bytes))) {
                Ok(Ok(())) => {}
                Ok(Err(Broken::Refused(refused))) => return Err(refused),
                Ok(Err(Broken::Over)) | Err(_) => break,
            }
        }
        relay.end_from_box();
        self.passed.extend(relay.give_host());
        Ok(())
    }
}
