//! The uplink of a box that was made before its request.
//!
//! When such a box gets its code, its PID 1 has given up every right already. So the keeper forks a process that enters the
//! box's user namespace and its network namespace, and does there what PID 1 does for other boxes ([`uplink::connect`]). It
//! enters no other namespace, so nothing in the box can name it or see it, and it is gone before the code arrives.

use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::fault::{About, Concerning, Doing, Fault};
use crate::init_handle::Network;
use crate::message::{self, Reply, socket_pair};
use crate::sys::{self, Fork};
use crate::uplink;

/// Makes the uplink. Returns the socket to its far end.
pub(crate) fn make(network: &Network) -> Result<OwnedFd, Fault> {
    let (ours, theirs) = socket_pair().doing(|| "make a socket for the uplink")?;
    match sys::clone_into(0, None).doing(|| "start a process for the uplink")? {
        (Fork::Child, _) => {
            let sent = match connect(network) {
                Ok(far_end) => message::send(&theirs, &Reply::Uplink, &[far_end.as_fd()]),
                Err(fault) => message::send(&theirs, &fault.into_reply(), &[]),
            };
            sys::exit_now(i32::from(sent.is_err()))
        }
        (Fork::Parent(pid), _) => {
            drop(theirs);
            let said = message::receive(&ours).doing(|| "wait for the uplink");
            sys::wait_for(pid).doing(|| "wait for the uplink")?;
            match said? {
                Some((Reply::Uplink, beside)) => {
                    beside.into_iter().next().ok_or(std::io::ErrorKind::NotFound).doing(|| "find the uplink")
                }
                Some((Reply::Failed { fault }, _)) => Err(fault),
                Some(_) | None => Err(Fault::with_errno("make the box's network interface", libc::ECHILD)),
            }
        }
    }
}

fn connect(network: &Network) -> Result<OwnedFd, Fault> {
    let enter = |namespace: &OwnedFd, kind| move_into_link_name_space(namespace.as_fd(), Some(kind));
    enter(&network.user, LinkNameSpaceType::User).doing(|| "enter the box's user namespace")?;
    enter(&network.net, LinkNameSpaceType::Network).doing(|| "enter the box's network namespace")?;
    uplink::connect().doing(|| "make the box's network interface").concerning(About::Network)
}
