//! Identifies the caller of every request before anything else; a request that passes carries its [`Caller`].
//!
//! With keys, a request needs one. Without, the server is on loopback, and every program of this machine may ask; but a
//! page in a browser on this machine may not, whatever name its author has given to 127.0.0.1 (DNS rebinding), so that
//! a foreign `Host` is refused. With keys or without, so is a foreign `Origin`: a page of another site may ask only if the
//! configuration says so.

use std::net::IpAddr;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};

use super::{App, Refused, docs};
use crate::caller::{Caller, Callers};
use crate::listen::PeerAddress;

/// Whether a path needs no key: how the server is, and the description of its interface.
fn is_open(path: &str) -> bool {
    ["/healthz", "/readyz"].contains(&path) || docs::is_open(path)
}

pub(super) async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let callers = app.callers();
    let admitted = refuse_foreign_pages(&app.config.origins, &request).and_then(|()| match &*callers {
        Callers::Holders(_) if is_open(request.uri().path()) => Ok(None),
        Callers::Anyone(_) | Callers::Holders(_) => caller(&callers, &request).map(Some),
    });
    match admitted {
        Ok(caller) => {
            let peer = request.extensions().get::<PeerAddress>().map(|PeerAddress(peer)| *peer);
            caller.and_then(|caller| request.extensions_mut().insert(caller.at(peer)))
        }
        Err(problem) => return Refused(problem).into_response(),
    };
    next.run(request).await
}

fn caller(callers: &Callers, request: &Request) -> Result<Caller, Problem> {
    match callers {
        Callers::Anyone(caller) => refuse_foreign_hosts(request).map(|()| caller.clone()),
        Callers::Holders(_) => {
            let key = presented(request.headers()).ok_or_else(no_key)?;
            let caller = callers.holder(key).ok_or_else(unknown_key)?;
            caller.spend(Instant::now())?;
            Ok(caller)
        }
    }
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text(header::AUTHORIZATION.as_str()) {
        Some(value) => {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        }
        None => text("x-api-key"),
    }
}

fn refuse_foreign_hosts(request: &Request) -> Result<(), Problem> {
    if texts(request, header::HOST).count() > 1 {
        return Err(Problem::new(Code::InvalidRequest, "there is more than one Host header", "send one"));
    }
    let mut hosts = [host(request)].into_iter().chain(texts(request, header::HOST));
    match hosts.find(|host| !is_loopback(host)) {
        Some(host) => {
            let hint = "use 127.0.0.1 or localhost; to reach the server by another name, configure keys";
            Err(foreign("Host", host, hint))
        }
        None => Ok(()),
    }
}

fn refuse_foreign_pages(allowed: &[String], request: &Request) -> Result<(), Problem> {
    let host = host(request);
    let is_welcome = |origin: &str| {
        is_own(origin, host) || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    };
    match texts(request, header::ORIGIN).find(|origin| !is_welcome(origin)) {
        Some(origin) => {
            let hint = "name the page's origin in allow-origins of [server]; programs other than browsers need not send an Origin";
            Err(foreign("Origin", origin, hint))
        }
        None => Ok(()),
    }
}

fn texts(request: &Request, name: header::HeaderName) -> impl Iterator<Item = &str> {
    request.headers().get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
}

/// What the client takes this server for.
fn host(request: &Request) -> &str {
    let authority = request.uri().authority().map(Authority::as_str);
    authority.or_else(|| texts(request, header::HOST).next()).unwrap_or_default()
}

/// A name that no name server can point elsewhere, perhaps with a port, and with nothing else: before an `@` it would be
/// somebody's password.
fn is_loopback(host: &str) -> bool {
    let (name, rest) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_port =
        rest.is_empty() || rest.len() > port.len() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port && is_loopback_name(name)
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A page of this server's own, perhaps from behind a proxy that speaks TLS. Whether the name is one that the server may
/// have is asked where that matters: without keys.
fn is_own(origin: &str, host: &str) -> bool {
    let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    name.is_some_and(|name| !name.is_empty() && name.eq_ignore_ascii_case(host))
}

fn foreign(header: &str, value: &str, hint: &str) -> Problem {
    let value: String = value.chars().take(100).collect();
    let message = format!("the {header} '{}' does not belong to this server", value.escape_debug());
    Problem::new(Code::Forbidden, message, hint)
}

fn no_key() -> Problem {
    let hint = "send it as Authorization: Bearer KEY; `belljar key new` makes one";
    Problem::new(Code::Unauthorized, "this server requires an API key", hint)
}

fn unknown_key() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "this API key is not known to the server",
        "check that it is complete, and that the server's configuration has it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_cannot_be_pointed_elsewhere_are_loopback() {
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8787", "127.9.9.9", "[::1]:80", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "evil.org", "localhost.evil.org", "127.0.0.1.evil.org", "10.0.0.1", "[::2]:80", "0x7f.1"]
        {
            assert!(!is_loopback(host), "{host}");
        }
        for host in
            ["localhost:x@evil.org", "me@localhost", "[::1]evil.org", "[::1", "localhost:80:80", "[::1]80"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_request_has_one_host_and_every_name_in_it_is_this_servers() {
        let code = |uri: &str, headers: &[(&str, &str)]| {
            let request = headers
                .iter()
                .fold(Request::builder().uri(uri), |request, (name, value)| request.header(*name, *value));
            let request = request.body(axum::body::Body::empty()).unwrap();
            let refused = refuse_foreign_pages(&[], &request).and_then(|()| refuse_foreign_hosts(&request));
            refused.err().map(|problem| problem.error.code)
        };
        assert_eq!(code("/", &[("host", "localhost:1"), ("origin", "http://localhost:1")]), None);
        assert_eq!(code("/", &[("host", "localhost"), ("host", "localhost")]), Some(Code::InvalidRequest));
        assert_eq!(code("/", &[]), Some(Code::Forbidden));
        assert_eq!(code("http://localhost/", &[("host", "evil.org")]), Some(Code::Forbidden));
        assert_eq!(code("http://localhost:x@evil.org/", &[]), Some(Code::Forbidden));
        let origins = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.org")];
        assert_eq!(code("/", &origins), Some(Code::Forbidden));
    }

    #[test]
    fn an_origin_is_this_servers_or_foreign() {
        assert!(is_own("http://127.0.0.1:8787", "127.0.0.1:8787"));
        assert!(is_own("https://Code.example.org", "code.example.org"));
        for origin in ["null", "", "http://127.0.0.1:3000", "http://", "127.0.0.1:8787", "http://evil.org"] {
            assert!(!is_own(origin, "127.0.0.1:8787"), "{origin}");
        }
        assert!(!is_own("http://", ""));
    }

    #[test]
    fn a_foreign_page_is_welcome_if_it_is_named() {
        let from = |origin: &str| {
            let request = Request::builder().header("host", "code.example.org").header("origin", origin);
            let request = request.body(axum::body::Body::empty()).unwrap();
            refuse_foreign_pages(&["https://app.example.org".to_owned()], &request)
        };
        assert!(from("https://app.example.org").is_ok() && from("https://code.example.org").is_ok());
        for origin in ["https://app.example.org.evil.org", "http://app.example.org", "null"] {
            assert_eq!(from(origin).unwrap_err().error.code, Code::Forbidden, "{origin}");
        }
    }
}
