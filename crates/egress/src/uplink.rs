//! The gateway's end of a box's network interface, as the TCP/IP stack sees it: a device for packets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_jail::uplink::{BOX_MAC, GATEWAY_MAC, MTU};
use rustix::io::Errno;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// The two ends and the kind of packet, before each.
const HEADER: usize = 14;
const KIND_V4: [u8; 2] = [0x08, 0x00];
const KIND_V6: [u8; 2] = [0x86, 0xdd];
/// The most packets that wait for the kernel to take them.
const MAX_BACKLOG: usize = 64;

/// The socket to the box's interface.
#[derive(Debug)]
pub(crate) struct Uplink {
    socket: OwnedFd,
    /// Packets for the stack.
    arrived: VecDeque<Vec<u8>>,
    /// Packets, with their headers, that the kernel did not take yet.
    backlog: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Uplink {
    pub(crate) fn new(socket: OwnedFd) -> Uplink {
        let buffer = vec![0; usize::from(u16::MAX) + HEADER];
        Uplink { socket, arrived: VecDeque::new(), backlog: VecDeque::new(), buffer }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the kernel has to take something before more can be sent.
    pub(crate) fn is_full(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The next packet from the box; `None` if there is none yet.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let length = match rustix::io::read(&self.socket, &mut self.buffer[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let frame = &self.buffer[..length];
            let kind = frame.get(12..HEADER);
            if kind == Some(&KIND_V4) || kind == Some(&KIND_V6) {
                return Ok(Some(frame[HEADER..].to_vec()));
            }
        }
    }

    /// Gives a packet to the stack.
    pub(crate) fn hand_over(&mut self, packet: Vec<u8>) {
        self.arrived.push_back(packet);
    }

    /// Sends a packet to the box. One that the kernel does not take is sent later; if there are too many, it is lost, as
    /// packets may be.
    pub(crate) fn send(&mut self, packet: &[u8]) {
        let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { KIND_V6 } else { KIND_V4 };
        let frame = [&BOX_MAC[..], &GATEWAY_MAC, &kind, packet].concat();
        self.backlog.push_back(frame);
        self.flush();
        self.backlog.truncate(MAX_BACKLOG);
    }

    /// Sends what the kernel did not take before.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.backlog.front() {
            match rustix::io::write(&self.socket, frame) {
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(Errno::INTR) => {}
                // Sent, or nobody is there to receive it.
                Ok(_) | Err(_) => drop(self.backlog.pop_front()),
            }
        }
    }
}

impl Device for Uplink {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Leaving(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        (!self.is_full()).then_some(Leaving(self))
    }

    /// Checksums of packets from the box are not verified: the kernel leaves them out, because they have come over no wire.
    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU.into();
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.udp = Checksum::Tx;
        capabilities
    }
}

/// A packet for the stack.
pub(crate) struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

/// A place for a packet of the stack.
pub(crate) struct Leaving<'a>(&'a mut Uplink);

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let result = write(&mut packet);
        self.0.send(&packet);
        result
    }
}
