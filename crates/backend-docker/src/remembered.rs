//! Cached results in the state directory. Losing them costs only time.

use std::path::Path;

use belljar_host::state;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The cached value under this name, if it exists and can be read.
pub(crate) fn read<T: DeserializeOwned>(dir: Option<&Path>, name: &str) -> Option<T> {
    serde_json::from_slice(&state::read(dir?, name)?).ok()
}

/// Stores it.
pub(crate) fn write(dir: Option<&Path>, name: &str, content: &impl Serialize) {
    if let (Some(dir), Ok(content)) = (dir, serde_json::to_vec(content)) {
        state::write(dir, name, &content);
    }
}
