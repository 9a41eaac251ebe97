//! What a box has used and tried in vain.

use std::time::Instant;

use belljar_core::egress::Reason;
use belljar_core::outcome::{DeniedHost, NetworkUse};

use crate::order::{EgressLimits, MAX_DENIED, plain};

/// Counts.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) used: NetworkUse,
    limits: EgressLimits,
}

impl Tally {
    pub(crate) fn new(limits: EgressLimits) -> Tally {
        Tally { used: NetworkUse::default(), limits }
    }

    /// Remembers a refusal. Those that come often are counted, and those that come late are not listed.
    pub(crate) fn refuse(&mut self, host: &str, port: Option<u16>, reason: Reason) {
        let (host, reason) = (plain(host), reason.text());
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
    }

    pub(crate) fn count_down(&mut self, bytes: usize) {
        self.used.down += bytes as u64;
    }

    /// Whether no more bytes may pass.
    pub(crate) fn is_spent(&self) -> bool {
        let over = |limit: Option<u64>, used| limit.is_some_and(|limit| used >= limit);
        over(self.limits.up, self.used.up) || over(self.limits.down, self.used.down)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn refusals_are_counted_and_their_list_is_bounded() {
        let mut tally = Tally::new(EgressLimits::default());
        for port in 1..1000 {
            tally.refuse("example.org", Some(port), Reason::NotAllowed);
            tally.refuse("evil.org", None, Reason::Denied);
        }
        assert_eq!(tally.used.denied.len(), MAX_DENIED);
        assert_eq!(tally.used.denied[1].count, 999);
    }

    #[test]
    fn bytes_run_out() {
        let mut tally = Tally::new(EgressLimits { up: Some(10), down: Some(20), ..EgressLimits::default() });
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
}
