//! The network of a box whose PID 1 was made ahead: a namespace with a loopback interface and nothing else.
//!
//! To make one takes the kernel longer than everything else that a box has. So a process of its own makes it while PID 1
//! makes the rest, and PID 1 enters it before it starts anything. That process shares its maker's memory, like
//! the [`undertaker`](crate::undertaker), and must not allocate.

use std::ffi::CStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::Pid;

use crate::sys;

/// Starts the process that makes the network of this PID 1 and sends it there. The caller waits for its end.
pub(crate) fn make_beside(init: Pid, to_init: BorrowedFd<'_>) -> io::Result<Pid> {
    let users = sys::c_string(format!("/proc/{}/ns/user", init.as_raw_nonzero()).as_bytes())?;
    let task = Task { users: Box::leak(users.into_boxed_c_str()), to_init: to_init.as_raw_fd() };
    sys::start_beside(move || drop(task.perform()))
}

/// What PID 1 does: waits for its network, and enters it.
pub(crate) fn enter(from_maker: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = [0; size_of::<i32>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut errno)];
        recvmsg(from_maker, &mut slices, &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    let network = beside.drain().find_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut rights) = message { rights.next() } else { None }
    });
    match (received.bytes, i32::from_ne_bytes(errno), network) {
        (_, 0, Some(network)) => sys::enter_namespace(network.as_fd(), libc::CLONE_NEWNET),
        (0, ..) | (_, 0, None) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, errno, _) => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[derive(Clone, Copy)]
struct Task {
    users: &'static CStr,
    to_init: RawFd,
}

impl Task {
    fn perform(self) -> io::Result<()> {
        let [to_init] = sys::keep_only(sys::adopt([self.to_init]))?;
        match self.make() {
            Ok(network) => tell(&to_init, 0, &[network.as_fd()]),
            Err(error) => tell(&to_init, error.raw_os_error().unwrap_or(libc::EIO), &[]),
        }
    }

    /// Its owner are the box's users, so that PID 1 may enter it.
    fn make(self) -> io::Result<OwnedFd> {
        let open = |path: &CStr| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        sys::enter_namespace(open(self.users)?.as_fd(), libc::CLONE_NEWUSER)?;
        sys::unshare(libc::CLONE_NEWNET)?;
        sys::loopback_up(rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?)?;
        Ok(open(c"/proc/self/ns/net")?)
    }
}

fn tell(init: &OwnedFd, errno: i32, network: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !network.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(network));
    }
    let errno = errno.to_ne_bytes();
    sendmsg(init, &[IoSlice::new(&errno)], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}
