//! The Docker backend: a container for each run, made by the engine that listens on a socket of this host; in gVisor if
//! the engine has it as a runtime.
//!
//! In reading order: `lib` implements the port; `daemon` finds the engine and `trial` probes what it can guarantee;
//! `image` chooses and prepares the image; `runtimes` knows what is in it; `job` turns a request into the description
//! of a `container` and the orders for its PID 1; `execution` follows it to the end, over an `init_channel` of `frame`s. `init`
//! is that PID 1: the only part that runs inside. `owner` identifies what a crashed predecessor has left.

#![forbid(unsafe_code)]

mod api;
mod archive;
mod blocking;
mod container;
mod daemon;
mod errors;
mod execution;
mod extras;
mod file_lock;
mod frame;
mod gate;
mod image;
mod init;
mod init_channel;
mod inside;
mod job;
mod owner;
mod pool;
mod prune;
mod remembered;
mod runtimes;
mod trial;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::{Offer, resolve};
use belljar_core::language::{Language, Parking};
use belljar_core::limits::{BoxLimits, LimitsRequest, show_duration};
use belljar_core::outcome::Start;
use belljar_core::path::BoxPath;
use belljar_core::pool::PoolStatus;
use belljar_core::request::{BackendName, Network, Stdin};
use tokio::sync::Mutex;

use crate::api::Api;
use crate::blocking::block_on;
use crate::container::{CODE_ID, Container, ContainerSpec, is_emulator, refusal};
use crate::daemon::Daemon;
use crate::execution::{BUILD_LIMIT, DockerExecution, Terms};
use crate::frame::{Said, Told};
use crate::gate::Gate;
use crate::image::{Choice, Image, Images, unique};
use crate::init_channel::InitChannel;
use crate::job::{Engine, Job};
use crate::owner::Owner;
use crate::pool::{Parked, Pool, could_suit};
use crate::runtimes::{Runtime, Runtimes};

pub use crate::image::ImagePolicy;
pub use crate::init::{init, is_init};
pub use crate::pool::PoolSettings;

/// How much longer than its run a container may exist.
const SPARE_TIME: Duration = Duration::from_secs(600);
/// How often to look for what a crashed predecessor has left.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60);
/// How often to remove prepared images that are of no use any more.
const BETWEEN_PRUNINGS: Duration = Duration::from_secs(3600);
/// How often to check whether the daemon still answers.
const BETWEEN_CHECKS: Duration = Duration::from_secs(2);
/// How often to check whether parked containers have become too few or too old.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What the backend needs to know about its caller's environment, which it does not read itself.
#[derive(Default)]
pub struct Settings {
    /// `DOCKER_HOST`: where the daemon listens, if not at a default path.
    pub host: Option<String>,
    /// `XDG_RUNTIME_DIR`: where a daemon of the user's own listens.
    pub runtime_dir: Option<PathBuf>,
    /// Where results are cached between runs.
    pub state_dir: Option<PathBuf>,
    /// The daemon's runtime, if not its default: `runsc` is gVisor.
    pub runtime: Option<String>,
    /// Which images a request may name.
    pub images: ImagePolicy,
    /// The image of runs that name none, in place of those of the languages.
    pub default_image: Option<String>,
    /// Images for languages, in place of the defaults.
    pub of_languages: Vec<(Language, String)>,
    /// This binary, which becomes PID 1 of every container.
    pub init: PathBuf,
    /// Whether a server pulls the images of the languages before they are requested.
    pub pull: bool,
    /// The warm pool of a server.
    pub pool: Option<PoolSettings>,
    /// Whether to probe the daemon again, whatever is cached.
    pub anew: bool,
    /// Whether the operator restricts networks, which a container's cannot be.
    pub restricted_networks: bool,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("host", &self.host)
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

/// The docker backend on this host.
#[derive(Debug)]
pub struct Docker {
    daemon: Daemon,
    images: Images,
    runtimes: Runtimes,
    runtime: Option<String>,
    restricted_networks: bool,
    pull: bool,
    pool: Option<Pool>,
    swept: AtomicU64,
    has_swept: AtomicBool,
    retired: tokio::sync::Notify,
}

impl Docker {
    /// A backend that has done nothing yet: the daemon is contacted on first use.
    #[must_use]
    pub fn open(settings: Settings) -> Docker {
        let images = Images {
            policy: settings.images,
            default: settings.default_image,
            of_languages: settings.of_languages,
            init: settings.init,
            preparing: Mutex::new(()),
            state_dir: settings.state_dir.clone(),
        };
        Docker {
            daemon: Daemon::new(
                settings.host,
                settings.runtime_dir,
                settings.state_dir.clone(),
                settings.anew,
            ),
            images,
            runtimes: Runtimes::new(settings.state_dir),
            runtime: settings.runtime,
            restricted_networks: settings.restricted_networks,
            pull: settings.pull,
            pool: settings.pool.as_ref().map(Pool::new),
            swept: AtomicU64::new(0),
            has_swept: AtomicBool::new(false),
            retired: tokio::sync::Notify::new(),
        }
    }

