//! The places that every box has inside, whoever makes it.

use std::path::PathBuf;

use belljar_core::backend::SandboxSpec;
use belljar_host::program::Places;

/// The directory that is always writable, and the home of the code's user.
pub(crate) const SANDBOX: &str = "/sandbox";
/// Where a workspace is shown.
pub(crate) const WORK: &str = "/work";
/// Where commands are looked for, if the image does not say.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The box's name for itself.
pub(crate) const HOSTNAME: &str = "belljar";

/// Where a program finds what belongs to it.
pub(crate) fn places(sandbox: &SandboxSpec) -> Places {
    let cwd = if sandbox.workspace.is_some() { WORK } else { SANDBOX };
    Places { home: PathBuf::from(SANDBOX), cwd: PathBuf::from(cwd), tmp: PathBuf::from("/tmp") }
}
