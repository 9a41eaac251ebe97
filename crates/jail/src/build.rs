//! Building the box: PID 1 performs the plan's steps, in order, with one small function for each.
//!
//! Until [`Step::Pivot`] the process still sees the host, in its own mount namespace. Everything is built on a tmpfs
//! that no other process can reach, and every path is resolved *in* that root (`RESOLVE_IN_ROOT`), so that a link which
//! the plan makes cannot lead a later step out of it.
//!
//! On a template, the root with the foundation in it is there already, and the host is not.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use crate::fault::{About, Concerning, Doing, Fault};
use crate::message::{self, Handover};
use crate::plan::{BindMode, IdPair, Input, ProcContent, ProcFile, ScratchPart, Step};
use crate::sys::{self, Subtree};

mod workspace;
use workspace::Layer;

/// Where the new root is mounted until it becomes the root. Any directory that every host has will do; what is needed
/// from it is opened before it is covered.
const STAGING: &str = "/dev";

/// Where the whole scratch space is mounted: on the host's root as this namespace sees it, which [`Step::Pivot`]
/// detaches. Unmounting it separately would cost an RCU grace period. On a template it is covered instead.
const BEHIND: &str = "/etc";

/// The name of a file in the new root until it is shown in the place of another one.
const SHOWN: &str = ".shown";

/// What `/proc/meminfo` shows: a file of the scratch space, outside of what the code sees of that. It takes a page and an
/// inode that are not the code's.
const MEMINFO: &str = "meminfo";
const MEMINFO_SIZE: u64 = 4096;

/// Where terminals are mounted.
const TERMINALS: &str = "/dev/pts";

/// The steps that need neither the plan nor the box's users, and so can be performed before there is a plan.
pub(crate) const GROUNDWORK: [Step; 2] = [Step::Loopback, Step::PrivateMounts];

pub(crate) fn perform_groundwork() -> Result<(), Fault> {
    private_mounts()?;
    loopback()
}

/// How to enter a cgroup v1.
pub(crate) enum WayIn {
    /// Its `tasks` files.
    Open(Vec<OwnedFd>),
    /// They arrive through this socket once the cgroup has been made and limited.
    Awaited(OwnedFd),
}

impl Default for WayIn {
    fn default() -> WayIn {
        WayIn::Open(Vec::new())
    }
}

impl WayIn {
    fn open(self) -> io::Result<Vec<OwnedFd>> {
        match self {
            WayIn::Open(tasks) => Ok(tasks),
            WayIn::Awaited(socket) => match message::receive(&socket)? {
                Some((Handover::Cgroup, tasks)) if !tasks.is_empty() => Ok(tasks),
                Some(_) => Err(io::ErrorKind::InvalidData.into()),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }
}

/// What the steps work with.
pub(crate) struct Site<'a> {
    /// Who the code is.
    pub(crate) code: IdPair,
    /// Detached copies of the plan's sources, in its order; each is used once.
    pub(crate) sources: Vec<Option<OwnedFd>>,
    /// How it enters a cgroup v1.
    pub(crate) cgroup: WayIn,
    /// The contents of the plan's inputs.
    pub(crate) payload: BorrowedFd<'a>,
    /// What `/proc/meminfo` says at first.
    pub(crate) meminfo: &'a [u8],
    /// The new root, once there is one.
    root: Option<OwnedFd>,
    /// Whether paths still lead to the host.
    sees_host: bool,
    /// What `/proc/meminfo` shows: the file, to be rewritten, and a read-only mount of it until it is in its place.
    rewritable: Option<OwnedFd>,
    meminfo_mount: Option<OwnedFd>,
    /// The box's own `/proc`, until it is finished.
    proc: Option<Proc>,
    /// The scratch space, once there is one.
    scratch: Option<OwnedFd>,
    /// The layer over a writable workspace.
    layer: Option<Layer>,
    /// The directory that the caller will get.
    offered: Option<OwnedFd>,
    /// What the caller gets beside it: the workspace as it was.
    before: Option<OwnedFd>,
}

/// A `/proc` that has been mounted.
struct Proc {
    context: OwnedFd,
    mount: OwnedFd,
    /// The directory of the root that it covers, which has the files that the foundation put there.
    beneath: OwnedFd,
}

impl<'a> Site<'a> {
    pub(crate) fn new(
        code: IdPair,
        sources: Vec<OwnedFd>,
        cgroup: WayIn,
        payload: BorrowedFd<'a>,
        meminfo: &'a [u8],
    ) -> Site<'a> {
        let sources = sources.into_iter().map(Some).collect();
        Site {
            code,
            sources,
            cgroup,
            payload,
            meminfo,
            root: None,
            sees_host: true,
            rewritable: None,
            meminfo_mount: None,
            proc: None,
            scratch: None,
            layer: None,
            offered: None,
            before: None,
        }
    }

