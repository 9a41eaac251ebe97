//! The templates of a server: foundations of boxes that were built once (`jail/src/template.rs`).
//!
//! A template shows the host as it was when it was made. What is in a directory that it shows follows the host; a file, a
//! directory that was replaced, and what is mounted in one do not. So each of its sources is looked at before a box is made
//! from it, and a change in the mounts of this process makes all of them stale. Without a template, a box is built on its
//! own, from the same plan.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::plan::{Plan, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::parked::{Stamp, stamp};
use crate::warden::Warden;

/// How many there are at most: one for each runtime, with each number of CPUs that is asked for.
const MOST: usize = 16;
/// How long making one may take. It takes a millisecond; with a source on a file server that hangs, it takes for ever.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before trying again after one could not be made.
const RESPITE: Duration = Duration::from_secs(60);

/// The templates of a server.
#[derive(Debug)]
pub(crate) struct Templates {
    /// Never locked while one is made.
    known: Mutex<Known>,
    /// Held while one is made.
    making: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Known {
    templates: Vec<Template>,
    /// The mount table of this process, which can be polled for changes.
    mounts: Option<File>,
    /// How many times it has changed.
    changes: u64,
}

#[derive(Debug)]
struct Template {
    foundation: Vec<Step>,
    sources: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    made: Made,
}

/// What became of making one.
#[derive(Debug, Clone)]
enum Made {
    /// Its mount namespace.
    There(Arc<OwnedFd>),
    Failed(Instant),
}

impl Templates {
    pub(crate) fn new() -> Templates {
        let mounts = File::open("/proc/self/mountinfo").ok();
        let known = Mutex::new(Known { templates: Vec::new(), mounts, changes: 0 });
        Templates { known, making: tokio::sync::Mutex::new(()) }
    }

