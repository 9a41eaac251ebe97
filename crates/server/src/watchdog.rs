//! A thread that sees to it that some other thread watches the sockets.
//!
//! Of the threads that serve, the one that watches is also the one that takes up what it sees: the others sleep until
//! there is more than one thing to do. If what it takes up blocks, because a box is being built, nobody watches
//! meanwhile, and a question after the server's health would wait for the box. So, while there are runs, another thread
//! is woken now and then; it finds nothing to do and watches, if nobody else does.
//!
//! To wake another thread for every run would do, too. But it would cost every run what handing it over costs.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::runs::Runs;

/// For how long nobody may watch.
const GLANCE: Duration = Duration::from_millis(10);
/// How many glances without a run it takes until the watchdog sleeps: the next run is likely to come at once.
const QUIET: u32 = 100;

/// Starts the watchdog for as long as the process lives.
///
/// # Errors
/// That there is no thread to be had.
pub(crate) fn start(runs: Runs, threads: Handle) -> io::Result<()> {
    let watching = move || loop {
        runs.wait_for_one();
        watch(&runs, &threads);
    };
    thread::Builder::new().name("belljar-watchdog".to_owned()).spawn(watching).map(drop)
}

/// Looks after the runs until there have been none for a while.
fn watch(runs: &Runs, threads: &Handle) {
    let mut quiet = 0;
    while quiet < QUIET {
        thread::sleep(GLANCE);
        if runs.count() == 0 {
            quiet += 1;
        } else {
            quiet = 0;
            drop(threads.spawn(async {}));
        }
    }
}
