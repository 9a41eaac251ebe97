//! A server on a unix socket: who may connect, what becomes of its file, and when it stops by itself.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{PATIENCE, alive, eventually, mark, sleeper};

pub(crate) const NOBODY: u32 = 65534;
/// Somebody who is neither of those that start servers here.
pub(crate) const STRANGER: u32 = 54321;
/// What an ordinary user on a host like this may have to do without.
pub(crate) const WAIVED: [&str; 3] = ["memory", "pids", "cpu"];

/// A directory of a user's, with the program in it, where others can run that but write nothing.
pub(crate) struct Home {
    pub(crate) folder: TempDir,
    pub(crate) user: u32,
}

impl Home {
    pub(crate) fn of(user: u32) -> Home {
        assert!(geteuid().is_root(), "only root can start programs as somebody else");
        let folder = tempfile::tempdir().unwrap();
        fs::copy(env!("CARGO_BIN_EXE_belljar"), folder.path().join("belljar")).unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        for dir in [folder.path().to_owned(), folder.path().join("run")] {
            std::os::unix::fs::chown(&dir, Some(user), Some(user)).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        }
        Home { folder, user }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/s")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// The program, as this user.
    pub(crate) fn belljar(&self, user: u32) -> Command {
        let mut command = Command::new(self.folder.path().join("belljar"));
        let state = self.folder.path().join(format!("state-{user}"));
        command.uid(user).gid(user).current_dir("/").env("BELLJAR_STATE_DIR", state);
        command.env("HOME", self.folder.path().join("home")).env_remove("XDG_RUNTIME_DIR");
        command.env_remove("BELLJAR_API_KEY").env_remove("BELLJAR_URL");
        command
    }

    /// The words that the program says to this user who asks the server for its pool, and its exit status.
    fn asked_by(&self, user: u32) -> (Option<i32>, String) {
        let output = self.belljar(user).args(["pool", "--url", &self.url()]).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    fn serve(&self, config: &str, options: &[&str]) -> Served {
        let path = self.folder.path().join("belljar.toml");
        fs::write(&path, config).unwrap();
        let mut command = self.belljar(self.user);
        command.args(["serve", "--listen", &self.url(), "--config"]).arg(&path).args(options);
        Served::spawn(command, self.socket())
    }

    /// A server that does not start.
    fn refused(&self, listen: &str) -> (Option<i32>, String) {
        let output = self.belljar(self.user).args(["serve", "--listen", listen]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A server that is ready.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
}

impl Served {
    fn spawn(mut command: Command, socket: PathBuf) -> Served {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}")).unwrap();
            if line == format!("listening on unix:{}", socket.display()) {
                break;
            }
            said += &(line + "\n");
        }
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Served { child, socket }
    }

    fn started(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks over a unix socket; the connection is closed with the answer.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    ask_with(socket, method, path, body, "host: localhost\r\n")
}

fn ask_with(socket: &Path, method: &str, path: &str, body: Option<&Value>, headers: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\n{headers}{kind}connection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

fn hello() -> Value {
    json!({"language": "sh", "code": "echo hello"})
}

#[test]
fn a_socket_is_for_its_user_and_for_root() {
    for user in [0, NOBODY] {
        let home = Home::of(user);
        let waive = format!("waive = {WAIVED:?}\n");
        let mut server = home.serve(if user == 0 { "" } else { &waive }, &[]);
        let found = fs::symlink_metadata(&server.socket).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!((found.mode() & 0o777, found.uid()), (0o600, user));
        let (status, result) = ask(&server.socket, "POST", "/v1/runs", Some(&hello()));
        assert_eq!((status, &result["stdout"]), (200, &json!("hello\n")), "{result}");
        assert_eq!(home.asked_by(user).0, Some(0), "the control: its own user");
        let (code, said) = home.asked_by(STRANGER);
        assert_eq!(code, Some(2));
        assert!(said.contains("Permission denied"), "{said}");
        kill_process(server.started(), Signal::TERM).unwrap();
        assert!(server.wait().success());
        assert!(!server.socket.exists());
        assert_eq!(fs::read_dir(server.socket.parent().unwrap()).unwrap().count(), 0, "nothing is left");
    }
}

/// Whoever gets past the permissions of the file is still not let in.
#[test]
fn the_kernel_says_who_connects() {
    let home = Home::of(NOBODY);
    let server = home.serve("", &[]);
    fs::set_permissions(&server.socket, Permissions::from_mode(0o777)).unwrap();
    for (user, code) in [(NOBODY, 0), (0, 0), (STRANGER, 2)] {
        let (found, said) = home.asked_by(user);
        assert_eq!(found, Some(code), "{user}: {said}");
        let refused = "refused the request: this socket is for the user who started the server";
        assert_eq!(said.contains(refused), code != 0, "{user}: {said}");
    }
}

/// The users of a server that has given up root's rights: its own, and those of its boxes.
#[test]
fn without_privileges_no_user_of_the_servers_own_is_let_in() {
    let home = Home::of(0);
    let server = home.serve("", &[]);
    fs::set_permissions(&server.socket, Permissions::from_mode(0o777)).unwrap();
    let started = server.started().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{started}/task/{started}/children")).unwrap();
    let maps = children.split_whitespace().map(|pid| fs::read_to_string(format!("/proc/{pid}/uid_map")));
    let map = maps.map(Result::unwrap).find(|map| map.lines().count() == 2).unwrap();
    let outside: Vec<u32> =
        map.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(home.asked_by(0).0, Some(0), "the control");
    for user in outside {
        assert!(user > 100_000, "{map}");
        let (code, said) = home.asked_by(user);
        assert_eq!(code, Some(2), "{user}: {said}");
        assert!(said.contains("refused the request: this socket is for"), "{user}: {said}");
    }
}

#[test]
fn the_socket_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not() {
    for user in [0, NOBODY] {
        let home = Home::of(user);
        let mut server = home.serve("", &[]);
        let (code, said) = home.refused(&home.url());
        assert_eq!(code, Some(2));
        assert!(said.contains("a server already listens there") && said.contains("hint: "), "{said}");
        assert_eq!(ask(&server.socket, "GET", "/healthz", None).0, 200, "it was left alone");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        eventually("nobody listens", || UnixStream::connect(&server.socket).is_err());
        assert!(server.socket.exists(), "a server that is killed leaves its socket");
        let server = home.serve("", &[]);
        assert_eq!(ask(&server.socket, "GET", "/healthz", None).0, 200);
    }
}

#[test]
fn a_place_that_is_not_safe_or_not_possible_is_refused_with_what_to_do() {
    let home = Home::of(NOBODY);
    let dir = home.folder.path();
    let long = format!("unix:{}/{}", dir.display(), "a".repeat(100));
    let missing = format!("unix:{}/missing/s", dir.display());
    fs::write(dir.join("run/file"), "").unwrap();
    let file = format!("unix:{}/run/file", dir.display());
    let open = dir.join("open");
    fs::create_dir(&open).unwrap();
    std::os::unix::fs::chown(&open, Some(NOBODY), None).unwrap();
    for mode in [0o777, 0o1777, 0o770] {
        fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
        let (code, said) = home.refused(&format!("unix:{}/s", open.display()));
        assert_eq!(code, Some(2));
        assert!(said.contains("other users can write to") && said.contains("chmod go-w"), "{said}");
    }
    for (listen, why) in [
        (long.as_str(), "a unix socket has at most 107"),
        (&missing, "No such file or directory"),
        (&file, "there is a file that is not a socket"),
        ("unix:", "does not end with the name of a socket"),
    ] {
        let (code, said) = home.refused(listen);
        assert_eq!(code, Some(2), "{listen}");
        assert!(said.contains(why) && said.contains("hint: "), "{listen}: {said}");
    }
}

#[test]
fn keys_hosts_and_pages_matter_as_on_a_port() {
    let home = Home::of(0);
    let server = home.serve(&format!("[[keys]]\nname = 'a'\nsha256 = '{}'\n", "ab".repeat(32)), &[]);
    assert_eq!(ask(&server.socket, "GET", "/healthz", None).0, 200);
    assert_eq!(ask(&server.socket, "GET", "/v1/pool", None).0, 401);
    let home = Home::of(0);
    let server = home.serve("", &[]);
    let get = |headers: &str| ask_with(&server.socket, "GET", "/v1/backends", None, headers).0;
    assert_eq!(get("host: localhost\r\n"), 200, "the control");
    assert_eq!(get("host: evil.org\r\n"), 403);
    assert_eq!(get("host: localhost\r\norigin: http://evil.org\r\n"), 403);
}

#[test]
fn a_socket_that_systemd_opened_is_taken_and_left_there() {
    let home = Home::of(0);
    let start = |mode: u32| {
        let _ = fs::remove_file(home.socket());
        let listener = UnixListener::bind(home.socket()).unwrap();
        fs::set_permissions(home.socket(), Permissions::from_mode(mode)).unwrap();
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
        let script = format!(
            "exec 3<&{} && LISTEN_FDS=1 LISTEN_PID=$$ exec {} serve --idle-timeout 200ms",
            listener.as_raw_fd(),
            home.folder.path().join("belljar").display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env("BELLJAR_STATE_DIR", home.folder.path().join("state"));
        command.current_dir(home.folder.path());
        (command, listener)
    };
    let (mut command, _listener) = start(0o666);
    let refused: Output = command.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("users other than root could connect") && said.contains("SocketMode=0600"),
        "{said}"
    );
    let (command, listener) = start(0o600);
    let mut server = Served::spawn(command, home.socket());
    assert_eq!(ask(&server.socket, "GET", "/healthz", None).0, 200);
    assert!(server.wait().success(), "it stops when it is idle");
    assert!(server.socket.exists(), "the file is not the server's to remove");
    let late = UnixStream::connect(&server.socket);
    assert!(late.is_ok(), "whoever comes later waits for the next one");
    drop(listener);
}

#[test]
fn a_server_that_nobody_needs_stops_and_one_that_somebody_needs_does_not() {
    let home = Home::of(0);
    let mut server = home.serve("", &["--idle-timeout", "300ms"]);
    let began = Instant::now();
    let connected = UnixStream::connect(&server.socket).unwrap();
    while began.elapsed() < Duration::from_millis(1500) {
        assert!(server.child.try_wait().unwrap().is_none(), "somebody is connected");
        std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    let nap = json!({"language": "sh", "code": "sleep 2"});
    let headers = "host: localhost\r\nprefer: respond-async\r\n";
    let (status, state) = ask_with(&server.socket, "POST", "/v1/runs", Some(&nap), headers);
    assert_eq!(status, 202, "{state}");
    drop(connected);
    assert!(server.wait().success());
    assert!(began.elapsed() >= Duration::from_secs(2), "the run had not ended");
    assert!(!server.socket.exists());
}

#[test]
fn a_run_that_waits_for_approval_keeps_the_server() {
    let home = Home::of(0);
    let mut server = home.serve("[policy]\ndefault = 'approve'\n", &["--idle-timeout", "300ms"]);
    let headers = "host: localhost\r\nprefer: respond-async\r\n";
    let (status, state) = ask_with(&server.socket, "POST", "/v1/runs", Some(&hello()), headers);
    assert_eq!((status, &state["status"]), (202, &json!("awaiting_approval")), "{state}");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        assert!(server.child.try_wait().unwrap().is_none(), "a run waits");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = state["approval_id"].as_str().unwrap();
    let (status, said) =
        ask(&server.socket, "POST", &format!("/v1/approvals/{id}/approve"), Some(&json!({})));
    assert_eq!(status, 200, "{said}");
    assert!(server.wait().success());
}

/// A server that stops has either let a client in, who then gets an answer, or has not.
#[test]
fn a_client_that_comes_while_the_server_goes_is_served_or_refused() {
    let home = Home::of(0);
    let mut answered = 0;
    for _ in 0..12 {
        let mut server = home.serve("[pool]\nenabled = false\n", &["--idle-timeout", "1ms"]);
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let socket = server.socket.clone();
                std::thread::spawn(move || {
                    let mut answered = 0;
                    loop {
                        let mut stream = match UnixStream::connect(&socket) {
                            Ok(stream) => stream,
                            Err(cause) => {
                                let gone = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
                                assert!(gone.contains(&cause.kind()), "{cause}");
                                return answered;
                            }
                        };
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        let request =
                            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                        stream.write_all(request).unwrap();
                        let mut answer = String::new();
                        stream.read_to_string(&mut answer).unwrap();
                        assert!(answer.starts_with("HTTP/1.1 200"), "it was let in: {answer:?}");
                        answered += 1;
                    }
                })
            })
            .collect();
        answered += clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>();
        assert!(server.wait().success());
        assert!(!server.socket.exists());
    }
    assert!(answered > 0, "the control");
}

#[test]
fn a_client_that_hangs_up_cancels_its_run() {
    let home = Home::of(0);
    let server = home.serve("", &[]);
    let mark = mark();
    let body = sleeper(&mark).to_string();
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    let length = body.len();
    write!(stream, "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    eventually("it runs", || alive(&mark) == 1);
    drop(stream);
    eventually("the box is gone", || alive(&mark) == 0);
}