    /// In a copy of a template, whose root is that of this process.
    pub(crate) fn stand_on_template(mut self) -> Result<Site<'a>, Fault> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.root = Some(rustix::fs::open("/", flags, Mode::empty()).doing(|| "open the template")?);
        self.sees_host = false;
        Ok(self)
    }

    /// Performs the steps of a foundation, and makes it the root of this process, with nothing of the host left. The
    /// kernel mounts a `/proc` in a user namespace only if its mount namespace has one that nothing is mounted over, so
    /// there is one, with nothing in it: the processes that it would show are those of this PID namespace, which dies
    /// with the process that calls this. Every box covers it.
    pub(crate) fn build_template<'p>(mut self, steps: impl Iterator<Item = &'p Step>) -> Result<(), Fault> {
        for step in steps {
            self.perform(step)?;
        }
        self.mount_empty_proc().doing(|| "mount an empty /proc")?;
        self.perform(&Step::Pivot)?;
        self.perform(&Step::SealRoot)
    }

    /// Performs every step, and returns what was offered: nothing, or a directory and `meminfo`, and after a layer
    /// what is beneath it.
    pub(crate) fn build<'p>(mut self, steps: impl Iterator<Item = &'p Step>) -> Result<Vec<OwnedFd>, Fault> {
        for step in steps {
            self.perform(step)?;
        }
        let offered = self.offered.zip(self.rewritable).into_iter();
        Ok(offered.flat_map(|(dir, meminfo)| [dir, meminfo]).chain(self.before).collect())
    }

    fn perform(&mut self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::JoinCgroup => self.join_cgroup().doing(|| "join the box's cgroup"),
            Step::HideCgroup => sys::unshare(libc::CLONE_NEWCGROUP).doing(|| "enter a cgroup namespace"),
            Step::Hostname(name) => {
                rustix::system::sethostname(name.as_bytes()).doing(|| "set the host name")
            }
            Step::Loopback => loopback(),
            // PID 1 has done it: what it makes goes to the keeper, and not into the box.
            Step::Uplink => Ok(()),
            Step::PrivateMounts => private_mounts(),
            Step::Root => self.make_root().doing(|| "make the new root"),
            Step::Directory(path) => self.dir_all(path).map(drop).doing(|| named("make the directory", path)),
            Step::File(path, content) => self.make_file(path, content).doing(|| named("make the file", path)),
            Step::Cover(path, content) => self.cover(path, content).doing(|| named("cover", path)),
            Step::Symlink { path, target } => {
                self.make_symlink(path, target).doing(|| named("make the link", path))
            }
            Step::Bind { source, path, mode } => {
                self.bind(*source, path, *mode).doing(|| named("mount", path))
            }
            Step::Scratch { size, files, parts } => {
                self.make_scratch(*size, *files, parts).doing(|| "make the writable directories")
            }
            Step::Workspace { source, path, files, writable, .. } => self
                .show_workspace(*source, path, files, *writable)
                .doing(|| named("mount the workspace at", path))
                .concerning(About::Workspace),
            Step::Inputs { dir, files } => self
                .put_inputs(dir, files)
                .doing(|| named("write the run's files to", dir))
                .concerning(About::Files),
            Step::Pipe(path) => self.make_pipe(path).doing(|| named("make the pipe", path)),
            Step::Proc => self.mount_proc().doing(|| "mount /proc"),
            Step::DescribeMachine(files) => self.describe_machine(files).doing(|| "finish /proc"),
            Step::Terminals { max } => self.mount_terminals(*max).doing(|| "mount /dev/pts"),
            Step::Pivot => self.pivot().doing(|| "switch to the new root"),
            Step::SealRoot => self.seal_root().doing(|| "make the root read-only"),
            Step::Offer(path) => self.offer(path).doing(|| named("open", path)),
            Step::OfferLayer => {
                self.offer_layer().doing(|| "open the layer over the workspace").concerning(About::Workspace)
            }
        }
    }

    fn join_cgroup(&mut self) -> io::Result<()> {
        for tasks in std::mem::take(&mut self.cgroup).open()? {
            rustix::io::write(&tasks, b"0")?;
        }
        Ok(())
    }

    fn make_root(&mut self) -> io::Result<()> {
        let root = tmpfs(
            &[("size", "4m"), ("nr_inodes", "4096"), ("mode", "755")],
            MountAttrFlags::MOUNT_ATTR_NOEXEC,
        )?;
        attach(&root, CWD, Path::new(STAGING))?;
        rustix::process::fchdir(&root)?;
        self.root = Some(root);
        Ok(())
    }

    fn make_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        create_file(&parent, name, 0o644)?.write_all(content)
    }

    /// The new file has no other name afterwards.
    fn cover(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let root = self.root()?;
        create_file(root, Path::new(SHOWN), 0o444)?.write_all(content)?;
        let file = clone_file(root, SHOWN)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        sys::mount_setattr(file.as_fd(), attributes.bits().into(), Subtree::Top)?;
        attach_to(&file, &open_in_root(root, path, OFlags::NOFOLLOW)?)?;
        Ok(rustix::fs::unlinkat(root, SHOWN, AtFlags::empty())?)
    }

    fn make_symlink(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        Ok(rustix::fs::symlinkat(target, &parent, name)?)
    }

    fn bind(&mut self, source: u16, path: &Path, mode: BindMode) -> io::Result<()> {
        let tree = self.take_source(source)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID;
        attributes |= match mode {
            BindMode::ReadOnly => MountAttrFlags::MOUNT_ATTR_NODEV,
            BindMode::Device => MountAttrFlags::MOUNT_ATTR_NOEXEC,
        };
        sys::mount_setattr_private(tree.as_fd(), attributes.bits().into())?;
        let point = if is_dir(&tree)? { self.dir_all(path)? } else { self.mount_point_file(path)? };
        attach_to(&tree, &point)
    }

    /// One tmpfs holds everything that the code can write, so that one size limits all of it. Its parts are shown
    /// where the code expects them; the whole goes away with the host's root.
    fn make_scratch(&mut self, size: u64, files: u64, parts: &[ScratchPart]) -> io::Result<()> {
        let (size, files) = (size.saturating_add(MEMINFO_SIZE), files.saturating_add(1));
        let options =
            [("size", size.to_string()), ("nr_inodes", files.to_string()), ("mode", "755".to_owned())];
        let options = options.each_ref().map(|(key, value)| (*key, value.as_str()));
        let whole = tmpfs(&options, MountAttrFlags::empty())?;
        match parts.first().filter(|_| !self.sees_host) {
            Some(first) => attach_to(&whole, &self.dir_all(&first.path)?)?,
            None => attach(&whole, CWD, Path::new(BEHIND))?,
        }
        self.put_meminfo(&whole)?;
        for (index, part) in parts.iter().enumerate() {
            self.show_part(&whole, &index.to_string(), part)?;
        }
        self.scratch = Some(whole);
        Ok(())
    }

    fn put_meminfo(&mut self, whole: &OwnedFd) -> io::Result<()> {
        let mut file = create_file(whole, Path::new(MEMINFO), 0o444)?;
        file.write_all(self.meminfo)?;
        self.rewritable = Some(file.into());
        let mount = clone_file(whole, MEMINFO)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        sys::mount_setattr(mount.as_fd(), attributes.bits().into(), Subtree::Top)?;
        self.meminfo_mount = Some(mount);
        Ok(())
    }

    fn show_part(&self, whole: &OwnedFd, name: &str, part: &ScratchPart) -> io::Result<()> {
        rustix::fs::mkdirat(whole, name, Mode::from_raw_mode(0o700))?;
        let dir = open_dir(whole.as_fd(), name)?;
        self.give_to_code(&dir)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(part.mode))?;
        let tree = clone_tree(&dir)?;
        if !part.executable {
            let noexec = MountAttrFlags::MOUNT_ATTR_NOEXEC.bits().into();
            sys::mount_setattr(tree.as_fd(), noexec, Subtree::Top)?;
        }
        attach_to(&tree, &self.dir_all(&part.path)?)
    }

    fn put_inputs(&self, dir: &Path, files: &[Input]) -> io::Result<()> {
        let dir = self.dir_all(dir)?;
        files.iter().try_for_each(|file| self.put_input(dir.as_fd(), file))
    }

    fn put_input(&self, dir: BorrowedFd<'_>, input: &Input) -> io::Result<()> {
        let mut parent = reopen_dir(dir)?;
        let mut names = input.path.components().peekable();
        while let Some(name) = names.next() {
            let Component::Normal(name) = name else { return Err(io::ErrorKind::InvalidInput.into()) };
            if names.peek().is_some() {
                match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) => self.give_to_code(&open_dir(parent.as_fd(), name)?)?,
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                parent = open_dir(parent.as_fd(), name)?;
            } else {
                let mode = if input.executable { 0o755 } else { 0o644 };
                let file = create_file(&parent, Path::new(name), mode)?;
                copy(self.payload, input.offset, input.length, file.as_fd())?;
                self.give_to_code(&file)?;
            }
        }
        Ok(())
    }

    fn make_pipe(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        rustix::fs::mknodat(&parent, name, FileType::Fifo, Mode::from_raw_mode(0o644), 0)?;
        let id = self.code.inside;
        let (owner, group) = (Some(Uid::from_raw(id)), Some(Gid::from_raw(id)));
        Ok(rustix::fs::chownat(&parent, name, owner, group, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// PID 1 is hidden from the code (`hidepid`).
    fn mount_proc(&mut self) -> io::Result<()> {
        let context = proc_context()?;
        rustix::mount::fsconfig_create(&context)?;
        let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, proc_attributes())?;
        bound_sockets(&mount);
        let beneath = self.dir_all(Path::new("/proc"))?;
        attach_to(&mount, &beneath)?;
        self.proc = Some(Proc { context, mount, beneath });
        Ok(())
    }

    /// `/proc` shows only the box's own processes (`subset=pid`): no `kcore`, `sysrq-trigger`, `sys`, `keys`, … that
    /// would have to be masked one by one.
    ///
    /// The files that describe the machine are mounted over the kernel's own while these still exist. The kernel keeps
    /// a name on which something is mounted, so they are found after `subset=pid` has removed all the others. They are
    /// files of the root, and so as read-only as that.
    fn describe_machine(&mut self, files: &[ProcFile]) -> io::Result<()> {
        let Proc { context, mount, beneath } = self.proc.take().ok_or(io::ErrorKind::NotFound)?;
        rustix::process::fchdir(&beneath)?;
        for ProcFile { name, content } in files {
            match content {
                ProcContent::Own => rustix::mount::mount_bind(name, Path::new("/proc").join(name))?,
                ProcContent::Kernel => attach(&clone_file(&mount, name)?, mount.as_fd(), Path::new(name))?,
            }
        }
        let meminfo = self.meminfo_mount.take().ok_or(io::ErrorKind::NotFound)?;
        attach(&meminfo, mount.as_fd(), Path::new(MEMINFO))?;
        rustix::mount::fsconfig_set_string(&context, "subset", "pid")?;
        rustix::mount::fsconfig_reconfigure(&context)?;
        Ok(rustix::process::chdir("/")?)
    }

    fn mount_empty_proc(&self) -> io::Result<()> {
        let context = proc_context()?;
        rustix::mount::fsconfig_set_string(&context, "subset", "pid")?;
        rustix::mount::fsconfig_create(&context)?;
        let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, proc_attributes())?;
        attach_to(&mount, &self.dir_all(Path::new(TERMINALS))?)
    }

    /// An instance of `devpts` shows the terminals that were made in it, and no others. The kernel does not charge their
    /// buffers to the box, so their number is limited.
    fn mount_terminals(&self, max: u32) -> io::Result<()> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let max = max.to_string();
        let options = [("mode", "620"), ("ptmxmode", "666"), ("max", max.as_str())];
        let terminals = new_mount("devpts", &options, attributes)?;
        attach_to(&terminals, &self.dir_all(Path::new(TERMINALS))?)
    }

    /// `pivot_root(".", ".")` stacks the old root on the new one, so that no directory for it is needed; it is
    /// then the topmost mount at `.` and is detached with everything in it.
    fn pivot(&mut self) -> io::Result<()> {
        rustix::process::fchdir(self.root()?)?;
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        self.sees_host = false;
        Ok(rustix::process::chdir("/")?)
    }

    fn seal_root(&self) -> io::Result<()> {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY.bits().into();
        sys::mount_setattr(self.root()?.as_fd(), read_only, Subtree::Top)
    }

    fn offer(&mut self, path: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.offered = Some(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(())
    }

    fn offer_layer(&mut self) -> io::Result<()> {
        let Layer { upper, before } = self.layer.take().ok_or(io::ErrorKind::NotFound)?;
        (self.offered, self.before) = (Some(upper), Some(before));
        Ok(())
    }

    fn take_source(&mut self, index: u16) -> io::Result<OwnedFd> {
        let slot = self.sources.get_mut(usize::from(index));
        slot.and_then(Option::take).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn root(&self) -> io::Result<&OwnedFd> {
        self.root.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The directory at that path in the new root, made with its parents if missing.
    fn dir_all(&self, path: &Path) -> io::Result<OwnedFd> {
        let root = self.root()?;
        if let Ok(dir) = open_in_root(root, path, OFlags::DIRECTORY) {
            return Ok(dir);
        }
        let (mut dir, mut so_far) = (open_in_root(root, Path::new("/"), OFlags::DIRECTORY)?, PathBuf::new());
        for name in path.components().filter(|part| *part != Component::RootDir) {
            so_far.push(name);
            match rustix::fs::mkdirat(&dir, name.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            dir = open_in_root(root, &so_far, OFlags::DIRECTORY)?;
        }
        Ok(dir)
    }

    fn parent_of<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p Path)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.dir_all(path.parent().unwrap_or(Path::new("/")))?, Path::new(name)))
    }

    fn mount_point_file(&self, path: &Path) -> io::Result<OwnedFd> {
        let (parent, name) = self.parent_of(path)?;
        drop(create_file(&parent, name, 0o444)?);
        open_in_root(self.root()?, path, OFlags::NOFOLLOW)
    }

    fn give_to_code(&self, file: impl AsFd) -> io::Result<()> {
        let id = self.code.inside;
        Ok(rustix::fs::fchown(file, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)))?)
    }
}

