//! Tells systemd how the server is (sd_notify(3)): a datagram to the socket that `NOTIFY_SOCKET` names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::settings::Environment;

/// Sends the state, if systemd started the server. A failure is only logged: the server works without it.
pub(super) fn tell(environment: Environment<'_>, state: &str) {
    let Some(name) = environment("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(cause) = sent {
        tracing::warn!(%cause, state, "cannot notify systemd");
    }
}
