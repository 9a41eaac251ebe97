//! The TCP sockets of a box, as the kernel counts them in its network namespace.
//!
//! A connection that nobody has accepted is not charged to the box, nor is what has arrived there; and neither is one
//! that waits for its last packets (`TIME_WAIT`). Their number is not bounded by that of open descriptors: a program
//! can close its own end. The kernel does not tell which connections have been accepted, so all count.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How much kernel memory a box may hold beyond its memory limit.
pub const BEYOND_LIMIT: u64 = 16 << 20;

/// What a TCP socket can hold that nobody is charged for: itself, and what arrives before it is accepted.
const SOCKET: u64 = 12 << 10;
/// The same for one in `TIME_WAIT`.
const WAITING_SOCKET: u64 = 272;
/// More than the files have.
const LONGEST: usize = 1024;

/// The files in which the kernel counts the sockets of a network namespace.
#[derive(Debug)]
pub struct Sockets {
    v4: File,
    /// Missing on a kernel without IPv6.
    v6: Option<File>,
}

impl Sockets {
    /// Those of the namespace of a process, by its directory in `/proc`. They stay readable when the process is gone.
    ///
    /// # Errors
    /// There is no such process, or the kernel has no network.
    pub fn of_process(directory: &Path) -> io::Result<Sockets> {
        let open = |name: &str| File::open(directory.join("net").join(name));
        Ok(Sockets { v4: open("sockstat")?, v6: open("sockstat6").ok() })
    }

    /// How much kernel memory they can hold that nobody is charged for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory(&self) -> io::Result<u64> {
        let v4 = memory_of(&read(&self.v4)?, "TCP:");
        let v6 = self.v6.as_ref().map(read).transpose()?.map_or(0, |text| memory_of(&text, "TCP6:"));
        Ok(v4 + v6)
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut text = vec![0; LONGEST];
    let length = file.read_at(&mut text, 0)?;
    text.truncate(length);
    String::from_utf8(text).map_err(io::Error::other)
}

/// From a line such as `TCP: inuse 2 orphan 0 tw 1 alloc 2 mem 0`. Of these, `inuse` and `tw` are the namespace's own.
fn memory_of(text: &str, protocol: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(protocol)).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let count = |name: &str| {
        let pair = words.chunks_exact(2).find(|pair| pair[0] == name);
        pair.and_then(|pair| pair[1].parse::<u64>().ok()).unwrap_or_default()
    };
    count("inuse") * SOCKET + count("tw") * WAITING_SOCKET
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
    fn a_file_that_says_nothing_counts_nothing() {
        assert_eq!(memory_of("", "TCP:"), 0);
        assert_eq!(memory_of("TCP: inuse many", "TCP:"), 0);
    }
}
