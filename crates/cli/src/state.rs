//! Whether the state directory is one that only this user and root can replace. The ledger, its key and the approvals are in it:
//! who can rename a directory on the way there can put others in their place, whoever owns the files themselves. `sudo` and `su`
//! can keep `HOME`, and with it the home of somebody else.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_wire::{Code, Problem};
use rustix::process::geteuid;

/// As many as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Refuses a state directory if its path leads through a directory or a link that another user can replace.
pub(crate) fn refuse_replaceable(dir: &Path) -> Result<(), Problem> {
    let trusted = Trusted { user: geteuid().as_raw(), unmapped: unmapped() };
    let Some((at, why)) = trusted.weak_part(dir) else { return Ok(()) };
    let message = format!(
        "the state directory {} is not trusted: {} {why}, so others could replace the ledger and its key",
        dir.display(),
        at.display()
    );
    let hint = "set BELLJAR_STATE_DIR to a directory of your own beneath directories of your own or root's, such as \
                /var/lib/belljar for root, or HOME or XDG_STATE_HOME to your own";
    Err(Problem::new(Code::InvalidRequest, message, hint))
}

/// Who may own the directories on the way.
struct Trusted {
    user: u32,
    unmapped: Option<u32>,
}

impl Trusted {
    /// The first part of the path that somebody else can replace, and why.
    fn weak_part(&self, dir: &Path) -> Option<(PathBuf, String)> {
        let mut links = 0;
        let mut wanted = vec![dir.to_owned()];
        while let Some(path) = wanted.pop() {
            let mut parts: Vec<_> = path.ancestors().collect();
            parts.reverse();
            for part in parts {
                // What is not there yet is made by this user.
                let Ok(found) = part.symlink_metadata() else { break };
                if let Some(why) = self.weakness(&found) {
                    return Some((part.to_owned(), why));
                }
                if let (true, Ok(target)) = (found.is_symlink(), part.read_link()) {
                    links += 1;
                    if links > MOST_LINKS {
                        return Some((part.to_owned(), "leads through too many links".to_owned()));
                    }
                    wanted.push(part.parent().unwrap_or(part).join(target));
                }
            }
        }
        None
    }

    /// In a sticky directory such as `/tmp`, nobody can replace what belongs to somebody else.
    fn weakness(&self, found: &Metadata) -> Option<String> {
        const OTHERS_MAY_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        let owner = found.uid();
        if ![Some(0), Some(self.user), self.unmapped].contains(&Some(owner)) {
            return Some(format!("belongs to the user {owner}"));
        }
        let open = found.is_dir() && found.mode() & OTHERS_MAY_WRITE != 0 && found.mode() & STICKY == 0;
        open.then(|| "can be written by every user".to_owned())
    }
}

/// The owner that everything of the host seems to have in a user namespace, where root of the host has no number.
fn unmapped() -> Option<u32> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let map = read("/proc/self/uid_map");
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    (!whole).then(|| read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn weak_part(dir: &Path) -> Option<PathBuf> {
        let trusted = Trusted { user: geteuid().as_raw(), unmapped: None };
        trusted.weak_part(dir).map(|(part, _)| part)
    }

    #[test]
    fn nobody_else_can_replace_a_directory_of_ones_own_among_the_temporary_ones() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(weak_part(&home.path().join("not/there/yet")), None);
        fs::create_dir_all(home.path().join("a/b")).unwrap();
        assert_eq!(weak_part(&home.path().join("a/b")), None);
    }

    #[test]
    fn a_directory_that_everybody_can_write_is_refused_unless_it_is_sticky() {
        let home = tempfile::tempdir().unwrap();
        let open = home.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(weak_part(&open.join("state")), Some(open.clone()));
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(weak_part(&open.join("state")), None);
    }

    #[test]
    fn a_directory_and_a_link_of_somebody_else_are_refused_wherever_they_are_on_the_way() {
        assert!(geteuid().is_root(), "only root can give files away");
        let home = tempfile::tempdir().unwrap();
        let (theirs, mine) = (home.path().join("theirs"), home.path().join("theirs/mine"));
        fs::create_dir_all(&mine).unwrap();
        assert_eq!(weak_part(&mine), None, "the control");
        let link = home.path().join("link");
        symlink("theirs/mine", &link).unwrap();
        assert_eq!(weak_part(&link.join("state")), None, "the control of the link");
        chown(&theirs, Some(1234), None).unwrap();
        assert_eq!(weak_part(&mine), Some(theirs.clone()));
        assert_eq!(weak_part(&link.join("state")), Some(theirs.clone()), "behind a link");
        chown(&theirs, Some(0), None).unwrap();
        std::os::unix::fs::lchown(&link, Some(1234), None).unwrap();
        assert_eq!(weak_part(&link.join("state")), Some(link));
    }

    #[test]
    fn links_that_lead_in_a_circle_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("circle");
        symlink("circle", &link).unwrap();
        assert_eq!(weak_part(&link.join("state")), Some(link));
    }
}
