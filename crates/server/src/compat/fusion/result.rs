//! What a run came to, in SandboxFusion's words.

use belljar_core::Captured;
use belljar_core::outcome::{Compilation, Outcome, Report, Stage, Usage};
use serde::Serialize;

use crate::compat::encoding::to_text;

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
    pub(super) fn new(report: &Report) -> Commands {
        let compile = report.compile.as_ref().map(Command::of_compiler);
        let run = (report.stage == Stage::Run).then(|| Command::of_program(report));
        Commands { compile, run }
    }

    pub(super) fn status(&self) -> Status {
        let mut commands = self.compile.iter().chain(&self.run);
        if commands.all(|command| command.return_code == Some(0)) { Status::Success } else { Status::Failed }
    }
}

impl Command {
    /// A program, whether or not it was compiled.
    pub(super) fn of_program(report: &Report) -> Command {
        Command::new(report.outcome, report.usage, &report.stdout, &report.stderr)
    }

    fn of_compiler(compiler: &Compilation) -> Command {
        Command::new(compiler.outcome, compiler.usage, &compiler.stdout, &compiler.stderr)
    }

    fn new(outcome: Outcome, usage: Usage, stdout: &Captured, stderr: &Captured) -> Command {
        let in_time = !matches!(outcome, Outcome::TimedOut(_));
        Command {
            status: if in_time { CommandStatus::Finished } else { CommandStatus::TimeLimitExceeded },
            execution_time: usage.wall.as_secs_f64(),
            return_code: return_code(outcome),
            stdout: to_text(stdout),
            stderr: to_text(stderr),
        }
    }
}

/// As Python tells it: a signal is a negative number. A command that ran out of time has none.
fn return_code(outcome: Outcome) -> Option<i16> {
    match outcome {
        Outcome::Exited(code) => Some(code.into()),
        Outcome::Signaled(signal) => Some(-i16::from(signal)),
        Outcome::OutOfMemory => Some(-9),
        Outcome::TimedOut(_) | Outcome::Cancelled(_) | Outcome::Denied => None,
    }
}
