//! The plan: everything that will be done to make one box, in order, as plain data.
//!
//! A plan is computed where there is no privilege (`backend-native`), printed by `--explain`, sent to the keeper
//! as bytes and performed there. The performer decides nothing: what a plan does not say does not happen. So the
//! plan is the whole security review of a box, and it can be read and tested without being root.

use std::fmt;
use std::path::PathBuf;

/// One box, from its namespaces to the program that runs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How its program is started.
    pub birth: Birth,
    /// Who the processes of the box are, inside and on the host.
    pub identity: Identity,
    /// The cgroup that the box lives in.
    pub cgroup: CgroupEntry,
    /// Cgroup directories for the keeper to remove if its caller dies before it could do so itself.
    pub orphans: Vec<PathBuf>,
    /// Parts of the host that the box will see. Steps name them by their place in this list.
    pub sources: Vec<PathBuf>,
    /// Who opens the sources: see [`Opener`].
    pub opener: Opener,
    /// The part of the box that is the same for every box of its kind: the new root, with the system in it. It is built
    /// first, by PID 1 or once for many boxes, as a template.
    pub foundation: Vec<Step>,
    /// What PID 1 does to build the rest of the box, in order.
    pub build: Vec<Step>,
    /// What `/proc/meminfo` says. It is not part of a step, because it can be rewritten: the memory limit of a parked
    /// box is that of its request.
    pub meminfo: Vec<u8>,
    /// What the program is confined by.
    pub confinement: Confinement,
    /// What then runs.
    pub command: Command,
    /// Whether the caller gets an exit listener with the program: a descriptor that hangs up as soon as no process in the box
    /// can run any more, while the kernel still frees their memory.
    pub exit_listener: bool,
}

/// How the program of a box is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// PID 1 starts it.
    Executed,
    /// A zygote sends a child into the box, where it waits as if it had been started there. The zygote has the right to
    /// do so because its host user owns the box's user namespace.
    Forked {
        /// That user.
        by: u32,
    },
    /// The program is a zygote: it sees what a box of its language would see, but stays in the host's user and PID
    /// namespaces, without any privileges.
    Zygote,
}

/// Who the processes of the box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The uid and gid of the code.
    pub code: IdPair,
    /// The uid and gid of PID 1, where the host lets it have its own.
    pub init: Option<IdPair>,
}

/// One uid (and the gid of the same number) inside, and what it is on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdPair {
    /// As the box sees it.
    pub inside: u32,
    /// As the host sees it.
    pub outside: u32,
}

/// How the box gets into its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupEntry {
    /// There is none.
    None,
    /// PID 1 writes `0` to these files: moving itself is a thousand times cheaper than being moved.
    V1 {
        /// One `tasks` file for each controller.
        tasks: Vec<PathBuf>,
    },
    /// `clone3` puts it there from its first instruction.
    V2 {
        /// The directory.
        dir: PathBuf,
    },
}

/// Who opens the sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The keeper, as root, before the box exists: an interpreter may be in a directory that only root can read.
    Keeper,
    /// PID 1, with the rights of the ordinary user who started it.
    Init,
}

