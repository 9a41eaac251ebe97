//! The gateway against packets that no kernel would send. The test holds the box's end of the uplink.

use std::os::fd::OwnedFd;

use belljar_core::egress::Rule;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;

fn gateway(allow: &[&str]) -> (Gateway, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let allow = allow.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
    let egress = Egress::from_rules(Some(allow), Vec::new());
    let order = Order { egress, servers: Vec::new(), limits: EgressLimits::default() };
    (Gateway::new(order, theirs, Routes::open().unwrap()), ours)
}

/// What the box receives.
fn received(socket: &OwnedFd) -> Vec<Vec<u8>> {
    let mut buffer = [0; 70_000];
    let mut packets = Vec::new();
    while let Ok(length @ 1..) = rustix::io::read(socket, &mut buffer[..]) {
        packets.push(buffer[14..length].to_vec());
    }
    packets
}

/// A packet of the box with this protocol and content.
fn packet(protocol: u8, target: [u8; 4], content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 20).unwrap().to_be_bytes();
    let head = [0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 2];
    [&head[..], &target, content].concat()
}

fn syn(port: u16) -> Vec<u8> {
    let port = port.to_be_bytes();
    [&[0x30, 0x39, port[0], port[1], 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0][..]].concat()
}

#[test]
fn a_connection_that_is_not_allowed_is_refused_at_once() {
    let (mut gateway, inside) = gateway(&["93.184.216.34:80"]);
    gateway.take(packet(6, [93, 184, 216, 35], &syn(80)));
    let answers = received(&inside);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][33], 0x14, "RST and ACK");
    assert_eq!(gateway.used().denied[0].host, "93.184.216.35");
    assert_eq!(gateway.open_now(), 0);
}

#[test]
fn packets_of_somebody_else_are_ignored() {
    let (mut gateway, inside) = gateway(&[]);
    let mut foreign = packet(6, [93, 184, 216, 35], &syn(80));
    foreign[15] = 9;
    gateway.take(foreign);
    assert!(received(&inside).is_empty() && gateway.used().denied.is_empty());
    gateway.take(packet(6, [93, 184, 216, 35], &syn(80)));
    assert_eq!(received(&inside).len(), 1, "the control");
}

#[test]
fn a_name_that_is_not_allowed_does_not_exist() {
    let (mut gateway, inside) = gateway(&["example.org"]);
    let ask = |name: &[u8]| {
        let head = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let question = [&head[..], name, &[0, 0, 1, 0, 1]].concat();
        let length = u16::try_from(question.len() + 8).unwrap().to_be_bytes();
        packet(17, NAME_SERVER, &[&[0x30, 0x39, 0, 53, length[0], length[1], 0, 0], &question[..]].concat())
    };
    gateway.take(ask(b"\x04evil\x03org"));
    let answers = received(&inside);
    assert_eq!(answers[0][28 + 3] & 15, 3, "NXDOMAIN");
    gateway.take(ask(b"\x07example\x03org"));
    assert_eq!(received(&inside)[0][28 + 3] & 15, 2, "SERVFAIL: there is no name server to ask");
    assert_eq!(gateway.used().denied.len(), 1);
}

proptest! {
    #[test]
    fn no_packet_does_harm(
        packets in prop::collection::vec((
            prop::sample::select(&[1u8, 2, 6, 17, 58, 132][..]),
            prop::collection::vec(any::<u8>(), 0..120),
            prop::sample::select(&[[192u8, 0, 2, 1], [192, 0, 2, 2], [127, 0, 0, 1], [10, 0, 0, 1], [93, 184, 216, 34]][..]),
        ), 1..20),
        raw in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (mut gateway, inside) = gateway(&["example.org"]);
        for (protocol, content, target) in packets {
            gateway.take(packet(protocol, target, &content));
        }
        gateway.take(raw);
        gateway.turn();
        prop_assert_eq!(gateway.open_now(), 0);
        prop_assert!(gateway.used().up == 0 && gateway.used().denied.len() <= crate::order::MAX_DENIED);
        for answer in received(&inside) {
            prop_assert!(Packet::parse(&answer).is_some(), "what the box gets is a packet");
        }
    }
}
