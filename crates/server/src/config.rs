//! The settings of the server, as plain values that have been parsed. Where they were written does not matter here.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::allowance::{Allowance, Ceilings};
use belljar_core::limits::{Bytes, Cpus};
use belljar_core::policy::Policy;
use belljar_ledger::approvals::Approvals;
use belljar_ledger::key::PublicKey;
use belljar_wire::Limits;

use crate::caller::Key;
use crate::defaults::Defaults;
use crate::mcp;

/// The most bytes of compiled programs that are kept.
pub(crate) const MOST_PROGRAMS: usize = 64 << 20;

/// How the server is to behave.
#[derive(Debug, Clone)]
pub struct Config {
    /// Runs at a time.
    pub slots: usize,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// The most bytes of one request's body.
    pub max_body: usize,
    /// The most bytes of all bodies together: of requests, from the first byte until the run has ended, and of answers,
    /// until they have been sent. The results from which answers are made have as much again, and [`Keep::bytes`].
    pub body_memory: usize,
    /// Connections at a time. When there are so many, one that waits for its client loses its place to a new one; if none
    /// does, the new one is turned away.
    pub max_connections: usize,
    /// The same for each address; by default half of all.
    pub max_connections_per_address: Option<usize>,
    /// How long a client may take to send the head of a request, and how long an idle connection stays open.
    pub header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub body_timeout: Duration,
    /// How often a stream without news says that it is still there.
    pub heartbeat: Duration,
    /// How long runs may go on after the server was told to stop.
    pub drain: Duration,
    /// How long nobody may need the server before it stops; `None` is for ever.
    pub idle_timeout: Option<Duration>,
    /// How many results are kept, and for how long.
    pub kept: Keep,
    /// The most bytes of one file that is uploaded.
    pub max_upload: usize,
    /// How many uploaded files are kept, and for how long.
    pub uploads: Keep,
    /// What the caller without a key may do, where no keys are configured.
    pub anonymous: Allowance,
    /// What is done with what they want to run, where no keys are configured.
    pub policy: Arc<Policy>,
    /// How long an answer waits for a person to approve a run, before it says that the run waits.
    pub approval_wait: Duration,
    /// The keys. Without any, the server is for this machine alone.
    pub keys: Vec<Key>,
    /// What a request gets where it does not say.
    pub defaults: Defaults,
    /// Pages that may ask besides this server's own, by their `Origin`.
    pub origins: Vec<String>,
    /// How MCP is to behave.
    pub mcp: mcp::Config,
    /// The audit log, if there is one.
    pub audit: Option<Audit>,
    /// The runs that wait for approval, if any can.
    pub approvals: Option<Arc<Approvals>>,
}

/// An audit log that can be read.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The directory that has it.
    pub dir: PathBuf,
    /// The key that checks its signatures.
    pub key: PublicKey,
}

/// How many finished runs, or uploaded files, are remembered, how much of them, and for how long: whichever is reached first.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the doc comment above says it")]
pub struct Keep {
    pub runs: usize,
    pub bytes: usize,
    pub age: Duration,
}

/// What a caller may do if the configuration does not say: run code in a real box, with results that the server can
/// hold (output and the files that are brought back pass through its memory), and with a part of this machine: half of
/// its memory, all of its CPUs, for an hour. An operator who has chosen a larger default allows that much.
#[must_use]
pub fn usual_allowance(defaults: &Limits) -> Allowance {
    Allowance { ceilings: raised(ceilings(Machine::this()), defaults), ..Allowance::boxed() }
}

/// In which memory is counted out to callers.
const UNIT: u64 = 64 << 20;
/// The most CPUs that a limit can have.
const MOST_CPUS: f64 = 1024.0;

/// The size of a machine.
#[derive(Debug, Clone, Copy)]
struct Machine {
    memory: u64,
    cores: usize,
}

