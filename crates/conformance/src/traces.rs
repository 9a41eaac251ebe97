//! What a run could leave behind on the host, as sets to compare before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cell::User;
use crate::host;

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    /// What is there now.
    #[must_use]
    pub fn now() -> Traces {
        let mut found = BTreeSet::new();
        processes(&mut found);
        named_like_us(Path::new("/sys/fs/cgroup"), 6, &mut found);
        for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run", "/var/lib"] {
            named_like_us(Path::new(dir), 2, &mut found);
        }
        for user in [User::Root, User::Nobody] {
            everything(&host::staged(user).join("tmp"), &mut found);
            everything(&host::staged(user).join("state"), &mut found);
        }
        mounts(&mut found);
        descriptors(&mut found);
        Traces(found)
    }

    /// Asserts that nothing has come to stay since. What goes by itself within some seconds has not: namespaces
    /// are destroyed lazily, and others use this machine too.
    #[track_caller]
    pub fn assert_nothing_added(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Traces::now();
            let added: Vec<_> = now.0.difference(&self.0).collect();
            if added.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {added:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Processes that are `belljar` or live in a cgroup of its making.
fn processes(found: &mut BTreeSet<String>) {
    let staged = host::staged(User::Root);
    let staged = staged.parent().expect("it has one").to_string_lossy().into_owned();
    for entry in fs::read_dir("/proc").expect("Linux has one").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let command = host::command_line(pid);
        if cgroup.contains("belljar") || command.contains(&staged) {
            found.insert(format!("process {pid} {command}"));
        }
    }
}

fn named_like_us(dir: &Path, depth: u32, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.contains("belljar") {
            found.insert(format!("file {}", entry.path().display()));
        }
        if is_dir && depth > 1 && !name.starts_with("belljar-conformance-") {
            named_like_us(&entry.path(), depth - 1, found);
        }
    }
}

fn everything(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.insert(format!("file {}", entry.path().display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            everything(&entry.path(), found);
        }
    }
}

fn mounts(found: &mut BTreeSet<String>) {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("Linux has one");
    found.extend(table.lines().map(|line| format!("mount {line}")));
}

fn descriptors(found: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/proc/self/fd").expect("Linux has one").flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        // The directory that is being read is open too, under a number of its own.
        if !target.starts_with("/proc") {
            found.insert(format!("descriptor {} {}", entry.file_name().display(), target.display()));
        }
    }
}
