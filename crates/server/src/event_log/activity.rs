//! What the program did with its network: the last of it.

use std::collections::VecDeque;

use belljar_core::egress::NetworkEvent;

/// Events that are kept, and about what one takes: their texts have at most 255 characters.
const MOST: usize = 256;
const BYTES: usize = 640;

#[derive(Debug, Default)]
pub(super) struct Activity {
    last: VecDeque<NetworkEvent>,
    /// How many came before.
    before: u64,
}

impl Activity {
    pub(super) fn push(&mut self, event: NetworkEvent) {
        if self.last.len() == MOST {
            self.last.pop_front();
            self.before += 1;
        }
        self.last.push_back(event);
    }

    /// About how many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        self.last.len() * BYTES
    }

    /// The first event after a position, which moves beyond it. Those that are no longer there count as one.
    pub(super) fn after(&self, position: &mut u64) -> Option<NetworkEvent> {
        if *position < self.before {
            let missed = self.before - *position;
            *position = self.before;
            return Some(NetworkEvent::omitted(missed));
        }
        let at = usize::try_from(*position - self.before).ok()?;
        let event = self.last.get(at)?.clone();
        *position += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::egress::NetworkStep;

    #[test]
    fn the_last_events_are_kept_and_the_others_counted() {
        let event = |port: u16| {
            let (host, step) = ("a.org".to_owned(), NetworkStep::Allowed);
            NetworkEvent { host, port: Some(port), step, count: 1 }
        };
        let (mut activity, mut early) = (Activity::default(), 0);
        activity.push(event(1));
        assert_eq!(activity.after(&mut early), Some(event(1)));
        assert_eq!(activity.after(&mut early), None);
        (2..=1000).for_each(|port| activity.push(event(port)));
        assert_eq!(activity.bytes(), MOST * BYTES);
        let before = 1000 - MOST as u64;
        for (mut position, missed) in [(early, before - 1), (0, before)] {
            let heard: Vec<_> = std::iter::from_fn(|| activity.after(&mut position)).collect();
            assert_eq!(heard[0], NetworkEvent::omitted(missed));
            assert_eq!((heard.len(), heard.last()), (MOST + 1, Some(&event(1000))));
        }
    }
}
