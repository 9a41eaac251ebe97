//! What this binary does when PID 1 starts it: it drops its last rights and becomes the program. This takes a separate
//! process, because PID 1 must keep those rights.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::extras::TERMINALS;
use crate::inside::SANDBOX;
use belljar_jail::landlock;
use belljar_jail::plan::Access;

use super::ground::{DEVICES, has_terminals};

/// The first argument, if the rest is a command.
const CONFINED: &str = "confined";
/// A higher OOM score for the program: PID 1 must survive to report it.
const KILLED_FIRST: &str = "500";
/// The exit status of a shell for a command that cannot be started.
const NOT_STARTED: u8 = 127;

/// A command that confines itself and then runs these words.
pub(super) fn confined(words: &[String]) -> Command {
    let mut command = Command::new(super::PROGRAM);
    command.arg(CONFINED).args(words);
    command
}

/// Whether the process has such a command, and has not become the program yet.
pub(super) fn is_confining_itself(pid: u32) -> bool {
    let start = format!("{}\0{CONFINED}\0", super::PROGRAM);
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(start.as_bytes()))
}

/// Runs the command for which PID 1 has started this process.
pub(super) fn started_by_the_first() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((first, command)) if first == CONFINED => {
            let error = confine().map_or_else(|error| error, |()| become_program(command));
            // The caller reads this as the program's standard error.
            let _ = io::Write::write_all(&mut io::stderr(), format!("cannot start: {error}\n").as_bytes());
            ExitCode::from(NOT_STARTED)
        }
        _ => {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            ExitCode::SUCCESS
        }
    }
}

fn confine() -> io::Result<()> {
    // Only a kernel that is not Linux refuses this.
    let _ = std::fs::write("/proc/self/oom_score_adj", KILLED_FIRST);
    if landlock::abi() == 0 {
        return Ok(());
    }
    let mut rules = vec![(PathBuf::from("/"), Access::Read), (PathBuf::from(SANDBOX), Access::Write)];
    rules.extend(DEVICES.iter().map(|name| (PathBuf::from("/dev").join(name), Access::Use)));
    if has_terminals() {
        rules.extend([TERMINALS, "/dev/tty"].map(|path| (PathBuf::from(path), Access::Use)));
    }
    landlock::restrict(&rules)
}

/// Does not return, unless it fails.
fn become_program(words: &[OsString]) -> io::Error {
    let Some((program, args)) = words.split_first() else { return io::ErrorKind::InvalidInput.into() };
    Command::new(program).args(args).exec()
}
