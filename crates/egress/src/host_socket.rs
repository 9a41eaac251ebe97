//! Sockets of the host, for what a box sends out. None of them blocks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Where packets to an address would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    /// The address is one of this host's.
    Own,
    None,
}

/// Asks the kernel, which sends nothing for that.
pub(crate) fn way_to(address: IpAddr) -> Way {
    // Any port will do.
    let Ok(socket) = connect_datagrams(SocketAddr::new(address, 53)) else { return Way::None };
    match rustix::net::getsockname(&socket).map(SocketAddr::try_from) {
        Ok(Ok(own)) if own.ip().to_canonical() == address.to_canonical() => Way::Own,
        Ok(Ok(_)) => Way::Out,
        Ok(Err(_)) | Err(_) => Way::None,
    }
}

pub(crate) fn connect_datagrams(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(to, SocketType::DGRAM)?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}

/// Begins a connection.
pub(crate) fn begin_connection(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(to, SocketType::STREAM)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn open(to: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}
