//! Looks at what a connection sends first, and holds it back until it has shown a name that is allowed.

use std::rc::Rc;

use belljar_core::egress::{Egress, Reason};

use crate::http::Requests;
use crate::tls::{self, After, Hello, Shown};
use crate::vault::{Door, Relay, Vault};

/// Longer than any method of HTTP.
const MAX_METHOD: usize = 32;
/// The registered methods of HTTP and the beginning of HTTP/2. Only for what need not be HTTP: a message that begins with no such
/// word is not held back until there is a line of it.
#[rustfmt::skip]
const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY", "PROPFIND",
    "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN",
    "CHECKOUT", "LABEL", "LINK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKREDIRECTREF", "MKWORKSPACE",
    "ORDERPATCH", "PURGE", "REBIND", "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UPDATE",
    "UPDATEREDIRECTREF", "VERSION-CONTROL", "PRI",
];
/// The longest request line.
const MAX_LINE: usize = 16 << 10;
/// The most of a connection that is held back until it has shown its name.
const MAX_HELD: usize = 128 << 10;

/// What a connection has to show.
#[derive(Debug)]
pub(crate) struct Demand {
    /// What the box may reach.
    pub(crate) egress: Rc<Egress>,
    /// The port that the connection goes to.
    pub(crate) port: u16,
    /// One of these names; any, or none at all, if there is no list.
    pub(crate) names: Option<Vec<String>>,
    /// Whether it may be something that shows no name.
    pub(crate) opaque: bool,
    /// The names that the address was found under.
    pub(crate) known: Vec<String>,
    /// The secrets of the box.
    pub(crate) vault: Rc<Vault>,
}

/// What was refused, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The name that it showed, if it did.
    pub(crate) name: Option<String>,
    /// Why.
    pub(crate) reason: Reason,
}

/// Why a relay cannot go on.
#[derive(Debug)]
#[cfg_attr(not(feature = "secrets"), allow(dead_code, reason = "without secrets there is no relay"))]
pub(crate) enum Broken {
    Refused(Refused),
    /// One of its ends does not speak as it should.
    Over,
}

/// The sender's half of one connection.
#[derive(Debug)]
pub(crate) struct Inspector {
    demand: Demand,
    kind: Kind,
    held: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Unknown,
    Tls,
    /// It has shown its name, but may show another one, perhaps after early data.
    TlsAgain {
        early_data: bool,
    },
    Http(Requests),
    /// It is for a host that has a secret. Nothing of it has been passed on.
    Relayed(Rc<Door>, String),
    /// Nothing more has to be looked at.
    Passed,
}

impl Inspector {
    /// For a new connection.
    #[must_use]
    pub(crate) fn new(demand: Demand) -> Inspector {
        Inspector { demand, kind: Kind::Unknown, held: Vec::new() }
    }

    /// Whether everything else may pass without a look.
    #[must_use]
    pub(crate) fn has_passed(&self) -> bool {
        matches!(self.kind, Kind::Passed) && self.held.is_empty()
    }

    /// What carries the connection from now on, if it is for a host that has a secret.
    pub(crate) fn take_relay(&mut self) -> Option<Result<Relay, Broken>> {
        let Kind::Relayed(door, name) = &self.kind else { return None };
        let (door, names) = (door.clone(), vec![name.clone()]);
        let held = std::mem::take(&mut self.held);
        let demand = Demand {
            egress: self.demand.egress.clone(),
            port: self.demand.port,
            names: Some(names),
            opaque: false,
            known: Vec::new(),
            vault: Rc::default(),
        };
        Some(Relay::new(&door, demand, held))
    }

