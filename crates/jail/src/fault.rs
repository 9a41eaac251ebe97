use std::fmt::{self, Display};
use std::io;

use crate::codec::{Coded, Malformed, coded_enum, coded_struct};

/// What was being done when the kernel said no. It travels to the caller, so that the cause is known, not guessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What was being done, in words for a person. No program reads them.
    pub doing: String,
    /// What the kernel said. Zero: nothing.
    pub errno: i32,
    /// What it was about.
    pub about: About,
}

/// What a fault is about, where that decides what would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The box, or Belljar itself.
    Box,
    /// Namespaces, and the users in them.
    Namespaces,
    /// The caller's workspace.
    Workspace,
    /// The files of the run.
    Files,
    /// The network interface of the box.
    Network,
}

coded_struct!(Fault { doing, errno, about });
coded_enum!(About { 0 => Box, 1 => Namespaces, 2 => Workspace, 3 => Files, 4 => Network });

impl Fault {
    /// The kernel refused to do this.
    pub fn new(doing: impl Display, error: &io::Error) -> Fault {
        Fault::with_errno(doing, error.raw_os_error().unwrap_or(libc::EINVAL))
    }

    /// The same by the kernel's number.
    pub fn with_errno(doing: impl Display, errno: i32) -> Fault {
        Fault { doing: doing.to_string(), errno, about: About::Box }
    }

    /// What the kernel said.
    #[must_use]
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.doing, self.error())
    }
}

/// Names what was being done.
pub(crate) trait Doing<T> {
    fn doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(what(), &error.into()))
    }
}

/// Names what it was about, if that is not the box itself.
pub(crate) trait Concerning {
    fn concerning(self, about: About) -> Self;
}

impl<T> Concerning for Result<T, Fault> {
    fn concerning(self, about: About) -> Self {
        self.map_err(|fault| Fault { about, ..fault })
    }
}
