//! A cell: one backend, used by one kind of user, with some options. It drives the real binary.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::brief::Brief;
use crate::host::{self, PATIENCE};
use crate::result::{ErrorBody, ErrorObject, RunResult};
use crate::served::{Served, Start};

/// Who runs `belljar`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum User {
    /// uid 0.
    Root,
    /// uid 65534, in no group, at home nowhere. Where the tests themselves run as an ordinary user, that one.
    Nobody,
}

/// One backend, one user, some options. Methods that change it return a changed copy.
#[derive(Debug, Clone)]
pub struct Cell {
    pub(crate) backend: String,
    user: User,
    pub(crate) waived: Vec<String>,
    pub(crate) language: String,
    pub(crate) options: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) cwd: PathBuf,
    stage: PathBuf,
    mounts: Option<String>,
    served: Option<Rc<Served>>,
    started: Started,
    time_limit: TimeLimit,
}

/// The time limit of runs that do not name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeLimit {
    /// Enough on a machine that is busy, too.
    Generous,
    /// What the contract says.
    Usual,
}

/// [`TimeLimit::Generous`], as an option.
pub(crate) const GENEROUS: &str = "60s";

/// The processes that a cell has started, and those that were made from it.
pub(crate) type Started = Arc<Mutex<BTreeSet<u32>>>;

impl Cell {
    pub(crate) fn new(backend: &str, user: User, waived: Vec<String>) -> Cell {
        Cell {
            backend: backend.to_owned(),
            user,
            waived,
            language: "sh".to_owned(),
            options: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            stdin: None,
            cwd: PathBuf::from("/"),
            stage: host::staged(user),
            mounts: None,
            served: None,
            started: Started::default(),
            time_limit: TimeLimit::Generous,
        }
    }

    /// The same, where what can begin as these servers have it does.
    pub(crate) fn served_by(&self, served: Rc<Served>) -> Cell {
        Cell { served: Some(served), ..self.clone() }
    }

    /// How its runs begin, where they can.
    #[must_use]
    pub fn start(&self) -> Start {
        self.served.as_ref().map_or(Start::Cold, |served| served.start())
    }

    /// Who runs it.
    #[must_use]
    pub fn user(&self) -> User {
        self.user
    }

    /// Which backend.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// What the caller does without on this host.
    #[must_use]
    pub fn waived(&self) -> &[String] {
        &self.waived
    }

    /// Whether it is no sandbox but a process of the caller's own, of which `belljar` warns.
    #[must_use]
    pub fn is_only_by_name(&self) -> bool {
        host::declared(self).only_by_name
    }

    /// The same with nothing waived.
    #[must_use]
    pub fn without_waivers(&self) -> Cell {
        Cell { waived: Vec::new(), ..self.clone() }
    }

    /// In this language instead of `sh`.
    #[must_use]
    pub fn language(&self, language: &str) -> Cell {
        Cell { language: language.to_owned(), ..self.clone() }
    }

    /// With a limit: `limit("memory", "64M")`.
    #[must_use]
    pub fn limit(&self, name: &str, value: &str) -> Cell {
        self.option(&format!("--{name}"), value)
    }

    /// With the contract's own time limit where a run names none: the suite gives it a longer one, as machines can be busy.
    #[must_use]
    pub fn with_the_usual_time_limit(&self) -> Cell {
        Cell { time_limit: TimeLimit::Usual, ..self.clone() }
    }

