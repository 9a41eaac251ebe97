//! Parked containers: started, their runtime booted and blocked on its code's file, which is a pipe until a request
//! comes. Each is used once. If something cannot be added to a parked container, the run gets a new container, not an
//! error.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::language::{Language, Parking};
use belljar_core::limits::BoxLimits;
use belljar_core::pool::{LanguagePool, PoolStatus};
use belljar_core::request::{InputFile, Network};
use tokio::sync::Notify;

use crate::container::{Container, ContainerSpec};
use crate::frame::StartProgram;
use crate::init_channel::InitChannel;

/// For how long a run that found no parked container raises the target by one.
const MEMORY_OF_DEMAND: Duration = Duration::from_secs(30);
/// How long to wait before trying a language again after a failure.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// The most bytes of code and files for a parked container.
const MOST_INPUT: usize = 256 << 10;

/// The configuration of the pool.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The age at which a parked container is replaced.
    pub max_age: Duration,
    /// The limits with which a container is made: those of most requests.
    pub limits: BoxLimits,
    /// The languages, how many containers are parked without demand, and how many at most.
    pub languages: Vec<(Language, usize, usize)>,
}

/// A container whose runtime waits for code. Dropping it removes the container.
pub(crate) struct Parked {
    pub(crate) container: Container,
    pub(crate) channel: InitChannel,
    pub(crate) spec: ContainerSpec,
    pub(crate) order: StartProgram,
    pub(crate) since: Instant,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("since", &self.since).finish_non_exhaustive()
    }
}

/// The parked containers.
#[derive(Debug)]
pub(crate) struct Pool {
    max_age: Duration,
    limits: BoxLimits,
    languages: Mutex<Vec<LanguageContainers>>,
    changed: Notify,
}

/// Those of one language.
#[derive(Debug)]
struct LanguageContainers {
    ready: VecDeque<Parked>,
    missed: Option<Instant>,
    failed: Option<Instant>,
    status: LanguagePool,
}

impl Pool {
    pub(crate) fn new(settings: &PoolSettings) -> Pool {
        // This backend sends no primer.
        let waits = |language: &Language| language.parking.is_some_and(|parking| parking.primer.is_empty());
        let parkable = settings.languages.iter().filter(|(language, _, _)| waits(language));
        let languages =
            parkable.map(|(language, min, max)| LanguageContainers::new(*language, *min, *max)).collect();
        Pool {
            max_age: settings.max_age,
            limits: settings.limits,
            languages: Mutex::new(languages),
            changed: Notify::new(),
        }
    }

    /// The limits with which its containers are made.
    pub(crate) fn limits(&self) -> BoxLimits {
        self.limits
    }

    /// The maximum age of a parked container.
    pub(crate) fn max_age(&self) -> Duration {
        self.max_age
    }

    /// Takes one that was made from the same description, and says whether there was any.
    pub(crate) fn take(
        &self,
        language: Language,
        spec: &ContainerSpec,
        order: &StartProgram,
    ) -> Option<Parked> {
        let mut languages = self.lock();
        let of_language = languages.iter_mut().find(|of_language| of_language.status.language == language)?;
        let fits = |parked: &Parked| parked.spec == *spec && parked.order == *order;
        let found =
            of_language.ready.iter().position(|parked| fits(parked) && parked.since.elapsed() < self.max_age);
        match found {
            Some(_) => of_language.status.hits += 1,
            None if of_language.ready.is_empty() => {
                of_language.status.misses += 1;
                of_language.missed = Some(Instant::now());
            }
            None => of_language.status.unfit += 1,
        }
        self.changed.notify_one();
        found.and_then(|at| of_language.ready.remove(at))
    }

    /// A container that was taken had died while it was parked.
    pub(crate) fn count_loss(&self, language: Language) {
        self.change(language, |of_language| of_language.status.losses += 1);
    }

    /// The language for which to make the next one, if any; and those that are too old.
    pub(crate) fn review(&self) -> (Option<Language>, Vec<Parked>) {
        let mut languages = self.lock();
        let old = languages.iter_mut().flat_map(|of_language| of_language.discard(self.max_age)).collect();
        let next = languages.iter_mut().find(|of_language| of_language.wants_more()).map(|of_language| {
            of_language.status.booting += 1;
            of_language.status.language
        });
        (next, old)
    }

