//! A patch that `git apply` takes, of text that somebody else chose.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FileType, Stat};
use similar::{Algorithm, TextDiff};

/// The largest file that is quoted, and the most bytes of the whole patch.
const MAX_FILE: usize = 256 << 10;
const MAX_PATCH: usize = 1 << 20;
/// How many lines are shown around a change.
const CONTEXT: usize = 3;

/// One side of a change.
pub(super) enum Side {
    /// There is no file.
    Absent,
    /// A text.
    Text { text: String, executable: bool },
    /// A file that is too large to be quoted.
    Large,
    /// Nothing that a patch of text can show: a link, a device, binary data, or a file that nobody may read.
    Other,
}

impl Side {
    /// Reads a file that was opened, if it is one.
    pub(super) fn read(file: OwnedFd) -> Side {
        let Ok(found) = rustix::fs::fstat(&file) else { return Side::Other };
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Side::Other;
        }
        let mut bytes = Vec::new();
        if File::from(file).take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).is_err() {
            return Side::Other;
        }
        if bytes.len() > MAX_FILE {
            return Side::Large;
        }
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Side::Text { text, executable: is_executable(&found) },
            _ => Side::Other,
        }
    }
}

pub(super) fn is_executable(found: &Stat) -> bool {
    found.st_mode & 0o111 != 0
}

/// A patch under construction.
pub(super) struct Patch {
    text: String,
    deadline: Instant,
    /// Whether something was left out for its size.
    cut: bool,
}

impl Patch {
    /// One that is made in a hurry after this moment.
    pub(super) fn until(deadline: Instant) -> Patch {
        Patch { text: String::new(), deadline, cut: false }
    }

    /// Adds the change of one file, unless it is no text, or too much.
    pub(super) fn add(&mut self, path: &Path, before: Side, after: Side) {
        if matches!(before, Side::Large) || matches!(after, Side::Large) {
            self.cut = true;
            return;
        }
        if self.text.len() >= MAX_PATCH {
            self.cut = true;
            return;
        }
        let Some(section) = section(path, &before, &after, self.deadline) else { return };
        if self.text.len() + section.len() > MAX_PATCH {
            self.cut = true;
            return;
        }
        self.text += &section;
    }

    /// The text, and whether something was left out.
    pub(super) fn finish(self) -> (String, bool) {
        (self.text, self.cut)
    }
}

fn section(path: &Path, before: &Side, after: &Side, deadline: Instant) -> Option<String> {
    let (old, new) = (text_of(before)?, text_of(after)?);
    let (old_name, new_name) = (quoted("a/", path), quoted("b/", path));
    let mut section = format!("diff --git {old_name} {new_name}\n");
    match (before, after) {
        (Side::Absent, Side::Text { executable, .. }) => {
            let _ = writeln!(section, "new file mode {}", mode(*executable));
        }
        (Side::Text { executable, .. }, Side::Absent) => {
            let _ = writeln!(section, "deleted file mode {}", mode(*executable));
        }
        (Side::Text { executable: was, .. }, Side::Text { executable: is, .. }) if was != is => {
            let _ = writeln!(section, "old mode {}\nnew mode {}", mode(*was), mode(*is));
        }
        _ => {}
    }
    let header = |side: &Side, name: String| match side {
        Side::Absent => "/dev/null".to_owned(),
        // A tab ends a name that has blanks in it.
        Side::Text { .. } if name.contains(' ') && !name.starts_with('"') => name + "\t",
        Side::Text { .. } | Side::Large | Side::Other => name,
    };
    let diff = TextDiff::configure().algorithm(Algorithm::Myers).deadline(deadline).diff_lines(old, new);
    let mut hunks = diff.unified_diff();
    hunks.context_radius(CONTEXT).header(&header(before, old_name), &header(after, new_name));
    let _ = write!(section, "{hunks}");
    Some(section)
}

fn text_of(side: &Side) -> Option<&str> {
    match side {
        Side::Absent => Some(""),
        Side::Text { text, .. } => Some(text),
        Side::Large | Side::Other => None,
    }
}

fn mode(executable: bool) -> &'static str {
    if executable { "100755" } else { "100644" }
}

/// The name of a file in a header. A name that could end the line, or be mistaken for something else, is quoted as Git
/// does it.
fn quoted(prefix: &str, path: &Path) -> String {
    let path = path.strip_prefix(".").unwrap_or(path).as_os_str();
    let plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    if let Some(text) = path.to_str().filter(|text| text.chars().all(plain)) {
        return format!("{prefix}{text}");
    }
    let mut text = format!("\"{prefix}");
    for byte in path.as_bytes() {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(*byte));
            }
            b' '..=b'~' => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\{other:03o}");
            }
        }
    }
    text.push('"');
    text
}
