//! The few messages of DNS that a gateway needs (RFC 1035): questions of the box, questions to the host's name server, and
//! the answers to both. Neither side is trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest time for which the box may remember an answer, in seconds.
const LONGEST_TTL: u32 = 60;
/// The most addresses in an answer.
pub(crate) const MAX_ADDRESSES: usize = 16;

const RESPONSE: u16 = 0x8000;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const OPCODE: u16 = 0x7800;
const CODE: u16 = 0x000f;
const CLASS_INTERNET: u16 = 1;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    V4,
    V6,
    /// Whatever else there is of a name.
    Other(u16),
}

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Found,
    Failed,
    NoSuchName,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: u16,
    /// In lower case, without a dot at the end.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// As it was written, to be repeated in the answer.
    section: Vec<u8>,
}

/// An answer of the host's name server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ttl: u32,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Kind::V4 => 1,
            Kind::V6 => 28,
            Kind::Other(number) => number,
        }
    }

    fn of(number: u16) -> Kind {
        match number {
            1 => Kind::V4,
            28 => Kind::V6,
            other => Kind::Other(other),
        }
    }
}

impl Question {
    /// Reads a question of the box. `None` if it is none, or one that no resolver asks.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Question> {
        let (id, flags, counts) = header(bytes)?;
        if flags & (RESPONSE | OPCODE) != 0 || counts[0] != 1 {
            return None;
        }
        let (name, kind, end) = question(bytes)?;
        Some(Question { id, name, kind, section: bytes[12..end].to_vec() })
    }

    /// The same question for the host's name server, with a number of its own.
    pub(crate) fn to_server(&self, id: u16) -> Option<Vec<u8>> {
        let mut bytes = head(id, RECURSION_DESIRED, 0, 1);
        for label in self.name.split('.') {
            bytes.push(u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length))?);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend([self.kind.number(), CLASS_INTERNET].iter().flat_map(|number| number.to_be_bytes()));
        // The longest answer that is certain to arrive (RFC 6891).
        bytes.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
        Some(bytes)
    }

    /// The answer to the box.
    pub(crate) fn answer(&self, outcome: Outcome, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let code = match outcome {
            Outcome::Found => 0,
            Outcome::Failed => 2,
            Outcome::NoSuchName => 3,
        };
        let count = u16::try_from(addresses.len()).unwrap_or_default();
        let mut bytes = head(self.id, RESPONSE | RECURSION_DESIRED | RECURSION_AVAILABLE | code, count, 0);
        bytes.extend(&self.section);
        for address in addresses {
            let (kind, data) = match address {
                IpAddr::V4(address) => (Kind::V4, address.octets().to_vec()),
                IpAddr::V6(address) => (Kind::V6, address.octets().to_vec()),
            };
            // The name is that of the question, which begins after the head.
            bytes.extend([0xc0, 12]);
            bytes.extend([kind.number(), CLASS_INTERNET].iter().flat_map(|number| number.to_be_bytes()));
            bytes.extend(ttl.min(LONGEST_TTL).to_be_bytes());
            bytes.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    /// Reads the answer of the host's name server to [`to_server`](Question::to_server). `None` if it is not that.
    pub(crate) fn read_answer(&self, id: u16, bytes: &[u8]) -> Option<Answer> {
        let (answered, flags, counts) = header(bytes)?;
        let (name, kind, mut at) = question(bytes)?;
        if answered != id || flags & RESPONSE == 0 || name != self.name || kind != self.kind {
            return None;
        }
        let outcome = match flags & CODE {
            0 => Outcome::Found,
            3 => Outcome::NoSuchName,
            _ => Outcome::Failed,
        };
        let mut answer = Answer { outcome, addresses: Vec::new(), ttl: LONGEST_TTL };
        for _ in 0..counts[1] {
            // A truncated answer ends where it ends.
            let Some((record, end)) = record(bytes, at) else { break };
            at = end;
            if record.kind == self.kind && answer.addresses.len() < MAX_ADDRESSES {
                answer.addresses.extend(record.address());
                answer.ttl = answer.ttl.min(record.ttl);
            }
        }
        Some(answer)
    }
}

struct Record<'a> {
    kind: Kind,
    ttl: u32,
    data: &'a [u8],
}

impl Record<'_> {
    fn address(&self) -> Option<IpAddr> {
        match self.kind {
            Kind::V4 => <[u8; 4]>::try_from(self.data).ok().map(|octets| Ipv4Addr::from(octets).into()),
            Kind::V6 => <[u8; 16]>::try_from(self.data).ok().map(|octets| Ipv6Addr::from(octets).into()),
            Kind::Other(_) => None,
        }
    }
}

