//! One rule: a host and ports, as in `allow:HOST[:PORT[/udp]]`.

use std::fmt;
use std::net::IpAddr;

use super::address::{Block, Class};
use super::{QUIC, SHARED, Transport};
use crate::{Field, Invalid};

/// The most rules that a network has.
pub const MAX_RULES: usize = 256;
/// The longest name that DNS has.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Hosts and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Which hosts.
    pub host: Host,
    /// Which ports of theirs.
    pub ports: Ports,
    /// Over which transport, if it says that. A rule that allows says so for QUIC, which no other rule allows.
    pub only: Option<Transport>,
}

/// Which hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// The one of this name, in lower case.
    Name(String),
    /// Those whose names end with a dot and this name, in lower case.
    Beneath(String),
    /// Those with these addresses.
    Addresses(Block),
}

/// A range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Rule {
    /// `name`, `*.name`, an address or `address/bits`, each with `:port` or `:from-to` or neither. An IPv6 address with
    /// a port stands in brackets. Behind ports, `/tcp` and `/udp` restrict the rule to one transport.
    ///
    /// # Errors
    /// Anything else, and addresses that no box can reach.
    pub fn parse(text: &str) -> Result<Rule, Invalid> {
        let invalid = |why: &str| {
            let message = format!("'{}' is no host: {why}", text.escape_debug());
            let hint = "write a name, *.name, an address or a CIDR, each with :port or :from-to or \
                        neither, such as allow:example.org:443,10.1.0.0/16:5432";
            Invalid::new(Field::Network, message, hint)
        };
        let (host, ports) = split(text).ok_or_else(|| invalid("it cannot be taken apart"))?;
        let (ports, only) = match ports.map(|ports| ports.split_once('/').unwrap_or((ports, ""))) {
            None => (Ports::ALL, None),
            Some((ports, only)) => (
                Ports::parse(ports).ok_or_else(|| invalid("its ports are not a range"))?,
                match only {
                    "" if !text.ends_with('/') => None,
                    "tcp" => Some(Transport::Tcp),
                    "udp" => Some(Transport::Udp),
                    _ => return Err(invalid("what is behind the slash is neither tcp nor udp")),
                },
            ),
        };
        let host = Host::parse(host).map_err(invalid)?;
        Ok(Rule { host, ports, only })
    }

    /// As a rule that allows: whether it does so for this transport and port.
    #[must_use]
    pub fn carries(&self, transport: Transport, port: u16) -> bool {
        let is_quic = transport == Transport::Udp && port == QUIC;
        self.ports.contains(port) && self.only.map_or(!is_quic, |only| only == transport)
    }

    /// As a rule that denies: the same. It needs no word for QUIC.
    #[must_use]
    pub fn refuses(&self, transport: Transport, port: u16) -> bool {
        self.ports.contains(port) && self.only.is_none_or(|only| only == transport)
    }

    /// For a name: whether something may pass to this port that shows no name. Datagrams show none, so that who asks for them
    /// alone means it.
    pub(super) fn is_opaque_at(&self, port: u16) -> bool {
        self.only == Some(Transport::Udp) || self.ports != Ports::ALL && !SHARED.contains(&port)
    }

    /// Whether everything that the other one allows is allowed by this one.
    #[must_use]
    pub fn covers(&self, other: &Rule) -> bool {
        // A name with ports may be spoken to in any protocol there; one without must show itself, as HTTP or TLS.
        let is_address = matches!(other.host, Host::Addresses(_));
        let shows =
            |ports: Ports| ports == Ports::ALL || SHARED.contains(&ports.first) && ports.first == ports.last;
        self.ports.first <= other.ports.first
            && other.ports.last <= self.ports.last
            && self.host.covers(&other.host)
            && match (self.only, other.only) {
                // Datagrams alone may go to ports where those of other rules may not.
                (Some(Transport::Udp), Some(Transport::Udp)) => true,
                (None, Some(Transport::Udp)) if is_address => !other.ports.contains(QUIC),
                (None, Some(Transport::Udp)) => {
                    self.ports != Ports::ALL && !SHARED.iter().any(|port| other.ports.contains(*port))
                }
                (Some(own), only) if only != Some(own) => false,
                _ => is_address || self.ports != Ports::ALL || shows(other.ports),
            }
    }

    /// Whether it allows QUIC.
    #[must_use]
    pub fn is_for_quic(&self) -> bool {
        self.carries(Transport::Udp, QUIC)
    }

    /// Whether it names one address, and so may mean the host that Belljar runs on.
    #[must_use]
    pub fn is_one_address(&self) -> bool {
        matches!(&self.host, Host::Addresses(block) if block.is_one())
    }

    /// Whether it names addresses that are not public hosts'.
    #[must_use]
    pub fn is_special(&self) -> bool {
        matches!(&self.host, Host::Addresses(block) if block.class().is_some())
    }
}

