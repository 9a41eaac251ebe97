//! One question to a server: a GET over HTTP/1.0, whose answer ends when the connection does.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use belljar_wire::{Code, Problem};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How long connecting, and each pause in the answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const MOST: u64 = 1 << 20;

/// What a server says at this path.
pub(super) fn get<T: DeserializeOwned>(url: &str, path: &str, key: Option<&OsStr>) -> Result<T, Problem> {
    let host = host_of(url)?;
    let key = key.map(key_header).transpose()?.unwrap_or_default();
    let request = format!("GET {path} HTTP/1.0\r\nhost: {host}\r\n{key}\r\n");
    let answer =
        exchange(&with_port(host), request.as_bytes()).map_err(|cause| unreachable_server(url, &cause))?;
    let (status, body) = parts(&answer).ok_or_else(|| no_belljar(url))?;
    match status {
        200 => serde_json::from_slice(body).map_err(|_| no_belljar(url)),
        _ => Err(refused(url, status, body)),
    }
}

/// Host and port of a URL.
fn host_of(url: &str) -> Result<&str, Problem> {
    let wrong = |message: &str| {
        let message = format!("--url: '{}' {message}", url.escape_debug());
        Problem::new(Code::InvalidRequest, message, "write it as in --url http://127.0.0.1:8787")
    };
    if url.starts_with("https://") {
        return Err(wrong("is for TLS, which is not spoken here"));
    }
    let host = url.strip_prefix("http://").ok_or_else(|| wrong("does not begin with http://"))?;
    let host = host.strip_suffix('/').unwrap_or(host);
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:-_[]".contains(c);
    if host.is_empty() || !host.chars().all(plain) {
        return Err(wrong("is not a host and a port"));
    }
    Ok(host)
}

fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:80") }
}

fn key_header(key: &OsStr) -> Result<String, Problem> {
    let key = key.to_str().filter(|key| key.chars().all(|c| c.is_ascii_graphic()));
    let key = key.ok_or_else(|| {
        let message = "BELLJAR_API_KEY is not a key: it has characters that no key has";
        Problem::new(Code::InvalidRequest, message, "set it to what `belljar key new` printed")
    })?;
    Ok(format!("authorization: Bearer {key}\r\n"))
}

fn exchange(host: &str, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return converse(stream, request),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn converse(mut stream: TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status and body of an answer.
fn parts(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some((status.parse().ok()?, &answer[end + 4..]))
}

/// The error object, as far as a client needs it.
#[derive(Deserialize)]
struct ErrorObject {
    error: ErrorText,
}

#[derive(Deserialize)]
struct ErrorText {
    message: String,
    hint: String,
}

fn refused(url: &str, status: u16, body: &[u8]) -> Problem {
    let code = match status {
        401 => Code::Unauthorized,
        403 => Code::Forbidden,
        404 => Code::NotFound,
        429 => Code::Busy,
        _ => Code::BackendUnavailable,
    };
    match serde_json::from_slice::<ErrorObject>(body) {
        Ok(ErrorObject { error: ErrorText { message, .. } }) if code == Code::Unauthorized => Problem::new(
            code,
            format!("{url} refuses: {message}"),
            "set BELLJAR_API_KEY to a key that it knows",
        ),
        Ok(ErrorObject { error: ErrorText { message, hint } }) => {
            Problem::new(code, format!("{url} refuses: {message}"), hint)
        }
        Err(_) => no_belljar(url),
    }
}

fn no_belljar(url: &str) -> Problem {
    let message = format!("what answers at {url} is not a Belljar server that knows of a pool");
    Problem::new(Code::BackendUnavailable, message, "name the address of a `belljar serve` with --url")
}

fn unreachable_server(url: &str, cause: &io::Error) -> Problem {
    let message = format!("cannot ask the server at {url}: {cause}");
    Problem::new(
        Code::BackendUnavailable,
        message,
        "start one with `belljar serve`, or name another with --url",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_and_a_port_and_nothing_that_could_end_a_header() {
        assert_eq!(host_of("http://127.0.0.1:8787/").unwrap(), "127.0.0.1:8787");
        assert_eq!(host_of("http://[::1]:80").unwrap(), "[::1]:80");
        assert_eq!((with_port("localhost"), with_port("[::1]")), ("localhost:80".into(), "[::1]:80".into()));
        for wrong in
            ["127.0.0.1:8787", "https://x", "http://", "http://a\r\nb: c", "http://a/b", "http://u@h"]
        {
            assert!(host_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_cannot_end_its_header() {
        assert!(key_header(OsStr::new("bj_abc")).is_ok());
        assert!(key_header(OsStr::new("a\r\nhost: b")).is_err());
    }

    #[test]
    fn an_answer_is_taken_apart_or_refused() {
        assert_eq!(parts(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n{}"), Some((200, &b"{}"[..])));
        for wrong in [&b""[..], b"SSH-2.0\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n"] {
            assert_eq!(parts(wrong), None);
        }
    }
}
