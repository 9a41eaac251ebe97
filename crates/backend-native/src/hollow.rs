//! A hollow box: built, and entered by nobody yet. A zygote's child can go in at once, so whoever finds no box waiting with a
//! runtime in it need not wait for one to be built, too. It has PID 1 in it and little else.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use belljar_core::path::BoxPath;
use tokio::sync::Notify;

use crate::execution::{Entrance, NativeExecution};
use crate::parked::{Parked, ParkedTerms, Stamped};
use crate::zygote::{Readiness, Zygote};

/// A box that is there for a child of one zygote. Dropping it destroys it.
pub(crate) struct Hollow {
    pub(crate) execution: NativeExecution,
    pub(crate) entrance: Entrance,
    pub(crate) terms: ParkedTerms,
    /// Where the code will be.
    pub(crate) source: BoxPath,
    /// Where what the program reads goes in.
    pub(crate) stdin: OwnedFd,
    /// The user of the zygote that may send a child in.
    pub(crate) owner: u32,
}

impl Hollow {
    /// Has a child of the zygote's enter, and waits until it waits for its code.
    pub(crate) async fn inhabit(self, zygote: &Zygote, readiness: Readiness) -> Result<Parked, BackendError> {
        let Hollow { execution, entrance, terms, source, stdin, .. } = self;
        entrance.admit_child_of(zygote, readiness).await?;
        // Nobody else is to hold the ends of its streams.
        drop(entrance);
        Parked::when_booted(execution, terms, source.as_str(), b"", stdin, zygote.memory()).await
    }

    fn is_good_for(&mut self, owner: u32, runtime: &Stamped) -> bool {
        self.owner == owner && self.terms.runtime == *runtime && self.execution.lives()
    }
}

/// Hollow boxes that nobody wants yet.
#[derive(Default)]
pub(crate) struct Spares {
    of: Mutex<HashMap<&'static str, Vec<Hollow>>>,
    taken: Notify,
}

impl Spares {
    /// One for a child of this owner's zygote. Others of its language are of no more use.
    pub(crate) fn take(&self, language: Language, owner: u32, runtime: &Stamped) -> Option<Hollow> {
        self.taken.notify_one();
        self.keep_good(language, owner, runtime);
        self.lock().get_mut(language.name)?.pop()
    }

    pub(crate) fn put(&self, language: Language, hollow: Hollow) {
        self.lock().entry(language.name).or_default().push(hollow);
    }

    /// How many there are that are good for this.
    pub(crate) fn count(&self, language: Language, owner: u32, runtime: &Stamped) -> usize {
        self.keep_good(language, owner, runtime);
        self.lock().get(language.name).map_or(0, Vec::len)
    }

    pub(crate) fn clear(&self) {
        // Not while others wait for the lock: to destroy a box takes a moment.
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Returns when one has been taken.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }

    fn keep_good(&self, language: Language, owner: u32, runtime: &Stamped) {
        let mut spares = self.lock();
        let Some(spares_of) = spares.get_mut(language.name) else { return };
        let all = std::mem::take(spares_of);
        let (good, of_no_use): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|mut hollow| (hollow.is_good_for(owner, runtime), hollow))
            .partition(|(good, _)| *good);
        spares_of.extend(good.into_iter().map(|(_, hollow)| hollow));
        drop(spares);
        drop(of_no_use);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<Hollow>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}
