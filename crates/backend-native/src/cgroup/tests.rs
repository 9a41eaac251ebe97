//! The guarantees, enforced by the kernel that this runs on: cgroup v1 or v2, root or an ordinary user with a systemd
//! manager. A host that cannot enforce them fails these tests, and the failure says why.

use std::mem;
use std::process::{Child, Command, Stdio};
use std::thread;

use belljar_core::limits::LimitsRequest;
use belljar_jail::plan::CgroupEntry;

use super::limits::Bandwidth;
use super::v2::{Claim, Ground};
use super::*;

/// The cgroups of this host, with a separate directory for the boxes of this test.
fn cgroups(test: &str) -> Cgroups {
    let cgroups =
        Cgroups::probe_beneath(&format!("belljar-test-{}-{test}", std::process::id()), &Settings::default());
    for guarantee in Verdicts::GUARANTEES {
        let standing = cgroups.standing(guarantee);
        assert!(
            matches!(standing, Standing::Kept { .. }),
            "these tests need root, or a delegated cgroup v2: {standing:?}"
        );
    }
    cgroups
}

fn limits(request: LimitsRequest) -> BoxLimits {
    request.resolve().unwrap().0
}

fn new_box(cgroups: &Cgroups, request: LimitsRequest) -> BoxCgroup {
    cgroups.create(&BoxName::next().unwrap(), &limits(request)).unwrap()
}

/// Starts a shell that enters the box as the jail would and then does `script`.
fn start(cgroup: &BoxCgroup, script: &str) -> Child {
    let doors = match cgroup.entry() {
        CgroupEntry::V1 { tasks } => tasks,
        CgroupEntry::V2 { dir } => vec![dir.join("cgroup.procs")],
        CgroupEntry::None => panic!("a box without an entry"),
    };
    let enter = "while [ $# -gt 0 ]; do echo 0 > \"$1\" || exit 99; shift; done; echo in; exec 1>&2;";
    let mut child = Command::new("sh")
        .args(["-c", &format!("{enter} {script}"), "sh"])
        .args(doors)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut word = [0; 3];
    io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut word)
        .expect("the shell could not enter the box");
    child
}

/// The exit status, or minus the signal.
fn end(mut child: Child) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

fn run(cgroup: &BoxCgroup, script: &str) -> i32 {
    end(start(cgroup, script))
}

/// Every directory that the test's boxes were in is gone, and so are those that held nothing else.
fn assert_nothing_left(dirs: &[PathBuf]) {
    assert!(!dirs.is_empty());
    for dir in dirs {
        assert!(!dir.exists(), "{}", dir.display());
        let parent = dir.parent().unwrap();
        let ours = parent.file_name().is_some_and(|name| name.to_string_lossy().starts_with("belljar"));
        assert!(!(ours && parent.exists()), "{}", dir.display());
    }
}

/// Waits for something to become true, on a machine that may be busy.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_beyond_the_limit_kills_and_is_counted() {
    let cgroups = cgroups("memory");
    let hog = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); exit 7";

    let roomy = new_box(&cgroups, LimitsRequest { memory: Some(1 << 30), ..Default::default() });
    assert_eq!(run(&roomy, hog), 7);
    let counters = roomy.counters().unwrap();
    assert_eq!(counters.oom_kills, 0);
    assert!((100_000_000..1 << 30).contains(&counters.memory_peak), "{counters:?}");

    let tight = new_box(&cgroups, LimitsRequest { memory: Some(32 << 20), ..Default::default() });
    assert_eq!(run(&tight, hog), -9);
    let counters = tight.counters().unwrap();
    assert!(counters.oom_kills >= 1, "{counters:?}");
    assert!((16 << 20..=32 << 20).contains(&counters.memory_peak), "{counters:?}");
}

