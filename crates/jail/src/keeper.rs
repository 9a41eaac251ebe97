//! The keeper: the process on the host's side that makes one box and outlives it.
//!
//! It is this same binary, started again so that it has one thread, an empty environment and none of the caller's
//! memory, or forked from the warden. It receives one plan, makes the box, forwards what PID 1 reports, and waits. If the caller dies, the keeper
//! kills the box and removes what the caller would have removed. If the keeper dies, the kernel kills PID 1 and with it
//! everything in the box. So whichever of the two is killed, nothing is left running.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::entry_check;
use crate::fault::{Doing, Fault};
use crate::init_handle::{InitHandle, Order, leave_the_callers_world};
use crate::message::{self, Reply, Request};
use crate::plan::Plan;
use crate::sys::{self, ResourceUse};
use crate::{late_uplink, supply, template};

/// The life of the keeper. Its standard input is the socket to the caller.
pub(crate) fn live() -> ExitCode {
    // Descriptors that the caller inherited and left open must not reach a box.
    let Ok(()) = sys::close_from(3) else { return ExitCode::FAILURE };
    let Ok(caller) = rustix::stdio::stdin().try_clone_to_owned() else { return ExitCode::FAILURE };
    match make(&caller) {
        Ok(Made::Box(kept)) => kept.keep(&caller),
        Ok(Made::Nothing) => {}
        Err(fault) => drop(message::send(&caller, &fault.into_reply(), &[])),
    }
    ExitCode::SUCCESS
}

/// What a keeper has made.
enum Made {
    Box(Box<Kept>),
    /// Nothing that has to be kept: a template, which is the caller's, or the caller has disconnected.
    Nothing,
}

/// Receives a plan and makes what the caller wants.
fn make(caller: &OwnedFd) -> Result<Made, Fault> {
    leave_the_callers_world().doing(|| "leave the caller's session")?;
    let Some((request, beside)) = message::receive(caller).doing(|| "receive the plan")? else {
        return Ok(Made::Nothing);
    };
    match request {
        Request::Make { plan_offset, plan_length } => {
            let order = order(plan_offset, plan_length, beside).doing(|| "receive the plan")?;
            // PID 1 must not keep the caller's socket open.
            let (cloned, plan) = InitHandle::with(order, &[rustix::stdio::stdin(), caller.as_fd()])?;
            Ok(Made::Box(Box::new(Kept { cloned, plan, working_dir: None, entered: Vec::new() })))
        }
        Request::MakeTemplate { plan_length } => {
            let payload = beside.into_iter().next().ok_or(io::ErrorKind::InvalidData);
            let read = payload
                .map_err(io::Error::from)
                .and_then(|payload| message::read_plan(payload, 0, plan_length));
            let (plan, _) = read.doing(|| "receive the plan")?;
            let template = template::make(&plan, &[rustix::stdio::stdin(), caller.as_fd()])?;
            message::send(caller, &Reply::Template, &[template.as_fd()]).doing(|| "send the template")?;
            Ok(Made::Nothing)
        }
        Request::Kill | Request::Entered | Request::Supply { .. } | Request::Uplink | Request::Hire => {
            Ok(Made::Nothing)
        }
    }
}

fn order(plan_offset: u64, plan_length: u64, descriptors: Vec<OwnedFd>) -> io::Result<Order> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
    let (payload, stdin, stdout, stderr) = (next()?, next()?, next()?, next()?);
    let template = descriptors.next();
    let (plan, payload) = message::read_plan(payload, plan_offset, plan_length)?;
    Ok(Order { plan, plan_offset, plan_length, payload, stdin, stdout, stderr, template })
}

/// A box that exists.
struct Kept {
    cloned: InitHandle,
    plan: Plan,
    /// The directory that the plan offers, until a process has entered.
    working_dir: Option<OwnedFd>,
    /// The pipe for the code of a process that enters the box, and its directory in `/proc`, until the caller has them.
    entered: Vec<OwnedFd>,
}

impl Kept {
    /// Forwards messages until the box is dead, then reports how it ended.
    fn keep(mut self, caller: &OwnedFd) {
        let (mut ended, mut caller_is_there) = (None, true);
        self.cloned.hold_mounts();
        loop {
            match self.wait(caller, caller_is_there) {
                Wake::Init => match message::receive::<Reply>(self.cloned.socket()) {
                    Ok(Some((Reply::Ended { status, .. }, _))) => ended = Some(status),
                    Ok(Some((Reply::Ready, beside))) => self.invite(caller, beside),
                    Ok(Some((Reply::Deserted { status }, _))) => {
                        ended = Some(status);
                        let _ = message::send(caller, &Reply::Deserted { status }, &[]);
                    }
                    Ok(Some((reply, beside))) => {
                        let mut program = std::mem::take(&mut self.entered);
                        if reply == Reply::Started && self.plan.exit_listener {
                            program.extend(entry_check::place_of_program(self.cloned.pid()));
                        }
                        let beside: Vec<_> = beside.iter().chain(&program).map(AsFd::as_fd).collect();
                        let _ = message::send(caller, &reply, &beside);
                    }
                    Ok(None) | Err(_) => break,
                },
                Wake::Caller => {
                    let request = message::receive::<Request>(caller);
                    caller_is_there = matches!(request, Ok(Some(_)));
                    match request {
                        Ok(Some((Request::Entered, _))) => self.admit(caller),
                        Ok(Some((Request::Supply { list_offset, list_length }, beside))) => {
                            let list = list_offset..list_offset.saturating_add(list_length);
                            self.supply(caller, list, beside);
                        }
                        Ok(Some((Request::Uplink, _))) => self.connect(caller),
                        _ => self.cloned.kill(),
                    }
                }
            }
        }
        self.bury(caller, ended, caller_is_there);
    }

