//! The privilege drop: a server that root started gives up root's rights, and so does everything it starts.
//!
//! The server continues in its own user namespace. There it is root over itself, over the ids of its boxes and over its
//! part of the cgroups, which is all that making boxes takes. On the host it is a user that owns nothing. The process
//! that started it stays behind as root (the root parent), does next to nothing, and waits for it to end.
//!
//! What the server needs and only root can reach is mounted at its own path in the server's mount namespace ([`KeptMount`]).

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
use crate::fault::{About, Concerning, Doing, Fault};
use crate::init_handle::users_mapped;
use crate::message::socket_pair;
use crate::message::{self, Reply};
use crate::sys::{self, Fork, Subtree};
use crate::undertaker::Undertaker;

/// What a server has after the privilege drop.
#[derive(Debug, Clone, Default)]
pub struct ServerRights {
    /// Its user on the host.
    pub user: u32,
    /// The first id for its boxes, and the number of ids.
    pub ids: (u32, u32),
    /// Its groups on the host.
    pub groups: Vec<u32>,
    /// Directories, and the paths where it finds them: its part of the cgroups appears where all of them were.
    pub replaced: Vec<(PathBuf, PathBuf)>,
    /// The file through which it enters its cgroup v2, if it has one.
    pub cgroup: Option<PathBuf>,
    /// What it can still reach.
    pub mounts: Vec<KeptMount>,
    /// Files that are left out where a directory is copied ([`Held::Copied`]).
    pub withheld: Vec<PathBuf>,
    /// Cgroups to remove when it is gone, if the root parent is gone too.
    pub orphans: Vec<PathBuf>,
}

/// A file or a directory that only root could reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMount {
    /// Its path, without links.
    pub path: PathBuf,
    /// How it is shown.
    pub held: Held,
}

/// How a kept mount is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Read-only; the server reads what every user may read.
    AsItIs,
    /// Read-only, with root's files mapped to the server's user, so that the server trusts them.
    AsItsOwn,
    /// A file that one of the server's groups may write to.
    Given,
    /// A copy of its files in memory, which belongs to the server and disappears with it. If it were kept, an attacker
    /// who takes over one server would have the next one too.
    Copied,
}

/// Which of the two processes this is now.
#[derive(Debug)]
pub enum Split {
    /// The server.
    Server(ParentLine),
    /// The root parent.
    RootParent(ServerProcess),
}

/// The server's connection to the root parent. The server does not outlive it.
#[derive(Debug)]
pub struct ParentLine {
    /// A pipe, through which only bytes pass, not descriptors.
    pub requests: OwnedFd,
    /// Where answers come in.
    pub answers: OwnedFd,
}

/// The server, as the root parent sees it.
#[derive(Debug)]
pub struct ServerProcess {
    /// Its process.
    pub pid: Pid,
    /// The same, safe against reuse of the number.
    pub pidfd: OwnedFd,
    /// What it asks for. Reading does not block.
    pub requests: OwnedFd,
    /// Where answers are sent. Nothing is read from it.
    pub answers: OwnedFd,
    /// What it writes to the terminal, if it was started from one. It has no terminal itself, because a process that
    /// has one can read what is typed there. Reading does not block.
    pub output: OwnedFd,
    /// Removes its cgroups if we die with it.
    _undertaker: Undertaker,
}

impl ServerProcess {
    /// Waits until it is gone. Returns its status as `waitpid` gives it.
    ///
    /// # Errors
    /// As `waitpid(2)`.
    pub fn end(&self) -> io::Result<i32> {
        sys::wait_for(self.pid).map(|(status, _)| status)
    }
}

