//! Where a server is.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

use crate::error::ClientError;

/// The address of a server, as `http://HOST:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Over TCP, without encryption.
    Http(Authority),
    /// Over a unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// What it is not.
    pub fn parse(text: &str) -> Result<Address, ClientError> {
        let wrong = |why: &'static str| ClientError::Address { url: text.escape_debug().to_string(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match Path::new(path) {
                path if path.is_absolute() => Ok(Address::Unix(path.to_owned())),
                _ => Err(wrong("has no absolute path")),
            };
        }
        let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(wrong("uses https, which this client does not speak"));
        }
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(wrong("does not start with http:// or unix:"));
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| wrong("is not a host and a port"))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("has a path; only a host and a port are needed"));
        }
        Ok(Address::Http(authority.clone()))
    }

    /// What the client takes the server for, in the header `Host`.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Address::Http(authority) => authority.as_str(),
            Address::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Http(authority) => write!(f, "http://{authority}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_path() {
        let shown = |text: &str| Address::parse(text).unwrap().to_string();
        assert_eq!(shown("http://127.0.0.1:8787/"), "http://127.0.0.1:8787");
        assert_eq!(shown("http://[::1]:80"), "http://[::1]:80");
        assert_eq!(shown("http://localhost"), "http://localhost");
        assert_eq!(shown("unix:/run/a.sock"), "unix:/run/a.sock");
        assert_eq!(shown("unix:///run/a.sock"), "unix:/run/a.sock");
        let wrong = [
            "127.0.0.1:8787",
            "https://x",
            "http://",
            "http://a\r\nb: c",
            "http://a/b",
            "http://u@h",
            "/",
            "unix:",
            "unix:a.sock",
        ];
        for wrong in wrong {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
