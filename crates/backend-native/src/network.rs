//! The network of a box: what an operator has configured for all of them, and the gateway of one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use belljar_core::backend::{BackendError, SandboxSpec};
use belljar_core::egress::{Egress, NetworkEvent, Rule};
use belljar_core::outcome::NetworkUse;
use belljar_core::request::EnvVar;
use belljar_egress::{EgressLimits, GatewayProcess, Order};
use belljar_jail::plan::Plan;
use belljar_jail::uplink::NAME_SERVER;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::secrets::{self, ConfiguredSecret};

/// Where hosts say which name servers they use (`resolv.conf(5)`).
const RESOLVER_CONFIGURATION: &str = "/etc/resolv.conf";
const NAME_SERVICE: u16 = 53;
/// As many name servers as the C library looks at.
const MAX_SERVERS: usize = 3;

/// What an operator says about the networks of boxes.
#[derive(Debug, Clone, Default)]
pub struct NetworkSettings {
    /// What no box may reach, whatever its request allows.
    pub deny: Vec<Rule>,
    /// The name server to ask, instead of the host's.
    pub resolver: Option<SocketAddr>,
    /// How much each box may do.
    pub limits: EgressLimits,
    /// What may be added to the requests of boxes.
    pub secrets: Vec<ConfiguredSecret>,
    /// The certificates with which their hosts are verified, instead of those that the host trusts.
    pub ca_file: Option<PathBuf>,
}

impl NetworkSettings {
    /// Whether they say more than how names are looked up.
    #[must_use]
    pub fn restrict(&self) -> bool {
        !self.deny.is_empty() || self.limits != EgressLimits::default()
    }

    /// What a gateway is to do for a box with this network; `None` for a box without any.
    ///
    /// # Errors
    /// A secret that is not there, or certificates.
    pub(crate) fn order(&self, sandbox: &SandboxSpec) -> Result<Option<Order>, BackendError> {
        let secrets = secrets::wanted(sandbox, &self.secrets)?;
        let Some(egress) = Egress::new(&sandbox.network, self.deny.clone()) else { return Ok(None) };
        let roots = match secrets[..] {
            [] => String::new(),
            [..] => secrets::trusted(self.ca_file.as_deref())?,
        };
        let servers = match self.resolver {
            Some(server) => vec![server],
            None => servers_of(&std::fs::read_to_string(RESOLVER_CONFIGURATION).unwrap_or_default()),
        };
        Ok(Some(Order { egress, servers, limits: self.limits, secrets, roots }))
    }
}

/// `/etc/resolv.conf` of every box, because a box that waits may get a network later. Without one there is no way to that
/// address, and whoever asks is told so at once.
pub(crate) fn resolver_configuration() -> String {
    format!("nameserver {}\n", IpAddr::from(NAME_SERVER))
}

/// The gateway of one box.
#[derive(Debug)]
pub(crate) struct Gateway {
    process: GatewayProcess,
    order: Order,
    /// A second handle on its socket, to wait for what it tells. Gone if it tells nothing any more.
    telling: Option<UnixDatagram>,
}

impl Gateway {
    /// Starts it, so that it is loaded by the time the box has an uplink.
    pub(crate) fn start(order: Order) -> io::Result<Gateway> {
        let process = GatewayProcess::start()?;
        // It keeps message boundaries, like a datagram socket; polling it needs no more than that.
        let telling = std::os::unix::net::UnixDatagram::from(process.share_socket()?);
        telling.set_nonblocking(true)?;
        Ok(Gateway { process, order, telling: Some(UnixDatagram::from_std(telling)?) })
    }

    /// Lets the box trust it, because it stands in for the hosts of secrets.
    pub(crate) fn be_trusted(&mut self, plan: &mut Plan, env: &[EnvVar]) -> io::Result<()> {
        let authority = self.process.certify()?;
        secrets::trust(plan, env, &self.order.roots, &authority);
        Ok(())
    }

    /// Whether it adds secrets.
    pub(crate) fn adds_secrets(&self) -> bool {
        !self.order.secrets.is_empty()
    }

    /// Connects it with the box.
    pub(crate) fn connect(&mut self, uplink: &OwnedFd) -> io::Result<()> {
        self.process.connect(&self.order, uplink)
    }

    /// What the box does next with its network. The future may be dropped before it is ready; nothing is lost.
    pub(crate) async fn hear(&mut self) -> NetworkEvent {
        while let Some(telling) = &self.telling {
            if telling.readable().await.is_err() {
                break;
            }
            match telling.try_io(Interest::READABLE, || self.process.hear()) {
                Ok(Some(event)) => return event,
                // What it says is no event.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        self.telling = None;
        std::future::pending().await
    }

    /// Ends it, and with it the network of the box. Also returns what was not heard before.
    pub(crate) fn finish(self) -> (NetworkUse, Vec<NetworkEvent>) {
        self.process.finish()
    }
}

/// The name servers in a text of `resolv.conf(5)`. Without any, the C library asks the host itself.
fn servers_of(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let server = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        server.parse().ok().map(|address: IpAddr| SocketAddr::new(address, NAME_SERVICE))
    };
    let servers: Vec<_> = text.lines().filter_map(address).take(MAX_SERVERS).collect();
    if servers.is_empty() { vec![SocketAddr::from(([127, 0, 0, 1], NAME_SERVICE))] } else { servers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::guarantee::{Offer, Standing, resolve};
    use belljar_core::limits::LimitsRequest;
    use belljar_core::request::Network;

    #[test]
    fn the_hosts_name_servers_are_read_as_the_c_library_reads_them() {
        let text =
            "# comment\nsearch example.org\nnameserver 127.0.0.53 \nnameserver\t2001:db8::1\nnameserver x\n";
        let servers = servers_of(text);
        assert_eq!(servers, ["127.0.0.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        assert_eq!(servers_of(&"nameserver 1.1.1.1\n".repeat(5)).len(), MAX_SERVERS);
        assert_eq!(servers_of(""), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[test]
    fn only_a_box_with_a_network_has_a_gateway() {
        let settings = NetworkSettings::default();
        let order = |network| {
            let (limits, _) = LimitsRequest::default().resolve().unwrap();
            let everything = Offer::by_asking(|_| Standing::Kept { how: String::new() });
            let sandbox = SandboxSpec::unspecific(limits, resolve(&everything, &[]).unwrap());
            settings.order(&SandboxSpec { network, ..sandbox }).unwrap()
        };
        assert!(order(Network::None).is_none() && !settings.restrict());
        let denying = NetworkSettings { deny: vec![Rule::parse("a.org").unwrap()], ..settings.clone() };
        let limits = EgressLimits { up: Some(1), ..EgressLimits::default() };
        assert!(denying.restrict() && NetworkSettings { limits, ..settings.clone() }.restrict());
        assert!(order(Network::Full).is_some());
        assert_eq!(resolver_configuration(), "nameserver 192.0.2.1\n");
    }
}
