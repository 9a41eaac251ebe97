//! Follows the requests of one HTTP/1 connection, and lets pass only what is part of a request to an allowed name.
//!
//! A connection carries many requests, one after the other or all at once, and each may name another host. So the end of
//! each must be known exactly, as every server would see it: what two servers may read differently is refused.

use std::rc::Rc;

use belljar_core::egress::Reason;

use crate::secret::Secret;

/// The longest head of a request, and line of a chunk.
const MAX_HEAD: usize = 64 << 10;
const MAX_CHUNK_LINE: usize = 256;

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    part: Part,
    /// The part of a head or a line that has arrived.
    held: Vec<u8>,
    /// What is added to each request.
    secret: Option<Rc<Secret>>,
}

/// Where in a request it is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    /// So many bytes of a body are left.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk are left.
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    Trailers,
}

impl Requests {
    /// Each request gets this secret.
    #[cfg(feature = "secrets")]
    pub(crate) fn with_secret(secret: Rc<Secret>) -> Requests {
        Requests { secret: Some(secret), ..Requests::default() }
    }

    /// Takes what has arrived, and appends to `out` what may be passed on. `accept` judges the host of each request.
    ///
    /// # Errors
    /// Nothing more may be passed on.
    pub(crate) fn pass(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        accept: &mut dyn FnMut(&str) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        while !bytes.is_empty() {
            bytes = match self.part {
                Part::Body(left) => self.pass_body(bytes, left, out),
                Part::Chunk(left) => self.pass_chunk(bytes, left, out),
                Part::Head => match self.gather(bytes, head_end, MAX_HEAD)? {
                    (Some(head), rest) => {
                        self.part = read_head(&head, accept)?;
                        self.write_head(&head, out)?;
                        rest
                    }
                    (None, rest) => rest,
                },
                Part::ChunkSize => match self.gather(bytes, line_end, MAX_CHUNK_LINE)? {
                    (Some(line), rest) => {
                        self.part = read_chunk_size(&line)?;
                        out.extend_from_slice(&line);
                        rest
                    }
                    (None, rest) => rest,
                },
                // Trailers are not needed, and a server may take them for headers.
                Part::ChunkEnd | Part::Trailers => match self.gather(bytes, line_end, MAX_CHUNK_LINE)? {
                    (Some(line), _) if line != b"\r\n" => return Err(Reason::Protocol),
                    (Some(line), rest) => {
                        self.part = if self.part == Part::Trailers { Part::Head } else { Part::ChunkSize };
                        out.extend_from_slice(&line);
                        rest
                    }
                    (None, rest) => rest,
                },
            };
        }
        Ok(())
    }

    /// With a secret, its header is the only one of that name, whatever the box sent.
    fn write_head(&self, head: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
        let Some(secret) = &self.secret else {
            out.extend_from_slice(head);
            return Ok(());
        };
        let text = std::str::from_utf8(head).map_err(|_| Reason::Protocol)?;
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let first = lines.next().unwrap_or_default();
        // The answer to it is the request itself.
        if first.starts_with("TRACE ") {
            return Err(Reason::Protocol);
        }
        let is_ours = |line: &&str| line.split(':').next().is_some_and(|name| secret.is_named(name));
        let kept = lines.filter(|line| !is_ours(line)).map(str::to_owned);
        for line in [first.to_owned(), secret.line()].into_iter().chain(kept).chain([String::new()]) {
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn pass_body<'a>(&mut self, bytes: &'a [u8], left: u64, out: &mut Vec<u8>) -> &'a [u8] {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (body, rest) = bytes.split_at(length);
        out.extend_from_slice(body);
        self.part = match left - length as u64 {
            0 => Part::Head,
            left => Part::Body(left),
        };
        rest
    }