    /// A template with the foundation of this plan, which is made if there is none. `None`: the plan does not take one, or
    /// none could be made.
    pub(crate) async fn suiting(&self, plan: &Plan, warden: &Warden) -> Option<Arc<OwnedFd>> {
        if !plan.takes_template() {
            return None;
        }
        let found = self.lock().find(plan);
        if let Ok(made) = found {
            return made.there();
        }
        let _making = self.making.lock().await;
        let found = self.lock().find(plan);
        let changes = match found {
            Ok(made) => return made.there(),
            Err(changes) => changes,
        };
        let stamps = plan.sources.iter().map(|source| stamp(source)).collect();
        let made = make(plan, warden).await;
        let made = made.map_or_else(|_| Made::Failed(Instant::now()), |made| Made::There(Arc::new(made)));
        let (foundation, sources) = (plan.foundation.clone(), plan.sources.clone());
        self.lock().add(changes, Template { foundation, sources, stamps, made: made.clone() });
        made.there()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // A panic leaves it with a template more or less.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What there is for this plan, or else how many times the mounts have changed until now.
    fn find(&mut self, plan: &Plan) -> Result<Made, u64> {
        if self.mounts.is_none() {
            return Ok(Made::Failed(Instant::now()));
        }
        self.forget_if_mounts_changed();
        let place = self.templates.iter().position(|template| template.is_of(plan)).ok_or(self.changes)?;
        if self.templates[place].is_current() {
            return Ok(self.templates[place].made.clone());
        }
        self.templates.remove(place);
        Err(self.changes)
    }

    /// Keeps a template, unless the mounts have changed since it was begun.
    fn add(&mut self, changes: u64, template: Template) {
        self.forget_if_mounts_changed();
        if changes != self.changes {
            return;
        }
        if self.templates.len() >= MOST {
            self.templates.remove(0);
        }
        self.templates.push(template);
    }

    fn forget_if_mounts_changed(&mut self) {
        let Some(mounts) = &self.mounts else { return };
        // As proc_pid_mounts(5) describes it.
        let mut changed = [PollFd::new(mounts, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut changed, Some(&now)) {
            Ok(0) => {}
            Ok(_) | Err(_) => self.forget(),
        }
    }

    fn forget(&mut self) {
        self.changes += 1;
        self.templates.clear();
    }
}

impl Template {
    fn is_of(&self, plan: &Plan) -> bool {
        (&self.sources, &self.foundation) == (&plan.sources, &plan.foundation)
    }

    fn is_current(&self) -> bool {
        match self.made {
            Made::There(_) => {
                self.sources.iter().zip(&self.stamps).all(|(source, before)| stamp(source) == *before)
            }
            Made::Failed(when) => when.elapsed() < RESPITE,
        }
    }
}

impl Made {
    fn there(self) -> Option<Arc<OwnedFd>> {
        match self {
            Made::There(template) => Some(template),
            Made::Failed(_) => None,
        }
    }
}

/// Has a keeper make one, on a thread that may wait for it.
async fn make(plan: &Plan, warden: &Warden) -> io::Result<OwnedFd> {
    let (keeper, plan) = (warden.hire()?, plan.clone());
    let making = tokio::task::spawn_blocking(move || keeper.make_template(&plan, PATIENCE));
    making.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use belljar_jail::plan::{Birth, CgroupEntry, Command, Confinement, IdPair, Identity, Opener};

    use super::*;

    fn plan(source: PathBuf) -> Plan {
        let foundation =
            vec![Step::Bind { source: 0, path: "/x".into(), mode: belljar_jail::plan::BindMode::ReadOnly }];
        Plan {
            birth: Birth::Executed,
            identity: Identity { code: IdPair { inside: 1, outside: 1 }, init: None },
            cgroup: CgroupEntry::None,
            orphans: Vec::new(),
            sources: vec![source],
            opener: Opener::Keeper,
            foundation,
            build: vec![Step::Pivot],
            meminfo: Vec::new(),
            confinement: Confinement { rlimits: Vec::new(), landlock: Vec::new() },
            command: Command { program: "/x".into(), argv: Vec::new(), env: Vec::new(), cwd: "/".into() },
            exit_listener: false,
        }
    }

    /// With a mount table that never changes: that of the machine may, while this runs.
    fn known() -> Known {
        Known { templates: Vec::new(), mounts: File::open("/dev/null").ok(), changes: 0 }
    }

    /// Any descriptor will do: nobody enters it.
    fn template(plan: &Plan) -> Template {
        let made = Made::There(Arc::new(File::open("/dev/null").unwrap().into()));
        let stamps = plan.sources.iter().map(|source| stamp(source)).collect();
        Template { foundation: plan.foundation.clone(), sources: plan.sources.clone(), stamps, made }
    }

    struct Source(PathBuf);

    impl Source {
        fn new(name: &str) -> Source {
            let path = std::env::temp_dir().join(format!("belljar-templates-{}-{name}", std::process::id()));
            std::fs::write(&path, "old").unwrap();
            Source(path)
        }

        /// A new file, as an upgrade makes it.
        fn replace(&self) {
            let new = self.0.with_extension("new");
            std::fs::write(&new, "new").unwrap();
            std::fs::rename(&new, &self.0).unwrap();
        }
    }

    impl Drop for Source {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn one_whose_source_was_replaced_is_not_found() {
        let source = Source::new("replaced");
        let plan = plan(source.0.clone());
        let mut known = known();
        let changes = known.changes;
        known.add(changes, template(&plan));
        assert!(matches!(known.find(&plan), Ok(Made::There(_))), "the control");
        source.replace();
        assert!(known.find(&plan).is_err());
        assert!(known.templates.is_empty(), "it is let go");
    }

    #[test]
    fn another_plan_has_another_template() {
        let (one, other) = (Source::new("one"), Source::new("other"));
        let mut known = known();
        let changes = known.changes;
        known.add(changes, template(&plan(one.0.clone())));
        assert!(known.find(&plan(one.0.clone())).is_ok(), "the control");
        assert!(known.find(&plan(other.0.clone())).is_err());
        let mut more = plan(one.0.clone());
        more.foundation.push(Step::Directory("/y".into()));
        assert!(known.find(&more).is_err());
    }

    #[test]
    fn one_that_was_begun_before_the_mounts_changed_is_not_kept() {
        let source = Source::new("mounts");
        let plan = plan(source.0.clone());
        let mut known = known();
        let begun = known.changes;
        known.forget();
        known.add(begun, template(&plan));
        assert!(known.find(&plan).is_err());
        let begun = known.changes;
        known.add(begun, template(&plan));
        assert!(known.find(&plan).is_ok(), "the control");
    }

    #[test]
    fn where_the_mounts_cannot_be_watched_there_is_none() {
        let source = Source::new("unwatched");
        let plan = plan(source.0.clone());
        let mut known = known();
        known.add(0, template(&plan));
        assert!(known.find(&plan).is_ok_and(|made| made.there().is_some()), "the control");
        known.mounts = None;
        assert!(known.find(&plan).is_ok_and(|made| made.there().is_none()));
    }

    #[test]
    fn one_that_failed_is_not_tried_again_at_once_and_there_are_only_so_many() {
        let source = Source::new("failed");
        let plan = plan(source.0.clone());
        let mut known = known();
        let changes = known.changes;
        known.add(changes, Template { made: Made::Failed(Instant::now()), ..template(&plan) });
        assert!(known.find(&plan).is_ok_and(|made| made.there().is_none()));
        for number in 0..2 * MOST {
            let mut other = template(&plan);
            other.foundation.push(Step::Directory(number.to_string().into()));
            let changes = known.changes;
            known.add(changes, other);
        }
        assert_eq!(known.templates.len(), MOST);
    }
}
