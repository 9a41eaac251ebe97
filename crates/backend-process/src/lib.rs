//! Two backends that are not sandboxes: `process`, a subprocess with limits, and `none`, one with only a timeout. The
//! code runs as the user who started `belljar`, and can access whatever that user can.
//!
//! In reading order: `scratch` is the directory of a run; `execution` starts a `supervisor`, which is this same binary
//! again, sends it an `order` and follows the program to its end; `tree` is what a supervisor knows about its
//! descendants.

#![forbid(unsafe_code)]

mod execution;
mod order;
mod scratch;
mod supervisor;
mod tree;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use belljar_core::Field;
use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec, Work,
};
use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_core::language::Language;
use belljar_core::limits::show_duration;
use belljar_core::path::BoxPath;
use belljar_core::request::{BackendName, Network};
use belljar_host::program::{Places, check_workspace, command, name_source};
use belljar_host::runtimes::{Runtime, RuntimeSettings, Runtimes};
use belljar_host::stdin;
use belljar_jail::plan::Resource;

use crate::execution::{Supervised, Terms, setup};
use crate::order::{SupervisorOrder, Watch};
use crate::scratch::{Scratch, Uncopied};

/// What the backends need to know about their caller's environment, which they do not read themselves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `PATH`: where interpreters are looked for.
    pub search_path: OsString,
    /// `HOME`, which version managers need.
    pub home: Option<PathBuf>,
    /// Where results are cached between runs.
    pub state_dir: Option<PathBuf>,
    /// Interpreters that the configuration names.
    pub overrides: Vec<(Language, PathBuf)>,
    /// Interpreters that were found before the server gave up root's rights.
    pub found: Vec<(Language, Runtime)>,
    /// Where the directories of runs are made.
    pub temp_dir: PathBuf,
}

/// Runs as a supervisor, if the process has that name: runs one program, and outlives all its descendants. Standard
/// input is the socket.
#[must_use]
pub fn supervise(argv0: Option<&OsStr>) -> Option<ExitCode> {
    (argv0 == Some(OsStr::new(supervisor::SUPERVISOR))).then(supervisor::live)
}

/// A backend whose boxes are subprocesses and nothing more.
#[derive(Debug)]
pub struct Subprocess {
    name: BackendName,
    offer: Offer,
    runtimes: Runtimes,
    temp_dir: PathBuf,
    swept: OnceLock<u64>,
}

impl Subprocess {
    /// `process`: with limits, as far as a process can be limited.
    #[must_use]
    pub fn limited(settings: Settings) -> Subprocess {
        Subprocess::new(BackendName::Process, settings, instead)
    }

    /// `none`: with only a timeout.
    #[must_use]
    pub fn bare(settings: Settings) -> Subprocess {
        Subprocess::new(BackendName::None, settings, |_| "not enforced: this backend has only a timeout")
    }

    fn new(name: BackendName, settings: Settings, why: impl Fn(Guarantee) -> &'static str) -> Subprocess {
        let fix = "use a sandbox: leave --backend out";
        let unmet = |guarantee| Standing::Unmet { why: why(guarantee).to_owned(), fix: fix.to_owned() };
        Subprocess {
            name,
            offer: Offer::by_asking(unmet),
            runtimes: Runtimes::new(RuntimeSettings {
                search_path: settings.search_path,
                home: settings.home,
                manager_env: Vec::new(),
                overrides: settings.overrides,
                found: settings.found,
                cache_dir: settings.state_dir,
            }),
            temp_dir: settings.temp_dir,
            swept: OnceLock::new(),
        }
    }

