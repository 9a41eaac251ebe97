//! Landlock: a second line of defence for the file system, from a different part of the kernel than the mounts.
//!
//! The mounts decide what exists in a box. Landlock denies writing, making and executing anywhere except where the plan
//! allows it, even through a descriptor or a path that should not have been there. From ABI 6 it also confines signals
//! and abstract sockets to the box. Belljar makes raw calls instead of using the `landlock` crate: three system calls
//! and two structs, against eleven packages in the one crate that must be readable in an afternoon.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::plan::Access;
use crate::sys::checked;

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// `REMOVE_DIR` to `MAKE_SYM`: bits 4 to 12 change a directory.
const CHANGE_DIR: u64 = 0b1_1111_1111 << 4;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

const SCOPE_ABSTRACT_SOCKETS: u64 = 1 << 0;
const SCOPE_SIGNALS: u64 = 1 << 1;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The ABI of this kernel; 0 if it has no Landlock.
#[must_use]
pub fn abi() -> u32 {
    // SAFETY: with this flag the call takes a null pointer and size 0 and only returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, CREATE_RULESET_VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Denies this process and its children everything that the rules do not allow, for ever.
///
/// # Errors
/// The kernel's, which may have no Landlock: ask for its [`abi`] first.
pub fn restrict(rules: &[(PathBuf, Access)]) -> io::Result<()> {
    enforce(&ruleset(rules)?)
}

/// Applies a rule set to this process. Allocates nothing, so it may run between `fork` and `exec`.
pub(crate) fn enforce(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes a descriptor that we own and a zero.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }).map(drop)
}

/// The rules of [`restrict`] as a rule set, for another process to apply to itself.
pub(crate) fn ruleset(rules: &[(PathBuf, Access)]) -> io::Result<OwnedFd> {
    let abi = abi();
    let handled = handled(abi);
    let ruleset = create_ruleset(abi, handled)?;
    for (path, access) in rules {
        add_rule(&ruleset, path, granted(*access) & handled)?;
    }
    Ok(ruleset)
}

/// Every file access right that this kernel knows.
fn handled(abi: u32) -> u64 {
    let since = |version: u32, right: u64| if abi >= version { right } else { 0 };
    EXECUTE
        | WRITE_FILE
        | READ_FILE
        | READ_DIR
        | CHANGE_DIR
        | since(2, REFER)
        | since(3, TRUNCATE)
        | since(5, IOCTL_DEV)
}

fn granted(access: Access) -> u64 {
    match access {
        Access::Read => EXECUTE | READ_FILE | READ_DIR,
        Access::Use => READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV,
        Access::Write => EXECUTE | READ_FILE | READ_DIR | WRITE_FILE | CHANGE_DIR | REFER | TRUNCATE,
    }
}

fn create_ruleset(abi: u32, handled: u64) -> io::Result<OwnedFd> {
    let attr = RulesetAttr {
        handled_access_fs: handled,
        handled_access_net: 0,
        scoped: if abi >= 6 { SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS } else { 0 },
    };
    // An older kernel refuses a struct that is larger than the one it knows, so it gets just that.
    let size = if abi >= 6 { size_of::<RulesetAttr>() } else { size_of::<u64>() };
    // SAFETY: `attr` is a valid landlock_ruleset_attr, of which the kernel reads `size` bytes.
    let fd = checked(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size, 0) })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add_rule(ruleset: &OwnedFd, path: &Path, rights: u64) -> io::Result<()> {
    let target = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let is_dir = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode).is_dir();
    // A rule on a file may only name rights that a file can have.
    let on_files = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV;
    let rights = if is_dir { rights } else { rights & on_files };
    let rule = PathBeneathAttr { allowed_access: rights, parent_fd: target.as_raw_fd() };
    // SAFETY: `rule` is a valid landlock_path_beneath_attr that the kernel only reads; both descriptors are open.
    checked(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0)
    })
    .map(drop)
}
