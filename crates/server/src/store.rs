//! Values that are kept for a while, such as results: bounded by number, by size and by age.
//!
//! There is one bound for all callers. When it is reached, the oldest value of the caller that has the most is dropped: a
//! caller that keeps to its share loses nothing to others, and one that is alone has everything.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::config::Keep;

/// Values that are kept by name, for each caller its own.
#[derive(Debug)]
pub(crate) struct Store<T> {
    keep: Keep,
    /// By the caller's name. There are no more of them than callers.
    shelves: HashMap<String, Shelf<T>>,
    /// The turn of the next thing.
    next: u64,
}

#[derive(Debug)]
struct Shelf<T> {
    things: HashMap<String, Thing<T>>,
    /// Names by their turn: the oldest first.
    order: BTreeMap<u64, String>,
    bytes: usize,
}

#[derive(Debug)]
struct Thing<T> {
    value: T,
    turn: u64,
    since: Instant,
    bytes: usize,
}

impl<T: Clone> Store<T> {
    pub(crate) fn new(keep: Keep) -> Store<T> {
        Store { keep, shelves: HashMap::new(), next: 0 }
    }

    /// Keeps a thing of about this size, for as long as there is room, and until it is too old at some time after `since`.
    /// One that had the name before is forgotten. What is larger than all the room there is leaves the others alone.
    pub(crate) fn put(&mut self, owner: &str, name: String, value: T, bytes: usize, since: Instant) {
        let turn = self.next;
        self.next += 1;
        let shelf = self.shelves.entry(owner.to_owned()).or_default();
        shelf.take(&name);
        if bytes <= self.keep.bytes {
            shelf.put(name, Thing { value, turn, since, bytes });
        }
        self.forget(Instant::now());
    }

    pub(crate) fn get(&mut self, owner: &str, name: &str, now: Instant) -> Option<T> {
        self.forget(now);
        self.shelves.get(owner)?.things.get(name).map(|thing| thing.value.clone())
    }

    /// Forgets a thing.
    pub(crate) fn remove(&mut self, owner: &str, name: &str) {
        if let Some(shelf) = self.shelves.get_mut(owner) {
            shelf.take(name);
        }
        self.forget(Instant::now());
    }

    /// How many bytes are kept for one caller.
    pub(crate) fn held(&mut self, owner: &str, now: Instant) -> usize {
        self.forget(now);
        self.shelves.get(owner).map_or(0, Shelf::bytes)
    }

    /// Whether one more thing of about this size would push out another one of the same caller's.
    pub(crate) fn is_full_for(&mut self, owner: &str, bytes: usize, now: Instant) -> bool {
        self.forget(now);
        let is_full = |of: fn(&Shelf<T>) -> usize, more: usize, most: usize| {
            let own = self.shelves.get(owner).map_or(0, of) + more;
            let others = self.shelves.iter().filter(|(name, _)| *name != owner).map(|(_, shelf)| of(shelf));
            let (largest, sum) = (others.clone().max().unwrap_or(0), others.sum::<usize>());
            own + sum > most && own >= largest
        };
        is_full(Shelf::number, 1, self.keep.runs) || is_full(Shelf::bytes, bytes, self.keep.bytes)
    }

    /// All that is kept for one caller, in no order.
    pub(crate) fn all(&mut self, owner: &str, now: Instant) -> Vec<T> {
        self.forget(now);
        let shelf = self.shelves.get(owner);
        shelf.into_iter().flat_map(|shelf| shelf.things.values()).map(|thing| thing.value.clone()).collect()
    }

    /// Lets go of what is too old or too much.
    fn forget(&mut self, now: Instant) {
        for shelf in self.shelves.values_mut() {
            while shelf.oldest().is_some_and(|since| now.saturating_duration_since(since) > self.keep.age) {
                shelf.take_oldest();
            }
        }
        while self.sum(Shelf::number) > self.keep.runs {
            self.relieve(Shelf::number);
        }
        while self.sum(Shelf::bytes) > self.keep.bytes {
            self.relieve(Shelf::bytes);
        }
        self.shelves.retain(|_, shelf| !shelf.order.is_empty());
    }

    fn sum(&self, of: fn(&Shelf<T>) -> usize) -> usize {
        self.shelves.values().map(of).sum()
    }

    fn relieve(&mut self, of: fn(&Shelf<T>) -> usize) {
        if let Some(fullest) = self.shelves.values_mut().max_by_key(|shelf| of(shelf)) {
            fullest.take_oldest();
        }
    }
}