    async fn begin(
        self: &Docker,
        sandbox: SandboxSpec,
        mut execution: ExecutionSpec,
        waiting: PullListener<'_>,
    ) -> Result<Box<dyn Execution>, BackendError> {
        let api = self.api().await?;
        self.sweep_once(&api);
        let choice = self.images.choose(execution.language, sandbox.image.as_deref())?;
        let image = self.images.get(&api, &choice, waiting).await?;
        let runtime = self.runtime_in(&api, &image, execution.language).await?;
        let terms = Terms {
            runtime: runtime.label.clone(),
            image: image.identity.clone(),
            collects: !execution.collect.is_empty(),
            memory: sandbox.limits.memory.get(),
            own_kernel: is_emulator(self.runtime.as_deref()),
            collected: execution.limits.collected.get(),
            max_files: sandbox.limits.max_files(),
        };
        let suits = could_be_warm(&sandbox, &execution);
        let job = self.job(&sandbox, &mut execution, &image, &runtime)?;
        if let Ok(parking) = suits
            && let Some(running) = self.begin_warm(&job, parking.source, &terms, &mut execution).await?
        {
            return Ok(Box::new(running));
        }
        let lease = execution.limits.timeout + SPARE_TIME;
        let gate = self.gate(&api, &sandbox.network, lease).await?;
        let name = format!("belljar-{}", execution.id.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let Job { mut spec, order, supply, contents, layer } = job;
        spec.gate = gate.as_ref().map(|gate| gate.name().to_owned());
        let mut container = make(&api, name, &spec, lease).await?;
        layer.into_iter().for_each(|layer| container.hold(layer));
        gate.into_iter().for_each(|gate| container.hold(Arc::new(gate)));
        let channel =
            InitChannel::new(container.attach().await.map_err(errors::api("attach to the container"))?);
        channel.tell(&Told::StartProgram(order));
        channel.tell_raw(Job::supplies(supply, &contents));
        channel.feed(execution.stdin).map_err(errors::setup("feed stdin"))?;
        container.start().await.map_err(errors::api("start the container"))?;
        let running = DockerExecution::begin(container, channel, terms, Start::Cold).await?;
        let none_ready = "no container was ready that was made for such a run";
        let why = self.pool.as_ref().map(|_| suits.err().unwrap_or(none_ready));
        Ok(Box::new(running.because(why)))
    }

    fn job(
        &self,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
        image: &Image,
        runtime: &Runtime,
    ) -> Result<Job, BackendError> {
        let engine = Engine { runtime: self.runtime.as_deref(), extras: self.daemon.extras() };
        Job::new(sandbox, execution, image, runtime, engine)
    }

    /// The network of a run, if it is to have one.
    async fn gate(
        &self,
        api: &Api,
        network: &Network,
        lease: Duration,
    ) -> Result<Option<Gate>, BackendError> {
        match network {
            Network::None => Ok(None),
            Network::Full | Network::Allow(_) => {
                Gate::open(api, &self.images, &self.daemon.extras(), lease).await.map(Some)
            }
        }
    }

    /// Starts a run in a parked container. `None`: there is none for this request, which is unchanged.
    async fn begin_warm(
        &self,
        job: &Job,
        source: &str,
        terms: &Terms,
        execution: &mut ExecutionSpec,
    ) -> Result<Option<DockerExecution>, BackendError> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let wanted = job.order.clone().with_gate(source);
        let Some(parked) = pool.take(execution.language, &job.spec, &wanted) else { return Ok(None) };
        parked.channel.tell_raw(Job::supplies(job.supply.clone(), &job.contents));
        let begun =
            DockerExecution::begin(parked.container, parked.channel, terms.clone(), Start::Warm).await;
        let Ok(running) = begun else {
            // It died while it was parked, or cannot take what it was given.
            pool.count_loss(execution.language);
            return Ok(None);
        };
        let stdin = std::mem::replace(&mut execution.stdin, Stdin::Empty);
        running.feed(stdin).map_err(errors::setup("feed stdin"))?;
        Ok(Some(running))
    }