    /// Tells the caller that the box is ready, and how to enter it.
    fn invite(&mut self, caller: &OwnedFd, beside: Vec<OwnedFd>) {
        let invited = self.cloned.namespaces().and_then(|namespaces| {
            // A directory and `meminfo`.
            let (offered, allowed) = beside.split_at(beside.len().min(2));
            let all: Vec<_> = offered.iter().chain(&namespaces).chain(allowed).map(AsFd::as_fd).collect();
            message::send(caller, &Reply::Ready, &all)
        });
        self.working_dir = beside.into_iter().next();
        if invited.is_err() {
            self.cloned.kill();
        }
    }

    /// Inspects the process that entered the box, and waits until it waits for its code. If it fails the inspection, it
    /// is killed.
    fn admit(&mut self, caller: &OwnedFd) {
        let working_dir = self.working_dir.take();
        let admitted = entry_check::approve(self.cloned.pid(), working_dir.as_ref(), &self.plan)
            .map(|(gate, place)| self.entered = vec![gate, place])
            .and_then(|()| self.cloned.go_ahead().doing(|| "let PID 1 continue"));
        if let Err(fault) = admitted {
            let _ = message::send(caller, &fault.into_reply(), &[]);
            self.cloned.kill();
        }
    }

    /// Has files written into the box. Whatever becomes of that, the caller is told.
    fn supply(&self, caller: &OwnedFd, list: Range<u64>, beside: Vec<OwnedFd>) {
        let reply = match supply::write_files(&self.plan, list, beside) {
            Ok(()) => Reply::Supplied,
            Err(fault) => fault.into_reply(),
        };
        let _ = message::send(caller, &reply, &[]);
    }

    /// Gives the box an uplink. The caller gets its far end, or is told why there is none.
    fn connect(&mut self, caller: &OwnedFd) {
        let reply = self
            .cloned
            .take_network()
            .and_then(|network| late_uplink::make(&network))
            .map(|far_end| (Reply::Uplink, vec![far_end]))
            .unwrap_or_else(|fault| (fault.into_reply(), Vec::new()));
        let (reply, beside) = reply;
        let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
        let _ = message::send(caller, &reply, &beside);
    }

    fn bury(mut self, caller: &OwnedFd, ended: Option<i32>, caller_is_there: bool) {
        let end = if caller_is_there { self.cloned.end() } else { self.cloned.end_unhurried() };
        let (status, used) = end.unwrap_or((libc::SIGKILL, ResourceUse::default()));
        let ResourceUse { cpu_micros, max_rss } = used;
        let reply = Reply::Ended { status: ended.unwrap_or(status), cpu_micros, max_rss };
        if caller_is_there {
            let _ = message::send(caller, &reply, &[]);
            self.cloned.let_mounts_go();
            // The caller now reads the box's counters, and disconnects when it has removed the cgroups itself; or it
            // dies, which looks the same. Whatever it still sends was meant for the box.
            while let Ok(Some(_)) = message::receive::<Request>(caller) {}
        }
        remove_orphans(&self.plan.orphans);
    }

    fn wait(&self, caller: &OwnedFd, caller_is_there: bool) -> Wake {
        let interest = if caller_is_there { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            [PollFd::from_borrowed_fd(self.cloned.socket(), PollFlags::IN), PollFd::new(caller, interest)];
        let fds = if caller_is_there { &mut fds[..] } else { &mut fds[..1] };
        let _ = rustix::io::retry_on_intr(|| poll(fds, None));
        if fds[0].revents().is_empty() { Wake::Caller } else { Wake::Init }
    }
}

enum Wake {
    Init,
    Caller,
}

/// Removes the box's cgroups, if they still exist. The kernel may take a moment to see that they are empty; a cgroup
/// that contains other boxes stays.
fn remove_orphans(dirs: &[PathBuf]) {
    for dir in dirs {
        for _ in 0..50 {
            match std::fs::remove_dir(dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && !has_children(dir) => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => break,
            }
        }
    }
}

fn has_children(dir: &Path) -> bool {
    let is_dir = |entry: io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.any(is_dir))
}
