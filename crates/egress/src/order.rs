//! What a gateway is told at its start, and what it tells meanwhile and at its end. All of it is lines of text: what comes
//! back is from a process that strangers talk to.

use std::fmt::Write;
use std::net::SocketAddr;

use belljar_core::egress::{Egress, NetworkEvent, NetworkStep, Rule};
use belljar_core::outcome::{DeniedHost, NetworkUse};

use crate::news::MAX_WAITING;
use crate::secret::Secret;

/// The most refusals that are listed.
pub(crate) const MAX_DENIED: usize = 64;
/// The longest report that is read.
pub(crate) const MAX_REPORT: u64 = 256 << 10;
/// The longest host and reason in it.
const MAX_TEXT: usize = 255;

/// What comes before the certificates, which come last.
const ROOTS: &str = "roots\n";

/// What a gateway is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What the box may reach.
    pub egress: Egress,
    /// The name servers to ask, in this order.
    pub servers: Vec<SocketAddr>,
    /// How much.
    pub limits: EgressLimits,
    /// What to add to its requests.
    pub secrets: Vec<Secret>,
    /// The certificates, as PEM, with which the hosts of the secrets are verified.
    pub roots: String,
}

/// How much a box may do with its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections at a time.
    pub connections: u32,
    /// New ones in a second.
    pub connections_per_second: u32,
    /// Bytes that may leave the box.
    pub up: Option<u64>,
    /// Bytes that may come into it.
    pub down: Option<u64>,
    /// Bytes in a second, in each direction.
    pub rate: Option<u64>,
}

impl Default for EgressLimits {
    fn default() -> EgressLimits {
        EgressLimits { connections: 1024, connections_per_second: 500, up: None, down: None, rate: None }
    }
}

impl Order {
    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |word: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{word} {value}");
        };
        match self.egress.allowed() {
            None => line("allow", &"public"),
            Some(rules) => rules.iter().for_each(|rule| line("allow", rule)),
        }
        self.egress.denied().iter().for_each(|rule| line("deny", rule));
        self.servers.iter().for_each(|server| line("server", server));
        let EgressLimits { connections, connections_per_second, up, down, rate } = self.limits;
        line("connections", &connections);
        line("connections-per-second", &connections_per_second);
        up.iter().for_each(|up| line("up", up));
        down.iter().for_each(|down| line("down", down));
        rate.iter().for_each(|rate| line("rate", rate));
        self.secrets.iter().for_each(|secret| line("secret", &secret.to_words()));
        text + ROOTS + &self.roots
    }

    /// From text. `None` unless all of it is understood.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Order> {
        let (mut public, mut allow, mut deny, mut servers) = (false, Vec::new(), Vec::new(), Vec::new());
        let (mut limits, mut secrets) = (EgressLimits::default(), Vec::new());
        let (text, roots) = text.split_once(ROOTS)?;
        for line in text.lines() {
            match line.split_once(' ')? {
                ("allow", "public") => public = true,
                ("allow", rule) => allow.push(Rule::parse(rule).ok()?),
                ("deny", rule) => deny.push(Rule::parse(rule).ok()?),
                ("server", address) => servers.push(address.parse().ok()?),
                ("connections", number) => limits.connections = number.parse().ok()?,
                ("connections-per-second", number) => limits.connections_per_second = number.parse().ok()?,
                ("up", number) => limits.up = Some(number.parse().ok()?),
                ("down", number) => limits.down = Some(number.parse().ok()?),
                ("rate", number) => limits.rate = Some(number.parse().ok()?),
                ("secret", words) => secrets.push(Secret::from_words(words)?),
                _ => return None,
            }
        }
        let allow = if public { None } else { Some(allow) };
        let (egress, roots) = (Egress::from_rules(allow, deny), roots.to_owned());
        Some(Order { egress, servers, limits, secrets, roots })
    }
}

/// One event, as a line of text without its end.
pub(crate) fn event_line(event: &NetworkEvent) -> String {
    let NetworkEvent { host, port, step, count } = event;
    let (host, port) = (plain(host), port.unwrap_or_default());
    let step = match step {
        NetworkStep::Allowed => "allowed".to_owned(),
        NetworkStep::Refused(reason) => format!("refused\t{}", plain(reason)),
        NetworkStep::Failed => "failed".to_owned(),
        NetworkStep::Closed { up, down } => format!("closed\t{up}\t{down}"),
        NetworkStep::Omitted => "omitted".to_owned(),
    };
    format!("event\t{host}\t{port}\t{count}\t{step}")
}

/// From such a line, if it is one.
pub(crate) fn read_event(line: &str) -> Option<NetworkEvent> {
    let words: Vec<&str> = line.split('\t').collect();
    let (["event", host, port, count], step) = words.split_first_chunk::<4>()? else { return None };
    let step = match step {
        ["allowed"] => NetworkStep::Allowed,
        ["refused", reason] => NetworkStep::Refused(plain(reason)),
        ["failed"] => NetworkStep::Failed,
        ["closed", up, down] => NetworkStep::Closed { up: up.parse().ok()?, down: down.parse().ok()? },
        ["omitted"] => NetworkStep::Omitted,
        _ => return None,
    };
    let port = port.parse().ok().filter(|port| *port > 0);
    Some(NetworkEvent { host: plain(host), port, step, count: count.parse().ok()? })
}

