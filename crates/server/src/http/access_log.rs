//! Every request has an identifier, a line in the log, and its place in the metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::App;

const REQUEST_ID: &str = "x-request-id";
/// The longest identifier that is taken from a client.
const MAX_ID: usize = 64;
/// What is asked every few seconds by machines, and of no interest to people.
const ROUTINE: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

pub(super) async fn record(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = given(request.headers()).unwrap_or_else(made);
    let method = request.method().clone();
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or("unknown", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("request", id);
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, took) = (response.status().as_u16(), began.elapsed());
    app.runs.metrics().answered(&route, status, took);
    let ms = took.as_secs_f64() * 1e3;
    span.in_scope(|| {
        if ROUTINE.contains(&route.as_str()) {
            tracing::debug!(%method, route, status, ms, "answered");
        } else {
            tracing::info!(%method, route, status, ms, "answered");
        }
    });
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The client's own, if it is one: it goes into the log, so it has to be plain.
fn given(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    ((1..=MAX_ID).contains(&text.len()) && text.bytes().all(plain)).then(|| text.to_owned())
}

/// Unique among the requests of this process, and very likely among those of others.
fn made() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}-{:x}", now.as_micros(), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_identifier_is_taken_over() {
        let take = |text: &'static str| {
            given(&HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(REQUEST_ID),
                HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(take("a-B_c.1"), Some("a-B_c.1".to_owned()));
        for text in
            ["", "a b", "a\tb", "{}", "01234567890123456789012345678901234567890123456789012345678901234"]
        {
            assert_eq!(take(text), None, "{text}");
        }
        assert_ne!(made(), made());
    }
}
