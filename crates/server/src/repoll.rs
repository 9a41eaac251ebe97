//! A future that wakes itself, polled again at once.
//!
//! HTTP does so with every body: what reads it and what asked for it are parts of one task, and wake each other. To the
//! runtime a task that was woken is one that another thread could take up, so it wakes one, for nothing: this thread is
//! at it already.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often in a row; after that it is for the runtime to say who is next.
const MOST: usize = 8;

/// The future, and what wakes it.
#[derive(Debug)]
pub(crate) struct Repoll<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    /// The same, as the future has it.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Bell {
    outer: AtomicWaker,
    polling: AtomicBool,
    rung: AtomicBool,
}

impl<F: Future> Repoll<F> {
    pub(crate) fn new(future: F) -> Repoll<F> {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        Repoll { future: Box::pin(future), bell, waker }
    }
}

impl<F: Future> Future for Repoll<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Repoll { future, bell, waker } = &mut *self;
        bell.outer.register(context.waker());
        for _ in 0..MOST {
            // Whatever rings from here on is heard below, at the latest.
            bell.polling.store(true, Ordering::SeqCst);
            bell.rung.swap(false, Ordering::SeqCst);
            let polled = future.as_mut().poll(&mut Context::from_waker(waker));
            bell.polling.store(false, Ordering::SeqCst);
            if polled.is_ready() || !bell.rung.swap(false, Ordering::SeqCst) {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        self.rung.store(true, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            self.outer.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often the runtime is told.
    #[derive(Default)]
    struct Told(AtomicUsize);

    impl Wake for Told {
        fn wake(self: Arc<Told>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that wakes itself so often before it is done, and how often the runtime hears of it.
    fn told_of(number: usize) -> (bool, usize) {
        let (told, mut left) = (Arc::new(Told::default()), number);
        let mut future = Repoll::new(poll_fn(move |context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        let waker = Waker::from(told.clone());
        let ready = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_ready();
        (ready, told.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_and_nobody_is_told() {
        assert_eq!(told_of(0), (true, 0));
        assert_eq!(told_of(MOST - 1), (true, 0));
    }

    #[test]
    fn one_that_does_not_stop_gives_way() {
        assert_eq!(told_of(usize::MAX), (false, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_from_elsewhere_is_lost() {
        for _ in 0..2000 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let waiting = tokio::spawn(Repoll::new(receiver));
            sender.send(1).unwrap();
            assert_eq!(waiting.await.unwrap(), Ok(1));
        }
    }
}
