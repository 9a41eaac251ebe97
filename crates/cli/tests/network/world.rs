//! The host's side of the world: its network, a service of its own that no box may reach, and its configuration.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::ROLE;
use crate::internet::echo_datagrams;

/// The host's own address on the way to the internet.
pub(crate) const HOST: &str = "93.184.216.1";
/// A second one, from which it sends nothing by itself, and one that it has as a router of its network.
pub(crate) const SECOND: &str = "93.184.216.2";
pub(crate) const ANYCAST: &str = "2606:2800::";
/// What the host's own services say.
pub(crate) const SECRET: &str = "a service of the host";
pub(crate) const ABSTRACT: &str = "belljar-test-abstract";

/// Tells the internet where the files of the tests are.
pub(crate) const DIRECTORY: &str = "BELLJAR_TEST_DIRECTORY";

/// The world of all tests in this process.
pub(crate) struct World {
    internet: Child,
    /// Directories for files and state.
    dir: tempfile::TempDir,
}

pub(crate) static WORLD: LazyLock<World> = LazyLock::new(World::make);

impl World {
    fn make() -> World {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let mut internet = Command::new("unshare")
            .arg("--net")
            .arg(std::env::current_exe().unwrap())
            .env(ROLE, "internet")
            .env(DIRECTORY, dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(internet.stdout.take().unwrap());
        let mut expect = |word: &str| {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), word);
        };
        // It is in its own namespace by now.
        expect("ready");
        let id = internet.id().to_string();
        ip("link set lo up");
        ip("link add up0 type veth peer name up1");
        ip(&format!("link set up1 netns {id}"));
        ip(&format!("addr add {HOST}/24 dev up0"));
        ip(&format!("addr add {SECOND}/24 dev up0"));
        ip("-6 addr add 2606:2800::1/64 dev up0 nodad");
        ip("link set up0 up");
        std::fs::write("/proc/sys/net/ipv6/conf/up0/forwarding", "1").unwrap();
        ip("route add default via 93.184.216.34");
        ip("-6 route add default via 2606:2800::34");
        writeln!(internet.stdin.as_mut().unwrap(), "go").unwrap();
        expect("serving");
        serve_host();
        // An ordinary user reads it, too.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("belljar.toml"), CONFIGURATION).unwrap();
        World { internet, dir }
    }

    /// A process in the internet's namespace.
    pub(crate) fn internet(&self) -> u32 {
        self.internet.id()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// What the servers with secrets need.
fn prepare(dir: &Path) {
    #[cfg(feature = "secrets")]
    {
        use std::os::unix::fs::PermissionsExt;
        // A server that root started is not root, and reads the certificates here.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        crate::api::prepare(dir);
        std::fs::write(dir.join("secrets.toml"), crate::secrets::configuration(dir)).unwrap();
    }
    #[cfg(not(feature = "secrets"))]
    let _ = dir;
}

/// Everything here is in the test's own network, so the test's own name server is asked.
const CONFIGURATION: &str = "\
[egress]
resolver = \"93.184.216.34:53\"
deny = [\"denied.test\", \"93.184.216.36\"]
";

pub(crate) fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).status().unwrap();
    assert!(done.success(), "ip {words}");
}

/// What is on the loopback and the own address of the host, and in its namespace of abstract sockets.
fn serve_host() {
    for address in ["127.0.0.1", HOST, SECOND] {
        let listener = TcpListener::bind((address, 80)).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|mut one| answer(&mut one)));
    }
    let datagrams = UdpSocket::bind("[::]:5000").unwrap();
    std::thread::spawn(move || echo_datagrams(&datagrams));
    let name = SocketAddr::from_abstract_name(ABSTRACT).unwrap();
    let listener = UnixListener::bind_addr(&name).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut one| answer(&mut one)));
}

fn answer(stream: &mut (impl Read + Write)) {
    let _ = stream.read(&mut [0; 1000]);
    let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{SECRET}").as_bytes());
}
