//! Acting as another user for a moment, and only on files.

use std::io;

use rustix::process::Uid;

/// Accesses files as the user (and group) with this number on the host, without root's rights over other users' files.
/// New files belong to that user. Only this thread changes its identity, and only for the duration of `work`.
///
/// # Errors
/// This process may not become that user, or the error of `work`.
pub fn with_files_of<T>(id: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()) == (id, id) {
        return work();
    }
    let _back = FileOwner::become_other(id)?;
    work()
}

/// The previous identity of a thread for file access, which is restored later.
struct FileOwner {
    user: u32,
    group: u32,
}

impl FileOwner {
    fn become_other(id: u32) -> io::Result<FileOwner> {
        // The group first: changing the user may lose the right to change the group.
        let before = FileOwner { group: set_file_group(id), user: rustix::process::geteuid().as_raw() };
        set_file_user(id);
        // Neither call reports success; passing an invalid number returns the current identity.
        if (set_file_user(u32::MAX), set_file_group(u32::MAX)) == (id, id) {
            return Ok(before);
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

impl Drop for FileOwner {
    fn drop(&mut self) {
        set_file_user(self.user);
        set_file_group(self.group);
    }
}

/// Acts as another user, with only that user's rights. Only this thread changes its identity, and only for the duration
/// of `work`.
///
/// # Errors
/// This process is not root, or the error of `work`.
pub fn acting_as<T>(id: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    struct Root;
    impl Drop for Root {
        fn drop(&mut self) {
            if act_as(0).is_err() {
                // A thread with the wrong identity must not continue.
                std::process::abort();
            }
        }
    }
    act_as(id)?;
    let _again = Root;
    work()
}

/// Acts as another user; `0` is root again. File access stays root's.
pub(crate) fn act_as(id: u32) -> io::Result<()> {
    let (root, id) = (Uid::ROOT, Uid::from_raw(id));
    rustix::thread::set_thread_res_uid(root, id, root)?;
    set_file_user(0);
    Ok(())
}

/// Returns the previous one.
fn set_file_user(id: u32) -> u32 {
    // SAFETY: takes an integer and changes nothing but this thread's credentials.
    unsafe { libc::setfsuid(id) }.cast_unsigned()
}

fn set_file_group(id: u32) -> u32 {
    // SAFETY: takes an integer and changes nothing but this thread's credentials.
    unsafe { libc::setfsgid(id) }.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    use super::*;

    /// A directory in which every user may make files.
    fn open_dir() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("belljar-files-of-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        dir
    }

    #[test]
    fn files_are_made_as_another_user_without_roots_rights_and_only_meanwhile() {
        let own = rustix::process::geteuid().as_raw();
        let other = if own == 0 { 65_534 } else { own };
        let dir = open_dir();
        let closed = dir.join("closed");
        std::fs::write(&closed, "x").unwrap();
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let refused = with_files_of(other, || {
            std::fs::write(dir.join("theirs"), "x")?;
            Ok(std::fs::read(&closed).is_err())
        });
        std::fs::write(dir.join("ours"), "x").unwrap();
        let owner = |name: &str| std::fs::metadata(dir.join(name)).unwrap().uid();
        let owners = (owner("theirs"), owner("ours"));
        let readable_again = own != 0 || std::fs::read(&closed).is_ok();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(refused.unwrap(), "root's rights are gone meanwhile");
        assert_eq!(owners, (other, own));
        assert!(readable_again);
    }

    #[test]
    fn an_error_gives_the_thread_back_to_its_user() {
        let own = rustix::process::geteuid().as_raw();
        let other = if own == 0 { 65_534 } else { own };
        let failed: io::Result<()> = with_files_of(other, || Err(io::ErrorKind::InvalidInput.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(set_file_user(u32::MAX), own);
    }
}
