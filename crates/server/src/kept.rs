//! Results that somebody may still come back for: bounded by number, by size and by age, the oldest going first.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::config::Keep;

/// Things that are kept by name.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    keep: Keep,
    things: HashMap<String, Thing<T>>,
    /// Oldest first.
    order: VecDeque<(Instant, String)>,
    bytes: usize,
}

#[derive(Debug)]
struct Thing<T> {
    value: T,
    since: Instant,
    bytes: usize,
}

impl<T: Clone> Kept<T> {
    pub(crate) fn new(keep: Keep) -> Kept<T> {
        Kept { keep, things: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// Keeps a thing of about this size, for as long as there is room. One that had the name before is forgotten.
    pub(crate) fn put(&mut self, name: String, value: T, bytes: usize, now: Instant) {
        self.bytes += bytes;
        if let Some(former) = self.things.insert(name.clone(), Thing { value, since: now, bytes }) {
            self.bytes -= former.bytes;
        }
        self.order.push_back((now, name));
        self.forget(now);
    }

    pub(crate) fn get(&mut self, name: &str, now: Instant) -> Option<T> {
        self.forget(now);
        self.things.get(name).map(|thing| thing.value.clone())
    }

    /// Lets go of what is too old or too much.
    pub(crate) fn forget(&mut self, now: Instant) {
        while let Some((since, _)) = self.order.front() {
            let old = now.saturating_duration_since(*since) > self.keep.age;
            if !old && self.bytes <= self.keep.bytes && self.things.len() <= self.keep.runs {
                return;
            }
            let Some((since, name)) = self.order.pop_front() else { return };
            // The name may have been given anew since then.
            if self.things.get(&name).is_some_and(|thing| thing.since == since)
                && let Some(thing) = self.things.remove(&name)
            {
                self.bytes -= thing.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const KEEP: Keep = Keep { runs: 3, bytes: 100, age: Duration::from_secs(60) };

    fn names(kept: &mut Kept<u8>, now: Instant) -> Vec<u8> {
        (0..10).filter(|name| kept.get(&name.to_string(), now).is_some()).collect()
    }

    #[test]
    fn the_oldest_go_first_when_there_are_too_many_or_they_are_too_large() {
        let (now, mut kept) = (Instant::now(), Kept::new(KEEP));
        for name in 0..5u8 {
            kept.put(name.to_string(), name, 10, now);
        }
        assert_eq!(names(&mut kept, now), [2, 3, 4]);
        kept.put("5".into(), 5, 90, now);
        assert_eq!(names(&mut kept, now), [4, 5]);
        kept.put("6".into(), 6, 101, now);
        assert!(names(&mut kept, now).is_empty());
        assert_eq!((kept.bytes, kept.order.len()), (0, 0));
    }

    #[test]
    fn a_name_that_is_given_anew_lives_as_long_as_its_last_thing() {
        let (now, mut kept) = (Instant::now(), Kept::new(KEEP));
        kept.put("0".into(), 0, 10, now);
        kept.put("0".into(), 9, 20, now + Duration::from_secs(30));
        assert_eq!(kept.get("0", now + Duration::from_secs(61)), Some(9));
        assert_eq!(kept.bytes, 20);
        assert_eq!(kept.get("0", now + Duration::from_secs(91)), None);
        assert_eq!(kept.bytes, 0);
    }

    #[test]
    fn nothing_is_kept_for_ever() {
        let (now, mut kept) = (Instant::now(), Kept::new(KEEP));
        kept.put("0".into(), 0, 1, now);
        kept.put("1".into(), 1, 1, now + Duration::from_secs(30));
        assert_eq!(names(&mut kept, now + Duration::from_secs(61)), [1]);
    }
}
