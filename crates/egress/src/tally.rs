//! What a box has used and tried in vain.

use std::time::{Duration, Instant};

use belljar_core::egress::{NetworkStep, Reason};
use belljar_core::outcome::{DeniedHost, NetworkUse};

use crate::news::News;
use crate::order::{EgressLimits, MAX_DENIED, plain};

/// Counts.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) used: NetworkUse,
    /// What is told while it happens.
    pub(crate) news: News,
    limits: EgressLimits,
    /// How much may pass in either direction at the moment, if that is limited.
    up: Option<Throttle>,
    down: Option<Throttle>,
}

impl Tally {
    pub(crate) fn new(limits: EgressLimits, now: Instant) -> Tally {
        let throttle = limits.rate.map(|rate| Throttle::new(rate, now));
        Tally { used: NetworkUse::default(), news: News::new(), limits, up: throttle.clone(), down: throttle }
    }

    /// Remembers a refusal. Those that come often are counted, and those that come late are not listed.
    pub(crate) fn refuse(&mut self, host: &str, port: Option<u16>, reason: Reason) {
        let (host, reason) = (plain(host), reason.text());
        self.news.add(&host, port, NetworkStep::Refused(reason.clone()));
        let denied = &mut self.used.denied;
        let known =
            denied.iter().position(|one| (&one.host, one.port, &one.reason) == (&host, port, &reason));
        match known {
            Some(at) => denied[at].count += 1,
            None if denied.len() < MAX_DENIED => denied.push(DeniedHost { host, port, reason, count: 1 }),
            None => {}
        }
    }

    pub(crate) fn count_up(&mut self, bytes: usize) {
        self.used.up += bytes as u64;
        self.up.iter_mut().for_each(|throttle| throttle.spend(bytes as u64));
    }

    pub(crate) fn count_down(&mut self, bytes: usize) {
        self.used.down += bytes as u64;
        self.down.iter_mut().for_each(|throttle| throttle.spend(bytes as u64));
    }

    /// Takes note of the time, with which more may pass.
    pub(crate) fn refill(&mut self, now: Instant) {
        self.up.iter_mut().chain(&mut self.down).for_each(|throttle| throttle.refill(now));
    }

    /// Whether something may leave the box at the moment.
    pub(crate) fn may_send(&self) -> bool {
        self.up.as_ref().is_none_or(Throttle::is_open)
    }

    /// Whether something may come into it.
    pub(crate) fn may_receive(&self) -> bool {
        self.down.as_ref().is_none_or(Throttle::is_open)
    }

    /// How long it takes until something may pass that may not pass now.
    pub(crate) fn next_opening(&self) -> Option<Duration> {
        self.up.iter().chain(&self.down).filter_map(Throttle::closed_for).min()
    }

    /// Whether no more bytes may pass.
    pub(crate) fn is_spent(&self) -> bool {
        let over = |limit: Option<u64>, used| limit.is_some_and(|limit| used >= limit);
        over(self.limits.up, self.used.up) || over(self.limits.down, self.used.down)
    }
}

/// The shortest wait for a throttle: a clock does not pass in smaller steps.
const SOON: Duration = Duration::from_millis(1);

/// How often something may happen: a number in each second, and as many at once.
#[derive(Debug)]
pub(crate) struct Pace {
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Pace {
    pub(crate) fn new(per_second: u32, now: Instant) -> Pace {
        let per_second = f64::from(per_second);
        Pace { per_second, left: per_second, at: now }
    }

    /// Whether it may happen now.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.per_second);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

/// So many bytes in each second, and as many at once. Bytes are counted after they have passed, so that a piece need not be cut;
/// what was too much is missing afterwards.
#[derive(Debug, Clone)]
struct Throttle {
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Throttle {
    fn new(per_second: u64, now: Instant) -> Throttle {
        let per_second = per_second.max(1) as f64;
        Throttle { per_second, left: per_second, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.per_second);
        self.at = now;
    }

    fn spend(&mut self, bytes: u64) {
        self.left -= bytes as f64;
    }

    fn is_open(&self) -> bool {
        self.left >= 1.0
    }

    fn closed_for(&self) -> Option<Duration> {
        let missing = ((1.0 - self.left) / self.per_second).min(1.0);
        (!self.is_open()).then(|| Duration::from_secs_f64(missing).max(SOON))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_and_their_list_is_bounded() {
        let mut tally = Tally::new(EgressLimits::default(), Instant::now());
        for port in 1..1000 {
            tally.refuse("example.org", Some(port), Reason::NotAllowed);
            tally.refuse("evil.org", None, Reason::Denied);
        }
        assert_eq!(tally.used.denied.len(), MAX_DENIED);
        assert_eq!(tally.used.denied[1].count, 999);
    }

    #[test]
    fn bytes_run_out() {
        let limits = EgressLimits { up: Some(10), down: Some(20), ..EgressLimits::default() };
        let mut tally = Tally::new(limits, Instant::now());
        tally.count_up(9);
        tally.count_down(19);
        assert!(!tally.is_spent());
        tally.count_down(1);
        assert!(tally.is_spent());
    }

    #[test]
    fn a_pace_lets_so_many_pass_in_a_second() {
        let now = Instant::now();
        let mut pace = Pace::new(3, now);
        let passed = |pace: &mut Pace, now| (0..10).filter(|_| pace.take(now)).count();
        assert_eq!(passed(&mut pace, now), 3);
        assert_eq!(passed(&mut pace, now), 0);
        assert_eq!(passed(&mut pace, now + Duration::from_millis(700)), 2);
        assert_eq!(passed(&mut pace, now + Duration::from_secs(100)), 3);
    }
    #[test]
    fn so_many_bytes_pass_in_a_second_in_each_direction() {
        const RATE: u64 = 1 << 20;
        let began = Instant::now();
        let mut tally = Tally::new(EgressLimits { rate: Some(RATE), ..EgressLimits::default() }, began);
        // As fast as it may, in pieces, for ten seconds.
        for millisecond in 0..10_000 {
            tally.refill(began + Duration::from_millis(millisecond));
            while tally.may_send() {
                tally.count_up(64 << 10);
            }
        }
        let most = 11 * RATE + (64 << 10);
        assert!((10 * RATE..=most).contains(&tally.used.up), "{}", tally.used.up);
        assert!(tally.may_receive() && tally.used.down == 0, "the other direction has its own");
        assert!(tally.next_opening().is_some_and(|wait| wait >= SOON && wait <= Duration::from_secs(1)));
        // What it did not use is not saved up.
        tally.refill(began + Duration::from_secs(1000));
        assert!(tally.may_send() && tally.next_opening().is_none());
        tally.count_up(usize::try_from(RATE).unwrap());
        assert!(!tally.may_send());
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut tally = Tally::new(EgressLimits::default(), Instant::now());
        tally.count_up(usize::MAX / 2);
        tally.count_down(usize::MAX / 2);
        assert!(tally.may_send() && tally.may_receive() && tally.next_opening().is_none());
    }
}