#[test]
fn limits_can_be_raised_and_lowered_while_a_box_is_there() {
    let cgroups = cgroups("relimit");
    let hog = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); exit 7";
    let usual = limits(LimitsRequest::default());
    let with_memory = |memory| limits(LimitsRequest { memory: Some(memory), ..Default::default() });

    let raised = new_box(&cgroups, LimitsRequest { memory: Some(32 << 20), ..Default::default() });
    raised.give_way();
    raised.relimit(&with_memory(32 << 20), &with_memory(1 << 30)).unwrap();
    raised.stop_giving_way().unwrap();
    assert_eq!(run(&raised, hog), 7);

    let lowered = new_box(&cgroups, LimitsRequest::default());
    lowered.relimit(&usual, &with_memory(32 << 20)).unwrap();
    assert_eq!(run(&lowered, hog), -9);

    let fork = "for i in $(seq 5); do sleep 2 & done; wait; exit 7";
    let fewer = new_box(&cgroups, LimitsRequest::default());
    assert_eq!(run(&fewer, fork), 7, "the control");
    fewer.relimit(&usual, &limits(LimitsRequest { pids: Some(4), ..Default::default() })).unwrap();
    assert_ne!(run(&fewer, fork), 7);

    let with_cpus = |cpus| limits(LimitsRequest { cpus: Some(cpus), ..Default::default() });
    let slower = new_box(&cgroups, LimitsRequest::default());
    slower.relimit(&usual, &with_cpus(0.2)).unwrap();
    slower.relimit(&with_cpus(0.2), &with_cpus(2.0)).unwrap();
}

#[test]
fn a_box_that_uses_more_than_its_new_limit_is_not_left_with_the_old_one_unsaid() {
    let cgroups = cgroups("relimit-used");
    let cgroup = new_box(&cgroups, LimitsRequest { memory: Some(256 << 20), ..Default::default() });
    let holder = start(&cgroup, "x=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 60");
    eventually("it fills its memory", || cgroup.memory_in_use().unwrap() >= 30_000_000);
    let before = limits(LimitsRequest { memory: Some(256 << 20), ..Default::default() });
    let after = limits(LimitsRequest { memory: Some(8 << 20), ..Default::default() });
    // Version 1 refuses, version 2 kills: either way, the box does not pass for a limited and healthy one.
    let refused = cgroup.relimit(&before, &after).is_err();
    let killed = cgroup.counters().unwrap().oom_kills > 0;
    assert!(refused || killed);
    drop(cgroup);
    end(holder);
}

#[test]
fn one_process_beyond_the_limit_cannot_be_made() {
    let cgroups = cgroups("pids");
    // The shell stands for the first process of the box, which the caller does not count.
    let fork = |count| format!("for i in $(seq {count}); do sleep 2 & done; wait; exit 7");
    let four = || new_box(&cgroups, LimitsRequest { pids: Some(4), ..Default::default() });
    let enough = four();
    // `seq` is gone before the first `sleep`.
    assert_eq!(run(&enough, &fork(4)), 7);
    assert_ne!(run(&four(), &fork(5)), 7);
}

#[test]
fn cpu_time_is_counted_and_its_rate_is_kept() {
    let cgroups = cgroups("cpu");
    let used_at = |cpus| {
        let cgroup = new_box(&cgroups, LimitsRequest { cpus: Some(cpus), ..Default::default() });
        let started = Instant::now();
        let mut child = start(&cgroup, "while :; do :; done");
        thread::sleep(Duration::from_millis(1000));
        child.kill().unwrap();
        end(child);
        cgroup.counters().unwrap().cpu.as_secs_f64() / started.elapsed().as_secs_f64()
    };
    let tenth = used_at(0.1);
    assert!((0.01..0.16).contains(&tenth), "a tenth of a CPU came to {tenth}");
    // How much of a whole CPU a program gets depends on what else the machine does.
    eventually("more is had of a whole CPU", || used_at(1.0) > tenth);
}

#[test]
fn a_removed_box_leaves_nothing_behind() {
    let cgroup = new_box(&cgroups("remove"), LimitsRequest::default());
    let dirs = cgroup.dirs();
    assert!(dirs.iter().all(|dir| dir.is_dir()));
    assert_eq!(run(&cgroup, "exit 3"), 3);
    cgroup.remove().unwrap();
    assert_nothing_left(&dirs);
}

#[test]
fn a_box_that_is_not_dead_is_not_removed_silently() {
    let cgroup = new_box(&cgroups("busy"), LimitsRequest::default());
    let dirs = cgroup.dirs();
    let child = start(&cgroup, "exec sleep 60");
    let error = cgroup.remove().unwrap_err();
    assert!(matches!(error, CgroupError::Remove { .. }), "{error}");
    // The last resort came after the report.
    assert_eq!(end(child), -9);
    assert_nothing_left(&dirs);
}

#[test]
fn a_dropped_box_is_killed_and_removed() {
    let cgroup = new_box(&cgroups("drop"), LimitsRequest::default());
    let dirs = cgroup.dirs();
    let child = start(&cgroup, "sleep 60 & exec sleep 60");
    drop(cgroup);
    assert_eq!(end(child), -9);
    assert_nothing_left(&dirs);
}

