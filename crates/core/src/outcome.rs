//! What happened.

use std::time::Duration;

use crate::finding::Finding;
use crate::guarantee::Enforcement;
use crate::language::Language;
use crate::output::Captured;
use crate::policy::Decision;
use crate::request::{BackendName, Network};

/// How a program ended. Code that ran and failed is an outcome like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended by itself, with this exit status.
    Exited(u8),
    /// A signal ended it.
    Signaled(u8),
    /// The wall clock or its CPU time ran out.
    TimedOut(TimeLimit),
    /// The kernel's counter says that the memory limit killed it.
    OutOfMemory,
    /// The caller disconnected or cancelled; the number is the signal that told us, if any.
    Cancelled(Option<u8>),
    /// The policy did not let it run, or a person did not approve it.
    Denied,
}

/// Which clock ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// `timeout`.
    Wall(Duration),
    /// `cpu-time`.
    Cpu(Duration),
}

impl Outcome {
    /// The exit status that the contract assigns to this ending.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Exited(code) => code,
            Outcome::Signaled(signal) => 128u8.saturating_add(signal),
            Outcome::TimedOut(_) => 124,
            Outcome::OutOfMemory => 137,
            Outcome::Cancelled(signal) => 128 + signal.unwrap_or(2).min(64),
            Outcome::Denied => 126,
        }
    }
}

/// A part of a run that has a box and limits of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The compiler turns the code into a program.
    Compile,
    /// The program runs.
    Run,
}

/// What a compiler came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compilation {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote.
    pub stdout: Captured,
    /// What it complained about.
    pub stderr: Captured,
    /// What it used; nothing if the program was there already.
    pub usage: Usage,
    /// Whether the program was there already, because the same code was compiled before.
    pub cached: bool,
}

/// What a program used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How long it waited in the queue.
    pub queue: Duration,
    /// From the first step of building the box to the end of the last process in it.
    pub wall: Duration,
    /// CPU time of all processes.
    pub cpu: Duration,
    /// The most memory that all processes used at one time, in bytes.
    pub memory_peak: u64,
}

/// What a program with a network did with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkUse {
    /// Bytes that left the box.
    pub up: u64,
    /// Bytes that came into it.
    pub down: u64,
    /// What was refused, the first ones only.
    pub denied: Vec<DeniedHost>,
}

/// Something that a box tried to reach in vain. Its text is the code's own, and of bounded size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedHost {
    /// A name or an address.
    pub host: String,
    /// The port; none for a name that was only looked up.
    pub port: Option<u16>,
    /// Why it was refused.
    pub reason: String,
    /// How many times.
    pub count: u64,
}

/// How the box was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a parked box.
    Warm,
    /// With a child of a zygote.
    Zygote,
    /// Built for this run.
    Cold,
}

/// A file collected from a box: its bytes are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedFile {
    /// Relative to the working directory; plain components only.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// What a run did to its workspace. Paths and text are the code's own, and of bounded size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files that were not there before.
    pub added: Vec<String>,
    /// Files with another content, or another kind.
    pub changed: Vec<String>,
    /// Files that are gone.
    pub removed: Vec<String>,
    /// The changes of text files as a unified patch, in the form of `git diff`.
    pub patch: String,
    /// Whether something is missing from the lists or from the patch, because there was too much of it.
    pub truncated: bool,
}

/// Everything that is known about a run that took place.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are those of the contract's result object")]
pub struct Report {
    pub id: String,
    pub outcome: Outcome,
    /// What the stage that ended the run wrote: the program, or a compiler that failed.
    pub stdout: Captured,
    pub stderr: Captured,
    /// What the program used; the compiler's is apart.
    pub usage: Usage,
    /// For a language that is compiled.
    pub compile: Option<Compilation>,
    /// Which stage ended the run.
    pub stage: Stage,
    pub start: Start,
    pub language: Language,
    pub runtime: String,
    pub backend: BackendName,
    pub image: Option<String>,
    pub network: Network,
    /// What became of the network, if the backend knows.
    pub network_use: Option<NetworkUse>,
    pub enforcement: Enforcement,
    /// What a scan of the code found, if it was scanned.
    pub findings: Vec<Finding>,
    /// What was decided about it, if there was something to decide.
    pub decision: Option<Decision>,
    /// Why a run on a backend with a pool started cold.
    pub cold_reason: Option<String>,
    /// Present if the request asked for files.
    pub files: Option<Vec<CollectedFile>>,
    /// Present if the request asked for changes.
    pub changes: Option<Changes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        assert_eq!(Outcome::Exited(3).exit_code(), 3);
        assert_eq!(Outcome::Signaled(11).exit_code(), 139);
        assert_eq!(Outcome::TimedOut(TimeLimit::Wall(Duration::from_secs(1))).exit_code(), 124);
        assert_eq!(Outcome::OutOfMemory.exit_code(), 137);
        assert_eq!(Outcome::Denied.exit_code(), 126);
        assert_eq!(Outcome::Cancelled(Some(15)).exit_code(), 143);
    }
}