impl<T> Shelf<T> {
    fn number(&self) -> usize {
        self.things.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Since when its oldest thing is there.
    fn oldest(&self) -> Option<Instant> {
        let (_, name) = self.order.first_key_value()?;
        self.things.get(name).map(|thing| thing.since)
    }

    fn put(&mut self, name: String, thing: Thing<T>) {
        self.bytes += thing.bytes;
        self.order.insert(thing.turn, name.clone());
        self.things.insert(name, thing);
    }

    fn take(&mut self, name: &str) {
        if let Some(thing) = self.things.remove(name) {
            self.order.remove(&thing.turn);
            self.bytes -= thing.bytes;
        }
    }

    fn take_oldest(&mut self) {
        if let Some((_, name)) = self.order.first_key_value() {
            let name = name.clone();
            self.take(&name);
        }
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf { things: HashMap::new(), order: BTreeMap::new(), bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const KEEP: Keep = Keep { runs: 3, bytes: 100, age: Duration::from_secs(60) };

    fn names(kept: &mut Store<u8>, owner: &str, now: Instant) -> Vec<u8> {
        (0..10).filter(|name| kept.get(owner, &name.to_string(), now).is_some()).collect()
    }

    #[test]
    fn the_oldest_go_first_when_there_are_too_many_or_they_are_too_large() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        for name in 0..5u8 {
            kept.put("a", name.to_string(), name, 10, now);
        }
        assert_eq!(names(&mut kept, "a", now), [2, 3, 4]);
        kept.put("a", "5".into(), 5, 90, now);
        assert_eq!(names(&mut kept, "a", now), [4, 5]);
        kept.put("a", "6".into(), 6, 100, now);
        assert_eq!(names(&mut kept, "a", now), [6]);
    }

    #[test]
    fn what_is_too_large_to_be_kept_pushes_nothing_out() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 0, 10, now);
        kept.put("a", "1".into(), 1, 101, now);
        assert_eq!(names(&mut kept, "a", now), [0]);
        kept.put("b", "0".into(), 0, 101, now);
        assert_eq!(kept.shelves.len(), 1);
    }

    #[test]
    fn a_name_that_is_given_anew_lives_as_long_as_its_last_thing() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 0, 10, now);
        kept.put("a", "0".into(), 9, 20, now + Duration::from_secs(30));
        assert_eq!(kept.get("a", "0", now + Duration::from_secs(61)), Some(9));
        assert_eq!(kept.sum(Shelf::bytes), 20);
        assert_eq!(kept.get("a", "0", now + Duration::from_secs(91)), None);
        assert_eq!(kept.sum(Shelf::bytes), 0);
    }

    #[test]
    fn a_name_that_is_given_anew_for_ever_takes_the_room_of_one() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        for turn in 0..100 {
            kept.put("a", "0".into(), turn, 10, now);
        }
        assert_eq!(kept.get("a", "0", now), Some(99));
        assert_eq!((kept.shelves["a"].order.len(), kept.sum(Shelf::bytes)), (1, 10));
    }

    #[test]
    fn nothing_is_kept_for_ever() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 0, 1, now);
        kept.put("a", "1".into(), 1, 1, now + Duration::from_secs(30));
        assert_eq!(names(&mut kept, "a", now + Duration::from_secs(61)), [1]);
    }

    #[test]
    fn a_caller_that_floods_loses_its_own_and_nobody_elses() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("modest", "0".into(), 0, 40, now);
        for name in 0..9u8 {
            kept.put("greedy", name.to_string(), name, 10, now);
        }
        assert_eq!((names(&mut kept, "modest", now), names(&mut kept, "greedy", now)), (vec![0], vec![7, 8]));
        kept.put("greedy", "9".into(), 9, 61, now);
        assert_eq!((names(&mut kept, "modest", now), names(&mut kept, "greedy", now)), (vec![0], vec![]));
        kept.put("modest", "0".into(), 0, 40, now);
        kept.put("greedy", "9".into(), 9, 60, now);
        assert_eq!((names(&mut kept, "modest", now), names(&mut kept, "greedy", now)), (vec![0], vec![9]));
    }

    #[test]
    fn a_store_is_full_for_those_who_would_lose_something_of_their_own() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 0, 60, now);
        assert!(!kept.is_full_for("a", 40, now) && kept.is_full_for("a", 41, now));
        assert!(!kept.is_full_for("b", 50, now), "a has more, and makes room");
        assert!(kept.is_full_for("b", 60, now));
        kept.put("a", "1".into(), 1, 1, now);
        kept.put("a", "2".into(), 2, 1, now);
        assert!(kept.is_full_for("a", 1, now) && !kept.is_full_for("b", 1, now), "there are three");
    }

    #[test]
    fn what_is_removed_makes_room() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 0, 60, now);
        kept.put("a", "1".into(), 1, 40, now);
        kept.remove("b", "0");
        assert_eq!(kept.held("a", now), 100);
        kept.remove("a", "0");
        assert_eq!((names(&mut kept, "a", now), kept.held("a", now)), (vec![1], 40));
        kept.remove("a", "1");
        assert_eq!((kept.held("a", now), kept.shelves.len()), (0, 0));
    }

    #[test]
    fn the_same_name_of_two_callers_stands_for_two_things() {
        let (now, mut kept) = (Instant::now(), Store::new(KEEP));
        kept.put("a", "0".into(), 1, 1, now);
        kept.put("b", "0".into(), 2, 1, now);
        assert_eq!((kept.get("a", "0", now), kept.get("b", "0", now)), (Some(1), Some(2)));
        assert_eq!(kept.get("c", "0", now), None);
    }
}