    /// Makes a parked container for this language.
    async fn park(&self, pool: &Pool, language: Language) -> Result<Parked, BackendError> {
        let api = self.api().await?;
        let (sandbox, mut execution) = self.unspecific(language, pool.limits())?;
        let parking = language.parking.ok_or_else(|| cannot_wait("its runtime cannot be parked"))?;
        let choice = self.images.choose(language, None)?;
        let image = self.images.get_local(&api, &choice).await?;
        let image = image.ok_or_else(|| cannot_wait("its image has not been pulled"))?;
        let runtime = self.runtime_in(&api, &image, language).await?;
        let Job { spec, order, .. } = self.job(&sandbox, &mut execution, &image, &runtime)?;
        let order = order.with_gate(parking.source);
        let lease = pool.max_age() + SPARE_TIME;
        let container = make(&api, format!("belljar-wait-{}", unique()), &spec, lease).await?;
        let failed = errors::api("start a parked container");
        let mut channel = InitChannel::new(container.attach().await.map_err(&failed)?);
        channel.tell(&Told::StartProgram(order.clone()));
        container.start().await.map_err(&failed)?;
        match tokio::time::timeout(BUILD_LIMIT, channel.hear()).await {
            Ok(Ok(Some(Said::Parked))) => {}
            other => return Err(cannot_wait(&format!("{other:?} {}", channel.last_words()))),
        }
        Ok(Parked { container, channel, spec, order, since: Instant::now() })
    }

    /// The request that most requests of a language resemble: everything optional is left out.
    fn unspecific(
        &self,
        language: Language,
        limits: BoxLimits,
    ) -> Result<(SandboxSpec, ExecutionSpec), BackendError> {
        let enforcement = resolve(self.daemon.offer(), &[])
            .map_err(|_| cannot_wait("the daemon cannot enforce every guarantee"))?;
        let usual = LimitsRequest::default().resolve();
        let (_, execution_limits) = usual.map_err(|_| cannot_wait("the default limits are out of range"))?;
        let source = language.parking.map_or(language.source, |parking| parking.source);
        let name = BoxPath::parse(source).map_err(|_| cannot_wait("its source file has no valid name"))?;
        let sandbox = SandboxSpec::unspecific(limits, enforcement);
        Ok((sandbox, ExecutionSpec::unspecific(language, name, execution_limits)))
    }

    /// Makes parked containers, one at a time, and removes those that are too old.
    async fn tend(&self, pool: &Pool) {
        loop {
            let (next, old) = pool.review();
            drop(old);
            let Some(language) = next else { return };
            let began = Instant::now();
            let made = self.park(pool, language).await;
            pool.made(language, made, began.elapsed());
        }
    }

    async fn api(&self) -> Result<Api, BackendError> {
        self.daemon.api(&self.images, self.runtime.as_deref()).await
    }

    /// The runtime of a language in an image: from the cache, or by asking in a separate container.
    async fn runtime_in(
        &self,
        api: &Api,
        image: &Image,
        language: Language,
    ) -> Result<Runtime, BackendError> {
        if let Some(known) = self.runtimes.recall(image, language) {
            return Ok(known);
        }
        let spec = ContainerSpec {
            image: image.prepared.clone(),
            runtime: self.runtime.clone(),
            limits: usual_limits()?,
            network: Network::None,
            gate: None,
            user: (CODE_ID, CODE_ID),
            workspace: None,
            extras: self.daemon.extras(),
        };
        let container = make(api, format!("belljar-ask-{}", unique()), &spec, SPARE_TIME).await?;
        let failed = errors::api("find the runtime in the image");
        let mut channel = InitChannel::new(container.attach().await.map_err(&failed)?);
        channel.tell(&Told::Question(runtimes::question(image, language)));
        container.start().await.map_err(&failed)?;
        let found = match tokio::time::timeout(BUILD_LIMIT, channel.hear()).await {
            Ok(Ok(Some(Said::Found(found)))) => found,
            other => {
                let said = format!("{other:?} {}", channel.last_words());
                return Err(errors::setup("find the runtime in the image")(std::io::Error::other(said)));
            }
        };
        container.part(channel, spec.is_emulated()).await.map_err(failed)?;
        self.runtimes.learn(image, language, &found)
    }

