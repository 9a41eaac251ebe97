//! What a box contains: turns a request into a [`Plan`]. Pure, except for checking which parts of the host exist.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_core::Field;
use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec, Work};
use belljar_core::language::Rehearsal;
use belljar_core::path::{BoxPath, Workspace, Writes};
use belljar_core::request::{InputFile, Network};
use belljar_host::program::{self, Places, check_workspace, name_source};
use belljar_host::runtimes::{BASE_SYSTEM, Runtime};
use belljar_jail::plan::{
    Access, BindMode, Birth, CgroupEntry, Confinement, Identity, Input, Opener, Plan, Resource, ScratchPart,
    Step,
};

use crate::machine;
use crate::network::resolver_configuration;

/// The directory that is always writable, and the home of the code's user.
pub(crate) const SANDBOX: &str = "/sandbox";
const WORK: &str = "/work";
const TMP: &str = "/tmp";
/// What the code can write to: paths, permission bits, and whether files there may be executed.
const SCRATCH: &[(&str, u32, bool)] =
    &[(SANDBOX, 0o755, true), (TMP, 0o1777, true), ("/dev/shm", 0o1777, false)];

const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "fd/0"),
    ("/dev/stdout", "fd/1"),
    ("/dev/stderr", "fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];
const TERMINALS: &str = "/dev/pts";
/// How many pseudo-terminals a box may have at a time. Each may hold up to 150 KiB of kernel memory that is not charged
/// to the box, and the host has a few thousand of them for all boxes.
const MAX_TERMINALS: u32 = 16;

/// `/etc` as the box sees it: nothing of the host's users, names or machine.
const ETC: &[(&str, &str)] = &[
    (
        "/etc/passwd",
        "root:x:0:0:root:/:/usr/sbin/nologin\n\
         sandbox:x:1000:1000:sandbox:/sandbox:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("/etc/group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost belljar\n::1 localhost belljar\n"),
    ("/etc/hostname", "belljar\n"),
    (
        "/etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n\
         networks: files\n",
    ),
    ("/etc/services", include_str!("etc/services")),
    ("/etc/protocols", include_str!("etc/protocols")),
    ("/etc/networks", "default 0.0.0.0\nloopback 127.0.0.0\nlink-local 169.254.0.0\n"),
    ("/etc/mime.types", include_str!("etc/mime.types")),
    ("/etc/timezone", "Etc/UTC\n"),
];

/// The time zone of every box, for programs that look here instead of at `TZ`.
const LOCAL_TIME: (&str, &str) = ("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC");

/// The uid of the code inside every box.
pub(crate) const CODE_ID: u32 = 1000;

/// What a plan is made from, besides the request.
pub(crate) struct Ground<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) identity: Identity,
    pub(crate) opener: Opener,
    pub(crate) cgroup: CgroupEntry,
    /// Cgroup directories that the keeper removes if we die.
    pub(crate) orphans: Vec<PathBuf>,
    pub(crate) landlock: bool,
    pub(crate) base: Arc<BaseSystem>,
}

/// The parts of this host that every box shows: a link as the same link, anything else read-only. A box does not have
/// what the host does not have.
#[derive(Debug)]
pub(crate) struct BaseSystem(Vec<(&'static Path, Part)>);

#[derive(Debug)]
enum Part {
    Link(PathBuf),
    Shown,
}

impl BaseSystem {
    /// Reads the current state.
    pub(crate) fn look() -> Arc<BaseSystem> {
        let part = |path: &'static Path| match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => Some((path, Part::Link(std::fs::read_link(path).ok()?))),
            Ok(_) => Some((path, Part::Shown)),
            Err(_) => None,
        };
        Arc::new(BaseSystem(BASE_SYSTEM.iter().map(Path::new).filter_map(part).collect()))
    }
}

/// A plan, and the contents of the files in it.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) plan: Plan,
    pub(crate) contents: Vec<u8>,
    /// The name of the code's own file in the working directory.
    pub(crate) source: BoxPath,
    pub(crate) base: Arc<BaseSystem>,
    /// A template to build it on, which has the foundation that the plan then lacks.
    pub(crate) template: Option<Arc<OwnedFd>>,
}

impl Draft {
    /// Takes the foundation from a template.
    pub(crate) fn build_on(&mut self, template: Arc<OwnedFd>) {
        self.template = Some(template);
        (self.plan.foundation, self.plan.sources) = (Vec::new(), Vec::new());
    }
}

/// When the code and its files are supplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supply {
    /// With the plan.
    Now,
    /// When the box exists: until then, a pipe takes the place of the code. Not with a workspace, to which nothing can
    /// be added.
    Later,
}

