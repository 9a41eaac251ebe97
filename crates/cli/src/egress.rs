//! What the configuration says about the networks of all boxes.

use std::net::SocketAddr;
use std::path::PathBuf;

use belljar_core::egress::Rule;
use belljar_core::limits::Bytes;
use belljar_egress::EgressLimits;
use belljar_native::NetworkSettings;
use belljar_wire::{Code, Problem};
use serde::Deserialize;

use crate::settings::Scalar;

/// As many connections as the buffers of a gateway are made for.
const MOST_CONNECTIONS: u32 = 4096;
/// A connection is carried in pieces of up to this size, so that a lower rate would stop and go.
const LEAST_RATE: u64 = 64 << 10;

/// The table `[egress]` of `belljar.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct EgressTable {
    /// What no box may reach, written as in `allow:`.
    deny: Vec<String>,
    /// The name server to ask, instead of the host's: an address and a port.
    resolver: Option<String>,
    connections: Option<u32>,
    connections_per_second: Option<u32>,
    /// The certificates with which the hosts of secrets are verified, instead of those that the host trusts.
    ca_file: Option<PathBuf>,
    /// Bytes that a box may send and receive.
    max_up: Option<Scalar>,
    max_down: Option<Scalar>,
    /// Bytes that it may send, and receive, in a second.
    bytes_per_second: Option<Scalar>,
}

impl EgressTable {
    pub(crate) fn read(self, config: &str) -> Result<NetworkSettings, Problem> {
        let wrong = |option: &str, message: String, hint: &str| {
            let message = format!("{option} of [egress] in {config}: {message}");
            Problem::new(Code::InvalidRequest, message, hint)
        };
        let mut settings = NetworkSettings::default();
        for text in &self.deny {
            match Rule::parse(text) {
                Ok(rule) => settings.deny.push(rule),
                Err(fault) => {
                    return Err(wrong(
                        "deny",
                        fault.message,
                        "write deny = [\"*.example.org\", \"10.0.0.0/8\"]",
                    ));
                }
            }
        }
        if let Some(text) = &self.resolver {
            match text.parse::<SocketAddr>() {
                Ok(server) => settings.resolver = Some(server),
                Err(_) => {
                    let message = format!("'{}' is no address with a port", text.escape_debug());
                    return Err(wrong("resolver", message, "write resolver = \"127.0.0.1:53\""));
                }
            }
        }
        if let Some(path) = self.ca_file {
            if !path.is_absolute() {
                let message = format!("'{}' is not an absolute path", path.display());
                return Err(wrong("ca-file", message, "write ca-file = \"/etc/belljar/ca.pem\""));
            }
            settings.ca_file = Some(path);
        }
        let EgressLimits { connections, connections_per_second, .. } = settings.limits;
        settings.limits = EgressLimits {
            connections: self.connections.unwrap_or(connections),
            connections_per_second: self.connections_per_second.unwrap_or(connections_per_second),
            up: bytes(self.max_up).map_err(|text| wrong("max-up", text, "write max-up = \"100M\""))?,
            down: bytes(self.max_down).map_err(|text| wrong("max-down", text, "write max-down = \"1G\""))?,
            rate: bytes(self.bytes_per_second)
                .and_then(fast_enough)
                .map_err(|text| wrong("bytes-per-second", text, "write bytes-per-second = \"10M\""))?,
        };
        if !(1..=MOST_CONNECTIONS).contains(&settings.limits.connections) {
            let message =
                format!("'{}' is not between 1 and {MOST_CONNECTIONS}", settings.limits.connections);
            return Err(wrong("connections", message, "write connections = 1024"));
        }
        Ok(settings)
    }
}

fn bytes(text: Option<Scalar>) -> Result<Option<u64>, String> {
    text.map(|Scalar(text)| match Bytes::parse(&text) {
        Ok(bytes) => Ok(bytes.get()),
        Err(_) => Err(format!("'{}' is no size", text.escape_debug())),
    })
    .transpose()
}

fn fast_enough(rate: Option<u64>) -> Result<Option<u64>, String> {
    match rate {
        Some(rate) if rate < LEAST_RATE => Err(format!("'{rate}' is less than {LEAST_RATE}, which is 64K")),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NetworkSettings, String> {
        let table: EgressTable = toml::from_str(text).unwrap();
        table.read("belljar.toml").map_err(|problem| problem.error.message)
    }

    #[test]
    fn the_table_is_read() {
        let settings = read(
            "deny = [\"*.evil.org\", \"10.0.0.0/8\"]\nresolver = \"127.0.0.1:5353\"\nconnections = 5\n\
             connections-per-second = 7\nmax-up = \"1M\"\nmax-down = 9\nca-file = \"/ca.pem\"\n\
             bytes-per-second = \"2M\"\n",
        )
        .unwrap();
        assert_eq!(settings.deny.len(), 2);
        assert_eq!(settings.ca_file, Some(PathBuf::from("/ca.pem")));
        assert_eq!(settings.resolver, Some("127.0.0.1:5353".parse().unwrap()));
        let limits = EgressLimits {
            connections: 5,
            connections_per_second: 7,
            up: Some(1 << 20),
            down: Some(9),
            rate: Some(2 << 20),
        };
        assert_eq!(settings.limits, limits);
        assert_eq!(read("").unwrap().limits, EgressLimits::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, option) in [
            ("deny = [\"127.1\"]", "deny"),
            ("resolver = \"localhost\"", "resolver"),
            ("connections = 0", "connections"),
            ("connections = 100000", "connections"),
            ("max-up = \"lots\"", "max-up"),
            ("bytes-per-second = \"fast\"", "bytes-per-second"),
            ("bytes-per-second = 1000", "bytes-per-second"),
            ("ca-file = \"ca.pem\"", "ca-file"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.starts_with(&format!("{option} of [egress] in belljar.toml: ")), "{message}");
        }
    }
}
