//! Programs that were compiled before, so that code that runs on many inputs is compiled once.
//!
//! A program is found by a digest of everything that it depends on, so whoever finds one has sent the same code. It came
//! out of a box and only ever goes into another: to know a program is of no use without its source, and what a hostile
//! compiler run left is what the same source would leave again. All that another caller's code can be seen by is time: a
//! program that is found at once was compiled before. The number of programs and their bytes are limited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::Captured;
use belljar_core::backend::Compiled;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// The most programs.
const MOST: usize = 256;
/// How long one is kept after its last use. The compiler behind the name of an image may change.
const AGE: Duration = Duration::from_secs(10 * 60);

/// Everything that a program depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

/// A key in the making. Each part is preceded by its length, so that no two lists of parts are alike.
pub(crate) struct Digest(Sha256);

impl Digest {
    pub(crate) fn new(first: &str) -> Digest {
        let mut digest = Digest(Sha256::new());
        digest.add(first);
        digest
    }

    pub(crate) fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Digest {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// A list of any length, which is a part, too.
    pub(crate) fn add_all(&mut self, parts: impl IntoIterator<Item = impl AsRef<[u8]>>) {
        let parts: Vec<_> = parts.into_iter().collect();
        self.0.update((parts.len() as u64).to_le_bytes());
        for part in &parts {
            self.add(part);
        }
    }

    pub(crate) fn finish(self) -> Key {
        Key(self.0.finalize().into())
    }
}

/// A program, and what its compiler wrote.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) program: Compiled,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
}

impl Kept {
    fn bytes(&self) -> usize {
        let program = usize::try_from(self.program.disk()).unwrap_or(usize::MAX);
        program.saturating_add(self.stdout.len()).saturating_add(self.stderr.len())
    }
}

/// What became of the wish for a program.
pub(crate) enum Claim {
    /// It is there.
    Kept(Kept),
    /// The caller is to make it; whoever wants the same program waits for that until this is dropped.
    Mine(#[allow(dead_code, reason = "held, not read")] Option<OwnedMutexGuard<()>>),
}

/// The programs.
#[derive(Debug)]
pub struct Programs {
    /// The most bytes of all of them.
    most_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<Key, Entry>,
    bytes: usize,
    making: HashMap<Key, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    used: Instant,
}

impl Programs {
    /// Room for so many bytes of programs.
    #[must_use]
    pub fn new(most_bytes: usize) -> Programs {
        Programs { most_bytes, state: Mutex::default() }
    }

    /// A program that is there, or the right to make it. If another run is making it, waits for that, but not for longer
    /// than `patience`: how long another caller's compiler may take is no business of this one.
    pub(crate) async fn claim(&self, key: &Key, patience: Duration) -> Claim {
        if let Some(kept) = self.find(key) {
            return Claim::Kept(kept);
        }
        let making = self.state().making.entry(*key).or_default().clone();
        let turn = tokio::time::timeout(patience, making.lock_owned()).await.ok();
        match self.find(key) {
            Some(kept) => Claim::Kept(kept),
            None => Claim::Mine(turn),
        }
    }

    /// Keeps a program, in place of those that were not used for the longest time.
    pub(crate) fn keep(&self, key: Key, kept: Kept) {
        let bytes = kept.bytes();
        // One program must not drive out all others.
        if bytes > self.most_bytes / 4 {
            return;
        }
        let mut state = self.state();
        state.remove(&key);
        while state.kept.len() >= MOST || state.bytes + bytes > self.most_bytes {
            let Some(oldest) = state.kept.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)
            else {
                break;
            };
            state.remove(&oldest);
        }
        state.bytes += bytes;
        state.kept.insert(key, Entry { kept, used: Instant::now() });
    }

    fn find(&self, key: &Key) -> Option<Kept> {
        let mut state = self.state();
        let now = Instant::now();
        state.forget(|entry| now.duration_since(entry.used) > AGE);
        // Nobody waits for a lock that only this map holds.
        state.making.retain(|_, making| Arc::strong_count(making) > 1);
        let entry = state.kept.get_mut(key)?;
        entry.used = now;
        Some(entry.kept.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves a program too many or too few.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.kept.remove(key) {
            self.bytes -= entry.kept.bytes();
        }
    }

    fn forget(&mut self, is_due: impl Fn(&Entry) -> bool) {
        let due: Vec<_> = self.kept.iter().filter(|(_, entry)| is_due(entry)).map(|(key, _)| *key).collect();
        due.iter().for_each(|key| self.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::outcome::CollectedFile;

    fn key(name: &str) -> Key {
        Digest::new(name).finish()
    }

    fn kept(bytes: usize) -> Kept {
        let program = Compiled::new(vec![CollectedFile { path: "main".into(), content: vec![0; bytes] }]);
        Kept { program, stdout: Captured::default(), stderr: Captured::default() }
    }

    fn has(programs: &Programs, name: &str) -> bool {
        programs.find(&key(name)).is_some()
    }

    #[test]
    fn parts_that_run_into_each_other_are_told_apart() {
        let of = |parts: &[&str]| {
            let mut digest = Digest::new("c");
            for part in parts {
                digest.add(part);
            }
            digest.finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_used_for_the_longest_time_makes_room() {
        let programs = Programs::new(16 << 10);
        for name in ["a", "b", "c", "d"] {
            programs.keep(key(name), kept(4096));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(has(&programs, "a"), "it is used again");
        tokio::time::advance(Duration::from_secs(1)).await;
        programs.keep(key("e"), kept(4096));
        assert!(has(&programs, "a") && !has(&programs, "b") && has(&programs, "e"));
        programs.keep(key("large"), kept(8192));
        assert!(!has(&programs, "large") && has(&programs, "a"), "one does not drive out all others");
        tokio::time::advance(AGE + Duration::from_secs(1)).await;
        assert!(!has(&programs, "a"));
        assert_eq!(programs.state().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_makes_it_and_the_others_wait_for_that_one() {
        let programs = Arc::new(Programs::new(64 << 10));
        let first = programs.claim(&key("a"), Duration::from_secs(5)).await;
        assert!(matches!(first, Claim::Mine(Some(_))));
        let second = tokio::spawn({
            let programs = programs.clone();
            async move { programs.claim(&key("a"), Duration::from_secs(5)).await }
        });
        let other = programs.claim(&key("b"), Duration::from_secs(5)).await;
        assert!(matches!(other, Claim::Mine(Some(_))), "another program is not waited for");
        programs.keep(key("a"), kept(1));
        drop(first);
        assert!(matches!(second.await.unwrap(), Claim::Kept(_)));
        let impatient = programs.claim(&key("b"), Duration::from_secs(5)).await;
        assert!(matches!(impatient, Claim::Mine(None)), "nobody waits for ever");
        drop((other, impatient));
        assert!(!has(&programs, "b"));
        assert!(programs.state().making.is_empty());
    }
}