    fn pass_chunk<'a>(&mut self, bytes: &'a [u8], left: u64, out: &mut Vec<u8>) -> &'a [u8] {
        let rest = self.pass_body(bytes, left, out);
        self.part = match self.part {
            Part::Body(left) => Part::Chunk(left),
            Part::Head | Part::ChunkSize | Part::Chunk(_) | Part::ChunkEnd | Part::Trailers => Part::ChunkEnd,
        };
        rest
    }

    /// Holds bytes back until there is a whole head or line. Returns that and what is behind it.
    fn gather<'a>(
        &mut self,
        bytes: &'a [u8],
        end: fn(&[u8]) -> Option<usize>,
        longest: usize,
    ) -> Result<(Option<Vec<u8>>, &'a [u8]), Reason> {
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        match end(&self.held) {
            Some(length) if length <= longest => {
                self.held.truncate(length);
                Ok((Some(std::mem::take(&mut self.held)), &bytes[length - before..]))
            }
            None if self.held.len() <= longest => Ok((None, &[])),
            _ => Err(Reason::Protocol),
        }
    }
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|end| end == b"\r\n").map(|at| at + 2)
}

/// Judges a head. Returns what follows it.
fn read_head(head: &[u8], accept: &mut dyn FnMut(&str) -> Result<(), Reason>) -> Result<Part, Reason> {
    let text = std::str::from_utf8(head).ok().filter(|text| text.bytes().all(is_plain));
    let mut lines = text.ok_or(Reason::Protocol)?.trim_end_matches("\r\n").split("\r\n");
    let first = lines.next().unwrap_or_default();
    let target = read_request_line(first)?;
    let (mut host, mut length, mut chunked) = (None, None, false);
    for line in lines {
        let (name, value) = read_field(line)?;
        match name.to_ascii_lowercase().as_str() {
            // A second one is for a server that reads the last instead of the first.
            "host" if host.is_some() => return Err(Reason::Protocol),
            "host" => host = Some(value),
            "content-length" if length.is_some() => return Err(Reason::Protocol),
            "content-length" => length = Some(read_length(value)?),
            "transfer-encoding" if chunked || !value.eq_ignore_ascii_case("chunked") => {
                return Err(Reason::Protocol);
            }
            "transfer-encoding" => chunked = true,
            // What would follow is no HTTP that can be read here, unless the server refuses.
            "upgrade" | "http2-settings" => return Err(Reason::Protocol),
            _ => {}
        }
    }
    accept(host.ok_or(Reason::NoName)?)?;
    if let Some(authority) = target {
        accept(authority)?;
    }
    match (chunked, length) {
        // HTTP/1.0 has no chunks (RFC 9112): a server may read them as something else.
        (true, _) if first.ends_with("HTTP/1.0") => Err(Reason::Protocol),
        (true, Some(_)) => Err(Reason::Protocol),
        (true, None) => Ok(Part::ChunkSize),
        (false, Some(0) | None) => Ok(Part::Head),
        (false, Some(length)) => Ok(Part::Body(length)),
    }
}

/// Text, and the ends of lines. Other bytes are for servers that read them in a way of their own.
fn is_plain(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n' || byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

/// Returns the host in the target, if there is one.
fn read_request_line(line: &str) -> Result<Option<&str>, Reason> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (method, target, version, words.next())
    else {
        return Err(Reason::Protocol);
    };
    let sound = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if !sound || method == "CONNECT" || line.contains(['\r', '\n', '\t']) {
        return Err(Reason::Protocol);
    }
    if target.starts_with('/') || target == "*" {
        return Ok(None);
    }
    let rest = target.strip_prefix("http://").ok_or(Reason::Protocol)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains(['@', '\\']) { Err(Reason::Protocol) } else { Ok(Some(authority)) }
}

fn read_field(line: &str) -> Result<(&str, &str), Reason> {
    let (name, value) = line.split_once(':').ok_or(Reason::Protocol)?;
    // Neither a continued line nor a space before the colon, which servers read differently.
    let sound = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !sound || line.contains(['\r', '\n']) {
        return Err(Reason::Protocol);
    }
    Ok((name, value.trim_matches([' ', '\t'])))
}

