//! Where packets would go, as the kernel's routing table has it. Asking sends nothing.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// As in `linux/rtnetlink.h` and `linux/netlink.h`.
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const NLM_F_REQUEST: u16 = 1;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
/// Before each message: its length, kind, flags, number and sender.
const HEADER: usize = 16;
/// Where `rtm_type` is.
const TYPE: usize = HEADER + 7;

/// Where packets to an address would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    /// The address is one of this host's.
    Own,
    None,
}

/// A socket of `rtnetlink(7)`. It has no right to change anything once the process has none.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: OwnedFd,
    asked: Cell<u32>,
}

impl Routes {
    pub(crate) fn open() -> io::Result<Routes> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol means NETLINK_ROUTE, which is zero.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Routes { socket, asked: Cell::new(0) })
    }

    /// The type of the route decides, because its source address does not tell: packets to a second address of the host
    /// come from the first.
    pub(crate) fn way_to(&self, address: IpAddr) -> Way {
        match self.kind_of_route(address.to_canonical()) {
            Some(RTN_UNICAST) => Way::Out,
            Some(RTN_LOCAL | RTN_BROADCAST | RTN_ANYCAST) => Way::Own,
            Some(_) | None => Way::None,
        }
    }

    fn kind_of_route(&self, address: IpAddr) -> Option<u8> {
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        rustix::net::send(&self.socket, &question(address, number), SendFlags::empty()).ok()?;
        let mut answer = [0; 4096];
        // The kernel has answered by now. An earlier answer may be there that could not be read.
        loop {
            let (_, length) = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty()).ok()?;
            let answer = &answer[..length];
            if answer.get(8..12)? == number.to_ne_bytes() {
                let is_route = answer.get(4..6)? == RTM_NEWROUTE.to_ne_bytes();
                return answer.get(TYPE).copied().filter(|_| is_route);
            }
        }
    }
}

/// The message with its header, a `struct rtmsg` and the address.
fn question(address: IpAddr, number: u32) -> Vec<u8> {
    /// `AF_INET` and `AF_INET6`, as the one byte that `struct rtmsg` has for them.
    const INET: u8 = 2;
    const INET6: u8 = 10;
    let (family, bits, octets) = match address {
        IpAddr::V4(address) => (INET, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (INET6, 128, address.octets().to_vec()),
    };
    let route = [family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // The attribute has a header of four bytes.
    let attribute = 4 + u16::from(bits / 8);
    let length = 28 + u32::from(attribute);
    [
        &length.to_ne_bytes()[..],
        &RTM_GETROUTE.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &number.to_ne_bytes(),
        &[0; 4],
        &route,
        &attribute.to_ne_bytes(),
        &RTA_DST.to_ne_bytes(),
        &octets,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is one way here is not on every machine, except for these. The tests of networks have the rest.
    #[test]
    fn the_kernel_knows_its_own_addresses() {
        let routes = Routes::open().unwrap();
        for own in ["127.0.0.1", "127.3.2.1", "::ffff:127.0.0.1"] {
            assert_eq!(routes.way_to(own.parse().unwrap()), Way::Own, "{own}");
        }
        for nowhere in ["224.0.0.1", "240.0.0.1"] {
            assert_ne!(routes.way_to(nowhere.parse().unwrap()), Way::Own, "{nowhere}");
        }
        assert_eq!(routes.asked.get(), 5);
    }

    #[test]
    fn an_answer_to_an_earlier_question_is_not_taken() {
        let routes = Routes::open().unwrap();
        let earlier = question("224.0.0.1".parse().unwrap(), 77);
        rustix::net::send(&routes.socket, &earlier, SendFlags::empty()).unwrap();
        assert_eq!(routes.way_to("127.0.0.1".parse().unwrap()), Way::Own);
    }
}
