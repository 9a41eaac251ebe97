//! One process at a time: an image that two prepare at once is there twice, and the first is nobody's.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep};

/// How long another may take. Whoever has waited for so long goes ahead: an image too many costs room and nothing else.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Waits until no other process that remembers things in this directory is at it. Lasts for as long as what it returns.
pub(crate) async fn alone(state_dir: Option<&Path>) -> Option<File> {
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
        let first = alone(Some(dir.path())).await;
        assert!(first.is_some());
        let soon = Duration::from_millis(100);
        let early = tokio::time::timeout(soon, alone(Some(dir.path()))).await;
        assert!(early.is_err(), "the first is still at it");
        drop(first);
        assert!(alone(Some(dir.path())).await.is_some());
    }
}
