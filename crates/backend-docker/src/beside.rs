//! Waiting for the daemon where nothing can be awaited: on a thread that comes and goes.

use std::io;

/// Runs this to its end, and waits for it. Also where the calling thread drives other futures.
pub(crate) fn beside<T: Send>(work: impl Future<Output = T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(work))
        })?;
        thread.join().map_err(|_| io::Error::other("the thread that waited for the daemon panicked"))?
    })
}
