//! The description of the interface, made from the code, and a page that shows it. Both come from the binary and need
//! nothing from elsewhere.

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{host, runs};

/// Nothing but our own three files, and no way for the page to be part of another.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Belljar",
        version = "1",
        description = "Runs code that nobody has read, in a box that is gone afterwards. \
                       A run that took place is a success whatever its exit code; everything else is the error object.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        runs::create, runs::find, runs::cancel, host::languages, host::backends, host::pool, host::health, host::readiness,
        host::metrics,
    ),
    modifiers(&Keys),
    tags((name = "runs", description = "Code and its results"), (name = "host", description = "What this server can do, and how it is"))
)]
struct Contract;

/// Two headers for one key; where no keys are configured, none is needed.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut Document) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(header));
    }
}

/// The document, with a line break at the end.
#[must_use]
pub fn openapi() -> String {
    belljar_wire::to_json(&Contract::openapi())
}

pub(super) fn router() -> Router {
    let page = || async { file("text/html; charset=utf-8", include_str!("docs/page.html")) };
    let script = || async { file("text/javascript; charset=utf-8", include_str!("docs/page.js")) };
    let style = || async { file("text/css; charset=utf-8", include_str!("docs/page.css")) };
    Router::new()
        .route("/openapi.json", get(|| async { Json(Contract::openapi()) }))
        .route("/docs", get(page))
        .route("/docs/page.js", get(script))
        .route("/docs/page.css", get(style))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_the_codes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/belljar-v1.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == openapi(),
            "openapi/belljar-v1.json is not what the code says; `belljar openapi > openapi/belljar-v1.json` writes it anew"
        );
    }
}