/// Everything that will be done for one run, in order.
pub(crate) fn draft(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    supply: Supply,
    ground: Ground<'_>,
) -> Result<Draft, BackendError> {
    check_workspace(sandbox)?;
    let source = name_source(sandbox, execution)?;
    let (files, mut contents) = match supply {
        Supply::Now => inputs(sandbox, execution, &source)?,
        Supply::Later => (Vec::new(), Vec::new()),
    };
    let program = match &execution.work {
        Work::Run(program) if !program.files().is_empty() => Some(put_all(program.files(), &mut contents)),
        Work::Run(_) | Work::Compile => None,
    };
    let rehearsal = execution.language.parking.and_then(|parking| parking.rehearsal);
    let mut layout = Layout::default();
    layout.put_system(&ground.base, rehearsal, &machine::proc_files(&sandbox.limits));
    let in_scratch = |path: &&PathBuf| SCRATCH.iter().any(|(part, ..)| path.starts_with(part));
    let (late, early): (Vec<_>, Vec<_>) = ground.runtime.mounts.iter().partition(in_scratch);
    early.into_iter().for_each(|path| layout.bind(path, BindMode::ReadOnly));
    let foundation = std::mem::take(&mut layout.steps);

    layout.step(Step::Hostname("belljar".into()));
    layout.step(Step::Loopback);
    if sandbox.network != Network::None {
        layout.step(Step::Uplink);
    }
    // What comes before costs the same for every run; what comes after belongs to this run and is charged to it.
    if matches!(ground.cgroup, CgroupEntry::V1 { .. }) {
        layout.step(Step::JoinCgroup);
    }
    layout.step(Step::HideCgroup);
    layout.step(scratch(sandbox));
    late.into_iter().for_each(|path| layout.bind(path, BindMode::ReadOnly));
    match (supply, &sandbox.workspace) {
        (Supply::Later, None) => layout.step(Step::Pipe(Path::new(SANDBOX).join(source.as_str()))),
        _ => layout.put_work(sandbox, files, ground.opener),
    }
    if let Some(files) = program {
        layout.step(Step::Inputs { dir: TMP.into(), files });
    }
    layout.step(Step::Terminals { max: MAX_TERMINALS });
    layout.step(Step::Proc);
    layout.step(Step::Pivot);
    layout.step(Step::SealRoot);
    layout.step(Step::DescribeMachine(machine::shown_in_proc()));
    if let Some(offer) = offer(sandbox, execution, supply) {
        layout.step(offer);
    }

    let confinement = confinement(sandbox, execution, &ground);
    let places = Places { home: SANDBOX.into(), cwd: working_dir(sandbox), tmp: TMP.into() };
    let mut command = program::command(sandbox, execution, ground.runtime, &source, &places);
    if let (Supply::Later, Some(rehearsal)) = (supply, rehearsal) {
        command.env.push(rehearsal.variable.as_bytes().to_vec());
    }
    let plan = Plan {
        birth: Birth::Executed,
        identity: ground.identity,
        cgroup: ground.cgroup,
        orphans: ground.orphans,
        sources: layout.sources,
        opener: ground.opener,
        foundation,
        build: layout.steps,
        meminfo: machine::meminfo(&sandbox.limits),
        confinement,
        command,
        exit_listener: false,
    };
    Ok(Draft { plan, contents, source, base: ground.base, template: None })
}

/// A plan under construction.
#[derive(Default)]
struct Layout {
    sources: Vec<PathBuf>,
    steps: Vec<Step>,
}

