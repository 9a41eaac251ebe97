//! The gateway against packets that no kernel would send. The test holds the box's end of the uplink.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use belljar_core::egress::Rule;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;

fn gateway(allow: &[&str]) -> (Gateway, OwnedFd) {
    gateway_with(allow, EgressLimits::default())
}

fn gateway_with(allow: &[&str], limits: EgressLimits) -> (Gateway, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let allow = allow.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
    let egress = Egress::from_rules(Some(allow), Vec::new());
    let order = Order { egress, servers: Vec::new(), limits, secrets: Vec::new(), roots: String::new() };
    (Gateway::new(order, theirs, Routes::open().unwrap(), Vault::default()), ours)
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
    let told: Vec<_> = gateway.last_news().iter().map(ToString::to_string).collect();
    assert_eq!(told, ["93.184.216.35:80 refused (not allowed)"]);
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

const OUTSIDE: [u8; 4] = [93, 184, 216, 34];
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A segment of the box, from this port to port 80 of [`OUTSIDE`].
fn segment(from: u16, flags: u8, numbers: (u32, u32), payload: &[u8]) -> Vec<u8> {
    let head = [from.to_be_bytes(), 80u16.to_be_bytes()].concat();
    let numbers = [numbers.0.to_be_bytes(), numbers.1.to_be_bytes()].concat();
    let rest = [0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
    packet(6, OUTSIDE, &[&head, &numbers, &rest[..], payload].concat())
}

fn ends(from: u16) -> Ends {
    (SocketAddr::from((BOX_ADDRESSES.0, from)), SocketAddr::from((OUTSIDE, 80)))
}

/// Begins a connection to a server here as if it were allowed. Its first packet has number 1, and is answered.
fn begin(gateway: &mut Gateway, from: u16) -> TcpStream {
    begin_at(gateway, from, 1)
}

/// The same with another number of its first packet.
fn begin_at(gateway: &mut Gateway, from: u16, number: u32) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = host_socket::begin_connection(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let packet = segment(from, SYN, (number, 0), &[]);
    let Some(Packet { content: Content::Tcp(segment), .. }) = Packet::parse(&packet) else { panic!() };
    gateway.carry_with(ends(from), host, segment, packet);
    server
}

/// The flags and the number of a segment for the box.
fn flags_and_number(packet: &[u8]) -> (u8, u32) {
    (packet[33], u32::from_be_bytes(packet[24..28].try_into().unwrap()))
}

#[test]
fn what_the_box_sent_before_it_closed_is_sent_on_however_slow_the_server_is() {
    let (mut gateway, inside) = gateway(&[]);
    let mut server = begin(&mut gateway, 4000);
    let (flags, number) = flags_and_number(&received(&inside)[0]);
    assert_eq!(flags, SYN | ACK);
    // The server ends its half first.
    server.shutdown(Shutdown::Write).unwrap();
    gateway.take(segment(4000, ACK, (2, number + 1), &[]));
    gateway.turn();
    assert!(received(&inside).iter().any(|packet| flags_and_number(packet) == (FIN | ACK, number + 1)));
    // The box sends until the server's side is full.
    let (piece, mut sent) = (vec![7; 4000], 0);
    let waiting = |gateway: &Gateway| {
        let (handle, _) = gateway.flows[&ends(4000)];
        gateway.sockets.get::<tcp::Socket<'_>>(handle).recv_queue()
    };
    while waiting(&gateway) < 3 * piece.len() {
        assert!(sent < 64 << 20, "nothing of it waits");
        gateway.take(segment(4000, ACK, (2 + sent, number + 2), &piece));
        gateway.turn();
        received(&inside);
        sent += 4000;
    }
    gateway.take(segment(4000, FIN | ACK, (2 + sent, number + 2), &[]));
    gateway.turn();
    assert!(gateway.flows.is_empty() && gateway.sockets.iter().next().is_none());
    assert_eq!(gateway.open_now(), 1, "it counts until it is done");
    let (mut read, mut buffer) = (0, vec![0; 1 << 16]);
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        assert!(buffer[..length].iter().all(|byte| *byte == 7));
        read += length;
        gateway.leaving.iter_mut().for_each(|(_, flow)| flow.wake(PollFlags::OUT));
        gateway.turn();
    }
    assert_eq!((read, gateway.used().up), (sent as usize, sent.into()));
    assert_eq!(gateway.open_now(), 0);
}

/// As they do every 4 GiB of a connection.
#[test]
fn numbers_that_begin_again_at_zero_lose_nothing() {
    let (mut gateway, inside) = gateway(&[]);
    let mut next = u32::MAX - 6000;
    let mut server = begin_at(&mut gateway, 4000, next);
    let (_, number) = flags_and_number(&received(&inside)[0]);
    next = next.wrapping_add(1);
    let sent: Vec<u8> = (0..16_000u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for piece in sent.chunks(4000) {
        gateway.take(segment(4000, ACK, (next, number + 1), piece));
        gateway.turn();
        next = next.wrapping_add(4000);
    }
    assert!(next < 16_000, "the control: they did");
    let mut read = vec![0; sent.len()];
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    server.read_exact(&mut read).unwrap();
    assert!(read == sent);
    gateway.take(segment(4000, FIN | ACK, (next, number + 1), &[]));
    gateway.turn();
    let acknowledged = |packet: &Vec<u8>| u32::from_be_bytes(packet[28..32].try_into().unwrap());
    assert_eq!(received(&inside).last().map(acknowledged), Some(next.wrapping_add(1)));
    assert_eq!((server.read(&mut [0]).unwrap(), gateway.used().up), (0, 16_000), "its end arrives as well");
}

#[test]
fn a_connection_that_is_reset_in_the_handshake_is_over() {
    let (mut gateway, inside) = gateway(&[]);
    let _first = begin(&mut gateway, 4000);
    assert_eq!(gateway.open_now(), 1, "the control");
    gateway.take(segment(4000, RST, (2, 0), &[]));
    gateway.turn();
    assert_eq!((gateway.open_now(), gateway.sockets.iter().count()), (0, 0));
    // Also if the next is accepted in the same round.
    let _second = begin(&mut gateway, 4001);
    gateway.take(segment(4001, RST, (2, 0), &[]));
    let _third = begin(&mut gateway, 4002);
    assert_eq!((gateway.open_now(), gateway.sockets.iter().count()), (1, 1));
    let (handle, _) = gateway.flows[&ends(4002)];
    let socket = gateway.sockets.get::<tcp::Socket<'_>>(handle);
    assert_eq!(socket.remote_endpoint().map(|end| end.port), Some(4002));
    let flags: Vec<u8> = received(&inside).iter().map(|packet| flags_and_number(packet).0).collect();
    assert_eq!(flags, [SYN | ACK; 3]);
}

#[test]
fn with_a_rate_it_waits_for_the_time_and_tells_what_it_has_carried() {
    const RATE: usize = 64 << 10;
    for rate in [Some(RATE as u64), None] {
        let (mut gateway, inside) = gateway_with(&[], EgressLimits { rate, ..EgressLimits::default() });
        let mut server = begin(&mut gateway, 4000);
        let (_, number) = flags_and_number(&received(&inside)[0]);
        gateway.take(segment(4000, ACK, (2, number + 1), &[]));
        // What an hour may bring has passed already.
        gateway.tally.count_down(3600 * RATE);
        let before = gateway.used().down;
        server.write_all(b"answer").unwrap();
        gateway.turn();
        // Without a limit, it comes: the control.
        while rate.is_none() && gateway.used().down == before {
            gateway.flows.values_mut().for_each(|(_, flow)| flow.wake(PollFlags::IN));
            gateway.turn();
        }
        let down = gateway.used().down - before;
        assert_eq!(down, if rate.is_some() { 0 } else { 6 });
        assert!(!gateway.busy, "nothing is tried again and again");
        assert_eq!(gateway.tally.next_opening().is_some(), rate.is_some());
        let told = gateway.last_news();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].port, &told[0].step), (Some(80), &NetworkStep::Closed { up: 0, down }));
    }
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
