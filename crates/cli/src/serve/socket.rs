//! Socket activation: systemd opens the socket and passes it as descriptor 3 (sd_listen_fds(3)).

use std::net::TcpListener;

use belljar_wire::{Code, Problem};
use listenfd::ListenFd;

use crate::settings::Environment;

/// The socket that systemd passed, if any.
pub(super) fn inherited(environment: Environment<'_>) -> Result<Option<TcpListener>, Problem> {
    if environment("LISTEN_FDS").is_none() {
        return Ok(None);
    }
    let mut given = ListenFd::from_env();
    if given.len() > 1 {
        let message = format!("systemd passed {} sockets; the server takes one", given.len());
        return Err(Problem::new(
            Code::InvalidRequest,
            message,
            "keep one ListenStream= in the .socket unit",
        ));
    }
    given.take_tcp_listener(0).map_err(|cause| {
        let message = format!("cannot use the socket that systemd passed: {cause}");
        Problem::new(Code::InvalidRequest, message, "ListenStream= must name a TCP address and port")
    })
}
