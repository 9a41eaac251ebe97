//! Exile: a server that root started leaves root's rights behind, and so does everything that it starts.
//!
//! It goes on in a user namespace of its own. There it is root over itself, over the ids that its boxes get and over its
//! part of the cgroups, which is all that making boxes takes; to the host it is a user who owns nothing. Who started it stays
//! behind as root, does next to nothing, and waits for it to end.
//!
//! What root alone could reach, and the server needs, is luggage: it is shown at its own place in the server's own mounts.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal};

use crate::build::{attach, private_mounts, tmpfs};
use crate::cloned::{socket_pair, users_mapped};
use crate::fault::{Doing, Fault};
use crate::message::{self, Reply};
use crate::sys::{self, Fork, Subtree};
use crate::undertaker::Undertaker;

/// What a server has there.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Who it is on the host.
    pub user: u32,
    /// The first of the ids that its boxes get, and how many they are.
    pub ids: (u32, u32),
    /// Groups of the host that it is in.
    pub groups: Vec<u32>,
    /// Directories, and in whose places it finds them: its part of the cgroups where all of them were.
    pub replaced: Vec<(PathBuf, PathBuf)>,
    /// The file through which it enters its cgroup of version 2, if it has one.
    pub cgroup: Option<PathBuf>,
    /// What it takes along.
    pub luggage: Vec<Luggage>,
    /// Cgroups to remove when it is gone, if whoever stayed behind is gone, too.
    pub orphans: Vec<PathBuf>,
}

/// A file or a directory that only root could reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Luggage {
    /// Where it is, without links.
    pub path: PathBuf,
    /// As what.
    pub held: Held,
}

/// In which way something is taken along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// To be read, as far as everybody may read what is in it.
    AsItIs,
    /// To be read, with what is root's there shown as the server's, so that it believes it.
    AsItsOwn,
    /// A copy of its files in memory, which belongs to the server and goes with it. Were it kept, whoever takes one server over
    /// would have the next one, too.
    Copied,
}

/// On which side of the border this process is now.
#[derive(Debug)]
pub enum Departure {
    /// It is the server.
    Left(Line),
    /// It is who stayed behind.
    Stayed(Exiled),
}

/// From a server to who stayed behind. The server does not outlive the other.
#[derive(Debug)]
pub struct Line {
    /// A pipe: nothing but bytes goes through it.
    pub pleas: OwnedFd,
    /// Where answers come in.
    pub answers: OwnedFd,
}

/// A server, for who stayed behind.
#[derive(Debug)]
pub struct Exiled {
    /// Its process.
    pub pid: Pid,
    /// The same, for good.
    pub pidfd: OwnedFd,
    /// What it asks for. Reading does not wait.
    pub pleas: OwnedFd,
    /// Where it gets answers. Nothing comes back.
    pub answers: OwnedFd,
    /// What it writes to the terminal, if it was started at one: it has none itself, because whoever has one can read what
    /// is typed there. Reading does not wait.
    pub output: OwnedFd,
    /// Removes its cgroups if we die with it.
    _undertaker: Undertaker,
}

impl Exiled {
    /// Waits until it is gone. Returns its status as `waitpid` gives it.
    ///
    /// # Errors
    /// As `waitpid(2)`.
    pub fn end(&self) -> io::Result<i32> {
        sys::wait_for(self.pid).map(|(status, _)| status)
    }
}

