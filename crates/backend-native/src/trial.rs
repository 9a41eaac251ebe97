//! Trial boxes: real ones, with a trivial program in them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use belljar_core::backend::{Compiled, ExecutionSpec, SandboxSpec, Source, Work};
use belljar_core::guarantee::{Offer, Standing, resolve};
use belljar_core::language::Language;
use belljar_core::limits::LimitsRequest;
use belljar_core::path::BoxPath;
use belljar_core::request::{Network, Stdin};
use belljar_host::runtimes::Runtime;
use belljar_jail::Fault;
use belljar_jail::message::Reply;
use belljar_jail::plan::{CgroupEntry, Opener};
use rustix::fs::{Mode, OFlags};

use crate::ids;
use crate::keeper::{Keeper, OrderError, ProgramEnds};
use crate::layout::{self, BaseSystem, Draft, Ground, Supply};

/// Whether a box can be built and a program can run in it.
pub(crate) fn box_can_be_built(opener: Opener, landlock: bool) -> Result<(), Fault> {
    match run(opener, landlock, "exit 42", 50)? {
        status if status == 42 << 8 => Ok(()),
        _ => Err(Fault::with_errno("run a trial program in a box", 0)),
    }
}

/// Whether the kernel counts the processes of a user namespace separately (Linux 5.14), so that a limit on them is a
/// limit on the box: eight at a time are too many if four are allowed.
pub(crate) fn process_limit_holds(opener: Opener, landlock: bool) -> bool {
    let eight = "sleep 5 & sleep 5 & sleep 5 & sleep 5 & sleep 5 & sleep 5 & sleep 5 & sleep 5 & exit 0";
    let held = |pids| run(opener, landlock, eight, pids).is_ok_and(|status| status != 0);
    held(4) && !held(40)
}

/// Runs a shell script in a box without a cgroup; returns its wait status.
fn run(opener: Opener, landlock: bool, script: &str, pids: u64) -> Result<i32, Fault> {
    let mut keeper = Keeper::start().map_err(|error| Fault::new("start the keeper", &error))?;
    let draft = draft(opener, landlock, script, pids, keeper.id())?;
    order(&mut keeper, draft)
}

fn draft(opener: Opener, landlock: bool, script: &str, pids: u64, keeper: u32) -> Result<Draft, Fault> {
    let impossible = || Fault::with_errno("plan a trial box", 0);
    let limits = LimitsRequest {
        pids: Some(pids),
        timeout: Some(Duration::from_secs(10)),
        ..LimitsRequest::default()
    };
    let (box_limits, execution_limits) = limits.resolve().map_err(|_| impossible())?;
    let everything = Offer::by_asking(|_| Standing::Kept { how: String::new() });
    let sandbox = SandboxSpec {
        limits: box_limits,
        network: Network::None,
        secrets: Vec::new(),
        workspace: None,
        env: Vec::new(),
        image: None,
        enforcement: resolve(&everything, &[]).map_err(|_| impossible())?,
    };
    let execution = ExecutionSpec {
        id: "trial".into(),
        language: Language::by_name("sh").ok_or_else(impossible)?,
        source: Source {
            name: BoxPath::parse("main.sh").map_err(|_| impossible())?,
            named_by_caller: true,
            in_workspace: false,
            text: script.as_bytes().to_vec(),
        },
        args: Vec::new(),
        stdin: Stdin::Empty,
        files: Vec::new(),
        collect: Vec::new(),
        limits: execution_limits,
        work: Work::Run(Compiled::default()),
    };
    let runtime = Runtime {
        label: "sh".into(),
        program: PathBuf::from("/bin/sh"),
        mounts: Vec::new(),
        beside: Vec::new(),
    };
    let ground = Ground {
        runtime: &runtime,
        identity: ids::identity(opener, keeper),
        opener,
        cgroup: CgroupEntry::None,
        orphans: Vec::new(),
        landlock,
        base: BaseSystem::look(),
    };
    layout::draft(&sandbox, &execution, Supply::Now, ground).map_err(|_| impossible())
}

/// Orders one trial box, and returns its exit code.
fn order(keeper: &mut Keeper, draft: Draft) -> Result<i32, Fault> {
    let null = || -> io::Result<OwnedFd> {
        Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    };
    let cannot = |error: io::Error| Fault::new("send the plan of a trial box", &error);
    let [stdin, stdout, stderr] = [null(), null(), null()];
    let ends = ProgramEnds {
        stdin: stdin.map_err(cannot)?,
        stdout: stdout.map_err(cannot)?,
        stderr: stderr.map_err(cannot)?,
    };
    match keeper.order(draft.plan, &draft.contents, &ends, None) {
        Ok(()) => {}
        Err(OrderError::Unsent(error)) => return Err(cannot(error)),
        Err(OrderError::Failed(fault)) => return Err(fault),
    }
    let patience = Some(Duration::from_secs(10));
    let socket = keeper.socket().map_err(cannot)?;
    rustix::net::sockopt::set_socket_timeout(socket, rustix::net::sockopt::Timeout::Recv, patience)
        .map_err(|error| cannot(error.into()))?;
    loop {
        match keeper.hear().map_err(|error| Fault::new("receive the keeper's report", &error))? {
            Some((
                Reply::Supplied
                | Reply::Uplink
                | Reply::Template
                | Reply::Hired { .. }
                | Reply::Ready
                | Reply::Started
                | Reply::Listening,
                _,
            )) => {}
            Some((Reply::Failed { fault }, _)) => return Err(fault),
            Some((Reply::Deserted { status } | Reply::Ended { status, .. }, _)) => return Ok(status),
            None => {
                return Err(Fault::new("receive the keeper's report", &io::ErrorKind::BrokenPipe.into()));
            }
        }
    }
}
