//! The last steps before the program: what a command's own process does to itself between `fork` and `exec`.
//!
//! The order matters. Descriptors come first, while paths can still be opened; limits and identity while the process
//! has the privileges to set them; then everything that takes privileges away; the syscall filter last, because the
//! steps before it need calls that it refuses. Whatever can be read back is read back before `exec`: a box that does
//! not match the plan must not run anything.
//!
//! Signals need nothing here: PID 1 has reset its own to the defaults, and its children inherit that.

use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::fault::{Doing, Fault};
use crate::plan::{Command, Confinement, IdPair, Identity};
use crate::{landlock, sys};

/// The three streams of the program.
pub(crate) struct Streams<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
}

/// Loads the syscall filter, and passes on its listener.
pub(crate) type Filtering<'a> = &'a dyn Fn() -> io::Result<()>;

/// Becomes the command, confined. Returns only if that failed.
pub(crate) fn become_command(
    command: &Command,
    confinement: &Confinement,
    identity: &Identity,
    streams: &Streams<'_>,
    filter: Filtering<'_>,
) -> Fault {
    match confine(command, confinement, identity, streams, filter) {
        Ok(ready) => {
            let error = sys::exec(&ready.program, &ready.argv, &ready.env);
            Fault::new(format_args!("execute {}", command.program.display()), &error)
        }
        Err(fault) => fault,
    }
}

/// Becomes a zygote: a process on the host, without privileges, that dies with its parent. Returns only if that failed.
/// The syscall filter and Landlock are left for its children to apply to themselves: a zygote under them could not send
/// a child into a box.
pub(crate) fn become_zygote(
    command: &Command,
    confinement: &Confinement,
    identity: &Identity,
    streams: &Streams<'_>,
) -> Fault {
    let starter = rustix::process::getppid();
    let confined = || -> Result<Ready, Fault> {
        let ready = Ready::new(command).doing(|| "read the command")?;
        prepare(command, confinement, identity, streams)?;
        rustix::thread::set_no_new_privs(true).doing(|| "set no_new_privs")?;
        let killed = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        killed.doing(|| "set the zygote's parent-death signal")?;
        verify_no_rights(identity).doing(|| "verify that the zygote has no privileges")?;
        if rustix::process::getppid() != starter {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe))
                .doing(|| "start the zygote, because its keeper died");
        }
        sys::close_on_exec_from(3).doing(|| "close spare descriptors")?;
        Ok(ready)
    };
    match confined() {
        Ok(ready) => {
            let error = sys::exec(&ready.program, &ready.argv, &ready.env);
            Fault::new(format_args!("execute {}", command.program.display()), &error)
        }
        Err(fault) => fault,
    }
}

fn confine(
    command: &Command,
    confinement: &Confinement,
    identity: &Identity,
    streams: &Streams<'_>,
    filter: Filtering<'_>,
) -> Result<Ready, Fault> {
    let ready = Ready::new(command).doing(|| "read the command")?;
    prepare(command, confinement, identity, streams)?;
    rustix::thread::set_no_new_privs(true).doing(|| "set no_new_privs")?;
    if !confinement.landlock.is_empty() {
        landlock::restrict(&confinement.landlock).doing(|| "apply Landlock")?;
    }
    filter().doing(|| "load the syscall filter")?;
    verify(identity).doing(|| "verify that the box is confined")?;
    sys::close_on_exec_from(3).doing(|| "close spare descriptors")?;
    Ok(ready)
}

/// Sets streams, working directory, limits and user, which takes privileges, and then drops the privileges.
fn prepare(
    command: &Command,
    confinement: &Confinement,
    identity: &Identity,
    streams: &Streams<'_>,
) -> Result<(), Fault> {
    rustix::process::setsid().doing(|| "start a session")?;
    install_streams(streams).doing(|| "connect standard input and output")?;
    rustix::process::chdir(&command.cwd)
        .doing(|| format!("enter the working directory {}", command.cwd.display()))?;
    for (resource, limit) in &confinement.rlimits {
        sys::set_limit(None, *resource, *limit).doing(|| format!("set the resource limit {resource:?}"))?;
    }
    empty_bounding_set().doing(|| "empty the capability bounding set")?;
    take_identity(identity.code, Groups::of(identity)).doing(|| "switch to the code's user")?;
    drop_capabilities().doing(|| "drop capabilities")
}

/// A command in the form that `execve` takes, made before privileges and memory become scarce.
struct Ready {
    program: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Ready {
    fn new(command: &Command) -> io::Result<Ready> {
        let all = |strings: &[Vec<u8>]| -> io::Result<Vec<CString>> {
            strings.iter().map(|text| sys::c_string(text)).collect()
        };
        Ok(Ready {
            program: sys::c_path(&command.program)?,
            argv: all(&command.argv)?,
            env: all(&command.env)?,
        })
    }
}

fn install_streams(streams: &Streams<'_>) -> io::Result<()> {
    sys::install(streams.stdin, 0)?;
    sys::install(streams.stdout, 1)?;
    sys::install(streams.stderr, 2)
}

/// The largest capability number of any kernel is far below 64. For numbers that it does not know, the kernel answers
/// EINVAL; then there are no more.
pub(crate) fn empty_bounding_set() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::thread::clear_ambient_capability_set()?)
}

/// What happens to the caller's supplementary groups.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    /// They are dropped.
    Dropped,
    /// They stay, as numbers that mean nothing inside: an ordinary user cannot drop them.
    Kept,
}

impl Groups {
    pub(crate) fn of(identity: &Identity) -> Groups {
        if identity.init.is_some() { Groups::Dropped } else { Groups::Kept }
    }
}

/// Becomes one user in one group. An ordinary caller's box has only one user, and the process is that user already.
/// Changing groups was forbidden when its namespace was made, as the kernel requires (`user_namespaces(7)`).
pub(crate) fn take_identity(id: IdPair, groups: Groups) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(id.inside), Gid::from_raw(id.inside));
    if groups == Groups::Dropped {
        rustix::thread::set_thread_groups(&[])?;
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

pub(crate) fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Reads back what can be read back.
fn verify(identity: &Identity) -> io::Result<()> {
    verify_no_rights(identity)?;
    if seccomp_mode()? == SECCOMP_MODE_FILTER {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

fn verify_no_rights(identity: &Identity) -> io::Result<()> {
    let id = identity.code;
    let capabilities = rustix::thread::capabilities(None)?;
    let no_capability = capabilities.effective.is_empty()
        && capabilities.permitted.is_empty()
        && capabilities.inheritable.is_empty();
    let nothing_to_gain = !rustix::thread::capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN)?;
    let no_new_privs = rustix::thread::no_new_privs()?;
    let own_user = rustix::process::getuid().as_raw() == id.inside
        && rustix::process::geteuid().as_raw() == id.inside
        && rustix::process::getgid().as_raw() == id.inside;
    let own_groups = Groups::of(identity) == Groups::Kept || rustix::process::getgroups()?.is_empty();
    let inside = rustix::process::getcwd(Vec::new())?.to_bytes().starts_with(b"/");
    if no_capability && nothing_to_gain && no_new_privs && own_user && own_groups && inside {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

const SECCOMP_MODE_FILTER: i32 = 2;

fn seccomp_mode() -> io::Result<i32> {
    // SAFETY: takes integers only and returns a number.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    sys::checked(mode.into())?;
    Ok(mode)
}
