//! The native backend: this host's kernel enforces the guarantees, with no daemon and nothing to install.
//!
//! In reading order: `probe` finds out what this `host` can do, by building a `trial` box; `factory` makes boxes:
//! `layout` turns a request into a plan, `cgroup` limits all processes of a box, `keeper` starts the process that performs
//! the plan; `execution` follows it to the end. `parked` is a box that was made before its request, `pool` keeps some of
//! them, and `warm` makes and takes them. No module uses one that uses it (`ci/policy`). `belljar_host` finds the interpreter of a language.

#![forbid(unsafe_code)]

pub mod cgroup;
mod empty_boxes;
mod errors;
mod execution;
mod factory;
mod group;
mod host;
mod ids;
mod keeper;
mod layout;
mod live_box;
mod load;
mod machine;
mod network;
mod parked;
mod pool;
pub mod privilege_drop;
mod probe;
mod probe_cache;
mod program;
mod secrets;
mod teardown;
mod templates;
mod trial;
mod warden;
mod warm;
mod zygote;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::Offer;
use belljar_core::language::Language;
use belljar_core::limits::show_duration;
use belljar_core::path::{Workspace, Writes};
use belljar_core::pool::PoolStatus;
use belljar_core::request::{BackendName, Network};
pub use belljar_host::runtimes::Runtime;
use belljar_host::runtimes::{RuntimeSettings, Runtimes};
use belljar_host::stdin;
use belljar_jail::Standby;

use crate::cgroup::Cgroups;
use crate::errors::setup;
use crate::execution::{NativeExecution, Terms};
use crate::factory::BoxFactory;
use crate::layout::Supply;
use crate::load::Waited;
use crate::network::Gateway;
pub use crate::network::NetworkSettings;
use crate::pool::Pool;
pub use crate::pool::{Bounds, PoolSettings};
pub use crate::secrets::{ConfiguredSecret, SecretSource};
use crate::warm::{Beginning, WarmBoxes};

