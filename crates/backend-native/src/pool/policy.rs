//! How many boxes are parked, as pure arithmetic.

use std::time::{Duration, Instant};

/// How many boxes of one language may be parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How many there are without demand.
    pub min: usize,
    /// How many there are at most.
    pub max: usize,
}

/// How fast demand fades: after this time, a request counts for a third.
const MEMORY_OF_DEMAND: Duration = Duration::from_secs(20);
/// The memory that a box is assumed to need before one was measured.
pub(super) const PRESUMED_MEMORY: u64 = 16 << 20;

/// Recent demand: a count of requests in which each fades with time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    count: f64,
    at: Instant,
}

impl Demand {
    pub(super) fn none(now: Instant) -> Demand {
        Demand { count: 0.0, at: now }
    }

    pub(super) fn ask(&mut self, now: Instant) {
        *self = Demand { count: self.at(now) + 1.0, at: now };
    }

    fn at(self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at);
        self.count * (-passed.as_secs_f64() / MEMORY_OF_DEMAND.as_secs_f64()).exp()
    }

    /// How many boxes to park: as many as were recently asked for, so that the next burst finds them.
    pub(super) fn target(self, bounds: Bounds, now: Instant) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "no count is negative, and one that is too large is cut to the bounds"
        )]
        let wanted = self.at(now).round() as usize;
        wanted.clamp(bounds.min, bounds.max.max(bounds.min))
    }
}

/// What is known about the boxes of one language.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stock {
    pub(super) min: usize,
    pub(super) target: usize,
    pub(super) ready: usize,
    /// Of those that are ready, the ones that will soon be too old.
    pub(super) aging: usize,
    pub(super) booting: usize,
    /// The memory of those that are ready, in bytes.
    pub(super) memory: u64,
    /// The memory that one more is likely to need.
    pub(super) typical_memory: u64,
    /// Whether a box may be made at all: after a failure, not at once.
    pub(super) may_try: bool,
}

impl Stock {
    /// A box that will soon be too old does not count, so that its replacement exists before it goes; then it is
    /// surplus.
    fn has(&self) -> usize {
        self.ready.saturating_sub(self.aging) + self.booting
    }

    fn committed(&self) -> u64 {
        self.memory + self.typical_memory * self.booting as u64
    }

    /// The memory of the configured minimum, as far as those boxes exist.
    fn committed_to_minimum(&self) -> u64 {
        self.typical_memory * self.has().min(self.min) as u64
    }

    fn is_below_minimum(&self) -> bool {
        self.has() < self.min
    }
}

/// The memory that all boxes together may use. If the host is short of memory it is zero: none is made, and only the
/// minimum is kept.
pub(super) fn budget(memory: u64, pressed: bool) -> u64 {
    if pressed { 0 } else { memory }
}

/// For which language to make the next box, if any: first where the minimum is not reached, then where most are
/// missing; as long as no more than `abreast` are being made, and memory lasts. If a burst of one language has used the
/// budget, the minimum of another is still made; [`excess`] then takes memory back.
pub(super) fn next(stocks: &[Stock], memory: u64, abreast: usize) -> Option<usize> {
    let booting: usize = stocks.iter().map(|stock| stock.booting).sum();
    let committed: u64 = stocks.iter().map(Stock::committed).sum();
    let to_minimum: u64 = stocks.iter().map(Stock::committed_to_minimum).sum();
    if booting >= abreast {
        return None;
    }
    let affordable = |stock: &Stock| {
        let counted = if stock.is_below_minimum() { to_minimum } else { committed };
        counted.saturating_add(stock.typical_memory) <= memory
    };
    let lacking = stocks
        .iter()
        .enumerate()
        .filter(|(_, stock)| stock.may_try && stock.has() < stock.target && affordable(stock));
    lacking
        .max_by_key(|(_, stock)| (stock.is_below_minimum(), stock.target - stock.has()))
        .map(|(index, _)| index)
}

/// From which language to remove a box because all together use too much memory, if any: the one that is furthest above
/// its minimum.
pub(super) fn excess(stocks: &[Stock], memory: u64) -> Option<usize> {
    let committed: u64 = stocks.iter().map(Stock::committed).sum();
    let beyond = |stock: &Stock| stock.ready.saturating_sub(stock.min);
    let most = stocks.iter().enumerate().max_by_key(|(_, stock)| beyond(stock))?;
    (committed > memory && beyond(most.1) > 0).then_some(most.0)
}

/// The age at which a box with this maximum age is to be replaced.
pub(super) fn aging_at(max_age: Duration) -> Duration {
    max_age / 10 * 9
}

/// How many parked boxes are beyond the target.
pub(super) fn surplus(stock: &Stock) -> usize {
    stock.ready.saturating_sub(stock.target)
}

