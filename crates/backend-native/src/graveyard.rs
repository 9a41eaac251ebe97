//! Boxes that were used and wait to be taken apart, when that keeps nobody waiting.
//!
//! Whoever looks after them is told when a run begins, and comes by until it has ended: at its end somebody waits for the
//! answer, and a task to be woken then would stand between the two.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::bustle;
use crate::execution::NativeExecution;

/// Boxes that may wait here or be taken apart at a time. If these are not enough, runs wait for their own.
const MOST: u32 = 256;
/// How often somebody comes by while runs last and no box waits.
const SELDOM: Duration = Duration::from_millis(30);

static ROOM: Semaphore = Semaphore::const_new(MOST as usize);
static WAITING: Mutex<VecDeque<Grave>> = Mutex::new(VecDeque::new());
/// Whether somebody looks after them.
static TENDED: AtomicBool = AtomicBool::new(false);
static BEGUN: Notify = Notify::const_new();

struct Grave {
    execution: NativeExecution,
    since: Instant,
    room: SemaphorePermit<'static>,
}

/// A run has begun that will leave a box, or there will be none any more.
pub(crate) fn expect() {
    BEGUN.notify_one();
}

/// Has a box taken apart later, or gives it back if nobody can.
pub(crate) fn bury_later(execution: NativeExecution) -> Result<(), Box<NativeExecution>> {
    match ROOM.try_acquire() {
        Ok(room) if TENDED.load(Ordering::Relaxed) => {
            waiting().push_back(Grave { execution, since: Instant::now(), room });
            Ok(())
        }
        _ => Err(Box::new(execution)),
    }
}

/// Waits until no box is being taken apart any more.
pub(crate) async fn all_buried() {
    // It fails only if the semaphore was closed, which nobody does.
    let _ = ROOM.acquire_many(MOST).await;
}

/// Looks after them, for as long as there may be any.
pub(crate) async fn tend(is_closed: impl Fn() -> bool) {
    struct Tending;
    impl Drop for Tending {
        fn drop(&mut self) {
            TENDED.store(false, Ordering::Relaxed);
            // One may have come at the last moment.
            waiting().clear();
        }
    }
    TENDED.store(true, Ordering::Relaxed);
    let _tending = Tending;
    loop {
        // In this order: a run leaves its box before it ends.
        if !bustle::is_anybody_waiting() && waiting().is_empty() {
            if is_closed() {
                return;
            }
            BEGUN.notified().await;
        }
        tokio::time::sleep(if waiting().is_empty() { SELDOM } else { bustle::QUIET }).await;
        for Grave { execution, room, .. } in due() {
            tokio::spawn(async move {
                execution.take_apart_now().await;
                drop(room);
            });
        }
    }
}

/// Those whose time has come.
fn due() -> Vec<Grave> {
    let mut waiting = waiting();
    let count = match bustle::is_quiet() {
        true => waiting.len(),
        false => waiting.iter().take_while(|grave| grave.since.elapsed() >= bustle::PATIENCE).count(),
    };
    waiting.drain(..count).collect()
}

fn waiting() -> MutexGuard<'static, VecDeque<Grave>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
