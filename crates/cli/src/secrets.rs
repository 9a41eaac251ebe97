//! `[secrets]` in `belljar.toml`: what the gateway adds to requests, outside the box.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_core::secret::SecretHost;
use belljar_egress::{ADDS_SECRETS, HeaderFault, SecretHeader, SecretValue};
use belljar_native::{ConfiguredSecret, SecretSource};
use belljar_wire::{Code, Problem};
use serde::Deserialize;

use crate::settings::Environment;

/// How to get a build that has them.
const FEATURE_HINT: &str = "build belljar with them: cargo build --release --features secrets";

/// One table, whose name is the host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SecretTable {
    header: String,
    /// `env:NAME` or `file:/path`.
    value_from: String,
    /// What stands around the value, such as `Bearer {}`.
    format: Option<String>,
}

/// Reads all of them. A value that is not there is an error of the run that wants it, not of all the others.
pub(crate) fn read(
    tables: BTreeMap<String, SecretTable>,
    config: &str,
    environment: Environment<'_>,
) -> Result<Vec<ConfiguredSecret>, Problem> {
    if let Some(host) = tables.keys().next().filter(|_| !ADDS_SECRETS) {
        let message = format!("[secrets.{host:?}] in {config}: this build of belljar has no secrets");
        return Err(Problem::new(Code::InvalidRequest, message, FEATURE_HINT));
    }
    let mut secrets: Vec<ConfiguredSecret> = Vec::new();
    for (host, table) in tables {
        let secret = table.read(&host, config, environment)?;
        if secrets.iter().any(|other| other.host == secret.host) {
            let message = format!("[secrets.{host:?}] in {config}: there are two secrets for this host");
            return Err(Problem::new(Code::InvalidRequest, message, "leave one of them"));
        }
        secrets.push(secret);
    }
    Ok(secrets)
}

impl SecretTable {
    fn read(
        &self,
        host: &str,
        config: &str,
        environment: Environment<'_>,
    ) -> Result<ConfiguredSecret, Problem> {
        let wrong = |option: &str, message: &str, hint: &str| {
            let message = format!("{option} of [secrets.{host:?}] in {config}: {message}");
            Problem::new(Code::InvalidRequest, message, hint)
        };
        let host = SecretHost::parse(host).map_err(|fault| {
            let message = format!("[secrets.{host:?}] in {config}: {}", fault.message);
            Problem::new(Code::InvalidRequest, message, fault.hint)
        })?;
        let header = SecretHeader::parse(&self.header, self.format.as_deref());
        let header = header.map_err(|fault| match fault {
            HeaderFault::Name(why) => wrong("header", why, "write header = \"Authorization\""),
            HeaderFault::Format(why) => wrong("format", why, "write format = \"Bearer {}\""),
        })?;
        let source = source(&self.value_from, environment).ok_or_else(|| {
            let hint = "write value-from = \"env:API_KEY\" or value-from = \"file:/etc/belljar/api-key\"";
            // It may be the value itself that was written here, so it is not repeated.
            wrong("value-from", "it is neither env:NAME nor file:/PATH", hint)
        })?;
        Ok(ConfiguredSecret { host, header, source })
    }
}

fn source(text: &str, environment: Environment<'_>) -> Option<SecretSource> {
    match text.split_once(':')? {
        ("env", name) if !name.is_empty() && !name.contains(['=', '\0']) => {
            let value = match environment(name).map(std::ffi::OsString::into_string) {
                None => Err("it is not set"),
                Some(Err(_)) => Err("it is not text"),
                Some(Ok(value)) => SecretValue::parse(&value),
            };
            Some(SecretSource::Variable { name: name.to_owned(), value })
        }
        ("file", path) if path.starts_with('/') => Some(SecretSource::File(PathBuf::from(path))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<ConfiguredSecret>, String> {
        let tables = toml::from_str(text).unwrap();
        let environment = |name: &str| (name == "KEY").then(|| "hidden".into());
        read(tables, "belljar.toml", &environment)
            .map_err(|problem| format!("{} / {:?}", problem.error.message, problem.error.hint))
    }

    #[test]
    #[cfg(feature = "secrets")]
    fn a_secret_has_a_host_a_header_and_a_place() {
        let secrets = read_text(
            "[\"api.example.com\"]\nheader = \"Authorization\"\nvalue-from = \"env:KEY\"\nformat = \"Bearer {}\"\n\
             [\"b.org:8443\"]\nheader = \"X-Key\"\nvalue-from = \"file:/etc/key\"\n\
             [\"c.org\"]\nheader = \"X-Key\"\nvalue-from = \"env:OTHER\"\n",
        )
        .unwrap();
        assert!(!format!("{secrets:?}").contains("hidden"), "{secrets:?}");
        let value = SecretValue::parse("hidden").unwrap();
        assert!(matches!(&secrets[0].source, SecretSource::Variable { value: Ok(own), .. } if *own == value));
        assert!(matches!(&secrets[1].source, SecretSource::File(path) if path.ends_with("key")));
        assert!(matches!(&secrets[2].source, SecretSource::Variable { value: Err("it is not set"), .. }));
        let table = |host: &str, header: &str, from: &str, format: &str| {
            format!("[{host:?}]\nheader = {header:?}\nvalue-from = {from:?}\nformat = {format:?}\n")
        };
        for (text, about) in [
            (table("*.org", "A", "env:KEY", "{}"), "[secrets.\"*.org\"] in belljar.toml: "),
            (table("a.org", "Host", "env:KEY", "{}"), "header of [secrets.\"a.org\"]"),
            (table("a.org", "A", "env:KEY", "Bearer"), "format of"),
            (table("a.org", "A", "sk-live-1234", "{}"), "value-from of"),
            (table("a.org", "A", "file:key", "{}"), "value-from of"),
            (table("a.org", "A", "env:", "{}"), "value-from of"),
            (table("a.org", "A", "env:K", "{}") + &table("A.org:443", "A", "env:K", "{}"), "two secrets"),
        ] {
            let message = read_text(&text).unwrap_err();
            assert!(message.contains(about) && !message.contains("sk-live"), "{message}");
        }
    }

    #[test]
    #[cfg(not(feature = "secrets"))]
    fn a_build_without_secrets_says_how_to_get_one() {
        let text = "[\"a.org\"]\nheader = \"A\"\nvalue-from = \"env:KEY\"\n";
        assert!(read_text(text).unwrap_err().contains("--features secrets"));
        assert!(read_text("").unwrap().is_empty(), "the control");
    }
}