    async fn begin(
        &self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
    ) -> Result<Box<dyn Execution>, BackendError> {
        self.swept.get_or_init(|| scratch::sweep(&self.temp_dir));
        let runtime = self.runtimes.find(execution.language)?;
        check_workspace(&sandbox)?;
        let source = name_source(&sandbox, &execution)?;
        let scratch = Scratch::make(&self.temp_dir).map_err(setup("make a directory for the run"))?;
        let places = places(&sandbox, &scratch);
        let order = self.order(&sandbox, &execution, &runtime, &source, &places, &scratch);
        fill(&sandbox, &execution, &source, &places)?;
        let terms = Terms {
            runtime: runtime.label,
            limits: sandbox.limits,
            cpu_time: execution.limits.cpu_time,
            collect: execution.collect,
            collect_from: match execution.work {
                Work::Compile => scratch::TMP,
                Work::Run(_) => scratch::HOME,
            },
            collected: execution.limits.collected,
            source,
        };
        let (theirs, ours) = stdin::pipe().map_err(setup("make a pipe for stdin"))?;
        let running = Supervised::begin(&order, scratch, theirs, terms).await?;
        stdin::feed(ours, execution.stdin).map_err(setup("feed stdin"))?;
        Ok(Box::new(running))
    }

    fn order(
        &self,
        sandbox: &SandboxSpec,
        execution: &ExecutionSpec,
        runtime: &Runtime,
        source: &BoxPath,
        places: &Places,
        scratch: &Scratch,
    ) -> SupervisorOrder {
        SupervisorOrder {
            command: command(sandbox, execution, runtime, source, places),
            scratch: scratch.root().to_owned(),
            watch: (self.name == BackendName::Process).then(|| watch(sandbox, execution)),
        }
    }
}

impl Backend for Subprocess {
    fn name(&self) -> BackendName {
        self.name
    }

    fn ready(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn leaks_cleaned(&self) -> u64 {
        self.swept.get().copied().unwrap_or(0)
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The network is not restricted; waiving the guarantee accepts that. Single hosts cannot be selected.
    fn provides(&self, network: &Network) -> bool {
        match network {
            Network::None | Network::Full => true,
            Network::Allow(_) => false,
        }
    }

    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError> {
        let runtime = self.runtimes.find(language)?;
        Ok(RuntimeInfo { label: runtime.label, location: runtime.program.display().to_string() })
    }

    fn start<'a>(
        &'a self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
        _: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>> {
        Box::pin(self.begin(sandbox, execution))
    }

    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        let runtime = self.runtimes.find(execution.language)?;
        check_workspace(sandbox)?;
        let source = name_source(sandbox, execution)?;
        let root = self.temp_dir.join("belljar-…");
        let places = places_beneath(sandbox, &root);
        let mut text = format!("runtime   {} ({})\n", runtime.label, runtime.program.display());
        text += &format!("timeout   {}\n", show_duration(execution.limits.timeout));
        if self.name == BackendName::Process {
            text += &explained(&watch(sandbox, execution));
        }
        text += &format!("make      {}, removed afterwards\n", root.display());
        if let Some(workspace) = &sandbox.workspace {
            text += &format!("copy      {} to {}\n", workspace.as_path().display(), places.cwd.display());
        }
        let command = command(sandbox, execution, &runtime, &source, &places);
        let words: Vec<_> = command.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
        text += &format!("run       {} in {}\n", words.join(" "), command.cwd.display());
        Ok(text + "confine   nothing: the code runs as you\n")
    }
}

/// What `process` does instead of enforcing a guarantee.
fn instead(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Filesystem => {
            "the code can access all files that you can; it only starts in its own directory"
        }
        Guarantee::Network => "the code can reach whatever you can reach",
        Guarantee::Memory => "RLIMIT_DATA for each process, and a check of all of them every 20 ms",
        Guarantee::Pids => "a check of all processes every 20 ms, and RLIMIT_NPROC as a second line",
        Guarantee::Cpu => {
            "CPU time is checked every 20 ms, RLIMIT_CPU is a second line; the rate is not limited"
        }
        Guarantee::Disk => "RLIMIT_FSIZE for each file; the total is not limited",
        Guarantee::Syscalls => "there is no syscall filter",
        Guarantee::Privileges => {
            "the code runs as you; no_new_privs keeps set-uid programs from giving it more"
        }
    }
}

