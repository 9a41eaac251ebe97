//! Making parked boxes, and giving them to requests that they suit.

use std::io;
use std::sync::Arc;

use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::language::Language;
use belljar_core::limits::Bytes;
use belljar_core::outcome::Start;
use belljar_core::path::Writes;
use belljar_core::pool::PoolStatus;
use belljar_core::request::{Arg, EnvVar};
use belljar_host::runtimes::{Runtime, Runtimes};
use belljar_host::stdin;
use belljar_jail::plan::{Birth, Plan};

use crate::cgroup::BoxCgroup;
use crate::empty_boxes::{EmptyBox, EmptyBoxes};
use crate::errors::setup;
use crate::execution::{NativeExecution, Terms};
use crate::factory::BoxFactory;
use crate::keeper::Keeper;
use crate::layout::{self, Draft, Supply};
use crate::load;
use crate::parked::{self, Parked, ParkedTerms, Stamped};
use crate::pool::{self, Pool};
use crate::teardown;
use crate::zygote::{self, Readiness, Zygotes};

/// Everything that is made before its request: the zygotes, the empty boxes and the parked ones.
#[derive(Debug)]
pub(crate) struct WarmBoxes {
    pool: Pool,
    zygotes: Zygotes,
    /// For children of the zygotes, used when no box is parked.
    empty_boxes: EmptyBoxes,
    factory: Arc<BoxFactory>,
    runtimes: Arc<Runtimes>,
}

/// What a parked box is made from.
struct Blueprint {
    keeper: Keeper,
    cgroup: Option<BoxCgroup>,
    draft: Draft,
    terms: Terms,
    made_from: ParkedTerms,
}

/// The result of looking for a parked box.
enum Sought {
    /// The run has started.
    Found(Box<NativeExecution>),
    /// The parked boxes do not suit the request, for this reason.
    Unfit(&'static str),
    /// No box is parked.
    None,
}

/// How a run begins where there may be a pool.
pub(crate) enum Beginning {
    /// It has begun.
    Begun(Box<NativeExecution>),
    /// It has to begin cold. If there is a pool: why.
    Cold(Option<&'static str>),
}

/// What a runtime gets when it is started: a parked one has been started without.
struct Extras {
    args: Vec<Arg>,
    env: Vec<EnvVar>,
}

impl Extras {
    fn take(sandbox: &mut SandboxSpec, execution: &mut ExecutionSpec) -> Extras {
        Extras { args: std::mem::take(&mut execution.args), env: std::mem::take(&mut sandbox.env) }
    }

    fn give_back(self, sandbox: &mut SandboxSpec, execution: &mut ExecutionSpec) {
        (execution.args, sandbox.env) = (self.args, self.env);
    }

    /// In the form that the child of a zygote reads.
    fn encode(&self) -> Vec<u8> {
        let args = self.args.iter().map(|arg| arg.as_str().to_owned());
        let env = self.env.iter().map(|variable| format!("{}={}", variable.name(), variable.value()));
        let all = std::iter::once(self.args.len().to_string()).chain(args).chain(env);
        all.flat_map(|text| text.into_bytes().into_iter().chain([0])).collect()
    }
}

const NO_ZYGOTE: &str = "args and env are set when the runtime starts, and no zygote could start one";
const UNLIKE: &str =
    "limits.memory_bytes, pids or cpus, or what is waived, are not possible in the pool's boxes";
const SPOILT: &str = "a box of the pool could not be given the network, the files or the limits of the run";

impl WarmBoxes {
    pub(crate) fn new(pool: Pool, factory: Arc<BoxFactory>, runtimes: Arc<Runtimes>) -> WarmBoxes {
        let zygotes = Zygotes::new(pool.clone(), factory.clone());
        WarmBoxes { pool, zygotes, empty_boxes: EmptyBoxes::default(), factory, runtimes }
    }

    pub(crate) fn status(&self) -> PoolStatus {
        self.pool.status()
    }

