//! The real server, over real sockets: starts it, speaks to it byte by byte, and ends it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes; a test that waits for so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start() -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .env("BELLJAR_STATE_DIR", state_dir())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().parse().unwrap();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { child, address }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        Answer::read(self.send(method, path, headers, body))
    }

    /// Sends a request and leaves the answer where it is.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n", self.address);
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        // It may answer and hang up before it has read everything.
        let _ = stream.write_all(body);
        stream
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn read(stream: TcpStream) -> Answer {
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_ascii_lowercase()
        };
        let status = line().split(' ').nth(1).unwrap_or_default().parse().unwrap();
        let headers: Vec<String> =
            std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
        let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
        let mut body = Vec::new();
        reader.take(length.unwrap().parse().unwrap()).read_to_end(&mut body).unwrap();
        Answer { status, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|fault| panic!("{fault}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// What a request that succeeded is answered with.
    pub(crate) fn result(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }
}

/// Shared by all tests, so that only the first has to find out what the host can do.
fn state_dir() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compat-state");
    fs::create_dir_all(&path).unwrap();
    path
}

/// A word that no other process on this machine has among its arguments.
pub(crate) fn mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("compat-mark-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How many processes have this word among their arguments.
pub(crate) fn alive(mark: &str) -> usize {
    let has_mark = |entry: fs::DirEntry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    fs::read_dir("/proc").unwrap().map_while(Result::ok).map(has_mark).filter(|has| *has).count()
}

/// Waits for something to become true.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
