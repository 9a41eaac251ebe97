//! A gateway that takes packets without a box or a host, for fuzz targets: they send what no kernel would send.
//!
//! It allows nothing, and has one connection all the same: from port 4000 of the box to port 80 of `93.184.216.34`, where the
//! test itself is the host. So whatever is in the packets, nothing leaves this process.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use belljar_core::egress::{Egress, Rule};
use belljar_jail::uplink::BOX_ADDRESSES;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::gateway::Gateway;
use crate::order::{EgressLimits, MAX_DENIED, Order};
use crate::packet::{Content, Packet};
use crate::routes::Routes;
use crate::vault::Vault;

/// The other end of the connection.
const OUTSIDE: ([u8; 4], u16) = ([93, 184, 216, 34], 80);
/// Its end in the box.
const INSIDE: u16 = 4000;
/// The number of its first packet. It is so high that a few bytes later the numbers begin again at zero.
const FIRST_NUMBER: u32 = u32::MAX - 40;
/// Where the acknowledged number is in a packet of IPv4 without options.
const ACKNOWLEDGED: std::ops::Range<usize> = 28..32;

/// What became of the packets.
#[derive(Debug)]
pub struct Rehearsed {
    /// What the host got of the one connection.
    pub carried: Vec<u8>,
    /// How many packets the box got.
    pub answers: usize,
    /// How many hosts were refused.
    pub denied: usize,
}

/// Has a gateway take packets, each of which follows its length in two bytes. Numbers that acknowledge something are
/// counted from the gateway's first, which nobody can know before.
///
/// # Panics
/// If a packet does what none may do: open a connection, or make the gateway send what is no packet.
#[must_use]
pub fn rehearse(mut bytes: &[u8]) -> Rehearsed {
    let (far, uplink) = pair(SocketType::SEQPACKET);
    let (mut gateway, server) = with_connection(uplink);
    let mut answers = received(&far);
    let first = answers.first().and_then(|answer| answer.get(24..28)?.first_chunk()).copied();
    let first = u32::from_be_bytes(first.unwrap_or_default());
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        gateway.take(acknowledging(&rest[..length], first));
        gateway.turn();
        answers.extend(received(&far));
        bytes = &rest[length..];
    }
    assert!(gateway.open_now() <= 1, "nothing is allowed");
    assert!(gateway.used().denied.len() <= MAX_DENIED);
    assert!(answers.iter().all(|answer| Packet::parse(answer).is_some()), "what the box gets is a packet");
    let denied = gateway.used().denied.len();
    Rehearsed { carried: received_bytes(&server), answers: answers.len(), denied }
}

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    #[allow(clippy::expect_used, reason = "without sockets, nothing can be tried")]
    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).expect("two sockets")
}

/// A gateway that allows one name, which no packet can reach without a name server, and has the one connection. Also the host's end of that.
fn with_connection(uplink: OwnedFd) -> (Gateway, OwnedFd) {
    let allow = Rule::parse("example.org").into_iter().collect();
    let egress = Egress::from_rules(Some(allow), Vec::new());
    let (limits, secrets, roots) = (EgressLimits::default(), Vec::new(), String::new());
    let order = Order { egress, servers: Vec::new(), limits, secrets, roots };
    #[allow(clippy::expect_used, reason = "without sockets, nothing can be tried")]
    let routes = Routes::open().expect("a socket for routes");
    let mut gateway = Gateway::new(order, uplink, routes, Vault::default());
    let (server, host) = pair(SocketType::STREAM);
    let ends = (SocketAddr::from((BOX_ADDRESSES.0, INSIDE)), SocketAddr::from(OUTSIDE));
    let packet = opening();
    if let Some(Packet { content: Content::Tcp(segment), .. }) = Packet::parse(&packet) {
        gateway.carry_with(ends, host, segment, packet);
    }
    (gateway, server)
}

/// The first packet of the connection.
fn opening() -> Vec<u8> {
    let head = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    let ports = [INSIDE.to_be_bytes(), OUTSIDE.1.to_be_bytes()].concat();
    let rest = [0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    [&head[..], &BOX_ADDRESSES.0, &OUTSIDE.0, &ports, &FIRST_NUMBER.to_be_bytes(), &rest].concat()
}

fn acknowledging(packet: &[u8], first: u32) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let is_tcp = packet.first() == Some(&0x45) && packet.get(9) == Some(&6);
    if let Some(number) = packet.get_mut(ACKNOWLEDGED).filter(|_| is_tcp) {
        let counted = number.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        number.copy_from_slice(&counted.wrapping_add(first).to_be_bytes());
    }
    packet
}

/// The packets that the box gets, without their Ethernet headers.
fn received(far: &OwnedFd) -> Vec<Vec<u8>> {
    let mut buffer = [0; 20_000];
    let mut packets = Vec::new();
    while let Ok(length @ 14..) = rustix::io::read(far, &mut buffer[..]) {
        packets.push(buffer[14..length].to_vec());
    }
    packets
}

fn received_bytes(server: &OwnedFd) -> Vec<u8> {
    let (mut buffer, mut bytes) = ([0; 4096], Vec::new());
    while let Ok(length @ 1..) = rustix::io::read(server, &mut buffer[..]) {
        bytes.extend_from_slice(&buffer[..length]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rehearsal_reaches_the_connection_and_nobody_else() {
        let follow = |packet: &[u8]| [&u16::try_from(packet.len()).unwrap().to_be_bytes(), packet].concat();
        // The second of the connection, with a word in it.
        let mut word = opening();
        word[24..28].copy_from_slice(&FIRST_NUMBER.wrapping_add(1).to_be_bytes());
        word[31] = 1;
        word[33] = 16;
        word.extend(b"word");
        word[3] += 4;
        let rehearsed = rehearse(&follow(&word));
        assert_eq!((&rehearsed.carried[..], rehearsed.denied), (&b"word"[..], 0));
        // The first of another.
        let mut other = opening();
        other[21] += 1;
        let rehearsed = rehearse(&follow(&other));
        assert_eq!((&rehearsed.carried[..], rehearsed.denied), (&b""[..], 1));
    }
}
