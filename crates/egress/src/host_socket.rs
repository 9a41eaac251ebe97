//! Sockets of the host, for what a box sends out. None of them blocks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// What the kernel may hold for one connection in each direction. It would take megabytes by itself, and charge nobody.
/// It doubles the number for its own records, and takes less where `rmem_max` and `wmem_max` are lower.
const BUFFER: usize = 256 << 10;

pub(crate) fn connect_datagrams(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(to, SocketType::DGRAM)?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}

/// Begins a connection.
pub(crate) fn begin_connection(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(to, SocketType::STREAM)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    // Before `connect`, which tells the other end how large the window can become.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_holds_for_a_connection_is_bounded() {
        use rustix::net::sockopt::{
            set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_recv_buffer_size,
            socket_send_buffer_size,
        };
        let sizes = |socket: &OwnedFd| {
            (socket_recv_buffer_size(socket).unwrap(), socket_send_buffer_size(socket).unwrap())
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = begin_connection(listener.local_addr().unwrap()).unwrap();
        let plain = open(listener.local_addr().unwrap(), SocketType::STREAM).unwrap();
        assert_ne!(sizes(&socket), sizes(&plain), "the control");
        // How much of it the kernel grants depends on the host.
        set_socket_recv_buffer_size(&plain, BUFFER).unwrap();
        set_socket_send_buffer_size(&plain, BUFFER).unwrap();
        assert_eq!(sizes(&socket), sizes(&plain));
        assert!(sizes(&socket).0 <= 2 * BUFFER && sizes(&socket).1 <= 2 * BUFFER);
    }
}
