//! Directories of the host that a caller names, opened the way that nothing can lead out of them.

use std::path::Path;

use belljar_core::Field;
use belljar_core::allowance::Workspaces;
use belljar_wire::{Code, Problem};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Refuses a workspace that lies beneath an allowed root by its name only: a link on the way could lead anywhere.
/// One that is under none of them is left for admission to refuse.
pub(crate) fn refuse_detours(workspaces: &Workspaces, path: &str) -> Result<(), Problem> {
    let Workspaces::Beneath(roots) = workspaces else { return Ok(()) };
    let path = Path::new(path);
    let Some((root, rest)) = roots.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?))) else {
        return Ok(());
    };
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    let straight = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat(CWD, root, directory, Mode::empty())
        .and_then(|root| openat2(root, rest, directory, Mode::empty(), straight));
    opened.map(drop).map_err(|cause| {
        let message = format!("the workspace '{}' cannot be shown: {cause}", path.display());
        let hint = "name a directory that exists beneath an allowed one, with no link on the way";
        Problem::new(Code::Forbidden, message, hint).at(Field::Workspace)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_on_the_way_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("/etc", root.join("link")).unwrap();
        symlink("a", root.join("inner")).unwrap();
        let workspaces = Workspaces::Beneath(vec![root.clone()]);
        let refused = |name: &str| {
            refuse_detours(&workspaces, root.join(name).to_str().unwrap())
                .err()
                .map(|problem| problem.error.code)
        };
        assert_eq!(refused(""), None);
        assert_eq!(refused("a/b"), None);
        for name in ["link", "link/ssl", "inner/b", "missing", "a/../../.."] {
            assert_eq!(refused(name), Some(Code::Forbidden), "{name}");
        }
    }
}