    /// One is ready, or could not be made.
    pub(crate) fn made(&self, language: Language, made: Result<Parked, BackendError>, took: Duration) {
        self.change(language, |of_language| {
            of_language.status.booting -= 1;
            match made {
                Ok(parked) => {
                    of_language.status.refills += 1;
                    of_language.status.refill_time += took;
                    (of_language.failed, of_language.status.problem) = (None, None);
                    of_language.ready.push_back(parked);
                }
                Err(error) => {
                    of_language.status.losses += 1;
                    of_language.failed = Some(Instant::now());
                    of_language.status.problem = Some(error.to_string());
                }
            }
        });
    }

    /// Waits until something may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes everything that is parked, and prevents more.
    pub(crate) fn empty(&self) -> Vec<Parked> {
        let mut languages = self.lock();
        let all =
            languages.iter_mut().flat_map(|of_language| std::mem::take(&mut of_language.ready)).collect();
        languages.clear();
        all
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let languages = self.lock().iter().map(LanguageContainers::status).collect();
        // Parked containers are limited by their own limits only.
        PoolStatus { memory_limit: 0, max_age: self.max_age, languages }
    }

    fn change(&self, language: Language, change: impl FnOnce(&mut LanguageContainers)) {
        if let Some(of_language) =
            self.lock().iter_mut().find(|of_language| of_language.status.language == language)
        {
            change(of_language);
        }
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LanguageContainers>> {
        // A panic while the lock was held cannot have left counts and containers inconsistent.
        self.languages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LanguageContainers {
    fn new(language: Language, min: usize, max: usize) -> LanguageContainers {
        let status = LanguagePool {
            language,
            ready: 0,
            booting: 0,
            min,
            max,
            target: min,
            hits: 0,
            misses: 0,
            unfit: 0,
            refills: 0,
            refill_time: Duration::ZERO,
            losses: 0,
            problem: None,
            oldest: None,
            memory: 0,
        };
        LanguageContainers { ready: VecDeque::new(), missed: None, failed: None, status }
    }

    /// More runs may follow one that found no parked container.
    fn target(&self) -> usize {
        let asked = self.missed.is_some_and(|at| at.elapsed() < MEMORY_OF_DEMAND);
        (self.status.min + usize::from(asked)).min(self.status.max)
    }

    fn wants_more(&self) -> bool {
        let pauses = self.failed.is_some_and(|at| at.elapsed() < TRY_AGAIN);
        !pauses && self.status.booting == 0 && self.ready.len() < self.target()
    }

    fn discard(&mut self, max_age: Duration) -> Vec<Parked> {
        let old = self.ready.iter().take_while(|parked| parked.since.elapsed() >= max_age).count();
        self.ready.drain(..old).collect()
    }

    fn status(&self) -> LanguagePool {
        LanguagePool {
            ready: self.ready.len(),
            target: self.target(),
            oldest: self.ready.front().map(|parked| parked.since.elapsed()),
            ..self.status.clone()
        }
    }
}

/// Whether a request could be run in a parked container at all, before one is looked at. If not, why.
pub(crate) fn could_suit(
    parking: &Parking,
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
) -> Result<(), &'static str> {
    let ExecutionSpec { source, files, args, .. } = execution;
    let total = source.text.len() + files.iter().map(|file| file.content.len()).sum::<usize>();
    let looked_for = |file: &InputFile| parking.has_looked_for(file.path.as_str());
    let obstacles = [
        (sandbox.workspace.is_some(), "a workspace is mounted while a container is made"),
        (sandbox.network != Network::None, "containers of the pool have no network"),
        (!args.is_empty(), "args are set when the runtime starts"),
        (!parking.primer.is_empty(), "its runtime cannot wait for code in a container"),
        (source.named_by_caller, "the file of the code has a name of its own"),
        (
            source.name.as_str() != parking.source,
            "the code is a module, which its runtime must know when it starts",
        ),
        (!parking.takes(&source.text), "the code cannot be read from a pipe, or is too long for it"),
        (files.iter().any(looked_for), "a file has a name that the runtime looks for when it starts"),
        (total > MOST_INPUT, "code and files have too many bytes for a container of the pool"),
    ];
    obstacles.into_iter().find(|(is_met, _)| *is_met).map_or(Ok(()), |(_, why)| Err(why))
}
