//! A box for as long as it exists: its keeper, and the cgroup of its processes.

use std::io;
use std::os::fd::OwnedFd;

use belljar_core::backend::BackendError;
use belljar_jail::message::Reply;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::cgroup::BoxCgroup;
use crate::errors::setup;
use crate::keeper::{Keeper, PATIENCE};

/// A box that exists. Dropping it destroys the box.
pub(crate) struct LiveBox {
    pub(crate) keeper: Keeper,
    pub(crate) cgroup: Option<BoxCgroup>,
    /// A second handle on the keeper's socket, to be polled. It is closed before the keeper is dismissed.
    socket: Option<UnixDatagram>,
}

impl LiveBox {
    pub(crate) fn new(keeper: Keeper, cgroup: Option<BoxCgroup>) -> io::Result<LiveBox> {
        let socket = Some(watch_socket(&keeper)?);
        Ok(LiveBox { keeper, cgroup, socket })
    }

    /// The next message from the keeper; `None` if it has died.
    pub(crate) async fn hear(&mut self) -> Result<Option<(Reply, Vec<OwnedFd>)>, BackendError> {
        let Some(socket) = &self.socket else { return Ok(None) };
        loop {
            socket.readable().await.map_err(setup("receive the keeper's report"))?;
            match socket.try_io(Interest::READABLE, || self.keeper.hear()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other.map_err(setup("receive the keeper's report")),
            }
        }
    }

    /// Kills every process in it.
    pub(crate) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        self.keeper.kill_box();
    }

    /// Disconnects, and lets the keeper kill the box and remove its cgroups.
    pub(crate) async fn take_apart_later(mut self) {
        self.keeper.say_goodbye();
        let gone = async { while let Ok(Some(_)) = self.hear().await {} };
        let _ = tokio::time::timeout(PATIENCE, gone).await;
        // What could not be removed now is found by the next sweep.
        let _ = self.take_apart();
    }

    pub(crate) fn take_apart(mut self) -> Result<(), BackendError> {
        self.socket = None;
        if self.keeper.is_process() {
            // The keeper kills what is left, and then removes the cgroups.
            self.keeper.dismiss();
        }
        if let Some(cgroup) = self.cgroup.take() {
            cgroup.remove().map_err(|error| setup("remove the box's cgroup")(io::Error::other(error)))?;
        }
        self.keeper.dismiss();
        Ok(())
    }
}

impl Drop for LiveBox {
    fn drop(&mut self) {
        // The keeper's end kills the box; the cgroup must be empty before it can be removed.
        self.kill();
        self.socket = None;
        self.keeper.dismiss();
    }
}

/// The socket keeps message boundaries, like a datagram socket; polling it needs no more than that.
fn watch_socket(keeper: &Keeper) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(keeper.share_socket()?);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}
