//! What a box may have little of, because the kernel holds memory for it that nobody is charged for. The filter of
//! system calls makes these calls wait until they are answered here: a box could hold hundreds of megabytes before
//! anybody looks at a counter.
//!
//! - Netlink sockets. Programs need one for a moment, to list the network interfaces (`getifaddrs`). 200 KiB can wait in each.
//! - Sockets that share their port (`SO_REUSEPORT`). Each can have an entry of 2 KiB.
//! - Locks of files, in a container. Each takes 200 bytes. They are counted after so many calls.
//! - Connections, in a container. Each holds some kilobytes until it is accepted. They are counted, too.

use std::io;
use std::time::{Duration, Instant};

use belljar_jail::seccomp::{Asked, Listener, Subject};

/// The most netlink sockets that may be open or on their way. Full ones hold 10 MB.
const MOST: usize = 48;
/// How often a box may share a port, in its whole life. All of them hold 8 MB at most.
const MOST_SHARED: u32 = 4096;
/// How many calls for locks are allowed before the locks are counted. Each makes two more at most, in the middle of another
/// one: 1.7 MB.
const LOCKS_BETWEEN_COUNTS: u32 = 4096;
/// The same for connections, each of which can hold 40 KiB: 5 MB.
const CONNECTIONS_BETWEEN_COUNTS: u32 = 128;
/// How long a thread may take from the answer to the socket. A thread whose box has used up its share of the CPU waits
/// for up to 100 ms.
const SETTLING: Duration = Duration::from_millis(250);

/// What has to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// The locks, after so many calls for one since the last time.
    Locks {
        /// How many.
        calls: u32,
    },
    /// The sockets.
    Connections,
}

/// Answers the threads of a box.
#[derive(Debug, Default)]
pub struct Rations {
    /// The threads that were allowed to make a netlink socket, and when. A socket may not exist yet, exist or be closed again.
    granted: Vec<(u32, Instant)>,
    /// One that has to wait until there are fewer.
    held: Option<Asked>,
    /// How often a port was shared.
    shared: u32,
    /// How many calls there have been since these were counted.
    locks: u32,
    connections: u32,
}

impl Rations {
    /// Answers the threads that ask, in turn, as long as there are not too many netlink sockets. The others go on waiting: this
    /// has to be called again soon.
    ///
    /// # Errors
    /// The kernel's, and those of `open`, which counts the netlink sockets that exist.
    pub fn answer(
        &mut self,
        listener: &Listener,
        mut open: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<()> {
        loop {
            let next = self.held.take().map_or_else(|| listener.next_asked(), |held| Ok(Some(held)))?;
            let Some(asked) = next else { return Ok(()) };
            match asked.subject() {
                Subject::SharedPort => self.share(listener, &asked)?,
                Subject::Lock if self.locks < LOCKS_BETWEEN_COUNTS => {
                    self.locks += 1;
                    listener.allow(&asked)?;
                }
                Subject::Connection if self.connections < CONNECTIONS_BETWEEN_COUNTS => {
                    self.connections += 1;
                    listener.allow(&asked)?;
                }
                Subject::Socket if !self.is_full(asked.thread, Instant::now(), open()?) => {
                    listener.allow(&asked)?;
                    self.granted.push((asked.thread, Instant::now()));
                }
                Subject::Lock | Subject::Connection | Subject::Socket => {
                    self.held = Some(asked);
                    return Ok(());
                }
            }
        }
    }

    /// What has to be counted before more of it is allowed. It counts as done.
    pub fn next_count(&mut self) -> Option<Count> {
        if self.locks >= LOCKS_BETWEEN_COUNTS {
            return Some(Count::Locks { calls: std::mem::take(&mut self.locks) });
        }
        if self.connections >= CONNECTIONS_BETWEEN_COUNTS {
            self.connections = 0;
            return Some(Count::Connections);
        }
        None
    }

    fn share(&mut self, listener: &Listener, asked: &Asked) -> io::Result<()> {
        if self.shared >= MOST_SHARED {
            return listener.refuse(asked);
        }
        self.shared += 1;
        listener.allow(asked)
    }

    /// Whether threads wait until there are fewer.
    #[must_use]
    pub fn are_used_up(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a thread has to wait. If it asks again, its earlier call has ended.
    fn is_full(&mut self, thread: u32, now: Instant, open: usize) -> bool {
        self.granted.retain(|(other, when)| *other != thread && now.duration_since(*when) < SETTLING);
        open.saturating_add(self.granted.len()) >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_closes_its_sockets_never_waits() {
        let (mut rations, now) = (Rations::default(), Instant::now());
        for _ in 0..1000 {
            assert!(!rations.is_full(7, now, 1));
            rations.granted.push((7, now));
        }
    }

    #[test]
    fn threads_wait_until_there_are_fewer() {
        let (mut rations, now) = (Rations::default(), Instant::now());
        assert!(rations.is_full(1, now, MOST), "too many exist");
        for thread in 1..=u32::try_from(MOST).unwrap() {
            assert!(!rations.is_full(thread, now, 0));
            rations.granted.push((thread, now));
        }
        assert!(rations.is_full(1000, now, 0), "too many may exist in a moment");
        assert!(!rations.is_full(1000, now + SETTLING, 0));
    }
}
