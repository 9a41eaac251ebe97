//! `belljar serve --background`: one server of this user, found or started, for programs that want one without setting it
//! up. It is shared by all processes of the user that would start the same one, and stops when nobody needs it.
//!
//! What makes a server another one is in its name: the binary, the configuration file that is named, and the variables that
//! reach it. So it does not matter who of those that share it came first.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use belljar_wire::{Code, Problem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use sha2::{Digest, Sha256};

use super::ServeArgs;
use super::socket::{Address, LONGEST_PATH, trusted_directory};
use crate::args::Verbosity;
use crate::problem::{self, say};
use crate::settings::{Environment, Settings, state_directory};

/// How long nobody may need the server before it stops, if that is not said.
pub(super) const USUAL_IDLE: Duration = Duration::from_secs(60);
/// How long a server may take to start: long enough for a busy machine and a first look at it.
const START: Duration = Duration::from_secs(30);
/// How long a server that is there may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How much of the log of a server that failed is shown.
const SHOWN: usize = 4096;
/// What a server that is gone has left is removed after this time.
const LITTER_AGE: Duration = Duration::from_secs(24 * 3600);

/// The variables that reach the server, besides those of Belljar's own: those that say where programs, files and Docker are.
/// Everything else, secrets among it, stays with the caller.
const PASSED: [&str; 9] = [
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "DOCKER_HOST",
    "CODE_EXEC_SANDBOX",
];
/// Belljar's own variables begin like this.
const OWN: &[u8] = b"BELLJAR_";
/// Those that are for clients.
const OF_CLIENTS: [&str; 3] = ["BELLJAR_API_KEY", "BELLJAR_BINARY", "BELLJAR_URL"];

/// Prints where the server listens, once it does.
pub(super) fn run(args: &ServeArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    match find_or_start(args, verbosity, environment) {
        Ok(path) => {
            say(&format!("listening on unix:{}\n", path.display()));
            ExitCode::SUCCESS
        }
        Err(Failure::Problem(problem)) => {
            problem::report(&problem, false);
            ExitCode::from(problem::RUN_FAILED)
        }
        Err(Failure::Said(text)) => {
            let _ = io::stderr().write_all(text.as_bytes());
            ExitCode::from(problem::RUN_FAILED)
        }
    }
}

/// Leaves the session of the process that started the server, so that the end of that one is not its own.
pub(super) fn detach() {
    // It fails only for a process that leads a group already, which has no terminal to lose.
    let _ = rustix::process::setsid();
}

/// Adapts the settings to a server that may be gone in a minute.
pub(super) fn keep_small(settings: &mut Settings) {
    settings.pool.keep_small();
}

/// Why there is no server.
enum Failure {
    Problem(Problem),
    /// What the server itself has said.
    Said(String),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Problem(problem)
    }
}

fn find_or_start(
    args: &ServeArgs,
    verbosity: Verbosity,
    environment: Environment<'_>,
) -> Result<PathBuf, Failure> {
    let order = WantedServer::read(args, verbosity, environment)?;
    // Whoever listens in a directory of somebody else's is not asked.
    trusted_directory(&order.socket)?;
    if is_served(&order.socket)? {
        return Ok(order.socket);
    }
    // Nobody but us may start it meanwhile, and whoever waits here finds it when we are done.
    let _turn = lock(&order.beside("lock"))?;
    if !is_served(&order.socket)? {
        order.start()?;
    }
    Ok(order.socket)
}

/// The server that is wanted.
struct WantedServer {
    program: PathBuf,
    words: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    socket: PathBuf,
    /// Whether the socket has the name that we give it.
    is_ours_to_name: bool,
}

