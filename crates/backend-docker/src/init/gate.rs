//! Restricts a network to the public internet, with a packet filter (nftables) in its namespace. The filter sees every
//! packet that leaves. Routes would not do: a program that names the interface (`SO_BINDTODEVICE`, `IP_PKTINFO`) is not
//! held by them.

use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use crate::frame::Said;

/// What is not the public internet (RFC 6890), and multicast.
const REFUSED: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];
const DNS: u16 = 53;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TABLE: &str = "belljar";
const CHAIN: &str = "output";

/// Restricts the network, says so, and keeps it until the line is closed.
pub(super) fn keep() -> ExitCode {
    let said = match restrict() {
        Ok(()) => Said::Started,
        Err(error) => Said::Failed(error.raw_os_error().unwrap_or_default(), error.to_string()),
    };
    let mut out = io::stdout().lock();
    let told = said.write(&mut out).and_then(|()| out.flush());
    if told.is_err() || !matches!(said, Said::Started) {
        return ExitCode::FAILURE;
    }
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    ExitCode::SUCCESS
}

fn restrict() -> io::Result<()> {
    let mut filter = Filter::default();
    filter.begin(Family::V4, Policy::Accept);
    filter.rule(Family::V4, &[to_loopback(), verdict(Policy::Accept)]);
    // Names are resolved by a server that is often in a private network.
    for server in name_servers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()) {
        for protocol in [UDP, TCP] {
            let question =
                [to_network(server, 32), of_protocol(protocol), to_port(DNS), verdict(Policy::Accept)];
            filter.rule(Family::V4, &question);
        }
    }
    let attached = attached_networks(&fs::read_to_string("/proc/net/route")?);
    for (network, length) in attached.iter().chain(REFUSED) {
        filter.rule(Family::V4, &[to_network(*network, *length), reject()]);
    }
    // For IPv6 there is no list of what is public, so all of it is refused.
    if fs::metadata("/proc/net/if_inet6").is_ok() {
        filter.begin(Family::V6, Policy::Drop);
        filter.rule(Family::V6, &[to_loopback(), verdict(Policy::Accept)]);
    }
    filter.load()
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy)]
enum Policy {
    Accept,
    Drop,
}

impl Policy {
    /// From linux/netfilter.h.
    fn number(self) -> u32 {
        match self {
            Policy::Drop => 0,
            Policy::Accept => 1,
        }
    }
}

/// Messages that the kernel takes as a whole or not at all (linux/netfilter/nf_tables.h).
#[derive(Default)]
struct Filter {
    messages: Vec<u8>,
    count: usize,
}

impl Filter {
    /// A table with one chain, which every packet passes that the namespace sends.
    fn begin(&mut self, family: Family, policy: Policy) {
        const NEW_TABLE: u8 = 0;
        const NEW_CHAIN: u8 = 3;
        const LOCAL_OUT: u32 = 3;
        self.push(family, NEW_TABLE, &text(1, TABLE));
        let hook = nested(4, &[number(1, LOCAL_OUT), number(2, 0)]);
        let policy = number(5, policy.number());
        self.push(
            family,
            NEW_CHAIN,
            &[text(1, TABLE), text(3, CHAIN), hook, policy, text(7, "filter")].concat(),
        );
    }

    /// A rule: what has to be true, and what happens then.
    fn rule(&mut self, family: Family, expressions: &[Vec<u8>]) {
        const NEW_RULE: u8 = 6;
        let rule = [text(1, TABLE), text(2, CHAIN), nested(4, expressions)].concat();
        self.push(family, NEW_RULE, &rule);
    }

    fn push(&mut self, family: Family, kind: u8, attributes: &[u8]) {
        const NFTABLES: u16 = 10;
        // NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_APPEND.
        const FLAGS: u16 = 0x1 | 0x4 | 0x400 | 0x800;
        let family = match family {
            Family::V4 => 2,
            Family::V6 => 10,
        };
        self.messages.extend(message(NFTABLES << 8 | u16::from(kind), FLAGS, [family, 0, 0, 0], attributes));
        self.count += 1;
    }

    fn load(&self) -> io::Result<()> {
        const BEGIN: u16 = 0x10;
        const END: u16 = 0x11;
        // The subsystem, in network byte order.
        let edge = |kind: u16| message(kind, 0x1, [0, 0, 0, 10], &[]);
        let batch = [edge(BEGIN), self.messages.clone(), edge(END)].concat();
        let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(NETFILTER))?;
        rustix::net::sendto(&socket, &batch, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut acknowledged = 0;
        let mut answer = vec![0; 16 << 10];
        // The kernel has answered by the time the message is sent.
        loop {
            match rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => acknowledged += acknowledgements(&answer[..count])?,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if acknowledged == self.count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn message(kind: u16, flags: u16, head: [u8; 4], attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + head.len() + attributes.len()).unwrap_or_default();
    // The sequence number and the port are not needed.
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    [&header[..], &head, attributes].concat()
}

/// How many messages were accepted. The first that was not is an error.
fn acknowledgements(mut answer: &[u8]) -> io::Result<usize> {
    let mut count = 0;
    while let Some(head) = answer.first_chunk::<20>() {
        let [a, b, c, d, _, _, _, _, _, _, _, _, _, _, _, _, e, f, g, h] = *head;
        match i32::from_ne_bytes([e, f, g, h]) {
            0 => count += 1,
            errno => return Err(io::Error::from_raw_os_error(-errno)),
        }
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        answer = answer.get(length.max(head.len()).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or_default();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    const NESTED: u16 = 0x8000;
    attribute(NESTED | kind, &attributes.concat())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// An expression of a rule, as an element of its list.
fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)])
}

/// The register that expressions pass a value in.
const REGISTER: u32 = 1;

/// Whether the value in the register is this one.
fn equals(value: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, REGISTER), number(2, 0), nested(3, &[attribute(1, value)])])
}

