//! The promises of one test process: most are held side by side, and one that compares the process with what it was
//! before is held alone. `cargo test` runs them as threads; `cargo nextest` gives each a process, and then nobody waits.

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

thread_local! {
    static SHARED: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// A promise is being held, beside others. It goes with the thread that made it.
pub(crate) struct Shared;

impl Shared {
    pub(crate) fn begin() -> Shared {
        // A promise that was broken has nothing to say to this one.
        SHARED.set(Some(TURN.read().unwrap_or_else(PoisonError::into_inner)));
        Shared
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.take();
    }
}

/// Waits until every other promise of this process has been held, and keeps the next from beginning.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    SHARED.take();
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}
