//! Ctrl-C and similar signals: the first one ends the run and waits until the box is gone, the second does not wait.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a run.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(u8, Signal)>,
    impatient: Impatient,
}

/// Whether the next signal ends the process at once.
#[derive(Debug, Clone)]
pub(crate) struct Impatient(Arc<AtomicBool>);

impl Impatient {
    /// Called before there is a box, and once it is gone.
    pub(crate) fn now(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Called when there may be a box, which the first signal ends.
    pub(crate) fn later(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Signals {
    /// Starts to listen. A signal that was ignored when we were started stays ignored: `nohup` and shells use that
    /// for background jobs.
    pub(crate) fn listen() -> io::Result<Signals> {
        let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let impatient = Impatient(Arc::default());
        let mut streams = Vec::new();
        for (number, code) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            if ignored >> (code - 1) & 1 == 1 {
                continue;
            }
            // In this order, so that the first signal sees the flag unset and the second sees it set.
            flag::register_conditional_shutdown(number, 128 + number, impatient.0.clone())?;
            flag::register(number, impatient.0.clone())?;
            streams.push((code, signal(SignalKind::from_raw(number))?));
        }
        Ok(Signals { streams, impatient })
    }

    pub(crate) fn impatient(&self) -> Impatient {
        self.impatient.clone()
    }

    /// The first of them to arrive.
    pub(crate) async fn first(mut self) -> Option<u8> {
        poll_fn(|context| {
            for (code, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(Some(*code));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The mask of proc_pid_status(5): bit N-1 is signal N.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\tff\n"), 0x1001);
        assert_eq!(ignored_signals(""), 0);
    }
}
