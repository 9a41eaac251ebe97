//! The messages between the backend and a supervisor.

use std::path::PathBuf;

use belljar_jail::codec::{Coded, Malformed};
use belljar_jail::plan::{Command, Resource};

/// What a supervisor is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SupervisorOrder {
    /// The program.
    pub(crate) command: Command,
    /// The directory that is removed at the end.
    pub(crate) scratch: PathBuf,
    /// The limits of all processes together; `None`: no limits.
    pub(crate) watch: Option<Watch>,
}

/// The rlimits of every process, and the limits that are checked for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) rlimits: Vec<(Resource, u64)>,
    pub(crate) memory: u64,
    pub(crate) pids: u64,
    pub(crate) cpu_micros: Option<u64>,
}

/// What a supervisor reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// The program runs, as this process.
    Started { main: i32 },
    /// It could not be started.
    Failed { doing: String, errno: i32 },
    /// It has ended and all processes are dead.
    Ended { status: i32, stop: Stop, cpu_micros: u64, memory_peak: u64 },
}

/// Why a supervisor killed the processes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It did not.
    None,
    Memory,
    CpuTime,
    Pids,
}

impl Coded for SupervisorOrder {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.command.put(bytes);
        self.scratch.put(bytes);
        self.watch.put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> Result<SupervisorOrder, Malformed> {
        Ok(SupervisorOrder {
            command: Coded::take(bytes)?,
            scratch: Coded::take(bytes)?,
            watch: Coded::take(bytes)?,
        })
    }
}

impl Coded for Watch {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.rlimits.put(bytes);
        self.memory.put(bytes);
        self.pids.put(bytes);
        self.cpu_micros.put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> Result<Watch, Malformed> {
        Ok(Watch {
            rlimits: Coded::take(bytes)?,
            memory: Coded::take(bytes)?,
            pids: Coded::take(bytes)?,
            cpu_micros: Coded::take(bytes)?,
        })
    }
}

impl Coded for Said {
    fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Said::Started { main } => {
                0_u8.put(bytes);
                main.put(bytes);
            }
            Said::Failed { doing, errno } => {
                1_u8.put(bytes);
                doing.put(bytes);
                errno.put(bytes);
            }
            Said::Ended { status, stop, cpu_micros, memory_peak } => {
                2_u8.put(bytes);
                status.put(bytes);
                stop.put(bytes);
                cpu_micros.put(bytes);
                memory_peak.put(bytes);
            }
        }
    }

    fn take(bytes: &mut &[u8]) -> Result<Said, Malformed> {
        match u8::take(bytes)? {
            0 => Ok(Said::Started { main: Coded::take(bytes)? }),
            1 => Ok(Said::Failed { doing: Coded::take(bytes)?, errno: Coded::take(bytes)? }),
            2 => Ok(Said::Ended {
                status: Coded::take(bytes)?,
                stop: Coded::take(bytes)?,
                cpu_micros: Coded::take(bytes)?,
                memory_peak: Coded::take(bytes)?,
            }),
            _ => Err(Malformed),
        }
    }
}

const STOPS: [Stop; 4] = [Stop::None, Stop::Memory, Stop::CpuTime, Stop::Pids];

impl Coded for Stop {
    fn put(&self, bytes: &mut Vec<u8>) {
        (*self as u8).put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> Result<Stop, Malformed> {
        STOPS.get(usize::from(u8::take(bytes)?)).copied().ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_jail::codec::{decode, encode};

    #[test]
    fn everything_that_is_said_arrives() {
        let command = Command {
            program: "/bin/sh".into(),
            argv: vec![b"sh".to_vec()],
            env: vec![b"A=b".to_vec()],
            cwd: "/tmp".into(),
        };
        let watch = Watch { rlimits: vec![(Resource::Data, 1)], memory: 2, pids: 3, cpu_micros: Some(4) };
        for watch in [Some(watch), None] {
            let order = SupervisorOrder { command: command.clone(), scratch: "/tmp/x".into(), watch };
            assert_eq!(decode(&encode(&order)), Ok(order));
        }
        let failed = Said::Failed { doing: "start it".into(), errno: 2 };
        let ended = STOPS.map(|stop| Said::Ended { status: 9, stop, cpu_micros: 1, memory_peak: 2 });
        let begun = [Said::Started { main: 5 }, failed];
        for said in begun.into_iter().chain(ended) {
            assert_eq!(decode(&encode(&said)), Ok(said));
        }
    }
}
