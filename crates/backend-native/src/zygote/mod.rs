//! Zygotes: a runtime that has booted once, and whose children are the programs of boxes.
//!
//! A zygote lives in a template: a box of its language, except that it stays in the host's user and PID namespaces,
//! where it has no privileges and reaches nothing. It owns the user namespaces of the boxes that are made for it, which
//! gives it the right to send children into them, and no other right. The child is confined on its way in, and the
//! keeper inspects it before it becomes the program (`jail/src/entry_check.rs`).
//!
//! Zygotes need root: an ordinary user's boxes all have the same owner. Without a zygote, each box boots its own
//! runtime.

mod stdlib;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::language::Language;
use belljar_core::limits::Bytes;
use belljar_core::path::{BoxPath, Writes};
use belljar_core::plots;
use belljar_core::request::{EnvVar, InputFile};
use belljar_host::reexec::socket_pair;
use belljar_jail::acting_as;
use belljar_jail::entry_trampoline::{self, EntryOptions, EntryPoint, Orders};
use belljar_jail::message::{self, NAMESPACES, Reply};
use belljar_jail::plan::{Birth, CgroupEntry, IdPair, Identity, Opener, Plan, Resource, Step};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixDatagram;
use tokio::sync::{Mutex, watch};

use crate::errors::{failure, setup};
use crate::execution::{Entry, NativeExecution, Terms};
use crate::factory::BoxFactory;
use crate::layout::Supply;
use crate::parked::Stamped;
use crate::pool::Pool;

/// How long a zygote may take to boot and to import its modules.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for a zygote that is being made.
const MAKING_PATIENCE: Duration = Duration::from_secs(5);
/// How long a child may take to enter its box, and how long a caller that has an alternative waits for that.
const BIRTH_LIMIT: Duration = Duration::from_secs(10);
const HASTY_LIMIT: Duration = Duration::from_secs(3);
/// A zygote is replaced after this many children, to get rid of whatever it has accumulated.
const MOST_BIRTHS: u64 = 10_000;
/// More than a zygote sends: its orders, with their results.
const MOST_SAID: usize = 32 << 10;
/// How long to wait before trying again after a zygote could not be made.
const RESPITE: Duration = Duration::from_secs(60);
/// How much memory a zygote may use, with everything it imports.
const MEMORY: u64 = 1 << 30;

/// The zygotes of a host, one for each language that has one.
#[derive(Debug)]
pub(crate) struct Zygotes {
    /// What they import, and where their fate is told.
    pool: Pool,
    factory: Arc<BoxFactory>,
    /// Never locked while a zygote is made or asked: a run that could not look into it would have to start cold.
    of: std::sync::Mutex<HashMap<&'static str, State>>,
    /// Held while one is made.
    making: Mutex<()>,
    /// Whether making each of them has been tried.
    attempted: watch::Sender<bool>,
}

#[derive(Debug)]
enum State {
    Lives(Arc<Zygote>),
    Failed(Instant),
}

/// A runtime that forks. Dropping it ends it.
pub(crate) struct Zygote {
    /// Its template.
    template: Mutex<NativeExecution>,
    control: UnixDatagram,
    /// How it takes orders.
    entry_point: EntryPoint,
    /// Its user on the host.
    user: u32,
    runtime: Stamped,
    births: AtomicU64,
    /// Whether one of its children has become the program of a box.
    has_served: AtomicBool,
    /// The memory that it used when it was ready, in bytes.
    memory: u64,
}

/// How a child is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// It runs a trivial program once, so that the memory for it is already copied.
    Rehearsed,
    /// As soon as possible.
    Hasty,
}

impl Zygotes {
    pub(crate) fn new(pool: Pool, factory: Arc<BoxFactory>) -> Zygotes {
        let (of, making, attempted) =
            (std::sync::Mutex::default(), Mutex::default(), watch::Sender::default());
        Zygotes { pool, factory, of, making, attempted }
    }

    /// The zygote of a language. Waits for one that is being made, but not for long: its imports may hang.
    pub(crate) async fn awaited(&self, language: Language, runtime: &Stamped) -> Option<Arc<Zygote>> {
        script(language)?;
        if let Some(zygote) = self.living(language, runtime).await {
            return Some(zygote);
        }
        let mut attempted = self.attempted.subscribe();
        tokio::time::timeout(MAKING_PATIENCE, attempted.wait_for(|attempted| *attempted)).await.ok()?.ok()?;
        let making = tokio::time::timeout(MAKING_PATIENCE, self.making.lock()).await.ok()?;
        drop(making);
        self.living(language, runtime).await
    }

