//! The secrets of one box, each with what it takes to be its host for the box, and a client of that host outside.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub(crate) use crate::authority::Authority;
pub(crate) use crate::relay::Relay;
use crate::secret::Secret;

/// What is spoken on both sides. The requests of HTTP/2 cannot be read here.
const HTTP: &[u8] = b"http/1.1";

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Vault(Vec<Rc<Door>>);

/// The only way on which a secret leaves.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) secret: Rc<Secret>,
    /// The host, as the box sees it.
    pub(crate) inside: Arc<ServerConfig>,
    /// A client of the host.
    pub(crate) outside: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl Vault {
    /// `roots` are the certificates, as PEM, that hosts are verified with.
    pub(crate) fn open(
        secrets: Vec<Secret>,
        roots: &str,
        authority: Option<&Authority>,
    ) -> io::Result<Vault> {
        if secrets.is_empty() {
            return Ok(Vault::default());
        }
        let authority = authority.ok_or(io::ErrorKind::InvalidData)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let outside = Arc::new(client(roots, provider.clone())?);
        let door = |secret: Secret| {
            let name = secret.host.name().to_owned();
            let inside = Arc::new(server(authority, &name, provider.clone())?);
            let name = ServerName::try_from(name).map_err(io::Error::other)?;
            Ok(Rc::new(Door { secret: Rc::new(secret), inside, outside: outside.clone(), name }))
        };
        secrets.into_iter().map(door).collect::<io::Result<_>>().map(Vault)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a secret for this host, on any port.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.0.iter().any(|door| door.secret.host.name() == name)
    }

    pub(crate) fn door(&self, name: &str, port: u16) -> Option<Rc<Door>> {
        let leads = |door: &&Rc<Door>| door.secret.host.name() == name && door.secret.host.port() == port;
        self.0.iter().find(leads).cloned()
    }
}

fn client(roots: &str, provider: Arc<CryptoProvider>) -> io::Result<ClientConfig> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(roots.as_bytes()).flatten());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = versions.map_err(io::Error::other)?.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = vec![HTTP.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

fn server(authority: &Authority, name: &str, provider: Arc<CryptoProvider>) -> io::Result<ServerConfig> {
    let leaf = authority.leaf(name)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(leaf.key));
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(io::Error::other)?.with_no_client_auth();
    let chain = vec![CertificateDer::from(leaf.certificate)];
    let mut config = config.with_single_cert(chain, key).map_err(io::Error::other)?;
    config.alpn_protocols = vec![HTTP.to_vec()];
    // The box is to keep nothing of a connection, nor is the gateway.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}
