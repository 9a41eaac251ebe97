//! The group of the servers that share a state directory.
//!
//! Every server that root starts is a user of its own, so files that several of them write to belong to a group. Its number
//! is chosen once and recorded in the directory: a file keeps its group when its servers are gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::ids::SHARED_GROUPS;

/// The record, in the state directory.
const FILE: &str = "servers.group";

/// The group of the servers of this directory. The first that asks chooses it.
pub(crate) fn of_servers(dir: &Path) -> io::Result<u32> {
    match recorded(dir) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            record(dir, random()?)?;
            recorded(dir)
        }
        found => found,
    }
}

fn recorded(dir: &Path) -> io::Result<u32> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(dir.join(FILE))?;
    let found = file.metadata()?;
    let unusable = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} {why}; remove it"));
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(unusable("is not a file that only its owner can write to"));
    }
    let mut text = String::new();
    file.take(32).read_to_string(&mut text)?;
    let group = text.trim_end().parse().ok().filter(|group| SHARED_GROUPS.contains(group));
    group.ok_or_else(|| unusable("does not have the number of a group for servers"))
}

/// Another server may do the same at this moment: the first one has recorded it.
fn record(dir: &Path, group: u32) -> io::Result<()> {
    let draft = dir.join(format!(".{FILE}.{}", std::process::id()));
    let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let recorded = writeln!(made, "{group}").and_then(|()| fs::hard_link(&draft, dir.join(FILE)));
    fs::remove_file(&draft)?;
    match recorded {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        recorded => recorded,
    }
}

/// One that another directory hardly has. Servers of two directories with the same group still do not see each other's
/// files.
fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let count = SHARED_GROUPS.end - SHARED_GROUPS.start;
    Ok(SHARED_GROUPS.start + u32::from_ne_bytes(bytes) % count)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_choice_stays_and_nothing_else_is_left() {
        let dir = std::env::temp_dir().join(format!("belljar-group-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let group = of_servers(&dir).unwrap();
        record(&dir, SHARED_GROUPS.start).unwrap();
        let (again, left) = (of_servers(&dir).unwrap(), fs::read_dir(&dir).unwrap().count());
        let path = dir.join(FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        let writable = of_servers(&dir).map_err(|cause| cause.kind());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "0\n").unwrap();
        let of_root = of_servers(&dir).map_err(|cause| cause.kind());
        fs::remove_dir_all(&dir).unwrap();
        assert!(SHARED_GROUPS.contains(&group));
        assert_eq!((again, left), (group, 1));
        assert_eq!((writable, of_root), (Err(io::ErrorKind::InvalidData), Err(io::ErrorKind::InvalidData)));
    }
}