/// What a box did with its network, and the events that were not told before, as text.
pub(crate) fn report(used: &NetworkUse, rest: &[NetworkEvent]) -> String {
    let NetworkUse { up, down, denied } = used;
    let mut text = format!("up\t{up}\ndown\t{down}\n");
    for DeniedHost { host, port, reason, count } in denied {
        let port = port.unwrap_or_default();
        let _ = writeln!(text, "denied\t{}\t{port}\t{count}\t{}", plain(host), plain(reason));
    }
    rest.iter().for_each(|event| text += &(event_line(event) + "\n"));
    text
}

/// From text. What cannot be understood is left out.
pub(crate) fn read_report(text: &str) -> (NetworkUse, Vec<NetworkEvent>) {
    let (mut used, mut rest) = (NetworkUse::default(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["up", number] => used.up = number.parse().unwrap_or_default(),
            ["down", number] => used.down = number.parse().unwrap_or_default(),
            ["denied", host, port, count, reason] if used.denied.len() < MAX_DENIED => {
                let port = port.parse().ok().filter(|port| *port > 0);
                let count = count.parse().unwrap_or(1);
                used.denied.push(DeniedHost { host: plain(host), port, reason: plain(reason), count });
            }
            // One more says what was left out.
            _ if rest.len() <= MAX_WAITING => rest.extend(read_event(line)),
            _ => {}
        }
    }
    (used, rest)
}

/// Text that is safe to show.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(MAX_TEXT).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_order_reads_back() {
        let rules = |texts: &[&str]| texts.iter().map(|text| Rule::parse(text).unwrap()).collect::<Vec<_>>();
        let limits = EgressLimits {
            connections: 3,
            connections_per_second: 2,
            up: Some(1),
            down: None,
            rate: Some(7),
        };
        for allow in [None, Some(rules(&["example.org:443", "[fd00::1]:80"])), Some(Vec::new())] {
            let egress = Egress::from_rules(allow, rules(&["*.evil.org", "10.0.0.0/8"]));
            let servers = vec!["127.0.0.53:53".parse().unwrap(), "[::1]:53".parse().unwrap()];
            let secrets = vec![crate::secret::tests::secret("api.example.com", "hidden-value")];
            let order = Order { egress, servers, limits, secrets, roots: "-----BEGIN\nx\n".to_owned() };
            assert!(!format!("{order:?}").contains("hidden-value"), "{order:?}");
            assert_eq!(Order::from_text(&order.to_text()), Some(order));
        }
        assert_eq!(Order::from_text("allow public\nmore x\nroots\n"), None);
        assert_eq!(Order::from_text("allow 127.0.0.1\nroots\n"), None);
        assert_eq!(Order::from_text("allow public\n"), None);
        assert!(Order::from_text("allow public\nroots\n").is_some(), "the control");
    }

    #[test]
    fn a_report_reads_back_and_can_do_no_harm() {
        let denied =
            DeniedHost { host: "a\tb\n\x1b[31m".into(), port: Some(80), reason: "why".into(), count: 3 };
        let used = NetworkUse { up: 1, down: 2, denied: vec![denied] };
        let (read, _) = read_report(&report(&used, &[]));
        assert_eq!((read.up, read.down, read.denied[0].host.as_str()), (1, 2, "a?b??[31m"));
        let many = "denied\ta\t1\t1\tb\n".repeat(1000);
        assert_eq!(read_report(&many).0.denied.len(), MAX_DENIED);
        let many = "event\ta\t1\t1\tallowed\n".repeat(1000);
        assert_eq!(read_report(&many).1.len(), MAX_WAITING + 1);
    }

    #[test]
    fn an_event_reads_back_and_can_do_no_harm() {
        let steps = [
            NetworkStep::Allowed,
            NetworkStep::Refused("not allowed".into()),
            NetworkStep::Failed,
            NetworkStep::Closed { up: 1, down: u64::MAX },
            NetworkStep::Omitted,
        ];
        let events = steps.map(|step| NetworkEvent { host: "a.org".into(), port: Some(443), step, count: 2 });
        assert_eq!(read_report(&report(&NetworkUse::default(), &events)).1, events);
        let step = NetworkStep::Refused("\x1b]0;x\x07\u{202e}".into());
        let hostile = NetworkEvent { host: "a\tallowed\n\u{9b}".into(), port: None, step, count: 1 };
        let read = read_event(&event_line(&hostile)).unwrap();
        assert_eq!((read.host.as_str(), read.port), ("a?allowed??", None));
        assert_eq!(read.step, NetworkStep::Refused("?]0;x??".into()));
        let long = NetworkEvent { host: "x".repeat(10_000), ..hostile };
        assert!(event_line(&long).len() < 1000);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = Order::from_text(&text);
            let _ = read_report(&text);
            let _ = read_event(&format!("event\t{text}"));
        }
    }
}