/// Takes a part of the packet: of its network header (1) or its transport header (2).
fn part(header: u32, offset: u32, length: u32) -> Vec<u8> {
    expression("payload", &[number(1, REGISTER), number(2, header), number(3, offset), number(4, length)])
}

fn to_network(network: Ipv4Addr, length: u8) -> Vec<u8> {
    let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0).to_be_bytes();
    let (from, to, size) = (number(1, REGISTER), number(2, REGISTER), number(3, 4));
    let (mask, flip) = (nested(4, &[attribute(1, &mask)]), nested(5, &[attribute(1, &[0; 4])]));
    [part(1, 16, 4), expression("bitwise", &[from, to, size, mask, flip]), equals(&network.octets())].concat()
}

fn of_protocol(protocol: u8) -> Vec<u8> {
    const PROTOCOL: u32 = 16;
    [expression("meta", &[number(1, REGISTER), number(2, PROTOCOL)]), equals(&[protocol])].concat()
}

fn to_port(port: u16) -> Vec<u8> {
    [part(2, 2, 2), equals(&port.to_be_bytes())].concat()
}

/// The loopback interface is the first of every namespace.
fn to_loopback() -> Vec<u8> {
    const INTERFACE: u32 = 5;
    [expression("meta", &[number(1, REGISTER), number(2, INTERFACE)]), equals(&1_u32.to_ne_bytes())].concat()
}

fn verdict(policy: Policy) -> Vec<u8> {
    let code = nested(2, &[number(1, policy.number())]);
    expression("immediate", &[number(1, 0), nested(2, &[code])])
}

/// Tells the program that the network is prohibited (ICMP, type 3, code 13), so that it does not wait.
fn reject() -> Vec<u8> {
    expression("reject", &[number(1, 0), attribute(2, &[13])])
}

/// From resolv.conf(5).
fn name_servers(text: &str) -> Vec<Ipv4Addr> {
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok());
    // Those of the namespace's own loopback can be reached anyway.
    servers.filter(|server: &Ipv4Addr| !server.is_loopback()).collect()
}

/// The networks that are reached without a gateway, whatever addresses they have: the host and other containers are
/// there. From the table of proc_pid_net(5), whose addresses are hexadecimal numbers as they are in memory.
fn attached_networks(table: &str) -> Vec<(Ipv4Addr, u8)> {
    let address = |word: &str| Some(Ipv4Addr::from(u32::from_str_radix(word, 16).ok()?.to_ne_bytes()));
    let network = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, destination, gateway, _, _, _, _, mask, ..] = words.as_slice() else { return None };
        let length = u8::try_from(address(mask)?.to_bits().count_ones()).ok()?;
        (address(gateway)?.is_unspecified() && length > 0).then_some((address(destination)?, length))
    };
    table.lines().skip(1).filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_their_length_is_not() {
        assert_eq!(attribute(7, b"filter\0"), [&[11, 0, 7, 0][..], b"filter\0\0"].concat());
        assert_eq!(number(2, 3), [8, 0, 2, 0, 0, 0, 0, 3]);
        let length = u32::try_from(message(1, 1, [0; 4], &number(2, 3)).len()).unwrap();
        assert_eq!(message(1, 1, [0; 4], &number(2, 3))[..4], length.to_ne_bytes());
    }

    #[test]
    fn the_kernel_says_what_was_wrong() {
        let answer =
            |errno: i32| [&36_u32.to_ne_bytes()[..], &[0; 12], &errno.to_ne_bytes(), &[0; 16]].concat();
        assert_eq!(acknowledgements(&[answer(0), answer(0)].concat()).unwrap(), 2);
        let refused = acknowledgements(&[answer(0), answer(-1)].concat());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(1));
        assert_eq!(acknowledgements(&[]).unwrap(), 0);
    }

    #[test]
    fn name_servers_and_attached_networks_are_read() {
        let text = "search a\nnameserver 192.168.0.1\nnameserver 127.0.0.11\nnameserver ::1\n";
        assert_eq!(name_servers(text), [Ipv4Addr::new(192, 168, 0, 1)]);
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        assert_eq!(attached_networks(table), [(Ipv4Addr::new(172, 17, 0, 0), 16)]);
    }
}