/// What the backend needs to know about its caller's environment, which it does not read itself.
#[derive(Debug, Default)]
pub struct Settings {
    /// `PATH`: where interpreters are looked for.
    pub search_path: OsString,
    /// `HOME`, which version managers need.
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`: where the user's systemd listens.
    pub runtime_dir: Option<PathBuf>,
    /// Where the results of probes are cached between runs.
    pub state_dir: Option<PathBuf>,
    /// Interpreters that the configuration names.
    pub overrides: Vec<(Language, PathBuf)>,
    /// Interpreters that were found before the server gave up root's rights.
    pub found: Vec<(Language, Runtime)>,
    /// A PID 1 for the first run, if the program made one early.
    pub standby: Option<Standby>,
    /// Whether there will be many runs, or only one.
    pub many_runs: bool,
    /// The warm pool, if there is one.
    pub pool: Option<PoolSettings>,
    /// How many boxes of crashed predecessors were already cleaned up.
    pub swept: usize,
    /// What all boxes with a network have in common.
    pub network: NetworkSettings,
}

/// The native backend on this host.
#[derive(Debug)]
pub struct Native {
    factory: Arc<BoxFactory>,
    runtimes: Arc<Runtimes>,
    /// The boxes that are made before their requests, if there are any.
    warm: Option<Arc<WarmBoxes>>,
    /// How many boxes of crashed predecessors were cleaned up, once that is done.
    swept: OnceLock<usize>,
    /// Those that another process, with the rights to do so, cleaned up before.
    swept_before: usize,
}

impl Native {
    /// Probes what this host can do, or reads it from the cache. Cleans up what a crashed predecessor left, unless a
    /// run is waiting to begin. On a host that can do nothing there is still a backend, which says why.
    #[must_use]
    pub fn open(settings: Settings) -> Native {
        let host = probe::remember_or_probe(settings.state_dir.as_deref(), settings.runtime_dir);
        let runtimes = Arc::new(Runtimes::new(RuntimeSettings {
            search_path: settings.search_path,
            home: settings.home,
            manager_env: Vec::new(),
            overrides: settings.overrides,
            found: settings.found,
            cache_dir: settings.state_dir,
        }));
        // A box whose limits cannot be changed cannot be made before they are known.
        let pool = settings.pool.filter(|_| !matches!(host.cgroups, Cgroups::Unavailable { .. }));
        let factory = Arc::new(BoxFactory::new(host, settings.standby, settings.many_runs, settings.network));
        let warm =
            pool.map(|pool| Arc::new(WarmBoxes::new(Pool::new(pool), factory.clone(), runtimes.clone())));
        let (swept, swept_before) = (OnceLock::new(), settings.swept);
        let native = Native { factory, runtimes, warm, swept, swept_before };
        if !native.factory.has_standby() {
            native.sweep();
        }
        native
    }

    /// Cleans up what crashed predecessors left, on the first call.
    fn sweep(&self) {
        self.swept.get_or_init(|| self.factory.host.cgroups.sweep());
    }

    /// Starts a run: in a parked box if one suits the request, otherwise in a new one.
    async fn begin(
        &self,
        mut sandbox: SandboxSpec,
        mut execution: ExecutionSpec,
    ) -> Result<Box<dyn Execution>, BackendError> {
        self.ready()?;
        let waited = Waited::begin();
        let beginning = match &self.warm {
            Some(warm) => warm.begin(&mut sandbox, &mut execution).await?,
            None => Beginning::Cold(None),
        };
        let mut running = match beginning {
            Beginning::Begun(running) => running,
            Beginning::Cold(why) => {
                let mut running = Box::new(self.begin_cold(sandbox, execution).await?);
                running.be_cold_because(why);
                running
            }
        };
        running.be_waited_for(waited);
        Ok(running)
    }

    /// Prepares everything that the keeper needs, while the keeper loads.
    async fn begin_cold(
        &self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
    ) -> Result<NativeExecution, BackendError> {
        let factory = &self.factory;
        let keeper = factory.keeper()?;
        let runtime = self.runtimes.find(execution.language)?;
        let cgroup = factory.cgroup(&keeper, &sandbox.limits)?;
        let mut draft =
            factory.draft(&sandbox, &execution, &runtime, Supply::Now, keeper.id(), cgroup.as_ref())?;
        let gateway = factory.network.order(&sandbox)?.map(Gateway::start).transpose();
        let mut gateway = gateway.map_err(setup("start the gateway"))?;
        if let Some(gateway) = gateway.as_mut().filter(|gateway| gateway.adds_secrets()) {
            let trusted = gateway.be_trusted(&mut draft.plan, &sandbox.env);
            trusted.map_err(setup("make the certificates of the run"))?;
        } else {
            factory.find_template(&mut draft).await;
        }
        let terms = Terms {
            runtime: runtime.label,
            limits: sandbox.limits,
            cpu_time: execution.limits.cpu_time,
            collect: execution.collect,
            collected: execution.limits.collected,
            writes: sandbox.workspace.as_ref().map_or(Writes::Refused, Workspace::writes),
            gateway,
        };
        let (theirs, ours) = stdin::pipe().map_err(setup("make a pipe for stdin"))?;
        let (mut running, _) = NativeExecution::order(keeper, draft, cgroup, theirs, terms)?;
        // This runs while the box is built.
        self.sweep();
        running.begun().await?;
        stdin::feed(ours, execution.stdin).map_err(setup("feed stdin"))?;
        Ok(running)
    }
}

impl Backend for Native {
    fn name(&self) -> BackendName {
        BackendName::Native
    }

    fn ready(&self) -> Result<(), BackendError> {
        self.factory.host.boxes.as_ref().map(drop).map_err(|fault| BackendError::Unavailable {
            backend: BackendName::Native,
            reason: fault.to_string(),
            hint: errors::hint(fault),
        })
    }

    fn leaks_cleaned(&self) -> u64 {
        (self.swept_before + self.swept.get().copied().unwrap_or_default()) as u64
    }

    fn offer(&self) -> &Offer {
        &self.factory.offer
    }

    /// The namespace of every box is its own; those with a network have a gateway beside it.
    fn provides(&self, network: &Network) -> bool {
        match network {
            Network::None | Network::Full | Network::Allow(_) => true,
        }
    }

    fn adds_secrets(&self) -> bool {
        belljar_egress::ADDS_SECRETS
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

    fn upkeep(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(self.warm.clone()?.keep_up()))
    }

    fn retire(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(warm) = &self.warm {
                warm.retire().await;
            }
        })
    }

    fn pool(&self) -> Option<PoolStatus> {
        self.warm.as_ref().map(|warm| warm.status())
    }

    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        self.ready()?;
        let runtime = self.runtimes.find(execution.language)?;
        let limits = &sandbox.limits;
        self.factory.network.order(sandbox)?;
        let secrets: String = sandbox.secrets.iter().map(|host| format!("secret    {host}\n")).collect();
        let draft =
            self.factory.draft(sandbox, execution, &runtime, Supply::Now, std::process::id(), None)?;
        Ok(format!(
            "runtime   {} ({})\n\
             limits    memory {}, cpus {}, pids {}, disk {}, timeout {}\n\
             {secrets}{}",
            runtime.label,
            runtime.program.display(),
            limits.memory,
            limits.cpus,
            limits.pids,
            limits.disk,
            show_duration(execution.limits.timeout),
            draft.plan,
        ))
    }
}
