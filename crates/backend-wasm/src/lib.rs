//! The wasm backend: interpreters as WebAssembly modules, so that the code never runs natively. A program sees files in
//! memory and a system interface of 46 calls, without usable sockets and without processes. The engine confines it to
//! its memory, and interrupts it when its time is up.

mod execution;
mod fs;
mod guest;
mod install;
mod interpreters;
mod layout;
mod link;
mod machine;
mod quickjs;
mod shelf;
mod wasi;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_core::language::Language;
use belljar_core::limits::show_duration;
use belljar_core::request::{BackendName, Network};
use wasmtime::{InstancePre, Linker};

use execution::WasmExecution;
use guest::{Collect, Guest, GuestTerms, Program};
use link::Link;
use machine::Machine;

pub use install::{InstallError, Progress, install, install_from};
pub use interpreters::{INTERPRETERS, Interpreter, Origin};
pub use shelf::{Installed, Shelf};

/// The wasm backend on this host.
pub struct Wasm {
    shelf: Option<Shelf>,
    machine: Result<Arc<Machine>, String>,
    offer: Offer,
    /// The modules that were loaded, by their hash.
    loaded: Mutex<HashMap<String, Loaded>>,
}

impl fmt::Debug for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wasm").field("shelf", &self.shelf).finish_non_exhaustive()
    }
}

type Loaded = InstancePre<Guest>;

impl Wasm {
    /// The backend with the modules under this state directory.
    #[must_use]
    pub fn open(state_dir: Option<PathBuf>) -> Wasm {
        let machine = Machine::new().map(Arc::new).map_err(|error| format!("{error:#}"));
        let offer = Offer::by_asking(|guarantee| Standing::Kept { how: how(guarantee).to_owned() });
        let shelf = state_dir.as_deref().map(Shelf::new);
        Wasm { shelf, machine, offer, loaded: Mutex::default() }
    }

    /// How large the machine code of a module is, if it was compiled for this version of Belljar.
    #[must_use]
    pub fn compiled_size(&self, installed: &Installed) -> Option<u64> {
        self.shelf.as_ref()?.compiled_size(installed, self.machine.as_ref().ok()?)
    }

    async fn begin(
        &self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
    ) -> Result<Box<dyn Execution>, BackendError> {
        let machine = self.machine()?;
        let (interpreter, installed) = self.find(execution.language)?;
        let draft = layout::draft(&sandbox, &execution, interpreter)?;
        let module = self.load(interpreter, &installed).await?;
        let link = Link::new(execution.stdin).map_err(|source| setup("feed stdin", source))?;
        let collect = Collect {
            patterns: execution.collect,
            source: draft.source.to_string(),
            room: execution.limits.collected.get(),
        };
        let terms = GuestTerms { cpu_time: execution.limits.cpu_time, cpus: sandbox.limits.cpus, collect };
        let program = Program { id: execution.id, module, system: draft.system, terms };
        guest::start(machine, program, Arc::clone(&link))
            .map_err(|source| setup("start the program's thread", source))?;
        let runtime = interpreter.label(&installed.sha256);
        Ok(Box::new(WasmExecution { link, engine: machine.engine.clone(), runtime, told: Vec::new() }))
    }

    /// The module, from memory if it was used before. Reading it from disk blocks, and compiling it takes seconds.
    async fn load(
        &self,
        interpreter: &'static Interpreter,
        installed: &Installed,
    ) -> Result<Loaded, BackendError> {
        if let Some(module) = self.loaded().get(&installed.sha256) {
            return Ok(module.clone());
        }
        let (machine, shelf) = (Arc::clone(self.machine()?), self.shelf()?.clone());
        let wanted = installed.clone();
        let loading =
            tokio::task::spawn_blocking(move || link_module(&shelf, interpreter, &wanted, &machine));
        let module = loading.await.map_err(io::Error::other).flatten();
        let step = format!("load the module of {}", interpreter.name);
        let module = module.map_err(|source| BackendError::Setup {
            step,
            hint: format!("install it again: belljar wasm install {}", interpreter.name),
            source,
        })?;
        self.loaded().insert(installed.sha256.clone(), module.clone());
        Ok(module)
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<String, Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, language: Language) -> Result<(&'static Interpreter, Installed), BackendError> {
        let missing = |hint: String| BackendError::RuntimeMissing { language, hint };
        let interpreter = Interpreter::of(language).ok_or_else(|| {
            missing("there is no WebAssembly module for it; use another backend".to_owned())
        })?;
        let installed = self.shelf()?.find(interpreter);
        let hint = || format!("belljar wasm install {}", interpreter.name);
        installed.map(|installed| (interpreter, installed)).ok_or_else(|| missing(hint()))
    }

