//! The limits of a box as the kernel takes them: files to write, and the controllers that they belong to.

use std::fmt;

use belljar_core::guarantee::Guarantee;
use belljar_core::limits::BoxLimits;

/// A controller of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the kernel's")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
    /// Counts CPU time, on version 1 only: on version 2 every cgroup does.
    CpuAcct,
}

impl Controller {
    pub(super) const ALL: [Controller; 4] =
        [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::CpuAcct];

    pub(super) fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
            Controller::CpuAcct => "cpuacct",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|controller| controller.name() == name)
    }

    /// The guarantee that cannot be enforced without it.
    pub(super) fn guarantee(self) -> Guarantee {
        match self {
            Controller::Memory => Guarantee::Memory,
            Controller::Pids => Guarantee::Pids,
            Controller::Cpu | Controller::CpuAcct => Guarantee::Cpu,
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A share of the CPUs when they are scarce: the normal one, or a quarter of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Less,
    Usual,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Knob {
    pub(super) controller: Controller,
    pub(super) file: &'static str,
    pub(super) value: String,
    pub(super) demand: Demand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// The guarantee depends on it.
    Must,
    /// The same, unless the file is missing and there is no swap to limit.
    UnlessNoSwap,
    /// An improvement, where the kernel has it.
    Welcome,
}

impl Knob {
    pub(super) fn new(
        controller: Controller,
        file: &'static str,
        value: impl ToString,
        demand: Demand,
    ) -> Knob {
        Knob { controller, file, value: value.to_string(), demand }
    }

    pub(super) fn guarantee(&self) -> Guarantee {
        self.controller.guarantee()
    }
}

/// The limits of a box as numbers for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caps {
    pub(super) memory: u64,
    pub(super) pids: u32,
    pub(super) cpu: Bandwidth,
}

impl Caps {
    /// The limits used for probing.
    pub(super) const TYPICAL: Caps =
        Caps { memory: 256 << 20, pids: 51, cpu: Bandwidth::of_milli_cpus(1000) };
}

impl From<&BoxLimits> for Caps {
    fn from(limits: &BoxLimits) -> Caps {
        Caps {
            memory: limits.memory.get(),
            // The first process of the box is ours, and does not count against the caller's limit.
            pids: limits.pids.saturating_add(1),
            cpu: Bandwidth::of_milli_cpus(limits.cpus.milli()),
        }
    }
}

/// A CPU rate as the kernel takes it: running time in each period, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bandwidth {
    pub(super) quota: u64,
    pub(super) period: u64,
}

impl Bandwidth {
    /// A box that has used up its quota stops until the period is over, so a short period is better: the usual 100 ms
    /// would add up to 50 ms to a run of one millisecond at half a CPU. But the kernel takes no quota below 1 ms and no
    /// period above 1 s.
    pub(super) const fn of_milli_cpus(milli: u32) -> Bandwidth {
        const PERIOD: u64 = 10_000;
        const SHORTEST_QUOTA: u64 = 1_000;
        const LONGEST_PERIOD: u64 = 1_000_000;
        let milli = if milli == 0 { 1 } else { milli as u64 };
        let for_shortest_quota = (SHORTEST_QUOTA * 1000).div_ceil(milli);
        let period = if for_shortest_quota > PERIOD { for_shortest_quota } else { PERIOD };
        let period = if period > LONGEST_PERIOD { LONGEST_PERIOD } else { period };
        Bandwidth { quota: milli * period / 1000, period }
    }
}
