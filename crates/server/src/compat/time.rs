//! How long things may take, and how that is told.

use std::time::Duration;

use belljar_core::allowance::Ceilings;

/// What a stage may take if the client does not say: what Belljar grants everybody.
pub(super) const USUAL: Duration = Duration::from_secs(10);
/// The longest that anything may take, where the caller has no ceiling.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// This much, unless the caller may have less.
pub(super) fn unless_less(time: Duration, ceilings: &Ceilings) -> Duration {
    ceilings.timeout.map_or(time, |ceiling| ceiling.min(time))
}

/// What a compiler may take if the client does not say.
pub(super) fn usual_for_compiler(ceilings: &Ceilings) -> Duration {
    ceilings.of_compile_timeout().map_or(USUAL, |ceiling| ceiling.min(USUAL))
}

/// In milliseconds; one that was begun counts.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}