/// Splits this process in two: one that drops root's rights and continues as the server, once `trial` has shown that boxes
/// can be made there, and one that stays. On failure there is one process, as before.
///
/// # Errors
/// What was being done, and what the kernel said.
pub fn split(rights: &ServerRights, trial: impl FnOnce() -> Result<(), Fault>) -> Result<Split, Fault> {
    let (ours, theirs) = socket_pair().doing(|| "make a socket")?;
    let (requests, asking) = pipe().doing(|| "make a pipe")?;
    let (output, writing) = pipe().doing(|| "make a pipe")?;
    let (pid, pidfd) = match sys::clone_into(0, None).doing(|| "fork")? {
        (Fork::Child, _) => {
            drop((ours, requests, output));
            settle(rights, &theirs, writing, trial);
            return Ok(Split::Server(ParentLine { requests: asking, answers: theirs }));
        }
        (Fork::Parent(pid), pidfd) => (pid, pidfd),
    };
    drop((theirs, asking, writing));
    let admitted = admit(rights, pid, &ours).and_then(|()| {
        // From here on we only send, so that the server cannot make us hold anything.
        rustix::net::shutdown(&ours, Shutdown::Read).doing(|| "stop reading from the server")?;
        let pidfd = pidfd.ok_or(io::ErrorKind::NotFound).doing(|| "get a pidfd of the server")?;
        let undertaker = Undertaker::hire(&rights.orphans, pid, pidfd.as_fd());
        Ok((undertaker.doing(|| "start the undertaker")?, pidfd))
    });
    match admitted {
        Ok((undertaker, pidfd)) => {
            undertaker.let_mounts_go();
            let answers = ours;
            let server = ServerProcess { pid, pidfd, requests, answers, output, _undertaker: undertaker };
            Ok(Split::RootParent(server))
        }
        Err(fault) => {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = sys::wait_for(pid);
            Err(fault)
        }
    }
}

/// A pipe whose reader does not block and whose writer does.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// Maps the users of the unprivileged process, and waits until it has settled.
fn admit(rights: &ServerRights, pid: Pid, line: &OwnedFd) -> Result<(), Fault> {
    hear(line, &Reply::Ready)?;
    map_users(pid, rights).doing(|| "map the server's users").concerning(About::Namespaces)?;
    rustix::net::send(line, b"!", SendFlags::NOSIGNAL).doing(|| "let the server continue")?;
    hear(line, &Reply::Started)
}

fn hear(line: &OwnedFd, wanted: &Reply) -> Result<(), Fault> {
    match message::receive::<Reply>(line).doing(|| "receive the server's report")? {
        Some((reply, _)) if reply == *wanted => Ok(()),
        Some((Reply::Failed { fault }, _)) => Err(fault),
        _ => Err(Fault::with_errno("receive the server's report", libc::EPIPE)),
    }
}

fn map_users(pid: Pid, rights: &ServerRights) -> io::Result<()> {
    let (first, count) = rights.ids;
    let map = format!("0 {} 1\n{first} {first} {count}\n", rights.user);
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    std::fs::write(format!("{dir}/gid_map"), &map)?;
    std::fs::write(format!("{dir}/uid_map"), &map)
}

/// Ends this process if it cannot settle.
fn settle(rights: &ServerRights, line: &OwnedFd, output: OwnedFd, trial: impl FnOnce() -> Result<(), Fault>) {
    let settled = leave_the_terminal(&output).doing(|| "detach from the terminal");
    drop(output);
    let reply = match settled.and_then(|()| cross(rights, line)).and_then(|()| trial()) {
        Ok(()) => Reply::Started,
        Err(fault) => fault.into_reply(),
    };
    let said = message::send(line, &reply, &[]);
    if said.is_err() || reply != Reply::Started {
        sys::exit_now(1);
    }
}

/// Standard input becomes empty, and what this process writes to a terminal goes through a pipe.
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

