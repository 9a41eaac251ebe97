//! An empty box: built, but not entered yet. A zygote's child can enter it at once, so a run that finds no parked box
//! need not wait for a box to be built as well. It has PID 1 in it and little else.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use belljar_core::path::BoxPath;
use tokio::sync::Notify;

use crate::execution::{Entrance, NativeExecution};
use crate::parked::{self, Parked, ParkedTerms, Stamped};
use crate::zygote::{self, Readiness, Zygote};

/// A box for a child of one zygote. Dropping it destroys it.
pub(crate) struct EmptyBox {
    pub(crate) execution: NativeExecution,
    pub(crate) entrance: Entrance,
    pub(crate) terms: ParkedTerms,
    /// The path of the code.
    pub(crate) source: BoxPath,
    /// The write end of the program's stdin.
    pub(crate) stdin: OwnedFd,
    /// The user of the zygote whose children may enter.
    pub(crate) owner: u32,
}

impl EmptyBox {
    /// Has a child of the zygote enter, and waits until it waits for its code.
    pub(crate) async fn inhabit(self, zygote: &Zygote, readiness: Readiness) -> Result<Parked, BackendError> {
        let EmptyBox { mut execution, entrance, terms, source, stdin, .. } = self;
        let listener = zygote.bear(&entrance.entry(), readiness).await?;
        execution.decide_on_calls(listener)?;
        // No other process may hold the ends of its streams.
        drop(entrance);
        Parked::when_booted(execution, terms, source.as_str(), b"", stdin, zygote.memory()).await
    }

    /// Leaves what the child of a zygote is to take: arguments and variables. Nothing else is in the box yet that could
    /// read them.
    pub(crate) fn leave_extras(&self, extras: &[u8]) -> io::Result<()> {
        let dir = self.execution.working_dir().ok_or(io::ErrorKind::NotFound)?;
        parked::leave_file(dir, self.terms.plan.identity.code.outside, zygote::EXTRAS, extras)
    }

    fn is_good_for(&mut self, owner: u32, runtime: &Stamped) -> bool {
        self.owner == owner && self.terms.runtime == *runtime && self.execution.lives()
    }
}

/// Empty boxes that are not in use yet.
#[derive(Default)]
pub(crate) struct EmptyBoxes {
    of: Mutex<HashMap<&'static str, Vec<EmptyBox>>>,
    taken: Notify,
}

impl EmptyBoxes {
    /// Takes one for a child of this owner's zygote. Others of its language are out of date.
    pub(crate) fn take(&self, language: Language, owner: u32, runtime: &Stamped) -> Option<EmptyBox> {
        self.taken.notify_one();
        self.keep_good(language, owner, runtime);
        self.lock().get_mut(language.name)?.pop()
    }

    pub(crate) fn put(&self, language: Language, empty: EmptyBox) {
        self.lock().entry(language.name).or_default().push(empty);
    }

    /// How many boxes suit this zygote and runtime.
    pub(crate) fn count(&self, language: Language, owner: u32, runtime: &Stamped) -> usize {
        self.keep_good(language, owner, runtime);
        self.lock().get(language.name).map_or(0, Vec::len)
    }

    pub(crate) fn clear(&self) {
        // Not while holding the lock: destroying a box takes a moment.
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Returns when one has been taken.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }

    fn keep_good(&self, language: Language, owner: u32, runtime: &Stamped) {
        let mut empty_boxes = self.lock();
        let Some(of_language) = empty_boxes.get_mut(language.name) else { return };
        let all = std::mem::take(of_language);
        let (good, of_no_use): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|mut empty| (empty.is_good_for(owner, runtime), empty))
            .partition(|(good, _)| *good);
        of_language.extend(good.into_iter().map(|(_, empty)| empty));
        drop(empty_boxes);
        drop(of_no_use);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<EmptyBox>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for EmptyBoxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmptyBoxes").finish_non_exhaustive()
    }
}