/// The limits of all processes together.
fn watch(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Watch {
    let limits = &sandbox.limits;
    let mut rlimits = vec![
        // One byte: unlike zero it also keeps the kernel from starting the host's crash handler (core(5)).
        (Resource::Core, 1),
        // Not the address space: Node.js and Java reserve many times what they use.
        (Resource::Data, limits.memory.get()),
        (Resource::FileSize, limits.disk.get()),
        (Resource::NoFile, 1024),
    ];
    if let Some(time) = execution.limits.cpu_time {
        // For each process, in whole seconds.
        rlimits.push((Resource::Cpu, time.as_secs() + 2));
    }
    let cpu_micros =
        execution.limits.cpu_time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    Watch { rlimits, memory: limits.memory.get(), pids: u64::from(limits.pids), cpu_micros }
}

fn explained(watch: &Watch) -> String {
    let cpu = watch.cpu_micros.map_or(String::new(), |micros| format!(", {} ms of CPU time", micros / 1000));
    let mut text = format!("watch     {} bytes of memory, {} processes{cpu}\n", watch.memory, watch.pids);
    for (resource, value) in &watch.rlimits {
        text += &format!("rlimit    {resource:?} {value}\n");
    }
    text
}

fn places(sandbox: &SandboxSpec, scratch: &Scratch) -> Places {
    places_beneath(sandbox, scratch.root())
}

fn places_beneath(sandbox: &SandboxSpec, root: &Path) -> Places {
    let cwd = root.join(if sandbox.workspace.is_some() { scratch::WORK } else { scratch::HOME });
    Places { home: root.join(scratch::HOME), cwd, tmp: root.join(scratch::TMP) }
}

/// Puts everything into the run's directory. A workspace is copied: an accident of the code must not affect the
/// caller's own files.
fn fill(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    source: &BoxPath,
    places: &Places,
) -> Result<(), BackendError> {
    let mut room = sandbox.limits.disk.get();
    if let Some(workspace) = &sandbox.workspace {
        let copied = scratch::copy(workspace.as_path(), &places.cwd, room, sandbox.limits.max_files());
        room -= copied.map_err(|fault| uncopied(workspace.as_path(), sandbox, &fault))?;
    }
    let code = execution.source.to_put().map(|text| (source, text, false));
    let files = execution.files.iter().map(|file| (&file.path, file.content.as_slice(), file.executable));
    for (path, content, executable) in code.into_iter().chain(files) {
        room = room.checked_sub(content.len() as u64).ok_or_else(|| too_large(sandbox))?;
        scratch::put(&places.cwd, path.as_str(), content, executable)
            .map_err(setup("write the run's files"))?;
    }
    if let Work::Run(program) = &execution.work {
        for file in program.files() {
            scratch::put(&places.tmp, file.path.as_str(), &file.content, file.executable)
                .map_err(setup("write the program"))?;
        }
    }
    Ok(())
}

fn too_large(sandbox: &SandboxSpec) -> BackendError {
    BackendError::Unusable {
        field: Field::Files,
        message: format!("the run's files do not fit into --disk, which is {}", sandbox.limits.disk),
        hint: "raise the limit with --disk".to_owned(),
    }
}

fn uncopied(workspace: &Path, sandbox: &SandboxSpec, fault: &Uncopied) -> BackendError {
    let shown = workspace.display();
    let (message, hint) = match fault {
        Uncopied::TooMuch => (
            format!("the workspace '{shown}' does not fit into --disk, which is {}", sandbox.limits.disk),
            "raise the limit with --disk; the native backend shows a workspace without copying it",
        ),
        Uncopied::Failed { path, source } => (
            format!("the workspace '{shown}' cannot be copied: {}: {source}", path.display()),
            "make it readable, or leave it out",
        ),
    };
    BackendError::Unusable { field: Field::Workspace, message, hint: hint.to_owned() }
}
