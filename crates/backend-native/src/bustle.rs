//! When to do what nobody waits for: making boxes that will be wanted later, and taking apart those that were used.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// For how long no run may have begun or ended, for it to be quiet.
pub(crate) const QUIET: Duration = Duration::from_millis(3);
/// The same while there are runs: those that have not ended by then are not about to.
const QUIET_BESIDE_RUNS: Duration = Duration::from_millis(30);
/// How long to wait for that: under load that lasts, it never is.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When a run has last begun or ended, in microseconds since then.
static LAST: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// A run, for as long as somebody waits for it.
#[derive(Debug)]
pub(crate) struct Waited(());

impl Waited {
    pub(crate) fn begin() -> Waited {
        RUNS.fetch_add(1, Ordering::Relaxed);
        LAST.store(micros_since_origin(), Ordering::Relaxed);
        Waited(())
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        RUNS.fetch_sub(1, Ordering::Release);
        LAST.store(micros_since_origin(), Ordering::Relaxed);
    }
}

/// Whether nobody waits for more than one run: then there are CPUs to spare.
pub(crate) fn is_about_one() -> bool {
    RUNS.load(Ordering::Relaxed) <= 1
}

/// Whether somebody waits for a run.
pub(crate) fn is_anybody_waiting() -> bool {
    RUNS.load(Ordering::Acquire) > 0
}

/// Whether nobody would notice what is done now.
pub(crate) fn is_quiet() -> bool {
    let wanted = if RUNS.load(Ordering::Relaxed) == 0 { QUIET } else { QUIET_BESIDE_RUNS };
    let idle = micros_since_origin().saturating_sub(LAST.load(Ordering::Relaxed));
    Duration::from_micros(idle) >= wanted
}

/// Waits until it is quiet, or until it has waited long enough.
pub(crate) async fn quiet() {
    let began = Instant::now();
    while began.elapsed() < PATIENCE && !is_quiet() {
        tokio::time::sleep(QUIET).await;
    }
}

fn micros_since_origin() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_micros()).unwrap_or(u64::MAX)
}
