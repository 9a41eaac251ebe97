//! The undertaker: a process that waits for its caller to end, and then removes the cgroups of its box.
//!
//! The kernel ends everything in a box whose maker dies, and with its last process go its mounts; but directories of
//! cgroups stay. As long as the caller lives, removing them is its own business, and all that the undertaker does is to
//! be the last that holds the box's mounts: taking those apart then keeps nobody waiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::pipe::PipeFlags;
use rustix::process::Pid;

use crate::cloned::forget_origin;
use crate::keeper::remove_orphans;
use crate::sys::{self, Fork};

/// An undertaker at work. Dropping it dismisses it, and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Undertaker {
    pid: Pid,
    /// Closed by the kernel when the caller ends, however it ends.
    line: OwnedFd,
}

impl Undertaker {
    /// Starts one for the box of this PID 1, whose cgroups these are.
    pub(crate) fn hire(orphans: &[PathBuf], init: Pid) -> io::Result<Undertaker> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        match sys::fork()? {
            Fork::Parent(pid) => Ok(Undertaker { pid, line: writer }),
            Fork::Child => {
                if let Ok(Word::Dismissed) = wait(reader, init) {
                    sys::exit_now(0);
                }
                remove_orphans(orphans);
                sys::exit_now(0)
            }
        }
    }

    /// Tells it that the caller does the rest.
    pub(crate) fn dismiss(&self) {
        let _ = rustix::io::write(&self.line, b"!");
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        self.dismiss();
        let _ = sys::wait_for(self.pid);
    }
}

/// What it hears of its caller.
enum Word {
    Dismissed,
    CallerDied,
}

fn wait(line: OwnedFd, init: Pid) -> io::Result<Word> {
    // A Ctrl-C at the caller's terminal is not meant for it.
    let _ = rustix::process::setsid();
    let line = sys::keep_only(line)?;
    forget_origin();
    sys::default_signals()?;
    // One that has not got its own namespace yet leaves nothing to hold on to.
    let _mounts = File::open(format!("/proc/{}/ns/mnt", init.as_raw_nonzero()));
    let heard = File::from(line).read(&mut [0])?;
    Ok(if heard == 0 { Word::CallerDied } else { Word::Dismissed })
}
