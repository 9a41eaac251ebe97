//! The messages of the D-Bus protocol, as far as one method call needs them.

use std::io::{self, Read};

/// A method call without its arguments.
pub(super) struct Call {
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
    pub(super) member: &'static str,
    pub(super) destination: &'static str,
    pub(super) signature: &'static str,
}

/// Kinds of messages and codes of header fields, as the specification numbers them.
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const FIELD_PATH: u8 = 1;
const FIELD_INTERFACE: u8 = 2;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR_NAME: u8 = 4;
const FIELD_REPLY_SERIAL: u8 = 5;
const FIELD_DESTINATION: u8 = 6;
const FIELD_SIGNATURE: u8 = 8;

impl Call {
    pub(super) fn message(&self, serial: u32, body: &Marshal) -> Vec<u8> {
        let mut message = Marshal::default();
        message.0.extend([b'l', METHOD_CALL, 0, 1]);
        message.u32(body.length());
        message.u32(serial);
        message.array(8, |fields| {
            fields.header(FIELD_PATH, "o", |value| value.string(self.path));
            fields.header(FIELD_INTERFACE, "s", |value| value.string(self.interface));
            fields.header(FIELD_MEMBER, "s", |value| value.string(self.member));
            fields.header(FIELD_DESTINATION, "s", |value| value.string(self.destination));
            if !self.signature.is_empty() {
                fields.header(FIELD_SIGNATURE, "g", |value| value.signature(self.signature));
            }
        });
        message.align(8);
        message.0.extend(&body.0);
        message.0
    }
}

/// Values in the order they are written, little endian. Alignment counts from the start of the message, which is
/// the same as from the start of the body, because the header is padded to eight.
#[derive(Default)]
pub(super) struct Marshal(Vec<u8>);

impl Marshal {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn length(&self) -> u32 {
        length(self.0.len())
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn string(&mut self, text: &str) {
        self.u32(length(text.len()));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &'static str) {
        debug_assert!(text.len() < 256, "a signature has a length of one byte");
        self.0.push(text.len().to_le_bytes()[0]);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// The length of an array does not count the padding before its first element.
    pub(super) fn array(&mut self, element_alignment: usize, elements: impl FnOnce(&mut Marshal)) {
        self.u32(0);
        let length_ends = self.0.len();
        self.align(element_alignment);
        let start = self.0.len();
        elements(self);
        let length = length(self.0.len() - start);
        self.0[length_ends - 4..length_ends].copy_from_slice(&length.to_le_bytes());
    }

    /// One element of `a(sv)`.
    pub(super) fn property(&mut self, name: &str, kind: &'static str, value: impl FnOnce(&mut Marshal)) {
        self.align(8);
        self.string(name);
        self.signature(kind);
        value(self);
    }

    /// One element of `a(yv)`.
    fn header(&mut self, code: u8, kind: &'static str, value: impl FnOnce(&mut Marshal)) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        value(self);
    }
}

/// Everything that we send is a few hundred bytes long.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Error { name: String, message: String },
}

/// A message from the other side.
pub(super) struct Incoming {
    kind: u8,
    order: ByteOrder,
    /// From the first byte of the message to the end of its header fields.
    header: Vec<u8>,
    body: Vec<u8>,
}

#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

impl Incoming {
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Incoming> {
        /// The part that every header has: order, kind, flags, version, three lengths.
        const FIXED: usize = 16;
        const LONGEST: usize = 1 << 20;
        let mut header = vec![0; FIXED];
        stream.read_exact(&mut header)?;
        let order = match header[0] {
            b'l' => ByteOrder::Little,
            b'B' => ByteOrder::Big,
            _ => return Err(malformed("a message of unknown byte order")),
        };
        let mut fixed = Unmarshal { order, bytes: &header, at: 4 };
        let (body, _serial, fields) = (fixed.size()?, fixed.size()?, fixed.size()?);
        if body > LONGEST || fields > LONGEST {
            return Err(malformed("a message that is too long"));
        }
        header.resize(FIXED + fields.next_multiple_of(8), 0);
        stream.read_exact(&mut header[FIXED..])?;
        let mut body = vec![0; body];
        stream.read_exact(&mut body)?;
        header.truncate(FIXED + fields);
        Ok(Incoming { kind: header[1], order, header, body })
    }

    /// What this message answers to the call with that number, if it is an answer to it.
    pub(super) fn reply_to(&self, serial: u32) -> io::Result<Option<Reply>> {
        let fields = self.fields()?;
        if fields.reply_serial != Some(serial) {
            return Ok(None);
        }
        match self.kind {
            METHOD_RETURN => Ok(Some(Reply::Done)),
            ERROR => {
                let message =
                    if fields.signature.starts_with('s') { self.first_string()? } else { String::new() };
                Ok(Some(Reply::Error { name: printable(&fields.error_name), message: printable(&message) }))
            }
            _ => Ok(None),
        }
    }

    fn fields(&self) -> io::Result<Fields> {
        let mut fields = Fields::default();
        let mut reader = Unmarshal { order: self.order, bytes: &self.header, at: 16 };
        while reader.at < self.header.len() {
            reader.align(8)?;
            let code = reader.byte()?;
            let kind = reader.signature()?;
            match (code, kind.as_str()) {
                (FIELD_REPLY_SERIAL, "u") => fields.reply_serial = Some(reader.u32()?),
                (FIELD_ERROR_NAME, "s") => fields.error_name = reader.string()?,
                (FIELD_SIGNATURE, "g") => fields.signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.string()?),
                (_, "u") => drop(reader.u32()?),
                (_, "g") => drop(reader.signature()?),
                _ => return Err(malformed("a header field of unknown type")),
            }
        }
        Ok(fields)
    }

    fn first_string(&self) -> io::Result<String> {
        Unmarshal { order: self.order, bytes: &self.body, at: 0 }.string()
    }
}

#[derive(Default)]
struct Fields {
    reply_serial: Option<u32>,
    error_name: String,
    signature: String,
}

struct Unmarshal<'a> {
    order: ByteOrder,
    bytes: &'a [u8],
    at: usize,
}

impl Unmarshal<'_> {
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        let end = self.at.checked_add(length).ok_or_else(|| malformed("a length beyond its message"))?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| malformed("a length beyond its message"))?;
        self.at = end;
        Ok(taken)
    }

    fn align(&mut self, to: usize) -> io::Result<()> {
        self.take(self.at.next_multiple_of(to) - self.at).map(drop)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.align(4)?;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    fn size(&mut self) -> io::Result<usize> {
        usize::try_from(self.u32()?).map_err(|_| malformed("a length beyond its message"))
    }

    fn string(&mut self) -> io::Result<String> {
        let length = self.size()?;
        self.text(length)
    }

    fn signature(&mut self) -> io::Result<String> {
        let length = self.byte()?;
        self.text(usize::from(length))
    }

    fn text(&mut self, length: usize) -> io::Result<String> {
        let text = self.take(length)?.to_vec();
        let text = String::from_utf8(text).map_err(|_| malformed("a string that is not UTF-8"))?;
        match self.byte()? {
            0 => Ok(text),
            _ => Err(malformed("a string without an end")),
        }
    }
}

/// The other side's text ends up in a terminal.
fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"))
}
