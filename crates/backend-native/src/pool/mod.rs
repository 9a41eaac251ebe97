//! The warm pool. Taking a box is a matter of a lock. Making, replacing and destroying boxes happens in the
//! background, in one task ([`keep_up`]), which looks at the boxes whenever something has changed, and at intervals.
//!
//! A box is used once. A box that was taken never returns to the pool, unless nothing was done with it.

mod policy;
pub(crate) mod pressure;

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use belljar_core::limits::BoxLimits;
use belljar_core::pool::{LanguagePool, PoolStatus};
use tokio::sync::Notify;
use tokio::task::JoinError;

use crate::errors::setup;
use crate::load;
use crate::parked::Parked;
use crate::teardown;
pub use policy::Bounds;
use policy::{Demand, PRESUMED_MEMORY, Stock};

/// How often the boxes are checked when nothing happens: for boxes that have died or grown old.
pub(crate) const ROUND: Duration = Duration::from_millis(500);
/// How long boxes may take to be made or torn down after the pool was closed.
const CLOSING: Duration = Duration::from_secs(5);

/// The configuration of the pool.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The most memory that all parked boxes may use together, in bytes.
    pub memory: u64,
    /// The age at which a parked box is replaced.
    pub max_age: Duration,
    /// The limits with which a box is made: those of most requests.
    pub limits: BoxLimits,
    /// Modules that the zygote of a language imports before it forks.
    pub preload: Vec<(Language, Vec<String>)>,
    /// The languages, and how many boxes each may have.
    pub languages: Vec<(Language, Bounds)>,
}

/// The parked boxes. A clone refers to the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: u64,
    max_age: Duration,
    limits: BoxLimits,
    preload: Vec<(Language, Vec<String>)>,
    /// How many are made at a time.
    abreast: usize,
    boxes: Mutex<PoolBoxes>,
    changed: Notify,
    /// Whether the host is short of memory.
    pressed: AtomicBool,
}

#[derive(Debug)]
struct PoolBoxes {
    of: Vec<LanguageBoxes>,
    closed: bool,
}

/// The boxes of one language.
#[derive(Debug)]
struct LanguageBoxes {
    language: Language,
    bounds: Bounds,
    max_age: Duration,
    /// The oldest first.
    ready: VecDeque<Parked>,
    booting: usize,
    demand: Demand,
    typical_memory: u64,
    failures: u32,
    try_again: Option<Instant>,
    counted: Counted,
}

#[derive(Debug, Default)]
struct Counted {
    hits: u64,
    misses: u64,
    unfit: u64,
    refills: u64,
    refill_time: Duration,
    losses: u64,
    problem: Option<String>,
    zygote_problem: Option<String>,
}

impl Pool {
    pub(crate) fn new(settings: PoolSettings) -> Pool {
        let now = Instant::now();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let boxes_of = |(language, bounds)| LanguageBoxes::new(language, bounds, settings.max_age, now);
        let of = settings.languages.into_iter().map(boxes_of);
        Pool(Arc::new(Shared {
            memory: settings.memory,
            max_age: settings.max_age,
            limits: settings.limits,
            preload: settings.preload,
            abreast: cores,
            boxes: Mutex::new(PoolBoxes { of: of.collect(), closed: false }),
            changed: Notify::new(),
            pressed: AtomicBool::new(false),
        }))
    }

    /// The limits with which its boxes are made.
    pub(crate) fn limits(&self) -> BoxLimits {
        self.0.limits
    }

    /// What the zygote of a language imports.
    pub(crate) fn preload(&self, language: Language) -> &[String] {
        self.0.preload.iter().find(|(of, _)| *of == language).map_or(&[], |(_, modules)| modules)
    }

    /// The languages that have a pool, even one of size zero.
    pub(crate) fn languages(&self) -> Vec<Language> {
        self.lock().of.iter().map(|boxes| boxes.language).collect()
    }

    /// Whether no more boxes are made.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether this language has a pool.
    pub(crate) fn keeps(&self, language: Language) -> bool {
        self.lock().of_language(language).is_some()
    }

