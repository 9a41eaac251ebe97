//! What a box may reach: rules on hosts and ports, and the judgement on one connection. Pure: nothing is resolved or
//! connected to here.
//!
//! Two kinds of rules must not be confused. A rule with an *address* says where packets may go. A rule with a *name* says
//! whom the code may talk to; where packets then go is decided by whoever answers for that name, who may be an attacker.
//! So an address that belongs to no public host is reachable only through a rule that is itself an address.

mod address;
mod event;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

pub use address::{Block, Class, canonical};
pub use event::{NetworkEvent, NetworkStep};
pub use rule::{Host, MAX_RULES, Ports, Rule, is_name};

use crate::request::Network;

/// The two transports that a box has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The port of HTTP over QUIC, whose names nobody but its two ends can read.
pub(crate) const QUIC: u16 = 443;
/// Ports on which many names share an address. What goes there by name must show the name.
pub(crate) const SHARED: [u16; 2] = [80, 443];

/// What a box may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// The rules, one of which must match; `None` is the public internet.
    allow: Option<Vec<Rule>>,
    /// None of these may match. They win.
    deny: Vec<Rule>,
}

/// What a connection must show before anything of it is passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passage {
    /// Nothing: its address is allowed, whatever is there.
    Free,
    /// One of these names, because only they are allowed, and they share an address with others.
    Named {
        /// The names, in lower case.
        names: Vec<String>,
        /// Whether it may also be of a kind that shows no name (neither TLS nor HTTP).
        opaque: bool,
    },
}

/// Why something is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule names it.
    NotAllowed,
    /// A rule of the operator refuses it.
    Denied,
    /// It is no address of a public host, and no rule names it by address.
    Special(Class),
    /// The host's own address.
    OwnAddress,
    /// QUIC, which no rule allows.
    Quic,
    /// Neither TCP nor UDP.
    Transport,
    /// The TLS handshake or the HTTP request shows another name.
    OtherName,
    /// It shows no name, or hides it.
    NoName,
    /// It is no TLS or HTTP that can be understood.
    Protocol,
    /// Plain HTTP to a host that has a secret.
    Clear,
    /// The certificate of a host that has a secret cannot be verified.
    Untrusted,
    /// Too many connections at a time.
    TooMany,
    /// Too many new connections or questions in a second.
    TooFast,
    /// As many bytes as allowed have been sent or received.
    Spent,
    /// The gateway has ended.
    Lost,
}

impl Egress {
    /// What a network means; `None` for no network at all. A rule that cannot be understood allows nothing.
    #[must_use]
    pub fn new(network: &Network, deny: Vec<Rule>) -> Option<Egress> {
        let allow = match network {
            Network::None => return None,
            Network::Full => None,
            Network::Allow(rules) => Some(rules.iter().filter_map(|text| Rule::parse(text).ok()).collect()),
        };
        Some(Egress { allow, deny })
    }

    /// From its parts.
    #[must_use]
    pub fn from_rules(allow: Option<Vec<Rule>>, deny: Vec<Rule>) -> Egress {
        Egress { allow, deny }
    }

    /// The rules, one of which must match; `None` is the public internet.
    #[must_use]
    pub fn allowed(&self) -> Option<&[Rule]> {
        self.allow.as_deref()
    }

    /// The rules that win.
    #[must_use]
    pub fn denied(&self) -> &[Rule] {
        &self.deny
    }

    /// Whether a name may be looked up, on account of any port.
    ///
    /// # Errors
    /// Why not.
    pub fn resolve(&self, name: &str) -> Result<(), Reason> {
        let refuses = |rule: &Rule| rule.ports == Ports::ALL && rule.only.is_none() && rule.host.names(name);
        if self.deny.iter().any(refuses) {
            return Err(Reason::Denied);
        }
        match &self.allow {
            None => Ok(()),
            Some(rules) if rules.iter().any(|rule| rule.host.names(name)) => Ok(()),
            Some(_) => Err(Reason::NotAllowed),
        }
    }

    /// Whether a name may stand for this address at all. An attacker's name may point anywhere; to an address that is
    /// not public only if a rule names that address as well.
    ///
    /// # Errors
    /// The address is nothing that a name may stand for.
    pub fn answer(&self, address: IpAddr) -> Result<(), Reason> {
        let Some(class) = Class::of(address) else { return Ok(()) };
        let named = |rule: &Rule| match &rule.host {
            Host::Addresses(block) => block.contains(address) && block.class().is_some(),
            Host::Name(_) | Host::Beneath(_) => false,
        };
        let named = self.allow.as_ref().is_some_and(|rules| rules.iter().any(named));
        if named && !class.is_never_reachable() { Ok(()) } else { Err(Reason::Special(class)) }
    }