    /// Makes boxes, keeps them current and takes used ones down, for as long as the pool is open.
    pub(crate) async fn keep_up(self: Arc<Self>) {
        let teardown = teardown::keep_up({
            let pool = self.pool.clone();
            move || pool.is_closed()
        });
        let (current, boxes) = (self.clone(), self.clone());
        let boxes = pool::keep_up(self.pool.clone(), move |language| boxes.clone().park(language));
        tokio::join!(current.keep_current(), boxes, teardown);
    }

    /// Destroys all of them.
    pub(crate) async fn retire(&self) {
        self.pool.close().await;
        self.empty_boxes.clear();
        self.zygotes.retire().await;
    }

    /// Starts a run in a parked box, or with a zygote's child. If neither is available for this request, it is
    /// unchanged.
    pub(crate) async fn begin(
        &self,
        sandbox: &mut SandboxSpec,
        execution: &mut ExecutionSpec,
    ) -> Result<Beginning, BackendError> {
        let language = execution.language;
        let pool = &self.pool;
        if !pool.keeps(language) {
            return Ok(Beginning::Cold(Some("the pool keeps no boxes of this language")));
        }
        if !execution.args.is_empty() || !sandbox.env.is_empty() {
            pool.count_unfit(language);
            return Ok(self.begin_with_extras(pool, sandbox, execution).await);
        }
        Ok(match self.seek(pool, sandbox, execution).await? {
            Sought::Found(running) => {
                pool.count_hit(language);
                Beginning::Begun(running)
            }
            Sought::Unfit(why) => {
                pool.count_unfit(language);
                Beginning::Cold(Some(why))
            }
            Sought::None => {
                pool.count_miss(language);
                let forked = self.begin_forked(sandbox, execution, None).await;
                forked.map_or(Beginning::Cold(Some("no box was ready")), Beginning::Begun)
            }
        })
    }

    /// Starts a run that has arguments or variables of its own. A parked runtime has been started without them; the child
    /// of a zygote can take them on its way.
    async fn begin_with_extras(
        &self,
        pool: &Pool,
        sandbox: &mut SandboxSpec,
        execution: &mut ExecutionSpec,
    ) -> Beginning {
        let preload = pool.preload(execution.language);
        if let Some(why) = zygote::obstacle_to_env(execution.language, &sandbox.env, preload) {
            return Beginning::Cold(Some(why));
        }
        if let Err(why) = could_suit(pool, sandbox, execution) {
            return Beginning::Cold(Some(why));
        }
        let extras = Extras::take(sandbox, execution);
        let encoded = extras.encode();
        match self.begin_forked(sandbox, execution, Some(&encoded)).await {
            Some(running) => Beginning::Begun(running),
            None => {
                extras.give_back(sandbox, execution);
                Beginning::Cold(Some(NO_ZYGOTE))
            }
        }
    }

    /// Starts a run in a new box, with a child of a zygote. This is an attempt: if anything fails before the code is
    /// sent, the request is unchanged.
    async fn begin_forked(
        &self,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
        extras: Option<&[u8]>,
    ) -> Option<Box<NativeExecution>> {
        let language = execution.language;
        let runtime = Stamped::new(self.runtimes.find(language).ok()?);
        let zygote = self.zygotes.living(language, &runtime).await?;
        let empty = match self.empty_boxes.take(language, zygote.user(), &runtime) {
            Some(spare) => spare,
            None => self.build(language, runtime, zygote.user()).await.ok()?,
        };
        if let Some(extras) = extras {
            empty.leave_extras(extras).ok()?;
        }
        let parked = match empty.inhabit(&zygote, Readiness::Hasty).await {
            Ok(parked) => {
                zygote.count_as_good();
                parked
            }
            Err(error) => {
                self.zygotes.give_up(language, &zygote, &error);
                return None;
            }
        };
        let wanted = self.plan_like(parked.terms(), sandbox, execution).ok()?;
        if !parked::suits(parked.terms(), &wanted, sandbox) || !parked.fits_into(&sandbox.limits, execution) {
            return None;
        }
        let egress = self.factory.network.order(sandbox).ok()?;
        let running = parked.supply(Start::Zygote, &wanted, sandbox, execution, egress).await.ok()?;
        running.ok().map(Box::new)
    }

