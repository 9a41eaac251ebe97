//! When to do background work: making boxes for later runs, and tearing down used ones.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// It is quiet when no run has begun or ended for this long.
pub(crate) const QUIET: Duration = Duration::from_millis(3);
/// The same while there are runs: those that have not ended by then are not about to.
const QUIET_BESIDE_RUNS: Duration = Duration::from_millis(30);
/// How long to wait for quiet: under lasting load it never comes.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When a run last began or ended, in microseconds since `ORIGIN`.
static LAST: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// A run that a caller is waiting for.
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

/// Whether at most one run is being waited for: then there are CPUs to spare.
pub(crate) fn is_about_one() -> bool {
    RUNS.load(Ordering::Relaxed) <= 1
}

/// Whether any run is being waited for.
pub(crate) fn is_anybody_waiting() -> bool {
    RUNS.load(Ordering::Acquire) > 0
}

/// Whether background work would delay no run now.
pub(crate) fn is_quiet() -> bool {
    let wanted = if RUNS.load(Ordering::Relaxed) == 0 { QUIET } else { QUIET_BESIDE_RUNS };
    let idle = micros_since_origin().saturating_sub(LAST.load(Ordering::Relaxed));
    Duration::from_micros(idle) >= wanted
}

/// Waits until it is quiet, but no longer than `PATIENCE`.
pub(crate) async fn quiet() {
    let began = Instant::now();
    while began.elapsed() < PATIENCE && !is_quiet() {
        tokio::time::sleep(QUIET).await;
    }
}

fn micros_since_origin() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_micros()).unwrap_or(u64::MAX)
}