    /// The zygote of a language, if there is a working one. Does not wait for one that is being made.
    pub(crate) async fn living(&self, language: Language, runtime: &Stamped) -> Option<Arc<Zygote>> {
        let zygote = self.find(language)?;
        zygote.is_good_for(runtime).await.then_some(zygote)
    }

    /// Records that making every zygote has been tried.
    pub(crate) fn note_attempt(&self) {
        self.attempted.send_replace(true);
    }

    /// Makes the zygote of a language, if it can have one and has none for this runtime.
    pub(crate) async fn renew(&self, language: Language, runtime: &Stamped) {
        let Some(script) = script(language).filter(|_| self.factory.host.opener == Opener::Keeper) else {
            return self.note_ignored_preload(language);
        };
        let _making = self.making.lock().await;
        if self.failed_lately(language) || self.living(language, runtime).await.is_some() {
            return;
        }
        let made = self.make(language, script, runtime).await;
        self.pool.note_zygote(language, made.as_ref().err());
        let state = made.map_or_else(|_| State::Failed(Instant::now()), |made| State::Lives(Arc::new(made)));
        self.lock().insert(language.name, state);
    }

    /// Gives up a zygote that does not work, unless it has been replaced by now, so that the next one is made. If it never
    /// served a run, that counts as a failure, and the next one is not made at once.
    pub(crate) fn give_up(&self, language: Language, zygote: &Zygote, why: &BackendError) {
        let mut zygotes = self.lock();
        let is_current = matches!(
            zygotes.get(language.name), Some(State::Lives(current)) if std::ptr::eq(&raw const **current, zygote)
        );
        let failed = is_current && !zygote.has_served.load(Ordering::Relaxed);
        if failed {
            zygotes.insert(language.name, State::Failed(Instant::now()));
        } else if is_current {
            zygotes.remove(language.name);
        }
        drop(zygotes);
        if failed {
            self.pool.note_zygote(language, Some(why));
        }
    }

    /// Ends all zygotes.
    pub(crate) async fn retire(&self) {
        let _making = self.making.lock().await;
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, State>> {
        // Each change is a single call, so a panic leaves the map whole.
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, language: Language) -> Option<Arc<Zygote>> {
        match self.lock().get(language.name)? {
            State::Lives(zygote) => Some(zygote.clone()),
            State::Failed(_) => None,
        }
    }

    fn failed_lately(&self, language: Language) -> bool {
        matches!(self.lock().get(language.name), Some(State::Failed(when)) if when.elapsed() < RESPITE)
    }

    /// Only a zygote imports modules ahead of the code.
    fn note_ignored_preload(&self, language: Language) {
        if self.pool.preload(language).is_empty() {
            return;
        }
        let why = match self.factory.host.opener {
            Opener::Keeper => "this processor has no way to fork a runtime into a box",
            Opener::Init => "forking a runtime into a box needs a server that root has started",
        };
        self.pool.note_unforked(language, Some(format!("preload has no effect: {why}")));
    }

    async fn make(
        &self,
        language: Language,
        script: &str,
        runtime: &Stamped,
    ) -> Result<Zygote, BackendError> {
        let factory = &self.factory;
        let (mut sandbox, mut execution) = factory.usual_request(language, self.pool.limits())?;
        sandbox.limits.memory = Bytes::new(MEMORY);
        execution.files = files(script, self.pool.preload(language))?;
        let hooks = stdlib::hooked(runtime.runtime()).map_err(setup("find Python's standard library"))?;
        let keeper = factory.keeper()?;
        let cgroup = factory.cgroup(&keeper, &sandbox.limits)?;
        let (supply, id) = (Supply::Now, keeper.id());
        let mut draft =
            factory.draft(&sandbox, &execution, runtime.runtime(), supply, id, cgroup.as_ref())?;
        let user = become_template(&mut draft.plan, hooks);
        let (ours, theirs) = control().map_err(setup("make a socket for a zygote"))?;
        let template =
            NativeExecution::begin(keeper, draft, cgroup, theirs, terms(runtime, &sandbox, &execution))
                .await?;
        let entry_point = await_readiness(&ours).await.map_err(setup("boot a zygote"))?;
        let (births, has_served, runtime) = (AtomicU64::new(0), AtomicBool::new(false), runtime.clone());
        let (template, control, memory) = (Mutex::new(template), ours, 0);
        let zygote = Zygote { template, control, entry_point, user, runtime, births, has_served, memory };
        zygote.weighed().await
    }
}

impl Zygote {
    /// The host user that must own the user namespace of a box, for a child to enter it.
    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    /// Records that one of its children is the program of a box.
    pub(crate) fn count_as_good(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// The memory that its children share with it, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    async fn weighed(mut self) -> Result<Zygote, BackendError> {
        let uncounted = |error| setup("read the counters of a zygote")(io::Error::other(error));
        let template = self.template.lock().await;
        let Some(cgroup) = template.cgroup() else { return Err(uncounted(io::ErrorKind::NotFound.into())) };
        let memory = cgroup.memory_in_use().map_err(io::Error::other).map_err(uncounted)?;
        // The zygote and PID 1 of its template. Any other process would take orders too.
        if cgroup.processes().map_err(uncounted)?.len() != 2 {
            return Err(setup("boot a zygote")(io::Error::other("a preloaded module started processes")));
        }
        drop(template);
        self.memory = memory;
        Ok(self)
    }

