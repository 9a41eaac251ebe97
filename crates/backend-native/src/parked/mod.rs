//! A parked box: built like any other, its runtime booted with the command line, environment, limits and confinement of
//! a cold run. It then stops at the one difference: the code's file is a pipe, and nothing has been written to it. When
//! the code arrives, a file replaces the pipe, and from there on it is a run like any other.
//!
//! Nothing is imitated here, so that a program finds what it would have found cold: the runtime starts as usual. What
//! was decided before the request was known must be what the request wants. To check that, the plan that would be made
//! for the request is compared with the plan from which the box was made.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::guarantee::Enforcement;
use belljar_core::language::Parking;
use belljar_core::limits::{BoxLimits, ExecutionLimits};
use belljar_core::outcome::Start;
use belljar_core::path::Writes;
use belljar_core::request::{InputFile, Stdin};
use belljar_egress::Order as Egress;
use belljar_host::runtimes::Runtime;
use belljar_host::stdin;
use belljar_jail::plan::{Birth, Confinement, Plan, Resource, Step};
use belljar_jail::{acting_as, with_files_of};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Rlimit;

use crate::cgroup::{BoxCgroup, CgroupError};
use crate::errors::setup;
use crate::execution::{NativeExecution, Terms};
use crate::layout::BaseSystem;
use crate::load;

/// How long a runtime may take to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(20);
/// How often to check whether it has booted, at first and at most.
const FIRST_LOOK: Duration = Duration::from_micros(250);
const LAST_LOOK: Duration = Duration::from_millis(20);
/// The most bytes of code and files that are written into a box from this process. Neither the memory nor the time for it
/// is charged to the box, so each file counts for more than its content. Beyond that, the keeper has the files written.
const MOST_INPUT: usize = 256 << 10;
const WEIGHT_OF_A_FILE: usize = 1024;
/// How many directories deep such a file may be.
const DEEPEST: usize = 8;
/// The name of the code's file until it replaces the pipe.
const ARRIVING: &str = ".arriving";

/// A box whose runtime waits for code. Dropping it destroys the box, which takes a moment.
pub(crate) struct Parked {
    execution: NativeExecution,
    /// What it was made from.
    terms: ParkedTerms,
    /// The pipe for the code. That it could be opened shows that the runtime reads at the other end.
    gate: OwnedFd,
    /// The write end of the program's stdin.
    stdin: OwnedFd,
    since: Instant,
    /// What it used until it was ready. It has done nothing since.
    usage: Usage,
    /// The memory of a runtime that booted in the box itself: memory shared with a zygote is not counted there.
    booted: u64,
}

/// What a box that is ready uses.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    memory: u64,
    /// Processes and threads, including PID 1.
    tasks: u64,
    /// CPU time until now.
    cpu: Duration,
}

impl Usage {
    /// From now on the box has its normal share of the CPUs.
    fn of(cgroup: &BoxCgroup) -> Result<Usage, CgroupError> {
        cgroup.stop_giving_way()?;
        Ok(Usage { memory: cgroup.memory_in_use()?, tasks: cgroup.tasks()?, cpu: cgroup.cpu_used()? })
    }
}

/// What a parked box was made from.
pub(crate) struct ParkedTerms {
    pub(crate) plan: Arc<Plan>,
    pub(crate) base: Arc<BaseSystem>,
    pub(crate) limits: BoxLimits,
    pub(crate) execution_limits: ExecutionLimits,
    pub(crate) enforcement: Enforcement,
    pub(crate) runtime: Stamped,
}

impl ParkedTerms {
    /// Whether a request that [`could_suit`] has the limits with which the box was made. Then its plan cannot differ,
    /// and need not be made.
    pub(crate) fn have_limits_of(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> bool {
        // How much may be collected is no part of a plan, and nothing here is compiled.
        let ExecutionLimits { collected, compile, .. } = self.execution_limits;
        let execution_limits = ExecutionLimits { collected, compile, ..execution.limits };
        (sandbox.limits, execution_limits) == (self.limits, self.execution_limits)
    }
}

/// A runtime, with a stamp that shows whether its program has been replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamped {
    runtime: Runtime,
    /// Device, inode, and when it was last changed.
    stamp: Option<Stamp>,
}