#[test]
fn a_sweep_removes_the_boxes_of_the_dead_and_nothing_else() {
    let cgroups = cgroups("sweep");
    let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
    let name = |serial| BoxName::owned_by(owner.id(), serial).unwrap();
    let (empty, inhabited) = (name(0), name(1));
    let abandon = |name| {
        let cgroup = cgroups.create(name, &limits(LimitsRequest::default())).unwrap();
        (cgroup.dirs(), mem::ManuallyDrop::new(cgroup))
    };
    let (empty_dirs, _) = abandon(&empty);
    // If there are several, a box that was removed half way is left in all except the first.
    let first = empty_dirs.last().filter(|_| empty_dirs.len() > 1);
    first.into_iter().for_each(|dir| fs::remove_dir(dir).unwrap());
    let empty_dirs = &empty_dirs[..empty_dirs.len() - usize::from(first.is_some())];
    let (inhabited_dirs, inhabited) = abandon(&inhabited);
    let inmate = start(&inhabited, "exec sleep 60");
    let living = new_box(&cgroups, LimitsRequest::default());
    let foreign = PathBuf::from(format!("{}-of-somebody-else", living.dirs()[0].display()));
    fs::create_dir(&foreign).unwrap();

    assert_eq!(cgroups.sweep(), 0);
    assert!(empty_dirs.iter().chain(&inhabited_dirs).all(|dir| dir.is_dir()));

    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(cgroups.sweep(), 2);
    assert_eq!(end(inmate), -9);
    assert!(empty_dirs.iter().chain(&inhabited_dirs).all(|dir| !dir.exists()));
    assert!(living.dirs().iter().all(|dir| dir.is_dir()));
    assert!(foreign.is_dir());

    fs::remove_dir(foreign).unwrap();
    let dirs = living.dirs();
    living.remove().unwrap();
    assert_nothing_left(&dirs);
    assert_eq!(cgroups.sweep(), 0);
}

/// What a server has made in its delegated cgroup: a box with a process in it, and an empty one.
fn fill(granted: &[PathBuf]) -> (Vec<PathBuf>, std::process::Child) {
    let within = |name: &str| granted.iter().map(|dir| dir.join(name)).collect::<Vec<_>>();
    let (inhabited, empty) = (within("inhabited"), within("empty"));
    inhabited.iter().chain(&empty).for_each(|dir| fs::create_dir(dir).unwrap());
    let inmate = Command::new("sleep").arg("60").spawn().unwrap();
    for dir in &inhabited {
        fs::write(dir.join("cgroup.procs"), inmate.id().to_string()).unwrap();
    }
    (inhabited.into_iter().chain(empty).collect(), inmate)
}

#[test]
fn what_is_granted_belongs_to_the_user_and_goes_with_everything_in_it() {
    use std::os::unix::fs::MetadataExt;
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let cgroups = cgroups("grant");
    let grant = cgroups.grant(70_000).unwrap();
    let granted: Vec<_> = grant.replaced().into_iter().map(|(dir, _)| dir).collect();
    assert!(!granted.is_empty());
    for dir in &granted {
        assert_eq!(fs::metadata(dir).unwrap().uid(), 70_000);
        let limits = fs::read_dir(dir).unwrap().flatten().filter(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            name.contains("limit_in_bytes") || name.starts_with("cpu.") || name.starts_with("pids.")
        });
        assert!(
            limits.into_iter().all(|file| file.metadata().unwrap().uid() == 0),
            "its limits are not its own"
        );
    }
    let (within, mut inmate) = fill(&granted);
    // Deeper than any path.
    let mut deepest = fs::File::open(&granted[0]).unwrap();
    for _ in 0..60 {
        let name = "d".repeat(100);
        rustix::fs::mkdirat(&deepest, &name, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        deepest = rustix::fs::openat(&deepest, &name, flags, rustix::fs::Mode::empty()).unwrap().into();
    }
    drop(deepest);
    drop(grant);
    assert_eq!(inmate.wait().unwrap().code(), None, "it was killed");
    assert!(within.iter().chain(&granted).all(|dir| !dir.exists()));
}

