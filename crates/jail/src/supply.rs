//! Files for a box whose program already waits for its code.
//!
//! The kernel charges a page of a file to the cgroup of the process that first writes it. So the files are written by a
//! process that the keeper forks for it and that joins the box's cgroup: they count against the box's memory, and the
//! time for them against its CPUs, as in a box that is built for its request. The process sees the host, not the box;
//! no code of anybody's runs in the box yet. It has the code's rights over files, and ends before the code arrives.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::build::{copy, create_file, open_dir, reopen_dir};
use crate::codec;
use crate::fault::{About, Concerning, Doing, Fault};
use crate::init_handle::{open_cgroup, open_tasks};
use crate::plan::{CgroupEntry, Input, Plan};
use crate::sys::{self, Fork};

/// Has files written into a directory of the box, and waits for that.
pub(crate) fn write_files(plan: &Plan, list: Range<u64>, beside: Vec<OwnedFd>) -> Result<(), Fault> {
    let Ok([payload, dir]) = <[OwnedFd; 2]>::try_from(beside) else {
        return Err(io::ErrorKind::InvalidData).doing(|| "receive the run's files");
    };
    let (inputs, payload) = read_list(payload, list).doing(|| "read the list of the run's files")?;
    let into = match &plan.cgroup {
        CgroupEntry::V2 { dir } => Some(open_cgroup(dir, OFlags::PATH | OFlags::DIRECTORY)?),
        CgroupEntry::V1 { .. } | CgroupEntry::None => None,
    };
    let keeper = rustix::process::getpid();
    match sys::clone_into(0, into.as_ref().map(AsFd::as_fd))
        .doing(|| "start a process for the run's files")?
    {
        (Fork::Child, _) => {
            let written = Writer { plan, payload: payload.as_fd(), dir: dir.as_fd() }.write(&inputs);
            // A parent that is gone would wait for nobody, and the box dies with it.
            let orphaned = rustix::process::getppid() != Some(keeper);
            let fault = written.err().map_or(0, |fault| fault.errno);
            sys::exit_now(if orphaned { libc::ECHILD } else { fault.min(255) })
        }
        (Fork::Parent(pid), _) => {
            let (status, _) = sys::wait_for(pid).doing(|| "wait for the run's files")?;
            ended_well(status).doing(|| "write the run's files").concerning(About::Files)
        }
    }
}

fn ended_well(status: i32) -> io::Result<()> {
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => Ok(()),
        (0, errno) => Err(io::Error::from_raw_os_error(errno)),
        // The memory limit of the box, most likely.
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

fn read_list(payload: OwnedFd, list: Range<u64>) -> io::Result<(Vec<Input>, OwnedFd)> {
    let payload = std::fs::File::from(payload);
    let length = usize::try_from(list.end - list.start).map_err(io::Error::other)?;
    if list.end > payload.metadata()?.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    payload.read_exact_at(&mut bytes, list.start)?;
    Ok((codec::decode(&bytes).map_err(io::Error::other)?, payload.into()))
}

/// The process that writes.
struct Writer<'a> {
    plan: &'a Plan,
    payload: BorrowedFd<'a>,
    dir: BorrowedFd<'a>,
}

impl Writer<'_> {
    fn write(&self, inputs: &[Input]) -> Result<(), Fault> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .doing(|| "set the parent-death signal")?;
        if let CgroupEntry::V1 { tasks } = &self.plan.cgroup {
            for file in open_tasks(tasks)? {
                rustix::io::write(&file, b"0").doing(|| "join the box's cgroup")?;
            }
        }
        let code = self.plan.identity.code.outside;
        sys::with_files_of(code, || inputs.iter().try_for_each(|input| self.put(input)))
            .doing(|| "write the run's files")
            .concerning(About::Files)
    }

    fn put(&self, input: &Input) -> io::Result<()> {
        let mut parent = reopen_dir(self.dir)?;
        let mut names = input.path.components().peekable();
        while let Some(name) = names.next() {
            let Component::Normal(name) = name else { return Err(io::ErrorKind::InvalidInput.into()) };
            if names.peek().is_some() {
                let new = rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755));
                parent = open_dir(parent.as_fd(), name)?;
                match new {
                    // Independent of this process's umask.
                    Ok(()) => rustix::fs::fchmod(&parent, Mode::from_raw_mode(0o755))?,
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            } else {
                let mode = if input.executable { 0o755 } else { 0o644 };
                let file = create_file(&parent, Path::new(name), mode)?;
                copy(self.payload, input.offset, input.length, file.as_fd())?;
            }
        }
        Ok(())
    }
}