    async fn seek(
        &self,
        pool: &Pool,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
    ) -> Result<Sought, BackendError> {
        let language = execution.language;
        if let Err(why) = could_suit(pool, sandbox, execution) {
            return Ok(Sought::Unfit(why));
        }
        while let Some(parked) = pool.take(language) {
            if !parked.terms().runtime.is_as_it_was() {
                pool.put_back(language, parked);
                pool.clear(language);
                break;
            }
            let wanted = self.plan_like(parked.terms(), sandbox, execution)?;
            if !parked::suits(parked.terms(), &wanted, sandbox)
                || !parked.fits_into(&sandbox.limits, execution)
            {
                pool.put_back(language, parked);
                return Ok(Sought::Unfit(UNLIKE));
            }
            let egress = self.factory.network.order(sandbox)?;
            match parked.supply(Start::Warm, &wanted, sandbox, execution, egress).await {
                Ok(running) => return running.map(|running| Sought::Found(Box::new(running))),
                Err(mut spoilt) => {
                    if spoilt.lives() || parked::are_heavy(execution) {
                        // The request does not suit the box, and would spoil the next one too.
                        pool.discard(*spoilt);
                        return Ok(Sought::Unfit(SPOILT));
                    }
                    pool.lose(language, *spoilt);
                }
            }
        }
        Ok(Sought::None)
    }

    /// The plan that would have been made for this request at the time this box was made.
    fn plan_like(
        &self,
        made_from: &ParkedTerms,
        sandbox: &SandboxSpec,
        execution: &ExecutionSpec,
    ) -> Result<Arc<Plan>, BackendError> {
        let ParkedTerms { plan, base, runtime, .. } = made_from;
        if made_from.have_limits_of(sandbox, execution) {
            return Ok(plan.clone());
        }
        let Plan { identity, cgroup, orphans, .. } = &**plan;
        let (cgroup, orphans) = (cgroup.clone(), orphans.clone());
        let ground = self.factory.ground(runtime.runtime(), *identity, cgroup, orphans, base.clone());
        Ok(Arc::new(layout::draft(sandbox, execution, Supply::Later, ground)?.plan))
    }

    /// Makes a parked box for this language.
    async fn park(self: Arc<Self>, language: Language) -> Result<Parked, BackendError> {
        // Before it is started, so that a runtime which is replaced meanwhile is not mistaken for the new one.
        let runtime = Stamped::new(self.clone().find_beside(language).await?);
        let Some(zygote) = self.zygotes.awaited(language, &runtime).await else {
            return self.boot(language, runtime).await;
        };
        let made = async {
            let empty = self.build(language, runtime, zygote.user()).await?;
            empty.inhabit(&zygote, Readiness::Rehearsed).await
        };
        let made = made.await;
        match &made {
            Ok(_) => zygote.count_as_good(),
            Err(error) => self.zygotes.give_up(language, &zygote, error),
        }
        made
    }

    /// Keeps the pool current: removes boxes whose runtime is no longer the one that would be found, and makes sure
    /// that every language that can have a zygote has one, even while no box of it is needed.
    async fn keep_current(self: Arc<Self>) {
        let pool = &self.pool;
        while !pool.is_closed() {
            pool.note_pressure(pool::pressure::is_felt());
            for language in pool.languages() {
                let Ok(runtime) = self.clone().find_beside(language).await else { continue };
                let runtime = Stamped::new(runtime);
                pool.clear_unless(language, |parked| parked.terms().runtime == runtime);
                self.zygotes.renew(language, &runtime).await;
                if !pool.is_pressed() {
                    self.stock_up(language, &runtime).await;
                }
            }
            self.zygotes.note_attempt();
            // Check again, whether one was taken or the time is up.
            let _ = tokio::time::timeout(pool::ROUND, self.empty_boxes.taken()).await;
        }
        self.empty_boxes.clear();
        self.zygotes.retire().await;
    }

