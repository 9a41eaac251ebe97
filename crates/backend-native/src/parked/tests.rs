use super::*;
use belljar_core::backend::{Compiled, Source, Work};
use belljar_core::guarantee::{Guarantee, Offer, Standing, resolve};
use belljar_core::language::Language;
use belljar_core::limits::LimitsRequest;
use belljar_core::path::BoxPath;
use belljar_core::request::{Arg, EnvVar, Network};
use belljar_jail::plan::{CgroupEntry, IdPair, Identity, Opener};

use crate::layout::{self, Ground, Supply};

fn sandbox(limits: LimitsRequest, waived: &[Guarantee]) -> SandboxSpec {
    let everything = Offer::by_asking(|_| Standing::Kept { how: String::new() });
    SandboxSpec {
        limits: limits.resolve().unwrap().0,
        network: Network::None,
        secrets: Vec::new(),
        workspace: None,
        env: Vec::new(),
        image: None,
        enforcement: resolve(&everything, waived).unwrap(),
    }
}

fn execution(limits: LimitsRequest) -> ExecutionSpec {
    let language = Language::by_name("python").unwrap();
    let name = BoxPath::parse("main.py").unwrap();
    ExecutionSpec {
        id: String::new(),
        language,
        source: Source { name, named_by_caller: false, in_workspace: false, text: b"print(1)".to_vec() },
        args: Vec::new(),
        stdin: Stdin::Empty,
        files: Vec::new(),
        collect: Vec::new(),
        limits: limits.resolve().unwrap().1,
        work: Work::Run(Compiled::default()),
    }
}

