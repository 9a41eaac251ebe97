//! The real server, over real sockets: starts it, speaks to it byte by byte, and ends it.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here takes; a test that waits for so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    /// Where its state is, if that is its own.
    state: Option<TempDir>,
    log: Arc<Mutex<String>>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with("", &[])
    }

    /// A server with this configuration and these options more.
    pub(crate) fn with(config: &str, options: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("belljar.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]).args(options);
        Server::spawn(command, folder)
    }

    /// With a state of its own, because a server records what it runs there. What an earlier one found out about the
    /// runtimes of this host is in it already.
    pub(crate) fn spawn(command: Command, folder: TempDir) -> Server {
        let state = tempfile::tempdir().unwrap();
        let known = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtimes-of-servers");
        fs::create_dir_all(&known).unwrap();
        copy_runtimes(&known, state.path());
        let server = Server::spawn_with(command, state.path().to_owned(), Some(state), folder);
        if let Some(state) = &server.state {
            copy_runtimes(state.path(), &known);
        }
        server
    }

    /// The same with the state that is in this directory.
    pub(crate) fn spawn_in(command: Command, state: PathBuf, folder: TempDir) -> Server {
        Server::spawn_with(command, state, None, folder)
    }

    fn spawn_with(mut command: Command, state: PathBuf, own: Option<TempDir>, folder: TempDir) -> Server {
        belljar_conformance::keep_failures_short();
        let mut child = command
            .current_dir(folder.path())
            .env("BELLJAR_STATE_DIR", state)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {}", log.lock().unwrap())).unwrap();
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.parse().unwrap();
            }
            *log.lock().unwrap() += &(line + "\n");
        };
        let writing = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *writing.lock().unwrap() += &(line + "\n");
            }
        });
        Server { child, address, folder, state: own, log }
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.folder.path().join("belljar.toml")
    }

    /// What it has written to stderr after its first line.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.started(), signal).unwrap();
    }

    /// The process that was started. If that was by root, it is the parent of the one that serves.
    pub(crate) fn started(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    /// The process that serves.
    pub(crate) fn pid(&self) -> Pid {
        let started = self.started().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{started}/task/{started}/children")).unwrap();
        let is_unprivileged = |pid: &Pid| {
            fs::metadata(format!("/proc/{}", pid.as_raw_nonzero()))
                .is_ok_and(|dir| dir.uid() != rustix::process::geteuid().as_raw())
        };
        let mut children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        children.find(is_unprivileged).unwrap_or_else(|| self.started())
    }

    /// What it has in memory, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// A number of its `/proc/PID/status`, in KiB.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// How many processes it has started that are still there, and those that they have started.
    pub(crate) fn descendants(&self) -> usize {
        let mut found = vec![self.pid().as_raw_nonzero().to_string()];
        let mut at = 0;
        while let Some(process) = found.get(at) {
            let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            let children: Vec<_> = children
                .flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
                .collect();
            found.extend(children);
            at += 1;
        }
        found.len() - 1
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not end: {}", self.log());
    }

    /// Sends a request with nothing but a body.
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
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.address);
        }
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
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Starts a run that is told as it happens.
    pub(crate) fn stream(&self, body: &Value) -> Events {
        self.stream_with(&body.to_string(), &[])
    }

    /// The same with these headers more.
    pub(crate) fn stream_with(&self, body: &str, more: &[(&str, &str)]) -> Events {
        let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
        let headers = [&headers[..], more].concat();
        Events::open(self.send("POST", "/v1/runs", &headers, body.as_bytes()))
    }

    /// The events of a run, from its start.
    pub(crate) fn follow(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        Events::open(self.send("GET", path, headers, b""))
    }
}