fn record(bytes: &[u8], at: usize) -> Option<(Record<'_>, usize)> {
    let at = skip_name(bytes, at)?;
    let fixed = bytes.get(at..)?.first_chunk::<10>()?;
    let (kind, class) = (u16::from_be_bytes([fixed[0], fixed[1]]), u16::from_be_bytes([fixed[2], fixed[3]]));
    let ttl = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    let end = at + 10 + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
    let kind = if class == CLASS_INTERNET { Kind::of(kind) } else { Kind::Other(0) };
    Some((Record { kind, ttl, data: bytes.get(at + 10..end)? }, end))
}

/// A name, or the end of one that begins elsewhere.
fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..64 => at += usize::from(length) + 1,
            192.. => return Some(at + 2),
            _ => return None,
        }
    }
}

fn head(id: u16, flags: u16, answers: u16, additional: u16) -> Vec<u8> {
    [id, flags, 1, answers, 0, additional].iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn header(bytes: &[u8]) -> Option<(u16, u16, [u16; 4])> {
    let head = bytes.first_chunk::<12>()?;
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    Some((number(0), number(2), [number(4), number(6), number(8), number(10)]))
}

/// The name and the kind of the first question, and where it ends.
fn question(bytes: &[u8]) -> Option<(String, Kind, usize)> {
    let (mut name, mut at) = (String::new(), 12);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = bytes.get(at..at + length).filter(|label| length < 64 && label.is_ascii())?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(std::str::from_utf8(label).ok()?);
        at += length;
        if name.len() > 253 {
            return None;
        }
    }
    let fixed = bytes.get(at..)?.first_chunk::<4>()?;
    let kind = Kind::of(u16::from_be_bytes([fixed[0], fixed[1]]));
    let is_internet = u16::from_be_bytes([fixed[2], fixed[3]]) == CLASS_INTERNET;
    is_internet.then(|| (name.to_ascii_lowercase(), kind, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(name: &str, kind: Kind) -> Question {
        let plain = Question { id: 7, name: name.into(), kind, section: Vec::new() };
        Question::parse(&plain.to_server(7).unwrap()).unwrap()
    }

    #[test]
    fn a_question_and_its_answer_read_back() {
        let question = asked("Example.ORG", Kind::V4);
        assert_eq!((question.id, question.name.as_str(), question.kind), (7, "example.org", Kind::V4));
        let addresses: Vec<IpAddr> = vec!["1.2.3.4".parse().unwrap(), "5.6.7.8".parse().unwrap()];
        let bytes = question.answer(Outcome::Found, &addresses, 9999);
        let answer = question.read_answer(7, &bytes).unwrap();
        assert_eq!(answer, Answer { outcome: Outcome::Found, addresses, ttl: LONGEST_TTL });
        let none = question.answer(Outcome::NoSuchName, &[], 1);
        assert_eq!(question.read_answer(7, &none).unwrap().outcome, Outcome::NoSuchName);
        let six = asked("a.b", Kind::V6);
        let bytes = six.answer(Outcome::Found, &["2606::1".parse().unwrap()], 5);
        assert_eq!(six.read_answer(7, &bytes).unwrap().ttl, 5);
    }

    #[test]
    fn an_answer_to_something_else_is_no_answer() {
        let question = asked("example.org", Kind::V4);
        let bytes = question.answer(Outcome::Found, &["1.2.3.4".parse().unwrap()], 1);
        assert!(question.read_answer(7, &bytes).is_some(), "the control");
        assert!(question.read_answer(8, &bytes).is_none());
        assert!(asked("evil.org", Kind::V4).read_answer(7, &bytes).is_none());
        assert!(asked("example.org", Kind::V6).read_answer(7, &bytes).is_none());
        assert!(question.read_answer(7, &question.to_server(7).unwrap()).is_none(), "a question");
        assert!(Question::parse(&bytes).is_none(), "an answer is no question");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), to: u8) {
            let question = asked("example.org", Kind::V4);
            let _ = Question::parse(&bytes);
            let _ = question.read_answer(0, &bytes);
            let mut valid = question.answer(Outcome::Found, &["1.2.3.4".parse().unwrap()], 1);
            let at = flip.index(valid.len());
            valid[at] = to;
            let _ = question.read_answer(7, &valid);
            let _ = Question::parse(&valid);
        }
    }
}
