//! One GET request to a server.

use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use belljar_wire::{Code, Problem};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::uri::Scheme;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How long connecting may take, and then the whole exchange.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const MOST: usize = 1 << 20;

/// Asks a server for what it has at this path.
pub(super) fn get<T: DeserializeOwned>(url: &str, path: &str, key: Option<&OsStr>) -> Result<T, Problem> {
    let mut request = Request::get(address(url, path)?);
    if let Some(key) = key {
        request = request.header(AUTHORIZATION, key_header(key)?);
    }
    let request = request.body(Empty::new()).map_err(|cause| unreachable_server(url, &cause))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| unreachable_server(url, &cause))?;
    let (status, body) =
        runtime.block_on(exchange(request)).map_err(|cause| unreachable_server(url, cause.as_ref()))?;
    match status {
        StatusCode::OK => serde_json::from_slice(&body).map_err(|_| not_belljar(url)),
        _ => Err(refused(url, status, &body)),
    }
}

/// The address of a path on the server.
fn address(url: &str, path: &str) -> Result<Uri, Problem> {
    let wrong = |message: &str| {
        let message = format!("--url: '{}' {message}", url.escape_debug());
        Problem::new(Code::InvalidRequest, message, "write a URL such as --url http://127.0.0.1:8787")
    };
    let server: Uri = url.parse().map_err(|_| wrong("is not a URL"))?;
    if server.scheme() == Some(&Scheme::HTTPS) {
        return Err(wrong("uses https, which this command does not support"));
    }
    if server.scheme() != Some(&Scheme::HTTP) {
        return Err(wrong("does not start with http://"));
    }
    let authority = server.authority().filter(|authority| !authority.as_str().contains('@'));
    let authority = authority.ok_or_else(|| wrong("is not a host and a port"))?;
    if !matches!(server.path(), "" | "/") || server.query().is_some() {
        return Err(wrong("has a path; only a host and a port are needed"));
    }
    let whole = Uri::builder().scheme(Scheme::HTTP).authority(authority.clone()).path_and_query(path);
    whole.build().map_err(|_| wrong("is not a host and a port"))
}

fn key_header(key: &OsStr) -> Result<HeaderValue, Problem> {
    let header = key.to_str().and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok());
    let mut header = header.ok_or_else(|| {
        let message = "BELLJAR_API_KEY contains characters that no key has";
        Problem::new(Code::InvalidRequest, message, "set it to what `belljar key new` printed")
    })?;
    header.set_sensitive(true);
    Ok(header)
}

async fn exchange(
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(PATIENCE));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let whole = async {
        let answer = client.request(request).await?;
        let status = answer.status();
        Ok((status, Limited::new(answer.into_body(), MOST).collect().await?.to_bytes()))
    };
    tokio::time::timeout(2 * PATIENCE, whole).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
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

fn refused(url: &str, status: StatusCode, body: &[u8]) -> Problem {
    let code = match status {
        StatusCode::UNAUTHORIZED => Code::Unauthorized,
        StatusCode::FORBIDDEN => Code::Forbidden,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Code::Busy,
        _ => Code::BackendUnavailable,
    };
    match serde_json::from_slice::<ErrorObject>(body) {
        Ok(ErrorObject { error: ErrorText { message, hint } }) => {
            let own = "set BELLJAR_API_KEY to a key that the server knows".to_owned();
            let hint = if code == Code::Unauthorized { own } else { hint };
            Problem::new(code, format!("{url} refused the request: {message}"), hint)
        }
        Err(_) => not_belljar(url),
    }
}

fn not_belljar(url: &str) -> Problem {
    let message = format!("{url} did not answer like a Belljar server");
    Problem::new(Code::BackendUnavailable, message, "pass the address of a `belljar serve` with --url")
}

fn unreachable_server(url: &str, cause: &(dyn Error + 'static)) -> Problem {
    let mut root = cause;
    while let Some(deeper) = root.source() {
        root = deeper;
    }
    let message = format!("cannot reach the server at {url}: {root}");
    let hint = "start a server with `belljar serve`, or name another one with --url";
    Problem::new(Code::BackendUnavailable, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_url_is_a_host_and_a_port_and_nothing_that_could_end_a_header() {
        let shown = |url: &str| address(url, "/v1/pool").unwrap().to_string();
        assert_eq!(shown("http://127.0.0.1:8787/"), "http://127.0.0.1:8787/v1/pool");
        assert_eq!(shown("http://[::1]:80"), "http://[::1]:80/v1/pool");
        assert_eq!(shown("http://localhost"), "http://localhost/v1/pool");
        for wrong in
            ["127.0.0.1:8787", "https://x", "http://", "http://a\r\nb: c", "http://a/b", "http://u@h", "/"]
        {
            assert!(address(wrong, "/v1/pool").is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_cannot_end_its_header() {
        assert!(key_header(OsStr::new("bj_abc")).is_ok());
        assert!(key_header(OsStr::new("a\r\nhost: b")).is_err());
    }

    /// What `get` makes of an answer, and the request that it sent.
    fn asked(answer: &'static [u8]) -> (Result<serde_json::Value, Problem>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let got = get(&url, "/v1/pool", Some(OsStr::new("bj_abc")));
        (got, server.join().unwrap())
    }

    #[test]
    fn an_answer_is_read_and_the_key_is_sent() {
        let (got, request) = asked(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}");
        assert_eq!(got.unwrap(), serde_json::json!({"a": 1}));
        assert!(request.starts_with("GET /v1/pool HTTP/1.1\r\n"), "{request}");
        assert!(request.to_lowercase().contains("authorization: bearer bj_abc\r\n"), "{request}");
    }

    #[test]
    fn what_is_not_an_answer_of_belljar_is_told_apart_from_a_refusal() {
        let error = |answer| asked(answer).0.unwrap_err().error;
        let refused = error(
            b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 50\r\n\r\n{\"error\":{\"message\":\"unknown key\",\"hint\":\"\"    }}   ",
        );
        assert_eq!(refused.code, Code::Unauthorized, "{refused:?}");
        assert!(refused.hint.contains("BELLJAR_API_KEY"), "{refused:?}");
        let other = error(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        assert!(other.message.ends_with("did not answer like a Belljar server"), "{other:?}");
        assert!(error(b"SSH-2.0-x\r\n").message.starts_with("cannot reach the server at"));
    }

    #[test]
    fn a_server_that_is_not_there_is_a_clear_error() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = get::<serde_json::Value>(&format!("http://{free}"), "/", None).unwrap_err().error;
        assert!(error.message.contains("Connection refused"), "{error:?}");
        assert!(error.hint.contains("belljar serve"), "{error:?}");
    }
}