    fn machine(&self) -> Result<&Arc<Machine>, BackendError> {
        self.machine.as_ref().map_err(|reason| {
            unavailable(reason.clone(), "`belljar doctor` shows which backends can run here")
        })
    }

    fn shelf(&self) -> Result<&Shelf, BackendError> {
        let reason = "there is no state directory for modules";
        self.shelf.as_ref().ok_or_else(|| unavailable(reason.into(), "set BELLJAR_STATE_DIR"))
    }
}

impl Backend for Wasm {
    fn name(&self) -> BackendName {
        BackendName::Wasm
    }

    fn ready(&self) -> Result<(), BackendError> {
        self.machine()?;
        let shelf = self.shelf()?;
        if INTERPRETERS.iter().any(|interpreter| shelf.find(interpreter).is_some()) {
            return Ok(());
        }
        Err(unavailable(
            format!("no module is installed in {}", shelf.dir().display()),
            "belljar wasm install",
        ))
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn provides(&self, network: &Network) -> bool {
        match network {
            Network::None => true,
            Network::Full | Network::Allow(_) => false,
        }
    }

    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError> {
        let (interpreter, installed) = self.find(language)?;
        let location = self.shelf()?.dir().join(format!("{}.wasm", interpreter.name));
        Ok(RuntimeInfo {
            label: interpreter.label(&installed.sha256),
            location: location.display().to_string(),
        })
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
        let (interpreter, installed) = self.find(execution.language)?;
        let draft = layout::draft(sandbox, execution, interpreter)?;
        let shown = |words: &[Vec<u8>]| {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            words.join(" ")
        };
        let limits = &sandbox.limits;
        Ok(format!(
            "runtime   {} ({})\n\
             limits    memory {}, cpus {}, disk {}, timeout {}\n\
             files     /sandbox, /tmp and /dev/shm in memory{}\n\
             program   {}\n",
            interpreter.label(&installed.sha256),
            installed.origin,
            limits.memory,
            limits.cpus,
            limits.disk,
            show_duration(execution.limits.timeout),
            sandbox.workspace.as_ref().map_or(String::new(), |dir| {
                format!("; {} at /work, read-only", dir.as_path().display())
            }),
            shown(&draft.system.args),
        ))
    }
}

/// How each guarantee is enforced.
fn how(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Filesystem => "files are in memory; of the host, only the workspace can be read",
        Guarantee::Network => "the module's system interface has no sockets",
        Guarantee::Memory => "the engine refuses to grow memory beyond the limit; files count as memory",
        Guarantee::Pids => "one thread; no call makes another thread or a process",
        Guarantee::Cpu => "one thread, interrupted every 5 ms to check its CPU clock",
        Guarantee::Disk => "files are in memory, and are counted before they are written",
        Guarantee::Syscalls => "the code is interpreted; none of its calls is passed on to the kernel",
        Guarantee::Privileges => "a module has no user id, and no call that uses Belljar's",
    }
}

/// Loads a module and links it with its system interface.
fn link_module(
    shelf: &Shelf,
    interpreter: &Interpreter,
    installed: &Installed,
    machine: &Machine,
) -> io::Result<Loaded> {
    let module = shelf.load(interpreter, installed, machine)?;
    let mut linker = Linker::new(&machine.engine);
    wasi::provide(&mut linker).map_err(io::Error::other)?;
    linker.instantiate_pre(&module).map_err(io::Error::other)
}

fn unavailable(reason: String, hint: &str) -> BackendError {
    BackendError::Unavailable { backend: BackendName::Wasm, reason, hint: hint.to_owned() }
}

fn setup(step: &str, source: io::Error) -> BackendError {
    let hint = "`belljar doctor` shows what this host can do".to_owned();
    BackendError::Setup { step: step.to_owned(), hint, source }
}
