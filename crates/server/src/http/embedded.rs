//! The files of pages that are part of the binary: the console and `/docs`.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(super) const STYLE: &str = "text/css; charset=utf-8";
pub(super) const PICTURE: &str = "image/svg+xml";

/// A file that a page consists of.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) kind: &'static str,
    pub(super) encoding: Encoding,
    pub(super) bytes: &'static [u8],
    /// The Content-Security-Policy of the page.
    pub(super) policy: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    /// Every browser takes it.
    Gzip,
}

/// A route for each of these files.
pub(super) fn router(files: &'static [File]) -> Router {
    files.iter().fold(Router::new(), |router, file| {
        let tag = file.tag();
        router.route(file.path, get(move |headers: HeaderMap| async move { file.answer(&headers, &tag) }))
    })
}

impl File {
    /// Changes with the content.
    fn tag(&self) -> String {
        let hash = Sha256::digest(self.bytes);
        let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{digits}\"")
    }

    fn answer(&self, request: &HeaderMap, tag: &str) -> Response {
        let usual: [(HeaderName, &str); 4] = [
            (header::CONTENT_SECURITY_POLICY, self.policy),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // A browser may keep it, but has to ask whether it is still the same: another version has the same paths.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        let known = request.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag);
        let mut response = match known {
            true => (StatusCode::NOT_MODIFIED, usual).into_response(),
            false => (usual, [(header::CONTENT_TYPE, self.kind)], self.bytes).into_response(),
        };
        let headers = response.headers_mut();
        headers.extend(HeaderValue::from_str(tag).map(|tag| (header::ETAG, tag)));
        if self.encoding == Encoding::Gzip && !known {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File =
        File { path: "/", kind: HTML, encoding: Encoding::Gzip, bytes: b"abc", policy: "default-src 'none'" };

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let tag = FILE.tag();
        let first = FILE.answer(&HeaderMap::new(), &tag);
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[header::ETAG], tag.as_str());
        assert_eq!(first.headers()[header::CONTENT_ENCODING], "gzip");
        let asking = |tag: &str| {
            let tag = HeaderValue::from_str(tag).unwrap();
            FILE.answer(&HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]), &FILE.tag())
        };
        assert_eq!(asking(&tag).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(asking("\"0\"").status(), StatusCode::OK);
        assert_eq!(asking(&tag).headers()[header::CONTENT_SECURITY_POLICY], FILE.policy);
    }
}
