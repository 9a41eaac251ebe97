//! Where the server listens: on a TCP port, on a unix socket, or on a socket that systemd opened and passed as descriptor 3
//! (sd_listen_fds(3)).

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_server::{Listener, Peers};
use belljar_wire::{Code, Problem};
use listenfd::ListenFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::DEFAULT_LISTEN;
use crate::settings::Environment;

/// The most bytes of a unix socket's path: what `sockaddr_un` has room for, without the zero at its end.
pub(super) const LONGEST_PATH: usize = 107;
/// Clients that may wait to be accepted; the default of 128 is too small for bursts of them.
const BACKLOG: i32 = 4096;
/// How long another server may take to bind a socket in the same directory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to listen, as `--listen` and the configuration name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Address, Problem> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Address::of_path(Path::new(path));
        }
        let address = text.parse().map_err(|_| {
            let message = format!("'{}' is not an address and a port", text.escape_debug());
            let hint = "write an IP address and a port such as 127.0.0.1:8787, or unix: and a path";
            Problem::new(Code::InvalidRequest, message, hint)
        })?;
        Ok(Address::Tcp(address))
    }

    /// The path is made absolute: clients have another working directory.
    pub(super) fn of_path(path: &Path) -> Result<Address, Problem> {
        let shown = path.display();
        let unusable = |message: String| {
            Problem::new(Code::InvalidRequest, message, "write a path such as unix:/run/belljar/belljar.sock")
        };
        let nameless = || unusable(format!("'unix:{shown}' does not end with the name of a socket"));
        if path.as_os_str().is_empty() {
            return Err(nameless());
        }
        let whole = std::path::absolute(path)
            .map_err(|cause| unusable(format!("'unix:{shown}' has no usable path: {cause}")))?;
        let length = whole.as_os_str().len();
        if length > LONGEST_PATH {
            let message = format!(
                "the path of the socket has {length} bytes, and a unix socket has at most {LONGEST_PATH}: {}",
                whole.display()
            );
            let hint = "choose a shorter path, such as one beneath /run or $XDG_RUNTIME_DIR";
            return Err(Problem::new(Code::InvalidRequest, message, hint));
        }
        match whole.file_name() {
            Some(_) if !path.as_os_str().as_bytes().ends_with(b"/") => Ok(Address::Unix(whole)),
            _ => Err(nameless()),
        }
    }
}

/// A socket that clients can connect to from now on.
#[derive(Debug)]
pub(super) struct Socket {
    way: Way,
    is_inherited: bool,
    /// The file of a unix socket that we have made.
    pub(super) file: Option<SocketFile>,
}

#[derive(Debug)]
enum Way {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    /// The socket that systemd opened, else one on the address that was asked for.
    pub(super) fn open(asked: Option<&str>, environment: Environment<'_>) -> Result<Socket, Problem> {
        if let Some(socket) = inherited(environment)? {
            return Ok(socket);
        }
        match Address::parse(asked.unwrap_or(DEFAULT_LISTEN))? {
            Address::Tcp(address) => bind_tcp(address),
            Address::Unix(path) => bind_unix(&path),
        }
    }

    /// Whether other machines can reach it; if that is unknown, assume that they can.
    pub(super) fn is_exposed(&self) -> bool {
        match &self.way {
            Way::Tcp(socket) => !socket.local_addr().is_ok_and(|address| address.ip().is_loopback()),
            Way::Unix(_) => false,
        }
    }

    /// Its address as a client writes it.
    pub(super) fn url(&self) -> Option<String> {
        match &self.way {
            Way::Tcp(socket) => Some(format!("http://{}", socket.local_addr().ok()?)),
            Way::Unix(_) => Some(format!("unix:{}", self.path()?.display())),
        }
    }

    /// The same, as messages name it.
    pub(super) fn place(&self) -> String {
        let url = self.url().map(|url| url.trim_start_matches("http://").to_owned());
        url.unwrap_or_else(|| "this socket".to_owned())
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.way {
            Way::Tcp(_) => None,
            Way::Unix(socket) => socket.local_addr().ok()?.as_pathname().map(Path::to_owned),
        }
    }

    /// Refuses a socket that a server of root's could not guard: once it has given up root's rights, it cannot tell root from
    /// other users, and relies on the file of the socket ([`Peers::Unmapped`]).
    pub(super) fn can_be_guarded_unprivileged(&self) -> Result<(), Problem> {
        let Way::Unix(_) = &self.way else { return Ok(()) };
        let found = self.path().and_then(|path| path.symlink_metadata().ok());
        if found.is_some_and(|found| found.uid() == 0 && found.mode() & 0o077 == 0) {
            return Ok(());
        }
        let message = format!("cannot listen on {}: users other than root could connect", self.place());
        let hint =
            "write SocketMode=0600 in the .socket unit, or run the server as the user who is to use it";
        Err(Problem::new(Code::InvalidRequest, message, hint))
    }

