//! Which configuration files are read, and which of them are trusted.
//!
//! A setting can switch the sandbox off or name a program to run. So a file is read without being named only if no
//! other user could have written it. The file in the working directory comes with the directory, from whoever made
//! it, and so it may only restrict runs ([`crate::folder`]). Root does not read it at all.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_wire::{Code, Problem};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::process::geteuid;

use crate::args::Verbosity;
use crate::problem;
use crate::settings::{Environment, user_directory};

pub(crate) const FILE_NAME: &str = "belljar.toml";
const SYSTEM_FILE: &str = "/etc/belljar/belljar.toml";
const MAX_CONFIG: u64 = 1 << 20;

/// The configuration file that was chosen, and its text.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    /// As messages name it.
    pub(crate) path: PathBuf,
    /// `None` if there is no such file.
    pub(crate) text: Option<String>,
}

impl Configuration {
    /// The file that was named, which must exist; else the user's; else the system's; else none.
    pub(crate) fn choose(
        named: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Configuration, Problem> {
        if let Some(path) =
            named.map(Path::to_owned).map_or_else(|| named_by(environment), |path| Ok(Some(path)))?
        {
            let text = Some(read_named(&path).map_err(|why| why.into_problem(&path))?);
            return Ok(Configuration { path, text });
        }
        for path in users_file(environment).into_iter().chain([PathBuf::from(SYSTEM_FILE)]) {
            match read_trusted(&path) {
                Ok(text) => return Ok(Configuration { path, text: Some(text) }),
                Err(why) if why.is_absence() => {}
                Err(why) => return Err(why.into_problem(&path)),
            }
        }
        Ok(Configuration { path: PathBuf::from(FILE_NAME), text: None })
    }
}

/// The file in which a setting would be changed: the one that is read, else the user's.
pub(crate) fn to_write(read: &Path, exists: bool, environment: Environment<'_>) -> String {
    let path = if exists { std::path::absolute(read).ok() } else { users_file(environment) };
    path.unwrap_or_else(|| PathBuf::from(SYSTEM_FILE)).display().to_string()
}

/// Where the settings of this user are.
pub(crate) fn users_file(environment: Environment<'_>) -> Option<PathBuf> {
    user_directory(environment, "XDG_CONFIG_HOME", ".config").map(|dir| dir.join(FILE_NAME))
}

/// The file that `BELLJAR_CONFIG` names. A relative path would mean another file in each directory.
fn named_by(environment: Environment<'_>) -> Result<Option<PathBuf>, Problem> {
    let path = environment("BELLJAR_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    match path {
        Some(path) if path.is_relative() => {
            let message = format!("BELLJAR_CONFIG is a relative path: {}", path.display());
            let hint = "write an absolute path, or name the file with --config";
            Err(Problem::new(Code::InvalidRequest, message, hint))
        }
        path => Ok(path),
    }
}

/// The configuration in the working directory.
#[derive(Debug, Clone)]
pub(crate) enum FolderFile {
    Absent,
    /// It is there, and this is why it is not read.
    Unread(&'static str),
    Read(Configuration),
}

impl FolderFile {
    /// Reads it, unless another file is named.
    pub(crate) fn find(named: Option<&Path>, environment: Environment<'_>) -> Result<FolderFile, Problem> {
        let is_named = named.is_some() || named_by(environment)?.is_some();
        if statat(CWD, FILE_NAME, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return Ok(FolderFile::Absent);
        }
        if !is_named && is_read_anyway(environment) {
            return Ok(FolderFile::Absent);
        }
        if is_named {
            return Ok(FolderFile::Unread("another configuration file is named"));
        }
        if geteuid().is_root() {
            return Ok(FolderFile::Unread("root reads a configuration only where --config names it"));
        }
        let path = PathBuf::from(FILE_NAME);
        match read_from_folder(&path) {
            Ok(text) => Ok(FolderFile::Read(Configuration { path, text: Some(text) })),
            Err(Unreadable::Io(cause)) if cause.kind() == io::ErrorKind::NotFound => Ok(FolderFile::Absent),
            Err(why) => Err(why.into_problem(&path)),
        }
    }