    /// The time limit that is to be added to its options.
    pub(crate) fn time_limit(&self) -> Option<&'static str> {
        let is_said =
            self.options.iter().any(|option| option == "--timeout" || option.starts_with("--timeout="));
        (!is_said && self.time_limit == TimeLimit::Generous).then_some(GENEROUS)
    }

    /// With an option and its value.
    #[must_use]
    pub fn option(&self, name: &str, value: &str) -> Cell {
        self.flag(name).flag(value)
    }

    /// With one more word on the command line.
    #[must_use]
    pub fn flag(&self, word: &str) -> Cell {
        let mut changed = self.clone();
        changed.options.push(word.to_owned());
        changed
    }

    /// With arguments for the program.
    #[must_use]
    pub fn args(&self, args: &[&str]) -> Cell {
        Cell { args: args.iter().map(|arg| (*arg).to_owned()).collect(), ..self.clone() }
    }

    /// With a variable in the environment of `belljar` itself.
    #[must_use]
    pub fn caller_env(&self, name: &str, value: &str) -> Cell {
        let mut changed = self.clone();
        changed.env.push((name.to_owned(), value.to_owned()));
        changed
    }

    /// With this on the standard input of `belljar` itself.
    #[must_use]
    pub fn caller_stdin(&self, bytes: &[u8]) -> Cell {
        Cell { stdin: Some(bytes.to_owned()), ..self.clone() }
    }

    /// With `belljar` started in this directory.
    #[must_use]
    pub fn caller_cwd(&self, dir: &Path) -> Cell {
        Cell { cwd: dir.to_owned(), ..self.clone() }
    }

    /// With a binary, a state and temporary files of its own, started in this mount namespace.
    pub(crate) fn apart(&self, stage: &Path, mounts: Option<String>) -> Cell {
        Cell { stage: stage.to_owned(), mounts, started: Started::default(), ..self.clone() }
    }

    /// The processes that were started in it.
    pub(crate) fn started(&self) -> BTreeSet<u32> {
        self.started.lock().expect("no panic while held").clone()
    }

    /// Whether the backend promises this here, by its own declaration.
    #[must_use]
    pub fn keeps(&self, guarantee: &str) -> bool {
        host::isolation(self).kept.iter().any(|kept| kept == guarantee)
    }

    /// Whether the backend has a runtime for a language; this code does nothing in it.
    #[must_use]
    pub fn speaks(&self, language: &str, nothing: &str) -> bool {
        host::speaks(self, language, nothing)
    }

    /// Whether its boxes are made from an image: then the system inside is that image's, and an engine stands between the
    /// box and the kernel. A result says so, too, which is tested.
    #[must_use]
    pub fn has_an_image(&self) -> bool {
        self.backend == "docker"
    }

    /// Whether it has a runtime for a language.
    #[must_use]
    pub fn has_language(&self, name: &str) -> bool {
        let told = self.belljar(&["languages", "--json", "--backend", &self.backend]);
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("languages --json");
        let languages = told["languages"].as_array().expect("a list of languages");
        languages.iter().any(|language| language["name"] == name && language["available"] == true)
    }

    /// Says that the rest of a promise could not be tested, and why. Fails where skips are not accepted.
    ///
    /// # Panics
    /// If `CI` or `BELLJAR_REQUIRE` is set.
    pub fn skip(&self, reason: &str) {
        host::skip(&format!("{} as {:?}", self.backend, self.user), reason);
    }

    /// Runs code, and expects that it ran, however it ended.
    #[track_caller]
    pub fn run(&self, code: &str) -> Ran {
        let served = self.served.as_ref().and_then(|served| served.run(self, code));
        served.unwrap_or_else(|| self.run_words(&["-c", code]))
    }

    /// Runs code that does not end by itself until its time limit ends it. On a busy machine a short limit may end it before
    /// it has begun, so the limit grows until `has_begun` holds.
    ///
    /// # Panics
    /// If it has not begun within the longest limit.
    #[track_caller]
    pub fn run_until_its_timeout(&self, code: &str, has_begun: impl Fn(&Ran) -> bool) -> Ran {
        let limits = ["500ms", "2s", "8s", "30s"];
        let ran = limits.map(|limit| self.limit("timeout", limit));
        let mut ran = ran.iter().map(|cell| cell.run(code));
        ran.find(has_begun).expect("it begins within 30 seconds")
    }

    /// Runs a file of the host.
    #[track_caller]
    pub fn run_file(&self, path: &Path) -> Ran {
        self.run_words(&[path.to_str().expect("a path of ours")])
    }

    #[track_caller]
    fn run_words(&self, source: &[&str]) -> Ran {
        Ran::read(finish(self.begin(Form::Json, source)))
    }

    /// Runs code, and expects that it was refused before it ran.
    #[track_caller]
    #[must_use]
    pub fn refuse(&self, code: &str) -> Refusal {
        self.refuse_words(&["-c", code])
    }

    /// Runs whatever these words say, and expects a refusal, both in JSON and in words.
    #[track_caller]
    #[must_use]
    pub fn refuse_words(&self, source: &[&str]) -> Refusal {
        let json = finish(self.begin(Form::Json, source));
        let plain = finish(self.begin(Form::Words, source));
        Refusal::read(&json, plain)
    }

    /// Runs code without `--json`.
    #[track_caller]
    #[must_use]
    pub fn plain(&self, code: &str) -> Plain {
        finish(self.start_plain(code))
    }

    /// Starts code without `--json` and leaves it running.
    #[must_use]
    pub fn start_plain(&self, code: &str) -> Running {
        self.begin(Form::Words, &["-c", code])
    }

    /// Starts code with `--json` and leaves it running.
    #[must_use]
    pub fn start_json(&self, code: &str) -> Running {
        self.begin(Form::Json, &["-c", code])
    }

    fn begin(&self, form: Form, source: &[&str]) -> Running {
        let mut words = vec!["run"];
        if !self.language.is_empty() {
            words.push(&self.language);
        }
        words.extend(source);
        if matches!(form, Form::Json) {
            words.push("--json");
        }
        if !self.backend.is_empty() {
            words.extend(["--backend", &self.backend]);
        }
        self.waived.iter().for_each(|waived| words.extend(["--waive", waived]));
        words.extend(self.options.iter().map(String::as_str));
        words.extend(self.time_limit().into_iter().flat_map(|limit| ["--timeout", limit]));
        if !self.args.is_empty() {
            words.push("--");
            words.extend(self.args.iter().map(String::as_str));
        }
        self.start_belljar(&words)
    }

    /// Runs `belljar` with just these words, as this cell's user.
    #[must_use]
    pub fn belljar(&self, words: &[&str]) -> Plain {
        finish(self.start_belljar(words))
    }

    fn start_belljar(&self, words: &[&str]) -> Running {
        let mut command = host::belljar(self.user, &self.stage, self.mounts.as_deref());
        command.args(words).envs(self.env.iter().map(|(name, value)| (name, value))).current_dir(&self.cwd);
        let running = start(command, self.stdin.clone());
        self.started.lock().expect("no panic while held").insert(running.pid());
        running
    }

    /// Runs a shell line with a terminal of its own, and returns what the terminal was sent. `belljar` is on the
    /// path.
    #[must_use]
    pub fn in_a_terminal(&self, line: &str) -> String {
        let mut command = host::wrapped(self.user, &self.stage, "script");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.stage.display())).env("SHELL", "/bin/sh");
        command.args(["-qec", line, "/dev/null"]).current_dir("/tmp");
        finish(start(command, None)).stdout_text()
    }

    /// Runs code on a host that gives no user namespaces: the limit on them is that of a namespace around it.
    #[must_use]
    pub fn without_user_namespaces(&self, options: &[&str]) -> Plain {
        let mut command = host::wrapped(self.user, &self.stage, "unshare");
        let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
        command.args(["--user", "--map-root-user", "sh", "-c", line, "sh"]);
        command.arg(self.stage.join("belljar")).args(["run", "sh", "-c", "true"]);
        command.args(["--backend", &self.backend]).args(options).current_dir("/tmp");
        finish(start(command, None))
    }

    /// The same without a `--backend` of its own, for tests of how it is chosen.
    #[must_use]
    pub fn with_backend_unsaid(&self) -> Cell {
        Cell { backend: String::new(), ..self.clone() }
    }
}

