//! What a run could leave behind on the host, compared before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::RwLockWriteGuard;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::host::{self, PATIENCE, Scratch};
use crate::turn;

/// Watches over the runs of one test. Others use the machine at the same time, so what is this test's own must be
/// known: processes by their program, which is a link of its own, or by a word in their environment; cgroups by the
/// process that they are named after, and containers by the one that is written on them; mounts by a mount namespace in
/// which only this test's `belljar` runs, with a `/dev/shm` and a `/var/tmp` of its own; files elsewhere by a process in
/// their name.
#[derive(Debug)]
pub struct Watch {
    cell: Cell,
    word: String,
    stage: Scratch,
    mounts: MountNamespace,
    before: BTreeSet<String>,
    /// Descriptors that other tests of this process have open would look like leaks.
    _alone: RwLockWriteGuard<'static, ()>,
}

impl Watch {
    /// Begins to watch. What is learned about the host stays, so it is learned before.
    ///
    /// # Panics
    /// If nothing can be run.
    #[must_use]
    pub fn over(cell: &Cell) -> Watch {
        let alone = turn::alone();
        let (word, stage, mounts) = (host::secret(), host::staged_apart(cell.user()), MountNamespace::new());
        let cell = cell.option("--env", &format!("TRACE={word}")).apart(stage.path(), mounts.entrance());
        assert_eq!(cell.run("true").exit_code, 0);
        let mut watch = Watch { cell, word, stage, mounts, before: BTreeSet::new(), _alone: alone };
        watch.before = watch.found();
        watch
    }

    /// The cell to use meanwhile.
    #[must_use]
    pub fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Asserts that nothing has come to stay. What goes by itself within some seconds has not: namespaces are
    /// destroyed lazily.
    ///
    /// # Panics
    /// If something has, with a list of it.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What has come since, and is there now.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        self.found().difference(&self.before).cloned().collect()
    }

    fn found(&self) -> BTreeSet<String> {
        let (mut found, started) = (BTreeSet::new(), self.cell.started());
        processes(&self.word, self.stage.path(), &mut found);
        cgroups(Path::new("/sys/fs/cgroup"), &started, &mut found);
        if self.cell.has_an_image() {
            containers(&started, &mut found);
        }
        for dir in ["/tmp", "/run", "/var/lib"] {
            named_after(&started, Path::new(dir), &mut found);
        }
        for dir in self.mounts.private_folders() {
            everything(&dir, &mut found);
        }
        everything(self.stage.path(), &mut found);
        let table = fs::read_to_string(self.mounts.table()).expect("the namespace is held");
        found.extend(table.lines().map(|line| format!("mount {line}")));
        descriptors(&mut found);
        found
    }
}

/// Where programs leave temporary files, besides `TMPDIR`.
const PRIVATE_FOLDERS: [&str; 2] = ["/dev/shm", "/var/tmp"];

/// A mount namespace that a sleeping process holds, where the tests may make one; else the one that there is.
#[derive(Debug)]
struct MountNamespace(Option<Child>);

impl MountNamespace {
    fn new() -> MountNamespace {
        if !rustix::process::geteuid().is_root() {
            return MountNamespace(None);
        }
        let mut command = Command::new("unshare");
        let script = format!(
            "for dir in {}; do mount -t tmpfs -o mode=1777 none $dir || exit; done; echo; exec sleep 1000000",
            PRIVATE_FOLDERS.join(" ")
        );
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("unshare is there");
        let mut ready = holder.stdout.take().expect("it is piped");
        std::io::Read::read_exact(&mut ready, &mut [0]).expect("it says when it is there");
        MountNamespace(Some(holder))
    }

    fn entrance(&self) -> Option<String> {
        self.0.as_ref().map(|holder| format!("/proc/{}/ns/mnt", holder.id()))
    }

    /// The folders of the namespace that only this test uses.
    fn private_folders(&self) -> Vec<PathBuf> {
        let root = self.0.as_ref().map(|holder| format!("/proc/{}/root", holder.id()));
        root.iter()
            .flat_map(|root| PRIVATE_FOLDERS.map(|dir| PathBuf::from(format!("{root}{dir}"))))
            .collect()
    }

    fn table(&self) -> String {
        self.0
            .as_ref()
            .map_or("/proc/self/mountinfo".into(), |holder| format!("/proc/{}/mountinfo", holder.id()))
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.0 {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// Processes that are the binary under test, or whose environment holds the word.
fn processes(word: &str, stage: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/proc").expect("Linux has one").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_ours = fs::read_link(entry.path().join("exe")).is_ok_and(|program| program.starts_with(stage));
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if is_ours || String::from_utf8_lossy(&environment).contains(word) {
            found.insert(format!("process {pid} {}", host::command_line(pid)));
        }
    }
}

/// Cgroups named after a process that this test has started.
fn cgroups(dir: &Path, started: &BTreeSet<u32>, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if number_in(&entry.file_name().to_string_lossy()).is_some_and(|owner| started.contains(&owner)) {
            found.insert(format!("cgroup {}", entry.path().display()));
        }
        cgroups(&entry.path(), started, found);
    }
}

/// Containers whose label says that a process made them which this test has started.
fn containers(started: &BTreeSet<u32>, found: &mut BTreeSet<String>) {
    let mut command = Command::new("docker");
    command.args(["ps", "--all", "--format", r#"{{.Label "dev.belljar.owner"}} {{.Names}}"#]);
    let listed = command.output().expect("docker is there");
    assert!(listed.status.success(), "docker ps: {listed:?}");
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let owner = line.split(' ').next().and_then(|word| word.parse::<u32>().ok());
        if owner.is_some_and(|owner| started.contains(&owner)) {
            found.insert(format!("container {line}"));
        }
    }
}

/// Files named after a process that this test has started. Others on this machine make files of every other name.
fn named_after(started: &BTreeSet<u32>, dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.contains("belljar") && number_in(&name).is_some_and(|owner| started.contains(&owner)) {
            found.insert(format!("file {}", entry.path().display()));
        }
    }
}

/// The first number between hyphens or dots, by which a process names what is its own.
fn number_in(name: &str) -> Option<u32> {
    name.split(['-', '.']).find_map(|word| word.parse().ok())
}

fn everything(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.insert(format!("file {}", entry.path().display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            everything(&entry.path(), found);
        }
    }
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