pub(crate) type Stamp = (u64, u64, i64, i64);

pub(crate) fn stamp(program: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(program).ok()?;
    Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

impl Stamped {
    pub(crate) fn new(runtime: Runtime) -> Stamped {
        let stamp = stamp(&runtime.program);
        Stamped { runtime, stamp }
    }

    /// Whether its program is still the same file.
    pub(crate) fn is_as_it_was(&self) -> bool {
        self.stamp == stamp(&self.runtime.program)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

impl Parked {
    /// Waits until the runtime in a new box has booted and reads its code. `shared` is the memory of the zygote that it
    /// comes from, if it does.
    pub(crate) async fn when_booted(
        execution: NativeExecution,
        terms: ParkedTerms,
        source: &str,
        primer: &[u8],
        stdin: OwnedFd,
        shared: u64,
    ) -> Result<Parked, BackendError> {
        let mut execution = execution;
        let gate = match terms.plan.birth {
            Birth::Forked { .. } => execution.approve_program().await?,
            Birth::Executed | Birth::Zygote => wait_for_reader(&mut execution, source, primer).await?,
        };
        let usage = execution.cgroup().map(Usage::of).transpose();
        let uncounted =
            |error: CgroupError| setup("read the counters of a parked box")(io::Error::other(error));
        let usage = usage.map_err(uncounted)?.unwrap_or_default();
        let booted = usage.memory.max(shared);
        Ok(Parked { execution, terms, gate, stdin, since: Instant::now(), usage, booted })
    }

    /// What it was made from.
    pub(crate) fn terms(&self) -> &ParkedTerms {
        &self.terms
    }

    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The memory that it used when it was ready, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.usage.memory
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.execution.lives()
    }

    /// Whether what it already uses is within these limits, with the files that it gets. If not, the runtime could not
    /// have booted in a box with these limits.
    pub(crate) fn fits_into(&self, limits: &BoxLimits, execution: &ExecutionSpec) -> bool {
        let files = if are_heavy(execution) { on_disk(execution) } else { 0 };
        limits.memory.get() > self.booted.saturating_add(files)
            && u64::from(limits.pids) + 1 >= self.usage.tasks
    }

    /// Gives it the code and files of a request, and makes it the run of that request. `wanted` is the plan that would
    /// be made for the request, which [`suits`] has approved; `egress` is what its gateway is to do, if it has a network.
    /// A box that is returned has not started the code, and is of no more use.
    pub(crate) async fn supply(
        mut self,
        start: Start,
        wanted: &Plan,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
        egress: Option<Egress>,
    ) -> Result<Result<NativeExecution, BackendError>, Box<Parked>> {
        match self.begin(wanted, sandbox, execution, egress).await {
            Ok(poured) => Ok(self.go_on(start, poured, sandbox, execution)),
            Err(_) => Err(Box::new(self)),
        }
    }

    /// Everything up to the first byte of the code. Returns how much of the code is in the pipe.
    async fn begin(
        &mut self,
        wanted: &Plan,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
        egress: Option<Egress>,
    ) -> io::Result<usize> {
        if !self.execution.lives() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(egress) = egress {
            self.execution.connect_late(egress).await?;
        }
        self.take_limits(wanted, &sandbox.limits)?;
        if are_heavy(execution) {
            let files = std::mem::take(&mut execution.files);
            let written = self.execution.have_written(&files).await;
            execution.files = files;
            written?;
            self.write_files(execution, &[])?;
        } else {
            self.write_files(execution, &execution.files)?;
        }
        let pour = || stdin::pour(&self.gate, &execution.source.text);
        // Closing the gate marks the end of the code.
        let reads_first = execution.language.parking.is_some_and(|parking| parking.reads_first);
        match self.execution.program() {
            Some(program) if reads_first && load::is_about_one() => program.wake_elsewhere(pour),
            _ => pour(),
        }
    }

    /// The code has been sent: whatever happens from here on belongs to the run.
    fn go_on(
        self,
        start: Start,
        poured: usize,
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
    ) -> Result<NativeExecution, BackendError> {
        let Parked { execution: mut running, terms: ParkedTerms { runtime, .. }, gate, stdin, usage, .. } =
            self;
        let code = std::mem::take(&mut execution.source.text);
        stdin::feed_rest(gate, code, poured).map_err(setup("write the code into the box"))?;
        let input = std::mem::replace(&mut execution.stdin, Stdin::Empty);
        stdin::feed(stdin, input).map_err(setup("feed stdin"))?;
        let terms = Terms {
            runtime: runtime.runtime.label,
            limits: sandbox.limits,
            cpu_time: execution.limits.cpu_time,
            collect: std::mem::take(&mut execution.collect),
            collected: execution.limits.collected,
            writes: Writes::Refused,
            // If it has a network, its gateway is connected already.
            gateway: None,
        };
        running.become_run(start, terms, usage.cpu);
        Ok(running)
    }

    /// Changes the limits that the kernel lets others change while a process lives.
    fn take_limits(&self, wanted: &Plan, limits: &BoxLimits) -> io::Result<()> {
        let cgroup = self.execution.cgroup().ok_or(io::ErrorKind::NotFound)?;
        if *limits != self.terms.limits {
            cgroup.relimit(&self.terms.limits, limits).map_err(io::Error::other)?;
        }
        if wanted.meminfo != self.terms.plan.meminfo {
            self.execution.rewrite_meminfo(&wanted.meminfo)?;
        }
        let before = &self.terms.plan.confinement.rlimits;
        let changed: Vec<_> =
            wanted.confinement.rlimits.iter().filter(|limit| !before.contains(limit)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        // PID 1 is among them, but these limits do not affect it: it may only wait. A process id could belong to
        // another process by now only if all other ids had been used since it was read.
        let limit_all = || {
            let processes = cgroup.processes()?;
            if processes.is_empty() {
                return Err(io::ErrorKind::NotFound.into());
            }
            for process in processes {
                for (resource, limit) in changed.iter().copied() {
                    let limit = Rlimit { current: Some(*limit), maximum: Some(*limit) };
                    rustix::process::prlimit(Some(process), kernels(*resource)?, limit)?;
                }
            }
            Ok(())
        };
        match self.terms.plan.birth {
            Birth::Forked { by } => acting_as(by, limit_all),
            Birth::Executed | Birth::Zygote => limit_all(),
        }
    }

    /// Puts the code's file in the pipe's place, and the other files beside it. This is done as the code's own user:
    /// the files belong to it, and nothing can be written that the code could not have written.
    fn write_files(&self, execution: &ExecutionSpec, files: &[InputFile]) -> io::Result<()> {
        let dir = self.execution.working_dir().ok_or(io::ErrorKind::NotFound)?;
        with_files_of(self.terms.plan.identity.code.outside, || {
            write_new(dir, Path::new(ARRIVING), &execution.source.text, false)?;
            rustix::fs::renameat(dir, ARRIVING, dir, execution.source.name.as_str())?;
            files.iter().try_for_each(|file| {
                let path = Path::new(file.path.as_str());
                make_parents(dir, path)?;
                write_new(dir, path, &file.content, file.executable)
            })
        })
    }
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked")
            .field("since", &self.since)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

/// Whether a request could be run in a parked box at all, before one is looked at. If not, why.
pub(crate) fn could_suit(
    parking: &Parking,
    parked: &BoxLimits,
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
) -> Result<(), &'static str> {
    let ExecutionSpec { source, files, .. } = execution;
    let late = |file: &InputFile| parking.has_looked_for(file.path.as_str());
    let in_the_way = |file: &InputFile| file.path.as_str().split('/').next() == Some(parking.source);
    let obstacles = [
        (sandbox.workspace.is_some(), "a workspace is mounted while a box is made"),
        (sandbox.image.is_some(), "the run names an image"),
        (
            !sandbox.secrets.is_empty(),
            "the certificates of a run with secrets are mounted while its box is made",
        ),
        (sandbox.limits.disk != parked.disk, "limits.disk_bytes is not that of the pool's boxes"),
        (source.named_by_caller, "the file of the code has a name of its own"),
        (
            source.name.as_str() != parking.source,
            "the code is a module, which its runtime must know when it starts",
        ),
        (!parking.takes(&source.text), "the code cannot be read from a pipe, or is too long for it"),
        (files.iter().any(in_the_way), "a file has the name of the code's own"),
        (files.iter().any(late), "a file has a name that the runtime looks for when it starts"),
        (source.text.len() > MOST_INPUT, "the code is too long to be written into a box from outside"),
        (on_disk(execution) > sandbox.limits.disk.get(), "the files do not fit into limits.disk_bytes"),
    ];
    obstacles.into_iter().find(|(is_met, _)| *is_met).map_or(Ok(()), |(_, why)| Err(why))
}

/// What code and files take in a box, in whole pages.
fn on_disk(execution: &ExecutionSpec) -> u64 {
    let pages = |length: usize| (length as u64).div_ceil(4096) * 4096;
    let files = execution.files.iter().map(|file| pages(file.content.len()));
    pages(execution.source.text.len()) + files.sum::<u64>()
}

/// Whether the files are so much that they have to be written by a process in the box's cgroup: what this process
/// writes is charged to nobody's limit.
pub(crate) fn are_heavy(execution: &ExecutionSpec) -> bool {
    let weight = |file: &InputFile| file.content.len() + file.path.as_str().len() + WEIGHT_OF_A_FILE;
    let deep = |file: &InputFile| file.path.parents().count() > DEEPEST;
    let ExecutionSpec { source, files, .. } = execution;
    source.text.len() + files.iter().map(weight).sum::<usize>() > MOST_INPUT || files.iter().any(deep)
}

/// Whether a box made from these terms suits a request for which this plan would be made: whatever can no longer be
/// changed must be the same.
pub(crate) fn suits(terms: &ParkedTerms, wanted: &Plan, sandbox: &SandboxSpec) -> bool {
    (std::ptr::eq(&*terms.plan, wanted) || is_equivalent(&terms.plan, wanted))
        && terms.enforcement == sandbox.enforcement
}

fn is_equivalent(made: &Plan, wanted: &Plan) -> bool {
    // How the runtime got there, and how its end is noticed, makes no difference. `meminfo` can be rewritten.
    let Plan {
        birth: _,
        exit_listener: _,
        meminfo: _,
        identity,
        cgroup,
        orphans,
        sources,
        opener,
        foundation,
        build,
        confinement,
        command,
    } = made;
    let Confinement { landlock, rlimits: _ } = confinement;
    // A box that waits gets its uplink with its code.
    let comes_now = |step: &&Step| **step != Step::Uplink;
    (identity, cgroup, orphans, sources, opener, foundation, command, landlock)
        == (
            &wanted.identity,
            &wanted.cgroup,
            &wanted.orphans,
            &wanted.sources,
            &wanted.opener,
            &wanted.foundation,
            &wanted.command,
            &wanted.confinement.landlock,
        )
        && build.iter().eq(wanted.build.iter().filter(comes_now))
        && rlimits_can_change(made, wanted)
}

/// Only limits that depend on the request may differ; none may be removed or raised, because not every user may do
/// that.
fn rlimits_can_change(made: &Plan, wanted: &Plan) -> bool {
    let (made, wanted) = (&made.confinement.rlimits, &wanted.confinement.rlimits);
    let limit_of = |rlimits: &[(Resource, u64)], resource: Resource| {
        rlimits.iter().find(|(of, _)| *of == resource).map(|(_, limit)| *limit)
    };
    let stays = |(resource, _): &(Resource, u64)| limit_of(wanted, *resource).is_some();
    let can_change = |(resource, limit): &(Resource, u64)| {
        let lowers = limit_of(made, *resource).is_none_or(|before| *limit <= before);
        kernels(*resource).is_ok() && lowers
    };
    let mut changed = wanted.iter().filter(|limit| !made.contains(limit));
    made.iter().all(stays) && changed.all(can_change)
}

/// The limits that can be changed from outside.
fn kernels(resource: Resource) -> io::Result<rustix::process::Resource> {
    match resource {
        Resource::Cpu => Ok(rustix::process::Resource::Cpu),
        Resource::NProc => Ok(rustix::process::Resource::Nproc),
        Resource::Core
        | Resource::Data
        | Resource::FileSize
        | Resource::MemLock
        | Resource::MsgQueue
        | Resource::Nice
        | Resource::NoFile
        | Resource::RtPrio
        | Resource::SigPending
        | Resource::Stack => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A pipe can be opened for writing without blocking only when a process has it open for reading.
async fn wait_for_reader(
    execution: &mut NativeExecution,
    source: &str,
    primer: &[u8],
) -> Result<OwnedFd, BackendError> {
    let mut waiting = Waiting::begin();
    let gate = loop {
        match open_gate(execution, source) {
            Ok(gate) => break gate,
            Err(Errno::NXIO) => waiting.look_again_later(execution).await?,
            Err(error) => return Err(not_waiting(error)),
        }
    };
    if !primer.is_empty() {
        rustix::io::write(&gate, primer).map_err(not_waiting)?;
        while rustix::io::ioctl_fionread(&gate).map_err(not_waiting)? > 0 {
            waiting.look_again_later(execution).await?;
        }
    }
    Ok(gate)
}

/// Polls whether a runtime has booted, less and less often.
struct Waiting {
    began: Instant,
    pause: Duration,
}

impl Waiting {
    fn begin() -> Waiting {
        Waiting { began: Instant::now(), pause: FIRST_LOOK }
    }

    async fn look_again_later(&mut self, execution: &mut NativeExecution) -> Result<(), BackendError> {
        if !execution.lives() {
            return Err(not_waiting(Errno::PIPE));
        }
        if self.began.elapsed() >= BOOT_LIMIT {
            return Err(not_waiting(Errno::TIMEDOUT));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LAST_LOOK);
        Ok(())
    }
}

fn not_waiting(error: Errno) -> BackendError {
    setup("wait for the runtime of a parked box")(error.into())
}

fn open_gate(execution: &NativeExecution, source: &str) -> rustix::io::Result<OwnedFd> {
    let dir = execution.working_dir().ok_or(Errno::NOENT)?;
    open(dir, Path::new(source), OFlags::WRONLY | OFlags::NONBLOCK, 0)
}

/// Makes a small file in the working directory of a box in which no code runs yet, as the code's own user.
pub(crate) fn leave_file(dir: BorrowedFd<'_>, code: u32, name: &str, content: &[u8]) -> io::Result<()> {
    with_files_of(code, || write_new(dir, Path::new(name), content, false))
}

fn make_parents(dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let parents: Vec<_> = path.parent().into_iter().flat_map(Path::ancestors).collect();
    for parent in parents.into_iter().rev().filter(|parent| !parent.as_os_str().is_empty()) {
        if open(dir, parent, OFlags::DIRECTORY, 0).is_ok() {
            continue;
        }
        let within =
            parent.parent().filter(|within| !within.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let within = open(dir, within, OFlags::DIRECTORY, 0)?;
        let Some(Component::Normal(name)) = parent.components().next_back() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        rustix::fs::mkdirat(&within, name, Mode::from_raw_mode(0o755))?;
        rustix::fs::fchmod(
            open(within.as_fd(), Path::new(name), OFlags::DIRECTORY, 0)?,
            Mode::from_raw_mode(0o755),
        )?;
    }
    Ok(())
}

fn write_new(dir: BorrowedFd<'_>, path: &Path, content: &[u8], executable: bool) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let file = open(dir, path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
    // Independent of this process's umask.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    std::fs::File::from(file).write_all(content)
}

fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(dir, path, flags, Mode::from_raw_mode(mode), beneath)
}

#[cfg(test)]
mod tests;
