//! A part of the cgroups for a server without root's rights: it makes its boxes there, and reaches no others.

use std::path::{Path, PathBuf};

use super::mounts::{self, Kind};
use super::{BoxCgroup, BoxName, CgroupError, Cgroups, v2};

/// A cgroup that was delegated. Dropping it kills and removes everything in it.
#[derive(Debug)]
pub struct Grant {
    cgroup: BoxCgroup,
    replaced: Vec<(PathBuf, PathBuf)>,
    entrance: Option<PathBuf>,
}

impl Cgroups {
    /// Delegates a part of the cgroups to a user. It is named like a box of this process, so that a sweep knows its
    /// owner.
    ///
    /// # Errors
    /// It cannot be made, or cannot be delegated. Nothing is left behind.
    pub fn grant(&self, user: u32) -> Result<Grant, CgroupError> {
        let name =
            BoxName::next().map_err(|source| CgroupError::Read { file: "/proc/self/stat".into(), source })?;
        let cgroup = self.design(&name)?;
        cgroup.make_dirs()?;
        let (replaced, entrance) = match self {
            Cgroups::V1(v1) => {
                // The owner of the directory can make others in it, and nothing else.
                cgroup.groups.iter().try_for_each(|group| give(&group.dir, user))?;
                let tops = v1.hierarchies.iter().filter_map(|home| home.dir.parent());
                (pairs(&cgroup, tops), None)
            }
            Cgroups::V2(_) => {
                let top = v2_mount_point()?;
                for group in &cgroup.groups {
                    give(&group.dir, user)?;
                    v2::DELEGATED.iter().try_for_each(|file| give(&group.dir.join(file), user))?;
                    // As deep as boxes are nested. Kernels that cannot limit this are accepted.
                    let _ = super::write_value(&group.dir.join("cgroup.max.depth"), v2::DEPTH_OF_BOXES);
                }
                let entrance = cgroup.groups.first().map(|group| group.dir.join("cgroup.procs"));
                (pairs(&cgroup, std::iter::once(top.as_path())), entrance)
            }
            Cgroups::Unavailable { .. } => (Vec::new(), None),
        };
        Ok(Grant { cgroup, replaced, entrance })
    }
}

impl Grant {
    /// Its directories, and the paths where a server finds them, in place of all cgroups.
    #[must_use]
    pub fn replaced(&self) -> Vec<(PathBuf, PathBuf)> {
        self.replaced.clone()
    }

    /// The file through which a server enters it, if it must.
    #[must_use]
    pub fn entrance(&self) -> Option<PathBuf> {
        self.entrance.clone()
    }

    /// Its directories, in the order of removal. On cgroup v2, a server makes some for itself.
    #[must_use]
    pub fn orphans(&self) -> Vec<PathBuf> {
        let with_its_own = |dir: PathBuf| match self.entrance {
            Some(_) => v2::made_by_a_server(&dir).into_iter().chain([dir]).collect(),
            None => vec![dir],
        };
        self.cgroup.dirs().into_iter().flat_map(with_its_own).collect()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.cgroup.remove_those_within();
    }
}

fn pairs<'a>(cgroup: &BoxCgroup, tops: impl Iterator<Item = &'a Path>) -> Vec<(PathBuf, PathBuf)> {
    cgroup.groups.iter().map(|group| group.dir.clone()).zip(tops.map(Path::to_owned)).collect()
}

fn give(path: &Path, user: u32) -> Result<(), CgroupError> {
    std::os::unix::fs::chown(path, Some(user), Some(user))
        .map_err(|source| CgroupError::Make { dir: path.to_owned(), source })
}

fn v2_mount_point() -> Result<PathBuf, CgroupError> {
    let unreadable = |source| CgroupError::Read { file: "/proc/self/mountinfo".into(), source };
    let mounts = mounts::mounts().map_err(unreadable)?;
    let found = mounts::preferred(mounts.iter().filter(|mount| mount.kind == Kind::V2));
    found.map(|mount| mount.point.clone()).ok_or_else(|| unreadable(std::io::ErrorKind::NotFound.into()))
}
