//! The users and groups that boxes and servers have on the host.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use belljar_jail::plan::{IdPair, Identity, Opener};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::layout::CODE_ID;

/// The users of a new box's processes. As root, two host ids that no other live box has, because no other live keeper
/// has this process id; otherwise the caller's own id for all of them.
pub(crate) fn identity(opener: Opener, keeper: u32) -> Identity {
    match opener {
        Opener::Init => {
            let outside = rustix::process::geteuid().as_raw();
            Identity { code: IdPair { inside: CODE_ID, outside }, init: None }
        }
        Opener::Keeper => {
            let (base, slots) = own_ids();
            let outside = base + 2 * (keeper % slots);
            Identity {
                code: IdPair { inside: CODE_ID, outside: outside + 1 },
                init: Some(IdPair { inside: 0, outside }),
            }
        }
    }
}

/// More pairs of ids than there can be processes (`PID_MAX_LIMIT` is 2^22).
const ID_SLOTS: u32 = 1 << 22;
/// Above what distributions, systemd and container managers assign (systemd's documentation, "Users, Groups, UIDs and
/// GIDs"), below the special numbers. The first ids are for boxes whose maker is root on this host; the others are for
/// servers that have given up root's rights.
const ID_BASE: u32 = 0x7200_0000;
/// All ids for boxes on this host.
const ID_COUNT: u32 = 27 * 2 * ID_SLOTS;
/// In which servers get their ids: a number of pairs. A server needs as many pairs as there can be processes, which is
/// often far fewer than 2^22.
const UNIT: u32 = 1 << 16;

/// The first id for boxes, and the number of pairs. In a container with its own range of ids, boxes get the upper half
/// of it.
fn own_ids() -> (u32, u32) {
    ids_in(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

fn ids_in(uid_map: &str) -> (u32, u32) {
    let ranges = uid_map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()?, numbers.next()??);
        Some((first, count))
    });
    let Some((first, count)) = ranges.max_by_key(|(_, count)| *count) else { return (ID_BASE, ID_SLOTS) };
    if first <= ID_BASE && first.saturating_add(count) >= ID_BASE + ID_COUNT {
        return (ID_BASE, ID_SLOTS);
    }
    let is_leased =
        first > ID_BASE && (first - ID_BASE).is_multiple_of(2 * UNIT) && count.is_multiple_of(2 * UNIT);
    if is_leased { (first, count / 2) } else { (first + count / 2, (count / 4).max(1)) }
}

/// Ids that no other server of this host has while it is there. A process that takes over one server could otherwise end
/// the boxes of the others.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The first id, and how many.
    pub(crate) ids: (u32, u32),
    /// Locked files, one for each unit.
    _units: Vec<fs::File>,
}

impl Lease {
    /// Takes the first ids that are free, as many as boxes can need at a time.
    ///
    /// # Errors
    /// That the directory cannot be used, or that other servers have all ids.
    pub(crate) fn take(dir: &Path) -> io::Result<Lease> {
        let most = fs::read_to_string("/proc/sys/kernel/pid_max").ok();
        let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(ID_SLOTS);
        Lease::of(dir, most.clamp(1, ID_SLOTS).div_ceil(UNIT))
    }

    fn of(dir: &Path, units: u32) -> io::Result<Lease> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let (mut taken, end) = (Vec::new(), ID_COUNT / (2 * UNIT));
        for unit in ID_SLOTS / UNIT..end {
            match lock(&dir.join(format!("ids-{unit}")))? {
                Some(file) => taken.push(file),
                None => taken.clear(),
            }
            if taken.len() == units as usize {
                let first = ID_BASE + (unit + 1 - units) * 2 * UNIT;
                return Ok(Lease { ids: (first, units * 2 * UNIT), _units: taken });
            }
        }
        Err(io::Error::other("other servers of this host have all of them"))
    }
}

/// The file, if nobody else has locked it. The lock ends with whoever has it.
fn lock(path: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Groups for files that several servers of root's write to (`group.rs`): below the users of servers.
pub(crate) const SHARED_GROUPS: std::ops::Range<u32> = ID_BASE - 2 * ID_SLOTS..ID_BASE - ID_SLOTS;

/// The user of a server that gives up root's rights: outside the ranges for boxes, and another one for each live process.
pub(crate) fn user_of_server() -> u32 {
    ID_BASE - 1 - std::process::id() % ID_SLOTS
}

/// Whether all ids of boxes are this process's to give away. In a container with its own range of ids, others may use
/// them.
pub(crate) fn may_grant_ids() -> bool {
    own_ids() == (ID_BASE, ID_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_ids_of_its_own() {
        let dir = std::env::temp_dir().join(format!("belljar-ids-{}", std::process::id()));
        let lease = |units| Lease::of(&dir.join("belljar"), units);
        let mut leases = vec![lease(1).unwrap(), lease(64).unwrap(), lease(3).unwrap(), lease(1).unwrap()];
        let mut ranges: Vec<_> =
            leases.iter().map(|Lease { ids: (first, count), .. }| (*first, first + count)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges[0].0 >= ID_BASE + 2 * ID_SLOTS, "the first ids are those of root's own boxes");
        let freed = leases.remove(1).ids;
        assert_eq!(lease(64).unwrap().ids, freed, "the ids of a server that has ended");
        let all: Vec<_> = std::iter::from_fn(|| lease(64).ok()).collect();
        assert_eq!(all.len(), 25);
        assert!(all.iter().all(|Lease { ids: (first, count), .. }| first + count < 0x7FFF_0000));
        assert!(lease(64).unwrap_err().to_string().contains("have all of them"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn boxes_get_ids_that_their_maker_has() {
        assert_eq!(ids_in("         0          0 4294967295\n"), (ID_BASE, ID_SLOTS));
        assert_eq!(ids_in(""), (ID_BASE, ID_SLOTS));
        let (first, count) = (ID_BASE + 70 * 2 * UNIT, 2 * UNIT);
        let map = format!("0 1900000000 1\n{first} {first} {count}\n");
        assert_eq!(ids_in(&map), (first, UNIT));
        assert_eq!(ids_in("0 100000 65536\n"), (32768, 16384));
    }
}
