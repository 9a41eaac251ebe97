//! The secrets that an operator has configured, and what a box needs to talk to their hosts.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_core::Field;
use belljar_core::backend::{BackendError, SandboxSpec};
use belljar_core::request::EnvVar;
use belljar_core::secret::SecretHost;
use belljar_egress::{Secret, SecretHeader, SecretValue};
use belljar_jail::plan::{Plan, Step};

/// Where the box has the certificates that it trusts, and the variables by which its programs find them.
const CERTIFICATES: &str = "/etc/belljar-certificates.pem";
const VARIABLES: &[&str] = &[
    // OpenSSL, and so Python and Ruby; Go.
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
];
/// Where hosts keep the certificates that they trust: Debian, Fedora, SUSE, Alpine.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The largest file that is read for a value, and for certificates.
const MAX_VALUE: u64 = 64 << 10;
const MAX_CERTIFICATES: u64 = 8 << 20;

/// A secret in the configuration.
#[derive(Debug, Clone)]
pub struct ConfiguredSecret {
    /// The only host that gets it.
    pub host: SecretHost,
    /// Where it goes.
    pub header: SecretHeader,
    /// Where its value comes from.
    pub source: SecretSource,
}

/// Where the value of a secret comes from.
#[derive(Debug, Clone)]
pub enum SecretSource {
    /// A variable of this process's environment.
    Variable {
        /// Its name.
        name: String,
        /// Its value, or what is wrong with it.
        value: Result<SecretValue, &'static str>,
    },
    /// A file, which is read for each run.
    File(PathBuf),
}

impl ConfiguredSecret {
    fn secret(&self) -> Result<Secret, BackendError> {
        let (place, value) = match &self.source {
            SecretSource::Variable { name, value } => {
                (format!("the environment variable {name}"), value.clone().map_err(str::to_owned))
            }
            SecretSource::File(path) => {
                let text = read(path, MAX_VALUE).map_err(|cause| cause.to_string());
                let value = text.and_then(|text| SecretValue::parse(&text).map_err(str::to_owned));
                (format!("the file {}", path.display()), value)
            }
        };
        let value = value.map_err(|why| {
            let message = format!("the secret for '{}' cannot be read from {place}: {why}", self.host);
            unusable(
                message,
                "set it where Belljar runs; value-from in [secrets] says where it is".to_owned(),
            )
        })?;
        Ok(Secret { host: self.host.clone(), header: self.header.clone(), value })
    }
}

/// Those that a box wants, with their values.
pub(crate) fn wanted(
    sandbox: &SandboxSpec,
    configured: &[ConfiguredSecret],
) -> Result<Vec<Secret>, BackendError> {
    let find = |host: &SecretHost| match configured.iter().find(|one| one.host == *host) {
        Some(one) => one.secret(),
        None => {
            let message = format!("there is no secret for '{host}' in the configuration");
            let hint = format!("add [secrets.\"{host}\"] with header and value-from to belljar.toml");
            Err(unusable(message, hint))
        }
    };
    sandbox.secrets.iter().map(find).collect()
}

/// The certificates that this host trusts, as PEM: those of the configured file, or of the host's own.
pub(crate) fn trusted(configured: Option<&Path>) -> Result<String, BackendError> {
    let found = match configured {
        Some(path) => Some(path),
        None => BUNDLES.iter().map(Path::new).find(|path| path.exists()),
    };
    let Some(path) = found else {
        let message = "this host has no file with the certificates that it trusts".to_owned();
        return Err(unusable(message, "install ca-certificates, or set ca-file in [egress]".to_owned()));
    };
    read(path, MAX_CERTIFICATES).map_err(|cause| {
        let message = format!("cannot read the trusted certificates from {}: {cause}", path.display());
        unusable(message, "make it readable, or set ca-file in [egress]".to_owned())
    })
}

/// Lets the programs of a box trust the authority of its gateway, beside those that the host trusts. A variable that the
/// request sets stays as it is.
pub(crate) fn trust(plan: &mut Plan, env: &[EnvVar], roots: &str, authority: &str) {
    let certificates = format!("{roots}\n{authority}");
    plan.foundation.push(Step::File(CERTIFICATES.into(), certificates.into_bytes()));
    let ours = VARIABLES.iter().filter(|name| env.iter().all(|variable| variable.name() != **name));
    plan.command.env.extend(ours.map(|name| format!("{name}={CERTIFICATES}").into_bytes()));
}

fn read(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // A certificate's comments may be in any encoding.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unusable(message: String, hint: String) -> BackendError {
    BackendError::Unusable { field: Field::Secrets, message, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(source: SecretSource) -> ConfiguredSecret {
        let header = SecretHeader::parse("Authorization", None).unwrap();
        ConfiguredSecret { host: SecretHost::parse("a.org").unwrap(), header, source }
    }

    fn fault(source: SecretSource) -> String {
        configured(source).secret().unwrap_err().to_string()
    }

    #[test]
    fn a_value_that_cannot_be_read_is_named_by_its_place_alone() {
        let variable = |value| SecretSource::Variable { name: "KEY".to_owned(), value };
        let missing = fault(variable(Err("it is not set")));
        assert_eq!(
            missing,
            "the secret for 'a.org' cannot be read from the environment variable KEY: it is not set"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        assert!(fault(SecretSource::File(file.clone())).contains("key: "));
        std::fs::write(&file, "hidden\nvalue\n").unwrap();
        let wrong = fault(SecretSource::File(file.clone()));
        assert!(wrong.contains("line breaks") && !wrong.contains("hidden"), "{wrong}");
        std::fs::write(&file, "hidden\n").unwrap();
        let secret = configured(SecretSource::File(file)).secret().unwrap();
        assert_eq!(secret.value, SecretValue::parse("hidden").unwrap());
        assert!(!format!("{secret:?}").contains("hidden"), "{secret:?}");
    }
}