    /// Takes what was sent, and appends to `out` what may be passed on.
    ///
    /// # Errors
    /// The connection must end. Nothing but what is in `out` may be passed on.
    pub(crate) fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        if let Kind::Http(requests) = &mut self.kind {
            return pass_requests(requests, &self.demand, bytes, out);
        }
        self.held.extend_from_slice(bytes);
        loop {
            let before = std::mem::discriminant(&self.kind);
            match &self.kind {
                Kind::Unknown => self.recognize()?,
                Kind::Tls => self.read_hello(out)?,
                Kind::TlsAgain { early_data } => self.read_further(*early_data, out)?,
                Kind::Http(_) => return self.begin_requests(out),
                Kind::Relayed(..) => {}
                Kind::Passed => out.append(&mut self.held),
            }
            if before == std::mem::discriminant(&self.kind) {
                break;
            }
        }
        if self.held.len() > MAX_HELD { Err(protocol()) } else { Ok(()) }
    }

    /// Decides what it is, once there is enough of it.
    fn recognize(&mut self) -> Result<(), Refused> {
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        // Servers pass over empty lines in front of a request.
        let empty = self.held.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let line = &self.held[empty..];
        let word = line.iter().take_while(|byte| is_token(byte)).count();
        let has_line =
            line.iter().position(|byte| *byte == b'\n').is_some_and(|end| is_request_line(&line[..end]));
        let may_be_request = has_line || begins_a_method(&line[..word]);
        let kind = match line.get(word) {
            _ if line.is_empty() && self.held.len() < MAX_LINE => return Ok(()),
            _ if self.held[0] == 22 => Some(Kind::Tls),
            _ if self.demand.opaque && !may_be_request => None,
            None if word < MAX_METHOD => return Ok(()),
            Some(b' ') if (1..MAX_METHOD).contains(&word) => {
                match line.iter().position(|byte| *byte == b'\n') {
                    None if line.len() < MAX_LINE => return Ok(()),
                    // What comes in front of it is read with it, and refused.
                    Some(end) if is_request_line(&line[..end]) => Some(Kind::Http(Requests::default())),
                    _ => None,
                }
            }
            _ => None,
        };
        self.kind = match kind {
            Some(kind) => kind,
            None if self.demand.opaque => Kind::Passed,
            None => return Err(protocol()),
        };
        Ok(())
    }

    fn read_hello(&mut self, out: &mut Vec<u8>) -> Result<(), Refused> {
        let hello = match tls::client_hello(&self.held) {
            Ok(hello) => hello,
            Err(reason) => return Err(Refused { name: None, reason }),
        };
        if let Hello::Complete { shown, length } = hello {
            self.demand.accept_hello(&shown)?;
            if let Some((door, name)) = self.demand.door(&shown)? {
                self.kind = Kind::Relayed(door, name);
                return Ok(());
            }
            out.extend(self.held.drain(..length));
            self.kind = Kind::TlsAgain { early_data: shown.early_data };
        }
        Ok(())
    }

    fn read_further(&mut self, early_data: bool, out: &mut Vec<u8>) -> Result<(), Refused> {
        loop {
            let after = tls::after_hello(&self.held, early_data);
            match after.map_err(|reason| Refused { name: None, reason })? {
                After::Skip(length) => out.extend(self.held.drain(..length)),
                After::Hello => break self.kind = Kind::Tls,
                After::Secret => break self.kind = Kind::Passed,
                After::Incomplete => break,
            }
        }
        Ok(())
    }

    fn begin_requests(&mut self, out: &mut Vec<u8>) -> Result<(), Refused> {
        let held = std::mem::take(&mut self.held);
        match &mut self.kind {
            Kind::Http(requests) => pass_requests(requests, &self.demand, &held, out),
            Kind::Unknown | Kind::Tls | Kind::TlsAgain { .. } | Kind::Relayed(..) | Kind::Passed => Ok(()),
        }
    }
}

impl Demand {
    fn accept(&self, name: Option<&str>) -> Result<(), Refused> {
        let Some(name) = name else {
            return match self.names {
                Some(_) => Err(Refused { name: None, reason: Reason::NoName }),
                None => Ok(()),
            };
        };
        let name = plain(name);
        let allowed = match self.egress.show(&name, self.port) {
            Ok(()) if self.names.as_ref().is_some_and(|names| !names.contains(&name)) => {
                Err(Reason::OtherName)
            }
            judged => judged,
        };
        allowed.map_err(|reason| Refused { name: Some(name), reason })
    }

    /// The same for a `ClientHello`. A name that may be a cover for another one is as good as none, but not better.
    fn accept_hello(&self, shown: &Shown) -> Result<(), Refused> {
        let name = shown.name.as_deref();
        if shown.hidden {
            name.map_or(Ok(()), |name| self.refuse_denied(name))?;
            return self.accept(None);
        }
        self.accept(name)
    }

