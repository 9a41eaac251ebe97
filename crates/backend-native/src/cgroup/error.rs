//! What can go wrong with a cgroup, in words.

use std::io;
use std::path::PathBuf;

use super::Controller;

/// Why something could not be done with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no usable cgroup on this host.
    #[error("no cgroup can be made here: {why}")]
    Unavailable {
        /// The reason that was observed.
        why: String,
        /// What would help.
        fix: String,
    },
    /// A directory could not be made.
    #[error("cannot make a cgroup in {}", dir.parent().unwrap_or(dir).display())]
    Make {
        /// Which.
        dir: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The controller is not available.
    #[error("the {controller} controller is not available")]
    NoController {
        /// Which.
        controller: Controller,
    },
    /// The kernel refused a limit.
    #[error("cannot write {value} to {}", file.display())]
    SetLimit {
        /// Where it is set.
        file: PathBuf,
        /// What it was to be.
        value: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A limit was accepted but is not in force.
    #[error("{} is {found} after {value} was written to it", file.display())]
    NotTaken {
        /// Where it was set.
        file: PathBuf,
        /// What it was to be.
        value: String,
        /// What it is.
        found: String,
    },
    /// Memory is limited and swap is not.
    #[error("this host has swap, and no {} to limit it with", file.display())]
    UnlimitedSwap {
        /// What is missing.
        file: PathBuf,
    },
    /// A counter could not be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A counter is not a number.
    #[error("{} holds no number for {wanted}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What was looked for in it.
        wanted: &'static str,
    },
    /// A directory could not be removed.
    #[error("cannot remove the cgroup {}", dir.display())]
    Remove {
        /// Which.
        dir: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}
