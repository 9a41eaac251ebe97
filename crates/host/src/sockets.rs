//! The TCP and netlink sockets of a box, as the kernel counts them in its network namespace.
//!
//! Messages that wait in a netlink socket are not charged to the box, and the kernel sends every message back that it
//! does not know. A TCP connection that nobody has accepted is not charged to the box, nor is what has arrived there; and neither is one
//! that waits for its last packets (`TIME_WAIT`). Their number is not bounded by that of open descriptors: a program
//! can close its own end. The kernel does not tell which connections have been accepted, so all count.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much the sockets of a box may buffer on cgroup v1, which counts that separately. Near this limit TCP goes on with
/// smaller windows.
pub const BUFFERS_LIMIT: u64 = 8 << 20;
/// How much kernel memory a box may hold beyond its memory limit.
pub const BEYOND_LIMIT: u64 = 16 << 20;

/// What a TCP socket can hold that nobody is charged for: itself, and what arrives before it is accepted.
const SOCKET: u64 = 12 << 10;
/// The same for one in `TIME_WAIT`.
const WAITING_SOCKET: u64 = 272;
/// What counts for each byte that waits in a netlink socket. A program that reads its replies holds some kilobytes. One
/// that does not can queue 10 MB between two looks at the counters, so it may not come near the limit.
const NETLINK_FACTOR: u64 = 16;
/// So many sockets cannot hold much, even if all of them are netlink sockets with a full queue of 212 KiB. The list of
/// netlink sockets is not read for them: the kernel goes through those of the whole host to make it.
const FEW_SOCKETS: u64 = 16;
/// More than the files of TCP have.
const LONGEST: usize = 1024;
/// The longest list of netlink sockets that is read, with 180 of them. No honest program has more.
const LONGEST_LIST: usize = 16 << 10;

/// The files in which the kernel counts the sockets of a network namespace.
#[derive(Debug)]
pub struct Sockets {
    v4: File,
    /// Missing on a kernel without IPv6.
    v6: Option<File>,
    /// Missing in containers that hide it.
    netlink: Option<File>,
}

impl Sockets {
    /// Those of the namespace of a process, by its directory in `/proc`. They stay readable when the process is gone.
    ///
    /// # Errors
    /// There is no such process, or the kernel has no network.
    pub fn of_process(directory: &Path) -> io::Result<Sockets> {
        let open = |name: &str| File::open(directory.join("net").join(name));
        Ok(Sockets { v4: open("sockstat")?, v6: open("sockstat6").ok(), netlink: open("netlink").ok() })
    }

    /// How many netlink sockets the namespace has, besides the kernel's own. Without a list, none that are known of.
    ///
    /// # Errors
    /// The kernel's.
    pub fn netlink(&self) -> io::Result<usize> {
        let list = self.netlink.as_ref().map(|list| read(list, LONGEST_LIST)).transpose()?;
        Ok(list.as_deref().map_or(0, netlink_sockets))
    }

    /// How many TCP and how many UDP sockets there are.
    fn in_use(&self) -> io::Result<(u64, u64)> {
        let v4 = read(&self.v4, LONGEST)?;
        let v6 = self.v6.as_ref().map(|file| read(file, LONGEST)).transpose()?.unwrap_or_default();
        let sum =
            |protocol: &str, protocol6: &str| count(&v4, protocol, "inuse") + count(&v6, protocol6, "inuse");
        Ok((sum("TCP:", "TCP6:"), sum("UDP:", "UDP6:")))
    }

    /// How much kernel memory they can hold that nobody is charged for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory(&self) -> io::Result<u64> {
        let counts = read(&self.v4, LONGEST)?;
        let v6 = self.v6.as_ref().map(|file| read(file, LONGEST)).transpose()?.unwrap_or_default();
        let tcp = memory_of(&counts, "TCP:") + memory_of(&v6, "TCP6:");
        let Some(list) = self.netlink.as_ref().filter(|_| count(&counts, "sockets:", "used") > FEW_SOCKETS)
        else {
            return Ok(tcp);
        };
        Ok(tcp.saturating_add(netlink_memory(&read(list, LONGEST_LIST)?)))
    }
}