    /// Tells somebody whose program does not read the file that is there, if no other one is named.
    pub(crate) fn tell_if_overlooked(
        named: Option<&Path>,
        verbosity: Verbosity,
        environment: Environment<'_>,
    ) {
        let is_named = named.is_some() || named_by(environment).is_ok_and(|path| path.is_some());
        let is_there = statat(CWD, FILE_NAME, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if is_there && !is_named && !is_read_anyway(environment) && verbosity != Verbosity::Quiet {
            problem::note(&format!(
                "{FILE_NAME} in the working directory is not read; to use it, add: --config {FILE_NAME}"
            ));
        }
    }

    /// Why the file that is there is not read, in a sentence.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            FolderFile::Absent | FolderFile::Read(_) => None,
            FolderFile::Unread(why) => {
                Some(format!("{FILE_NAME} in the working directory is not read: {why}"))
            }
        }
    }
}

/// Whether the file in the working directory is the user's, or the system's, and so is read as that.
fn is_read_anyway(environment: Environment<'_>) -> bool {
    let file = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let mut candidates = users_file(environment).into_iter().chain([PathBuf::from(SYSTEM_FILE)]);
    let chosen = candidates.find_map(|path| file(&path));
    chosen.is_some() && chosen == file(Path::new(FILE_NAME))
}

/// A file that somebody named may be anybody's.
fn read_named(path: &Path) -> Result<String, Unreadable> {
    open_regular(CWD, path, OFlags::empty()).and_then(|(file, _)| text_of(file))
}

/// The user's and the system's files may be links: people keep them elsewhere.
fn read_trusted(path: &Path) -> Result<String, Unreadable> {
    read_beneath(path.parent().unwrap_or(Path::new("/")), path, OFlags::empty())
}

/// A link in a directory from elsewhere could lead to a private file, parts of which a syntax error would show.
fn read_from_folder(path: &Path) -> Result<String, Unreadable> {
    read_beneath(Path::new("."), path, OFlags::NOFOLLOW)
}

/// Reads a file if neither it nor its directory can be changed by others.
fn read_beneath(folder: &Path, path: &Path, flags: OFlags) -> Result<String, Unreadable> {
    let folder = openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Unreadable::Io(errno.into()))?;
    let name = path.file_name().map_or(path, Path::new);
    let (file, found) = open_regular(folder.as_fd(), name, flags)?;
    let folder = File::from(folder).metadata().map_err(Unreadable::Io)?;
    if let Some(why) = distrust(&found) {
        return Err(Unreadable::Untrusted(format!("it {why}")));
    }
    if let Some(why) = distrust(&folder) {
        return Err(Unreadable::Untrusted(format!("its directory {why}")));
    }
    text_of(file)
}

/// Opens a file without waiting for anything: a named pipe would block until somebody writes to it.
fn open_regular(folder: impl AsFd, path: &Path, flags: OFlags) -> Result<(File, Metadata), Unreadable> {
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened: OwnedFd = openat(folder, path, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::LOOP if flags.contains(OFlags::NOFOLLOW) => {
            Unreadable::Untrusted("it is a symbolic link".to_owned())
        }
        errno => Unreadable::Io(errno.into()),
    })?;
    let file = File::from(opened);
    let found = file.metadata().map_err(Unreadable::Io)?;
    if found.is_dir() {
        return Err(Unreadable::Io(io::ErrorKind::IsADirectory.into()));
    }
    if !found.is_file() {
        return Err(Unreadable::Io(io::Error::other("it is not a regular file")));
    }
    Ok((file, found))
}

fn text_of(file: File) -> Result<String, Unreadable> {
    let mut text = String::new();
    file.take(MAX_CONFIG).read_to_string(&mut text).map_err(Unreadable::Io)?;
    Ok(text)
}

/// Why somebody else may have written it. Many distributions give each user a group of their own, with the user's
/// number, and make everything writable for it.
fn distrust(found: &Metadata) -> Option<String> {
    const GROUP_MAY_WRITE: u32 = 0o020;
    const OTHERS_MAY_WRITE: u32 = 0o002;
    let (owner, mode) = (found.uid(), found.mode());
    if owner != 0 && owner != geteuid().as_raw() {
        return Some(format!("belongs to another user (uid {owner})"));
    }
    let shared = mode & GROUP_MAY_WRITE != 0 && found.gid() != owner;
    (shared || mode & OTHERS_MAY_WRITE != 0).then(|| "can be changed by other users".to_owned())
}

