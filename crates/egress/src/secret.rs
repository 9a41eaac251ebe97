//! A secret that a gateway adds to requests: what it is, and to which host it goes.

use std::fmt;

use belljar_core::secret::SecretHost;

/// What stands for the value in the text that surrounds it.
const PLACE: &str = "{}";
/// The longest value, and the longest text around it.
const MAX_VALUE: usize = 16 << 10;
const MAX_FORMAT: usize = 256;
/// Headers that say where a message goes, where it ends, or what the connection is for.
const NOT_FOR_SECRETS: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A value that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(String);

impl SecretValue {
    /// A value that fits into a line of a header. What is wrong with another one says nothing about what is in it.
    ///
    /// # Errors
    /// It is empty, too long, or has characters that a header cannot have.
    pub fn parse(text: &str) -> Result<SecretValue, &'static str> {
        // A file ends with the end of a line, and an environment variable may.
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        match text {
            "" => Err("it is empty"),
            _ if text.len() > MAX_VALUE => Err("it is longer than 16 KiB"),
            _ if !text.bytes().all(is_visible) => {
                Err("it has line breaks or other characters that a header cannot have")
            }
            _ => Ok(SecretValue(text.to_owned())),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

/// The header that a secret goes into, and what stands around the value in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretHeader {
    name: String,
    format: String,
}

impl SecretHeader {
    /// A header such as `Authorization`, and a format such as `Bearer {}`.
    ///
    /// # Errors
    /// What is wrong, and with which of the two.
    pub fn parse(name: &str, format: Option<&str>) -> Result<SecretHeader, HeaderFault> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || name.len() > MAX_FORMAT || !name.bytes().all(is_token) {
            return Err(HeaderFault::Name("it is not the name of a header"));
        }
        if NOT_FOR_SECRETS.contains(&plain_name(name).as_str()) {
            return Err(HeaderFault::Name("this header belongs to the connection"));
        }
        let format = format.unwrap_or(PLACE);
        if format.matches(PLACE).count() != 1 {
            return Err(HeaderFault::Format("it must have {} once, where the value goes"));
        }
        if format.len() > MAX_FORMAT || !format.bytes().all(is_visible) {
            return Err(HeaderFault::Format("it has characters that a header cannot have, or too many"));
        }
        Ok(SecretHeader { name: name.to_owned(), format: format.to_owned() })
    }
}

/// Which part of a header is wrong, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the setting of the same name")]
pub enum HeaderFault {
    Name(&'static str),
    Format(&'static str),
}

/// A secret, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// The only host that gets it.
    pub host: SecretHost,
    /// Where it goes.
    pub header: SecretHeader,
    /// What it is.
    pub value: SecretValue,
}

impl Secret {
    /// The line of the header, without its end.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}", self.header.name, self.header.format.replacen(PLACE, self.value.as_str(), 1))
    }

    /// Whether a server may take a header of this name for the one that the secret is in. Some read an underscore as a hyphen.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        plain_name(name) == plain_name(&self.header.name)
    }

    /// As words that have no space in them.
    pub(crate) fn to_words(&self) -> String {
        let Secret { host, header: SecretHeader { name, format }, value } = self;
        format!("{}:{} {name} {} {}", host.name(), host.port(), hex(format), hex(value.as_str()))
    }

    pub(crate) fn from_words(text: &str) -> Option<Secret> {
        let words: Vec<&str> = text.split(' ').collect();
        let [host, name, format, value] = words[..] else { return None };
        Some(Secret {
            host: SecretHost::parse(host).ok()?,
            header: SecretHeader::parse(name, Some(&unhex(format)?)).ok()?,
            value: SecretValue::parse(&unhex(value)?).ok()?,
        })
    }
}

fn plain_name(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// What a value of a header may consist of (RFC 9110), without bytes that are not ASCII.
fn is_visible(byte: u8) -> bool {
    byte == b'\t' || (b' '..=b'~').contains(&byte)
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<String> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    String::from_utf8(digits.map(byte).collect::<Option<Vec<u8>>>()?).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn secret(host: &str, value: &str) -> Secret {
        Secret {
            host: SecretHost::parse(host).unwrap(),
            header: SecretHeader::parse("Authorization", Some("Bearer {}")).unwrap(),
            value: SecretValue::parse(value).unwrap(),
        }
    }

    #[test]
    fn a_secret_reads_back_and_shows_nothing() {
        let own = secret("api.example.com:8443", "sk-live 123");
        assert_eq!(Secret::from_words(&own.to_words()), Some(own.clone()));
        assert_eq!(own.line(), "Authorization: Bearer sk-live 123");
        assert!(!format!("{own:?}").contains("sk-live"), "{own:?}");
        assert!(own.is_named("AUTHORIZATION") && !own.is_named("Authorization2"));
        let other = SecretHeader::parse("X-Api-Key", None).unwrap();
        let other = Secret { header: other, ..own };
        assert!(other.is_named("x_api-key"));
        assert_eq!(other.line(), "X-Api-Key: sk-live 123");
        for words in
            ["", "a.org Authorization 7b7d", "a.org Host 7b7d 61", "a.org X 7b7d 6", "a.org X 7b7d 610a61"]
        {
            assert_eq!(Secret::from_words(words), None, "{words}");
        }
    }

    #[test]
    fn what_would_become_another_header_is_no_value() {
        for value in ["", " \n", "a\r\nX: b", "a\nb", "a\0b", "a\u{7f}", "ä"] {
            assert!(SecretValue::parse(value).is_err(), "{value:?}");
        }
        assert_eq!(SecretValue::parse(" key\r\n").unwrap().as_str(), "key");
        assert!(SecretValue::parse(&"x".repeat(MAX_VALUE + 1)).is_err());
        for (name, format) in [("", None), ("A B", None), ("A:", None), ("a\r\nb", None), ("Host", None)] {
            assert!(matches!(SecretHeader::parse(name, format), Err(HeaderFault::Name(_))), "{name:?}");
        }
        assert!(matches!(SecretHeader::parse("content_length", None), Err(HeaderFault::Name(_))));
        for format in ["", "Bearer", "{}{}", "{}\r\nX: y"] {
            assert!(
                matches!(SecretHeader::parse("X", Some(format)), Err(HeaderFault::Format(_))),
                "{format:?}"
            );
        }
    }
}