    /// Takes the box that has waited longest, but not too long.
    pub(crate) fn take(&self, language: Language) -> Option<Parked> {
        let mut pool = self.lock();
        let boxes = pool.of_language(language)?;
        let fresh = boxes.ready.iter().position(|parked| parked.age() < self.0.max_age)?;
        boxes.ready.remove(fresh)
    }

    /// Puts back a box that was only looked at.
    pub(crate) fn put_back(&self, language: Language, parked: Parked) {
        let mut pool = self.lock();
        if !pool.closed
            && let Some(boxes) = pool.of_language(language)
        {
            boxes.ready.push_front(parked);
            return;
        }
        drop(pool);
        bury(parked);
    }

    /// A run got a parked box.
    pub(crate) fn count_hit(&self, language: Language) {
        self.count(language, |boxes| {
            boxes.counted.hits += 1;
            boxes.demand.ask(Instant::now());
        });
        teardown::expect();
    }

    /// A run could have used a parked box, but there was none.
    pub(crate) fn count_miss(&self, language: Language) {
        self.count(language, |boxes| {
            boxes.counted.misses += 1;
            boxes.demand.ask(Instant::now());
        });
        teardown::expect();
    }

    /// A run wanted something that no parked box has.
    pub(crate) fn count_unfit(&self, language: Language) {
        self.count(language, |boxes| boxes.counted.unfit += 1);
    }

    /// Destroys a box that is of no more use.
    pub(crate) fn discard(&self, parked: Parked) {
        bury(parked);
        self.0.changed.notify_one();
    }

    /// A box died while it waited.
    pub(crate) fn lose(&self, language: Language, parked: Parked) {
        self.count(language, |boxes| boxes.counted.losses += 1);
        bury(parked);
    }

    /// Every box of this language is out of date: its runtime has changed.
    pub(crate) fn clear(&self, language: Language) {
        let old = self.lock().of_language(language).map(|boxes| mem::take(&mut boxes.ready));
        old.into_iter().flatten().for_each(bury);
        self.0.changed.notify_one();
    }

    /// The same, unless they are all still current.
    pub(crate) fn clear_unless(&self, language: Language, of_use: impl Fn(&Parked) -> bool) {
        if self.lock().of_language(language).is_some_and(|boxes| !boxes.ready.iter().all(&of_use)) {
            self.clear(language);
        }
    }

    /// Records that a language has a zygote now, or why it has none.
    pub(crate) fn note_zygote(&self, language: Language, problem: Option<&BackendError>) {
        self.note_unforked(language, problem.map(told));
    }

    /// The same for a reason that is no error.
    pub(crate) fn note_unforked(&self, language: Language, problem: Option<String>) {
        let problem = problem.map(|text| text + "; each parked box boots its own runtime");
        if let Some(boxes) = self.lock().of_language(language) {
            warn_of(language, boxes.counted.zygote_problem.as_ref(), problem.as_ref());
            boxes.counted.zygote_problem = problem;
        }
    }

    /// Records whether the host is short of memory. While it is, no boxes are made, and only the configured minimum is
    /// kept.
    pub(crate) fn note_pressure(&self, pressed: bool) {
        if self.0.pressed.swap(pressed, Ordering::Relaxed) != pressed {
            self.0.changed.notify_one();
        }
    }

    /// Whether it is.
    pub(crate) fn is_pressed(&self) -> bool {
        self.0.pressed.load(Ordering::Relaxed)
    }

    /// The state of the pool.
    pub(crate) fn status(&self) -> PoolStatus {
        let (now, pressed) = (Instant::now(), self.is_pressed());
        let languages = self.lock().of.iter().map(|boxes| boxes.status(now, pressed)).collect();
        PoolStatus { memory_limit: self.0.memory, max_age: self.0.max_age, languages }
    }

    /// Destroys every box, and prevents new ones.
    pub(crate) async fn close(&self) {
        let boxes: Vec<Parked> = {
            let mut pool = self.lock();
            pool.closed = true;
            pool.of.iter_mut().flat_map(|boxes| mem::take(&mut boxes.ready)).collect()
        };
        self.0.changed.notify_one();
        teardown::expect();
        let graves: Vec<_> =
            boxes.into_iter().map(|parked| tokio::task::spawn_blocking(move || drop(parked))).collect();
        for grave in graves {
            // This fails only if destroying a box panicked; the others must still be waited for.
            let _ = grave.await;
        }
        let settled = async { tokio::join!(self.nothing_boots(), teardown::all_torn_down()) };
        let _ = tokio::time::timeout(CLOSING, settled).await;
    }