    /// Builds empty boxes for runs that find no parked box: one for each core, as no more can be entered at a time. If
    /// one cannot be built, the next round tries again.
    async fn stock_up(&self, language: Language, runtime: &Stamped) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let Some(zygote) = self.zygotes.living(language, runtime).await else { return };
        let owner = zygote.user();
        while self.empty_boxes.count(language, owner, runtime) < cores {
            load::quiet().await;
            let Ok(empty) = self.build(language, runtime.clone(), owner).await else { return };
            self.empty_boxes.put(language, empty);
        }
    }

    /// Makes a box whose runtime boots in it, and waits until it waits for code.
    async fn boot(&self, language: Language, runtime: Stamped) -> Result<Parked, BackendError> {
        let Blueprint { keeper, cgroup, mut draft, terms, made_from } =
            self.blueprint(language, runtime, Birth::Executed)?;
        self.factory.find_template(&mut draft).await;
        let source = draft.source.clone();
        let (theirs, ours) = stdin::pipe().map_err(setup("make a pipe for stdin"))?;
        let booting = NativeExecution::begin(keeper, draft, cgroup, theirs, terms).await?;
        let primer = language.parking.map_or(&b""[..], |parking| parking.primer);
        Parked::when_booted(booting, made_from, source.as_str(), primer, ours, 0).await
    }

    /// Builds a box for a zygote's child to enter.
    async fn build(
        &self,
        language: Language,
        runtime: Stamped,
        owner: u32,
    ) -> Result<EmptyBox, BackendError> {
        let birth = Birth::Forked { by: owner };
        let Blueprint { keeper, cgroup, mut draft, terms, made_from } =
            self.blueprint(language, runtime, birth)?;
        self.factory.find_template(&mut draft).await;
        let source = draft.source.clone();
        let (theirs, stdin) = stdin::pipe().map_err(setup("make a pipe for stdin"))?;
        let (execution, entrance) =
            NativeExecution::begin_empty(keeper, draft, cgroup, theirs, terms).await?;
        Ok(EmptyBox { execution, entrance, terms: made_from, source, stdin, owner })
    }

    fn blueprint(
        &self,
        language: Language,
        runtime: Stamped,
        birth: Birth,
    ) -> Result<Blueprint, BackendError> {
        let (sandbox, execution) = self.factory.usual_request(language, self.pool.limits())?;
        let keeper = self.factory.keeper()?;
        let mut cgroup = self.factory.cgroup(&keeper, &sandbox.limits)?;
        if let Some(cgroup) = &mut cgroup {
            cgroup.give_way();
            cgroup.open_counters();
        }
        let (id, supply) = (keeper.id(), Supply::Later);
        let mut draft =
            self.factory.draft(&sandbox, &execution, runtime.runtime(), supply, id, cgroup.as_ref())?;
        draft.plan.birth = birth;
        draft.plan.exit_listener = birth == Birth::Executed;
        let (cpu_time, collect, label) = (None, Vec::new(), runtime.runtime().label.clone());
        let (limits, collected, writes) = (sandbox.limits, Bytes::new(0), Writes::Refused);
        let terms = Terms { runtime: label, limits, cpu_time, collect, collected, writes, gateway: None };
        let SandboxSpec { limits, enforcement, .. } = sandbox;
        let (plan, base) = (Arc::new(draft.plan.clone()), draft.base.clone());
        let execution_limits = execution.limits;
        let made_from = ParkedTerms { plan, base, limits, execution_limits, enforcement, runtime };
        Ok(Blueprint { keeper, cgroup, draft, terms, made_from })
    }

    /// Finds a runtime in the background: it may have to be started and asked for its version.
    async fn find_beside(self: Arc<Self>, language: Language) -> Result<Runtime, BackendError> {
        let finding = tokio::task::spawn_blocking(move || self.runtimes.find(language));
        finding.await.map_err(|lost| setup("find the runtime")(io::Error::other(lost)))?
    }
}

/// Whether a request could be run in a parked box of its language. If not, why.
fn could_suit(pool: &Pool, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<(), &'static str> {
    let parking = execution.language.parking.as_ref().ok_or("its runtime cannot wait for code")?;
    parked::could_suit(parking, &pool.limits(), sandbox, execution)
}