/// Does everything that needs root's rights, then gives them up.
fn cross(rights: &ServerRights, line: &OwnedFd) -> Result<(), Fault> {
    sys::unshare(libc::CLONE_NEWNS).doing(|| "create a mount namespace")?;
    private_mounts()?;
    if let Some(entrance) = &rights.cgroup {
        std::fs::write(entrance, "0").doing(|| "enter the server's cgroup")?;
        sys::unshare(libc::CLONE_NEWCGROUP).doing(|| "create a cgroup namespace")?;
    }
    // Otherwise everything beneath the working directory could still be reached from it, even where something is
    // mounted over it.
    rustix::process::chdir("/").doing(|| "leave the working directory")?;
    carry(rights)?;
    replace(&rights.replaced)?;
    lift_process_limit();
    let groups: Vec<_> = rights.groups.iter().copied().map(Gid::from_raw).collect();
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

/// Root's processes were not counted against a limit; the server's are, together with those of its boxes. If root may
/// not lift the limit, it stays.
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

/// The kernel clears these settings when a process changes its user. The server gets its own session, so that a signal
/// from the terminal is received once, by the root parent, which forwards it.
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

/// Mounts some directories over others.
fn replace(directories: &[(PathBuf, PathBuf)]) -> Result<(), Fault> {
    let mut trees = Vec::with_capacity(directories.len());
    for (from, onto) in directories {
        trees.push((open_tree(from)?, onto));
    }
    trees.iter().try_for_each(|(tree, onto)| show(tree, onto))
}

/// If the parent directory of a kept mount is closed to other users, it is replaced by an open one that contains only the
/// mount.
fn carry(rights: &ServerRights) -> Result<(), Fault> {
    let ServerRights { mounts, user, withheld, .. } = rights;
    let mut trees = Vec::with_capacity(mounts.len());
    for KeptMount { path, held } in mounts {
        let tree = match held {
            Held::AsItIs | Held::Given => open_tree(path)?,
            Held::AsItsOwn => {
                let tree = open_tree(path)?;
                let users = users_mapped((0, 0), *user).doing(|| named("map the owner of", path))?;
                // On a file system that does not support this, the files stay root's and are of no use to the server.
                if sys::mount_idmap(tree.as_fd(), users.as_fd()).is_err() {
                    continue;
                }
                tree
            }
            Held::Copied => copy(path, *user, withheld).doing(|| named("copy", path))?,
        };
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let is_written = matches!(held, Held::Copied | Held::Given);
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !is_written);
        let tamed = sys::mount_setattr(tree.as_fd(), attributes.bits().into(), Subtree::Whole);
        tamed.doing(|| named("restrict the mount of", path))?;
        trees.push((tree, path));
    }
    // What is inside another comes after it.
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

/// Copies the files of a directory, without subdirectories, into one that belongs to the server.
fn copy(path: &Path, user: u32, withheld: &[PathBuf]) -> io::Result<OwnedFd> {
    let owner = user.to_string();
    let options = [("mode", "700"), ("size", "16m"), ("uid", owner.as_str()), ("gid", owner.as_str())];
    let copy = tmpfs(&options, MountAttrFlags::empty())?;
    for entry in std::fs::read_dir(path)?.flatten() {
        if withheld.contains(&entry.path()) {
            continue;
        }
        // Others may be writing there; a file that disappears meanwhile is skipped.
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

/// Cached files are smaller than this.
const LARGEST_COPY: u64 = 64 << 10;

fn open_tree(path: &Path) -> Result<OwnedFd, Fault> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(CWD, path, flags).doing(|| named("open", path))
}

fn show(tree: &OwnedFd, path: &Path) -> Result<(), Fault> {
    attach(tree, CWD, path).doing(|| named("show", path))
}

/// Makes a mount point, if there is none at this path.
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

/// Independent of the inherited umask.
fn make_open_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// The first directory on the way to this one that is closed to users other than its owner.
fn closed_above(path: &Path) -> Option<PathBuf> {
    let above: Vec<_> = path.ancestors().skip(1).collect();
    above.into_iter().rev().find(|dir| !lets_others(dir, 0o001)).map(Path::to_owned)
}

/// Whether a user that owns nothing could read what is at this path.
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
        let dir = std::env::temp_dir().join(format!("belljar-privileges-{}-{name}", std::process::id()));
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