    /// Looks for what a crashed predecessor has left, concurrently with the first run.
    fn sweep_once(&self, api: &Api) {
        if !self.has_swept.swap(true, Ordering::Relaxed) {
            let api = api.clone();
            tokio::spawn(async move { owner::sweep(&api).await });
        }
    }

    /// Background work until the backend is retired.
    async fn keep_up(self: Arc<Docker>) {
        tokio::select! {
            () = self.watch() => {}
            () = self.supply() => {}
        }
    }

    /// Checks at intervals whether the daemon still answers.
    async fn watch(&self) {
        let mut check = tokio::time::interval(BETWEEN_CHECKS);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            check.tick().await;
            self.daemon.check(&self.images, self.runtime.as_deref()).await;
        }
    }

    /// Sweeps at intervals, once there is a daemon, and pulls the images that will be needed.
    async fn supply(&self) {
        if self.pull {
            self.pull_all().await;
        }
        let mut sweep = tokio::time::interval(BETWEEN_SWEEPS);
        let mut prune = tokio::time::interval(BETWEEN_PRUNINGS);
        let mut look = tokio::time::interval(BETWEEN_LOOKS);
        sweep.tick().await;
        loop {
            tokio::select! {
                _ = sweep.tick() => {}
                _ = prune.tick() => {
                    self.prune().await;
                    continue;
                }
                _ = look.tick(), if self.pool.is_some() => {
                    tend(self).await;
                    continue;
                }
                () = changed(self.pool.as_ref()) => {
                    tend(self).await;
                    continue;
                }
                () = self.retired.notified() => return,
            }
            if let Some(api) = self.daemon.known()
                && let Ok(count) = owner::sweep(&api).await
            {
                self.swept.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    async fn prune(&self) {
        let Some(api) = self.daemon.known() else { return };
        match self.images.prune(&api).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "removed prepared images that were of no use any more"),
            Err(error) => tracing::warn!("cannot remove old prepared images: {error}"),
        }
    }

    async fn pull_all(&self) {
        let Ok(api) = self.api().await else { return };
        if let Ok(count) = owner::sweep(&api).await {
            self.swept.fetch_add(count, Ordering::Relaxed);
        }
        let mut choices: Vec<Choice> =
            Language::all().filter_map(|language| self.images.choose(language, None).ok()).collect();
        choices.sort();
        choices.dedup();
        for choice in choices {
            if let Err(error) = self.images.get(&api, &choice, &|_| {}).await {
                tracing::warn!("{error}");
            }
        }
    }
}

/// How a run could be warm, or why it cannot.
fn could_be_warm(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<Parking, &'static str> {
    let parking = execution.language.parking.ok_or("its runtime cannot wait for code")?;
    could_suit(&parking, sandbox, execution)?;
    Ok(parking)
}

impl Backend for Docker {
    fn name(&self) -> BackendName {
        BackendName::Docker
    }

    fn ready(&self) -> Result<(), BackendError> {
        if let Some(trouble) = self.daemon.trouble() {
            return Err(trouble);
        }
        if self.daemon.known().is_some() {
            return Ok(());
        }
        block_on(self.api()).map_err(errors::setup("wait for the daemon"))?.map(drop)
    }

    fn leaks_cleaned(&self) -> u64 {
        self.swept.load(Ordering::Relaxed)
    }

    fn offer(&self) -> &Offer {
        // Callers that have not asked whether it is ready get an answer all the same.
        let _ = self.ready();
        self.daemon.offer()
    }

