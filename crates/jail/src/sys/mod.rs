//! The system calls that rustix does not wrap, each as one small safe function. All `unsafe` of this crate that
//! is not seccomp's or Landlock's is in this folder.

mod birth;
mod children;
mod files_of;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use crate::plan::Resource;

pub(crate) use self::birth::{Fork, clone_into, spawn, start_beside};
pub use self::children::{ResourceUse, used_by_children};
pub(crate) use self::children::{
    forget_dead_children, has_no_children, keep_dead_children, wait_any, wait_for, wait_shortly,
};
pub(crate) use self::files_of::act_as;
pub use self::files_of::{acting_as, with_files_of};

/// Turns the result of a raw system call into a `Result`.
pub(crate) fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
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

/// A descriptor as the kernel's structs hold it.
fn number(fd: BorrowedFd<'_>) -> u64 {
    u64::from(fd.as_raw_fd().cast_unsigned())
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
