//! What is told about connections while they happen.
//!
//! A box may make thousands of connections in a second, and its parent may be busy. So nothing here grows with what the box
//! does, and nothing waits for the parent: of what cannot be told at once, events of the same kind become one with a count, and
//! what is left over is only counted.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_core::egress::{NetworkEvent, NetworkStep};
use belljar_jail::message;

use crate::order::{self, plain};
use crate::tally::Pace;

/// The most kinds of events that wait to be told.
pub(crate) const MAX_WAITING: usize = 64;
/// The most events that are told in a second, and at once.
const PER_SECOND: u32 = 50;
/// How long events wait for their turn before it is looked again whether they may be told.
const INTERVAL: Duration = Duration::from_millis(50);

/// Events that have not been told yet.
#[derive(Debug)]
pub(crate) struct News {
    waiting: VecDeque<NetworkEvent>,
    omitted: u64,
    pace: Option<Pace>,
}

impl News {
    pub(crate) fn new() -> News {
        News { waiting: VecDeque::new(), omitted: 0, pace: None }
    }

    pub(crate) fn add(&mut self, host: &str, port: Option<u16>, step: NetworkStep) {
        let mut event = NetworkEvent { host: plain(host), port, step, count: 1 };
        for earlier in &mut self.waiting {
            match earlier.join(event) {
                Ok(()) => return,
                Err(other) => event = other,
            }
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(event);
        } else {
            self.omitted += 1;
        }
    }

    /// When to look again, if there is something to tell.
    pub(crate) fn interval(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(INTERVAL)
    }

    /// Tells the parent what may be told now. If the parent takes no more, the rest waits.
    pub(crate) fn tell(&mut self, parent: &OwnedFd, now: Instant) {
        self.pass_on(now, |text| message::send_at_once(parent, text, &[]).is_ok());
    }

    fn pass_on(&mut self, now: Instant, mut send: impl FnMut(&String) -> bool) {
        if self.waiting.is_empty() {
            return;
        }
        let pace = self.pace.get_or_insert_with(|| Pace::new(PER_SECOND, now));
        while let Some(event) = self.waiting.front() {
            if !pace.take(now) || !send(&order::event_line(event)) {
                return;
            }
            self.waiting.pop_front();
        }
        if self.omitted > 0
            && pace.take(now)
            && send(&order::event_line(&NetworkEvent::omitted(self.omitted)))
        {
            self.omitted = 0;
        }
    }

    /// What has not been told, at the end.
    pub(crate) fn rest(&mut self) -> Vec<NetworkEvent> {
        let mut rest: Vec<_> = self.waiting.drain(..).collect();
        if self.omitted > 0 {
            rest.push(NetworkEvent::omitted(std::mem::take(&mut self.omitted)));
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(news: &mut News, now: Instant) -> Vec<NetworkEvent> {
        let mut told = Vec::new();
        news.pass_on(now, |line| {
            told.extend(order::read_event(line));
            true
        });
        told
    }

    fn refused(why: &str) -> NetworkStep {
        NetworkStep::Refused(why.to_owned())
    }

    #[test]
    fn what_waits_is_joined_and_nothing_grows() {
        let (mut news, now) = (News::new(), Instant::now());
        for port in 0..10_000 {
            news.add("evil.org", Some(80), refused("not allowed"));
            news.add("evil.org", Some(1000 + port), NetworkStep::Allowed);
            news.add("evil.org", Some(80), NetworkStep::Closed { up: 1, down: 2 });
        }
        assert_eq!(news.waiting.len(), MAX_WAITING);
        let told = told(&mut news, now);
        assert_eq!(told.len(), PER_SECOND as usize, "no more in a second");
        let first = NetworkEvent {
            host: "evil.org".into(),
            port: Some(80),
            step: refused("not allowed"),
            count: 10_000,
        };
        assert_eq!(told[0], first);
        assert_eq!(told[2].step, NetworkStep::Closed { up: 10_000, down: 20_000 });
        let rest = news.rest();
        assert_eq!(rest.len(), MAX_WAITING - told.len() + 1);
        let counted: u64 = told.iter().chain(&rest).map(|event| event.count).sum();
        assert_eq!(counted, 30_000, "each is told or counted");
        assert_eq!(rest.last().unwrap().step, NetworkStep::Omitted);
        assert!(news.rest().is_empty());
    }

    #[test]
    fn a_pace_is_kept_and_what_is_left_out_is_counted_when_there_is_time() {
        let (mut news, mut now) = (News::new(), Instant::now());
        (0..200).for_each(|port| news.add("a.org", Some(port), NetworkStep::Allowed));
        assert_eq!(told(&mut news, now).len(), 50);
        assert!(told(&mut news, now).is_empty() && news.interval().is_some());
        now += Duration::from_millis(100);
        assert_eq!(told(&mut news, now).len(), 5);
        now += Duration::from_secs(1);
        let last = told(&mut news, now);
        assert_eq!(last.last(), Some(&NetworkEvent::omitted(200 - MAX_WAITING as u64)));
        assert!(news.interval().is_none() && news.rest().is_empty());
    }

    #[test]
    fn a_parent_that_takes_nothing_gets_it_later() {
        let (mut news, now) = (News::new(), Instant::now());
        news.add("a.org", Some(1), NetworkStep::Allowed);
        news.pass_on(now, |_| false);
        news.add("a.org", Some(1), NetworkStep::Allowed);
        let told = told(&mut news, now);
        assert_eq!((told.len(), told[0].count), (1, 2));
    }
}