    /// The socket, for the server.
    pub(super) fn into_listener(self, is_unprivileged: bool) -> Result<Listener, Problem> {
        let listener = match self.way {
            Way::Tcp(socket) => Listener::tcp(socket),
            Way::Unix(socket) if is_unprivileged => Listener::unix(socket, unmapped()?),
            Way::Unix(socket) => Listener::unix(socket, Peers::User(geteuid().as_raw())),
        };
        Ok(if self.is_inherited { listener.shared() } else { listener })
    }
}

/// The file of a socket, which is removed with its server. Another server may have put its own in its place meanwhile.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number.
    identity: (u64, u64),
    is_removed: Cell<bool>,
}

impl SocketFile {
    pub(super) fn remove(&self) {
        let is_ours = || self.path.symlink_metadata().is_ok_and(|found| identity(&found) == self.identity);
        if !self.is_removed.replace(true) && is_ours() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Leaves the file to another process.
    pub(super) fn leave(self) {
        self.is_removed.set(true);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(found: &std::fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// The socket that systemd passed, if any.
fn inherited(environment: Environment<'_>) -> Result<Option<Socket>, Problem> {
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
    // A descriptor that is not of the one kind stays there to be taken as the other.
    let tcp = given.take_tcp_listener(0).map(|socket| socket.map(Way::Tcp));
    let way = tcp.or_else(|_| given.take_unix_listener(0).map(|socket| socket.map(Way::Unix)));
    let way = way.map_err(|cause| {
        let message = format!("cannot use the socket that systemd passed: {cause}");
        let hint = "ListenStream= must name a TCP address and port, or a path";
        Problem::new(Code::InvalidRequest, message, hint)
    })?;
    Ok(way.map(|way| Socket { way, is_inherited: true, file: None }))
}

fn bind_tcp(address: SocketAddr) -> Result<Socket, Problem> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    let listener = bound.map_err(|cause| {
        let message = format!("cannot listen on {address}: {cause}");
        Problem::new(Code::Internal, message, "choose another port with --listen 127.0.0.1:PORT")
    })?;
    Ok(Socket { way: Way::Tcp(listener), is_inherited: false, file: None })
}

/// Makes a socket that only this user can connect to. One that a dead server has left is replaced.
fn bind_unix(path: &Path) -> Result<Socket, Problem> {
    let shown = path.display();
    let cannot = |why: &dyn std::fmt::Display, hint: &str| {
        Problem::new(Code::InvalidRequest, format!("cannot listen on unix:{shown}: {why}"), hint)
    };
    let _turn = take_turn(path)?;
    match occupant(path) {
        Occupant::None => {}
        Occupant::Dead => std::fs::remove_file(path)
            .map_err(|cause| cannot(&cause, "remove the file, or choose another path"))?,
        Occupant::Live => {
            let hint = "use that server, stop it, or choose another path with --listen";
            return Err(cannot(&"a server already listens there", hint));
        }
        Occupant::Other => {
            return Err(cannot(&"there is a file that is not a socket", "choose another path"));
        }
        Occupant::Unknown(cause) => return Err(cannot(&cause, "choose another path")),
    }
    let bound = new_socket(path).and_then(|socket| Ok((socket, path.symlink_metadata()?)));
    let (socket, found) = bound.map_err(|cause| cannot(&cause, "choose another path with --listen"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&found), is_removed: Cell::new(false) };
    if found.mode() & 0o077 != 0 {
        let hint = "choose a path on another file system, such as /run";
        return Err(cannot(&"the file system does not keep the permissions of the socket", hint));
    }
    Ok(Socket { way: Way::Unix(socket), is_inherited: false, file: Some(file) })
}

/// A socket at a path where nothing is.
fn new_socket(path: &Path) -> io::Result<UnixListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the permissions of the socket: there is no moment in which others could connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// What is at the path of a socket.
#[derive(Debug)]
pub(super) enum Occupant {
    None,
    /// A socket that nobody listens on.
    Dead,
    /// A server.
    Live,
    /// Something that is not a socket.
    Other,
    Unknown(io::Error),
}

pub(super) fn occupant(path: &Path) -> Occupant {
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Occupant::Other,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Occupant::None,
        Err(cause) => return Occupant::Unknown(cause),
    }
    let connected = || -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    match connected() {
        // It cannot connect at once if too many others wait to be accepted.
        Ok(()) | Err(Errno::AGAIN) => Occupant::Live,
        Err(Errno::CONNREFUSED) => Occupant::Dead,
        Err(Errno::NOENT) => Occupant::None,
        Err(errno) => Occupant::Unknown(errno.into()),
    }
}

/// Waits until nobody else binds a socket in this directory. Otherwise two servers that find a dead socket could remove each
/// other's.
fn take_turn(path: &Path) -> Result<OwnedFd, Problem> {
    let directory = trusted_directory(path)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory.into()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(errno) => {
                let cause = io::Error::from(errno);
                let message =
                    format!("cannot listen on unix:{}: cannot lock its directory: {cause}", path.display());
                let hint = "try again, or choose a path in another directory";
                return Err(Problem::new(Code::InvalidRequest, message, hint));
            }
        }
    }
}