#[derive(Clone, Copy)]
enum Form {
    Json,
    Words,
}

/// A run that took place.
#[derive(Debug)]
pub struct Ran {
    result: RunResult,
    /// How long `belljar` took, from its start to its end.
    pub took: Duration,
    /// What `belljar` itself wrote to standard error.
    pub messages: String,
}

impl Deref for Ran {
    type Target = RunResult;
    fn deref(&self) -> &RunResult {
        &self.result
    }
}

impl Ran {
    pub(crate) fn of(result: RunResult, took: Duration) -> Ran {
        Ran { result, took, messages: String::new() }
    }

    /// Reads the result object, and holds the exit status against it.
    ///
    /// # Panics
    /// If there is none, or if they differ.
    #[track_caller]
    #[must_use]
    pub fn read(plain: Plain) -> Ran {
        let result: RunResult = serde_json::from_slice(&plain.stdout)
            .unwrap_or_else(|fault| panic!("no result object ({fault}): {plain:?}"));
        assert_eq!(
            plain.status.code(),
            Some(result.exit_code),
            "exit status and exit_code differ: {result:?}"
        );
        Ran { result, took: plain.took, messages: plain.stderr_text() }
    }

    /// Asserts that it ended by itself with this status, and returns what it printed.
    #[track_caller]
    pub fn exited(&self, code: i32) -> &str {
        assert_eq!((self.status, self.exit_code), (crate::Status::Exited, code), "{:?}", self.result);
        &self.result.stdout
    }

    /// Asserts that it ended well, and returns what it printed.
    #[track_caller]
    pub fn ok(&self) -> &str {
        self.exited(0)
    }
}

/// A run that was refused.
#[derive(Debug)]
pub struct Refusal {
    /// The error object.
    pub error: ErrorBody,
}

impl Refusal {
    #[track_caller]
    fn read(json: &Plain, plain: Plain) -> Refusal {
        let object: ErrorObject = serde_json::from_slice(&json.stdout)
            .unwrap_or_else(|fault| panic!("no error object ({fault}): {json:?}"));
        let error = object.error;
        assert_eq!(json.status.code(), Some(125), "{json:?}");
        assert_eq!(plain.status.code(), Some(125), "{plain:?}");
        let told = plain.stderr_without_warnings();
        assert!(told.starts_with("error: ") && told.contains("\nhint: "), "an error and a hint: {told}");
        assert_eq!(told.matches("error: ").count(), 1, "one error: {told}");
        assert!(plain.stdout.is_empty(), "nothing on stdout: {plain:?}");
        assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
        // A number in it may be that of the process that says it.
        let without_digits = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let (told, message) = (without_digits(&told), without_digits(&error.message));
        assert!(told.contains(&message), "the same in words and in JSON: {told} {error:?}");
        Refusal { error }
    }

