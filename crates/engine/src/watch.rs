//! One loop that waits for whatever happens first: output, the end, the deadline, or cancellation.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::time::Duration;

use belljar_core::backend::{Event, Execution};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use crate::RunError;
use crate::transcript::Transcript;

/// How long killed processes may take to die. A fork bomb on a busy host takes seconds, because dying costs CPU time, too, and
/// a process in an uninterruptible sleep can delay it. Beyond this it is a fault of the host, and a caller must not wait for
/// it. A server that stops waits longer than this.
const GRACE: Duration = Duration::from_secs(9);

const SIGPIPE: u8 = 13;

/// Why we killed the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The wall clock ran out.
    Deadline,
    /// The caller disconnected or cancelled.
    Cancelled(Option<u8>),
}

enum Next<'a> {
    Event(Event<'a>),
    AlarmRang,
    Cancelled(Option<u8>),
}

/// Watches until all processes are dead and everything they wrote has been read. Returns why we killed them, if we did;
/// output that arrives after the kill is still read.
pub(crate) async fn watch(
    execution: &mut dyn Execution,
    deadline: Instant,
    transcript: &mut Transcript<'_>,
    mut cancel: Pin<&mut impl Future<Output = Option<u8>>>,
) -> Result<Option<Stop>, RunError> {
    let mut stop = None;
    let mut alarm = pin!(sleep_until(deadline));
    loop {
        // A program that floods us always has the next event ready. Without yielding at intervals, the clock would not
        // be checked and the deadline never come.
        consume_budget().await;
        let next = tokio::select! {
            biased;
            () = alarm.as_mut() => Next::AlarmRang,
            signal = cancel.as_mut(), if stop.is_none() => Next::Cancelled(signal),
            event = execution.next_event() => Next::Event(event?),
        };
        let reason = match next {
            Next::Event(Event::Ended) => return Ok(stop),
            Next::Event(Event::Output(stream, bytes)) => match transcript.push(stream, bytes) {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(()) => Stop::Cancelled(Some(SIGPIPE)),
            },
            Next::Event(Event::Network(event)) => {
                transcript.network(&event);
                continue;
            }
            Next::AlarmRang if stop.is_some() => return Err(RunError::Unkillable { grace: GRACE }),
            Next::AlarmRang => Stop::Deadline,
            Next::Cancelled(signal) => Stop::Cancelled(signal),
        };
        if stop.is_none() {
            stop = Some(reason);
            execution.kill();
            alarm.as_mut().reset(Instant::now() + GRACE);
        }
    }
}
