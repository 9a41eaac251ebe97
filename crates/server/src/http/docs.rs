//! The description of the interface, and a page to read it and to try requests. Both come from the binary and need nothing from
//! elsewhere.
//!
//! The page is Swagger UI, as its npm package has it, compressed; `ci/swagger-ui` fetches another version.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::embedded::{self, Encoding, File, HTML, SCRIPT, STYLE};

/// Nothing but our own files, and no way for the page to be part of another.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The document, with a line break at the end. It is made from the code (`described.rs`), and a test compares the two.
#[must_use]
pub fn openapi() -> &'static str {
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/belljar-v1.json"))
}

const FILES: [File; 5] = [
    file("/docs", HTML, Encoding::Plain, include_bytes!("docs/page.html")),
    file("/docs/page.js", SCRIPT, Encoding::Plain, include_bytes!("docs/page.js")),
    file("/docs/page.css", STYLE, Encoding::Plain, include_bytes!("docs/page.css")),
    file(
        "/docs/swagger-ui.js",
        SCRIPT,
        Encoding::Gzip,
        include_bytes!("docs/swagger-ui/swagger-ui-bundle.js.gz"),
    ),
    file("/docs/swagger-ui.css", STYLE, Encoding::Gzip, include_bytes!("docs/swagger-ui/swagger-ui.css.gz")),
];

const fn file(path: &'static str, kind: &'static str, encoding: Encoding, bytes: &'static [u8]) -> File {
    File { path, kind, encoding, bytes, policy: POLICY }
}

/// Whether anybody may fetch this path, with a key or without.
pub(super) fn is_open(path: &str) -> bool {
    path == "/openapi.json" || FILES.iter().any(|file| file.path == path)
}

pub(super) fn router() -> Router {
    Router::new().route("/openapi.json", get(description)).merge(embedded::router(&FILES))
}

async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = str::from_utf8(FILES[0].bytes).unwrap();
        let references = page.split('"').filter(|text| text.starts_with('/'));
        assert!(references.clone().count() >= 4, "{page}");
        references.for_each(|path| assert!(FILES.iter().any(|file| file.path == path), "{path}"));
        assert!(!page.contains("//"), "{page}");
        assert!(is_open("/docs") && is_open("/docs/swagger-ui.js") && !is_open("/docs/other"));
    }
}
