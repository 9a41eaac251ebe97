//! The messages between caller, keeper and PID 1: one datagram for each, with descriptors attached ("beside it").

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg,
};

use crate::codec::{self, Coded, Malformed, coded_enum};
use crate::fault::Fault;
use crate::plan::Plan;

/// From the caller to the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Make a box. Beside it: the payload (the contents of the plan's inputs, then the plan), stdin, stdout and
    /// stderr, and a template, if the plan comes without its foundation.
    Make {
        /// Where the plan begins in the payload.
        plan_offset: u64,
        /// How long it is.
        plan_length: u64,
    },
    /// Make a template of a plan's foundation. Beside it: the plan.
    MakeTemplate {
        /// How long it is.
        plan_length: u64,
    },
    /// Kill everything in the box.
    Kill,
    /// A zygote's child is in the box, and waits there for its code.
    Entered,
    /// Write files into a box whose program waits for its code. Beside it: the payload (their contents, then a list of
    /// inputs), and the directory for them.
    Supply {
        /// Where the list begins in the payload.
        list_offset: u64,
        /// How long it is.
        list_length: u64,
    },
    /// Give an uplink to a box whose program waits for its code.
    Uplink,
    /// To the warden: fork a keeper. Beside it: the keeper's end of the socket between it and the caller.
    Hire,
}

coded_enum!(Request {
    0 => Make { plan_offset, plan_length },
    1 => Kill,
    2 => Entered,
    3 => Hire,
    4 => Supply { list_offset, list_length },
    5 => MakeTemplate { plan_length },
    6 => Uplink,
});

/// To a PID 1 that was made before its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handover {
    /// The box to build. Beside it: the lifeline, the payload, stdin, stdout, stderr, and the sources.
    Box { plan_offset: u64, plan_length: u64 },
    /// The box's cgroup exists and has its limits. Beside it: its `tasks` files.
    Cgroup,
}

coded_enum!(Handover { 0 => Box { plan_offset, plan_length }, 1 => Cgroup });

/// From PID 1 to the keeper, and from the keeper to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// From the warden: a keeper exists. Beside it: its pidfd.
    Hired {
        /// Its process id.
        pid: u32,
    },
    /// The box is ready for a zygote's child to enter. Beside it, from PID 1: the directory that the plan offers, and
    /// the Landlock rule set, if this kernel has Landlock; from the keeper, between the two: the box's namespaces, in
    /// the order of [`NAMESPACES`].
    Ready,
    /// The program has started. Beside it: the directory that the plan offers, if it does, and, if the plan wants
    /// one, an exit listener and, from the keeper, the program's directory in `/proc`. For a program from a zygote, instead:
    /// the pipe for its code, and that directory.
    Started,
    /// The program has started, and some of its calls wait for the caller's decision. Beside it: the listener of its
    /// filter. For a program that came with an exit listener, that is the listener.
    Listening,
    /// The box has an uplink. Beside it: the socket to its far end. It comes before the program starts, or when the
    /// caller asks for it.
    Uplink,
    /// The files have been written.
    Supplied,
    /// There is a template. Beside it: its mount namespace.
    Template,
    /// The box could not be made; no instruction of the program has run.
    Failed {
        /// Why not.
        fault: Fault,
    },
    /// The program has ended, and only PID 1 is left in the box. It waits to be killed.
    Deserted {
        /// As `waitpid` gives it.
        status: i32,
    },
    /// The program has ended, and with it everything in the box.
    Ended {
        /// As `waitpid` gives it.
        status: i32,
        /// CPU time of all processes that were waited for.
        cpu_micros: u64,
        /// Peak resident memory of the largest process.
        max_rss: u64,
    },
}

coded_enum!(Reply {
    0 => Started,
    1 => Failed { fault },
    2 => Ended { status, cpu_micros, max_rss },
    3 => Ready,
    4 => Hired { pid },
    5 => Deserted { status },
    6 => Listening,
    7 => Supplied,
    8 => Template,
    9 => Uplink,
});

/// The current configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Configured {
    /// There is one. Beside it: its content.
    File {
        /// As messages name it.
        path: String,
    },
    /// There is none.
    Nothing {
        /// Where it would be.
        path: String,
    },
    /// It cannot be read.
    Unreadable {
        /// Why.
        message: String,
        /// What would help.
        hint: String,
    },
}

coded_enum!(Configured { 0 => File { path }, 1 => Nothing { path }, 2 => Unreadable { message, hint } });

/// The namespaces of a box, named as in `/proc`, in the order in which they are entered: the user namespace first,
/// because it gives the right to enter the others.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// No message is longer: plans travel in the payload.
const MAX_MESSAGE: usize = 4096;
/// The streams and every part of the host that a box shows; the kernel takes up to 253 (`SCM_MAX_FD`).
const MAX_DESCRIPTORS: usize = 250;

/// Sends one message.
///
/// # Errors
/// As `sendmsg(2)`; `EPIPE` when the other side is gone.
pub fn send<M: Coded>(socket: impl AsFd, message: &M, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::empty())
}

/// The same for a peer that may not be reading: does not block.
///
/// # Errors
/// As [`send`], or `EAGAIN`.
pub fn send_at_once<M: Coded>(
    socket: impl AsFd,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::DONTWAIT)
}

fn send_with<M: Coded>(
    socket: impl AsFd,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = codec::encode(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let slices = [IoSlice::new(&bytes)];
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket.as_fd(), &slices, &mut ancillary, flags))?;
    Ok(())
}

/// Receives one message and the descriptors beside it; `None` when the other side is gone.
///
/// # Errors
/// As `recvmsg(2)`, or `InvalidData` for anything that is not a message of this kind.
pub fn receive<M: Coded>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::empty())
}

/// The same if a message may not have come yet: does not block.
///
/// # Errors
/// As [`receive`], or `EAGAIN`.
pub fn receive_at_once<M: Coded>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::DONTWAIT)
}

fn receive_with<M: Coded>(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket.as_fd(), &mut slices, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
    });
    let length = match received {
        // If a peer died without having read all our messages, the kernel reports this instead of the end.
        Err(rustix::io::Errno::CONNRESET) => 0,
        // A message with missing descriptors is incomplete.
        Ok(received) if received.flags.contains(ReturnFlags::CTRUNC) => {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        other => other?.bytes,
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if length == 0 {
        return Ok(None);
    }
    let message = codec::decode(&bytes[..length]).map_err(io::Error::other)?;
    Ok(Some((message, descriptors)))
}

/// The plan in a payload.
pub(crate) fn read_plan(payload: OwnedFd, offset: u64, length: u64) -> io::Result<(Plan, OwnedFd)> {
    let payload = std::fs::File::from(payload);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    payload.read_exact_at(&mut bytes, offset)?;
    Ok((codec::decode(&bytes).map_err(io::Error::other)?, payload.into()))
}

/// Two ends of a conversation.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Fault {
    pub(crate) fn into_reply(self) -> Reply {
        Reply::Failed { fault: self }
    }
}
