//! The owner of a container, as labels on it, so that what a crashed predecessor left can be told from what is in use.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::api::{Api, ApiError, escaped};
use crate::container;

/// The label that every container of ours has, and by which they are found.
const OWNER: &str = "dev.belljar.owner";
/// The latest time at which it may exist, in Unix seconds.
const LEASE: &str = "dev.belljar.lease";

/// A process. Its number alone may be reused after its death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    started: u64,
    boot: String,
    /// The PID namespace in which the number is valid.
    namespace: String,
}

impl Owner {
    /// This process.
    pub(crate) fn this() -> io::Result<Owner> {
        let pid = std::process::id();
        let started = started(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Owner { pid, started, boot: boot()?, namespace: namespace()? })
    }

    /// The labels of its containers, which may exist for this long.
    pub(crate) fn labels(&self, lease: Duration) -> Value {
        json!({ OWNER: self.to_string(), LEASE: (now() + lease.as_secs()).to_string() })
    }

    fn parse(text: &str) -> Option<Owner> {
        let mut words = text.split(' ');
        let pid = words.next()?.parse().ok()?;
        let started = words.next()?.parse().ok()?;
        Some(Owner { pid, started, boot: words.next()?.to_owned(), namespace: words.next()?.to_owned() })
    }

    /// Whether it is known to be dead. Nothing is known about processes in another namespace.
    fn is_dead(&self) -> bool {
        let (Ok(boot), Ok(namespace)) = (boot(), namespace()) else { return false };
        if self.boot != boot {
            return true;
        }
        self.namespace == namespace && started(self.pid) != Some(self.started)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.pid, self.started, self.boot, self.namespace)
    }
}

/// Removes the containers whose owner is dead or whose lease is over, and nothing else. Returns how many.
pub(crate) async fn sweep(api: &Api) -> Result<u64, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Listed {
        id: String,
        #[serde(default)]
        labels: std::collections::HashMap<String, String>,
    }
    let filters = escaped(&json!({ "label": [OWNER] }).to_string());
    let listed: Vec<Listed> = api.get(&format!("/containers/json?all=true&filters={filters}")).await?;
    let mut swept = 0;
    for Listed { id, labels } in listed {
        let label = |name: &str| labels.get(name).map(String::as_str);
        if is_abandoned(label(OWNER), label(LEASE), now()) {
            container::remove(api, &id).await?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// A container without a readable owner was not labelled by us.
fn is_abandoned(owner: Option<&str>, lease: Option<&str>, now: u64) -> bool {
    let Some(owner) = owner.and_then(Owner::parse) else { return false };
    let is_over = lease.and_then(|text| text.parse::<u64>().ok()).is_some_and(|until| until < now);
    is_over || owner.is_dead()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// When a process was started, in ticks since boot.
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Before the last parenthesis is the program's name, which may contain anything.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_living_process_owns_is_left_until_its_lease_is_over() {
        let owner = Owner::this().unwrap().to_string();
        assert!(!is_abandoned(Some(&owner), Some("100"), 99));
        assert!(is_abandoned(Some(&owner), Some("100"), 101));
    }

    #[test]
    fn a_number_that_is_another_process_by_now_is_a_dead_owner() {
        let owner = Owner { started: 1, ..Owner::this().unwrap() };
        assert!(is_abandoned(Some(&owner.to_string()), Some("100"), 1));
        let rebooted = Owner { boot: "another".into(), ..Owner::this().unwrap() };
        assert!(is_abandoned(Some(&rebooted.to_string()), None, 1));
    }

    #[test]
    fn of_another_namespace_only_the_lease_is_believed() {
        let elsewhere = Owner { namespace: "pid:[1]".into(), started: 1, ..Owner::this().unwrap() };
        assert!(!is_abandoned(Some(&elsewhere.to_string()), Some("100"), 99));
        assert!(is_abandoned(Some(&elsewhere.to_string()), Some("100"), 101));
    }

    #[test]
    fn foreign_labels_have_no_owner() {
        assert!(!is_abandoned(None, Some("1"), 100));
        assert!(!is_abandoned(Some("garbage"), Some("1"), 100));
    }
}