impl Layout {
    /// What is the same for every box: the system's programs and libraries, devices, and a small `/etc`.
    fn put_system(
        &mut self,
        base: &BaseSystem,
        rehearsal: Option<Rehearsal>,
        machine: &[(&'static str, String)],
    ) {
        self.step(Step::PrivateMounts);
        self.step(Step::Root);
        self.show(base);
        DEVICES.iter().for_each(|path| self.bind(Path::new(path), BindMode::Device));
        for (path, target) in DEVICE_LINKS {
            self.step(Step::Symlink { path: path.into(), target: target.into() });
        }
        for (path, content) in ETC {
            self.step(Step::File(path.into(), content.as_bytes().to_vec()));
        }
        let resolver = resolver_configuration().into_bytes();
        self.step(Step::File("/etc/resolv.conf".into(), resolver));
        self.step(Step::Symlink { path: LOCAL_TIME.0.into(), target: LOCAL_TIME.1.into() });
        if let Some(rehearsal) = rehearsal {
            self.step(Step::File(rehearsal.path.into(), rehearsal.script.as_bytes().to_vec()));
        }
        for path in [TERMINALS].into_iter().chain(SCRATCH.iter().map(|(path, ..)| *path)) {
            self.step(Step::Directory(path.into()));
        }
        for (name, text) in machine {
            self.step(Step::File(Path::new("/proc").join(name), text.clone().into_bytes()));
        }
    }

    /// The working directory with the run's files: of its own, or the caller's workspace.
    fn put_work(&mut self, sandbox: &SandboxSpec, files: Vec<Input>, opener: Opener) {
        let Some(workspace) = &sandbox.workspace else {
            return self.step(Step::Inputs { dir: SANDBOX.into(), files });
        };
        let source = self.source(workspace.as_path());
        let owner = match opener {
            Opener::Keeper => owner_of(workspace.as_path()),
            Opener::Init => None,
        };
        let writable = workspace.is_writable();
        self.step(Step::Workspace { source, path: WORK.into(), owner, files, writable });
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    fn source(&mut self, path: &Path) -> u16 {
        self.sources.push(path.to_owned());
        u16::try_from(self.sources.len() - 1).unwrap_or(u16::MAX)
    }

    fn bind(&mut self, path: &Path, mode: BindMode) {
        let source = self.source(path);
        self.step(Step::Bind { source, path: path.to_owned(), mode });
    }

    fn show(&mut self, base: &BaseSystem) {
        for (path, part) in &base.0 {
            match part {
                Part::Link(target) => {
                    self.step(Step::Symlink { path: path.into(), target: target.clone() });
                }
                Part::Shown => self.bind(path, BindMode::ReadOnly),
            }
        }
    }
}

/// What the caller reads afterwards, if anything.
fn offer(sandbox: &SandboxSpec, execution: &ExecutionSpec, supply: Supply) -> Option<Step> {
    if execution.work == Work::Compile {
        return Some(Step::Offer(TMP.into()));
    }
    let collects = !execution.collect.is_empty();
    match sandbox.workspace.as_ref().map_or(Writes::Refused, Workspace::writes) {
        Writes::Reported => Some(Step::OfferLayer),
        Writes::Discarded => collects.then_some(Step::OfferLayer),
        Writes::Refused => (collects || supply == Supply::Later).then(|| Step::Offer(SANDBOX.into())),
    }
}

/// One budget for everything that the code can write.
fn scratch(sandbox: &SandboxSpec) -> Step {
    let part = |(path, mode, executable): &(&str, u32, bool)| {
        let (path, mode, executable) = (PathBuf::from(path), *mode, *executable);
        ScratchPart { path, mode, executable }
    };
    Step::Scratch {
        size: sandbox.limits.disk.get(),
        files: sandbox.limits.max_files(),
        parts: SCRATCH.iter().map(part).collect(),
    }
}

fn confinement(sandbox: &SandboxSpec, execution: &ExecutionSpec, ground: &Ground<'_>) -> Confinement {
    // Where PID 1 cannot have its own user, it counts as one of the code's processes.
    let ours = u64::from(ground.identity.init.is_none());
    let mut rlimits = vec![
        // One byte is too small for a core file. Unlike zero, it also keeps the kernel from starting the host's crash
        // handler with the core of a box (core(5), "Piping core dumps to a program").
        (Resource::Core, 1),
        (Resource::FileSize, sandbox.limits.disk.get()),
        (Resource::MemLock, 0),
        (Resource::MsgQueue, 0),
        (Resource::Nice, 0),
        (Resource::NoFile, 1024),
        (Resource::NProc, u64::from(sandbox.limits.pids) + ours),
        (Resource::RtPrio, 0),
        (Resource::SigPending, 1024),
        (Resource::Stack, 8 << 20),
    ];
    if let Some(time) = execution.limits.cpu_time {
        // For each process, in whole seconds: a second line behind the check of all processes together.
        rlimits.push((Resource::Cpu, time.as_secs() + 2));
    }
    if ground.cgroup == CgroupEntry::None {
        // Better than nothing if the memory guarantee was waived: it bounds each process, not their sum.
        rlimits.push((Resource::Data, sandbox.limits.memory.get()));
    }
    let mut landlock = Vec::new();
    if ground.landlock {
        landlock.push((PathBuf::from("/"), Access::Read));
        let devices = DEVICES.iter().chain([&TERMINALS]);
        landlock.extend(devices.map(|path| (PathBuf::from(path), Access::Use)));
        landlock.extend(SCRATCH.iter().map(|(path, ..)| (PathBuf::from(path), Access::Write)));
        if sandbox.workspace.as_ref().is_some_and(Workspace::is_writable) {
            landlock.push((WORK.into(), Access::Write));
        }
    }
    Confinement { rlimits, landlock }
}

fn working_dir(sandbox: &SandboxSpec) -> PathBuf {
    PathBuf::from(if sandbox.workspace.is_some() { WORK } else { SANDBOX })
}

fn owner_of(dir: &Path) -> Option<(u32, u32)> {
    std::fs::metadata(dir).ok().map(|found| (found.uid(), found.gid()))
}

/// The files of the working directory, and their concatenated contents.
fn inputs(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    source: &BoxPath,
) -> Result<(Vec<Input>, Vec<u8>), BackendError> {
    let mut contents = Vec::new();
    let code = execution.source.to_put().map(|text| put(source, text, false, &mut contents));
    let mut inputs: Vec<Input> = code.into_iter().collect();
    inputs.extend(put_all(&execution.files, &mut contents));
    let pages: u64 = inputs.iter().map(|input| input.length.div_ceil(4096) * 4096).sum();
    let disk = sandbox.limits.disk;
    if pages > disk.get() {
        return Err(BackendError::Unusable {
            field: Field::Files,
            message: format!("the run's files need {pages} bytes, and --disk allows {disk}"),
            hint: format!("raise the limit: --disk {}M", (pages >> 20) + 16),
        });
    }
    Ok((inputs, contents))
}

fn put_all(files: &[InputFile], contents: &mut Vec<u8>) -> Vec<Input> {
    files.iter().map(|file| put(&file.path, &file.content, file.executable, contents)).collect()
}

fn put(path: &BoxPath, content: &[u8], executable: bool, contents: &mut Vec<u8>) -> Input {
    let (path, offset, length) = (path.as_str().into(), contents.len() as u64, content.len() as u64);
    contents.extend_from_slice(content);
    Input { path, offset, length, executable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::backend::{Compiled, Source};
    use belljar_core::guarantee::{Offer, Standing, resolve};
    use belljar_core::language::Language;
    use belljar_core::limits::{LimitsRequest, THREAD_VARIABLES};
    use belljar_core::outcome::CollectedFile;
    use belljar_core::request::{Arg, EnvVar, Glob, Stdin};
    use belljar_jail::plan::IdPair;

    fn sandbox(workspace: Option<&Path>) -> SandboxSpec {
        let everything = Offer::by_asking(|_| Standing::Kept { how: String::new() });
        SandboxSpec {
            limits: LimitsRequest::default().resolve().unwrap().0,
            network: Network::None,
            secrets: Vec::new(),
            workspace: workspace.map(|dir| Workspace::parse(dir).unwrap()),
            env: EnvVar::parse_all(vec![("TZ".into(), "CET".into())]).unwrap(),
            image: None,
            enforcement: resolve(&everything, &[]).unwrap(),
        }
    }

    fn execution(language: &str, files: &[&str]) -> ExecutionSpec {
        let language = Language::parse(language).unwrap();
        let file = |path: &&str| InputFile {
            path: BoxPath::parse(path).unwrap(),
            content: b"data".to_vec(),
            executable: false,
        };
        ExecutionSpec {
            id: "run_test".into(),
            language,
            source: Source {
                name: BoxPath::parse(language.source).unwrap(),
                named_by_caller: false,
                in_workspace: false,
                text: b"code".to_vec(),
            },
            args: Arg::parse_all(vec!["first".into()]).unwrap(),
            stdin: Stdin::Empty,
            files: files.iter().map(file).collect(),
            collect: vec![Glob::parse("*.png").unwrap()],
            limits: LimitsRequest::default().resolve().unwrap().1,
            work: Work::Run(Compiled::default()),
        }
    }

    fn draft_of(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<Draft, BackendError> {
        let runtime = Runtime {
            label: "Test 1.0".into(),
            program: "/opt/test/bin/test".into(),
            mounts: vec!["/opt/test".into()],
            beside: Vec::new(),
        };
        let ground = Ground {
            runtime: &runtime,
            identity: Identity {
                code: IdPair { inside: CODE_ID, outside: 70_001 },
                init: Some(IdPair { inside: 0, outside: 70_000 }),
            },
            opener: Opener::Keeper,
            cgroup: CgroupEntry::V1 { tasks: vec!["/cgroup/memory/box/tasks".into()] },
            orphans: Vec::new(),
            landlock: true,
            base: BaseSystem::look(),
        };
        draft(sandbox, execution, Supply::Now, ground)
    }

    /// Without what differs between hosts: which parts of `/usr` exist, and how long the files are that describe a CPU.
    fn shown(draft: &Draft) -> String {
        let of_the_host = |line: &&str| {
            let path = line.split_whitespace().nth(1).unwrap_or_default();
            BASE_SYSTEM.contains(&path) || line.starts_with("file") && path.starts_with("/proc/")
        };
        draft
            .plan
            .to_string()
            .lines()
            .filter(|line| !of_the_host(line))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    #[test]
    fn the_plan_of_a_plain_run() {
        let plan = draft_of(&sandbox(None), &execution("python", &["data/in.csv"])).unwrap();
        insta::assert_snapshot!(shown(&plan));
    }

    #[test]
    fn a_run_with_a_network_has_an_uplink_and_nothing_else_more() {
        let lines = |network: &str| {
            let network = Network::parse(network).unwrap();
            let plan =
                draft_of(&SandboxSpec { network, ..sandbox(None) }, &execution("python", &[])).unwrap();
            shown(&plan).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let (none, some) = (lines("none"), lines("allow:example.org"));
        let more: Vec<_> = some.iter().filter(|line| !none.contains(line)).collect();
        assert_eq!(more, ["uplink    eth0, its other end to the gateway"]);
        assert_eq!(lines("full"), some);
    }

    #[test]
    fn a_compiled_language_has_a_box_for_its_compiler_and_another_for_the_program() {
        let words = |plan: &Plan| {
            let words = plan.command.argv.iter().map(|word| String::from_utf8_lossy(word).into_owned());
            words.collect::<Vec<_>>()
        };
        let mut execution = execution("c", &[]);
        execution.work = Work::Compile;
        let compile = draft_of(&sandbox(None), &execution).unwrap().plan;
        assert!(words(&compile).contains(&"/sandbox/main.c".to_owned()), "{:?}", words(&compile));
        assert!(!words(&compile).contains(&"first".to_owned()), "the arguments are the program's");
        assert!(compile.build.contains(&Step::Offer("/tmp".into())));
        let made = CollectedFile { path: "main".into(), content: b"ELF".to_vec() };
        execution.work = Work::Run(Compiled::new(vec![made]));
        let Draft { plan, contents, .. } = draft_of(&sandbox(None), &execution).unwrap();
        assert_eq!(words(&plan), ["/tmp/main", "first"]);
        let offset = contents.len() as u64 - 3;
        let program = Input { path: "main".into(), offset, length: 3, executable: true };
        assert!(plan.build.contains(&Step::Inputs { dir: "/tmp".into(), files: vec![program] }));
        assert!(contents.ends_with(b"ELF"));
    }

    #[test]
    fn the_callers_variables_replace_ours() {
        let plan = draft_of(&sandbox(None), &execution("bash", &[])).unwrap().plan;
        let env = plan.command.env.iter().map(|text| String::from_utf8_lossy(text));
        let is_of_threads =
            |variable: &str| THREAD_VARIABLES.iter().any(|name| variable == format!("{name}=1"));
        let (of_threads, env): (Vec<_>, Vec<_>) = env.partition(|variable| is_of_threads(variable));
        assert_eq!(of_threads.len(), THREAD_VARIABLES.len());
        assert_eq!(
            env,
            [
                "HOME=/sandbox",
                "USER=sandbox",
                "LANG=C.UTF-8",
                "PATH=/opt/test/bin:/usr/local/bin:/usr/bin:/bin",
                "TZ=CET"
            ]
        );
    }

    #[test]
    fn a_default_name_gives_way_to_existing_files() {
        let dir = std::env::temp_dir().join(format!("belljar-layout-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("main.py"), "theirs").unwrap();
        let drafted = draft_of(&sandbox(Some(&dir)), &execution("python", &["main_1.py"]));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(drafted.unwrap().source.as_str(), "main_2.py");
    }

    #[test]
    fn a_workspace_that_is_the_root_by_another_name_is_refused() {
        let link = std::env::temp_dir().join(format!("belljar-root-{}", std::process::id()));
        std::os::unix::fs::symlink("/", &link).unwrap();
        let refused = draft_of(&sandbox(Some(&link)), &execution("python", &[]));
        std::fs::remove_file(&link).unwrap();
        assert!(
            matches!(refused, Err(BackendError::Unusable { field: Field::Workspace, .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn files_that_do_not_fit_are_refused_before_anything_is_built() {
        let mut execution = execution("python", &[]);
        execution.files.push(InputFile {
            path: BoxPath::parse("big").unwrap(),
            content: vec![0; 65 << 20],
            executable: false,
        });
        let refused = draft_of(&sandbox(None), &execution);
        assert!(matches!(refused, Err(BackendError::Unusable { field: Field::Files, .. })), "{refused:?}");
    }
}
