//! Identifiers of runs: `run_` and a ULID, so that they sort by time and need no coordination.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};

/// Crockford's base 32: no I, L, O or U, so that an identifier survives being read aloud.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

pub(crate) fn of_a_new_run() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("run_{}", ulid(now.as_millis(), random_bits()))
}

/// 48 bits of milliseconds, then 80 bits of chance.
fn ulid(millis: u128, chance: u128) -> String {
    let bits = (millis << 80) | (chance & ((1 << 80) - 1));
    (0..26).rev().map(|place| char::from(DIGITS[((bits >> (place * 5)) & 31) as usize])).collect()
}

fn random_bits() -> u128 {
    let mut bytes = u128::from(std::process::id()).to_le_bytes();
    // Up to 256 bytes come whole or not at all (getrandom(2)). Should it be forbidden, the process and the
    // clock still tell runs apart; nothing depends on an identifier being hard to guess.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_unique() {
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| of_a_new_run()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == 30 && id.starts_with("run_0")));
    }

    #[test]
    fn the_layout_is_that_of_the_ulid_specification() {
        assert_eq!(ulid(1_469_918_176_385, 0), "01ARYZ6S410000000000000000");
        assert_eq!(ulid(0, u128::MAX), "0000000000ZZZZZZZZZZZZZZZZ");
    }

    #[test]
    fn later_runs_sort_after_earlier_ones() {
        assert!(ulid(1, u128::MAX) < ulid(2, 0));
    }
}
