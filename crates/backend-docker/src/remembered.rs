//! What was found out once, kept in the state directory. Losing it costs time and nothing else.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

const LONGEST: u64 = 1 << 20;

/// What is there under this name, if anything is that can be read.
pub(crate) fn read<T: DeserializeOwned>(dir: Option<&Path>, name: &str) -> Option<T> {
    let mut text = Vec::new();
    fs::File::open(dir?.join(name)).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Puts it there, whole or not at all: others may do the same.
pub(crate) fn write(dir: Option<&Path>, name: &str, content: &impl Serialize) {
    let Some(dir) = dir else { return };
    let partial = dir.join(format!(".{name}.{}", std::process::id()));
    let written = fs::create_dir_all(dir)
        .and_then(|()| fs::write(&partial, serde_json::to_vec(content).unwrap_or_default()))
        .and_then(|()| fs::rename(&partial, dir.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(partial);
    }
}