    async fn is_good_for(&self, runtime: &Stamped) -> bool {
        self.runtime == *runtime
            && self.births.load(Ordering::Relaxed) < MOST_BIRTHS
            && self.template.lock().await.lives()
    }

    /// Sends a child into a box, where it continues to boot until it waits for its code. Returns the listener of its filter.
    pub(crate) async fn bear(
        &self,
        entry: &Entry<'_>,
        readiness: Readiness,
    ) -> Result<OwnedFd, BackendError> {
        let failed = setup("fork a runtime into the box");
        // The kernel admits a process if the file was opened as that process's user, or by the host's root.
        let groups = acting_as(self.user, || open_groups(entry.cgroup)).map_err(&failed)?;
        let (ours, theirs) = socket_pair().map_err(&failed)?;
        let options = EntryOptions {
            code: entry.code,
            landlocked: entry.allowed.is_some(),
            groups: groups.len(),
            rehearses: readiness == Readiness::Rehearsed,
        };
        let beside: Vec<_> = (entry.namespaces.iter().map(AsFd::as_fd))
            .chain(entry.streams)
            .chain(entry.allowed.map(AsFd::as_fd))
            .chain(groups.iter().map(AsFd::as_fd))
            .chain([theirs.as_fd()])
            .collect();
        // One at a time. An earlier caller may have left without reading the answer.
        let _one = self.template.lock().await;
        let number = self.births.fetch_add(1, Ordering::Relaxed);
        let orders = Orders::new(&self.entry_point, &options, number.cast_signed());
        send(&self.control, orders.bytes(), &beside).map_err(&failed)?;
        drop(beside);
        drop(theirs);
        let patience = if options.rehearses { BIRTH_LIMIT } else { HASTY_LIMIT };
        let outcome = loop {
            let answer = hear(&self.control, patience).await.map_err(&failed)?;
            if let Some(outcome) = orders.outcome(&answer) {
                break outcome;
            }
        };
        outcome.map_err(failure)?;
        listener(&ours).map_err(failed)
    }
}

/// What a child has sent before the zygote answered. No other process has the other end by now.
fn listener(line: &OwnedFd) -> io::Result<OwnedFd> {
    match message::receive::<Reply>(line)? {
        Some((Reply::Listening, beside)) => {
            beside.into_iter().next().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Waits until a zygote has booted, and has imported its modules.
async fn await_readiness(control: &UnixDatagram) -> io::Result<EntryPoint> {
    let said = hear(control, BOOT_LIMIT).await.map_err(|error| {
        let has_ended = error.kind() == io::ErrorKind::BrokenPipe;
        if has_ended { io::Error::other("the runtime ended instead of waiting for orders") } else { error }
    })?;
    let refused = || io::Error::other(String::from_utf8_lossy(&said).into_owned());
    EntryPoint::parse(&said).ok_or_else(refused)
}

/// The next message from a zygote.
async fn hear(control: &UnixDatagram, patience: Duration) -> io::Result<Vec<u8>> {
    let mut said = Vec::with_capacity(MOST_SAID);
    tokio::time::timeout(patience, control.recv_buf(&mut said)).await??;
    if said.is_empty() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(said) }
}

impl std::fmt::Debug for Zygote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zygote")
            .field("user", &self.user)
            .field("births", &self.births)
            .finish_non_exhaustive()
    }
}

/// The file in which the child of a zygote finds arguments and variables, beside the pipe for its code. It removes it.
pub(crate) const EXTRAS: &str = ".extras";
/// The most bytes of arguments and variables that a child takes.
const MOST_EXTRAS: usize = 64 << 10;
/// Variables that Python, the C library or the dynamic linker reads when it starts: prefixes and whole names.
const READ_EARLY: &[&str] = &["PYTHON", "LC_", "LD_", "GLIBC_", "MALLOC_", "GCONV_"];
const READ_AT_START: &[&str] = &["HOME", "LANG", "LANGUAGE", "LOCPATH", "TZ", "TZDIR"];
/// Variables that modules read while they are imported, which matters with `preload`.
const READ_BY_MODULES: &[&str] = &[
    "BLIS_",
    "GOTO_",
    "MKL_",
    "MPL",
    "NPY_",
    "NUMBA_",
    "NUMEXPR_",
    "NUMPY_",
    "OMP_",
    "OPENBLAS_",
    "SKLEARN_",
    "SCIPY_",
];

/// Why the child of a zygote cannot take these variables, if so.
pub(crate) fn obstacle_to_env(
    language: Language,
    env: &[EnvVar],
    preload: &[String],
) -> Option<&'static str> {
    let begins = |prefixes: &[&str], name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let early = |name: &str| begins(READ_EARLY, name) || READ_AT_START.contains(&name);
    let by_modules = |name: &str| !preload.is_empty() && begins(READ_BY_MODULES, name);
    let length: usize = env.iter().map(|variable| variable.name().len() + variable.value().len()).sum();
    if script(language).is_none() {
        Some("args and env are set when the runtime starts")
    } else if env.iter().any(|variable| early(variable.name())) {
        Some("a variable of env is read when the runtime starts")
    } else if env.iter().any(|variable| by_modules(variable.name())) {
        Some("a variable of env is read by modules that are preloaded")
    } else if length > MOST_EXTRAS {
        Some("env is too long to be given to a runtime that has started")
    } else {
        None
    }
}