/// One step of building the box. Paths are those of the new root, and absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Joins the cgroup v1, if the plan has one.
    JoinCgroup,
    /// Makes its own cgroup look like the root of all cgroups.
    HideCgroup,
    /// Sets the host name of the box.
    Hostname(String),
    /// Lets the box talk to itself.
    Loopback,
    /// Connects the box with a gateway: see [`uplink`](crate::uplink).
    Uplink,
    /// Stops mounts from spreading to the host or from it.
    PrivateMounts,
    /// Makes the new root: an empty private tmpfs that only the next steps write to.
    Root,
    /// Makes a directory, for something to be mounted there.
    Directory(PathBuf),
    /// Makes a file with this content.
    File(PathBuf, Vec<u8>),
    /// Shows a file with this content in place of one that the box has by now, under the same path.
    Cover(PathBuf, Vec<u8>),
    /// Makes a symbolic link.
    Symlink {
        /// The link.
        path: PathBuf,
        /// What it says.
        target: PathBuf,
    },
    /// Shows a part of the host.
    Bind {
        /// Its place in [`Plan::sources`].
        source: u16,
        /// Where in the box.
        path: PathBuf,
        /// How it is shown.
        mode: BindMode,
    },
    /// Makes the one writable tmpfs, sized for everything that the code can write, and shows its parts.
    Scratch {
        /// Its size in bytes.
        size: u64,
        /// How many files it may hold.
        files: u64,
        /// The directories that the code sees.
        parts: Vec<ScratchPart>,
    },
    /// Shows a directory of the host, with the run's own files laid over it. The host's directory is never written to.
    Workspace {
        /// Its place in [`Plan::sources`].
        source: u16,
        /// Where in the box.
        path: PathBuf,
        /// The uid and gid that own the directory on the host. They are mapped to the code's user, so that the code can
        /// read what the owner can. `None`: no mapping, because the code already is that user on the host.
        owner: Option<(u32, u32)>,
        /// The run's own files, relative to `path`.
        files: Vec<Input>,
        /// Whether the code can write there. What it writes goes to a layer in the scratch space.
        writable: bool,
    },
    /// Puts files into a scratch directory, owned by the code.
    Inputs {
        /// The directory.
        dir: PathBuf,
        /// What goes there.
        files: Vec<Input>,
    },
    /// Makes a named pipe, owned by the code, in place of the code's file, so that a runtime waits for what is written
    /// into it later.
    Pipe(PathBuf),
    /// Mounts the box's own `/proc`, and makes the kernel keep less for each socket that nobody is charged for, where it
    /// can. Until [`Step::DescribeMachine`] it shows more than the code may see.
    Proc,
    /// Makes `/proc` show the box's processes, `meminfo`, these files, and nothing else of the kernel. Comes after
    /// [`Step::SealRoot`], because the files become as read-only as the root is.
    DescribeMachine(Vec<ProcFile>),
    /// Makes pseudo-terminals for the box alone.
    Terminals {
        /// How many of them may exist at a time.
        max: u32,
    },
    /// Makes the new root the root, and detaches the host's.
    Pivot,
    /// Makes the root itself read-only.
    SealRoot,
    /// Hands this directory to the caller, who reads results from it after the box is dead, and with it `meminfo`.
    Offer(PathBuf),
    /// The same with the layer that the code writes to, and with the workspace as it was without that layer.
    OfferLayer,
}

/// How a part of the host is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindMode {
    /// Read-only, no set-uid, no devices.
    ReadOnly,
    /// A device node that may be opened.
    Device,
}

/// A file of `/proc` that describes the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcFile {
    /// Its name in `/proc`.
    pub name: String,
    /// What it says.
    pub content: ProcContent,
}

/// What a file of `/proc` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcContent {
    /// What the file says that the foundation has in this place.
    Own,
    /// What the kernel says.
    Kernel,
}

/// A directory of the scratch space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchPart {
    /// Where in the box.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
    /// Whether files there may be executed.
    pub executable: bool,
}

/// A file whose content comes with the plan, in the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Relative, plain components only.
    pub path: PathBuf,
    /// Where its content begins in the payload.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
    /// Whether it may be executed.
    pub executable: bool,
}

/// What every command is confined by, apart from the syscall policy, which is the same for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// Resource limits, soft and hard alike.
    pub rlimits: Vec<(Resource, u64)>,
    /// What Landlock allows; everything else is denied. Empty: this kernel has no Landlock.
    pub landlock: Vec<(PathBuf, Access)>,
}

/// A resource of `setrlimit(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the kernel's")]
pub enum Resource {
    Core,
    Cpu,
    Data,
    FileSize,
    MemLock,
    MsgQueue,
    Nice,
    NoFile,
    NProc,
    RtPrio,
    SigPending,
    Stack,
}

/// What may be done beneath a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and execute.
    Read,
    /// Read and write, but make nothing new: devices.
    Use,
    /// Everything.
    Write,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program, as an absolute path in the box.
    pub program: PathBuf,
    /// Its arguments, the first being its name.
    pub argv: Vec<Vec<u8>>,
    /// Its whole environment, `NAME=value` each.
    pub env: Vec<Vec<u8>>,
    /// Its working directory.
    pub cwd: PathBuf,
}

impl Step {
    /// The part of the host that it shows: its place in [`Plan::sources`].
    #[must_use]
    pub fn source(&self) -> Option<u16> {
        if let Step::Bind { source, .. } | Step::Workspace { source, .. } = self {
            Some(*source)
        } else {
            None
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.birth {
            Birth::Executed => writeln!(f, "enter     user pid mount net ipc uts")?,
            Birth::Forked { by } => writeln!(f, "enter     user (owned by host {by}) pid mount net ipc uts")?,
            Birth::Zygote => writeln!(f, "enter     mount net ipc uts")?,
        }
        if let Some(init) = self.identity.init {
            writeln!(f, "identity  init {} (host {})", init.inside, init.outside)?;
        }
        writeln!(f, "identity  code {} (host {})", self.identity.code.inside, self.identity.code.outside)?;
        match &self.cgroup {
            CgroupEntry::None => {}
            CgroupEntry::V1 { tasks } => {
                tasks.iter().try_for_each(|file| writeln!(f, "cgroup    {}", file.display()))?;
            }
            CgroupEntry::V2 { dir } => writeln!(f, "cgroup    {}", dir.display())?,
        }
        for step in self.foundation.iter().chain(&self.build) {
            self.show_step(f, step)?;
        }
        for (resource, limit) in &self.confinement.rlimits {
            writeln!(f, "rlimit    {resource:?} {limit}")?;
        }
        for (path, access) in &self.confinement.landlock {
            writeln!(f, "landlock  {access:?} {}", path.display())?;
        }
        writeln!(f, "confine   capabilities none, no_new_privs, seccomp standard, then read them back")?;
        let words: Vec<_> = self.command.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
        writeln!(f, "run       {} in {}", words.join(" "), self.command.cwd.display())
    }
}

impl Plan {
    /// Whether everything of the host that the box shows is in the foundation, so that it can be built on a template.
    #[must_use]
    pub fn takes_template(&self) -> bool {
        let shows_host = |step: &Step| step.source().is_some();
        self.birth != Birth::Zygote && self.opener == Opener::Keeper && !self.build.iter().any(shows_host)
    }

