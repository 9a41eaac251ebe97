//! Used boxes that wait for their teardown, which happens when it delays no run.
//!
//! The teardown task is woken when a run begins, and polls until it has ended. Waking it at the end of a run would
//! delay the answer that the caller is waiting for at that moment.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::live_box::LiveBox;
use crate::load;

/// How many boxes may wait here or be torn down at a time. Beyond that, runs wait for the teardown of their own box.
const MOST: u32 = 256;
/// How often the task polls while runs last and no box waits.
const SELDOM: Duration = Duration::from_millis(30);

static ROOM: Semaphore = Semaphore::const_new(MOST as usize);
static WAITING: Mutex<VecDeque<UsedBox>> = Mutex::new(VecDeque::new());
/// Whether the teardown task is running.
static RUNNING: AtomicBool = AtomicBool::new(false);
static BEGUN: Notify = Notify::const_new();

struct UsedBox {
    home: LiveBox,
    since: Instant,
    room: SemaphorePermit<'static>,
}

/// A run has begun that will leave a box, or there will be no more runs.
pub(crate) fn expect() {
    BEGUN.notify_one();
}

/// Leaves a box to the teardown task, or returns it if that is not running or has no room.
pub(crate) fn tear_down_later(home: LiveBox) -> Result<(), Box<LiveBox>> {
    match ROOM.try_acquire() {
        Ok(room) if RUNNING.load(Ordering::Relaxed) => {
            waiting().push_back(UsedBox { home, since: Instant::now(), room });
            Ok(())
        }
        _ => Err(Box::new(home)),
    }
}

/// Waits until no box is being torn down any more.
pub(crate) async fn all_torn_down() {
    // It fails only if the semaphore is closed, which never happens.
    let _ = ROOM.acquire_many(MOST).await;
}

/// Tears down boxes, for as long as there may be any.
pub(crate) async fn keep_up(is_closed: impl Fn() -> bool) {
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            RUNNING.store(false, Ordering::Relaxed);
            // A box may have come at the last moment.
            waiting().clear();
        }
    }
    RUNNING.store(true, Ordering::Relaxed);
    let _running = Running;
    loop {
        // In this order: a run hands over its box before it ends.
        if !load::is_anybody_waiting() && waiting().is_empty() {
            if is_closed() {
                return;
            }
            BEGUN.notified().await;
        }
        tokio::time::sleep(if waiting().is_empty() { SELDOM } else { load::QUIET }).await;
        for UsedBox { home, room, .. } in due() {
            tokio::spawn(async move {
                home.take_apart_later().await;
                drop(room);
            });
        }
    }
}

/// The boxes to be torn down now.
fn due() -> Vec<UsedBox> {
    let mut waiting = waiting();
    let count = match load::is_quiet() {
        true => waiting.len(),
        false => waiting.iter().take_while(|used| used.since.elapsed() >= load::PATIENCE).count(),
    };
    waiting.drain(..count).collect()
}

fn waiting() -> MutexGuard<'static, VecDeque<UsedBox>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
