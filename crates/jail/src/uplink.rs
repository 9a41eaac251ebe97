//! The uplink of a box: a pair of virtual Ethernet devices, one end of which is in the box. The packets at the other end
//! are read and written by a process outside, through a socket that PID 1 makes and hands out.
//!
//! Both devices are made by PID 1, with the rights it has over its own user namespace. So this needs no rights on the
//! host and no device file: `/dev/net/tun` must be opened inside the box's network namespace, by somebody who may open
//! it, and on many hosts only root may. The far end is in a network namespace of its own, in which nothing is configured.
//! It exists for as long as the socket does: without a gateway, the box has no network.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys::{self, checked};

/// The addresses of every box. They belong to no host (RFC 5737, RFC 3849), so no rule of a box can be about them.
pub const BOX_ADDRESSES: ([u8; 4], [u16; 8]) = ([192, 0, 2, 2], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
/// Where a box finds its name server: the gateway answers.
pub const NAME_SERVER: [u8; 4] = [192, 0, 2, 1];
/// The largest packet. It never leaves this host as such, so it is large, but small enough that a few of them fit into a
/// socket buffer.
pub const MTU: u16 = 16384;
/// What is in front of each packet: the two ends, and what it is.
pub const BOX_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The same of the gateway.
pub const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

const NAME_IN_BOX: &str = "eth0";
const NAME_OUTSIDE: &str = "gateway";
/// How much the socket holds for a gateway that has something else to do; the kernel takes less if it may not be so much.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Makes the uplink of the network namespace that this process is in. Returns the socket to the far end.
pub(crate) fn connect() -> io::Result<OwnedFd> {
    let inside = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let inside = namespace_of(&inside)?;
    sys::unshare(libc::CLONE_NEWNET)?;
    let socket = make_far_end(&inside);
    move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))?;
    let socket = socket?;
    configure_near_end()?;
    Ok(socket)
}

fn make_far_end(inside: &OwnedFd) -> io::Result<OwnedFd> {
    let route = Route::open()?;
    route.ask(&new_pair(inside))?;
    let index = netdevice::name_to_index(&route.0, NAME_OUTSIDE)?;
    // A socket that is bound to a device which is down begins with an error.
    route.ask(&bring_up(index))?;
    packet_socket(index)
}

/// Without IPv6 on this host, the box has none either.
fn configure_near_end() -> io::Result<()> {
    let route = Route::open()?;
    let index = netdevice::name_to_index(&route.0, NAME_IN_BOX)?;
    route.ask(&bring_up(index))?;
    let (v4, v6) = BOX_ADDRESSES;
    route.ask(&new_address(index, INET, &v4))?;
    route.ask(&default_route(index, INET))?;
    let v6: Vec<u8> = v6.iter().flat_map(|part| part.to_be_bytes()).collect();
    match route.ask(&new_address(index, INET6, &v6)) {
        Ok(()) => route.ask(&default_route(index, INET6)),
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EACCES | libc::EAFNOSUPPORT)) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

const INET: u8 = 2;
const INET6: u8 = 10;

/// The numbers of `linux/rtnetlink.h` and `linux/if_link.h`; not every C library's headers have them.
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
/// `IFF_UP`, and `IFF_NOARP`: there is one other end, so nobody has to be looked for.
const UP_WITHOUT_ARP: u32 = 0x1 | 0x80;

/// A message of `rtnetlink(7)`: a header, a fixed part and attributes.
struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

fn new_pair(inside: &OwnedFd) -> Message {
    let namespace = inside.as_raw_fd().to_ne_bytes();
    let peer = [
        link(0, 0),
        attribute(IFLA_IFNAME, &named(NAME_IN_BOX)),
        attribute(IFLA_MTU, &u32::from(MTU).to_ne_bytes()),
        attribute(IFLA_ADDRESS, &BOX_MAC),
        attribute(IFLA_NET_NS_FD, &namespace),
    ]
    .concat();
    let kind = attribute(IFLA_INFO_KIND, b"veth");
    let data = attribute(IFLA_INFO_DATA, &attribute(VETH_INFO_PEER, &peer));
    let body = [
        link(0, 0),
        attribute(IFLA_IFNAME, &named(NAME_OUTSIDE)),
        attribute(IFLA_MTU, &u32::from(MTU).to_ne_bytes()),
        attribute(IFLA_ADDRESS, &GATEWAY_MAC),
        attribute(IFLA_LINKINFO, &[kind, data].concat()),
    ]
    .concat();
    Message { kind: RTM_NEWLINK, flags: NLM_F_CREATE | NLM_F_EXCL, body }
}