/// Copies what is known about runtimes, unless it is there. Tests do this side by side.
fn copy_runtimes(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        let name = entry.file_name();
        let is_known = name.to_str().is_some_and(|name| name.starts_with("runtime-"));
        if is_known && !to.join(&name).exists() {
            let mut copy = tempfile::NamedTempFile::new_in(to).unwrap();
            copy.write_all(&fs::read(entry.path()).unwrap()).unwrap();
            copy.persist(to.join(&name)).unwrap();
        }
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
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn read(stream: TcpStream) -> Answer {
        let mut reader = BufReader::new(stream);
        let (status, headers) = read_head(&mut reader);
        let body = if [204, 304].contains(&status) { Vec::new() } else { read_body(&mut reader, &headers) };
        Answer { status, headers, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|fault| panic!("{fault}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The error object, checked to be one: status, code, field.
    pub(crate) fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        assert!(!text("message").is_empty() && !text("hint").is_empty(), "{error}");
        (self.status, text("code"), text("field"))
    }

    /// The result object of a run that took place.
    pub(crate) fn result(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }
}

/// A run as it happens.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
    rest: String,
}

impl Events {
    fn open(stream: TcpStream) -> Events {
        let mut reader = BufReader::new(stream);
        let (status, headers) = read_head(&mut reader);
        assert_eq!(status, 200);
        assert!(headers["content-type"].starts_with("text/event-stream"), "{headers:?}");
        Events::new(reader)
    }

    /// The events of an answer whose head has been read.
    pub(crate) fn new(reader: BufReader<TcpStream>) -> Events {
        Events { reader, rest: String::new() }
    }

    /// The next event, its name and its data; a comment is called ":".
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let event = parse_event(event);
                self.rest = rest.to_owned();
                return Some(event);
            }
            let chunk = read_chunk(&mut self.reader)?;
            self.rest += str::from_utf8(&chunk).unwrap();
        }
    }

    /// All that follow, without comments.
    pub(crate) fn all(mut self) -> Vec<(String, Value)> {
        std::iter::from_fn(|| self.next()).filter(|(name, _)| name != ":").collect()
    }

    pub(crate) fn hang_up(self) {
        self.reader.into_inner().shutdown(Shutdown::Both).unwrap();
    }
}

fn parse_event(text: &str) -> (String, Value) {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    match (field("event: "), field("data: ")) {
        (Some(name), Some(data)) => (name.to_owned(), serde_json::from_str(data).unwrap()),
        _ if text.starts_with(':') => (":".to_owned(), Value::Null),
        _ => panic!("no event: {text:?}"),
    }
}

pub(crate) fn read_head(reader: &mut impl BufRead) -> (u16, HashMap<String, String>) {
    let line = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let status = line(reader);
    let code = status.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {status:?}"));
    let mut headers = HashMap::new();
    loop {
        let header = line(reader);
        let Some((name, value)) = header.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    (code.parse().unwrap(), headers)
}

fn read_body(reader: &mut impl BufRead, headers: &HashMap<String, String>) -> Vec<u8> {
    let mut body = Vec::new();
    match headers.get("content-length") {
        Some(length) => {
            reader.take(length.parse().unwrap()).read_to_end(&mut body).unwrap();
        }
        None => {
            while let Some(chunk) = read_chunk(reader) {
                body.extend(chunk);
            }
        }
    }
    body
}

fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk).unwrap();
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}

/// A word that no other process on this machine has among its arguments.
pub(crate) fn mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("mark-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A program that says `ready` and then sleeps for much longer than any test. It has a disk of its own, and so a box of its
/// own: the kernel does not show arguments that a program from a zygote got later.
pub(crate) fn sleeper(mark: &str) -> Value {
    json!({
        "language": "python",
        "code": "import os, time\nos.write(1, b'ready\\n')\ntime.sleep(300)",
        "args": [mark],
        "limits": { "timeout_ms": 300_000, "disk_bytes": 33_000_000 },
    })
}

/// How many processes have this word among their arguments. A child between fork and exec still has its parent's arguments
/// and is counted, too: wait for an exact number with [`eventually`], or ask only whether there is any.
pub(crate) fn alive(mark: &str) -> usize {
    let has_mark = |entry: fs::DirEntry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    fs::read_dir("/proc").unwrap().map_while(Result::ok).map(has_mark).filter(|has| *has).count()
}

/// Waits for something to become true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