impl Machine {
    fn this() -> Machine {
        let info = rustix::system::sysinfo();
        let memory = (info.totalram as u64).saturating_mul(info.mem_unit.into());
        Machine { memory, cores: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

fn ceilings(machine: Machine) -> Ceilings {
    // Whole units of 64 MiB, to be read in a message; and never less than a run gets by default.
    let memory = (machine.memory / 2 / UNIT * UNIT).max(256 << 20);
    let cpus = f64::from(u32::try_from(machine.cores).unwrap_or(u32::MAX));
    Ceilings {
        timeout: Some(Duration::from_secs(3600)),
        cpu_time: None,
        memory: Some(Bytes::new(memory)),
        cpus: Cpus::parse(cpus.min(MOST_CPUS)).ok(),
        pids: Some(1024),
        disk: Some(Bytes::new(256 << 20)),
        output: Some(Bytes::new(16 << 20)),
        collected: Some(Bytes::new(32 << 20)),
        // Compilers may have as much as programs.
        compile_timeout: None,
        compile_memory: None,
    }
}

fn raised(usual: Ceilings, defaults: &Limits) -> Ceilings {
    let size = |bytes: Option<u64>| bytes.map(Bytes::new);
    let pids = defaults.pids.map(|pids| u32::try_from(pids).unwrap_or(u32::MAX));
    let timeout = usual.timeout.max(defaults.timeout_ms.map(Duration::from_millis));
    let memory = usual.memory.max(size(defaults.memory_bytes));
    Ceilings {
        timeout,
        memory,
        compile_timeout: defaults.compile_timeout_ms.map(Duration::from_millis).max(timeout),
        compile_memory: size(defaults.compile_memory_bytes).max(memory),
        cpus: usual.cpus.max(defaults.cpus.and_then(|cpus| Cpus::parse(cpus).ok())),
        pids: usual.pids.max(pids),
        disk: usual.disk.max(size(defaults.disk_bytes)),
        output: usual.output.max(size(defaults.output_bytes)),
        ..usual
    }
}

impl Config {
    /// Connections at a time from one address.
    #[must_use]
    pub fn max_per_address(&self) -> usize {
        self.max_connections_per_address.unwrap_or(self.max_connections.div_ceil(2))
    }

    /// Requests of one caller at a time that wait for a run which they did not start, or follow it. Each keeps a
    /// connection, and there is no use in more of them than there can be runs.
    pub(crate) fn max_waits(&self) -> usize {
        self.slots.saturating_add(self.queue).min(self.max_connections.div_ceil(4))
    }

    /// WebSockets at a time, beside the connections.
    #[must_use]
    pub fn max_sockets(&self) -> usize {
        self.max_connections.div_ceil(4)
    }
}

impl Config {
    /// The most bytes that an uploaded file can have: it has to fit where it is read, and where it is kept.
    pub(crate) fn largest_upload(&self) -> usize {
        self.max_upload.min((self.body_memory / 2).max(self.max_body)).min(self.uploads.bytes)
    }
}

impl Default for Config {
    fn default() -> Config {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            slots: cores * 2,
            queue: 256,
            max_body: 16 << 20,
            body_memory: 256 << 20,
            max_connections: 2048,
            max_connections_per_address: None,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            idle_timeout: None,
            kept: Keep { runs: 1000, bytes: 64 << 20, age: Duration::from_secs(600) },
            max_upload: 32 << 20,
            uploads: Keep { runs: 1000, bytes: 128 << 20, age: Duration::from_secs(3600) },
            anonymous: usual_allowance(&Limits::default()),
            policy: Arc::default(),
            approval_wait: Duration::from_secs(10),
            keys: Vec::new(),
            defaults: Defaults::default(),
            origins: Vec::new(),
            mcp: mcp::Config::default(),
            audit: None,
            approvals: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_may_have_a_part_of_the_machine() {
        let small = ceilings(Machine { memory: 400 << 20, cores: 1 });
        assert_eq!(small.memory, Some(Bytes::new(256 << 20)), "what a run gets by default");
        let large = ceilings(Machine { memory: (64 << 30) + 12_345, cores: 48 });
        assert_eq!(large.memory.map(|memory| memory.to_string()).as_deref(), Some("32G"));
        assert_eq!(large.cpus.map(Cpus::milli), Some(48_000));
        let vast = ceilings(Machine { memory: u64::MAX, cores: 5000 });
        assert_eq!(vast.cpus.map(Cpus::milli), Some(1_024_000));
        let this = usual_allowance(&Limits::default()).ceilings;
        let bounded =
            [this.memory.is_some(), this.cpus.is_some(), this.pids.is_some(), this.timeout.is_some()];
        assert_eq!(bounded, [true; 4]);
    }

    #[test]
    fn what_the_operator_has_chosen_as_a_default_is_allowed() {
        let defaults = Limits {
            timeout_ms: Some(7_200_000),
            memory_bytes: Some(1 << 50),
            cpus: Some(1000.0),
            pids: Some(5000),
            disk_bytes: Some(1),
            ..Limits::default()
        };
        let Ceilings { timeout, memory, cpus, pids, disk, .. } = usual_allowance(&defaults).ceilings;
        assert_eq!((timeout, memory), (Some(Duration::from_secs(7200)), Some(Bytes::new(1 << 50))));
        assert_eq!((cpus.map(Cpus::milli), pids), (Some(1_000_000), Some(5000)));
        assert_eq!(disk, Some(Bytes::new(256 << 20)), "a smaller default lowers nothing");
    }
}