/// Makes detached copies of a plan's sources, with everything mounted beneath them.
pub(crate) fn open_sources(sources: &[PathBuf]) -> Result<Vec<OwnedFd>, Fault> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let open = |path: &PathBuf| rustix::mount::open_tree(CWD, path, flags).doing(|| named("open", path));
    sources.iter().map(open).collect()
}

fn named(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

fn loopback() -> Result<(), Fault> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    socket.map_err(io::Error::from).and_then(sys::loopback_up).doing(|| "bring the loopback interface up")
}

/// Settings of the network namespace for what sockets keep and nobody is charged for. Older kernels have each of them
/// for the whole host only, and then do not show it here; SECURITY.md says what that means.
const SOCKET_SETTINGS: [(&str, &str); 3] = [
    ("sys/net/ipv4/tcp_rmem", crate::TCP_RECEIVE_BUFFER),
    // Copies of sent data with a timestamp, which any message can ask for.
    ("sys/net/core/tstamp_allow_data", "0"),
    // Options. This was the kernel's own default until 6.8.
    ("sys/net/core/optmem_max", "20480"),
];

fn bound_sockets(proc: &OwnedFd) {
    for (file, value) in SOCKET_SETTINGS {
        let opened = rustix::fs::openat(proc, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        if let Ok(setting) = opened {
            let _ = rustix::io::write(&setting, value.as_bytes());
        }
    }
}

pub(crate) fn private_mounts() -> Result<(), Fault> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).doing(|| "make the mounts private")
}

