//! What a run could leave behind on the host, as sets to compare before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cell::{STARTED, User};
use crate::host;

/// A snapshot of what this test could have left. Others use the machine at the same time: processes are known by
/// their program or by a word in their environment, cgroups by the process that they are named after.
#[derive(Debug, Clone)]
pub struct Traces {
    word: String,
    found: BTreeSet<String>,
}

impl Traces {
    /// What is there now. The word is in the environment of everything that the test runs in a box.
    #[must_use]
    pub fn now(word: &str) -> Traces {
        let mut found = BTreeSet::new();
        processes(word, &mut found);
        cgroups(Path::new("/sys/fs/cgroup"), &mut found);
        for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run", "/var/lib"] {
            named_like_us(Path::new(dir), 2, &mut found);
        }
        for user in [User::Root, User::Nobody] {
            everything(&host::staged(user).join("tmp"), &mut found);
            everything(&host::staged(user).join("state"), &mut found);
        }
        mounts(&mut found);
        descriptors(&mut found);
        Traces { word: word.to_owned(), found }
    }

    /// Asserts that nothing has come to stay since. What goes by itself within some seconds has not: namespaces
    /// are destroyed lazily, and others use this machine too.
    #[track_caller]
    pub fn assert_nothing_added(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Traces::now(&self.word);
            let added: Vec<_> = now.found.difference(&self.found).collect();
            if added.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {added:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Processes that are the binary under test, or whose environment holds the word.
fn processes(word: &str, found: &mut BTreeSet<String>) {
    let staged = host::staged(User::Root);
    let staged = staged.parent().expect("it has one");
    for entry in fs::read_dir("/proc").expect("Linux has one").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_ours =
            fs::read_link(entry.path().join("exe")).is_ok_and(|program| program.starts_with(staged));
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if is_ours || String::from_utf8_lossy(&environment).contains(word) {
            found.insert(format!("process {pid} {}", host::command_line(pid)));
        }
    }
}

/// Cgroups named after a process that this test has started.
fn cgroups(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let mut words = name.to_str().unwrap_or_default().split('-');
        let owner = words.by_ref().find_map(|word| word.parse::<u32>().ok());
        if owner.is_some_and(|owner| STARTED.lock().expect("no panic while held").contains(&owner)) {
            found.insert(format!("cgroup {}", entry.path().display()));
        }
        cgroups(&entry.path(), found);
    }
}

fn named_like_us(dir: &Path, depth: u32, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.contains("belljar") && !name.starts_with("belljar-conformance-") {
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
