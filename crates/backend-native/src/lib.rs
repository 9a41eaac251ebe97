//! The native backend: this host's kernel enforces the guarantees, with no daemon and nothing to install.
//!
//! In reading order: `host` probes what this host can do, by building a `trial` box; `layout` turns a request into a
//! plan; `cgroup` limits all processes of a box; `keeper` starts the process that performs the plan; `execution`
//! follows it to the end. `parked` is a box that was made before its request, `pool` keeps some of them, and `warm`
//! makes and takes them. `belljar_host` finds the interpreter of a language.

#![forbid(unsafe_code)]

pub mod cgroup;
mod empty_boxes;
mod execution;
mod group;
mod host;
mod keeper;
mod layout;
mod load;
mod machine;
mod network;
mod parked;
mod pool;
pub mod privilege_drop;
mod probe_cache;
mod program;
mod teardown;
mod trial;
mod warden;
mod warm;
mod zygote;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::Offer;
use belljar_core::language::Language;
use belljar_core::limits::{BoxLimits, show_duration};
use belljar_core::path::{Workspace, Writes};
use belljar_core::pool::PoolStatus;
use belljar_core::request::{BackendName, Network};
pub use belljar_host::runtimes::Runtime;
use belljar_host::runtimes::{RuntimeSettings, Runtimes};
use belljar_host::stdin;
use belljar_jail::Standby;
use belljar_jail::plan::{CgroupEntry, Identity};

use crate::cgroup::{BoxCgroup, BoxName, Cgroups};
use crate::empty_boxes::EmptyBoxes;
use crate::execution::{NativeExecution, Terms};
use crate::host::Host;
use crate::keeper::Keeper;
use crate::layout::{BaseSystem, Draft, Ground, Supply};
use crate::load::Waited;
pub use crate::network::NetworkSettings;
use crate::pool::Pool;
pub use crate::pool::{Bounds, PoolSettings};
use crate::warden::Warden;
use crate::warm::Beginning;
use crate::zygote::Zygotes;

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
    host: Host,
    offer: Offer,
    /// How many boxes of crashed predecessors were cleaned up, once that is done.
    swept: OnceLock<usize>,
    /// Those that another process, with the rights to do so, cleaned up before.
    swept_before: usize,
    runtimes: Runtimes,
    standby: Mutex<Option<Standby>>,
    pool: Option<Pool>,
    zygotes: Zygotes,
    /// Empty boxes for children of the zygotes, used when no box is parked.
    empty_boxes: EmptyBoxes,
    /// Forks keepers, if there will be many.
    warden: Option<Warden>,
    network: NetworkSettings,
}

impl Native {
    /// Probes what this host can do, or reads it from the cache. Cleans up what a crashed predecessor left, unless a
    /// run is waiting to begin. On a host that can do nothing there is still a backend, which says why.
    #[must_use]
    pub fn open(settings: Settings) -> Native {
        let host = Host::remember_or_probe(settings.state_dir.as_deref(), settings.runtime_dir);
        let offer = host.offer();
        let runtimes = Runtimes::new(RuntimeSettings {
            search_path: settings.search_path,
            home: settings.home,
            manager_env: Vec::new(),
            overrides: settings.overrides,
            found: settings.found,
            cache_dir: settings.state_dir,
        });
        // On cgroup v2, PID 1 must be cloned into its cgroup, so an existing one is of no use.
        let standby = settings.standby.filter(|_| !matches!(host.cgroups, Cgroups::V2(_)));
        // A box whose limits cannot be changed cannot be made before they are known.
        let pool = settings.pool.filter(|_| !matches!(host.cgroups, Cgroups::Unavailable { .. }));
        let (standby, pool, zygotes) = (Mutex::new(standby), pool.map(Pool::new), Zygotes::default());
        let warden = settings.many_runs.then(Warden::default);
        let (swept, swept_before, empty_boxes) = (OnceLock::new(), settings.swept, EmptyBoxes::default());
        let native = Native {
            host,
            offer,
            swept,
            swept_before,
            runtimes,
            standby,
            pool,
            zygotes,
            empty_boxes,
            warden,
            network: settings.network,
        };
        if !native.has_standby() {
            native.sweep();
        }
        native
    }

    fn has_standby(&self) -> bool {
        self.standby.lock().is_ok_and(|standby| standby.is_some())
    }

    /// Cleans up what crashed predecessors left, on the first call.
    fn sweep(&self) {
        self.swept.get_or_init(|| self.host.cgroups.sweep());
    }

