//! The name of a box's cgroup. It contains the process that owns the box, so that any process can tell a box in use
//! from one that a crash left behind.

use std::fmt;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// `box-<pid>-<start>-<serial>`: the process that owns the box, when that process started (a process id alone may be
/// reused), and the serial number of the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BoxName {
    pid: u32,
    start: u64,
    serial: u32,
}

impl BoxName {
    /// A name that this process has not used yet.
    ///
    /// # Errors
    /// `/proc` could not be read.
    pub fn next() -> io::Result<BoxName> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        BoxName::owned_by(std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed))
    }

    /// A name for a box of another process, such as its keeper.
    ///
    /// # Errors
    /// There is no such process.
    pub fn owned_by(pid: u32, serial: u32) -> io::Result<BoxName> {
        Ok(BoxName { pid, start: start_time(pid)?, serial })
    }

    /// The box that a directory of this name belongs to, if it is one of ours at all.
    pub(super) fn parse(text: &str) -> Option<BoxName> {
        let mut words = text.strip_prefix("box-")?.split('-');
        let name = BoxName {
            pid: number(words.next()?)?,
            start: number(words.next()?)?,
            serial: number(words.next()?)?,
        };
        // A name that does not print back the same is not ours.
        (words.next().is_none() && name.to_string() == text).then_some(name)
    }

    /// Whether the process that owns the box still exists. A zombie does: its parent may yet read the counters.
    pub(super) fn owner_lives(&self) -> bool {
        match start_time(self.pid) {
            Ok(start) => start == self.start,
            // Only a clear "no such process" may lead to the removal of a box.
            Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(ESRCH),
        }
    }
}

impl fmt::Display for BoxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "box-{}-{}-{}", self.pid, self.start, self.serial)
    }
}

/// What reading `/proc/PID/stat` says when the process ends between open and read.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// When a process started, in clock ticks since boot: field 22 of `/proc/PID/stat`, proc_pid_stat(5).
pub(super) fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable process status"))
}

/// The second field is the name of the program in parentheses, which may itself contain spaces and parentheses: only
/// what follows the last one can be trusted.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    // The first field after the name is number 3.
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Digits only: `parse` would also take a sign.
fn number<T: std::str::FromStr>(word: &str) -> Option<T> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_it_was_shown() {
        let name = BoxName::next().unwrap();
        assert_eq!(BoxName::parse(&name.to_string()), Some(name));
        assert_ne!(BoxName::next().unwrap(), name);
    }

    #[test]
    fn only_an_exact_name_is_a_box() {
        for text in [
            "",
            "box",
            "box-",
            "box-1",
            "box-1-2",
            "box-1-2-",
            "box-1-2-3-4",
            "box-1-2-3 ",
            "box--1-2-3",
            "box-+1-2-3",
            "box-01-2-3",
            "box-1-2-x",
            "Box-1-2-3",
            "box-1-2-99999999999",
            "../box-1-2-3",
            "keeper",
            "user.slice",
        ] {
            assert_eq!(BoxName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_program_cannot_forge_its_start_time_by_its_name() {
        let stat = b"7 (a) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 666) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9";
        assert_eq!(parse_start_time(stat), Some(4711));
        assert_eq!(parse_start_time(b"7 (a) S 1"), None);
        assert_eq!(parse_start_time(b""), None);
    }

    #[test]
    fn an_owner_lives_until_it_is_gone_and_its_pid_alone_does_not_make_another_the_owner() {
        let ours = BoxName::next().unwrap();
        assert!(ours.owner_lives());
        assert!(!BoxName { start: ours.start + 1, ..ours }.owner_lives());

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let theirs = BoxName::owned_by(child.id(), 0).unwrap();
        assert!(theirs.owner_lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!theirs.owner_lives());
    }
}