    fn provides(&self, network: &Network) -> bool {
        match network {
            Network::None => true,
            // gVisor has its own network stack, which the filter that restricts a network does not see.
            Network::Full => !is_emulator(self.runtime.as_deref()) && !self.restricted_networks,
            Network::Allow(_) => false,
        }
    }

    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError> {
        let found = block_on(async {
            let api = self.api().await?;
            let choice = self.images.choose(language, None)?;
            let image = self.images.get_local(&api, &choice).await?;
            let image = image.ok_or_else(|| BackendError::RuntimeMissing {
                language,
                hint: how_to_get(&choice, language),
            })?;
            let runtime = self.runtime_in(&api, &image, language).await?;
            let mut location = format!("{} in {}", runtime.program, choice.reference);
            if let Some(package) = choice.package {
                location += &format!(", with the package {package} added");
            }
            Ok(RuntimeInfo { label: runtime.label, location })
        });
        found.map_err(errors::setup("wait for the daemon"))?
    }

    fn start<'a>(
        &'a self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
        waiting: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>> {
        Box::pin(self.begin(sandbox, execution, waiting))
    }

    fn upkeep(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(self.keep_up()))
    }

    fn retire(&self) -> BoxFuture<'_, ()> {
        self.retired.notify_one();
        Box::pin(async {
            for parked in self.pool.iter().flat_map(Pool::empty) {
                // What cannot be removed now is removed by the next sweep.
                let _ = parked.container.remove().await;
            }
        })
    }

    fn pool(&self) -> Option<PoolStatus> {
        self.pool.as_ref().map(Pool::status)
    }

    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        self.ready()?;
        let limits = &sandbox.limits;
        let image = self.images.choose(execution.language, sandbox.image.as_deref())?.reference;
        let spec = ContainerSpec {
            image: image.clone(),
            runtime: self.runtime.clone(),
            limits: *limits,
            network: sandbox.network.clone(),
            gate: (sandbox.network == Network::Full).then(|| "GATE".to_owned()),
            user: (CODE_ID, CODE_ID),
            workspace: None,
            extras: self.daemon.extras(),
        };
        let owner =
            Owner::this().map_err(errors::setup("identify this process as the owner of a container"))?;
        let mut description = spec.description(&owner, execution.limits.timeout + SPARE_TIME);
        description["HostConfig"]["SecurityOpt"] =
            serde_json::json!(["no-new-privileges:true", "seccomp=(ours)"]);
        let container = serde_json::to_string_pretty(&description).unwrap_or_default();
        Ok(format!(
            "image     {image}\n\
             limits    memory {}, cpus {}, pids {}, disk {}, timeout {}\n\
             directory {}\n\
             container {container}\n",
            limits.memory,
            limits.cpus,
            limits.pids,
            limits.disk,
            show_duration(execution.limits.timeout),
            inside::places(sandbox).cwd.display(),
        ))
    }
}

fn how_to_get(choice: &Choice, language: Language) -> String {
    let reference = &choice.reference;
    match choice.package {
        None => format!("pull its image: docker pull {reference}"),
        Some(package) => format!(
            "the first run of {language} adds the package {package} to the image {reference}, which needs a network"
        ),
    }
}

async fn tend(docker: &Docker) {
    if let Some(pool) = &docker.pool {
        docker.tend(pool).await;
    }
}

async fn changed(pool: Option<&Pool>) {
    match pool {
        Some(pool) => pool.changed().await,
        None => std::future::pending().await,
    }
}

fn cannot_wait(why: &str) -> BackendError {
    errors::setup("make a parked container")(std::io::Error::other(why.to_owned()))
}

async fn make(
    api: &Api,
    name: String,
    spec: &ContainerSpec,
    lease: Duration,
) -> Result<Container, BackendError> {
    let owner = Owner::this().map_err(errors::setup("identify this process as the owner of a container"))?;
    match Container::make(api, name, &spec.description(&owner, lease)).await {
        Ok(container) => Ok(container),
        Err(error) => Err(refusal(api, spec.runtime.as_deref(), "make the container", error).await),
    }
}

fn usual_limits() -> Result<BoxLimits, BackendError> {
    let limits = LimitsRequest::default().resolve();
    let limits = limits.map_err(|fault| errors::setup("name limits")(std::io::Error::other(fault)))?;
    Ok(limits.0)
}
