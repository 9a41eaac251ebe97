//! Identifies the caller of every request before anything else; a request that passes carries its [`Caller`].
//!
//! With keys, a request needs one, or a session of the console that stands for one. Without, the server is on loopback, and every program of this machine may ask; but a
//! page in a browser on this machine may not, whatever name its author has given to 127.0.0.1 (DNS rebinding), so that
//! a foreign `Host` is refused. With keys or without, so is a foreign `Origin`: a page of another site may ask only if the
//! configuration says so. A browser does not always name the page, and sends some requests without asking this server
//! first: what would change something is then refused unless the browser says that no other site has asked for it.

use std::net::IpAddr;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_wire::{Code, Problem};

use super::{App, Refused, body, console, docs};
use crate::caller::{Caller, Callers};
use crate::listen::PeerAddress;

/// Whether a path needs no key: how the server is, the description of its interface, and the page of the console.
fn is_open(path: &str) -> bool {
    ["/healthz", "/readyz"].contains(&path) || docs::is_open(path) || console::is_open(path)
}

pub(super) async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let callers = app.callers();
    let admitted = refuse_foreign_pages(&app.config.origins, &request)
        .and_then(|()| refuse_unnamed_pages(&request))
        .and_then(|()| match &*callers {
            Callers::Holders(_) if is_open(request.uri().path()) => Ok(None),
            Callers::Anyone(_) | Callers::Holders(_) => caller(&app, &callers, &request).map(Some),
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

fn caller(app: &App, callers: &Callers, request: &Request) -> Result<Caller, Problem> {
    match callers {
        Callers::Anyone(caller) => refuse_foreign_hosts(request).map(|()| caller.clone()),
        Callers::Holders(_) => {
            let caller = match presented(request.headers()) {
                Some(key) => callers.holder(key).ok_or_else(unknown_key)?,
                None => console::holder(app, callers, request)?.ok_or_else(no_key)?,
            };
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

/// Refuses what would change something and comes from a browser that does not say which page has asked, unless it says
/// that it was one of this server, or had to ask this server before it sent the request. Browsers do not ask before they
/// send a form, plain text or nothing at all, and not all of them name the page then.
fn refuse_unnamed_pages(request: &Request) -> Result<(), Problem> {
    let is_named = request.headers().contains_key(header::ORIGIN);
    if is_named || !changes_something(request) {
        return Ok(());
    }
    let says_where = request.headers().contains_key(FETCH_SITE);
    let is_refused = match says_where {
        true => is_from_elsewhere(request.headers()),
        false => comes_from_browser(request.headers()) && is_sent_unasked(request),
    };
    if !is_refused {
        return Ok(());
    }
    let message = "a browser sends this, and does not say that a page of this server has asked for it";
    let hint = "send JSON with Content-Type: application/json, from a page of this server or of allow-origins of [server]";
    Err(Problem::new(Code::Forbidden, message, hint))
}

const FETCH_SITE: &str = "sec-fetch-site";

/// Whether the browser says that another site has asked, or something that it does not say today.
pub(super) fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let is_elsewhere = |value: &HeaderValue| value != "same-origin" && value != "none";
    headers.get_all(FETCH_SITE).iter().any(is_elsewhere)
}

/// A request for another protocol begins as a GET, and may become a run.
fn changes_something(request: &Request) -> bool {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    !reads || request.headers().contains_key(header::UPGRADE)
}

/// Whether a browser sends this for any page, without asking this server whether it may.
fn is_sent_unasked(request: &Request) -> bool {
    let is_socket = request.headers().contains_key(header::UPGRADE);
    is_socket || request.method() == Method::POST && !body::is_json(request.headers())
}

/// Whether it bears the marks of a browser. A page cannot take them away; a program that puts them on has to name a page, too.
fn comes_from_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    let marks = [header::REFERER, header::COOKIE];
    ["Mozilla/", "Opera/"].iter().any(|name| agent.starts_with(name.as_bytes()))
        || marks.iter().any(|mark| headers.contains_key(mark))
}

/// Whether the browser says that a page of this server has asked, and nothing else.
pub(super) fn comes_from_own_page(request: &Request) -> bool {
    let mut origins = texts(request, header::ORIGIN).peekable();
    origins.peek().is_some() && origins.all(|origin| is_own(origin, host(request)))
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

pub(super) fn unknown_key() -> Problem {
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
    fn a_browser_says_that_no_other_site_has_asked() {
        const FIREFOX: (&str, &str) =
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101");
        const TEXT: (&str, &str) = ("content-type", "text/plain");
        const JSON: (&str, &str) = ("content-type", "application/json");
        let refused = |method: &str, headers: &[(&str, &str)]| {
            let request = Request::builder().method(method).uri("/run_code");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            refuse_unnamed_pages(&request.body(axum::body::Body::empty()).unwrap()).is_err()
        };
        for site in ["cross-site", "same-site", "", "Same-Origin, cross-site"] {
            for kind in [TEXT, JSON] {
                assert!(refused("POST", &[("sec-fetch-site", site), kind]), "{site}");
            }
            assert!(refused("DELETE", &[("sec-fetch-site", site)]), "{site}");
            assert!(!refused("GET", &[("sec-fetch-site", site)]), "a link from elsewhere: {site}");
        }
        assert!(refused("POST", &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site"), JSON]));
        for site in ["same-origin", "none"] {
            assert!(!refused("POST", &[("sec-fetch-site", site), FIREFOX, TEXT]), "{site}");
        }
        for mark in [FIREFOX, ("referer", "http://evil.org/"), ("cookie", "a=b")] {
            assert!(refused("POST", &[mark, TEXT]) && refused("POST", &[mark]), "{mark:?}");
            assert!(refused("GET", &[mark, ("upgrade", "websocket")]), "{mark:?}");
            assert!(!refused("POST", &[mark, JSON]) && !refused("PUT", &[mark]), "asked before: {mark:?}");
            assert!(!refused("GET", &[mark]), "{mark:?}");
        }
        for program in ["node", "curl/8.14.1", "python-requests/2.32"] {
            assert!(!refused("POST", &[("user-agent", program), TEXT]), "{program}");
        }
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
