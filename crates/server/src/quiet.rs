//! When a server may go because nobody needs it: no connection, no WebSocket and no run, for long enough.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::http::App;
use crate::places::Places;
use crate::runs::Runs;

/// How often to look whether the last run has ended, if nobody is connected to hear of it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether clients are still let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Open,
    /// Only those who have connected already.
    Closing,
    Closed,
}

/// Tells when a server is idle, and ends it without losing a client.
#[derive(Debug, Clone)]
pub struct Quiet {
    /// How long it must last; `None` is for ever.
    lasting: Option<Duration>,
    places: Places,
    runs: Runs,
    sockets: Arc<Semaphore>,
    max_sockets: usize,
    pub(crate) entry: Arc<watch::Sender<Entry>>,
}

impl Quiet {
    pub(crate) fn new(app: &App, places: Places) -> Quiet {
        Quiet {
            lasting: app.config.idle_timeout,
            places,
            runs: app.runs.clone(),
            sockets: app.sockets.clone(),
            max_sockets: app.config.max_sockets(),
            entry: Arc::new(watch::Sender::new(Entry::Open)),
        }
    }

    /// Waits until nothing has happened for the time that is configured.
    pub async fn lasted(&self) {
        let Some(lasting) = self.lasting else { return std::future::pending().await };
        let mut since = Instant::now();
        loop {
            if !self.is_now() {
                self.began().await;
                since = Instant::now();
            }
            since = since.max(self.places.left_at());
            sleep_until(since + lasting).await;
            if self.is_now() && self.places.left_at() <= since {
                return;
            }
        }
    }

    /// Lets nobody in any more, and waits until those who were about to come in have what they asked for.
    pub async fn see_out(&self) {
        self.entry.send_replace(Entry::Closing);
        let _ = self.entry.subscribe().wait_for(|entry| *entry == Entry::Closed).await;
        self.began().await;
    }

    fn is_now(&self) -> bool {
        self.places.is_empty() && self.no_runs()
    }

    fn no_runs(&self) -> bool {
        self.runs.count() == 0 && self.sockets.available_permits() == self.max_sockets
    }

    async fn began(&self) {
        loop {
            self.places.emptied().await;
            if self.is_now() {
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