    /// Starts a run: in a parked box if one suits the request, otherwise in a new one.
    async fn begin(
        &self,
        mut sandbox: SandboxSpec,
        mut execution: ExecutionSpec,
    ) -> Result<Box<dyn Execution>, BackendError> {
        self.ready()?;
        let waited = Waited::begin();
        let mut running = match self.begin_warm(&mut sandbox, &mut execution).await? {
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
        let keeper = self.keeper().map_err(|source| setup("start the keeper", source))?;
        let runtime = self.runtimes.find(execution.language)?;
        let cgroup = self.make_cgroup(&keeper, &sandbox.limits)?;
        let draft = self.draft(&sandbox, &execution, &runtime, Supply::Now, keeper.id(), cgroup.as_ref())?;
        let terms = Terms {
            runtime: runtime.label,
            limits: sandbox.limits,
            cpu_time: execution.limits.cpu_time,
            collect: execution.collect,
            collected: execution.limits.collected,
            writes: sandbox.workspace.as_ref().map_or(Writes::Refused, Workspace::writes),
            egress: self.network.order(&sandbox.network),
        };
        let (theirs, ours) = stdin::pipe().map_err(|source| setup("make a pipe for stdin", source))?;
        let (mut running, _) = NativeExecution::order(keeper, draft, cgroup, theirs, terms)?;
        // This runs while the box is built.
        self.sweep();
        running.begun().await?;
        stdin::feed(ours, execution.stdin).map_err(|source| setup("feed stdin", source))?;
        Ok(running)
    }

    fn keeper(&self) -> io::Result<Keeper> {
        let standby = self.standby.lock().ok().and_then(|mut standby| standby.take());
        match (standby, &self.warden) {
            (Some(standby), _) => Ok(Keeper::None(Box::new(standby))),
            (None, Some(warden)) => warden.hire().map(Keeper::Process),
            (None, None) => Keeper::start(),
        }
    }

    /// Makes the cgroup now, unless it can be made later while the box is built.
    fn make_cgroup(&self, keeper: &Keeper, limits: &BoxLimits) -> Result<Option<BoxCgroup>, BackendError> {
        if let Cgroups::Unavailable { .. } = self.host.cgroups {
            return Ok(None);
        }
        let name = BoxName::next().map_err(|source| setup("name the box", source))?;
        let made = if keeper.waits_for_cgroup() {
            self.host.cgroups.design(&name)
        } else {
            self.host.cgroups.create(&name, limits)
        };
        made.map(Some).map_err(|error| setup("make the box's cgroup", io::Error::other(error)))
    }

    fn draft(
        &self,
        sandbox: &SandboxSpec,
        execution: &ExecutionSpec,
        runtime: &Runtime,
        supply: Supply,
        keeper: u32,
        cgroup: Option<&BoxCgroup>,
    ) -> Result<Draft, BackendError> {
        let ground = self.ground(
            runtime,
            host::identity(self.host.opener, keeper),
            cgroup.map_or(CgroupEntry::None, BoxCgroup::entry),
            cgroup.map(BoxCgroup::orphans).unwrap_or_default(),
            BaseSystem::look(),
        );
        layout::draft(sandbox, execution, supply, ground)
    }

    fn ground<'a>(
        &self,
        runtime: &'a Runtime,
        identity: Identity,
        cgroup: CgroupEntry,
        orphans: Vec<PathBuf>,
        base: Arc<BaseSystem>,
    ) -> Ground<'a> {
        let landlock = self.host.landlock > 0;
        Ground { runtime, identity, opener: self.host.opener, cgroup, orphans, landlock, base }
    }
}

impl Backend for Native {
    fn name(&self) -> BackendName {
        BackendName::Native
    }

    fn ready(&self) -> Result<(), BackendError> {
        self.host.boxes.as_ref().map(drop).map_err(|obstacle| BackendError::Unavailable {
            backend: BackendName::Native,
            reason: obstacle.to_string(),
            hint: obstacle.hint(),
        })
    }

    fn leaks_cleaned(&self) -> u64 {
        (self.swept_before + self.swept.get().copied().unwrap_or_default()) as u64
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The namespace of every box is its own; those with a network have a gateway beside it.
    fn provides(&self, network: &Network) -> bool {
        match network {
            Network::None | Network::Full | Network::Allow(_) => true,
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

    fn upkeep(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let pool = self.pool.clone()?;
        let zygotes = self.clone().keep_current(pool.clone());
        let teardown = teardown::keep_up({
            let pool = pool.clone();
            move || pool.is_closed()
        });
        let boxes = pool::keep_up(pool, move |language| self.clone().park(language));
        Some(Box::pin(async {
            tokio::join!(zygotes, boxes, teardown);
        }))
    }

    fn retire(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(pool) = &self.pool {
                pool.close().await;
                self.empty_boxes.clear();
                self.retire_zygotes().await;
            }
        })
    }

    fn pool(&self) -> Option<PoolStatus> {
        self.pool.as_ref().map(Pool::status)
    }

    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        self.ready()?;
        let runtime = self.runtimes.find(execution.language)?;
        let limits = &sandbox.limits;
        let draft = self.draft(sandbox, execution, &runtime, Supply::Now, std::process::id(), None)?;
        Ok(format!(
            "runtime   {} ({})\n\
             limits    memory {}, cpus {}, pids {}, disk {}, timeout {}\n\
             {}",
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

fn setup(step: &str, source: io::Error) -> BackendError {
    let hint = "`belljar doctor` shows what this host can do".to_owned();
    BackendError::Setup { step: step.to_owned(), hint, source }
}