/// Splits this process in two: one that leaves, and goes on as the server once `trial` has found that boxes can be made there, and
/// one that stays. If that cannot be done, there is one process as before.
///
/// # Errors
/// What was being done, and what the kernel said.
pub fn leave(terms: &Terms, trial: impl FnOnce() -> Result<(), Fault>) -> Result<Departure, Fault> {
    let (ours, theirs) = socket_pair().doing(|| "make a socket")?;
    let (pleas, asking) = pipe().doing(|| "make a pipe")?;
    let (output, writing) = pipe().doing(|| "make a pipe")?;
    let (pid, pidfd) = match sys::clone_into(0, None).doing(|| "fork")? {
        (Fork::Child, _) => {
            drop((ours, pleas, output));
            settle(terms, &theirs, writing, trial);
            return Ok(Departure::Left(Line { pleas: asking, answers: theirs }));
        }
        (Fork::Parent(pid), pidfd) => (pid, pidfd),
    };
    drop((theirs, asking, writing));
    let admitted = admit(terms, pid, &ours).and_then(|()| {
        // From here on it is only answered, so that it cannot make us hold anything.
        rustix::net::shutdown(&ours, Shutdown::Read).doing(|| "stop reading from the server")?;
        let pidfd = pidfd.ok_or(io::ErrorKind::NotFound).doing(|| "get a pidfd of the server")?;
        let undertaker = Undertaker::hire(&terms.orphans, pid, pidfd.as_fd());
        Ok((undertaker.doing(|| "start the undertaker")?, pidfd))
    });
    match admitted {
        Ok((undertaker, pidfd)) => {
            undertaker.let_mounts_go();
            let answers = ours;
            let exiled = Exiled { pid, pidfd, pleas, answers, output, _undertaker: undertaker };
            Ok(Departure::Stayed(exiled))
        }
        Err(fault) => {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = sys::wait_for(pid);
            Err(fault)
        }
    }
}

/// Who reads does not wait, and who writes does.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// Gives one that has left its users, and waits until it has settled.
fn admit(terms: &Terms, pid: Pid, line: &OwnedFd) -> Result<(), Fault> {
    hear(line, &Reply::Ready)?;
    map_users(pid, terms).doing(|| "map the server's users")?;
    rustix::net::send(line, b"!", SendFlags::NOSIGNAL).doing(|| "let the server continue")?;
    hear(line, &Reply::Started)
}

fn hear(line: &OwnedFd, wanted: &Reply) -> Result<(), Fault> {
    match message::receive::<Reply>(line).doing(|| "receive the server's report")? {
        Some((reply, _)) if reply == *wanted => Ok(()),
        Some((Reply::Failed { doing, errno }, _)) => Err(Fault { doing, errno }),
        _ => Err(Fault { doing: "receive the server's report".to_owned(), errno: libc::EPIPE }),
    }
}

fn map_users(pid: Pid, terms: &Terms) -> io::Result<()> {
    let (first, count) = terms.ids;
    let map = format!("0 {} 1\n{first} {first} {count}\n", terms.user);
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    std::fs::write(format!("{dir}/gid_map"), &map)?;
    std::fs::write(format!("{dir}/uid_map"), &map)
}

/// Ends this process if it cannot settle.
fn settle(terms: &Terms, line: &OwnedFd, output: OwnedFd, trial: impl FnOnce() -> Result<(), Fault>) {
    let settled = leave_the_terminal(&output).doing(|| "detach from the terminal");
    drop(output);
    let reply = match settled.and_then(|()| cross(terms, line)).and_then(|()| trial()) {
        Ok(()) => Reply::Started,
        Err(fault) => fault.into_reply(),
    };
    let said = message::send(line, &reply, &[]);
    if said.is_err() || reply != Reply::Started {
        sys::exit_now(1);
    }
}

/// Nothing is read from where this process was started, and what it writes to a terminal goes through a pipe.
fn leave_the_terminal(output: &OwnedFd) -> io::Result<()> {
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    sys::install(nothing.as_fd(), 0)?;
    for (number, stream) in [(1, rustix::stdio::stdout()), (2, rustix::stdio::stderr())] {
        if rustix::termios::isatty(stream) {
            sys::install(output.as_fd(), number)?;
        }
    }
    Ok(())
}

