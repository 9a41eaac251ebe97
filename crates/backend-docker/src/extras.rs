//! What makes containers better, but is not accepted by every daemon and kernel. A trial finds out (`trial.rs`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::frame::Surroundings;

/// Where terminals are.
pub(crate) const TERMINALS: &str = "/dev/pts";
/// How many terminals a container can have. The kernel charges their buffers to nobody, so their number is limited.
const MOST_TERMINALS: u32 = 16;
/// Settings for what sockets keep and nobody is charged for. Older kernels have them for the whole host only; then a
/// container that is made with them does not start.
pub(crate) const SETTINGS: [(&str, &str); 2] = [
    // Copies of sent data with a timestamp, which any message can ask for.
    ("net.core.tstamp_allow_data", "0"),
    // Options. This was the kernel's own default until 6.8.
    ("net.core.optmem_max", "20480"),
];

/// What the containers of a daemon get in addition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extras {
    /// Pseudo-terminals.
    pub(crate) terminals: bool,
    /// The names of those [`SETTINGS`] that belong to a network namespace.
    pub(crate) settings: Vec<String>,
}

impl Extras {
    /// What to try for a kernel on which a container was seen, best first.
    pub(crate) fn candidates(seen: &Surroundings) -> Vec<Extras> {
        let known = |name: &&str| seen.settings.iter().any(|(other, _)| other == name);
        let names = SETTINGS.into_iter().map(|(name, _)| name);
        let settings: Vec<String> = names.filter(known).map(str::to_owned).collect();
        let mut candidates = vec![
            Extras { terminals: true, settings: settings.clone() },
            Extras { terminals: false, settings },
            Extras { terminals: true, settings: Vec::new() },
        ];
        candidates.retain(|extras| *extras != Extras::default());
        candidates.dedup();
        candidates
    }

    /// Whether a container that was made with them has them.
    pub(crate) fn are_in(&self, seen: &Surroundings) -> bool {
        let is_set = |(name, value): (&str, &str)| {
            seen.settings.iter().any(|(other, seen)| (other.as_str(), seen.as_str()) == (name, value))
        };
        (!self.terminals || seen.terminals) && self.wanted().all(is_set)
    }

    fn wanted(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        SETTINGS.into_iter().filter(|(name, _)| self.settings.iter().any(|other| other == name))
    }

    /// Adds the settings to those of a network.
    pub(crate) fn set(&self, sysctls: &mut Value) {
        for (name, value) in self.wanted() {
            sysctls[name] = json!(value);
        }
    }

    /// The file system of the terminals. As a volume without a name, it is removed together with the container.
    pub(crate) fn mount(&self) -> Option<Value> {
        let options = format!("mode=0620,ptmxmode=0666,max={MOST_TERMINALS},nosuid,noexec");
        let options = json!({ "type": "devpts", "device": "devpts", "o": options });
        let volume = json!({ "NoCopy": true, "DriverConfig": { "Name": "local", "Options": options } });
        self.terminals.then(|| json!({ "Type": "volume", "Target": TERMINALS, "VolumeOptions": volume }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(settings: &[(&str, &str)], terminals: bool) -> Surroundings {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Surroundings { settings: settings.collect(), terminals, ..Surroundings::default() }
    }

    #[test]
    fn only_what_a_kernel_has_is_tried() {
        let old = Extras::candidates(&seen(&[], false));
        assert_eq!(old, [Extras { terminals: true, settings: Vec::new() }]);
        let new = Extras::candidates(&seen(&[("net.core.optmem_max", "131072")], false));
        assert_eq!(new[0], Extras { terminals: true, settings: vec!["net.core.optmem_max".into()] });
        assert_eq!(new.len(), 3);
    }

    #[test]
    fn what_had_no_effect_is_not_taken() {
        let extras = Extras { terminals: true, settings: vec!["net.core.tstamp_allow_data".into()] };
        assert!(extras.are_in(&seen(&[("net.core.tstamp_allow_data", "0")], true)));
        assert!(!extras.are_in(&seen(&[("net.core.tstamp_allow_data", "1")], true)));
        assert!(!extras.are_in(&seen(&[("net.core.tstamp_allow_data", "0")], false)));
        let mut sysctls = json!({});
        extras.set(&mut sysctls);
        assert_eq!(sysctls, json!({ "net.core.tstamp_allow_data": "0" }));
        assert!(Extras::default().mount().is_none() && extras.mount().is_some());
    }
}