impl WantedServer {
    fn read(
        args: &ServeArgs,
        verbosity: Verbosity,
        environment: Environment<'_>,
    ) -> Result<WantedServer, Problem> {
        let program = std::env::current_exe().map_err(|cause| {
            let message = format!("cannot find the program to start: {cause}");
            Problem::new(Code::Internal, message, "start it by its path")
        })?;
        let config = args.config.as_deref().map(absolute).transpose()?;
        let variables = passed(std::env::vars_os());
        let named = args.listen.as_deref().map(socket_named).transpose()?;
        let is_ours_to_name = named.is_none();
        let socket = match named {
            Some(socket) => socket,
            None => usual_socket(&name(&program, config.as_deref(), &variables)?, environment)?,
        };
        let mut words: Vec<OsString> = vec!["serve".into(), "--detached".into(), "--listen".into()];
        words.push([OsStr::new("unix:"), socket.as_os_str()].into_iter().collect());
        let options = [("--idle-timeout", &args.idle_timeout), ("--drain", &args.drain)];
        for (option, value) in
            options.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)))
        {
            super::time(option, value)?;
            words.extend([option.into(), value.into()]);
        }
        words.extend(["--log-format".into(), args.log_format.name().into()]);
        words.extend(config.into_iter().flat_map(|path| ["--config".into(), path.into_os_string()]));
        match verbosity {
            Verbosity::Quiet => words.push("--quiet".into()),
            Verbosity::Normal => {}
            Verbosity::Verbose => words.push("--verbose".into()),
        }
        Ok(WantedServer { program, words, variables, socket, is_ours_to_name })
    }

    /// A file that belongs to the socket.
    fn beside(&self, ending: &str) -> PathBuf {
        beside(&self.socket, ending)
    }

    fn start(&self) -> Result<(), Failure> {
        if self.is_ours_to_name {
            remove_litter(&self.socket);
        }
        let log_path = self.beside("log");
        let (log, (readiness, name)) = self.prepare(&log_path)?;
        let mut child =
            self.command(&log, &name).and_then(|mut command| command.spawn()).map_err(|cause| {
                let message = format!("cannot start {}: {cause}", self.program.display());
                Problem::new(Code::Internal, message, "check the limit on processes (ulimit -u)")
            })?;
        let outcome = wait_for(&mut child, &readiness);
        match outcome {
            Ok(Started::Ready) if is_served(&self.socket)? => Ok(()),
            Ok(Started::Ready | Started::Ended) => Err(self.last_words(&log_path)),
            Ok(Started::Late) => {
                let _ = child.kill();
                let _ = child.wait();
                let message = format!("the server did not start within {} s", START.as_secs());
                Err(Problem::new(Code::Internal, message, format!("see {}", log_path.display())).into())
            }
            Err(cause) => {
                let message = format!("cannot wait for the server to start: {cause}");
                Err(Problem::new(Code::Internal, message, format!("see {}", log_path.display())).into())
            }
        }
    }

    /// Its log, and the socket on which it says that it is ready.
    fn prepare(&self, log_path: &Path) -> Result<(File, (UnixDatagram, String)), Problem> {
        // Whatever was inherited and is not ours would be kept open by the server: a pipe would never end.
        let _ = belljar_jail::close_inherited();
        // One log is kept besides the current one.
        let _ = std::fs::rename(log_path, self.beside("log.old"));
        let log = own_file().append(true).open(log_path).map_err(|cause| {
            let message = format!("cannot write the server's log {}: {cause}", log_path.display());
            Problem::new(Code::Internal, message, "choose another place with --listen unix:PATH")
        })?;
        let readiness = readiness().map_err(|cause| {
            let message = format!("cannot make a socket to hear from the server: {cause}");
            Problem::new(Code::Internal, message, "check the limit on open files (ulimit -n)")
        })?;
        Ok((log, readiness))
    }

    fn command(&self, log: &File, readiness: &str) -> io::Result<Command> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.words)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            // The way in which a service tells systemd that it is ready.
            .env("NOTIFY_SOCKET", readiness)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?);
        if !self.variables.iter().any(|(name, _)| name == "BELLJAR_LOG") {
            // Not a line for each request: nobody looks at this log unless something is wrong.
            command.env("BELLJAR_LOG", "warn");
        }
        Ok(command)
    }

    /// What a server that has ended has written: its error and its hint, and whatever came before.
    fn last_words(&self, log_path: &Path) -> Failure {
        let mut text = Vec::new();
        let read = File::open(log_path).and_then(|mut log| log.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let said = text.rfind("error: ").map_or(&*text, |at| &text[at..]);
        if read.is_err() || said.trim().is_empty() {
            let message = "the server ended before it listened, without saying why";
            return Problem::new(Code::Internal, message, format!("see {}", log_path.display())).into();
        }
        let mut cut = said.len().saturating_sub(SHOWN);
        while !said.is_char_boundary(cut) {
            cut += 1;
        }
        Failure::Said(crate::output::inert(&said[cut..]))
    }
}

