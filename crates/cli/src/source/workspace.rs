//! Code that is in the workspace and runs where it is.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use belljar_core::Field;
use belljar_wire::{Code, LocalCode, LocalFile, Problem};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::{bounded, unreadable};

/// A file of the workspace, by its path in there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inside<'a> {
    workspace: &'a Path,
    path: PathBuf,
}

/// Whether a file is beneath the workspace: by its name, or because the directory that it is in is.
pub(super) fn place_of<'a>(workspace: &'a Path, file: &Path) -> Option<Inside<'a>> {
    let path = by_name(workspace, file).or_else(|| by_directory(workspace, file))?;
    Some(Inside { workspace, path })
}

/// The workspace is an absolute path, with nothing in it that the shell or the caller did not write.
fn by_name(workspace: &Path, file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    let path = file.strip_prefix(workspace).ok()?;
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && path.file_name().is_some()).then(|| path.to_owned())
}

fn by_directory(workspace: &Path, file: &Path) -> Option<PathBuf> {
    let directory = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = directory.canonicalize().ok()?;
    let directory = directory.strip_prefix(workspace.canonicalize().ok()?).ok()?;
    Some(directory.join(file.file_name()?))
}

impl Inside<'_> {
    /// Reads it. A link that leads out of the workspace is not followed: whoever wrote the workspace is not trusted
    /// with the caller's files.
    pub(super) fn read(self, named: &Path, over: &[LocalFile]) -> Result<LocalCode, Problem> {
        let refused =
            |message: String, hint: &str| Problem::new(Code::InvalidRequest, message, hint).at(Field::Code);
        let Some(name) = self.path.to_str() else {
            let message = format!("the name of {} is not UTF-8", named.display());
            return Err(refused(message, "give it another name"));
        };
        let found = |bytes| LocalCode { bytes, file_name: Some(name.to_owned()), in_workspace: true };
        if let Some(file) = over.iter().find(|file| Path::new(&file.path) == self.path) {
            return Ok(found(file.content.clone()));
        }
        match self.open().and_then(bounded) {
            Ok(bytes) => Ok(found(bytes)),
            Err(cause) if cause.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) => {
                let message = format!("{} is a link that leads out of the workspace", named.display());
                Err(refused(message, "name the file that it leads to, which is then copied into the box"))
            }
            Err(cause) => Err(unreadable(&named.display(), &cause, None)),
        }
    }

    fn open(&self) -> io::Result<File> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workspace = rustix::fs::openat(CWD, self.workspace, directory, Mode::empty())?;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let reading = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(workspace, &self.path, reading, Mode::empty(), beneath)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn place(workspace: &Path, file: &Path) -> Option<String> {
        place_of(workspace, file).map(|inside| inside.path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_file_is_inside_by_its_name_or_by_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink(root.join("a"), folder.path().join("way")).unwrap();
        assert_eq!(place(&root, &root.join("a/b/x.py")).as_deref(), Some("a/b/x.py"));
        assert_eq!(place(&root, &root.join("a/../a/x.py")).as_deref(), Some("a/x.py"));
        assert_eq!(place(&root, &folder.path().join("way/x.py")).as_deref(), Some("a/x.py"));
        assert_eq!(place(&root, &folder.path().join("x.py")), None);
        assert_eq!(place(&root, &root.join("../x.py")), None);
        assert_eq!(place(&root, &folder.path().join("rooted/x.py")), None);
    }

    #[test]
    fn a_link_is_followed_inside_and_not_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        fs::write(root.join("tool.py"), "print(1)").unwrap();
        symlink("../tool.py", root.join("bin/tool")).unwrap();
        symlink("../../secret", root.join("bin/out.py")).unwrap();
        symlink(folder.path(), root.join("up")).unwrap();
        let read = |name: &str| place_of(&root, &root.join(name)).unwrap().read(Path::new(name), &[]);
        assert_eq!(read("bin/tool").unwrap().bytes, b"print(1)", "the control");
        for name in ["bin/out.py", "up/secret"] {
            let refused = read(name).unwrap_err().error;
            assert_eq!(refused.message, format!("{name} is a link that leads out of the workspace"));
        }
    }

    #[test]
    fn a_file_that_is_laid_over_it_is_the_code() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.py"), "old").unwrap();
        let over = LocalFile { path: "a.py".into(), content: b"new".to_vec(), executable: false };
        let file = folder.path().join("a.py");
        let code = place_of(folder.path(), &file).unwrap().read(&file, &[over]).unwrap();
        assert_eq!((code.bytes.as_slice(), code.in_workspace), (&b"new"[..], true));
    }
}
