//! When to do what nobody waits for: making boxes that will be wanted later, and taking apart those that were used.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long no run may have begun, for it to be quiet.
const QUIET: Duration = Duration::from_millis(3);
/// How long to wait for that: under load that lasts, it never is.
const PATIENCE: Duration = Duration::from_millis(250);

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When the last run began, in microseconds since then.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A run begins.
pub(crate) fn run_begins() {
    LAST.store(micros_since_origin(), Ordering::Relaxed);
}

/// Waits until it is quiet, or until it has waited long enough.
pub(crate) async fn quiet() {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let idle = Duration::from_micros(micros_since_origin().saturating_sub(LAST.load(Ordering::Relaxed)));
        if idle >= QUIET {
            return;
        }
        tokio::time::sleep(QUIET.saturating_sub(idle)).await;
    }
}

fn micros_since_origin() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_micros()).unwrap_or(u64::MAX)
}
