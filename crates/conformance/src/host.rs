//! What the suite needs of the host: the binary under test, users, scratch directories, skips.

use std::collections::HashMap;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::brief::keep_failures_short;
use crate::cell::{Cell, User};
use crate::result::Isolation;
use crate::served::{Served, Start};
use crate::turn;

const NOBODY: u32 = 65534;

/// The deadline of every wait: longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How a promise is told: in which language, and which guarantees it takes. A backend that does not have these has not
/// made it.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    /// The language of its runs, unless they name another.
    pub language: &'static str,
    /// The guarantees.
    pub needs: &'static [&'static str],
}

/// Runs one promise for every backend under test that has made it, as one kind of user.
///
/// # Panics
/// If it is not held, if a guarantee that it needs is none, or if its runs were to begin in a way in which none of them did.
pub fn hold(telling: Telling, name: &str, user: User, start: Start, promise: fn(&Cell)) {
    let Telling { language, needs } = telling;
    assert!(
        needs.iter().all(|need| GUARANTEES.contains(need)),
        "{name} needs what is no guarantee: {needs:?}"
    );
    keep_failures_short();
    let _turn = turn::Shared::begin();
    let _ = fs::remove_file(record("skipped", name));
    if user == User::Root && !rustix::process::geteuid().is_root() {
        return skip(name, "the tests do not run as root");
    }
    CURRENT.set(name.to_owned());
    let backends = std::env::var("BELLJAR_BACKENDS").unwrap_or_else(|_| "native".to_owned());
    // No other backend keeps boxes waiting.
    for backend in backends.split(',').filter(|backend| start == Start::Cold || *backend == "native") {
        let cell = Cell::new(backend, user, waived(&Cell::new(backend, user, Vec::new())));
        let unmade = format!("{backend}.{name}");
        let _ = fs::remove_file(record("not-promised", &unmade));
        match reason_against(&cell, language, needs) {
            None => hold_in(&cell.language(language), name, start, promise),
            Some(reason) => {
                let told = format!("not promised: {name}: {backend} {reason}\n");
                eprint!("{told}");
                write_record("not-promised", &unmade, &told);
            }
        }
    }
}

fn hold_in(cell: &Cell, name: &str, start: Start, promise: fn(&Cell)) {
    if start == Start::Cold {
        return promise(cell);
    }
    let served = Rc::new(Served::new(start));
    promise(&cell.served_by(served.clone()));
    served.assert_tried(name);
}

/// Why a backend has not promised something, by its own declaration.
fn reason_against(cell: &Cell, language: &str, needs: &[&str]) -> Option<String> {
    if language == "sh" && !speaks(cell, "sh", "true") {
        return Some("has no runtime for sh, in which it is told".to_owned());
    }
    let missing: Vec<&str> = needs.iter().copied().filter(|need| !cell.keeps(need)).collect();
    (!missing.is_empty()).then(|| format!("does not keep {}", missing.join(", ")))
}

/// A test that failed while it held the lock has left what is known as it was.
fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the backend has a runtime for a language. Code that does nothing is run to find out.
pub(crate) fn speaks(cell: &Cell, language: &str, nothing: &str) -> bool {
    type Known = HashMap<(String, User, String), bool>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let mut known = lock(KNOWN.get_or_init(Mutex::default));
    let key = (cell.backend().to_owned(), cell.user(), language.to_owned());
    let ask = || {
        let mut words = vec!["run", language, "-c", nothing, "--json", "--backend", cell.backend()];
        // A run that is refused for a guarantee does not get as far as its runtime.
        words.extend(cell.waived().iter().flat_map(|waived| ["--waive", waived.as_str()]));
        !cell.belljar(&words).stdout_text().contains("no runtime for")
    };
    *known.entry(key).or_insert_with(ask)
}

const GUARANTEES: [&str; 8] =
    ["filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"];