    /// The way to a host that has a secret, if the `ClientHello` is for one. The address must be one that was found under
    /// that name.
    fn door(&self, shown: &Shown) -> Result<Option<(Rc<Door>, String)>, Refused> {
        let Some(name) = shown.name.as_deref().filter(|_| !shown.hidden) else { return Ok(None) };
        let name = plain(name);
        match self.vault.door(&name, self.port) {
            Some(_) if !self.known.contains(&name) => {
                Err(Refused { name: Some(name), reason: Reason::OtherName })
            }
            door => Ok(door.map(|door| (door, name))),
        }
    }

    /// The same for a host of HTTP, which may have a port.
    fn accept_host(&self, host: &str) -> Result<(), Refused> {
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let (name, port) = host.rsplit_once(':').filter(|(_, port)| is_port(port)).unwrap_or((host, ""));
        self.refuse_denied(name)?;
        if self.vault.knows(&plain(name)) {
            return Err(Refused { name: Some(plain(name)), reason: Reason::Clear });
        }
        let own = port.is_empty() || port.parse() == Ok(self.port);
        self.accept(Some(if own { name } else { host }))
    }

    fn refuse_denied(&self, name: &str) -> Result<(), Refused> {
        let name = plain(name);
        self.egress.show(&name, self.port).map_err(|reason| Refused { name: Some(name), reason })
    }
}

fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Passes requests on to hosts that are allowed.
pub(crate) fn pass_requests(
    requests: &mut Requests,
    demand: &Demand,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let mut refused = None;
    let mut accept = |host: &str| match demand.accept_host(host) {
        Ok(()) => Ok(()),
        Err(refusal) => {
            let reason = refusal.reason;
            refused = Some(refusal);
            Err(reason)
        }
    };
    let passed = requests.pass(bytes, out, &mut accept);
    passed.map_err(|reason| refused.unwrap_or(Refused { name: None, reason }))
}

fn begins_a_method(word: &[u8]) -> bool {
    !word.is_empty() && METHODS.iter().any(|method| method.as_bytes().starts_with(word))
}

fn is_request_line(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.windows(6).any(|word| word.eq_ignore_ascii_case(b" HTTP/"))
}

