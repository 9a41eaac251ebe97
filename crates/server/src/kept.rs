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
    bytes: usize,
}

impl<T: Clone> Kept<T> {
    pub(crate) fn new(keep: Keep) -> Kept<T> {
        Kept { keep, things: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// Keeps a thing of about this size, for as long as there is room. A name is given once.
    pub(crate) fn put(&mut self, name: String, value: T, bytes: usize, now: Instant) {
        self.bytes += bytes;
        self.things.insert(name.clone(), Thing { value, bytes });
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
            let Some((_, name)) = self.order.pop_front() else { return };
            if let Some(thing) = self.things.remove(&name) {
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
    fn nothing_is_kept_for_ever() {
        let (now, mut kept) = (Instant::now(), Kept::new(KEEP));
        kept.put("0".into(), 0, 1, now);
        kept.put("1".into(), 1, 1, now + Duration::from_secs(30));
        assert_eq!(names(&mut kept, now + Duration::from_secs(61)), [1]);
    }
}
