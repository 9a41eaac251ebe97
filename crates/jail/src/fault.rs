use std::fmt::Display;
use std::io;

use crate::message::Reply;

/// What was being done when the kernel said no. It travels to the caller, so that the cause is known, not guessed.
#[derive(Debug)]
pub struct Fault {
    /// What was being done.
    pub doing: String,
    /// What the kernel said.
    pub errno: i32,
}

impl Fault {
    pub(crate) fn new(doing: impl Display, error: &io::Error) -> Fault {
        Fault { doing: doing.to_string(), errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
    }

    /// What the kernel said.
    pub(crate) fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }

    pub(crate) fn into_reply(self) -> Reply {
        Reply::Failed { doing: self.doing, errno: self.errno }
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
