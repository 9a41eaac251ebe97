//! Packets of the box: what is needed of them to find the connection that they belong to, and the few that the gateway makes
//! itself. The bytes come from the code in the box, or rather from the kernel on its behalf.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const HOPS: u8 = 64;

/// A packet from the box.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    pub(crate) source: IpAddr,
    pub(crate) target: IpAddr,
    pub(crate) content: Content<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Tcp(Segment),
    Udp {
        source: u16,
        target: u16,
        payload: &'a [u8],
    },
    /// Somebody wants to know whether a host is there.
    Ping,
    /// What the kernel tells its neighbours, and everything else.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: u16,
    pub(crate) target: u16,
    sequence: u32,
    /// How far the sequence number advances.
    advance: u32,
    flags: u8,
}

impl Segment {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;

    /// Whether it is the first of a connection.
    pub(crate) fn opens(&self) -> bool {
        self.flags & (Segment::SYN | Segment::ACK | Segment::RST) == Segment::SYN
    }
}

impl<'a> Packet<'a> {
    /// `None` if it is malformed, or a fragment.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Packet<'a>> {
        match bytes.first()? >> 4 {
            4 => Packet::parse_v4(bytes),
            6 => Packet::parse_v6(bytes),
            _ => None,
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let head = bytes.first_chunk::<20>()?;
        let (start, end) =
            (usize::from(head[0] & 15) * 4, usize::from(u16::from_be_bytes([head[2], head[3]])));
        let is_fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
        if start < 20 || is_fragment {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?).into());
        let content = Content::parse(head[9], bytes.get(start..end)?)?;
        Some(Packet { source: address(12)?, target: address(16)?, content })
    }

    fn parse_v6(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let head = bytes.first_chunk::<40>()?;
        let end = usize::from(u16::from_be_bytes([head[4], head[5]])) + 40;
        let address = |at: usize| Some(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?).into());
        let content = Content::parse(head[6], bytes.get(40..end)?)?;
        Some(Packet { source: address(8)?, target: address(24)?, content })
    }
}

impl<'a> Content<'a> {
    fn parse(protocol: u8, bytes: &'a [u8]) -> Option<Content<'a>> {
        match (protocol, bytes.first()) {
            (TCP, _) => parse_segment(bytes).map(Content::Tcp),
            (UDP, _) => {
                let head = bytes.first_chunk::<8>()?;
                let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
                let payload = bytes.get(8..usize::from(port(4)))?;
                Some(Content::Udp { source: port(0), target: port(2), payload })
            }
            (ICMP, Some(8)) | (ICMP6, Some(128)) => Some(Content::Ping),
            _ => Some(Content::Other),
        }
    }
}

fn parse_segment(bytes: &[u8]) -> Option<Segment> {
    let head = bytes.first_chunk::<20>()?;
    let start = usize::from(head[12] >> 4) * 4;
    if start < 20 {
        return None;
    }
    let flags = head[13];
    let counted = [Segment::SYN, Segment::FIN].iter().filter(|flag| flags & **flag != 0).count();
    let advance = u32::try_from(bytes.get(start..)?.len() + counted).ok()?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let sequence = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    Some(Segment { source: port(0), target: port(2), sequence, advance, flags })
}

/// The answer that makes `connect` fail at once with `ECONNREFUSED`.
pub(crate) fn refuse_connection(source: IpAddr, target: IpAddr, segment: &Segment) -> Option<Vec<u8>> {
    let mut head = [0; 20];
    head[0..2].copy_from_slice(&segment.target.to_be_bytes());
    head[2..4].copy_from_slice(&segment.source.to_be_bytes());
    head[8..12].copy_from_slice(&segment.sequence.wrapping_add(segment.advance).to_be_bytes());
    head[12] = 5 << 4;
    head[13] = Segment::RST | Segment::ACK;
    let sum = transport_checksum(target, source, TCP, &head);
    head[16..18].copy_from_slice(&sum.to_be_bytes());
    packet(target, source, TCP, &head)
}

/// A datagram. `None` if it is too long for one.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len() + 8).ok()?;
    let (source, target) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    let mut bytes = [&source[..], &target, &length.to_be_bytes(), &[0, 0], payload].concat();
    let sum = match transport_checksum(from.ip(), to.ip(), UDP, &bytes) {
        0 => 0xffff,
        sum => sum,
    };
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    packet(from.ip(), to.ip(), UDP, &bytes)
}