fn protocol() -> Refused {
    Refused { name: None, reason: Reason::Protocol }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::{extension, hello, sni};
    use belljar_core::egress::Rule;
    use proptest::prelude::*;

    fn inspector(names: Option<&[&str]>, opaque: bool, deny: &[&str]) -> Inspector {
        let deny = deny.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let names = names.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let egress = Rc::new(Egress::from_rules(None, deny));
        Inspector::new(Demand { egress, port: 443, names, opaque, known: Vec::new(), vault: Rc::default() })
    }

    fn pass(mut inspector: Inspector, bytes: &[u8], piece: usize) -> (Vec<u8>, Result<(), Reason>) {
        let mut out = Vec::new();
        let ended = bytes.chunks(piece).try_for_each(|part| inspector.pass(part, &mut out));
        (out, ended.map_err(|refused| refused.reason))
    }

    fn named() -> Inspector {
        inspector(Some(&["good.org"]), false, &[])
    }

    #[test]
    fn tls_passes_with_the_name_and_only_with_it() {
        let secret = [23, 3, 3, 0, 2, 1, 2];
        for piece in [1, 60, 9999] {
            let good = [hello(&[sni("Good.org")], 50), vec![20, 3, 3, 0, 1, 1], secret.to_vec()].concat();
            assert_eq!(pass(named(), &good, piece), (good.clone(), Ok(())));
            let evil = [hello(&[sni("evil.org")], 50), secret.to_vec()].concat();
            assert_eq!(pass(named(), &evil, piece), (vec![], Err(Reason::OtherName)));
            let none = hello(&[extension(10, &[0])], 50);
            assert_eq!(pass(named(), &none, piece), (vec![], Err(Reason::NoName)));
            let hidden = hello(&[sni("good.org"), extension(0xfe0d, &[0])], 50);
            assert_eq!(pass(named(), &hidden, piece), (vec![], Err(Reason::NoName)));
        }
    }

    #[test]
    fn a_second_hello_must_show_the_name_too() {
        let first = hello(&[sni("good.org")], 9999);
        let between = [20, 3, 3, 0, 1, 1];
        let evil = [&first[..], &between, &hello(&[sni("evil.org")], 9999)].concat();
        assert_eq!(pass(named(), &evil, 7), ([&first[..], &between].concat(), Err(Reason::OtherName)));
        for piece in [1, 5] {
            let pieces = [&first[..], &[21, 3, 3, 0, 2, 1, 0], &hello(&[sni("evil.org")], piece)].concat();
            assert_eq!(pass(named(), &pieces, 7).1, Err(Reason::OtherName), "{piece}");
        }
        let early = hello(&[sni("good.org"), extension(42, &[])], 9999);
        let evil = [&early[..], &[23, 3, 3, 0, 1, 1], &hello(&[sni("evil.org")], 9999)].concat();
        assert_eq!(pass(named(), &evil, 7).1, Err(Reason::OtherName), "after early data");
        let good = [&first[..], &between, &first, &[23, 3, 3, 0, 1, 1]].concat();
        assert_eq!(pass(named(), &good, 7), (good.clone(), Ok(())), "the control");
    }

    #[test]
    fn http_passes_with_the_name_and_its_own_port() {
        for (host, ended) in [
            ("good.org", Ok(())),
            ("GOOD.org.", Ok(())),
            ("good.org:443", Ok(())),
            ("good.org:80", Err(Reason::OtherName)),
            ("evil.org", Err(Reason::OtherName)),
            ("127.0.0.1", Err(Reason::OtherName)),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(pass(named(), request.as_bytes(), 9).1, ended, "{host}");
        }
    }

    #[test]
    fn what_shows_no_name_passes_only_where_that_is_allowed() {
        for text in
            ["SSH-2.0-x\r\n", "\0\0\0\x08\x04\x52\x16\x2f", " GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\n"]
        {
            assert_eq!(pass(named(), text.as_bytes(), 3).1, Err(Reason::Protocol), "{text:?}");
        }
        let opaque = || inspector(Some(&["good.org"]), true, &[]);
        for text in ["SSH-2.0-x\r\n", "x", "HELO", "GETX"] {
            assert_eq!(pass(opaque(), text.as_bytes(), 3), (text.as_bytes().to_vec(), Ok(())), "{text:?}");
        }
        assert_eq!(pass(opaque(), b"GET", 3), (Vec::new(), Ok(())), "it may become a request");
        assert_eq!(pass(opaque(), &hello(&[sni("evil.org")], 99), 3).1, Err(Reason::OtherName));
        assert_eq!(pass(opaque(), b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n", 3).1, Err(Reason::OtherName));
    }

    #[test]
    fn where_everything_is_allowed_only_denied_names_are_refused() {
        let open = || inspector(None, true, &["evil.org"]);
        assert_eq!(pass(open(), &hello(&[sni("evil.org")], 99), 9).1, Err(Reason::Denied));
        assert_eq!(pass(open(), b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n", 9).1, Err(Reason::Denied));
        let hidden = |name: &str| hello(&[sni(name), extension(0xfe0d, &[0])], 99);
        assert_eq!(pass(open(), &hidden("evil.org"), 9).1, Err(Reason::Denied), "beside a hidden name");
        assert_eq!(pass(open(), &hidden("any.org"), 9).1, Ok(()), "the control");
        for request in
            ["GET / HTTP/1.1\r\nHost: evil.org:81\r\n\r\n", "MKCALENDAR / HTTP/1.1\r\nHost: evil.org\r\n\r\n"]
        {
            assert_eq!(pass(open(), request.as_bytes(), 9).1, Err(Reason::Denied), "{request}");
            let other = request.replace("evil", "any");
            assert_eq!(pass(open(), other.as_bytes(), 9).1, Ok(()), "the control: {other}");
        }
        let after_an_empty_line = "\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n";
        assert_eq!(pass(open(), after_an_empty_line.as_bytes(), 9).1, Err(Reason::Protocol));
        assert_eq!(pass(open(), &hello(&[sni("any.org")], 99), 9).1, Ok(()));
        assert_eq!(pass(open(), &hello(&[], 99), 9).1, Ok(()));
    }

    proptest! {
        #[test]
        fn nothing_passes_before_a_name_was_shown(bytes: Vec<u8>, piece in 1usize..50) {
            prop_assert_eq!(pass(named(), &bytes, piece).0, Vec::<u8>::new());
        }
    }
}