    /// Whether its program gets its code later, and with it whatever else could not be known before.
    pub(crate) fn waits_for_code(&self) -> bool {
        self.build.iter().any(|step| matches!(step, Step::Pipe(_)))
    }

    fn show_step(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        let source = |index: u16| self.sources.get(usize::from(index)).map(|path| path.display());
        match step {
            Step::JoinCgroup => writeln!(f, "join      cgroup"),
            Step::HideCgroup => writeln!(f, "enter     cgroup"),
            Step::Hostname(name) => writeln!(f, "hostname  {name}"),
            Step::Loopback => writeln!(f, "loopback  up"),
            Step::Uplink => writeln!(f, "uplink    eth0, its other end to the gateway"),
            Step::PrivateMounts => writeln!(f, "private   mounts"),
            Step::Root => writeln!(f, "root      tmpfs"),
            Step::Directory(path) => writeln!(f, "directory {}", path.display()),
            Step::File(path, content) => {
                writeln!(f, "file      {} ({} bytes)", path.display(), content.len())
            }
            Step::Cover(path, content) => {
                writeln!(f, "cover     {} ({} bytes)", path.display(), content.len())
            }
            Step::Symlink { path, target } => {
                writeln!(f, "link      {} -> {}", path.display(), target.display())
            }
            Step::Bind { source: index, path, mode } => {
                let word = match mode {
                    BindMode::ReadOnly => "ro       ",
                    BindMode::Device => "device   ",
                };
                match source(*index) {
                    Some(from) if *from.to_string() != *path.display().to_string() => {
                        writeln!(f, "{word} {} (host {from})", path.display())
                    }
                    _ => writeln!(f, "{word} {}", path.display()),
                }
            }
            Step::Scratch { size, files, parts } => {
                writeln!(f, "scratch   tmpfs of {size} bytes, {files} files")?;
                parts.iter().try_for_each(|part| {
                    let noexec = if part.executable { "" } else { " noexec" };
                    writeln!(f, "rw        {} {:o}{noexec}", part.path.display(), part.mode)
                })
            }
            Step::Workspace { source: index, path, files, writable, .. } => {
                let word = if *writable { "layer" } else { "ro   " };
                let from = source(*index).map(|from| from.to_string()).unwrap_or_default();
                writeln!(f, "{word}     {} (host {from})", path.display())?;
                show_inputs(f, path, files)
            }
            Step::Inputs { dir, files } => show_inputs(f, dir, files),
            Step::Pipe(path) => writeln!(f, "pipe      {}", path.display()),
            Step::Proc => writeln!(f, "proc      /proc\nsockets   keep less that is not charged"),
            Step::DescribeMachine(files) => {
                writeln!(f, "hide      /proc, except own processes")?;
                writeln!(f, "show      /proc/meminfo (the box's)")?;
                files.iter().try_for_each(|ProcFile { name, content }| match content {
                    ProcContent::Own => writeln!(f, "show      /proc/{name} (the box's)"),
                    ProcContent::Kernel => writeln!(f, "show      /proc/{name} (the kernel's)"),
                })
            }
            Step::Terminals { max } => writeln!(f, "terminals /dev/pts, at most {max}"),
            Step::Pivot => writeln!(f, "pivot     root, detach the host's"),
            Step::SealRoot => writeln!(f, "seal      / read-only"),
            Step::Offer(path) => writeln!(f, "offer     {} to the collector", path.display()),
            Step::OfferLayer => writeln!(f, "offer     the layer to the collector"),
        }
    }
}

fn show_inputs(f: &mut fmt::Formatter<'_>, dir: &std::path::Path, files: &[Input]) -> fmt::Result {
    files.iter().try_for_each(|file| {
        writeln!(f, "input     {} ({} bytes)", dir.join(&file.path).display(), file.length)
    })
}