/// Everything that takes root's rights, then giving them up.
fn cross(terms: &Terms, line: &OwnedFd) -> Result<(), Fault> {
    sys::unshare(libc::CLONE_NEWNS).doing(|| "create a mount namespace")?;
    private_mounts()?;
    if let Some(entrance) = &terms.cgroup {
        std::fs::write(entrance, "0").doing(|| "enter the server's cgroup")?;
        sys::unshare(libc::CLONE_NEWCGROUP).doing(|| "create a cgroup namespace")?;
    }
    // What is beneath the working directory could be reached from there, whatever covers it.
    rustix::process::chdir("/").doing(|| "leave the working directory")?;
    carry(&terms.luggage, terms.user)?;
    replace(&terms.replaced)?;
    lift_process_limit();
    let groups: Vec<_> = terms.groups.iter().copied().map(Gid::from_raw).collect();
    rustix::thread::set_thread_groups(&groups).doing(|| "drop root's groups")?;
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).doing(|| "create a user namespace")?;
    message::send(line, &Reply::Ready, &[]).doing(|| "request the server's user mapping")?;
    wait_for_users(line).doing(|| "wait for the server's user mapping")?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid).doing(|| "switch to the server's group")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).doing(|| "switch to the server's user")?;
    sys::leave_keys().doing(|| "drop root's keyring")?;
    sys::close_inherited().doing(|| "close inherited descriptors")?;
    live_with(line).doing(|| "set the server's parent-death signal")
}

/// Root's processes were not counted; the server's are, and those of its boxes with them. A root that may not lift the limit
/// has what it has.
fn lift_process_limit() {
    let all = Rlimit { current: None, maximum: None };
    if rustix::process::setrlimit(Resource::Nproc, all).is_err() {
        let maximum = rustix::process::getrlimit(Resource::Nproc).maximum;
        let _ = rustix::process::setrlimit(Resource::Nproc, Rlimit { current: maximum, maximum });
    }
}

fn wait_for_users(line: &OwnedFd) -> io::Result<()> {
    let mut byte = [0];
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(line, &mut byte, RecvFlags::empty()))?;
    if length == 1 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The kernel forgets these wishes when a process becomes somebody else. In a session of its own, so that what is typed at the
/// terminal is heard once: by who stayed behind, who passes it on.
fn live_with(line: &OwnedFd) -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut maker = [PollFd::new(line, PollFlags::empty())];
    poll(&mut maker, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if !maker[0].revents().is_empty() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let _ = rustix::process::setsid();
    Ok(())
}

/// Shows some directories in the places of others.
fn replace(directories: &[(PathBuf, PathBuf)]) -> Result<(), Fault> {
    let mut trees = Vec::with_capacity(directories.len());
    for (from, onto) in directories {
        trees.push((open_tree(from)?, onto));
    }
    trees.iter().try_for_each(|(tree, onto)| show(tree, onto))
}

/// Where a directory is closed to others, what is luggage beneath it is in one that is not, and the rest of it is gone.
fn carry(luggage: &[Luggage], user: u32) -> Result<(), Fault> {
    let mut trees = Vec::with_capacity(luggage.len());
    for Luggage { path, held } in luggage {
        let tree = match held {
            Held::AsItIs => open_tree(path)?,
            Held::AsItsOwn => {
                let tree = open_tree(path)?;
                let users = users_mapped((0, 0), user).doing(|| named("map the owner of", path))?;
                // On a filesystem that cannot do this it stays root's, of no use to the server.
                if sys::mount_idmap(tree.as_fd(), users.as_fd()).is_err() {
                    continue;
                }
                tree
            }
            Held::Copied => copy(path, user).doing(|| named("copy", path))?,
        };
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, *held != Held::Copied);
        let tamed = sys::mount_setattr(tree.as_fd(), attributes.bits().into(), Subtree::Whole);
        tamed.doing(|| named("restrict the mount of", path))?;
        trees.push((tree, path));
    }
    // What lies in others comes after them.
    trees.sort_by_key(|(_, path)| *path);
    let closed: BTreeSet<_> = trees.iter().filter_map(|(_, path)| closed_above(path)).collect();
    for dir in closed {
        let cover = tmpfs(&[("mode", "755"), ("size", "1m")], MountAttrFlags::empty());
        attach(&cover.doing(|| named("cover", &dir))?, CWD, &dir).doing(|| named("cover", &dir))?;
    }
    for (tree, path) in &trees {
        make_place(tree, path).doing(|| named("make a mount point for", path))?;
        show(tree, path)?;
    }
    Ok(())
}

