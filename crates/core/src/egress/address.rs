//! Addresses: which of them belong to public hosts.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is, if it is no address of a public host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the registries of special addresses")]
pub enum Class {
    Unspecified,
    Loopback,
    Private,
    Shared,
    LinkLocal,
    Metadata,
    Documentation,
    Benchmarking,
    Multicast,
    Broadcast,
    Translated,
    Reserved,
}

/// A block of addresses: those that have the first bits in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    first: IpAddr,
    bits: u8,
}

/// The special blocks, the more specific ones first: RFC 6890, RFC 9637, and the addresses of metadata services that lie
/// among public ones.
const SPECIAL: &[(Class, &str, u8)] = &[
    (Class::Metadata, "169.254.169.254", 32),
    (Class::Metadata, "168.63.129.16", 32),
    (Class::Metadata, "100.100.100.200", 32),
    (Class::Metadata, "fd00:ec2::254", 128),
    (Class::Broadcast, "255.255.255.255", 32),
    (Class::Unspecified, "0.0.0.0", 8),
    (Class::Loopback, "127.0.0.0", 8),
    (Class::Private, "10.0.0.0", 8),
    (Class::Private, "172.16.0.0", 12),
    (Class::Private, "192.168.0.0", 16),
    (Class::Shared, "100.64.0.0", 10),
    (Class::LinkLocal, "169.254.0.0", 16),
    (Class::Documentation, "192.0.2.0", 24),
    (Class::Documentation, "198.51.100.0", 24),
    (Class::Documentation, "203.0.113.0", 24),
    (Class::Benchmarking, "198.18.0.0", 15),
    (Class::Translated, "192.88.99.0", 24),
    (Class::Reserved, "192.0.0.0", 24),
    (Class::Multicast, "224.0.0.0", 4),
    (Class::Reserved, "240.0.0.0", 4),
    (Class::Unspecified, "::", 128),
    (Class::Loopback, "::1", 128),
    (Class::Multicast, "ff00::", 8),
    (Class::LinkLocal, "fe80::", 10),
    (Class::Private, "fec0::", 10),
    (Class::Private, "fc00::", 7),
    (Class::Translated, "64:ff9b::", 96),
    (Class::Translated, "64:ff9b:1::", 48),
    (Class::Translated, "2002::", 16),
    (Class::Translated, "2001::", 32),
    (Class::Documentation, "2001:db8::", 32),
    (Class::Documentation, "3fff::", 20),
    (Class::Benchmarking, "2001:2::", 48),
    (Class::Reserved, "2001::", 23),
    (Class::Reserved, "5f00::", 16),
];

/// Addresses of public hosts have these first bits in IPv6.
const GLOBAL: Block = Block { first: IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)), bits: 3 };

impl Class {
    /// What this address is; `None` for a public host's.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Class> {
        let address = canonical(address);
        let special = special_blocks().find(|(_, block)| block.contains(address)).map(|(class, _)| class);
        match address {
            IpAddr::V6(_) if special.is_none() && !GLOBAL.contains(address) => Some(Class::Reserved),
            IpAddr::V4(_) | IpAddr::V6(_) => special,
        }
    }

    /// Whether not even a rule that names it makes it reachable: there is no such host, or it would be the one that
    /// Belljar runs on.
    #[must_use]
    pub fn is_never_reachable(self) -> bool {
        match self {
            Class::Unspecified | Class::Loopback | Class::Multicast | Class::Broadcast => true,
            Class::Private
            | Class::Shared
            | Class::LinkLocal
            | Class::Metadata
            | Class::Documentation
            | Class::Benchmarking
            | Class::Translated
            | Class::Reserved => false,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Unspecified => "an unspecified",
            Class::Loopback => "a loopback",
            Class::Private => "a private",
            Class::Shared => "a carrier's (CGNAT)",
            Class::LinkLocal => "a link-local",
            Class::Metadata => "a metadata",
            Class::Documentation => "a documentation",
            Class::Benchmarking => "a benchmarking",
            Class::Multicast => "a multicast",
            Class::Broadcast => "a broadcast",
            Class::Translated => "a translated (NAT64, 6to4 or Teredo)",
            Class::Reserved => "a reserved",
        })
    }
}

impl Block {
    /// One address.
    #[must_use]
    pub fn one(address: IpAddr) -> Block {
        let first = canonical(address);
        Block { first, bits: width(first) }
    }

    /// The addresses that share so many bits with this one; `None` if it does not have as many.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Block> {
        if bits > width(address) {
            return None;
        }
        let first = canonical(address);
        // A block of mapped addresses is one of IPv4 addresses, unless it reaches beyond them.
        let bits = if first.is_ipv4() && address.is_ipv6() { bits.checked_sub(96)? } else { bits };
        Some(Block { first: masked(first, bits), bits })
    }

    /// Whether it has a single address.
    #[must_use]
    pub fn is_one(self) -> bool {
        self.bits == width(self.first)
    }

    /// Whether it has this address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = canonical(address);
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.bits) == self.first
    }

    /// Whether it has all of these.
    #[must_use]
    pub fn includes(self, other: Block) -> bool {
        self.bits <= other.bits && self.contains(other.first)
    }

    /// The class of all of its addresses; `None` if it has public ones, too.
    #[must_use]
    pub fn class(self) -> Option<Class> {
        let special = special_blocks().find(|(_, block)| block.includes(self)).map(|(class, _)| class);
        let outside = self.first.is_ipv6() && !GLOBAL.contains(self.first) && self.bits >= GLOBAL.bits;
        special.or(outside.then_some(Class::Reserved))
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.bits < width(self.first) { write!(f, "/{}", self.bits) } else { Ok(()) }
    }
}

/// The address that packets go to: an IPv4 address in the clothes of IPv6 is an IPv4 address.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn special_blocks() -> impl Iterator<Item = (Class, Block)> {
    let block = |(class, first, bits): &(Class, &str, u8)| {
        Some((*class, Block { first: first.parse().ok()?, bits: *bits }))
    };
    SPECIAL.iter().filter_map(block)
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or_default();
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or_default();
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}