/// What the caller has to do without. Root waives nothing, and learns what it did without by naming the backend.
fn waived(cell: &Cell) -> Vec<String> {
    // To a daemon all users are alike, and only another runtime than its own may keep less.
    if cell.backend() == "docker" {
        let other = std::env::var_os("BELLJAR_DOCKER_RUNTIME").is_some();
        return if other { declared(cell).unmet } else { Vec::new() };
    }
    match cell.user() {
        User::Root => isolation(cell).waived,
        User::Nobody => declared(cell).unmet,
    }
}

thread_local! {
    static CURRENT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Whether a program is installed on this host. If it is not, the part of the test that needs it is skipped, which is
/// recorded.
///
/// # Panics
/// If it is not installed and `CI` or `BELLJAR_REQUIRE` is set.
#[must_use]
pub fn installed(program: &str) -> bool {
    let installed = has_program(User::Root, program);
    if !installed {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        skip(&format!("{test}.{program}"), &format!("{program} is not installed"));
    }
    installed
}

/// Records a skip where it can be counted, and fails where skips are not accepted.
///
/// # Panics
/// If `CI` or `BELLJAR_REQUIRE` is set.
pub fn skip(what: &str, reason: &str) {
    let name = CURRENT.with_borrow(|name| if name.is_empty() { what.to_owned() } else { name.clone() });
    let told = match what == name {
        true => format!("skipped: {name}: {reason}\n"),
        false => format!("skipped: {name}: {what}: {reason}\n"),
    };
    eprint!("{told}");
    let strict =
        ["CI", "BELLJAR_REQUIRE"].iter().any(|name| std::env::var(name).is_ok_and(|v| !v.is_empty()));
    assert!(!strict, "{told}");
    write_record("skipped", &name, &told);
}

/// Writes down what became of a test, where it can be counted.
pub(crate) fn write_record(kind: &str, name: &str, told: &str) {
    let record = record(kind, name);
    fs::create_dir_all(record.parent().expect("it has one")).expect("target is writable");
    fs::write(record, told).expect("target is writable");
}

fn record(kind: &str, name: &str) -> PathBuf {
    target().join("conformance").join(kind).join(name.replace("::", "."))
}

/// What a backend says of itself to this user.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) only_by_name: bool,
    /// What it cannot keep here.
    unmet: Vec<String>,
}

pub(crate) fn declared(cell: &Cell) -> Declared {
    type Known = HashMap<(String, User), Declared>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let mut known = lock(KNOWN.get_or_init(Mutex::default));
    let key = (cell.backend().to_owned(), cell.user());
    known.entry(key).or_insert_with(|| ask_doctor(cell)).clone()
}