fn read_length(value: &str) -> Result<u64, Reason> {
    let plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| plain).ok_or(Reason::Protocol)
}

fn read_chunk_size(line: &[u8]) -> Result<Part, Reason> {
    let text = std::str::from_utf8(line).map_err(|_| Reason::Protocol)?.trim_end_matches("\r\n");
    let plain = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(0) if plain => Ok(Part::Trailers),
        Ok(size) if plain => Ok(Part::Chunk(size)),
        _ => Err(Reason::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What passes of these bytes, sent in pieces of this size; only `good.org` is allowed.
    fn pass(text: &str, piece: usize) -> (String, Result<(), Reason>) {
        let (mut requests, mut out) = (Requests::default(), Vec::new());
        let mut accept = |host: &str| if host == "good.org" { Ok(()) } else { Err(Reason::OtherName) };
        let ended =
            text.as_bytes().chunks(piece).try_for_each(|part| requests.pass(part, &mut out, &mut accept));
        (String::from_utf8(out).unwrap(), ended)
    }

    const GOOD: &str = "GET / HTTP/1.1\r\nHost: good.org\r\nAccept: */*\r\n\r\n";
    const POST: &str = "POST /a HTTP/1.1\r\nhost:good.org\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str = "PUT /b HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n";
    const ABSOLUTE: &str = "GET http://good.org/x HTTP/1.1\r\nHost: good.org\r\n\r\n";
    const EVIL: &str = "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n";

    #[test]
    fn requests_to_the_allowed_host_pass_unchanged() {
        let all = [GOOD, POST, GOOD, CHUNKED, ABSOLUTE, POST, CHUNKED, GOOD].concat();
        for piece in [1, 2, 7, 100, 9999] {
            assert_eq!(pass(&all, piece), (all.clone(), Ok(())));
        }
    }

    #[test]
    fn a_request_to_another_host_never_passes_whatever_comes_before_it() {
        for before in ["", GOOD, POST, CHUNKED, ABSOLUTE] {
            for piece in [1, 5, 9999] {
                let (passed, ended) = pass(&[before, EVIL, GOOD].concat(), piece);
                assert_eq!((passed.as_str(), ended), (before, Err(Reason::OtherName)));
            }
        }
    }

    #[test]
    fn what_servers_may_read_differently_is_refused() {
        for head in [
            "GET / HTTP/1.1\r\nHost: good.org\r\nHost: evil.org",
            "GET / HTTP/1.1\r\nHost : evil.org\r\nHost: good.org",
            "GET / HTTP/1.1\r\nHost: good.org\r\n Host: evil.org",
            "GET / HTTP/1.1\r\nHost: good.org\nHost: evil.org",
            "GET / HTTP/1.1\r\nHost: good.org\r\nX: a\rHost: evil.org",
            "GET / HTTP/1.1\r\nHost: good.org\r\nContent-Length: 5\r\nContent-Length: 6",
            "GET / HTTP/1.1\r\nHost: good.org\r\nContent-Length: +5",
            "GET / HTTP/1.1\r\nHost: good.org\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            "GET / HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: gzip, chunked",
            "GET / HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "GET / HTTP/1.1\r\nHost: good.org\r\nUpgrade: websocket",
            "CONNECT evil.org:443 HTTP/1.1\r\nHost: good.org",
            "GET  / HTTP/1.1\r\nHost: good.org",
            "GET / HTTP/2.0\r\nHost: good.org",
            "GET /\r\nHost: good.org",
            "get / HTTP/1.1\r\nHost: good.org",
            "GET https://good.org/ HTTP/1.1\r\nHost: good.org",
            "GET http://good.org@evil.org/ HTTP/1.1\r\nHost: good.org",
            "PRI * HTTP/2.0",
            "\r\nGET / HTTP/1.1\r\nHost: good.org",
            "GET / HTTP/1.1\r\nHost: good.org\r\nX: \0",
        ] {
            let (passed, ended) = pass(&format!("{head}\r\n\r\n"), 9999);
            assert_eq!((passed.as_str(), ended), ("", Err(Reason::Protocol)), "{head:?}");
        }
        assert_eq!(pass("GET / HTTP/1.1\r\nAccept: a\r\n\r\n", 99).1, Err(Reason::NoName));
        assert_eq!(
            pass("GET http://evil.org/ HTTP/1.1\r\nHost: good.org\r\n\r\n", 99).1,
            Err(Reason::OtherName)
        );
        for chunks in [
            "5 \r\n",
            "5;a=b\r\n",
            "0x5\r\n",
            "-1\r\n",
            "\r\n",
            "ffffffffffffffff\r\n",
            "0\r\nHost: evil.org\r\n",
            "1\r\nx\nx\r\n",
        ] {
            let head = "POST / HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: chunked\r\n\r\n";
            assert_eq!(pass(&[head, chunks].concat(), 9999).1, Err(Reason::Protocol), "{chunks:?}");
        }
    }

    #[test]
    fn every_request_has_the_secret_once_and_nothing_else_of_that_name() {
        let secret = Rc::new(crate::secret::tests::secret("good.org", "key"));
        let pass = |text: &str, piece: usize| {
            let (mut out, secret) = (Vec::new(), Some(secret.clone()));
            let mut requests = Requests { secret, ..Requests::default() };
            let mut accept = |host: &str| if host == "good.org" { Ok(()) } else { Err(Reason::OtherName) };
            let ended =
                text.as_bytes().chunks(piece).try_for_each(|part| requests.pass(part, &mut out, &mut accept));
            (String::from_utf8(out).unwrap(), ended)
        };
        let added =
            |text: &str| text.replacen("HTTP/1.1\r\n", "HTTP/1.1\r\nAuthorization: Bearer key\r\n", 1);
        let own = "GET / HTTP/1.1\r\nauthorization: a\r\nHost: good.org\r\nAUTHORIZATION:b\r\nX: c\r\n\r\n";
        let kept = "GET / HTTP/1.1\r\nHost: good.org\r\nX: c\r\n\r\n";
        for piece in [1, 3, 9999] {
            let (passed, ended) = pass(&[GOOD, POST, CHUNKED, own, GOOD].concat(), piece);
            let expected = [added(GOOD), added(POST), added(CHUNKED), added(kept), added(GOOD)].concat();
            assert_eq!((passed, ended), (expected, Ok(())));
            let (passed, ended) = pass(&[GOOD, EVIL].concat(), piece);
            assert_eq!((passed, ended), (added(GOOD), Err(Reason::OtherName)));
        }
        let body = "POST / HTTP/1.1\r\nHost: good.org\r\nContent-Length: 16\r\n\r\nAuthorization: x";
        assert_eq!(pass(body, 99), (added(body), Ok(())), "a body stays as it is");
        assert_eq!(pass("TRACE / HTTP/1.1\r\nHost: good.org\r\n\r\n", 99).1, Err(Reason::Protocol));
    }

    #[test]
    fn a_head_without_an_end_is_not_held_for_ever() {
        assert_eq!(
            pass(&"GET / HTTP/1.1\r\nHost: good.org\r\nX: ".repeat(4000), 999).1,
            Err(Reason::Protocol)
        );
    }

    proptest! {
        #[test]
        fn the_pieces_make_no_difference(parts in prop::collection::vec(prop::sample::select(
            &[GOOD, POST, CHUNKED, EVIL, "junk\r\n\r\n", "\r\n"][..]), 0..6), piece in 1usize..80) {
            let text = parts.concat();
            prop_assert_eq!(pass(&text, piece), pass(&text, 99_999));
        }
    }
}
