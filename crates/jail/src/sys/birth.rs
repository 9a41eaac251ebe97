//! Making processes: by cloning, and by starting a program.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

use super::{checked, exit_now, number};

/// What a fork returns, and to whom.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Forks into new namespaces, and into a cgroup v2 if one is given. The parent also gets a pidfd.
///
/// The caller must be single-threaded: the child continues as an ordinary Rust program, and a lock that another thread
/// held at that moment would stay locked in it for ever. [`single_threaded`] is checked.
pub(crate) fn clone_into(
    namespaces: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<(Fork, Option<OwnedFd>)> {
    if !single_threaded() {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let mut pidfd: libc::c_int = -1;
    let mut flags = u64::from((libc::CLONE_PIDFD | namespaces).cast_unsigned());
    if cgroup.is_some() {
        flags |= CLONE_INTO_CGROUP;
    }
    let mut args = CloneArgs {
        flags,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        cgroup: cgroup.map_or(0, number),
        ..CloneArgs::default()
    };
    // SAFETY: `args` is a valid clone_args of the size given, and `pidfd` outlives the call. There is no new
    // stack and no CLONE_VM, so the child gets a copy of this address space and returns here like from fork;
    // the process has one thread, so every lock in that copy is in a consistent state.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        None => Ok((Fork::Child, None)),
        // SAFETY: the kernel has just made this descriptor for us (CLONE_PIDFD), and nobody else knows it.
        Some(pid) => Ok((Fork::Parent(pid), Some(unsafe { OwnedFd::from_raw_fd(pidfd) }))),
    }
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of `clone3(2)`.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Runs `work` in a new process that shares this one's memory and runs concurrently. Copying the memory, and then every
/// page that either of the two writes to, would take longer than the rest of a run's start.
///
/// Sharing memory restricts what the process may do. It must not allocate: we may be killed while we hold the
/// allocator's lock. It must not hold anything that is freed when `work` returns. All signals except SIGKILL are
/// blocked, because our handlers would run in it. Its stack is never freed: a program does this a few times at most.
pub(crate) fn start_beside<Work: FnOnce() + Send + Copy + 'static>(work: Work) -> io::Result<Pid> {
    extern "C" fn enter<Work: FnOnce() + Copy>(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `argument` points to the leaked `Work` below, which nobody writes to.
        let work = unsafe { *argument.cast::<Work>() };
        work();
        exit_now(0)
    }
    if !single_threaded() {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let work: &'static Work = Box::leak(Box::new(work));
    let mut stack = ManuallyDrop::new(Vec::<u128>::with_capacity(BESIDE_STACK / size_of::<u128>()));
    // SAFETY: one past the end of the allocation, whose capacity this is at least.
    let top = unsafe { stack.as_mut_ptr().add(BESIDE_STACK / size_of::<u128>()) };
    let all_signals = block_signals()?;
    // SAFETY: the child runs on its own stack, aligned like `u128`, which is never freed; its argument is never freed
    // or written to either, and is `Copy`, so that nothing is dropped. It shares this process's thread-local storage.
    // Of that, its calls use at most `errno`, and only if they fail: at worst, one of the two reports the other's
    // reason.
    let pid = checked(
        unsafe {
            let argument = std::ptr::from_ref(work).cast_mut().cast();
            libc::clone(enter::<Work>, top.cast(), libc::CLONE_VM | libc::SIGCHLD, argument)
        }
        .into(),
    );
    restore_signals(&all_signals)?;
    i32::try_from(pid?).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// More than the undertaker needs.
const BESIDE_STACK: usize = 32 * 1024;

/// Blocks every signal, and returns what was blocked before.
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: all-zero sigset_t are valid values of that plain C type, to be set by the next calls.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a valid sigset_t to write to.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: `all` is initialised, and `before` is valid to write to.
    checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) }.into())?;
    Ok(before)
}

fn restore_signals(before: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `before` is initialised, and the old mask is not asked for.
    checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) }.into()).map(drop)
}

/// Runs `become_program` in a new process that borrows this one's memory until it has called `exec`, or ended
/// (`vfork(2)`). Copying the memory first would take longer than everything the new process does.
pub(crate) fn spawn(become_program: &mut dyn FnMut()) -> io::Result<Pid> {
    extern "C" fn enter(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `argument` is the pointer to `body` below, which lives until this process has let go of the memory:
        // the caller is suspended for just as long.
        let body = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
        body();
        exit_now(127)
    }
    if !single_threaded() {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let mut body: &mut dyn FnMut() = become_program;
    let mut stack = vec![0_u128; SPAWN_STACK / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs on a stack of its own, aligned like `u128`; the caller is suspended until the child calls
    // `exec` or exits (CLONE_VFORK), so nothing else touches the memory that they share; there is no other thread, so
    // no lock is held; and the child never returns into the caller's frames.
    let pid = unsafe { libc::clone(enter, top, flags, (&raw mut body).cast()) };
    let pid = checked(pid.into())?;
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// More than the steps between here and `exec` take.
const SPAWN_STACK: usize = 256 * 1024;

/// Whether this is the only thread: the directory of threads has a link for each, besides its own two. Where `/proc` is
/// not to be seen the answer is yes: those who ask start no threads, and this only guards against a change of that.
fn single_threaded() -> bool {
    rustix::fs::stat("/proc/self/task").map_or(true, |task| task.st_nlink == 3)
}