/// A box may lack what depends on cgroups, for an ordinary user: everything else works for everyone or is a failure of
/// the suite.
fn ask_doctor(cell: &Cell) -> Declared {
    let told = cell.belljar(&["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&told.stdout)
        .unwrap_or_else(|fault| panic!("doctor --json: {fault}: {told:?}"));
    let backends = doctor["backends"].as_array().expect("doctor lists the backends");
    let backend =
        backends.iter().find(|backend| backend["name"] == cell.backend()).expect("it lists this one");
    let guarantees = backend["guarantees"].as_array().expect("it lists the guarantees");
    let unmet = guarantees.iter().filter(|guarantee| guarantee["kept"] == false);
    let unmet: Vec<String> = unmet
        .map(|guarantee| guarantee["name"].as_str().expect("a guarantee has a name").to_owned())
        .collect();
    let only_by_name = backend["only_by_name"] == true;
    let lacking: &[&str] =
        if cell.backend() == "docker" { &["pids", "cpu", "disk"] } else { &["memory", "cpu", "pids"] };
    let excusable = |name: &String| only_by_name || lacking.contains(&name.as_str());
    assert!(unmet.iter().all(excusable), "cannot be excused: {unmet:?}: {backend}");
    Declared { only_by_name, unmet }
}

/// What the backend declares for this user that it keeps and that it does not, in a run that does nothing.
pub(crate) fn isolation(cell: &Cell) -> Isolation {
    type Known = HashMap<(String, User), Isolation>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let mut known = lock(KNOWN.get_or_init(Mutex::default));
    let key = (cell.backend().to_owned(), cell.user());
    let ask = || {
        let plain = Cell::new(cell.backend(), cell.user(), cell.waived().to_vec());
        let (language, nothing) =
            if speaks(cell, "sh", "true") { ("sh", "true") } else { ("python", "pass") };
        plain.language(language).run(nothing).isolation.clone()
    };
    known.entry(key).or_insert_with(ask).clone()
}

/// The command that starts the binary under test as this user, in a clean environment, with a rein on it: a hole
/// must not take the machine down. Each program on the way replaces itself, so the process id is that of `belljar`.
pub(crate) fn belljar(user: User, stage: &Path, mounts: Option<&str>) -> Command {
    let mut command = match mounts {
        None => wrapped(user, stage, "/usr/bin/prlimit"),
        Some(entrance) => {
            let mut command = in_test_environment(user, stage, "/usr/bin/nsenter");
            command.arg(format!("--mount={entrance}"));
            if user == User::Nobody {
                command.args(["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
            }
            command.arg("/usr/bin/prlimit");
            command
        }
    };
    command.args(["--nproc=3000:3000", "--core=0:0", "--"]).arg(stage.join("belljar"));
    command
}

/// The binary under test as this user, for tests that say everything else themselves.
#[must_use]
pub fn belljar_of(user: User) -> Command {
    belljar(user, &staged(user), None)
}

/// A command as this user, in the environment that every test gives to `belljar`.
pub(crate) fn wrapped(user: User, stage: &Path, program: &str) -> Command {
    let mut command = in_test_environment(user, stage, program);
    become_user(&mut command, user);
    command
}

fn in_test_environment(user: User, stage: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let home = if user == User::Root { PathBuf::from("/root") } else { stage.join("state") };
    command.env("HOME", home);
    command.env("BELLJAR_STATE_DIR", stage.join("state"));
    command.env("TMPDIR", stage.join("tmp"));
    // Where the daemon of the docker backend is, and what it is to be told.
    for name in ["DOCKER_HOST", "BELLJAR_DOCKER_RUNTIME", "XDG_CONFIG_HOME"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
}

/// Lets a command run as this user. The standard library clears the groups along with the change of uid.
pub(crate) fn become_user(command: &mut Command, user: User) {
    if user == User::Nobody && rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// Whether this user can run a program of the host.
#[must_use]
pub fn has_program(user: User, name: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", "p=$(command -v \"$1\") && test -x \"$p\"", "sh", name]);
    become_user(&mut command, user);
    command.output().is_ok_and(|output| output.status.success())
}

/// The probe, where this user can read it.
pub(crate) fn probe(user: User) -> PathBuf {
    staged(user).join("probe")
}

/// The probe for boxes that show the host's libraries: small enough to be written into one that waits.
pub(crate) fn small_probe(user: User) -> PathBuf {
    staged(user).join("small-probe")
}

/// A directory that this user can read, with the binary under test and the probe, and the state of its runs. It
/// is kept: what is learned about the host once serves all tests.
pub(crate) fn staged(user: User) -> PathBuf {
    static STAGED: OnceLock<PathBuf> = OnceLock::new();
    let base = STAGED.get_or_init(|| {
        let binary = binary_under_test();
        let mut tree = std::hash::DefaultHasher::new();
        binary.hash(&mut tree);
        let base = std::env::temp_dir().join(format!("belljar-conformance-{:x}", tree.finish()));
        for user in [User::Root, User::Nobody] {
            stage(&base.join(format!("{user:?}")), &binary, user);
        }
        base
    });
    base.join(format!("{user:?}"))
}

fn stage(dir: &Path, binary: &Path, user: User) {
    fs::create_dir_all(dir).expect("the temporary directory is writable");
    put(binary, &dir.join("belljar"));
    put(Path::new(env!("BELLJAR_PROBE")), &dir.join("probe"));
    put(Path::new(env!("BELLJAR_SMALL_PROBE")), &dir.join("small-probe"));
    for name in ["state", "tmp"] {
        let dir = dir.join(name);
        fs::create_dir_all(&dir).expect("the temporary directory is writable");
        if let Some(modules) = std::env::var_os("BELLJAR_WASM_MODULES").filter(|_| name == "state") {
            bring_modules(Path::new(&modules), &dir, user);
        }
        if user == User::Nobody && rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
    }
}

/// Gives a user the modules of the wasm backend that were installed before, as files of their own: what others could
/// write is not loaded. Whole or not at all, because other test processes do the same at the same time.
fn bring_modules(modules: &Path, state: &Path, user: User) {
    let there = state.join("wasm");
    let entries = fs::read_dir(modules).expect("BELLJAR_WASM_MODULES is a directory");
    let mut names = entries.map(|entry| entry.expect("it can be read").file_name());
    // What was compiled is called by what it was made from and for.
    if names.all(|name| there.join(name).exists()) {
        return;
    }
    let _ = fs::remove_dir_all(&there);
    let partial = state.join(format!("wasm.{}", std::process::id()));
    fs::create_dir(&partial).expect("it is ours");
    for entry in fs::read_dir(modules).expect("BELLJAR_WASM_MODULES is a directory") {
        let from = entry.expect("it can be read").path();
        fs::copy(&from, partial.join(from.file_name().expect("it has a name"))).expect("there is room");
    }
    let files =
        fs::read_dir(&partial).expect("it is ours").map(|entry| entry.expect("it can be read").path());
    for path in files.chain([partial.clone()]) {
        if user == User::Nobody && rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
    }
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o700)).expect("it is ours");
    if fs::rename(&partial, &there).is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
}

/// Like [`staged`], but for one test alone.
pub(crate) fn staged_apart(user: User) -> Scratch {
    let scratch = Scratch::new();
    stage(scratch.path(), &binary_under_test(), user);
    scratch
}

/// Puts a program in its place, whole or not at all: other test processes do the same at the same time.
fn put(from: &Path, to: &Path) {
    let about = fs::metadata(from).unwrap_or_else(|fault| panic!("cannot read {}: {fault}", from.display()));
    if fs::metadata(to).is_ok_and(|there| there.len() == about.len() && there.mtime() >= about.mtime()) {
        return;
    }
    let partial = to.with_extension(std::process::id().to_string());
    // A debug build is a hundred megabytes; within one file system it need not be there twice.
    if fs::hard_link(from, &partial).is_err() {
        fs::copy(from, &partial).unwrap_or_else(|fault| panic!("cannot copy {}: {fault}", from.display()));
    }
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::rename(&partial, to).expect("it is ours");
}

/// `BELLJAR_BIN`, or the `belljar` that was built along with the tests.
fn binary_under_test() -> PathBuf {
    let path = std::env::var_os("BELLJAR_BIN").map_or_else(|| profile_dir().join("belljar"), PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `cargo build` first, or set BELLJAR_BIN", path.display());
    path
}

fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its executable");
    let deps = test.parent().expect("it lies in target/PROFILE/deps");
    deps.parent().expect("it lies in target/PROFILE").to_owned()
}

fn target() -> PathBuf {
    profile_dir().parent().expect("it lies in target").to_owned()
}

/// A directory of the host that goes when the test does. Everyone may read and write it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A fresh one.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("conformance-{}-{count}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // Left by a test that was killed and had the same process id.
                Err(fault) if fault.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(fault) => panic!("cannot make {}: {fault}", path.display()),
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("it is ours");
        Scratch(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Puts a file there, and says where it is.
    #[must_use]
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("it is ours");
        fs::write(&path, content).expect("it is ours");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A word that is nowhere else on this machine.
#[must_use]
pub fn secret() -> String {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("Linux has one");
    format!("w{}", uuid.trim().replace('-', ""))
}

/// The processes of this host whose command line holds a word.
#[must_use]
pub fn process_holding(word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("Linux has one");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| command_line(*pid).contains(word)).collect()
}

/// The processes whose command line holds a word and which do not go away. The kernel needs a moment to tear a namespace down
/// after its last process was reaped, so this waits.
#[must_use]
pub fn survivors(word: &str) -> Vec<u32> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = process_holding(word);
        if found.is_empty() || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for something to become true.
///
/// # Panics
/// If it never does.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not so after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The command line of a process, or nothing if it is gone.
pub(crate) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