#[test]
fn what_was_granted_to_a_server_of_the_dead_is_swept() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let cgroups = cgroups("grant-sweep");
    let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
    let name = BoxName::owned_by(owner.id(), 0).unwrap();
    let abandoned = mem::ManuallyDrop::new(cgroups.create(&name, &limits(LimitsRequest::default())).unwrap());
    let (within, mut inmate) = fill(&abandoned.dirs());
    assert_eq!(cgroups.sweep(), 0);
    assert!(within.iter().all(|dir| dir.is_dir()), "the control");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(cgroups.sweep(), 1);
    assert_eq!(inmate.wait().unwrap().code(), None, "it was killed");
    assert!(within.iter().chain(&abandoned.dirs()).all(|dir| !dir.exists()));
}

#[test]
fn boxes_that_come_and_go_do_not_take_the_ground_from_each_other() {
    let cgroups = cgroups("race");
    let dirs = new_box(&cgroups, LimitsRequest::default()).dirs();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    new_box(&cgroups, LimitsRequest::default()).remove().unwrap();
                    cgroups.sweep();
                }
            });
        }
    });
    assert_nothing_left(&dirs);
}

#[test]
fn a_probe_is_remembered_and_holds() {
    let probed = Cgroups::probe(&Settings::default());
    let text = probed.to_text().unwrap().unwrap_or_else(|| panic!("nothing to remember: {probed:?}"));
    let remembered = Cgroups::from_text(&text, &Settings::default()).unwrap();
    assert_eq!(remembered, probed);
    remembered.sweep();
    let cgroup = new_box(&remembered, LimitsRequest::default());
    assert_eq!(run(&cgroup, "exit 5"), 5);
    cgroup.remove().unwrap();

    let elsewhere = text.replacen("host ", "host x", 1);
    assert!(matches!(Cgroups::from_text(&elsewhere, &Settings::default()), Err(Stale::Elsewhere)));
    let nowhere = Cgroups::Unavailable { why: "none".into(), fix: "some".into() };
    assert_eq!(nowhere.to_text().unwrap(), None);
}

/// A version 2 without controllers (they may all be used by version 1) can still hold a box and kill it.
#[test]
fn on_version_2_a_box_is_killed_at_once() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let mounts = mounts::mounts().unwrap();
    let mount = mounts
        .iter()
        .find(|mount| mount.kind == mounts::Kind::V2)
        .expect("this test needs a mounted cgroup2");
    let base = mount.point.join(format!("belljar-test-{}-kill", std::process::id()));
    fs::create_dir(&base).unwrap();
    let unmet = Standing::Unmet { why: "not tried".into(), fix: String::new() };
    let cgroups = Cgroups::V2(V2 {
        parent: base.join("belljar"),
        ground: Ground { claim: Claim::Top, base: base.clone() },
        verdicts: Verdicts::by_asking(|_| unmet.clone()),
    });

    let cgroup = new_box(&cgroups, LimitsRequest::default());
    let child = start(&cgroup, "(sleep 60 & sleep 60 & wait) & exec sleep 60");
    eventually("all of them run", || cgroup.processes().is_ok_and(|all| all.len() == 4));
    assert!(cgroup.kill().unwrap());
    assert_eq!(end(child), -9);
    assert!(cgroup.counters().unwrap().cpu > Duration::ZERO);
    let dirs = cgroup.dirs();
    cgroup.remove().unwrap();
    assert_nothing_left(&dirs);
    fs::remove_dir(base).unwrap();
}

#[test]
fn a_box_that_has_ended_has_no_processes() {
    let cgroup = new_box(&cgroups("processes"), LimitsRequest::default());
    let mut child = start(&cgroup, "exec sleep 60");
    let pid = Pid::from_child(&child);
    assert_eq!(cgroup.processes().unwrap(), [pid], "the control");
    child.kill().unwrap();
    end(child);
    assert_eq!(cgroup.processes().unwrap(), [], "what cannot be listed would be an error");
    let dirs = cgroup.dirs();
    cgroup.remove().unwrap();
    assert_nothing_left(&dirs);
}

