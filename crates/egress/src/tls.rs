//! Reads the server name from the beginning of a TLS connection.
//!
//! A client begins with a `ClientHello`, which may be spread over several records, and each record over several packets.
//! After a `HelloRetryRequest` there is a second one. Everything here comes from the code in the box.

use belljar_core::egress::Reason;

const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// The longest fragment of a record that is not encrypted.
const MAX_FRAGMENT: usize = 1 << 14;
/// No client needs more, with all the keys that it offers.
const MAX_HELLO: usize = 64 << 10;

/// What the bytes so far have come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// There must be more.
    Incomplete,
    /// All of it, which takes this many bytes.
    Complete {
        /// What it shows.
        shown: Shown,
        /// Where the next record begins.
        length: usize,
    },
}

/// What a `ClientHello` shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The server name.
    pub(crate) name: Option<String>,
    /// Whether another name may be hidden beside it (ECH).
    pub(crate) hidden: bool,
    /// Whether data that only the two ends can read may come before a second `ClientHello`.
    pub(crate) early_data: bool,
}

/// Reads a `ClientHello` from the beginning of a connection.
///
/// # Errors
/// It is something else.
pub(crate) fn client_hello(bytes: &[u8]) -> Result<Hello, Reason> {
    let (mut message, mut at) = (Vec::new(), 0);
    loop {
        let Some(record) = Record::read(&bytes[at..])? else { return Ok(Hello::Incomplete) };
        if record.kind != HANDSHAKE || record.fragment.is_empty() {
            return Err(Reason::Protocol);
        }
        message.extend_from_slice(record.fragment);
        at += record.length();
        if let Some(body) = whole_message(&message)? {
            return Ok(Hello::Complete { shown: read_hello(body).ok_or(Reason::Protocol)?, length: at });
        }
    }
}

/// What comes after the first `ClientHello`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// There must be more before that can be told.
    Incomplete,
    /// A record that may come before a second `ClientHello`; it takes this many bytes.
    Skip(usize),
    /// A second one.
    Hello,
    /// Something that only the two ends can read.
    Secret,
}

/// Looks at the record that these bytes begin with.
///
/// # Errors
/// It is no record that a client sends.
pub(crate) fn after_hello(bytes: &[u8], early_data: bool) -> Result<After, Reason> {
    let Some(record) = Record::read(bytes)? else { return Ok(After::Incomplete) };
    match (record.kind, record.fragment) {
        (HANDSHAKE, []) => Err(Reason::Protocol),
        // A message may be spread over records of one byte each. None that is encrypted is as short as that; a longer one may
        // begin with any bytes, but hardly with a length and a version that fit.
        (HANDSHAKE, [CLIENT_HELLO, rest @ ..]) if rest.len() < 5 => Ok(After::Hello),
        (HANDSHAKE, [CLIENT_HELLO, 0, _, _, 3, ..]) => Ok(After::Hello),
        (HANDSHAKE, _) => Ok(After::Secret),
        (CHANGE_CIPHER_SPEC | ALERT, _) => Ok(After::Skip(record.length())),
        (APPLICATION_DATA, _) if early_data => Ok(After::Skip(record.length())),
        (APPLICATION_DATA, _) => Ok(After::Secret),
        _ => Err(Reason::Protocol),
    }
}

struct Record<'a> {
    kind: u8,
    fragment: &'a [u8],
}

impl<'a> Record<'a> {
    fn read(bytes: &'a [u8]) -> Result<Option<Record<'a>>, Reason> {
        if bytes.get(1).is_some_and(|major| *major != 3) {
            return Err(Reason::Protocol);
        }
        let Some(([kind, _, _, high, low], rest)) = bytes.split_first_chunk::<5>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length > MAX_FRAGMENT + 256 {
            return Err(Reason::Protocol);
        }
        Ok(rest.get(..length).map(|fragment| Record { kind: *kind, fragment }))
    }

    fn length(&self) -> usize {
        self.fragment.len() + 5
    }
}

/// The body of a `ClientHello`, once it is all there.
fn whole_message(message: &[u8]) -> Result<Option<&[u8]>, Reason> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(Reason::Protocol);
    }
    let Some(([_, high, middle, low], body)) = message.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
    if length > MAX_HELLO || body.len() > length {
        return Err(Reason::Protocol);
    }
    Ok(body.get(..length))
}

/// `None` if the message is malformed.
fn read_hello(body: &[u8]) -> Option<Shown> {
    let mut rest = body;
    // The version and the random number.
    take(&mut rest, 34)?;
    take_vector::<1>(&mut rest)?;
    take_vector::<2>(&mut rest)?;
    take_vector::<1>(&mut rest)?;
    if rest.is_empty() {
        return Some(Shown::default());
    }
    let mut extensions = take_vector::<2>(&mut rest)?;
    if !rest.is_empty() {
        return None;
    }
    let mut shown = Shown::default();
    while !extensions.is_empty() {
        let kind = u16::from_be_bytes(*take(&mut extensions, 2)?.first_chunk()?);
        let content = take_vector::<2>(&mut extensions)?;
        match kind {
            // A second one would be for a server that reads the last instead of the first.
            SERVER_NAME if shown.name.is_some() => return None,
            SERVER_NAME => shown.name = Some(one_name(content)?),
            ENCRYPTED_CLIENT_HELLO => shown.hidden = true,
            EARLY_DATA => shown.early_data = true,
            _ => {}
        }
    }
    Some(shown)
}