/// The directory of a socket, in which nobody else may write: they could put a socket, or a link, of their own there.
pub(super) fn trusted_directory(path: &Path) -> Result<File, Problem> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let (shown, place) = (dir.display(), path.display());
    let cannot = |why: String, hint: String| {
        Problem::new(Code::InvalidRequest, format!("cannot listen on unix:{place}: {why}"), hint)
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| {
        let hint = format!("make the directory with `mkdir -p -m 700 {shown}`, or choose another path");
        cannot(format!("cannot open {shown}: {}", io::Error::from(errno)), hint)
    })?;
    let directory = File::from(opened);
    let found =
        directory.metadata().map_err(|cause| cannot(cause.to_string(), "choose another path".into()))?;
    if [0, geteuid().as_raw()].contains(&found.uid()) && found.mode() & 0o022 == 0 {
        return Ok(directory);
    }
    let hint =
        format!("use a directory of your own: `mkdir -m 700 DIR`, or `chmod go-w {shown}` if it is yours");
    Err(cannot(format!("other users can write to {shown}"), hint))
}

/// The id that stands for all users who are not mapped into the namespace of this server.
fn unmapped() -> Result<Peers, Problem> {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let nameless: u32 = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65534);
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.is_empty() || names(&map, nameless) {
        let message = format!(
            "cannot guard the unix socket: {nameless}, which stands for root, is also a user of boxes"
        );
        let hint = "set kernel.overflowuid to 65534, or write keep-root = true in [server]";
        return Err(Problem::new(Code::Internal, message, hint));
    }
    Ok(Peers::Unmapped(nameless))
}

/// Whether this is a user of the namespace with this map (user_namespaces(7)).
fn names(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, _outside, count) = (numbers.next(), numbers.next(), numbers.next());
        let first = first.unwrap_or(0);
        (first..first.saturating_add(count.unwrap_or(0))).contains(&u64::from(user))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_path() {
        assert_eq!(Address::parse("127.0.0.1:0").unwrap(), Address::Tcp("127.0.0.1:0".parse().unwrap()));
        assert_eq!(Address::parse("unix:/run/a.sock").unwrap(), Address::Unix("/run/a.sock".into()));
        let here = std::env::current_dir().unwrap().join("a.sock");
        assert_eq!(Address::parse("unix:a.sock").unwrap(), Address::Unix(here));
        for wrong in ["", "unix:", "unix:/", "unix:/run/", "localhost", "unix://", "8787"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_has_to_fit() {
        let path = |length: usize| format!("unix:/{}", "a".repeat(length - 1));
        assert!(Address::parse(&path(LONGEST_PATH)).is_ok());
        let error = Address::parse(&path(LONGEST_PATH + 1)).unwrap_err().error;
        assert!(error.message.contains("has 108 bytes"), "{error:?}");
    }

    #[test]
    fn a_map_says_who_has_a_name() {
        let map = "         0 1879000000          1\n1900000000 1900000000      65536\n";
        assert!(names(map, 0) && names(map, 1_900_000_000) && names(map, 1_900_065_535));
        assert!(!names(map, 65534) && !names(map, 1_900_065_536) && !names(map, 1));
        assert!(names("0 0 4294967295\n", 65534), "the host's own");
    }

    #[test]
    fn the_file_of_another_server_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = bind_unix(&path).unwrap();
        let error = bind_unix(&path).unwrap_err().error;
        assert!(error.message.ends_with("a server already listens there"), "{error:?}");
        std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        let second = bind_unix(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
