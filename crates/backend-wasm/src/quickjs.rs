//! How `QuickJS` is built.
use std::io;
use std::path::Path;
pub(crate) const COMMAND: &[&str] = &[];
pub(crate) fn write_sources(_: &Path, _: &Path) -> io::Result<()> { Ok(()) }