impl Host {
    fn parse(text: &str) -> Result<Host, &'static str> {
        if let Some(block) = parse_block(text)? {
            return match block.class() {
                Some(Class::Loopback) => Err("no box can reach the loopback of its host"),
                Some(class) if class.is_never_reachable() => Err("no host has such an address"),
                _ => Ok(Host::Addresses(block)),
            };
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        match name.strip_prefix("*.") {
            Some(suffix) if is_name(suffix) => Ok(Host::Beneath(suffix.to_owned())),
            None if is_name(&name) => Ok(Host::Name(name)),
            _ => Err("it is neither a name nor an address"),
        }
    }

    /// Whether it is a rule for this name, which is in lower case.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        match self {
            Host::Name(own) => own == name,
            Host::Beneath(suffix) => is_beneath(name, suffix),
            Host::Addresses(_) => false,
        }
    }

    /// Whether a rule with this host names this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Host::Addresses(block) => block.contains(address),
            Host::Name(_) | Host::Beneath(_) => false,
        }
    }

    fn covers(&self, other: &Host) -> bool {
        match (self, other) {
            (_, Host::Name(name)) => self.names(name),
            (Host::Beneath(own), Host::Beneath(suffix)) => own == suffix || is_beneath(suffix, own),
            (Host::Addresses(own), Host::Addresses(block)) => {
                // A wide block does not name the private addresses in it; the narrow one does.
                own.includes(*block) && (block.class().is_none() || own.class().is_some())
            }
            (Host::Name(_) | Host::Beneath(_), Host::Addresses(_))
            | (Host::Name(_) | Host::Addresses(_), Host::Beneath(_)) => false,
        }
    }
}

impl Ports {
    /// All of them.
    pub const ALL: Ports = Ports { first: 1, last: u16::MAX };

    fn parse(text: &str) -> Option<Ports> {
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|port| plain && *port > 0)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(Ports { first, last })
    }

    /// The port, if it is one.
    #[must_use]
    pub fn only(self) -> Option<u16> {
        (self.first == self.last).then_some(self.first)
    }

    /// Whether this port is among them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// Whether this is a name of DNS, in lower case, that nothing takes for an address: `127.1`, `0x7f000001` and
/// `2130706433` are addresses to the C library.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    let label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_NAME
        && text.split('.').all(label)
        && !last.starts_with(|first: char| first.is_ascii_digit())
}

fn is_beneath(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// The host and the ports of a rule.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        // Only an IPv6 address needs brackets.
        return match after.strip_prefix(':') {
            _ if !host.contains(':') => None,
            None if after.is_empty() => Some((host, None)),
            None => None,
            Some(ports) => Some((host, Some(ports))),
        };
    }
    match text.split_once(':') {
        None => Some((text, None)),
        Some((_, rest)) if rest.contains(':') => Some((text, None)),
        Some((host, ports)) => Some((host, Some(ports))),
    }
}

fn parse_block(text: &str) -> Result<Option<Block>, &'static str> {
    let Some((address, bits)) = text.split_once('/') else {
        return Ok(text.parse::<IpAddr>().ok().map(Block::one));
    };
    let address: IpAddr = address.parse().map_err(|_| "what is before the slash is no address")?;
    let bits = bits.parse().map_err(|_| "what is behind the slash is no number of bits")?;
    Block::new(address, bits).map(Some).ok_or("an address does not have as many bits")
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.host {
            Host::Name(name) => name.clone(),
            Host::Beneath(suffix) => format!("*.{suffix}"),
            Host::Addresses(block) => block.to_string(),
        };
        match self.ports {
            Ports::ALL if self.only.is_none() => return f.write_str(&host),
            ports if host.contains(':') => write!(f, "[{host}]:{ports}")?,
            ports => write!(f, "{host}:{ports}")?,
        }
        match self.only {
            None => Ok(()),
            Some(Transport::Tcp) => f.write_str("/tcp"),
            Some(Transport::Udp) => f.write_str("/udp"),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ports { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}
