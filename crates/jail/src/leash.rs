//! Limits for a program that gets no box: what its own process does to itself before `exec`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::plan::Resource;
use crate::sys;

/// Makes the program start in its own session, with these limits, default signals and no descriptors except its
/// streams, and die with the thread that starts it. The caller must have one thread.
pub fn leash(command: &mut Command, limits: Vec<(Resource, u64)>) {
    let parent = rustix::process::getpid();
    let take = move || {
        setsid()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            // The parent died before the parent-death signal was set, so that signal will never come.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        sys::default_signals()?;
        limits.iter().try_for_each(|(resource, value)| sys::set_limit(None, *resource, *value))?;
        sys::close_on_exec_from(3)
    };
    // SAFETY: the closure makes only system calls. It allocates nothing, takes no lock and touches no memory except its
    // own list of limits, so it may run in a child that was forked from a process with one thread, or even with more.
    unsafe { command.pre_exec(take) };
}