/// The answer to a datagram that makes the next call on its socket fail with `ECONNREFUSED`.
pub(crate) fn refuse_datagram(source: IpAddr, target: IpAddr, original: &[u8]) -> Option<Vec<u8>> {
    let quoted = &original[..original.len().min(512)];
    let (protocol, kind, code) = if source.is_ipv4() { (ICMP, 3, 3) } else { (ICMP6, 1, 4) };
    let mut bytes = [&[kind, code, 0, 0, 0, 0, 0, 0], quoted].concat();
    let sum = match protocol {
        ICMP => fold(sum_of(&bytes)),
        _ => transport_checksum(target, source, ICMP6, &bytes),
    };
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(target, source, protocol, &bytes)
}

/// `None` if it is too long, or its two ends are of different kinds.
fn packet(source: IpAddr, target: IpAddr, protocol: u8, content: &[u8]) -> Option<Vec<u8>> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let length = u16::try_from(content.len() + 20).ok()?.to_be_bytes();
            let mut head = [0x45, 0, length[0], length[1], 0, 0, 0x40, 0, HOPS, protocol, 0, 0].to_vec();
            head.extend(source.octets().iter().chain(&target.octets()));
            let sum = fold(sum_of(&head));
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            Some([&head, content].concat())
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let length = u16::try_from(content.len()).ok()?.to_be_bytes();
            let head = [0x60, 0, 0, 0, length[0], length[1], protocol, HOPS];
            Some([&head[..], &source.octets(), &target.octets(), content].concat())
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// RFC 1071, with the addresses, the protocol and the length before the content.
fn transport_checksum(source: IpAddr, target: IpAddr, protocol: u8, content: &[u8]) -> u16 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => sum_of(&address.octets()),
        IpAddr::V6(address) => sum_of(&address.octets()),
    };
    let length = content.len() as u64;
    fold(octets(source) + octets(target) + u64::from(protocol) + length + sum_of(content))
}

fn sum_of(bytes: &[u8]) -> u64 {
    let word =
        |pair: &[u8]| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]));
    bytes.chunks(2).map(word).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum ^ 0xffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_datagram_reads_back_and_its_checksums_are_right() {
        for (from, to) in [("192.0.2.1:53", "192.0.2.2:4000"), ("[2001:db8::1]:53", "[2001:db8::2]:4000")] {
            let bytes = datagram(at(from), at(to), b"hello").unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.source, packet.target), (at(from).ip(), at(to).ip()));
            assert_eq!(packet.content, Content::Udp { source: 53, target: 4000, payload: b"hello" });
            let start = bytes.len() - 13;
            assert_eq!(transport_checksum(at(from).ip(), at(to).ip(), UDP, &bytes[start..]), 0);
            let refusal = refuse_datagram(packet.source, packet.target, &bytes).unwrap();
            assert!(refusal.ends_with(&bytes));
        }
        assert!(datagram(at("1.1.1.1:1"), at("[::1]:1"), b"").is_none());
        assert!(datagram(at("1.1.1.1:1"), at("1.1.1.1:1"), &[0; 65_530]).is_none());
    }

    #[test]
    fn a_refusal_acknowledges_the_first_segment() {
        let mut syn = [0; 20];
        syn[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
        syn[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        (syn[12], syn[13]) = (5 << 4, Segment::SYN);
        let (source, target) = (at("192.0.2.2:0").ip(), at("1.1.1.1:0").ip());
        let bytes = packet(source, target, TCP, &syn).unwrap();
        let Packet { content: Content::Tcp(segment), .. } = Packet::parse(&bytes).unwrap() else { panic!() };
        assert!(segment.opens());
        let reset = refuse_connection(source, target, &segment).unwrap();
        let answer = Packet::parse(&reset).unwrap();
        let Content::Tcp(segment) = answer.content else { panic!() };
        assert_eq!((answer.source, segment.source, segment.target), (target, 80, 12345));
        assert_eq!(segment.flags, Segment::RST | Segment::ACK);
        assert_eq!(&reset[28..32], &[0; 4], "the sequence number after the largest one");
        assert!(!segment.opens());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes: Vec<u8>, first in prop::sample::select(&[0x45u8, 0x46, 0x4f, 0x60, 0][..])) {
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn fragments_are_no_packets(offset in 1u16..0x2000) {
            let mut bytes = datagram(at("1.1.1.1:1"), at("2.2.2.2:2"), b"x").unwrap();
            bytes[6..8].copy_from_slice(&offset.to_be_bytes());
            prop_assert_eq!(Packet::parse(&bytes), None);
        }
    }
}