/// Why a configuration file is not read.
#[derive(Debug)]
enum Unreadable {
    Io(io::Error),
    Untrusted(String),
}

impl Unreadable {
    /// Whether there is no file for this user. A path through something that is not a directory cannot lead to one, and
    /// a home that this user may not read belongs to another user: `su` and `sudo` can keep `HOME`.
    fn is_absence(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        match self {
            Unreadable::Io(cause) => {
                matches!(cause.kind(), NotFound | NotADirectory | PermissionDenied)
            }
            Unreadable::Untrusted(_) => false,
        }
    }

    fn into_problem(self, path: &Path) -> Problem {
        let path = path.display();
        let (message, hint) = match self {
            Unreadable::Io(cause) => (
                format!("cannot read the configuration file {path}: {cause}"),
                "name a readable TOML file with --config".to_owned(),
            ),
            Unreadable::Untrusted(why) => (
                format!("the configuration file {path} is not trusted: {why}"),
                format!(
                    "if you trust it, name it: --config {path}; otherwise remove it or run belljar elsewhere"
                ),
            ),
        };
        Problem::new(Code::InvalidRequest, message, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn message(read: Result<String, Unreadable>) -> String {
        read.unwrap_err().into_problem(Path::new("x.toml")).error.message
    }

    fn folder_with(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, "network = 'none'").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_that_others_can_write_to_is_not_trusted() {
        let (_folder, path) = folder_with(0o644);
        assert_eq!(read_trusted(&path).unwrap(), "network = 'none'", "the control");
        fs::set_permissions(&path, Permissions::from_mode(0o646)).unwrap();
        let said = "the configuration file x.toml is not trusted: it can be changed by other users";
        assert_eq!(message(read_trusted(&path)), said);
        assert!(read_named(&path).is_ok(), "a file that is named is read");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_trusted() {
        let (folder, path) = folder_with(0o644);
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let said =
            "the configuration file x.toml is not trusted: its directory can be changed by other users";
        assert_eq!(message(read_trusted(&path)), said);
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(read_trusted(&path).is_ok(), "the control");
    }

    #[test]
    fn a_group_of_ones_own_may_write_and_another_may_not() {
        let (_folder, path) = folder_with(0o664);
        let owner = fs::metadata(&path).unwrap().uid();
        if !geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&path, None, Some(owner)).unwrap();
        assert!(read_trusted(&path).is_ok());
        std::os::unix::fs::chown(&path, None, Some(owner + 1)).unwrap();
        assert!(message(read_trusted(&path)).ends_with("it can be changed by other users"));
        std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
        assert!(message(read_trusted(&path)).ends_with("it belongs to another user (uid 1234)"));
    }

    #[test]
    fn a_pipe_a_device_or_a_directory_is_refused_at_once() {
        let (folder, _) = folder_with(0o644);
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(message(read_named(&pipe)).ends_with("it is not a regular file"));
        assert!(message(read_named(Path::new("/dev/zero"))).ends_with("it is not a regular file"));
        assert!(message(read_named(folder.path())).ends_with("is a directory"));
    }

    #[test]
    fn only_the_users_own_file_may_be_a_link() {
        let (folder, path) = folder_with(0o644);
        let link = folder.path().join("link.toml");
        symlink(&path, &link).unwrap();
        assert!(read_trusted(&link).is_ok(), "the control");
        let refused = read_beneath(folder.path(), &link, OFlags::NOFOLLOW);
        assert!(message(refused).ends_with("is not trusted: it is a symbolic link"));
    }

    #[test]
    fn the_variable_must_name_an_absolute_path() {
        let (_folder, path) = folder_with(0o644);
        let choose = |value: &str| {
            let value = std::ffi::OsString::from(value);
            Configuration::choose(None, &|name| (name == "BELLJAR_CONFIG").then(|| value.clone()))
        };
        assert_eq!(choose(path.to_str().unwrap()).unwrap().path, path, "the control");
        let refused = choose("belljar.toml").unwrap_err().error.message;
        assert_eq!(refused, "BELLJAR_CONFIG is a relative path: belljar.toml");
    }
}
