//! The system calls that a box may make.
//!
//! [`policy`] is a table of every call the kernel has, with a rule and a reason each; `compile` turns it into a
//! program for the kernel; [`Filter`] is that program, ready to be loaded.
//!
//! **An allow-list.** Untrusted code gets what the runtimes of the supported languages call, and close kin of
//! that. What is refused is refused with an errno: the code may be a legitimate program with a fallback, and
//! a program that dies of a probe (libuv asks for io_uring on every start) is a sandbox that does not work.
//! `EPERM` is the answer to what is known and refused. `ENOSYS` is the answer to what a program should take for
//! an older kernel: io_uring, keyrings, `clone3` (whose flags are behind a pointer, where no filter can see them;
//! libc then uses `clone`), and every number that the table does not have, so that calls the kernel will learn
//! are refused from the day it does.
//!
//! **Kill for a foreign ABI only.** Numbers mean something else there, so nothing that follows would be true.
//! A program of the native ABI never gets there by accident.
//!
//! **Not a library.** libseccomp and its kin resolve names at run time and load what they find; here the numbers
//! are the compiler's constants, the table is the documentation, and the same table answers [`verdict`], so
//! that the tests can hold the compiled program against it number by number. The compiler is a page of code.
//!
//! **Not alone.** A filter sees numbers and registers, not what pointers lead to: paths are a matter of mounts and
//! Landlock, rights of capabilities, amounts of cgroups. It is loaded last, after everything that it forbids.

mod compile;
mod listener;
pub mod oci;
pub mod policy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::LazyLock;

use libc::sock_filter;

pub use self::listener::{Asked, Listener, Subject};
pub use self::policy::{Row, Rule, Verdict};

/// A compiled policy.
#[derive(Clone)]
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// The filter for untrusted code. It is compiled on first use; processes forked after that inherit it.
    #[must_use]
    pub fn standard() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::STANDARD)));
        &COMPILED
    }

    /// The same for a container, where locks of files and connections have to be asked for. It is of no use without a listener.
    #[must_use]
    pub fn contained() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::CONTAINED)));
        &COMPILED
    }

    /// [`standard`](Filter::standard) for a kernel that offers no listener: what has to be asked for is allowed. Only for a kernel whose memory
    /// is charged to the box as a whole (gVisor).
    #[must_use]
    pub fn unlistened() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| {
            let ask = libc::SECCOMP_RET_USER_NOTIF;
            let allowed = |line: &sock_filter| match (u32::from(line.code), line.k) {
                (0x06, action) if action == ask => sock_filter { k: libc::SECCOMP_RET_ALLOW, ..*line },
                _ => *line,
            };
            Filter(Filter::standard().0.iter().map(allowed).collect())
        });
        &COMPILED
    }

    /// The filter for PID 1 of a box, once it only has to wait. It allows starting nothing.
    #[must_use]
    pub fn reaper() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::REAPER)));
        &COMPILED
    }

    /// The filter for a helper on the host, to be loaded after the standard one.
    #[must_use]
    pub fn apart() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::APART)));
        &COMPILED
    }

    /// The filter for a parser, which needs nothing but memory.
    #[must_use]
    pub fn parser() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::PARSER)));
        &COMPILED
    }

    /// The filter for a gateway, which makes connections for a box.
    #[must_use]
    pub fn gateway() -> &'static Filter {
        static COMPILED: LazyLock<Filter> = LazyLock::new(|| Filter(compile::compile(&policy::GATEWAY)));
        &COMPILED
    }

    /// Puts the calling process, all its threads and all its future children under this filter, for good.
    ///
    /// Allocates nothing, so it may run between `fork` and `exec`. The process must have `no_new_privs` already.
    ///
    /// # Errors
    /// The kernel's; `EACCES` if `no_new_privs` is missing, `ESRCH` if a thread is under another filter.
    pub fn load(&self) -> io::Result<()> {
        // A thread that was overlooked must not stay outside the filter. With one thread this costs nothing.
        match self.install(libc::SECCOMP_FILTER_FLAG_TSYNC)? {
            0 => Ok(()),
            // A positive result is the thread that could not be brought along.
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// As [`load`](Filter::load). Returns the descriptor of a [`Listener`].
    ///
    /// # Errors
    /// As above.
    pub fn load_listened(&self) -> io::Result<OwnedFd> {
        let in_one = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
        let listener = self.install(in_one | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
        let listener = i32::try_from(listener).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(listener) })
    }

    fn install(&self, flags: libc::c_ulong) -> io::Result<libc::c_long> {
        let len = u16::try_from(self.0.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `seccomp(SECCOMP_SET_MODE_FILTER, flags, &sock_fprog)` copies `len` instructions from `filter`
        // and keeps no pointer. Both structures are alive and initialised for the length of the call; the kernel
        // only reads through `filter`, which is `*mut` for historical reasons.
        let result = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// The program as the kernel reads it, for a process that loads it without our help.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = |line: &sock_filter| {
            let sock_filter { code, jt, jf, k } = *line;
            let ([c0, c1], [k0, k1, k2, k3]) = (code.to_ne_bytes(), k.to_ne_bytes());
            [c0, c1, jt, jf, k0, k1, k2, k3]
        };
        self.0.iter().flat_map(bytes).collect()
    }

    /// The program, for callers that load it in another way.
    #[must_use]
    pub fn instructions(&self) -> &[sock_filter] {
        &self.0
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} instructions)", self.0.len())
    }
}

/// What [`Filter::standard`] answers to a call of the native ABI, according to the table and not the program.
#[must_use]
pub fn verdict(number: u32, arguments: &[u64; 6]) -> Verdict {
    policy::STANDARD.verdict(number, arguments)
}