fn beside(socket: &Path, ending: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

fn absolute(path: &Path) -> Result<PathBuf, Problem> {
    std::path::absolute(path).map_err(|cause| {
        let message = format!("--config: cannot tell where '{}' is: {cause}", path.display());
        Problem::new(Code::InvalidRequest, message, "write an absolute path")
    })
}

/// The path that `--listen` names.
fn socket_named(text: &str) -> Result<PathBuf, Problem> {
    match Address::parse(text)? {
        Address::Unix(path) => Ok(path),
        Address::Tcp(_) => {
            let message = "--background listens on a unix socket only";
            Err(Problem::new(
                Code::InvalidRequest,
                message,
                "write --listen unix:PATH, or leave --listen out",
            ))
        }
    }
}

/// The variables that the server gets, in order.
fn passed(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let is_passed = |name: &OsStr| {
        PASSED.iter().any(|passed| name == *passed)
            || name.as_bytes().starts_with(OWN) && !OF_CLIENTS.iter().any(|other| name == *other)
    };
    let mut passed: Vec<_> = all.filter(|(name, value)| is_passed(name) && !value.is_empty()).collect();
    passed.sort();
    passed
}

/// The name of the server: the version, for people, and a digest of everything that makes it another one.
fn name(
    program: &Path,
    config: Option<&Path>,
    variables: &[(OsString, OsString)],
) -> Result<String, Problem> {
    let found = program.metadata().map_err(|cause| {
        let message = format!("cannot look at {}: {cause}", program.display());
        Problem::new(Code::Internal, message, "was it replaced? Start the new one by its path")
    })?;
    let build = format!("{} {} {} {}", found.dev(), found.ino(), found.size(), found.mtime_nsec());
    let build = format!("{build} {}", found.mtime());
    let parts = [program.as_os_str(), OsStr::new(&build), config.unwrap_or(Path::new("")).as_os_str()];
    let variables = variables.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]);
    let mut digest = Sha256::new();
    for part in parts.into_iter().chain(variables) {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    let short: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{short}.sock", env!("CARGO_PKG_VERSION")))
}

/// Where the socket is: in the directory that the system gives the user for that; else where state is kept; else, if that
/// path is too long for a socket, in a directory of the user's among the temporary ones.
fn usual_socket(name: &str, environment: Environment<'_>) -> Result<PathBuf, Problem> {
    let user = geteuid().as_raw();
    let runtime = environment("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    // One that belongs to somebody else has come along with their variables.
    let runtime = runtime.filter(|dir| dir.metadata().is_ok_and(|found| found.uid() == user));
    let candidates = [
        runtime.map(|dir| dir.join("belljar")),
        Some(state_directory(environment).join("run")).filter(|dir| is_beneath_own(dir, user)),
        Some(PathBuf::from(format!("/tmp/belljar-{user}"))),
    ];
    let mut why = None;
    for dir in candidates.into_iter().flatten() {
        if dir.join(name).as_os_str().len() > LONGEST_PATH {
            continue;
        }
        match own_directory(&dir) {
            Ok(()) => return Ok(dir.join(name)),
            Err(cause) => why = Some(format!("{}: {cause}", dir.display())),
        }
    }
    let message = format!("there is no place for the server's socket: {}", why.unwrap_or_default());
    Err(Problem::new(Code::Internal, message, "name one with --listen unix:PATH"))
}

/// Whether a directory that is made here is beneath one of the user's or root's: the owner of any other could exchange it.
fn is_beneath_own(dir: &Path, user: u32) -> bool {
    let existing = dir.ancestors().find_map(|dir| dir.metadata().ok());
    existing.is_some_and(|found| [0, user].contains(&found.uid()))
}

/// Makes a directory that only this user can reach, or checks that it is one.
fn own_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = dir.symlink_metadata()?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("it belongs to another user, or others can write to it"))
}

/// A file that only this user can read, which is made if there is none. It is no link.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Waits until no other process starts this server.
fn lock(path: &Path) -> Result<File, Problem> {
    let locked = || -> io::Result<File> {
        loop {
            let file = own_file().write(true).truncate(false).open(path)?;
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
            // It may have been removed while we waited: then it locks nothing any more.
            let is_the_same = |found: std::fs::Metadata| {
                file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
            };
            if path.symlink_metadata().is_ok_and(is_the_same) {
                return Ok(file);
            }
        }
    };
    locked().map_err(|cause| {
        let message = format!("cannot lock {}: {cause}", path.display());
        let hint = "the socket needs a directory that you can write to: choose one with --listen unix:PATH";
        Problem::new(Code::InvalidRequest, message, hint)
    })
}

/// Removes what servers with other names have left in the directory, if they are gone for long.
fn remove_litter(socket: &Path) {
    let Some(dir) = socket.parent() else { return };
    let now = SystemTime::now();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(other) = path.to_str().and_then(|path| path.strip_suffix(".lock")).map(PathBuf::from) else {
            continue;
        };
        let written = beside(&other, "log").metadata().or_else(|_| entry.metadata());
        let age = written.and_then(|found| found.modified()).ok().and_then(|at| now.duration_since(at).ok());
        if other == socket || other.exists() || age.is_none_or(|age| age < LITTER_AGE) {
            continue;
        }
        // Whoever waits for the lock notices that its file is gone.
        let Ok(file) = File::open(&path) else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && !other.exists() {
            for ending in ["log", "log.old", "lock"] {
                let _ = std::fs::remove_file(beside(&other, ending));
            }
        }
    }
}

