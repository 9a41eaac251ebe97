//! How many runs there are at a time: a fixed number of slots, with a bounded queue, first come, first served. If the
//! queue is full, the request is refused at once, and the error says when to try again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::RunError;

/// The slots of an engine and the queue before them.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    free: Arc<Semaphore>,
    slots: usize,
    queue: usize,
    waiting: AtomicUsize,
    /// The recent duration of a run, in microseconds: an average in which the newest run has a weight of one eighth.
    typical_micros: AtomicU64,
}

impl Slots {
    /// With this many slots, and this many places in the queue.
    #[must_use]
    pub fn new(slots: usize, queue: usize) -> Slots {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        Slots(Arc::new(Counts {
            free: Arc::new(Semaphore::new(slots)),
            slots,
            queue,
            waiting: AtomicUsize::new(0),
            typical_micros: AtomicU64::new(0),
        }))
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.slots
    }

    /// How many are in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.slots.saturating_sub(self.0.free.available_permits())
    }

    /// How many requests wait for one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// When a place in the queue is likely to be free: in one second at the earliest, in a minute at the latest.
    fn retry_after(&self) -> Duration {
        let typical = Duration::from_micros(self.0.typical_micros.load(Ordering::Relaxed));
        let slots = u32::try_from(self.0.slots).unwrap_or(u32::MAX);
        let seconds = (typical / slots).as_secs_f64().ceil();
        Duration::try_from_secs_f64(seconds)
            .unwrap_or_default()
            .clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    fn remember(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let average = |before: u64| Some(if before == 0 { took } else { before - before / 8 + took / 8 });
        let _ = self.0.typical_micros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, average);
    }
}

/// A place in the queue, or already a slot. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) enum Place {
    /// There is no queue: the engine runs every request at once.
    Unlimited,
    Slot(Slot),
    Waiting(Waiting),
}

/// The right to run. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    taken: Instant,
    _permit: OwnedSemaphorePermit,
}

/// A waiting request, for as long as it waits.
#[derive(Debug)]
pub(crate) struct Waiting(Slots);

impl Place {
    pub(crate) fn join(slots: Option<&Slots>) -> Result<Place, RunError> {
        let Some(slots) = slots else { return Ok(Place::Unlimited) };
        // This succeeds only while no request waits: a returned permit goes to the first in the queue.
        if let Ok(permit) = slots.0.free.clone().try_acquire_owned() {
            return Ok(Place::Slot(Slot::new(slots.clone(), permit)));
        }
        let room = |waiting: usize| (waiting < slots.0.queue).then_some(waiting + 1);
        match slots.0.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
            Ok(_) => Ok(Place::Waiting(Waiting(slots.clone()))),
            Err(waiting) => Err(RunError::Busy { waiting, retry_after: slots.retry_after() }),
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Place::Waiting(_))
    }

    /// Waits for a slot, unless it has one already. `None` is the right to run without a slot.
    pub(crate) async fn turn(self) -> Option<Slot> {
        match self {
            Place::Unlimited => None,
            Place::Slot(slot) => Some(slot),
            Place::Waiting(waiting) => {
                let slots = waiting.0.clone();
                // This fails only if the semaphore is closed, which never happens.
                let permit = slots.0.free.clone().acquire_owned().await.ok()?;
                drop(waiting);
                Some(Slot::new(slots, permit))
            }
        }
    }
}

impl Slot {
    fn new(slots: Slots, permit: OwnedSemaphorePermit) -> Slot {
        Slot { slots, taken: Instant::now(), _permit: permit }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.remember(self.taken.elapsed());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_refuses_and_says_when_to_retry() {
        let slots = Slots::new(1, 1);
        let running = Place::join(Some(&slots)).unwrap().turn().await;
        let waiting = Place::join(Some(&slots)).unwrap();
        assert_eq!((slots.in_use(), slots.waiting()), (1, 1));
        match Place::join(Some(&slots)) {
            Err(RunError::Busy { waiting: 1, retry_after }) => assert!(retry_after.as_secs() >= 1),
            other => panic!("{other:?}"),
        }
        drop(running);
        let second = waiting.turn().await;
        assert_eq!((slots.in_use(), slots.waiting()), (1, 0));
        drop(second);
        assert_eq!(slots.in_use(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_queue_at_once() {
        let slots = Slots::new(1, 1);
        let running = Place::join(Some(&slots)).unwrap();
        let mut turn = Box::pin(Place::join(Some(&slots)).unwrap().turn());
        assert!(futures_poll(turn.as_mut()).await.is_none());
        drop(turn);
        assert_eq!(slots.waiting(), 0);
        drop(running);
        assert_eq!(slots.in_use(), 0);
    }

    #[tokio::test]
    async fn the_first_in_line_is_the_first_to_run() {
        let slots = Slots::new(1, 8);
        let running = Place::join(Some(&slots)).unwrap();
        let mut first = Box::pin(Place::join(Some(&slots)).unwrap().turn());
        let mut second = Box::pin(Place::join(Some(&slots)).unwrap().turn());
        assert!(futures_poll(first.as_mut()).await.is_none());
        assert!(futures_poll(second.as_mut()).await.is_none());
        drop(running);
        assert!(futures_poll(second.as_mut()).await.is_none());
        let slot = futures_poll(first.as_mut()).await;
        assert!(slot.is_some());
    }

    #[test]
    fn the_time_to_come_back_follows_what_runs_take() {
        let slots = Slots::new(2, 0);
        assert_eq!(slots.retry_after(), Duration::from_secs(1));
        slots.remember(Duration::from_secs(20));
        assert_eq!(slots.retry_after(), Duration::from_secs(10));
        slots.remember(Duration::from_secs(10_000));
        assert_eq!(slots.retry_after(), Duration::from_secs(60));
    }

    /// Polls a future once.
    async fn futures_poll<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
