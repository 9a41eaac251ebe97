//! Which tests of one process may run at the same time: most run side by side, but a test that compares the process before
//! and after a run needs the process for itself. This matters for `cargo test`, which runs tests as threads; `cargo nextest`
//! gives each test its own process.

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

thread_local! {
    static SHARED: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Held while a test runs beside others. It must be dropped on the thread that made it.
pub(crate) struct Shared;

impl Shared {
    pub(crate) fn begin() -> Shared {
        // A test that failed while it held the lock does not affect this one.
        SHARED.set(Some(TURN.read().unwrap_or_else(PoisonError::into_inner)));
        Shared
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.take();
    }
}

/// Waits until every other test of this process has ended, and keeps the next from starting.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    SHARED.take();
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}