/// How much is read at a time.
const PIECE: usize = 16 << 10;
/// The longest list of TCP or UDP sockets that is read, with some 7,000 of them.
const LONGEST_QUEUES: usize = 1 << 20;
/// So few TCP and UDP sockets cannot hold much.
const FEW_TCP: u64 = 2;
const FEW_UDP: u64 = 16;
/// How often the lists of TCP are read: the kernel goes through a table of the whole host to make one, which takes
/// milliseconds. Until then the number of sockets and the size of their buffers are the bound.
const TCP_EVERY: Duration = Duration::from_millis(250);

/// What waits in the sockets of a network namespace, for a cgroup that is not charged for it: version 1 charges socket
/// buffers only if they have a limit of their own, which not every container engine sets.
#[derive(Debug)]
pub struct Queues {
    sockets: Sockets,
    /// Those of IPv6 are missing on a kernel without it.
    tcp: Vec<File>,
    udp: Vec<File>,
    /// When the lists of TCP were read, and what they came to.
    known: Cell<Option<(Instant, u64)>>,
}

impl Queues {
    /// Those of the namespace of a process, by its directory in `/proc`.
    ///
    /// # Errors
    /// There is no such process, or the kernel has no network.
    pub fn of_process(directory: &Path) -> io::Result<Queues> {
        let open = |name: &str| File::open(directory.join("net").join(name));
        let both = |v4: &str, v6: &str| -> io::Result<Vec<File>> {
            Ok([open(v4)?].into_iter().chain(open(v6).ok()).collect())
        };
        let (tcp, udp) = (both("tcp", "tcp6")?, both("udp", "udp6")?);
        Ok(Queues { sockets: Sockets::of_process(directory)?, tcp, udp, known: Cell::new(None) })
    }

    /// How much memory they take.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory(&self) -> io::Result<u64> {
        let (tcp, udp) = self.sockets.in_use()?;
        let waiting_in_udp = if udp > FEW_UDP { queued(&self.udp)? } else { 0 };
        let waiting_in_tcp = if tcp > FEW_TCP { self.waiting_in_tcp()? } else { 0 };
        Ok(waiting_in_udp.saturating_add(waiting_in_tcp))
    }

    fn waiting_in_tcp(&self) -> io::Result<u64> {
        if let Some((read, waiting)) = self.known.get()
            && read.elapsed() < TCP_EVERY
        {
            return Ok(waiting);
        }
        let waiting = queued(&self.tcp)?;
        self.known.set(Some((Instant::now(), waiting)));
        Ok(waiting)
    }
}

fn queued(lists: &[File]) -> io::Result<u64> {
    lists.iter().try_fold(0u64, |sum, file| Ok(sum.saturating_add(queued_in(&read(file, LONGEST_QUEUES)?))))
}

/// From a list with a line for each socket, whose fifth word is what waits to be sent and to be read, such as
/// `00000000:00001A00`. A list that was cut off is too long.
fn queued_in(list: &str) -> u64 {
    if list.len() >= LONGEST_QUEUES {
        return BEYOND_LIMIT + 1;
    }
    let queued = |line: &str| {
        let (sent, received) = line.split_whitespace().nth(4)?.split_once(':')?;
        Some(u64::from_str_radix(sent, 16).ok()?.saturating_add(u64::from_str_radix(received, 16).ok()?))
    };
    list.lines().filter_map(queued).fold(0, u64::saturating_add)
}

