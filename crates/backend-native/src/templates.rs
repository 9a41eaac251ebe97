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
        let Some(mounts) = &self.mounts else { return self.forget() };
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