fn plan(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Plan {
    let runtime = runtime();
    let ground = Ground {
        runtime: &runtime,
        identity: Identity { code: IdPair { inside: 1000, outside: 70_001 }, init: None },
        opener: Opener::Keeper,
        cgroup: CgroupEntry::V1 { tasks: vec!["/cgroup/tasks".into()] },
        orphans: Vec::new(),
        landlock: true,
        base: BaseSystem::look(),
    };
    layout::draft(sandbox, execution, Supply::Later, ground).unwrap().plan
}

fn runtime() -> Runtime {
    Runtime {
        label: "Test 1.0".into(),
        program: "/opt/test".into(),
        mounts: vec!["/opt/test".into()],
        beside: Vec::new(),
    }
}

fn fits(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> bool {
    let usual = self::sandbox(LimitsRequest::default(), &[]);
    let terms = ParkedTerms {
        plan: Arc::new(plan(&usual, &self::execution(LimitsRequest::default()))),
        base: BaseSystem::look(),
        limits: usual.limits,
        execution_limits: self::execution(LimitsRequest::default()).limits,
        enforcement: usual.enforcement.clone(),
        runtime: Stamped::new(runtime()),
    };
    could_suit(&execution.language.parking.unwrap(), &usual.limits, sandbox, execution).is_ok()
        && suits(&terms, &plan(sandbox, execution), sandbox)
}

fn fits_with(limits: LimitsRequest) -> bool {
    fits(&sandbox(limits, &[]), &execution(limits))
}

fn fits_after(change: impl FnOnce(&mut SandboxSpec, &mut ExecutionSpec)) -> bool {
    let (mut sandbox, mut execution) =
        (sandbox(LimitsRequest::default(), &[]), execution(LimitsRequest::default()));
    change(&mut sandbox, &mut execution);
    fits(&sandbox, &execution)
}

fn file(path: &str, length: usize) -> InputFile {
    InputFile { path: BoxPath::parse(path).unwrap(), content: vec![0; length], executable: false }
}

#[test]
fn what_can_be_given_to_a_box_later_fits() {
    assert!(fits_after(|_, _| {}), "the control");
    assert!(fits_after(|_, execution| execution.stdin = Stdin::Bytes(vec![0; 1 << 20])));
    assert!(fits_after(|_, execution| execution.files.push(file("a/b.py", 1000))));
    assert!(fits_after(|_, execution| execution.files.push(file("large", 2 << 20))));
    assert!(fits_after(|_, execution| execution.files.push(file("a/b/c/d/e/f/g/h/i/deep", 0))));
    assert!(fits_after(|sandbox, _| sandbox.network = Network::Full));
    let limits = LimitsRequest::default();
    assert!(fits_with(LimitsRequest { memory: Some(64 << 20), cpus: Some(0.5), ..limits }));
    assert!(fits_with(LimitsRequest { memory: Some(1 << 30), ..limits }));
    assert!(fits_with(LimitsRequest { pids: Some(10), ..limits }));
    assert!(fits_with(LimitsRequest { cpu_time: Some(Duration::from_secs(1)), ..limits }));
    assert!(fits_with(LimitsRequest { timeout: Some(Duration::from_secs(60)), ..limits }));
}

#[test]
fn what_a_box_was_made_with_must_be_what_is_wanted() {
    let limits = LimitsRequest::default();
    assert!(!fits_with(LimitsRequest { disk: Some(1 << 20), ..limits }));
    assert!(!fits_with(LimitsRequest { cpus: Some(1.5), ..limits }), "its programs start two threads");
    assert!(!fits(&sandbox(limits, &[Guarantee::Memory]), &execution(limits)));
    assert!(!fits_after(|_, execution| execution.args = Arg::parse_all(vec!["a".into()]).unwrap()));
    assert!(!fits_after(|sandbox, _| {
        sandbox.env = EnvVar::parse_all(vec![("A".into(), "b".into())]).unwrap();
    }));
    assert!(!fits_after(|sandbox, _| sandbox.image = Some("alpine".into())));
    assert!(!fits_after(|_, execution| execution.source.named_by_caller = true));
    assert!(!fits_after(|_, execution| execution.source.name = BoxPath::parse("main.mjs").unwrap()));
    assert!(!fits_after(|_, execution| execution.files.push(file("main.py", 1))));
    assert!(!fits_after(|_, execution| execution.files.push(file(".local/x", 1))));
    assert!(!fits_after(|_, execution| execution.files.push(file("large", 64 << 20))), "with the code");
    assert!(!fits_with(LimitsRequest { pids: Some(51), ..limits }));
}

#[test]
fn what_is_much_is_not_written_from_this_process() {
    let heavy =
        |files: Vec<InputFile>| are_heavy(&ExecutionSpec { files, ..execution(LimitsRequest::default()) });
    let many = |number: usize| (0..number).map(|n| file(&n.to_string(), 0)).collect::<Vec<_>>();
    assert!(!heavy(many(100)) && !heavy(vec![file("a", 200 << 10)]));
    assert!(heavy(many(1000)) && heavy(vec![file("a", MOST_INPUT)]));
    assert!(heavy(vec![file("a/b/c/d/e/f/g/h/i/deep", 0)]));
}

#[test]
fn where_all_limits_are_those_of_the_box_the_plan_is_the_same() {
    let usual = sandbox(LimitsRequest::default(), &[]);
    let terms = ParkedTerms {
        plan: Arc::new(plan(&usual, &execution(LimitsRequest::default()))),
        base: BaseSystem::look(),
        limits: usual.limits,
        execution_limits: execution(LimitsRequest::default()).limits,
        enforcement: usual.enforcement.clone(),
        runtime: Stamped::new(runtime()),
    };
    let mut asked = execution(LimitsRequest::default());
    asked.files.push(file("a.py", 10));
    asked.stdin = Stdin::Bytes(vec![0]);
    asked.source.text = b"print(2)".to_vec();
    assert!(terms.have_limits_of(&usual, &asked));
    assert_eq!(*terms.plan, plan(&usual, &asked));
    let limits = LimitsRequest { cpu_time: Some(Duration::from_secs(1)), ..LimitsRequest::default() };
    assert!(!terms.have_limits_of(&usual, &execution(limits)), "the control");
    assert_ne!(*terms.plan, plan(&usual, &execution(limits)), "the control");
}

#[test]
fn another_runtime_is_another_plan() {
    let (sandbox, execution) = (sandbox(LimitsRequest::default(), &[]), execution(LimitsRequest::default()));
    let wanted = plan(&sandbox, &execution);
    let mut other = wanted.clone();
    other.command.program = "/opt/other".into();
    let terms = |plan: Plan| ParkedTerms {
        plan: Arc::new(plan),
        base: BaseSystem::look(),
        limits: sandbox.limits,
        execution_limits: execution.limits,
        enforcement: sandbox.enforcement.clone(),
        runtime: Stamped::new(runtime()),
    };
    assert!(suits(&terms(wanted.clone()), &wanted, &sandbox), "the control");
    assert!(!suits(&terms(other), &wanted, &sandbox));
}