pub(crate) fn tmpfs(options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let always = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    new_mount("tmpfs", options, always | attributes)
}

fn proc_context() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "hidepid", "invisible")?;
    Ok(context)
}

fn proc_attributes() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

fn new_mount(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

pub(crate) fn attach(mount: &OwnedFd, dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(mount, "", dir, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn attach_to(mount: &OwnedFd, point: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", point, "", flags)?)
}

fn clone_tree(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(dir, "", flags)?)
}

/// A detached copy of a mount, from one of its files.
fn clone_file(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(rustix::mount::open_tree(dir, name, flags)?)
}

fn open_in_root(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

pub(crate) fn open_dir(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

pub(crate) fn reopen_dir(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_dir(dir, ".")
}

pub(crate) fn create_file(parent: &OwnedFd, name: &Path, mode: u32) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode))?;
    // Independent of the inherited umask.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file.into())
}

pub(crate) fn copy(from: BorrowedFd<'_>, offset: u64, length: u64, to: BorrowedFd<'_>) -> io::Result<()> {
    let (mut offset, end) = (offset, offset.saturating_add(length));
    while offset < end {
        let count = usize::try_from(end - offset).unwrap_or(usize::MAX);
        if rustix::fs::sendfile(to, from, Some(&mut offset), count)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn is_dir(file: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_dir())
}