/// How long to pause a language after so many failures in a row.
pub(super) fn pause_after(failures: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(60);
    Duration::from_millis(100).saturating_mul(2_u32.saturating_pow(failures.min(16))).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { min: 1, max: 64 };

    fn stock(target: usize, ready: usize, booting: usize) -> Stock {
        let (memory, typical_memory) = ((ready as u64) << 20, 1 << 20);
        Stock { min: 1, target, ready, aging: 0, booting, memory, typical_memory, may_try: true }
    }

    #[test]
    fn a_burst_raises_the_target_and_quiet_lowers_it_to_the_minimum() {
        let began = Instant::now();
        let mut demand = Demand::none(began);
        assert_eq!(demand.target(BOUNDS, began), 1);
        (0..40).for_each(|_| demand.ask(began));
        assert_eq!(demand.target(BOUNDS, began), 40);
        let soon = began + Duration::from_secs(5);
        assert!((25..40).contains(&demand.target(BOUNDS, soon)));
        assert_eq!(demand.target(BOUNDS, began + Duration::from_secs(600)), 1);
    }

    #[test]
    fn the_target_stays_within_its_bounds() {
        let now = Instant::now();
        let mut demand = Demand::none(now);
        (0..1000).for_each(|_| demand.ask(now));
        assert_eq!(demand.target(BOUNDS, now), 64);
        assert_eq!(demand.target(Bounds { min: 0, max: 0 }, now), 0);
        assert_eq!(Demand::none(now).target(Bounds { min: 3, max: 1 }, now), 3);
    }

    #[test]
    fn what_is_below_its_minimum_comes_first_then_what_lacks_most() {
        assert_eq!(next(&[stock(9, 1, 0), stock(1, 0, 0)], 1 << 30, 2), Some(1));
        assert_eq!(next(&[stock(4, 1, 0), stock(9, 1, 0)], 1 << 30, 2), Some(1));
        assert_eq!(next(&[stock(1, 1, 0), stock(2, 1, 1)], 1 << 30, 2), None);
    }

    #[test]
    fn no_more_are_made_at_a_time_than_allowed_and_none_beyond_the_memory() {
        assert_eq!(next(&[stock(9, 0, 2)], 1 << 30, 2), None);
        assert_eq!(next(&[stock(9, 3, 0)], 3 << 20, 2), None);
        assert_eq!(next(&[stock(9, 2, 0)], 3 << 20, 2), Some(0));
        assert_eq!(next(&[stock(9, 1, 1)], 2 << 20, 2), None, "one that boots has its share");
    }

    #[test]
    fn a_burst_of_one_language_does_not_keep_another_from_its_minimum() {
        let (burst, empty) = (stock(9, 9, 0), stock(1, 0, 0));
        assert_eq!(next(&[burst, empty], 9 << 20, 2), Some(1));
        assert_eq!(next(&[stock(10, 9, 0), stock(1, 1, 0)], 10 << 20, 2), None, "the control");
        let full = [burst, stock(1, 0, 1)];
        assert_eq!(excess(&full, 9 << 20), Some(0));
        assert_eq!(excess(&full, 10 << 20), None);
        assert_eq!(excess(&[stock(1, 1, 0), stock(1, 1, 0)], 1 << 20), None, "minima are not given up");
    }

    #[test]
    fn where_memory_is_short_none_is_made_and_the_minimum_stays() {
        let (burst, empty) = (stock(9, 3, 0), stock(1, 0, 0));
        let (plenty, none) = (budget(1 << 30, false), budget(1 << 30, true));
        assert_eq!(
            (next(&[burst, empty], plenty, 2), excess(&[burst], plenty)),
            (Some(1), None),
            "the control"
        );
        assert_eq!((next(&[burst, empty], none, 2), excess(&[burst], none)), (None, Some(0)));
        assert_eq!(excess(&[stock(9, 1, 0)], none), None);
    }

    #[test]
    fn what_failed_is_left_alone_for_longer_each_time() {
        assert_eq!(next(&[Stock { may_try: false, ..stock(9, 0, 0) }], 1 << 30, 2), None);
        assert!(pause_after(1) < pause_after(4));
        assert_eq!(pause_after(u32::MAX), Duration::from_secs(60));
    }

    #[test]
    fn what_is_soon_too_old_is_replaced_before_it_goes() {
        let old = Stock { aging: 1, ..stock(1, 1, 0) };
        assert_eq!((next(&[old], 1 << 30, 2), surplus(&old)), (Some(0), 0));
        let replaced = Stock { aging: 1, ..stock(1, 2, 0) };
        assert_eq!((next(&[replaced], 1 << 30, 2), surplus(&replaced)), (None, 1));
        assert!(aging_at(Duration::from_secs(10)) < Duration::from_secs(10));
    }

    #[test]
    fn more_than_the_target_is_surplus() {
        assert_eq!(surplus(&stock(2, 5, 0)), 3);
        assert_eq!(surplus(&stock(5, 2, 0)), 0);
    }
}
