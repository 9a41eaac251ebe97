//! What a run came to, in SandboxFusion's words.

use std::time::Duration;

use belljar_core::outcome::Outcome;
use serde::Serialize;

use crate::compat::encoding::to_text;
use crate::compat::staged::{Concluded, Stage};

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Status {
    Success,
    /// A command ended with another code than zero, or not in time.
    Failed,
    /// The sandbox is at fault, not the code.
    SandboxError,
}

/// What one command came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Command {
    pub(super) status: CommandStatus,
    execution_time: f64,
    pub(super) return_code: Option<i16>,
    stdout: String,
    pub(super) stderr: String,
}

/// How a command ended; theirs has an `Error`, too, of which we speak as a [`Status::SandboxError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum CommandStatus {
    Finished,
    TimeLimitExceeded,
}

/// The commands of a run: compiling, if a command of its own does that, and running, if it came to that.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) compile: Option<Command>,
    pub(super) run: Option<Command>,
}

impl Commands {
    pub(super) fn new(concluded: &Concluded) -> Commands {
        let last = Some(Command::new(concluded));
        match concluded.reached {
            Stage::Compile => Commands { compile: last, run: None },
            Stage::Run => Commands { compile: concluded.compiling.map(Command::compiled), run: last },
        }
    }

    pub(super) fn status(&self) -> Status {
        let mut commands = self.compile.iter().chain(&self.run);
        if commands.all(|command| command.return_code == Some(0)) { Status::Success } else { Status::Failed }
    }
}

impl Command {
    pub(super) fn new(concluded: &Concluded) -> Command {
        let report = concluded.report();
        let status =
            if concluded.timed_out { CommandStatus::TimeLimitExceeded } else { CommandStatus::Finished };
        Command {
            status,
            execution_time: concluded.wall.as_secs_f64(),
            return_code: return_code(report.outcome),
            stdout: to_text(&report.stdout),
            stderr: to_text(&report.stderr),
        }
    }

    /// A compiler that succeeded.
    pub(super) fn compiled(time: Duration) -> Command {
        Command {
            status: CommandStatus::Finished,
            execution_time: time.as_secs_f64(),
            return_code: Some(0),
            stdout: String::new(),
            stderr: String::new(),
        }
    }
}

/// As Python tells it: a signal is a negative number. A command that ran out of time has none.
fn return_code(outcome: Outcome) -> Option<i16> {
    match outcome {
        Outcome::Exited(code) => Some(code.into()),
        Outcome::Signaled(signal) => Some(-i16::from(signal)),
        Outcome::OutOfMemory => Some(-9),
        Outcome::TimedOut(_) | Outcome::Cancelled(_) => None,
    }
}
