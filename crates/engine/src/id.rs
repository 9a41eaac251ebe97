//! Identifiers of runs: `run_` and a ULID, so that they sort by time and need no coordination. Those of one process sort
//! by their order, also within a millisecond and when the clock is set back (the monotonic variant of the ULID
//! specification).

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};

/// Crockford's base 32: no I, L, O or U, so that an identifier survives being read aloud.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The identifier of a run, unique on this host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// A new, unique identifier.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "an identifier has no default; every one is another")]
    pub fn new() -> RunId {
        static LAST: Mutex<u128> = Mutex::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fresh = bits(now.as_millis(), random_bits());
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        *last = fresh.max(*last + 1);
        RunId(format!("run_{}", ulid(*last)))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 48 bits of milliseconds, then 80 bits of chance.
fn bits(millis: u128, chance: u128) -> u128 {
    (millis << 80) | (chance & ((1 << 80) - 1))
}

fn ulid(bits: u128) -> String {
    (0..26).rev().map(|place| char::from(DIGITS[((bits >> (place * 5)) & 31) as usize])).collect()
}

fn random_bits() -> u128 {
    let mut bytes = u128::from(std::process::id()).to_le_bytes();
    // Up to 256 bytes arrive all at once or not at all (getrandom(2)). If it is forbidden, the process and the clock
    // still make runs distinct; nothing depends on an identifier being hard to guess.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_unique() {
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| RunId::new()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.as_str().len() == 30 && id.as_str().starts_with("run_0")));
    }

    #[test]
    fn the_layout_is_that_of_the_ulid_specification() {
        assert_eq!(ulid(bits(1_469_918_176_385, 0)), "01ARYZ6S410000000000000000");
        assert_eq!(ulid(bits(0, u128::MAX)), "0000000000ZZZZZZZZZZZZZZZZ");
    }

    #[test]
    fn the_order_of_identifiers_is_that_in_which_they_were_made() {
        let ids: Vec<_> = (0..10_000).map(|_| RunId::new()).collect();
        assert!(ids.is_sorted_by(|earlier, later| earlier < later));
    }

    #[test]
    fn later_runs_sort_after_earlier_ones() {
        assert!(ulid(bits(1, u128::MAX)) < ulid(bits(2, 0)));
    }
}