/// The list has one entry, and it is a host name.
fn one_name(mut content: &[u8]) -> Option<String> {
    let mut list = take_vector::<2>(&mut content)?;
    let kind = take(&mut list, 1)?;
    let name = take_vector::<2>(&mut list)?;
    let alone = content.is_empty() && list.is_empty() && kind == [0];
    let name = alone.then(|| String::from_utf8(name.to_vec()).ok())??;
    (name.is_ascii() && !name.is_empty()).then(|| name.to_ascii_lowercase())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// A length of this many bytes, and so many bytes.
fn take_vector<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(bytes, N)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    take(bytes, length)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector(length: usize, content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&size[4 - length..], content].concat()
    }

    pub(crate) fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, content)].concat()
    }

    pub(crate) fn sni(name: &str) -> Vec<u8> {
        extension(0, &vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat()))
    }

    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[1; 32]),
            &vector(2, &[0x13, 1]),
            &vector(1, &[0]),
            &vector(2, &extensions.concat()),
        ]
        .concat();
        [&[1][..], &vector(3, &body)].concat()
    }

    /// A hello in records of at most so many bytes.
    pub(crate) fn hello(extensions: &[Vec<u8>], piece: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &vector(2, part)].concat();
        message(extensions).chunks(piece).flat_map(record).collect()
    }

    fn shown_by(bytes: &[u8]) -> Result<Shown, Reason> {
        match client_hello(bytes)? {
            Hello::Complete { shown, length } => {
                assert_eq!(length, bytes.len());
                Ok(shown)
            }
            Hello::Incomplete => panic!("incomplete"),
        }
    }

    fn name_of(bytes: &[u8]) -> Result<Option<String>, Reason> {
        shown_by(bytes).map(|shown| shown.name)
    }

    #[test]
    fn the_name_is_read_however_the_hello_is_split() {
        for piece in [1, 3, 50, 10_000] {
            let bytes = hello(&[extension(10, &[1]), sni("Example.ORG")], piece);
            assert_eq!(name_of(&bytes).unwrap().as_deref(), Some("example.org"));
            for end in 0..bytes.len() {
                assert_eq!(client_hello(&bytes[..end]), Ok(Hello::Incomplete), "{end}");
            }
        }
    }

    #[test]
    fn it_is_told_whether_a_name_may_be_hidden_and_data_may_come_early() {
        assert_eq!(shown_by(&hello(&[extension(10, &[1])], 9999)), Ok(Shown::default()));
        let shown = |more: &[u16]| {
            let more = more.iter().map(|kind| extension(*kind, &[0; 40]));
            shown_by(&hello(&[sni("a.org")].into_iter().chain(more).collect::<Vec<_>>(), 9999)).unwrap()
        };
        let name = Some("a.org".to_owned());
        assert_eq!(shown(&[]), Shown { name: name.clone(), hidden: false, early_data: false });
        assert_eq!(shown(&[0xfe0d]), Shown { name: name.clone(), hidden: true, early_data: false });
        assert_eq!(shown(&[42]), Shown { name, hidden: false, early_data: true });
    }

    #[test]
    fn what_servers_may_read_differently_is_refused() {
        assert!(client_hello(&hello(&[sni("a.org"), sni("b.org")], 9999)).is_err());
        let two = [&[0][..], &vector(2, b"a.org"), &[0], &vector(2, b"b.org")].concat();
        assert!(client_hello(&hello(&[extension(0, &vector(2, &two))], 9999)).is_err());
        assert!(client_hello(&hello(&[sni("")], 9999)).is_err());
        assert!(client_hello(b"\x16\x02\x00\x00\x01").is_err());
        assert!(client_hello(&[22, 3, 1, 0, 4, 2, 0, 0, 0]).is_err(), "a ServerHello");
        assert!(client_hello(&[22, 3, 1, 0, 4, 1, 255, 0, 0]).is_err(), "too long");
        let mut longer = hello(&[sni("a.org")], 9999);
        longer[4] += 1;
        longer.push(0);
        assert!(client_hello(&longer).is_err(), "more in the record than the hello");
    }

    #[test]
    fn a_second_hello_is_recognized() {
        let after = |bytes: &[u8]| after_hello(bytes, false);
        assert_eq!(after(&[20, 3, 3, 0, 1, 1]), Ok(After::Skip(6)));
        assert_eq!(after(&[21, 3, 3, 0, 2, 1, 0]), Ok(After::Skip(7)));
        for piece in [1, 5, 6, 9999] {
            assert_eq!(after(&hello(&[sni("b.org")], piece)), Ok(After::Hello), "{piece}");
        }
        let mut older = hello(&[sni("b.org")], 9999);
        older[10] = 2;
        assert_eq!(after(&older), Ok(After::Hello), "TLS 1.1");
        assert_eq!(after(&[23, 3, 3, 0, 1, 9]), Ok(After::Secret));
        assert_eq!(after_hello(&[23, 3, 3, 0, 1, 9], true), Ok(After::Skip(6)), "early data");
        assert_eq!(after(&[22, 3, 3, 0, 2, 16, 0]), Ok(After::Secret));
        assert_eq!(after(&[20, 3]), Ok(After::Incomplete));
        assert_eq!(after(&[22, 3, 3, 0, 0]), Err(Reason::Protocol), "an empty record");
        assert_eq!(after(&[99, 3, 3, 0, 1, 0]), Err(Reason::Protocol));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), to: u8) {
            let _ = client_hello(&bytes);
            let _ = after_hello(&bytes, flip.index(2) == 1);
            let mut valid = hello(&[sni("example.org"), extension(43, &[2, 3, 4])], 100);
            let at = flip.index(valid.len());
            valid[at] = to;
            let _ = client_hello(&valid);
        }
    }
}
