//! What was found out once, kept in the state directory. Losing it costs time and nothing else.

use std::path::Path;

use belljar_host::state;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is there under this name, if anything is that can be read.
pub(crate) fn read<T: DeserializeOwned>(dir: Option<&Path>, name: &str) -> Option<T> {
    serde_json::from_slice(&state::read(dir?, name)?).ok()
}

/// Puts it there.
pub(crate) fn write(dir: Option<&Path>, name: &str, content: &impl Serialize) {
    if let (Some(dir), Ok(content)) = (dir, serde_json::to_vec(content)) {
        state::write(dir, name, &content);
    }
}
