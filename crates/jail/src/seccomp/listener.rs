//! The other end of a filter: the process that decides on calls with the verdict [`Ask`](super::Verdict::Ask).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A call that waits for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    id: u64,
    /// The thread that made it, as this process numbers it. 0 if it cannot see it.
    pub thread: u32,
    /// The number of the call.
    pub call: u32,
}

/// What a call that waits for a decision is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A netlink socket.
    Socket,
    /// A port that sockets share.
    SharedPort,
    /// A lock of a file, or its end.
    Lock,
    /// A connection, of any family.
    Connection,
}

/// The descriptor through which decisions are made. It also hangs up when the last process under the filter is exiting,
/// before the kernel frees its memory, which takes longer than many programs run. (Before Linux 6.11: when the process
/// is gone.)
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// From `linux/seccomp.h`: `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    data: [u64; 8],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `SECCOMP_IOCTL_NOTIF_RECV`.
const RECEIVE: u64 = 0xC050_2100;
/// `SECCOMP_IOCTL_NOTIF_SEND`.
const SEND: u64 = 0xC018_2101;
/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`, and `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SET_FLAGS: u64 = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`: the kernel makes the call.
const CONTINUE: u32 = 1;

impl From<Notification> for Asked {
    fn from(Notification { id, pid, data, .. }: Notification) -> Asked {
        // The low half is the number, the high half the architecture.
        Asked { id, thread: pid, call: u32::try_from(data[0] & 0xFFFF_FFFF).unwrap_or_default() }
    }
}

impl Asked {
    /// What it is for.
    #[must_use]
    pub fn subject(&self) -> Subject {
        match i64::from(self.call) {
            libc::SYS_socket => Subject::Socket,
            libc::SYS_fcntl | libc::SYS_flock => Subject::Lock,
            libc::SYS_connect => Subject::Connection,
            _ => Subject::SharedPort,
        }
    }
}

impl Listener {
    /// A descriptor that the kernel made with a filter.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Listener {
        Listener(descriptor)
    }

    /// Lets the kernel run whoever decides on the CPU of whoever waits, which is faster if one does nothing but wait for the
    /// other. Kernels before 6.6 cannot, and nothing changes.
    pub fn wake_on_the_same_cpu(&self) {
        // SAFETY: `SECCOMP_IOCTL_NOTIF_SET_FLAGS` takes a number, and no pointer.
        let _ = unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) };
    }

    /// Whether no process is left under the filter.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.state().contains(PollFlags::HUP)
    }

    /// The next call that waits, if there is one. Does not block.
    ///
    /// # Errors
    /// The kernel's.
    pub fn next_asked(&self) -> io::Result<Option<Asked>> {
        while self.state().contains(PollFlags::IN) {
            let mut asked = Notification::default();
            // SAFETY: `SECCOMP_IOCTL_NOTIF_RECV` writes a `struct seccomp_notif`, which `asked` is, and which it wants
            // to be all zeros before. It is alive for the length of the call.
            let result = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, &raw mut asked) };
            match (result, io::Error::last_os_error()) {
                (0, _) => return Ok(Some(asked.into())),
                // The thread was interrupted, or is gone.
                (_, error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                (_, error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Lets the kernel make the call. It is no error if the thread is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow(&self, asked: &Asked) -> io::Result<()> {
        self.respond(&Response { id: asked.id, value: 0, error: 0, flags: CONTINUE })
    }

    /// Lets the call fail for want of memory. It is no error if the thread is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn refuse(&self, asked: &Asked) -> io::Result<()> {
        self.respond(&Response { id: asked.id, value: 0, error: -libc::ENOMEM, flags: 0 })
    }

    fn respond(&self, response: &Response) -> io::Result<()> {
        // SAFETY: `SECCOMP_IOCTL_NOTIF_SEND` reads a `struct seccomp_notif_resp`, which `response` is. It is alive and
        // initialised for the length of the call.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, std::ptr::from_ref(response)) };
        match (result, io::Error::last_os_error()) {
            (0, _) => Ok(()),
            (_, error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            (_, error) => Err(error),
        }
    }

    fn state(&self) -> PollFlags {
        let mut listener = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut listener, Some(&now)) {
            Ok(_) => listener[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