/// The files of a directory in one of the server's own, without what is in others beneath it.
fn copy(path: &Path, user: u32) -> io::Result<OwnedFd> {
    let owner = user.to_string();
    let options = [("mode", "700"), ("size", "16m"), ("uid", owner.as_str()), ("gid", owner.as_str())];
    let copy = tmpfs(&options, MountAttrFlags::empty())?;
    for entry in std::fs::read_dir(path)?.flatten() {
        // Others may be writing there; what is gone meanwhile is missed by nobody.
        let Ok(from) = std::fs::File::open(entry.path()) else { continue };
        if !from.metadata().is_ok_and(|found| found.is_file() && found.len() <= LARGEST_COPY) {
            continue;
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(&copy, entry.file_name(), flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::fchown(&to, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
        io::copy(&mut from.take(LARGEST_COPY), &mut std::fs::File::from(to))?;
    }
    Ok(copy)
}

/// Files of what was found out are not larger.
const LARGEST_COPY: u64 = 64 << 10;

fn open_tree(path: &Path) -> Result<OwnedFd, Fault> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(CWD, path, flags).doing(|| named("open", path))
}

fn show(tree: &OwnedFd, path: &Path) -> Result<(), Fault> {
    attach(tree, CWD, path).doing(|| named("show", path))
}

/// Something to mount onto, if there is nothing at this place.
fn make_place(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let above: Vec<_> = path.ancestors().skip(1).take_while(|dir| !dir.exists()).collect();
    above.into_iter().rev().try_for_each(make_open_dir)?;
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode).is_dir() {
        return make_open_dir(path);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    Ok(())
}

/// Whatever umask this process came with.
fn make_open_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// The first directory on the way to this one that is closed to those whom it does not belong to.
fn closed_above(path: &Path) -> Option<PathBuf> {
    let above: Vec<_> = path.ancestors().skip(1).collect();
    above.into_iter().rev().find(|dir| !lets_others(dir, 0o001)).map(Path::to_owned)
}

/// Whether somebody who owns nothing could read what is at this path.
#[must_use]
pub fn is_open_to_all(path: &Path) -> bool {
    let wanted = if path.is_dir() { 0o005 } else { 0o004 };
    closed_above(path).is_none() && lets_others(path, wanted)
}

fn lets_others(path: &Path, wanted: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & wanted == wanted)
}

fn named(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str, mode: u32) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("belljar-exile-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        for below in ["a/b", "a", ""] {
            std::fs::set_permissions(dir.join(below), Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(dir.join("a"), Permissions::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn what_lies_in_a_closed_directory_is_not_open_to_all() {
        let (open, closed, listed) = (dir("open", 0o755), dir("closed", 0o700), dir("listed", 0o754));
        let found = [&open, &closed, &listed]
            .map(|dir| (is_open_to_all(&dir.join("a/b")), closed_above(&dir.join("a/b"))));
        let itself = [&open, &closed, &listed].map(|dir| is_open_to_all(&dir.join("a")));
        let missing = is_open_to_all(&open.join("nothing"));
        for dir in [&open, &closed, &listed] {
            std::fs::remove_dir_all(dir).unwrap();
        }
        assert_eq!(found[0], (true, None));
        assert_eq!(found[1], (false, Some(closed.join("a"))));
        assert_eq!(found[2], (false, Some(listed.join("a"))), "it can be read, and not entered");
        assert_eq!(itself, [true, false, false]);
        assert!(!missing);
    }

    #[test]
    fn of_several_closed_directories_the_first_on_the_way_counts() {
        let top = dir("several", 0o700);
        std::fs::set_permissions(top.join("a/b"), Permissions::from_mode(0o700)).unwrap();
        let found = closed_above(&top.join("a/b/c"));
        std::fs::remove_dir_all(&top).unwrap();
        assert_eq!(found, Some(top.join("a")));
    }
}
