//! What Belljar guarantees about a box, and the decision whether a host can enforce it.

use std::collections::BTreeMap;
use std::fmt;

/// One guarantee, named as in the contract. The result lists each as kept or waived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guarantee {
    /// Nothing of the host can be read or written except what the request names.
    Filesystem,
    /// No packet leaves or enters except what the request allows.
    Network,
    /// All processes together cannot use more memory than the limit.
    Memory,
    /// There cannot be more processes and threads than the limit.
    Pids,
    /// All processes together cannot use more CPU than the rate and the CPU time.
    Cpu,
    /// The code cannot write more bytes and files than the limit.
    Disk,
    /// Only the system calls of the policy reach the kernel.
    Syscalls,
    /// No capabilities, no way to gain any, a separate identity.
    Privileges,
}

impl Guarantee {
    /// All of them, in the order of the contract.
    pub const ALL: [Guarantee; 8] = [
        Guarantee::Filesystem,
        Guarantee::Network,
        Guarantee::Memory,
        Guarantee::Pids,
        Guarantee::Cpu,
        Guarantee::Disk,
        Guarantee::Syscalls,
        Guarantee::Privileges,
    ];

    /// The contract's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Guarantee::Filesystem => "filesystem",
            Guarantee::Network => "network",
            Guarantee::Memory => "memory",
            Guarantee::Pids => "pids",
            Guarantee::Cpu => "cpu",
            Guarantee::Disk => "disk",
            Guarantee::Syscalls => "syscalls",
            Guarantee::Privileges => "privileges",
        }
    }

    /// The guarantee of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Guarantee> {
        Guarantee::ALL.into_iter().find(|guarantee| guarantee.name() == name)
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a backend on this host can enforce one guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It can, in this way.
    Kept {
        /// The mechanism, for `doctor`.
        how: String,
    },
    /// It cannot.
    Unmet {
        /// The reason that was observed.
        why: String,
        /// The command or the change that would help.
        fix: String,
    },
}

/// What a backend can guarantee on this host, found once by trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer(BTreeMap<Guarantee, Standing>);

impl Offer {
    /// An offer must cover every guarantee, so it is made by asking for each.
    pub fn by_asking(mut standing: impl FnMut(Guarantee) -> Standing) -> Offer {
        Offer(Guarantee::ALL.into_iter().map(|guarantee| (guarantee, standing(guarantee))).collect())
    }

    /// The standing of each guarantee, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (Guarantee, &Standing)> {
        self.0.iter().map(|(guarantee, standing)| (*guarantee, standing))
    }

    /// Whether this guarantee can be enforced.
    #[must_use]
    pub fn keeps(&self, guarantee: Guarantee) -> bool {
        matches!(self.0.get(&guarantee), Some(Standing::Kept { .. }))
    }
}

/// What is enforced and what was waived, for one run. Only [`resolve`] and [`concede`] make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    kept: Vec<Guarantee>,
    waived: Vec<Guarantee>,
}

impl Enforcement {
    /// The guarantees for this run.
    #[must_use]
    pub fn kept(&self) -> &[Guarantee] {
        &self.kept
    }

    /// The guarantees that the caller waived. The limit behind a waived guarantee is still applied as well as the host
    /// can.
    #[must_use]
    pub fn waived(&self) -> &[Guarantee] {
        &self.waived
    }

    /// The same for a run of which nothing was started: a guarantee that nothing has tested was not kept.
    #[must_use]
    pub fn unused(self) -> Enforcement {
        Enforcement { kept: Vec::new(), ..self }
    }
}

/// Guarantees that the host cannot enforce and the caller has not waived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// Each with the reason and what would help; never empty.
    pub missing: Vec<(Guarantee, String, String)>,
}

impl Unmet {
    /// What would help, each once: several guarantees often need the same.
    #[must_use]
    pub fn remedies(&self) -> Vec<&str> {
        let mut remedies: Vec<&str> = Vec::new();
        for (_, _, fix) in &self.missing {
            if !remedies.contains(&fix.as_str()) {
                remedies.push(fix);
            }
        }
        remedies
    }
}

/// Compares what is demanded (everything that is not waived) with what is offered.
///
/// # Errors
/// Every guarantee that is demanded but not offered, so that a caller learns about all of them at once.
pub fn resolve(offer: &Offer, waived: &[Guarantee]) -> Result<Enforcement, Unmet> {
    let mut enforcement = Enforcement { kept: Vec::new(), waived: Vec::new() };
    let mut missing = Vec::new();
    for (guarantee, standing) in offer.iter() {
        match standing {
            _ if waived.contains(&guarantee) => enforcement.waived.push(guarantee),
            Standing::Kept { .. } => enforcement.kept.push(guarantee),
            Standing::Unmet { why, fix } => missing.push((guarantee, why.clone(), fix.clone())),
        }
    }
    if missing.is_empty() { Ok(enforcement) } else { Err(Unmet { missing }) }
}

/// For a backend that the caller named although it enforces little: what it does not offer counts as waived.
#[must_use]
pub fn concede(offer: &Offer, waived: &[Guarantee]) -> Enforcement {
    let is_kept = |guarantee: &Guarantee| offer.keeps(*guarantee) && !waived.contains(guarantee);
    let (kept, waived) = Guarantee::ALL.into_iter().partition(is_kept);
    Enforcement { kept, waived }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer_without(absent: Guarantee) -> Offer {
        Offer::by_asking(|guarantee| {
            if guarantee == absent {
                Standing::Unmet { why: "no cgroup".into(), fix: "delegate one".into() }
            } else {
                Standing::Kept { how: "somehow".into() }
            }
        })
    }

    #[test]
    fn a_missing_guarantee_is_an_error_that_names_it() {
        let unmet = resolve(&offer_without(Guarantee::Memory), &[]).unwrap_err();
        assert_eq!(unmet.missing, [(Guarantee::Memory, "no cgroup".into(), "delegate one".into())]);
    }

    #[test]
    fn a_waived_guarantee_is_recorded_and_no_longer_promised() {
        let kept = resolve(&offer_without(Guarantee::Memory), &[Guarantee::Memory, Guarantee::Cpu]).unwrap();
        assert_eq!(kept.waived(), [Guarantee::Memory, Guarantee::Cpu]);
        assert_eq!(kept.kept().len(), 6);
        assert!(!kept.kept().contains(&Guarantee::Cpu));
    }

    #[test]
    fn what_is_conceded_is_listed_as_if_it_had_been_waived() {
        let conceded = concede(&offer_without(Guarantee::Memory), &[Guarantee::Cpu]);
        assert_eq!(conceded.waived(), [Guarantee::Memory, Guarantee::Cpu]);
        assert_eq!(conceded.kept().len(), 6);
    }

    #[test]
    fn what_did_not_run_has_kept_nothing_but_tells_what_was_waived() {
        let unused = resolve(&offer_without(Guarantee::Memory), &[Guarantee::Memory]).unwrap().unused();
        assert_eq!((unused.kept(), unused.waived()), (&[][..], &[Guarantee::Memory][..]));
    }

    #[test]
    fn without_waivers_everything_is_kept() {
        let all = Offer::by_asking(|_| Standing::Kept { how: String::new() });
        assert_eq!(resolve(&all, &[]).unwrap().kept(), Guarantee::ALL);
    }

    #[test]
    fn names_are_the_contracts_and_read_back() {
        for guarantee in Guarantee::ALL {
            assert_eq!(Guarantee::from_name(guarantee.name()), Some(guarantee));
        }
    }
}
