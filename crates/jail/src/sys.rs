//! The system calls that rustix does not wrap, each as one small safe function. All `unsafe` of this crate that
//! is not seccomp's or Landlock's is here.

use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Uid};

use crate::plan::Resource;

/// What a fork returns, and to whom.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Turns the result of a raw system call into a `Result`.
pub(crate) fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Accesses files as the user (and group) with this number on the host, without root's rights over other users' files.
/// New files belong to that user. Only this thread changes its identity, and only for the duration of `work`.
///
/// # Errors
/// This process may not become that user, or the error of `work`.
pub fn with_files_of<T>(id: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()) == (id, id) {
        return work();
    }
    let _back = FileOwner::become_other(id)?;
    work()
}

/// The previous identity of a thread for file access, which is restored later.
struct FileOwner {
    user: u32,
    group: u32,
}

impl FileOwner {
    fn become_other(id: u32) -> io::Result<FileOwner> {
        // The group first: changing the user may lose the right to change the group.
        let before = FileOwner { group: set_file_group(id), user: rustix::process::geteuid().as_raw() };
        set_file_user(id);
        // Neither call reports success; passing an invalid number returns the current identity.
        if (set_file_user(u32::MAX), set_file_group(u32::MAX)) == (id, id) {
            return Ok(before);
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

impl Drop for FileOwner {
    fn drop(&mut self) {
        set_file_user(self.user);
        set_file_group(self.group);
    }
}

/// Acts as another user, with only that user's rights. Only this thread changes its identity, and only for the duration
/// of `work`.
///
/// # Errors
/// This process is not root, or the error of `work`.
pub fn acting_as<T>(id: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    struct Root;
    impl Drop for Root {
        fn drop(&mut self) {
            if act_as(0).is_err() {
                // A thread with the wrong identity must not continue.
                std::process::abort();
            }
        }
    }
    act_as(id)?;
    let _again = Root;
    work()
}

/// Acts as another user; `0` is root again. File access stays root's.
pub(crate) fn act_as(id: u32) -> io::Result<()> {
    let (root, id) = (Uid::ROOT, Uid::from_raw(id));
    rustix::thread::set_thread_res_uid(root, id, root)?;
    set_file_user(0);
    Ok(())
}

/// Returns the previous one.
fn set_file_user(id: u32) -> u32 {
    // SAFETY: takes an integer and changes nothing but this thread's credentials.
    unsafe { libc::setfsuid(id) }.cast_unsigned()
}

fn set_file_group(id: u32) -> u32 {
    // SAFETY: takes an integer and changes nothing but this thread's credentials.
    unsafe { libc::setfsgid(id) }.cast_unsigned()
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

/// A descriptor as the kernel's structs hold it.
fn number(fd: BorrowedFd<'_>) -> u64 {
    u64::from(fd.as_raw_fd().cast_unsigned())
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

/// Wipes the arguments and the environment that this process was started with, and takes another name. A fork of a
/// program should not carry them along. Call it while the environment is still the one that the kernel made.
pub(crate) fn forget_arguments_and_environment(name: &str) -> io::Result<()> {
    let Origin { arguments, environment, end } = Origin::find().ok_or(io::ErrorKind::InvalidData)?;
    wipe(arguments, end);
    let shown = name.len().min(environment - arguments - 1);
    // SAFETY: the `shown` bytes at `arguments` are within the area that `wipe` has just written to.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), arguments as *mut u8, shown) };
    Ok(rustix::thread::set_name(&c_string(name.as_bytes())?)?)
}

/// The strings that the kernel put on the stack before `main`: the arguments, followed by the environment, followed by
/// the program's path. `/proc/self/stat` has the same addresses, but reading it takes longer than most steps of
/// building a box.
struct Origin {
    arguments: usize,
    environment: usize,
    end: usize,
}

impl Origin {
    fn find() -> Option<Origin> {
        unsafe extern "C" {
            static environ: *const *const libc::c_char;
        }
        let count = std::env::args_os().len();
        // SAFETY: the C library set it before `main`, and nobody has changed it since.
        let variables = unsafe { environ };
        if variables.is_null() || count == 0 {
            return None;
        }
        // SAFETY: the kernel puts the pointers to the arguments, a null pointer, the pointers to the variables and
        // another null pointer one after the other, and nothing writes to them.
        let pointers = unsafe { std::slice::from_raw_parts(variables.wrapping_sub(count + 1), count + 2) };
        // SAFETY: takes a number and returns one.
        let end = unsafe { libc::getauxval(libc::AT_EXECFN) };
        let (arguments, end) = (pointers[0] as usize, usize::try_from(end).ok()?);
        let environment = if pointers[count + 1].is_null() { end } else { pointers[count + 1] as usize };
        (arguments != 0 && arguments < environment && environment <= end).then_some(Origin {
            arguments,
            environment,
            end,
        })
    }
}

/// Overwrites a part of the stack that the kernel set up before `main`.
fn wipe(from: usize, to: usize) {
    // SAFETY: the strings which the kernel put on this process's stack are there, writable like all of the stack. Rust holds no reference into them: `std::env` copies what it returns. What reads the environment
    // later finds empty strings.
    unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
}

/// Moves into new namespaces. The root of a new cgroup namespace is the cgroup that this process is in.
pub(crate) fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: takes an integer. What changes is what paths, names and addresses mean to later calls; memory and open
    // descriptors stay as they are (CLONE_FILES is not among the flags that are passed).
    checked(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// Sets attributes of a mount, or of the whole tree of mounts beneath it.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, attributes: u64, whole: Subtree) -> io::Result<()> {
    set_attributes(mount, attributes, None, 0, whole)
}

/// The same for the whole tree, which also leaves its peers: what is mounted in it does not appear on the host, nor what the
/// host mounts there in it.
pub(crate) fn mount_setattr_private(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    set_attributes(mount, attributes, None, libc::MS_PRIVATE, Subtree::Whole)
}

/// Shows the files of a whole tree of mounts with other owners, as mapped by the user namespace.
pub(crate) fn mount_idmap(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(mount, libc::MOUNT_ATTR_IDMAP, Some(users), 0, Subtree::Whole)
}

fn set_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    users: Option<BorrowedFd<'_>>,
    propagation: u64,
    whole: Subtree,
) -> io::Result<()> {
    let userns_fd = users.map_or(0, number);
    let attr = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation, userns_fd };
    let flags = libc::AT_EMPTY_PATH as u32
        | match whole {
            Subtree::Whole => libc::AT_RECURSIVE as u32,
            Subtree::Top => 0,
        };
    // SAFETY: the path is a valid empty C string, `attr` is a valid mount_attr of the size given, and the kernel
    // only reads both; the descriptors are open for as long as they are borrowed.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Which part of a tree of mounts is meant.
#[derive(Clone, Copy)]
pub(crate) enum Subtree {
    Top,
    Whole,
}

/// Brings the loopback interface of this network namespace up. The kernel assigns its addresses itself.
pub(crate) fn loopback_up(socket: impl AsFd) -> io::Result<()> {
    /// As in `libc`, whose constant does not have the type that its `ioctl` takes on every C library.
    const SIOCSIFFLAGS: libc::Ioctl = 0x8914;
    /// `IFF_UP` and `IFF_RUNNING`, in the width that the struct has for them.
    const UP_AND_RUNNING: libc::c_short = 0x41;
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; libc::IFNAMSIZ],
        flags: libc::c_short,
        padding: [u8; 22],
    }
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: UP_AND_RUNNING, padding: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: SIOCSIFFLAGS reads a struct ifreq of 40 bytes, which is what `request` is; it outlives the call.
    checked(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCSIFFLAGS, &raw mut request) }.into())
        .map(drop)
}

