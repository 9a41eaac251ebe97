//! Files that were uploaded for later runs.

use std::time::SystemTime;

use serde::Serialize;

use crate::ToSchema;

/// A file that was uploaded. A run gets it as `{"path": …, "upload": id}` in its `files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Upload {
    /// The identifier of the file.
    pub id: String,
    /// The size of its content, in bytes.
    pub size: usize,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
    /// When the server forgets it, in UTC.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

impl Upload {
    /// A file that is kept until `expires`.
    #[must_use]
    pub fn new(id: &str, size: usize, sha256: &[u8; 32], expires: SystemTime) -> Upload {
        let sha256 = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        Upload { id: id.to_owned(), size, sha256, expires_at: crate::timestamp(expires) }
    }
}

/// The files that the caller has uploaded and that are still kept, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UploadList {
    /// The files.
    pub files: Vec<Upload>,
}
