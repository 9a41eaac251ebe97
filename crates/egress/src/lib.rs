//! The way out of a box: a process that carries the connections of one box to the hosts that the box may reach.
//!
//! ```text
//! program ──socket──▶ eth0 ══ veth ══ packets ──▶ gateway ──socket──▶ host
//!          in the box's kernel namespace           TCP/IP in user space
//! ```
//!
//! In reading order: `process` is how a gateway is started and ended; `order` is what it is told and what it reports;
//! `news` is what it tells meanwhile; `gateway` is its loop. A packet is read by `packet`, a question for a name is answered by `names` (and `dns`), a
//! connection is a `flow`, whose first bytes `inspect` reads (and `tls`, `http`). What may be reached is decided by
//! `belljar_core::egress`; `routes` knows which addresses are the host's own. A connection to a host that has a `secret` is a
//! `relay`, which the `vault` has what it takes for; `authority` makes the certificates that only the box trusts.
//!
//! Programs in the box need no settings: they see an interface, a route and a name server. The box's network namespace is
//! its own in every case, so nothing of the host's loopback, and no abstract socket, is in its reach.

#![forbid(unsafe_code)]

#[cfg(feature = "secrets")]
mod authority;
mod dns;
mod flow;
mod gateway;
mod host_socket;
mod http;
mod inspect;
mod names;
mod news;
mod order;
mod packet;
mod process;
#[cfg(any(test, feature = "rehearsal"))]
pub mod rehearsal;
#[cfg(feature = "secrets")]
mod relay;
mod routes;
#[cfg(feature = "secrets")]
mod scrub;
mod secret;
mod tally;
mod tls;
mod uplink;
#[cfg_attr(not(feature = "secrets"), path = "no_vault.rs")]
mod vault;

pub use order::{EgressLimits, Order};
pub use process::{GATEWAY, GatewayProcess, run_as_gateway};
pub use secret::{HeaderFault, Secret, SecretHeader, SecretValue};

/// Whether this build can add secrets.
pub const ADDS_SECRETS: bool = cfg!(feature = "secrets");
