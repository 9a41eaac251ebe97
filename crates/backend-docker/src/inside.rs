//! The paths that every box has inside, whichever backend makes it.

use std::path::PathBuf;

use belljar_core::backend::SandboxSpec;
use belljar_host::program::Places;

/// The directory that is always writable, and the home of the code's user.
pub(crate) const SANDBOX: &str = "/sandbox";
/// Where a workspace is shown.
pub(crate) const WORK: &str = "/work";
/// The search path for commands, if the image does not set one.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The host name of the box.
pub(crate) const HOSTNAME: &str = "belljar";

/// The directories of a program.
pub(crate) fn places(sandbox: &SandboxSpec) -> Places {
    let cwd = if sandbox.workspace.is_some() { WORK } else { SANDBOX };
    Places { home: PathBuf::from(SANDBOX), cwd: PathBuf::from(cwd), tmp: PathBuf::from("/tmp") }
}