#[test]
fn a_killed_box_may_use_all_the_cpu_time_it_needs_to_die() {
    let cgroups = cgroups("hasten-death");
    let cgroup =
        new_box(&cgroups, LimitsRequest { cpus: Some("0.5".parse().unwrap()), ..Default::default() });
    let (quota, weight) = match cgroup.version {
        Version::V1 => ("cpu.cfs_quota_us", "cpu.shares"),
        Version::V2 => ("cpu.max", "cpu.weight"),
    };
    let read = |file: &str| {
        read_text(&cgroup.file(Controller::Cpu, file).unwrap())
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    let ordinary_weight: u32 = read(weight).parse().unwrap();
    assert_eq!(read(quota), "5000");

    cgroup.hasten_death();

    assert!(["-1", "max"].contains(&read(quota).as_str()), "{}", read(quota));
    assert!(read(weight).parse::<u32>().unwrap() > ordinary_weight);
}

#[test]
fn on_version_1_nothing_is_killed_at_once() {
    let cgroup = BoxCgroup::new(Version::V1);
    assert!(!cgroup.kill().unwrap());
}

#[test]
fn a_guarantee_without_its_controller_is_unmet_and_the_others_are_kept() {
    let mut cgroup = new_box(&cgroups("partial"), LimitsRequest::default());
    for group in &mut cgroup.groups {
        group.controllers.retain(|controller| *controller != Controller::Pids);
    }
    let error = cgroup.prove(Guarantee::Pids).unwrap_err();
    assert_eq!(error.to_string(), "the pids controller is not available");
    cgroup.prove(Guarantee::Memory).unwrap();
    cgroup.prove(Guarantee::Cpu).unwrap();

    cgroup.limit(&Caps::TYPICAL).expect_err("pids was promised");
    cgroup.promised.retain(|guarantee| *guarantee != Guarantee::Pids);
    cgroup.limit(&Caps::TYPICAL).unwrap();
    cgroup.counters().unwrap();
}

#[test]
fn a_rate_is_kept_in_short_periods_with_quotas_that_the_kernel_takes() {
    let bandwidth = |cpus| Caps::from(&limits(LimitsRequest { cpus: Some(cpus), ..Default::default() })).cpu;
    assert_eq!(bandwidth(1.0), Bandwidth { quota: 10_000, period: 10_000 });
    assert_eq!(bandwidth(2.5), Bandwidth { quota: 25_000, period: 10_000 });
    assert_eq!(bandwidth(0.01), Bandwidth { quota: 1_000, period: 100_000 });
    for milli in 1..=5000 {
        let Bandwidth { quota, period } = Bandwidth::of_milli_cpus(milli);
        assert!(quota >= 1_000 && (10_000..=1_000_000).contains(&period), "{milli}: {quota}/{period}");
        let error = quota.abs_diff(u64::from(milli) * period / 1000);
        assert_eq!(error, 0);
    }
}

#[test]
fn keys_are_whole_words() {
    let events = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
    assert_eq!(keyed(events, "oom"), Some(3));
    assert_eq!(keyed(events, "oom_kill"), Some(2));
    assert_eq!(keyed(events, "kill"), None);
    assert_eq!(keyed("oom_kill -1\n", "oom_kill"), None);
}

#[test]
fn a_missing_limit_on_swap_is_forgiven_only_where_there_is_no_swap() {
    let heading = "Filename\t\tType\t\tSize\tUsed\tPriority\n";
    assert!(!lists_swap(heading));
    assert!(lists_swap(&format!("{heading}/dev/sda2 partition 8388604 0 -2\n")));

    // A directory that is not a cgroup has none of the limit files.
    let dir = std::env::temp_dir().join(format!("belljar-test-{}-no-cgroup", std::process::id()));
    let dir = dir.join("box");
    fs::create_dir_all(&dir).unwrap();
    let mut cgroup = BoxCgroup::new(Version::V2);
    cgroup.groups.push(Group { dir, controllers: Controller::ALL.to_vec() });
    let turn = |demand| cgroup.turn(&Knob::new(Controller::Memory, "memory.swap.max", 0, demand));
    assert!(matches!(turn(Demand::Must), Err(CgroupError::SetLimit { .. })));
    assert!(turn(Demand::Welcome).is_ok());
    match turn(Demand::UnlessNoSwap) {
        Err(CgroupError::UnlimitedSwap { .. }) => assert!(swap_is_on()),
        forgiven => {
            forgiven.unwrap();
            assert!(!swap_is_on());
        }
    }
    cgroup.remove().unwrap();
}

#[test]
fn the_first_process_of_a_box_is_not_counted_against_its_limit() {
    let written: Vec<_> = v2::knobs(&Caps::from(&limits(LimitsRequest::default())))
        .iter()
        .map(|knob| format!("{}={}", knob.file, knob.value))
        .collect();
    assert_eq!(
        written,
        [
            "memory.max=268435456",
            "memory.swap.max=0",
            "memory.oom.group=1",
            "pids.max=51",
            "cpu.max=10000 10000",
            "cpu.max.burst=10000",
        ]
    );
}
