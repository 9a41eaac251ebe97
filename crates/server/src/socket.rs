//! What the server listens on: a TCP port, or a unix socket, whose clients the kernel names.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use rustix::net::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: Listening,
    /// Whether somebody else listens on it too, who will take the clients that we leave.
    is_shared: bool,
}

#[derive(Debug)]
enum Listening {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, Peers),
}

/// Whose connections a unix socket takes. What counts is the user that a client had when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// This user's, and root's.
    User(u32),
    /// Those of root, to a server that root started and that has given up root's rights.
    ///
    /// Such a server lives in a user namespace, where the kernel names only the users that are mapped into it: the server's
    /// own, and those of its boxes. None of them has any business here, and so all of them are refused. Every other user
    /// of the host, root among them, is shown as this one id, which stands for users without a name. Which of them it is
    /// cannot be told here, and need not be: the file of the socket is root's, with mode 0600, so that the kernel has
    /// let nobody else connect. Root cannot be mapped instead, because the server could then become root.
    Unmapped(u32),
}

impl Peers {
    fn include(self, user: u32) -> bool {
        match self {
            Peers::User(own) => user == own || user == 0,
            Peers::Unmapped(nameless) => user == nameless,
        }
    }
}

impl Listener {
    /// A TCP port.
    #[must_use]
    pub fn tcp(socket: std::net::TcpListener) -> Listener {
        Listener { socket: Listening::Tcp(socket), is_shared: false }
    }

    /// A unix socket.
    #[must_use]
    pub fn unix(socket: std::os::unix::net::UnixListener, peers: Peers) -> Listener {
        Listener { socket: Listening::Unix(socket, peers), is_shared: false }
    }

    /// The same, on which the service manager listens too: clients that nobody has accepted make it start another server.
    #[must_use]
    pub fn shared(self) -> Listener {
        Listener { is_shared: true, ..self }
    }

    /// Makes it part of the current runtime.
    pub(crate) fn open(self) -> io::Result<Door> {
        let way = match self.socket {
            Listening::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                Way::Tcp(TcpListener::from_std(socket)?)
            }
            Listening::Unix(socket, peers) => {
                socket.set_nonblocking(true)?;
                Way::Unix(UnixListener::from_std(socket)?, peers)
            }
        };
        Ok(Door { way, is_shared: self.is_shared })
    }
}

/// Where clients come in.
#[derive(Debug)]
pub(crate) struct Door {
    way: Way,
    is_shared: bool,
}

#[derive(Debug)]
enum Way {
    Tcp(TcpListener),
    Unix(UnixListener, Peers),
}

/// One who has connected.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: Stream,
    /// `None` on a unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Whether it is one of those who may connect.
    pub(crate) is_welcome: bool,
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<Client> {
        match &self.way {
            Way::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                Ok(Client::by_tcp(stream, address))
            }
            Way::Unix(socket, peers) => {
                let (stream, _) = socket.accept().await?;
                Ok(Client::by_unix(stream, *peers))
            }
        }
    }

    /// Lets nobody in any more. Returns those who had connected before, unless somebody else will take them.
    pub(crate) fn close(self) -> Vec<Client> {
        match self.way {
            _ if self.is_shared => Vec::new(),
            // A TCP socket has no way to refuse others without dropping its queue: who comes after the last look is lost.
            Way::Tcp(socket) => socket.into_std().map(|socket| last_of_tcp(&socket)).unwrap_or_default(),
            Way::Unix(socket, peers) => {
                // From here on, connecting is refused, whether or not the file of the socket is still there.
                let _ = shutdown(&socket, Shutdown::Read);
                socket.into_std().map(|socket| last_of_unix(&socket, peers)).unwrap_or_default()
            }
        }
    }
}

impl Client {
    fn by_tcp(stream: TcpStream, address: SocketAddr) -> Client {
        Client { stream: Stream::Tcp(stream), address: Some(address), is_welcome: true }
    }

    fn by_unix(stream: UnixStream, peers: Peers) -> Client {
        let is_welcome = stream.peer_cred().is_ok_and(|peer| peers.include(peer.uid()));
        Client { stream: Stream::Unix(stream), address: None, is_welcome }
    }
}

fn last_of_tcp(socket: &std::net::TcpListener) -> Vec<Client> {
    queue(|| socket.accept())
        .filter_map(|(stream, address)| {
            stream.set_nonblocking(true).ok()?;
            Some(Client::by_tcp(TcpStream::from_std(stream).ok()?, address))
        })
        .collect()
}

fn last_of_unix(socket: &std::os::unix::net::UnixListener, peers: Peers) -> Vec<Client> {
    queue(|| socket.accept())
        .filter_map(|(stream, _)| {
            stream.set_nonblocking(true).ok()?;
            Some(Client::by_unix(UnixStream::from_std(stream).ok()?, peers))
        })
        .collect()
}

/// Those who are in the queue of a socket that does not block. The kernel is asked, not the runtime, which may not have heard
/// of the last of them. The queue has a limit.
fn queue<T>(mut accept: impl FnMut() -> io::Result<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        loop {
            match accept() {
                Ok(accepted) => return Some(accepted),
                Err(cause)
                    if [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted]
                        .contains(&cause.kind()) => {}
                Err(_) => return None,
            }
        }
    })
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_read(buffer),
            Stream::Unix(stream) => stream.try_read(buffer),
        }
    }

    pub(crate) fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_write_vectored(pieces),
            Stream::Unix(stream) => stream.try_write_vectored(pieces),
        }
    }

    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(context),
            Stream::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    pub(crate) fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(context),
            Stream::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    /// Waits until the client sends no more, whether or not what it sent has been read.
    pub(crate) async fn hung_up(&self) {
        // Sockets are not registered for urgent data, and what is left of this interest is the end of the stream;
        // waiting for something to read would return at once for as long as a stray byte is there.
        let _ = match self {
            Stream::Tcp(stream) => stream.ready(Interest::PRIORITY).await,
            Stream::Unix(stream) => stream.ready(Interest::PRIORITY).await,
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_its_own_user_and_root() {
        let own = Peers::User(1000);
        assert!(own.include(1000) && own.include(0));
        assert!(!own.include(1001) && !own.include(65534));
        let root = Peers::User(0);
        assert!(root.include(0) && !root.include(1000));
    }

    #[test]
    fn without_privileges_neither_the_server_nor_a_box_is_a_client() {
        let unmapped = Peers::Unmapped(65534);
        assert!(unmapped.include(65534));
        assert!(!unmapped.include(0), "the server's own user");
        assert!(!unmapped.include(2_000_000_000), "that of a box");
    }
}