/// Whether a server listens there and answers.
fn is_served(path: &Path) -> Result<bool, Problem> {
    let silent = |why: &dyn std::fmt::Display| {
        let message = format!("the server on unix:{} does not answer: {why}", path.display());
        let hint = format!(
            "end it, or choose another socket with --listen; its log is {}",
            beside(path, "log").display()
        );
        Problem::new(Code::BackendUnavailable, message, hint)
    };
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(cause) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&cause.kind()) => {
            return Ok(false);
        }
        Err(cause) => return Err(silent(&cause)),
    };
    match ask(&mut stream) {
        Ok(head) if &head == b"HTTP/1.1 403" => Err(silent(&"it belongs to another user")),
        // It may have been about to stop, and has answered all the same.
        Ok(head) if head.starts_with(b"HTTP/1.1 ") => Ok(path.symlink_metadata().is_ok()),
        Ok(_) => Err(silent(&"it is not a Belljar server")),
        // It has died since.
        Err(cause) if is_gone(&cause) => Ok(false),
        Err(cause) => Err(silent(&cause)),
    }
}

fn is_gone(cause: &io::Error) -> bool {
    let gone = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    gone.contains(&cause.kind())
}

/// The first bytes of an answer: the protocol and the status.
fn ask(stream: &mut UnixStream) -> io::Result<[u8; 12]> {
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(head)
}

/// A socket for the message of a server that is ready, and its name as `NOTIFY_SOCKET` has it. It leaves no file behind.
/// What arrives is not believed: whoever reads the names of sockets could send it.
fn readiness() -> io::Result<(UnixDatagram, String)> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("belljar-start-{}-{}", std::process::id(), since.as_nanos());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?)?;
    socket.set_nonblocking(true)?;
    Ok((socket, format!("@{name}")))
}

/// What has become of a server that was started.
enum Started {
    Ready,
    Ended,
    Late,
}

fn wait_for(child: &mut Child, readiness: &UnixDatagram) -> io::Result<Started> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + START;
    loop {
        let mut fds = [PollFd::new(readiness, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Started::Late);
        }
        rustix::io::retry_on_intr(|| poll(&mut fds, Timespec::try_from(left).ok().as_ref()))?;
        let mut said = [0; 64];
        let length = readiness.recv(&mut said).unwrap_or(0);
        if said[..length].starts_with(b"READY=1") {
            return Ok(Started::Ready);
        }
        if child.try_wait()?.is_some() {
            return Ok(Started::Ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(all: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        passed(all.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn only_variables_that_the_server_reads_reach_it() {
        let all = [
            ("PATH", "/bin"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("BELLJAR_BACKEND", "native"),
            ("BELLJAR_API_KEY", "bj_s"),
            ("BELLJAR_URL", "http://x"),
            ("HOME", "/home/me"),
            ("LISTEN_FDS", "1"),
            ("NOTIFY_SOCKET", "@x"),
            ("BELLJAR_LOG", ""),
        ];
        let names: Vec<_> = variables(&all).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["BELLJAR_BACKEND", "HOME", "PATH"]);
    }

    #[test]
    fn what_makes_a_server_another_one_is_in_its_name() {
        let program = std::env::current_exe().unwrap();
        let named = |config: Option<&str>, all: &[(&str, &str)]| {
            name(&program, config.map(Path::new), &variables(all)).unwrap()
        };
        let plain = named(None, &[("PATH", "/bin")]);
        assert!(plain.starts_with(env!("CARGO_PKG_VERSION")) && plain.len() < 40, "{plain}");
        assert_eq!(
            plain,
            named(None, &[("PATH", "/bin"), ("OTHER", "x")]),
            "what does not reach it is the same"
        );
        assert_ne!(plain, named(Some("/a.toml"), &[("PATH", "/bin")]));
        assert_ne!(plain, named(None, &[("PATH", "/usr/bin")]));
        assert_ne!(plain, named(None, &[("PATH", "/bin"), ("BELLJAR_MEMORY", "1G")]));
    }

    #[test]
    fn a_path_that_is_too_long_is_not_the_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("a".repeat(100));
        std::fs::create_dir(&long).unwrap();
        let of = |runtime: &Path| {
            let (runtime, home) = (runtime.to_owned(), folder.path().to_owned());
            usual_socket("0.1.0-abc.sock", &move |name: &str| match name {
                "XDG_RUNTIME_DIR" => Some(runtime.clone().into()),
                "HOME" => Some(home.clone().into()),
                _ => None,
            })
            .unwrap()
        };
        assert_eq!(of(folder.path()), folder.path().join("belljar/0.1.0-abc.sock"));
        assert_eq!(of(&long), folder.path().join(".local/state/belljar/run/0.1.0-abc.sock"));
    }

    #[test]
    fn a_lock_whose_file_is_gone_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.lock");
        let first = lock(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = lock(&path).unwrap();
        assert!(path.exists());
        drop((first, second));
    }
}