/// Closes every descriptor from this number on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    close_between(first, u32::MAX)
}

/// Takes ownership of descriptors inherited from the process that this one was cloned from.
pub(crate) fn adopt<const N: usize>(numbers: [RawFd; N]) -> [OwnedFd; N] {
    // SAFETY: they are open, as they were in the process that this one is a clone of; the values that own them there
    // are not this process's to drop.
    numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor except these; the standard streams become `/dev/null`.
pub(crate) fn keep_only<const N: usize>(kept: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    (0..=2).try_for_each(|number| install(null.as_fd(), number))?;
    // It lies in one of the ranges that are closed now.
    std::mem::forget(null);
    let mut numbers = kept.each_ref().map(|descriptor| descriptor.as_raw_fd().cast_unsigned());
    numbers.sort_unstable();
    let mut next = 3;
    for number in numbers {
        close_between(next, number.checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?)?;
        next = number + 1;
    }
    close_from(next)?;
    Ok(kept)
}

/// Closes the descriptors in this range, unless it is empty.
fn close_between(first: u32, last: u32) -> io::Result<()> {
    if last < first {
        return Ok(());
    }
    // SAFETY: takes integers only. Descriptors that Rust values still own are closed under them; callers do this
    // where the process was just forked, is about to exec or has yet to open anything, so that no such value is used
    // or dropped afterwards.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Closes a descriptor without its owner.
pub(crate) fn let_go(fd: BorrowedFd<'_>) {
    // SAFETY: only a process that has just been cloned does this, to descriptors that belong to the process which it
    // was copied from; it never uses or drops their owners, because it ends by `exec` or `_exit`.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// Closes inherited descriptors, except the three streams. The program's own descriptors all have close-on-exec set;
/// inherited ones do not.
///
/// # Errors
/// That `/proc` cannot be read.
pub fn close_inherited() -> io::Result<()> {
    let numbers: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in numbers {
        // SAFETY: takes an integer, and says what flags the descriptor has, if there is one.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: every descriptor that a Rust value of this program owns was opened to be closed by `exec`.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// Puts the keys of the process that started this one out of its reach, by giving it an empty session keyring.
pub(crate) fn leave_keys() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let nameless = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name there is nothing for the kernel to read.
    match checked(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, nameless) }) {
        // A kernel without keyrings has none to drop.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// Marks every descriptor from this number on to be closed by `exec`.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: takes integers only, and changes a flag of each descriptor that no Rust value relies on.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) }).map(drop)
}

/// Makes `fd` the descriptor of this number.
pub(crate) fn install(fd: BorrowedFd<'_>, number: libc::c_int) -> io::Result<()> {
    // SAFETY: `fd` is open for as long as it is borrowed; `number` is one of 0, 1, 2, which this process gives
    // away to the program that it becomes.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Becomes another program. Returns only if that failed.
pub(crate) fn exec(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: `program` is a C string; `argv` and `env` are arrays of pointers to C strings that outlive the
    // call, each ending in a null pointer.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Has this process killed by `SIGPROF` once it has used this much CPU time. `RLIMIT_CPU` counts in seconds.
pub(crate) fn end_after(cpu: Duration) -> io::Result<()> {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let seconds = cpu.as_secs().try_into().map_err(io::Error::other)?;
    // A timer of zero would be none.
    let micros = cpu.subsec_micros().max(u32::from(cpu < Duration::from_micros(1)));
    let first = libc::timeval { tv_sec: seconds, tv_usec: micros.into() };
    let timer = libc::itimerval { it_interval: zero, it_value: first };
    // SAFETY: `timer` is a valid itimerval that the kernel only reads; the previous timer is not asked for.
    checked(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) }.into())
        .map(drop)
}

/// Lowers a resource limit of this process or another, soft and hard alike.
pub(crate) fn set_limit(process: Option<Pid>, resource: Resource, value: u64) -> io::Result<()> {
    let process = process.map_or(0, |pid| pid.as_raw_nonzero().get());
    let number = match resource {
        Resource::Core => libc::RLIMIT_CORE,
        Resource::Cpu => libc::RLIMIT_CPU,
        Resource::Data => libc::RLIMIT_DATA,
        Resource::FileSize => libc::RLIMIT_FSIZE,
        Resource::MemLock => libc::RLIMIT_MEMLOCK,
        Resource::MsgQueue => libc::RLIMIT_MSGQUEUE,
        Resource::Nice => libc::RLIMIT_NICE,
        Resource::NoFile => libc::RLIMIT_NOFILE,
        Resource::NProc => libc::RLIMIT_NPROC,
        Resource::RtPrio => libc::RLIMIT_RTPRIO,
        Resource::SigPending => libc::RLIMIT_SIGPENDING,
        Resource::Stack => libc::RLIMIT_STACK,
    };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is a valid rlimit that the kernel fills in.
    checked(unsafe { libc::prlimit(process, number, std::ptr::null(), &raw mut now) }.into())?;
    // A limit that is already lower cannot be raised without privileges, and is good enough as it is.
    let value = value.min(now.rlim_max);
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` is a valid rlimit that the kernel only reads.
    checked(unsafe { libc::prlimit(process, number, &raw const limit, std::ptr::null_mut()) }.into())
        .map(drop)
}

/// Ends this process at once, without running destructors: they belong to the process it was copied from.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Forgets signal handlers and masks inherited from the caller, so that the program starts with defaults.
pub(crate) fn default_signals() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is a valid disposition for every signal; for those that cannot be changed (SIGKILL,
        // SIGSTOP, and the two that libc keeps) the call fails and changes nothing, which is what we want.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero sigset_t is a valid value of that plain C type, to be set by the next call.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is a valid sigset_t to write to.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: `none` is initialised, and the old mask is not asked for.
    checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) }.into())
        .map(drop)
}

/// Makes the kernel reap dead children at once: their status is not needed.
pub(crate) fn forget_dead_children() {
    // SAFETY: SIG_IGN is a valid disposition for SIGCHLD; nobody has set another in this process yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Makes the kernel keep dead children until they are waited for, whatever was inherited.
pub(crate) fn keep_dead_children() {
    // SAFETY: SIG_DFL is a valid disposition for SIGCHLD; nobody has set another in this process yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Waits for any child, as PID 1 must. Returns its pid and its raw wait status.
pub(crate) fn wait_any() -> io::Result<(Option<Pid>, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid int that the kernel fills in; no rusage is asked for.
        let waited = checked(unsafe { libc::wait4(-1, &raw mut status, 0, std::ptr::null_mut()) }.into());
        match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(pid) => return Ok((i32::try_from(pid).ok().and_then(Pid::from_raw), status)),
        }
    }
}

/// Whether no child is left, including those that `wait` passes over by default. Children that are already dead are
/// reaped.
pub(crate) fn has_no_children() -> bool {
    loop {
        let options = libc::WNOHANG | libc::__WALL;
        // SAFETY: neither a status nor a rusage is asked for.
        match checked(unsafe { libc::wait4(-1, std::ptr::null_mut(), options, std::ptr::null_mut()) }.into())
        {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.raw_os_error() == Some(libc::ECHILD),
        }
    }
}

/// Waits for one child to end: its raw wait status, and the resources used by it and by every process it waited for.
pub(crate) fn wait_for(pid: Pid) -> io::Result<(i32, ResourceUse)> {
    loop {
        if let Some(ended) = wait_with(pid, 0)? {
            return Ok(ended);
        }
    }
}

/// The same for a child that is about to end. Polls a few times before it blocks, because waking up takes longer than
/// the child's end. `None` if it has not ended by then.
pub(crate) fn wait_shortly(pid: Pid) -> io::Result<Option<(i32, ResourceUse)>> {
    const MOMENT: Duration = Duration::from_micros(300);
    let began = Instant::now();
    while began.elapsed() < MOMENT {
        if let Some(ended) = wait_with(pid, libc::WNOHANG)? {
            return Ok(Some(ended));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

fn wait_with(pid: Pid, options: libc::c_int) -> io::Result<Option<(i32, ResourceUse)>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain C type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: `status` and `usage` are valid for the kernel to fill in.
    match checked(unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) }.into()) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some((status, ResourceUse::from(usage)))),
    }
}

/// The resources that processes used, as the kernel reports them once they were waited for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceUse {
    /// CPU time of all of them.
    pub cpu_micros: u64,
    /// Peak resident memory of the largest, in bytes.
    pub max_rss: u64,
}

/// The resources used by the children of this process that were waited for, and by theirs.
#[must_use]
pub fn used_by_children() -> ResourceUse {
    // SAFETY: an all-zero rusage is a valid value of that plain C type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the kernel to fill in; it cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    usage.into()
}

impl From<libc::rusage> for ResourceUse {
    fn from(usage: libc::rusage) -> ResourceUse {
        let micros =
            |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
        let cpu_micros = micros(usage.ru_utime) + micros(usage.ru_stime);
        ResourceUse { cpu_micros, max_rss: usage.ru_maxrss.cast_unsigned() * 1024 }
    }
}

/// A path as the kernel wants it.
pub(crate) fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// A path as the kernel wants it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    c_string(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    use super::*;

    /// A directory in which every user may make files.
    fn open_dir() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("belljar-files-of-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        dir
    }

    #[test]
    fn files_are_made_as_another_user_without_roots_rights_and_only_meanwhile() {
        let own = rustix::process::geteuid().as_raw();
        let other = if own == 0 { 65_534 } else { own };
        let dir = open_dir();
        let closed = dir.join("closed");
        std::fs::write(&closed, "x").unwrap();
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let refused = with_files_of(other, || {
            std::fs::write(dir.join("theirs"), "x")?;
            Ok(std::fs::read(&closed).is_err())
        });
        std::fs::write(dir.join("ours"), "x").unwrap();
        let owner = |name: &str| std::fs::metadata(dir.join(name)).unwrap().uid();
        let owners = (owner("theirs"), owner("ours"));
        let readable_again = own != 0 || std::fs::read(&closed).is_ok();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(refused.unwrap(), "root's rights are gone meanwhile");
        assert_eq!(owners, (other, own));
        assert!(readable_again);
    }

    #[test]
    fn an_error_gives_the_thread_back_to_its_user() {
        let own = rustix::process::geteuid().as_raw();
        let other = if own == 0 { 65_534 } else { own };
        let failed: io::Result<()> = with_files_of(other, || Err(io::ErrorKind::InvalidInput.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(set_file_user(u32::MAX), own);
    }
}