/// What a language's runtime runs instead of a script, if it can be a zygote.
fn script(language: Language) -> Option<&'static str> {
    (language.name == "python" && entry_trampoline::machine_code().is_some())
        .then_some(include_str!("python.py"))
}

/// The script, and the machine code that brings its children into their boxes.
fn files(script: &str, preload: &[String]) -> Result<Vec<InputFile>, BackendError> {
    let names: Vec<_> = preload.iter().map(|name| format!("{name:?}")).collect();
    let script = format!("PRELOAD = [{}]\nPLOTS = {:?}\n{script}", names.join(", "), plots::MODULE);
    let file = |path: &str, content: Vec<u8>| {
        let path =
            BoxPath::parse(path).map_err(|_| setup("name a file")(io::ErrorKind::InvalidInput.into()))?;
        Ok(InputFile { path, content, executable: false })
    };
    let trampoline = entry_trampoline::machine_code().unwrap_or_default().to_vec();
    let plots = plots::SOURCE.as_bytes().to_vec();
    Ok(vec![file(".zygote", script.into_bytes())?, file(".plots", plots)?, file(".trampoline", trampoline)?])
}

/// Turns the plan of a box into that of a template, and returns its user.
fn become_template(plan: &mut Plan, hooks: Vec<Step>) -> u32 {
    let user = plan.identity.code.outside;
    plan.birth = Birth::Zygote;
    let itself = |id| IdPair { inside: id, outside: id };
    plan.identity = Identity { code: itself(user), init: Some(itself(0)) };
    // `/proc` would show the host's processes, and nothing in a zygote needs a terminal.
    plan.build.retain(|step| !matches!(step, Step::Proc | Step::DescribeMachine(_) | Step::Terminals { .. }));
    let mounted = plan.build.iter().position(|step| *step == Step::Pivot).unwrap_or(plan.build.len());
    plan.build.splice(mounted..mounted, hooks);
    plan.confinement.landlock.clear();
    // The kernel counts the processes of every box whose user namespace the zygote owns as the zygote's. Its cgroup
    // limits how many it has itself.
    plan.confinement.rlimits.retain(|(resource, _)| *resource != Resource::NProc);
    user
}

fn terms(runtime: &Stamped, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Terms {
    Terms {
        runtime: runtime.runtime().label.clone(),
        limits: sandbox.limits,
        cpu_time: execution.limits.cpu_time,
        collect: Vec::new(),
        collected: execution.limits.collected,
        writes: Writes::Refused,
        gateway: None,
    }
}

fn control() -> io::Result<(UnixDatagram, OwnedFd)> {
    let (ours, theirs) = socket_pair()?;
    let ours = StdUnixDatagram::from(ours);
    ours.set_nonblocking(true)?;
    Ok((UnixDatagram::from_std(ours)?, theirs))
}

/// The files through which a process enters a cgroup.
fn open_groups(cgroup: &CgroupEntry) -> io::Result<Vec<OwnedFd>> {
    let open = |path: &Path| Ok(rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?);
    match cgroup {
        CgroupEntry::None => Ok(Vec::new()),
        CgroupEntry::V1 { tasks } => tasks.iter().map(|file| open(file)).collect(),
        CgroupEntry::V2 { dir } => Ok(vec![open(&dir.join("cgroup.procs"))?]),
    }
}

/// More descriptors than any entry has.
const MOST_BESIDE: usize = NAMESPACES.len() + 32;

fn send(socket: &UnixDatagram, message: &[u8], beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_BESIDE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(beside)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let slices = [io::IoSlice::new(message)];
    sendmsg(socket, &slices, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
