//! A lock between processes: if two prepare the same image at once, it exists twice, and one copy is left without a
//! name.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep};

/// How long another process may take. After waiting this long, we go ahead: one image too many costs only disk space.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Waits until no other process with this state directory holds the lock. The lock lasts as long as the returned value.
pub(crate) async fn file_lock(state_dir: Option<&Path>) -> Option<File> {
    let dir = state_dir?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir).ok()?;
    let lock = File::open(dir).ok()?;
    let until = Instant::now() + PATIENCE;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < until {
        sleep(BETWEEN_TRIES).await;
    }
    Some(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = file_lock(Some(dir.path())).await;
        assert!(first.is_some());
        let soon = Duration::from_millis(100);
        let early = tokio::time::timeout(soon, file_lock(Some(dir.path()))).await;
        assert!(early.is_err(), "the first is still at it");
        drop(first);
        assert!(file_lock(Some(dir.path())).await.is_some());
    }
}