    /// Asserts which code and field it has, and that its message and hint contain this.
    #[track_caller]
    pub fn says(&self, code: &str, field: Option<&str>, message: &str, hint: &str) {
        let error = &self.error;
        assert_eq!((error.code.as_str(), error.field.as_deref()), (code, field), "{error:?}");
        assert!(error.message.contains(message), "'{message}' in {error:?}");
        assert!(error.hint.contains(hint), "'{hint}' in {error:?}");
    }
}

/// What a finished process left.
pub struct Plain {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stdout, stderr) = (self.stdout_text(), self.stderr_text());
        let (stdout, stderr) = (Brief(&stdout), Brief(&stderr));
        write!(f, "{} after {:?}\nstdout: {stdout}\nstderr: {stderr}", self.status, self.took)
    }
}

impl Plain {
    /// Standard output as text.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard error as text, without what `belljar` warns of before it runs anything.
    #[must_use]
    pub fn stderr_without_warnings(&self) -> String {
        let text = self.stderr_text();
        text.split_inclusive('\n').skip_while(|line| line.starts_with("warning: ")).collect()
    }

    /// Its exit status, and 128+N if a signal ended the process itself.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().or(self.status.signal().map(|signal| 128 + signal)).expect("it ended")
    }
}

/// A process that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    since: Instant,
    stdout: Reading,
    stderr: Reading,
}

/// A pipe that is read by a thread of its own.
#[derive(Debug)]
struct Reading {
    so_far: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its standard output contains this.
    ///
    /// # Panics
    /// If that takes longer than any test should.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        while !String::from_utf8_lossy(&self.stdout.so_far()).contains(text) {
            assert!(
                self.since.elapsed() < PATIENCE,
                "'{text}' never came: {:?}",
                Brief(&self.messages_so_far())
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a line of its own messages that begins with this, and returns the rest of it.
    #[track_caller]
    pub(crate) fn wait_for_message(&self, beginning: &str) -> String {
        loop {
            let told = self.messages_so_far();
            let whole = told.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            if let Some(rest) = whole.into_iter().find_map(|line| line.strip_prefix(beginning)) {
                return rest.to_owned();
            }
            assert!(self.since.elapsed() < PATIENCE, "'{beginning}' never came: {:?}", Brief(&told));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What it has written to standard error.
    pub(crate) fn messages_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it has not ended yet.
    ///
    /// # Panics
    /// If that cannot be told.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Waits for its end.
    #[track_caller]
    #[must_use]
    pub fn finish(self) -> Plain {
        finish(self)
    }
}

/// More than any test prints; longer output is not stored.
const MAX_OUTPUT: usize = 64 << 20;

pub(crate) fn start(mut command: Command, stdin: Option<Vec<u8>>) -> Running {
    let from = if stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .stdin(from)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|fault| panic!("cannot start {command:?}: {fault}"));
    if let (Some(bytes), Some(mut pipe)) = (stdin, child.stdin.take()) {
        // A reader that goes away early is the business of the test.
        std::thread::spawn(move || pipe.write_all(&bytes));
    }
    let stdout = Reading::start(child.stdout.take().expect("it is piped"));
    let stderr = Reading::start(child.stderr.take().expect("it is piped"));
    Running { child, since: Instant::now(), stdout, stderr }
}

impl Reading {
    fn start(mut pipe: impl Read + Send + 'static) -> Reading {
        let so_far = Arc::new(Mutex::new(Vec::new()));
        let (sender, ended) = channel();
        let kept = Arc::clone(&so_far);
        std::thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut kept = kept.lock().expect("no panic while held");
                let room = MAX_OUTPUT.saturating_sub(kept.len());
                kept.extend_from_slice(&buffer[..count.min(room)]);
            }
            sender.send(())
        });
        Reading { so_far, ended }
    }

    fn so_far(&self) -> Vec<u8> {
        self.so_far.lock().expect("no panic while held").clone()
    }

    #[track_caller]
    fn finish(&self) -> Vec<u8> {
        let ended = self.ended.recv_timeout(PATIENCE);
        ended.expect("nobody holds the output of a process that has ended");
        self.so_far()
    }
}

#[track_caller]
pub(crate) fn finish(mut running: Running) -> Plain {
    let status = loop {
        if let Some(status) = running.child.try_wait().expect("it is our child") {
            break status;
        }
        if running.since.elapsed() > PATIENCE {
            let _ = running.child.kill();
            panic!("still running after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let took = running.since.elapsed();
    Plain { status, stdout: running.stdout.finish(), stderr: running.stderr.finish(), took }
}