fn bring_up(index: u32) -> Message {
    Message { kind: RTM_NEWLINK, flags: 0, body: link(index, UP_WITHOUT_ARP) }
}

/// `struct ifinfomsg`: the flags to set, and which of them to change.
fn link(index: u32, flags: u32) -> Vec<u8> {
    [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

/// An address of which nobody else is on the same link. `struct ifaddrmsg` before it.
fn new_address(index: u32, family: u8, address: &[u8]) -> Message {
    let (bits, flags) = if family == INET { (32, 0) } else { (128, IFA_F_NODAD) };
    let head = [[family, bits, flags, RT_SCOPE_UNIVERSE], index.to_ne_bytes()].concat();
    let body = [head, attribute(IFA_LOCAL, address), attribute(IFA_ADDRESS, address)].concat();
    Message { kind: RTM_NEWADDR, flags: NLM_F_CREATE | NLM_F_EXCL, body }
}

/// Everything else is on the link, as far as the box can tell. `struct rtmsg` before it.
fn default_route(index: u32, family: u8) -> Message {
    let scope = if family == INET { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
    let head = [family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST, 0, 0, 0, 0].to_vec();
    let body = [head, attribute(RTA_OIF, &index.to_ne_bytes())].concat();
    Message { kind: RTM_NEWROUTE, flags: NLM_F_CREATE | NLM_F_EXCL, body }
}

fn named(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// Its length, its kind and its value, filled up to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A socket of `rtnetlink(7)`.
struct Route(OwnedFd);

impl Route {
    fn open() -> io::Result<Route> {
        // No protocol means NETLINK_ROUTE, which is zero.
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        Ok(Route(rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?))
    }

    /// Sends a message, and returns the kernel's answer.
    fn ask(&self, message: &Message) -> io::Result<()> {
        let length = u32::try_from(message.body.len() + 16).unwrap_or(u32::MAX);
        let flags = message.flags | NLM_F_REQUEST | NLM_F_ACK;
        let mut bytes =
            [&length.to_ne_bytes()[..], &message.kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
        // The sequence number and the sender, which the kernel fills in.
        bytes.extend([0; 8]);
        bytes.extend(&message.body);
        rustix::net::send(&self.0, &bytes, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (_, length) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        match (answer.get(4..6), answer[..length.min(4096)].get(16..20)) {
            (Some(kind), Some(errno)) if kind == NLMSG_ERROR.to_ne_bytes() => {
                match i32::from_ne_bytes([errno[0], errno[1], errno[2], errno[3]]) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The network namespace of a socket, without a look at `/proc`.
fn namespace_of(socket: &OwnedFd) -> io::Result<OwnedFd> {
    /// As in `linux/sockios.h`.
    const SIOCGSKNS: libc::Ioctl = 0x894C;
    // SAFETY: SIOCGSKNS takes no argument and returns a new descriptor.
    let namespace = checked(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) }.into())?;
    let namespace = i32::try_from(namespace).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

/// A socket that reads and writes the packets of one device, with their Ethernet headers.
fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    /// `ETH_P_ALL` in the order of the network.
    const EVERYTHING: u16 = 3u16.to_be();
    /// As in `linux/if_packet.h`: not what the kernel itself sends from here.
    const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Without a protocol it receives nothing until it is bound, so nothing of other devices.
    // SAFETY: takes integers, and returns a new descriptor.
    let socket = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }.into())?;
    let socket = i32::try_from(socket).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let on: libc::c_int = 1;
    let size = u32::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads an integer of the given size, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            size,
        )
    };
    checked(set.into())?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, RECEIVE_BUFFER);
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: EVERYTHING,
        sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let size = u32::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads a sockaddr_ll of the given size, which outlives the call.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) }.into())?;
    Ok(socket)
}
