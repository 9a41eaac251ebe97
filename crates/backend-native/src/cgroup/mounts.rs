//! Where this host mounts its cgroups, and which of them this process is in. Nothing is assumed: the controllers of
//! version 1 may be mounted together (`cpu,cpuacct`) or one by one, version 2 alone or beside them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Which cgroup the mount shows at its top, `/` unless part of a hierarchy was bound somewhere.
    pub(super) root: PathBuf,
    /// Where it is.
    pub(super) point: PathBuf,
    pub(super) writable: Writable,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writable {
    Yes,
    No,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The names of its controllers, and mount options that are not controllers.
    V1 {
        options: Vec<String>,
    },
    V2,
}

/// The hierarchies that this process sees, in the order of its mount table.
pub(super) fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&fs::read("/proc/self/mountinfo")?))
}

/// The cgroup v2 that this process is in, as a path within the hierarchy.
pub(super) fn own_v2_cgroup() -> io::Result<Option<PathBuf>> {
    Ok(parse_own_v2(&fs::read("/proc/self/cgroup")?))
}

impl Mount {
    /// The directory of a cgroup, if this mount shows it.
    pub(super) fn dir_of(&self, cgroup: &Path) -> Option<PathBuf> {
        // `join` would put a slash after the top.
        let below = cgroup.strip_prefix(&self.root).ok()?;
        Some(if below == Path::new("") { self.point.clone() } else { self.point.join(below) })
    }
}

/// Of the mounts that show the same hierarchy, the one to use: a writable one, if any.
pub(super) fn preferred<'a>(mounts: impl Iterator<Item = &'a Mount>) -> Option<&'a Mount> {
    mounts.min_by_key(|mount| mount.writable != Writable::Yes)
}

fn parse_mounts(mountinfo: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in mountinfo.split(|byte| *byte == b'\n').filter_map(parse_mount) {
        // A later mount hides an earlier one at the same path.
        mounts.retain(|earlier| earlier.point != mount.point);
        mounts.push(mount);
    }
    mounts
}

/// One line of proc_pid_mountinfo(5):
/// `35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory`.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let root = unescape(fields.nth(3)?);
    let point = unescape(fields.next()?);
    let options = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    let super_options = String::from_utf8_lossy(fields.nth(1)?).into_owned();
    let kind = match kind {
        b"cgroup" => Kind::V1 { options: super_options.split(',').map(str::to_owned).collect() },
        b"cgroup2" => Kind::V2,
        _ => return None,
    };
    let read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro")
        || super_options.split(',').any(|option| option == "ro");
    let writable = if read_only { Writable::No } else { Writable::Yes };
    Some(Mount { root, point, writable, kind })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        match (first, octal(after)) {
            (b'\\', Some((byte, after))) => {
                bytes.push(byte);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, after) = digits.split_at_checked(3)?;
    let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?;
    Some((byte, after))
}

/// The line `0::/user.slice/…` of cgroups(7). The path may hold colons and anything but a newline.
fn parse_own_v2(text: &[u8]) -> Option<PathBuf> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_found_mounted_together_and_one_by_one() {
        let mounts = parse_mounts(
            b"23 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
              33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:14 - cgroup cgroup rw,cpu,cpuacct\n\
              35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n\
              41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:3 - cgroup2 none rw,nsdelegate\n",
        );
        let options = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            mounts,
            [
                Mount {
                    root: "/".into(),
                    point: "/sys/fs/cgroup/cpu,cpuacct".into(),
                    writable: Writable::Yes,
                    kind: Kind::V1 { options: options("rw,cpu,cpuacct") },
                },
                Mount {
                    root: "/docker/ab".into(),
                    point: "/sys/fs/cgroup/memory".into(),
                    writable: Writable::No,
                    kind: Kind::V1 { options: options("rw,memory") },
                },
                Mount {
                    root: "/".into(),
                    point: "/sys/fs/cgroup/unified".into(),
                    writable: Writable::Yes,
                    kind: Kind::V2,
                },
            ]
        );
    }

    #[test]
    fn a_mount_point_with_a_space_keeps_it_and_half_a_line_is_no_mount() {
        let mounts =
            parse_mounts(b"1 2 0:3 / /mnt/my\\040groups rw - cgroup2 none rw\n4 5 0:6 / /mnt rw - cgroup2\n");
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].point, Path::new("/mnt/my groups"));
    }

    #[test]
    fn the_mount_that_hides_another_counts_and_one_that_can_be_written_to_is_preferred() {
        let mounts = parse_mounts(
            b"1 2 0:3 / /a rw - cgroup2 none rw\n1 2 0:3 / /a ro - cgroup2 none rw\n1 2 0:3 / /b rw - cgroup2 none rw\n",
        );
        assert_eq!(mounts.len(), 2);
        assert_eq!(preferred(mounts.iter()).unwrap().point, Path::new("/b"));
    }

    #[test]
    fn our_own_cgroup_is_found_beneath_what_the_mount_shows() {
        let own = parse_own_v2(b"4:memory:/x\n0::/user.slice/a:b.scope\n").unwrap();
        assert_eq!(own, Path::new("/user.slice/a:b.scope"));
        let mount = |root: &str| Mount {
            root: root.into(),
            point: "/sys/fs/cgroup".into(),
            writable: Writable::Yes,
            kind: Kind::V2,
        };
        assert_eq!(mount("/").dir_of(&own).unwrap(), Path::new("/sys/fs/cgroup/user.slice/a:b.scope"));
        assert_eq!(mount("/user.slice").dir_of(&own).unwrap(), Path::new("/sys/fs/cgroup/a:b.scope"));
        assert_eq!(mount("/system.slice").dir_of(&own), None);
        assert_eq!(mount("/").dir_of(Path::new("/")).unwrap().to_str(), Some("/sys/fs/cgroup"));
        assert_eq!(parse_own_v2(b"4:memory:/x\n"), None);
    }
}