/// Reads a file of the kernel's, which it hands out in pieces of a page, or as much of it as is wanted.
fn read(file: &File, longest: usize) -> io::Result<String> {
    let (mut text, mut length) = (Vec::new(), 0);
    while length < longest {
        text.resize(longest.min(length + PIECE), 0);
        match file.read_at(&mut text[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    text.truncate(length);
    String::from_utf8(text).map_err(io::Error::other)
}

fn memory_of(text: &str, protocol: &str) -> u64 {
    count(text, protocol, "inuse") * SOCKET + count(text, protocol, "tw") * WAITING_SOCKET
}

/// From a line such as `TCP: inuse 2 orphan 0 tw 1 alloc 2 mem 0`. Of these, `inuse` and `tw` are the namespace's own.
fn count(text: &str, kind: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(kind)).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let pair = words.chunks_exact(2).find(|pair| pair[0] == name);
    pair.and_then(|pair| pair[1].parse::<u64>().ok()).unwrap_or_default()
}

/// From the same list. The second word is the protocol, 0 for `NETLINK_ROUTE`; the kernel has one socket of each.
fn netlink_sockets(list: &str) -> usize {
    let routes = list.lines().filter(|line| line.split_whitespace().nth(1) == Some("0"));
    routes.count().saturating_sub(1)
}

/// From a list with a line for each socket, whose fifth word is what waits there. A list that was cut off is too long.
fn netlink_memory(list: &str) -> u64 {
    if list.len() >= LONGEST_LIST {
        return BEYOND_LIMIT + 1;
    }
    let waiting = |line: &str| line.split_whitespace().nth(4)?.parse::<u64>().ok();
    list.lines().filter_map(waiting).sum::<u64>().saturating_mul(NETLINK_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_both_families_are_counted() {
        let v4 = "sockets: used 9\nTCP: inuse 3 orphan 7 tw 2 alloc 80 mem 132\nUDP: inuse 5 mem 4\n";
        assert_eq!(memory_of(v4, "TCP:"), 3 * SOCKET + 2 * WAITING_SOCKET);
        assert_eq!(memory_of("TCP6: inuse 4\nUDP6: inuse 1\n", "TCP6:"), 4 * SOCKET);
    }

    #[test]
    fn what_waits_in_netlink_sockets_is_counted() {
        let list = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                    000000001bea46bb 0   0          00000000 0        0        0     2        0        4\n\
                    0000000095c47d43 0   17         00000000 4352     0        0     2        0        1574\n\
                    0000000095c47d44 0   18         00000000 1024     0        0     2        0        1575\n";
        assert_eq!((netlink_memory(list), netlink_sockets(list)), (5376 * NETLINK_FACTOR, 2));
        assert!(netlink_memory(&list.repeat(60)) > BEYOND_LIMIT, "too many sockets");
    }

    #[test]
    fn what_waits_in_queues_is_counted() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
                    0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
                    1: 0100007F:0016 0100007F:A000 01 00000010:00001000 00:00000000 00000000\n";
        assert_eq!(queued_in(list), 0x1010);
        assert!(queued_in(&list.repeat(6000)) > BEYOND_LIMIT, "too many sockets");
    }

    #[test]
    fn the_kernel_lists_what_nobody_has_read() {
        let bound = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets: Vec<_> = (0..=FEW_UDP).map(|_| bound()).collect();
        for socket in &sockets {
            socket.send_to(&[0; 2000], socket.local_addr().unwrap()).unwrap();
        }
        let queues = Queues::of_process(Path::new("/proc/self")).unwrap();
        assert!(queues.memory().unwrap() >= 2000 * FEW_UDP);
    }

    #[test]
    fn the_kernel_counts_the_sockets_of_this_process() {
        let sockets = Sockets::of_process(Path::new("/proc/self")).unwrap();
        assert!(count(&read(&sockets.v4, LONGEST).unwrap(), "sockets:", "used") > 0);
        assert!(read(sockets.netlink.as_ref().unwrap(), LONGEST_LIST).unwrap().starts_with("sk "));
    }

    #[test]
    fn a_file_that_says_nothing_counts_nothing() {
        assert_eq!(memory_of("", "TCP:"), 0);
        assert_eq!(memory_of("TCP: inuse many", "TCP:"), 0);
    }
}