    /// Judges a connection to an address that these names were resolved to, for this box.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn connect(
        &self,
        transport: Transport,
        address: IpAddr,
        port: u16,
        resolved: &[&str],
    ) -> Result<Passage, Reason> {
        let (address, class) = (canonical(address), Class::of(address));
        if let Some(class) = class.filter(|class| class.is_never_reachable()) {
            return Err(Reason::Special(class));
        }
        if self.deny.iter().any(|rule| rule.refuses(transport, port) && rule.host.contains(address)) {
            return Err(Reason::Denied);
        }
        // An address that was only found under names which are refused is refused, whatever is sent there.
        if !resolved.is_empty() && resolved.iter().all(|name| self.refuses(transport, name, port)) {
            return Err(Reason::Denied);
        }
        if transport == Transport::Udp && port == QUIC && !self.opens_quic(address, resolved) {
            return Err(Reason::Quic);
        }
        if self.is_named_by_address(transport, address, port) {
            return Ok(Passage::Free);
        }
        match (class, &self.allow) {
            (Some(class), _) => Err(Reason::Special(class)),
            (None, None) => Ok(Passage::Free),
            (None, Some(rules)) => self.by_name(rules, transport, port, resolved),
        }
    }

    /// Whether a rule for datagrams alone names this host, by address or by name. No other rule opens the port of QUIC.
    fn opens_quic(&self, address: IpAddr, resolved: &[&str]) -> bool {
        let opens = |rule: &Rule| {
            rule.carries(Transport::Udp, QUIC)
                && (rule.host.contains(address) || resolved.iter().any(|name| rule.host.names(name)))
        };
        self.allow.as_ref().is_some_and(|rules| rules.iter().any(opens))
    }

    /// Whether a rule names this address, and not merely a range of which it is a part: `0.0.0.0/0` names no address
    /// of a private network.
    fn is_named_by_address(&self, transport: Transport, address: IpAddr, port: u16) -> bool {
        let (address, class) = (canonical(address), Class::of(address));
        let names = |rule: &Rule| match &rule.host {
            Host::Addresses(block) => {
                rule.carries(transport, port)
                    && block.contains(address)
                    && (class.is_none() || block.class().is_some())
            }
            Host::Name(_) | Host::Beneath(_) => false,
        };
        self.allow.as_ref().is_some_and(|rules| rules.iter().any(names))
    }

    /// Whether a rule names this very address, and no other one.
    #[must_use]
    pub fn names_exactly(&self, transport: Transport, address: IpAddr, port: u16) -> bool {
        let only = Block::one(address);
        let names = |rule: &Rule| rule.host == Host::Addresses(only) && rule.carries(transport, port);
        self.allow.as_ref().is_some_and(|rules| rules.iter().any(names))
    }

    /// Whether a connection of any passage may show this name on this port.
    ///
    /// # Errors
    /// A rule of the operator refuses the name.
    pub fn show(&self, name: &str, port: u16) -> Result<(), Reason> {
        if self.refuses(Transport::Tcp, name, port) { Err(Reason::Denied) } else { Ok(()) }
    }

    fn refuses(&self, transport: Transport, name: &str, port: u16) -> bool {
        self.deny.iter().any(|rule| rule.refuses(transport, port) && rule.host.names(name))
    }

    /// Whether connections that may go anywhere must be looked into all the same, because some names are refused.
    #[must_use]
    pub fn refuses_names(&self) -> bool {
        self.deny.iter().any(|rule| !matches!(rule.host, Host::Addresses(_)))
    }

    fn by_name(
        &self,
        rules: &[Rule],
        transport: Transport,
        port: u16,
        resolved: &[&str],
    ) -> Result<Passage, Reason> {
        let mut opaque = false;
        let mut names = Vec::new();
        for name in resolved.iter().filter(|name| !self.refuses(transport, name, port)) {
            let matches = |rule: &&Rule| rule.carries(transport, port) && rule.host.names(name);
            let mut matching = rules.iter().filter(matches).peekable();
            if matching.peek().is_some() {
                names.push((*name).to_owned());
            }
            opaque |= matching.any(|rule| rule.is_opaque_at(port));
        }
        match (names.is_empty(), transport) {
            (true, _) => Err(Reason::NotAllowed),
            // A datagram shows no name.
            (false, Transport::Udp) if !opaque => Err(Reason::NotAllowed),
            (false, _) => Ok(Passage::Named { names, opaque }),
        }
    }
}

impl Reason {
    /// For a person.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Reason::NotAllowed => "not allowed".to_owned(),
            Reason::Denied => "denied by the operator".to_owned(),
            Reason::Special(class) => format!("{class} address"),
            Reason::OwnAddress => "an address of the host itself".to_owned(),
            Reason::Quic => "QUIC is switched off".to_owned(),
            Reason::Transport => "neither TCP nor UDP".to_owned(),
            Reason::OtherName => "shows another name".to_owned(),
            Reason::NoName => "shows no name".to_owned(),
            Reason::Protocol => "neither TLS nor HTTP that can be verified".to_owned(),
            Reason::Clear => "plain HTTP to a host that has a secret".to_owned(),
            Reason::Untrusted => "its certificate cannot be verified".to_owned(),
            Reason::TooMany => "too many connections".to_owned(),
            Reason::TooFast => "too many new connections a second".to_owned(),
            Reason::Spent => "no bytes left".to_owned(),
            Reason::Lost => "the gateway ended, and the network with it".to_owned(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
