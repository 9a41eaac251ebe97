//! Secrets that stay outside the box: a run names the hosts whose secret it wants, and the gateway adds the value to its
//! requests to that host. The value itself is nowhere in the domain.

use std::fmt;

use crate::egress::{Host, Ports, Rule, Transport};
use crate::request::Network;
use crate::{Field, Invalid};

/// The most secrets of one run.
pub const MAX_SECRETS: usize = 16;
/// Where a secret is added unless another port is named.
const HTTPS: u16 = 443;

/// A host that a secret is for: `api.example.com`, or `api.example.com:8443`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretHost {
    name: String,
    port: u16,
}

impl SecretHost {
    /// A name, and a port unless it is 443. Neither a wildcard nor an address: the value is for one host, whose certificate
    /// has that name.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<SecretHost, Invalid> {
        let wrong = || {
            let message = format!("'{}' is no host that a secret can be for", text.escape_debug());
            let hint = "write the name of one host, with a port unless that is 443, such as api.example.com";
            Invalid::new(Field::Secrets, message, hint)
        };
        match Rule::parse(text) {
            Ok(Rule { host: Host::Name(name), ports: Ports::ALL, only: None }) => {
                Ok(SecretHost { name, port: HTTPS })
            }
            Ok(Rule { host: Host::Name(name), ports, only: None }) => {
                Ok(SecretHost { name, port: ports.only().ok_or_else(wrong)? })
            }
            Ok(_) | Err(_) => Err(wrong()),
        }
    }

    /// Those of a run with this network.
    ///
    /// # Errors
    /// What is no host, and a host that the network does not reach.
    pub fn parse_all(texts: &[String], network: &Network) -> Result<Vec<SecretHost>, Invalid> {
        if texts.len() > MAX_SECRETS {
            let message = format!("there are {} secrets; a run may have {MAX_SECRETS}", texts.len());
            return Err(Invalid::new(Field::Secrets, message, "name only those that the code needs"));
        }
        let mut hosts = texts.iter().map(|text| SecretHost::parse(text)).collect::<Result<Vec<_>, _>>()?;
        hosts.sort();
        hosts.dedup();
        match hosts.iter().find(|host| !host.is_reached_by(network)) {
            None => Ok(hosts),
            Some(host) => {
                let message = format!(
                    "the secret for '{host}' cannot be used: the network '{network}' does not reach {}:{}",
                    host.name, host.port
                );
                let hint = format!("allow it, as in --network allow:{}:{}", host.name, host.port);
                Err(Invalid::new(Field::Secrets, message, hint))
            }
        }
    }

    /// Its name, in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the network lets the code talk to this host by its name.
    fn is_reached_by(&self, network: &Network) -> bool {
        match network {
            Network::None => false,
            Network::Full => true,
            Network::Allow(rules) => {
                let mut rules = rules.iter().filter_map(|text| Rule::parse(text).ok());
                rules.any(|rule| rule.host.names(&self.name) && rule.carries(Transport::Tcp, self.port))
            }
        }
    }
}

impl fmt::Display for SecretHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            HTTPS => f.write_str(&self.name),
            port => write!(f, "{}:{port}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_for_one_host_and_port() {
        for (text, shown) in [
            ("api.example.com", "api.example.com"),
            ("API.example.com.", "api.example.com"),
            ("api.example.com:443", "api.example.com"),
            ("api.example.com:8443", "api.example.com:8443"),
        ] {
            assert_eq!(SecretHost::parse(text).unwrap().to_string(), shown);
        }
        for text in
            ["", "*.example.com", "93.184.216.34", "10.0.0.0/8", "a.org:1-2", "a.org:", "https://a.org"]
        {
            assert_eq!(SecretHost::parse(text).unwrap_err().field, Field::Secrets, "{text}");
        }
    }

    #[test]
    fn a_secret_needs_a_network_that_reaches_its_host() {
        let parse = |secret: &str, network: &str| {
            SecretHost::parse_all(&[secret.to_owned()], &Network::parse(network).unwrap())
        };
        for network in ["full", "allow:a.org", "allow:*.example.org,a.org:443", "allow:a.org:1-1000"] {
            assert_eq!(parse("a.org", network).unwrap().len(), 1, "{network}");
        }
        for network in ["none", "allow:b.org", "allow:a.org:80", "allow:*.a.org", "allow:93.184.216.34"] {
            let refused = parse("a.org", network).unwrap_err();
            assert!(
                refused.message.contains(network) && refused.hint.contains("allow:a.org:443"),
                "{refused:?}"
            );
        }
        let twice = ["a.org".to_owned(), "A.org:443".to_owned()];
        assert_eq!(SecretHost::parse_all(&twice, &Network::Full).unwrap().len(), 1);
        assert!(SecretHost::parse_all(&vec!["a.org".to_owned(); 17], &Network::Full).is_err());
    }
}
