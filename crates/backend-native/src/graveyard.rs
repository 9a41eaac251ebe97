//! Used boxes that wait for their teardown, which happens when it delays no run.
//!
//! The teardown task is woken when a run begins, and polls until it has ended. Waking it at the end of a run would
//! delay the answer that the caller is waiting for at that moment.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::bustle;
use crate::execution::NativeExecution;

/// How many boxes may wait here or be torn down at a time. Beyond that, runs wait for the teardown of their own box.
const MOST: u32 = 256;
/// How often the task polls while runs last and no box waits.
const SELDOM: Duration = Duration::from_millis(30);

static ROOM: Semaphore = Semaphore::const_new(MOST as usize);
static WAITING: Mutex<VecDeque<Grave>> = Mutex::new(VecDeque::new());
/// Whether the teardown task is running.
static TENDED: AtomicBool = AtomicBool::new(false);
static BEGUN: Notify = Notify::const_new();

struct Grave {
    execution: NativeExecution,
    since: Instant,
    room: SemaphorePermit<'static>,
}

/// A run has begun that will leave a box, or there will be no more runs.
pub(crate) fn expect() {
    BEGUN.notify_one();
}

/// Leaves a box to the teardown task, or returns it if that is not running or has no room.
pub(crate) fn bury_later(execution: NativeExecution) -> Result<(), Box<NativeExecution>> {
    match ROOM.try_acquire() {
        Ok(room) if TENDED.load(Ordering::Relaxed) => {
            waiting().push_back(Grave { execution, since: Instant::now(), room });
            Ok(())
        }
        _ => Err(Box::new(execution)),
    }
}

/// Waits until no box is being torn down any more.
pub(crate) async fn all_buried() {
    // It fails only if the semaphore is closed, which never happens.
    let _ = ROOM.acquire_many(MOST).await;
}

/// Tears down boxes, for as long as there may be any.
pub(crate) async fn tend(is_closed: impl Fn() -> bool) {
    struct Tending;
    impl Drop for Tending {
        fn drop(&mut self) {
            TENDED.store(false, Ordering::Relaxed);
            // A box may have come at the last moment.
            waiting().clear();
        }
    }
    TENDED.store(true, Ordering::Relaxed);
    let _tending = Tending;
    loop {
        // In this order: a run hands over its box before it ends.
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

/// The boxes to be torn down now.
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
