//! Small files that cache results between runs.
//!
//! Their content decides what a box sees and which limits it gets, so a file is trusted only if no other user could
//! have written it. A file that is not trusted, or cannot be written, costs only time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;

const LARGEST_FILE: u64 = 64 * 1024;

/// The content of a file that only we can have written.
pub fn read(dir: &Path, name: &str) -> Option<Vec<u8>> {
    // Non-blocking, in case there is a pipe at this path.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(dir.join(name)).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !ours || !metadata.is_file() || metadata.len() > LARGEST_FILE {
        return None;
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).ok()? + 1);
    file.take(LARGEST_FILE).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Replaces a file atomically. If that fails, the next run finds nothing.
pub fn write(dir: &Path, name: &str, content: &[u8]) {
    let _ = replace(dir, name, content);
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let draft = dir.join(format!(".{name}.{}.{count}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(content).and_then(|()| fs::rename(&draft, dir.join(name)));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}