    async fn nothing_boots(&self) {
        while self.lock().of.iter().any(|boxes| boxes.booting > 0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn count(&self, language: Language, change: impl FnOnce(&mut LanguageBoxes)) {
        if let Some(boxes) = self.lock().of_language(language) {
            change(boxes);
        }
        self.0.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, PoolBoxes> {
        // A panic while the lock was held cannot have left counts and boxes inconsistent.
        self.0.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes boxes that are dead, old or surplus, and says for which languages boxes are to be made now.
    fn review(&self) -> Review {
        let now = Instant::now();
        let mut pool = self.lock();
        if pool.closed {
            return Review { gone: Vec::new(), to_make: Vec::new(), closed: true };
        }
        let mut gone: Vec<_> = pool.of.iter_mut().flat_map(|boxes| boxes.discard(now)).collect();
        let mut to_make = Vec::new();
        let memory = policy::budget(self.0.memory, self.is_pressed());
        while let Some(next) = policy::next(&pool.stocks(now), memory, self.0.abreast) {
            pool.of[next].booting += 1;
            to_make.push(pool.of[next].language);
        }
        while let Some(excess) = policy::excess(&pool.stocks(now), memory) {
            gone.extend(pool.of[excess].ready.pop_front());
        }
        Review { gone, to_make, closed: false }
    }

    /// Whether a language that should have a box has none at all.
    fn lacks_any(&self) -> bool {
        let now = Instant::now();
        self.lock().of.iter().any(|boxes| boxes.ready.is_empty() && boxes.stock(now).target > 0)
    }

    /// A box is ready, or could not be made.
    fn made(&self, language: Language, made: Result<Parked, BackendError>, took: Duration) {
        let mut pool = self.lock();
        let closed = pool.closed;
        let Some(boxes) = pool.of_language(language) else { return };
        boxes.booting -= 1;
        let spare = match made {
            Ok(parked) if closed => Some(parked),
            Ok(parked) => {
                boxes.stack(parked, took);
                None
            }
            Err(error) => {
                boxes.fail(&error);
                None
            }
        };
        drop(pool);
        spare.into_iter().for_each(bury);
        self.0.changed.notify_one();
    }
}

/// Keeps the pool at its target, until it is closed. `make` makes one box.
pub(crate) async fn keep_up<F>(pool: Pool, make: impl Fn(Language) -> F)
where
    F: Future<Output = Result<Parked, BackendError>> + Send + 'static,
{
    loop {
        let Review { gone, to_make, closed } = pool.review();
        if closed {
            return;
        }
        gone.into_iter().for_each(bury);
        for language in to_make {
            let (pool, making) = (pool.clone(), make(language));
            tokio::spawn(async move {
                let began = Instant::now();
                // A separate task, so that one which panics is still counted as ended.
                let made = tokio::spawn(making).await.unwrap_or_else(|lost| Err(failed(lost)));
                pool.made(language, made, began.elapsed());
            });
        }
        tokio::select! {
            () = pool.0.changed.notified() => {}
            () = tokio::time::sleep(ROUND) => {}
        }
        // More requests may follow the last one, and a refill would slow them down.
        if !pool.lacks_any() {
            load::quiet().await;
        }
    }
}

/// The result of checking the boxes.
struct Review {
    gone: Vec<Parked>,
    to_make: Vec<Language>,
    closed: bool,
}

impl PoolBoxes {
    fn stocks(&self, now: Instant) -> Vec<Stock> {
        self.of.iter().map(|boxes| boxes.stock(now)).collect()
    }

    fn of_language(&mut self, language: Language) -> Option<&mut LanguageBoxes> {
        self.of.iter_mut().find(|boxes| boxes.language == language)
    }
}

impl LanguageBoxes {
    fn new(language: Language, bounds: Bounds, max_age: Duration, now: Instant) -> LanguageBoxes {
        LanguageBoxes {
            language,
            bounds,
            max_age,
            ready: VecDeque::new(),
            booting: 0,
            demand: Demand::none(now),
            typical_memory: PRESUMED_MEMORY,
            failures: 0,
            try_again: None,
            counted: Counted::default(),
        }
    }

    fn stack(&mut self, parked: Parked, took: Duration) {
        self.typical_memory = parked.memory();
        self.counted.refills += 1;
        self.counted.refill_time += took;
        self.counted.problem = None;
        self.failures = 0;
        self.try_again = None;
        self.ready.push_back(parked);
    }

    fn fail(&mut self, error: &BackendError) {
        self.failures = self.failures.saturating_add(1);
        self.try_again = Some(Instant::now() + policy::pause_after(self.failures));
        self.counted.losses += 1;
        let problem = Some(told(error));
        // That a language is not installed is for `belljar languages` to tell.
        if !matches!(error, BackendError::RuntimeMissing { .. }) {
            warn_of(self.language, self.counted.problem.as_ref(), problem.as_ref());
        }
        self.counted.problem = problem;
    }

    /// Takes out boxes that are dead, too old, or surplus.
    fn discard(&mut self, now: Instant) -> Vec<Parked> {
        let mut gone = Vec::new();
        for mut parked in mem::take(&mut self.ready) {
            if parked.lives() {
                self.ready.push_back(parked);
            } else {
                gone.push(parked);
            }
        }
        self.counted.losses += gone.len() as u64;
        while let Some(old) = self.ready.pop_front_if(|parked| parked.age() >= self.max_age) {
            gone.push(old);
        }
        let surplus = policy::surplus(&self.stock(now));
        gone.extend(self.ready.drain(..surplus));
        gone
    }

    fn stock(&self, now: Instant) -> Stock {
        let old = policy::aging_at(self.max_age);
        Stock {
            min: self.bounds.min,
            target: self.demand.target(self.bounds, now),
            ready: self.ready.len(),
            aging: self.ready.iter().take_while(|parked| parked.age() >= old).count(),
            booting: self.booting,
            memory: self.memory(),
            typical_memory: self.typical_memory,
            may_try: self.try_again.is_none_or(|at| at <= now),
        }
    }

    fn problem(&self, pressed: bool) -> Option<String> {
        let short =
            || pressed.then(|| "this host is short of memory, so no boxes are being parked".to_owned());
        let Counted { problem, zygote_problem, .. } = &self.counted;
        problem.clone().or_else(|| zygote_problem.clone()).or_else(short)
    }

    fn memory(&self) -> u64 {
        self.ready.iter().map(Parked::memory).sum()
    }

    fn status(&self, now: Instant, pressed: bool) -> LanguagePool {
        let Counted { hits, misses, unfit, refills, refill_time, losses, .. } = &self.counted;
        LanguagePool {
            language: self.language,
            ready: self.ready.len(),
            booting: self.booting,
            min: self.bounds.min,
            max: self.bounds.max,
            target: self.stock(now).target,
            hits: *hits,
            misses: *misses,
            unfit: *unfit,
            refills: *refills,
            refill_time: *refill_time,
            losses: *losses,
            problem: self.problem(pressed),
            oldest: self.ready.front().map(Parked::age),
            memory: self.memory(),
        }
    }
}

/// An error with its chain of causes.
/// Tells the operator of a problem when it is new: it is tried again, and fails again, for as long as the server runs.
fn warn_of(language: Language, known: Option<&String>, problem: Option<&String>) {
    if let Some(problem) = problem.filter(|problem| known != Some(problem)) {
        tracing::warn!(%language, "the warm pool is not what was configured: {problem}");
    }
}

fn told(error: &BackendError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn failed(lost: JoinError) -> BackendError {
    setup("make a parked box")(std::io::Error::other(lost))
}

/// Destroys a box in the background, because it takes a moment.
fn bury(parked: Parked) {
    match tokio::runtime::Handle::try_current() {
        Ok(threads) => drop(threads.spawn_blocking(move || drop(parked))),
        Err(_) => drop(parked),
    }
}
