//! Waiting for the daemon in code that cannot await: on a temporary thread.

use std::io;

/// Runs this to its end on another thread, and waits for it. Works even if the calling thread drives other futures.
pub(crate) fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(work))
        })?;
        thread.join().map_err(|_| io::Error::other("the thread that waited for the daemon panicked"))?
    })
}
