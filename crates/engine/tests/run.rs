//! How the engine handles programs that end well, badly, late or never.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

mod scripted;

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_core::Field;
use belljar_core::allowance::{Allowance, Permitted};
use belljar_core::backend::{Backend, BackendError, Ending, PullEvent, Stream};
use belljar_core::finding::{Finding, Position, Severity};
use belljar_core::guarantee::Guarantee;
use belljar_core::language::{Language, Preparation};
use belljar_core::limits::LimitsRequest;
use belljar_core::outcome::{CollectedFile, Outcome, Report, Stage, TimeLimit, Usage};
use belljar_core::path::BoxPath;
use belljar_core::policy::Policy;
use belljar_core::request::{
    BackendChoice, BackendName, Code, EnvVar, ExecutionRequest, Extras, Glob, InputFile, Network, RunRequest,
    SandboxRequest, Stdin,
};
use belljar_engine::{
    Absent, Admission, Admitted, Deferred, Engine, Observer, Origin, Prepared, Programs, Rights, RunError,
    RunId, Scanned, Scanner, Scanning, Slots, Started, Subject, Unobserved, Unprepared, Unread, Unscanned,
};
use proptest::prelude::*;
use scripted::{Act, Script, Scripted, pulled};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn request(limits: LimitsRequest) -> RunRequest {
    let (sandbox, execution) = limits.resolve().unwrap();
    RunRequest {
        sandbox: SandboxRequest {
            backend: BackendChoice::Auto,
            waived: Vec::new(),
            limits: sandbox,
            network: Network::None,
            secrets: Vec::new(),
            workspace: None,
            env: Vec::new(),
            image: None,
        },
        execution: ExecutionRequest {
            language: Language::by_name("typescript").unwrap(),
            code: Code::parse(b"code".to_vec(), None).unwrap(),
            args: Vec::new(),
            stdin: Stdin::Empty,
            files: Vec::new(),
            collect: Vec::new(),
            limits: execution,
            extras: Extras::default(),
            allowed_imports: None,
        },
    }
}

fn defaults() -> RunRequest {
    request(LimitsRequest::default())
}

/// What preparing takes here.
const SPENT: Usage = Usage {
    queue: Duration::ZERO,
    wall: Duration::from_secs(2),
    cpu: Duration::from_secs(1),
    memory_peak: 64 << 20,
};

fn prepare(unread: &Unread<'_>) -> Result<Prepared, Unprepared> {
    assert_eq!(unread.preparation, Preparation::StripTypes);
    let usage = if unread.text.ends_with(b"// large") { SPENT } else { Usage::default() };
    let failed = |outcome, message: String| Err(Unprepared { outcome, message, usage });
    match unread.text {
        b"const = 1" => failed(Outcome::Exited(1), format!("{}:1:7: unexpected token", unread.name)),
        b"x<(a= // large" => failed(Outcome::OutOfMemory, String::new()),
        text => Ok(Prepared { name: unread.name.replace(".ts", ".mjs"), text: text.to_vec(), usage }),
    }
}

fn engine(backend: &Arc<Scripted>) -> Engine {
    Engine::new(vec![backend.clone()], prepare)
}

async fn run(
    engine: &Engine,
    request: RunRequest,
    observer: &mut dyn Observer,
    cancel: impl Future<Output = Option<u8>>,
) -> Result<Report, RunError> {
    let admission = admission(engine, &Policy::open(), request).await?;
    engine.carry_out(&RunId::new(), admission, observer, cancel).await
}

/// Asks for admission as somebody who may do everything.
async fn admission(engine: &Engine, policy: &Policy, request: RunRequest) -> Result<Admission, RunError> {
    let rights = Rights { allowance: &Allowance::everything(), policy, scans: None };
    engine.admit(&Origin::default(), rights, request).await
}

/// A request that the open policy lets run.
async fn admit(engine: &Engine, allowance: &Allowance, request: RunRequest) -> Result<Admitted, RunError> {
    let rights = Rights { allowance, policy: &Policy::open(), scans: None };
    match engine.admit(&Origin::default(), rights, request).await? {
        Admission::Admitted(admitted) => Ok(admitted),
        other @ (Admission::Denied(_) | Admission::Awaiting(_)) => panic!("{other:?}"),
    }
}

async fn play(script: Script, request: RunRequest) -> Result<Report, RunError> {
    run(&engine(&script.backend()), request, &mut Unobserved, pending()).await
}

fn say(text: &str) -> Act {
    Act::Say(Stream::Stdout, text.into())
}

fn complain(text: &str) -> Act {
    Act::Say(Stream::Stderr, text.into())
}

#[derive(Debug, Default)]
struct Live {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    leaves_after: Option<usize>,
    begun_with: Option<Stage>,
    /// How much had been received when the next stage began.
    stages: Vec<usize>,
    /// What was pulled before the start.
    pulled: Vec<PullEvent>,
}

impl Observer for Live {
    fn pulling(&mut self, event: &PullEvent) {
        assert!(self.stdout.is_empty(), "before the program runs");
        self.pulled.push(event.clone());
    }

    fn started(&mut self, started: &Started<'_>) {
        self.begun_with = Some(started.stage);
    }

    fn next_stage(&mut self) {
        self.stages.push(self.stdout.len());
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        match stream {
            Stream::Stdout => self.stdout.extend_from_slice(bytes),
            Stream::Stderr => self.stderr.extend_from_slice(bytes),
        }
        let heard = self.stdout.len() + self.stderr.len();
        if self.leaves_after.is_some_and(|limit| heard >= limit) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_sees_the_layers_of_a_pulled_image() {
    let script = Script { layers: vec!["a", "b"], ..Script::of(vec![say("x")], Ending::Exited(0)) };
    let mut live = Live::default();
    let report = run(&engine(&script.backend()), defaults(), &mut live, pending()).await.unwrap();
    assert_eq!(live.pulled, ["a", "b"].map(pulled));
    assert_eq!((report.outcome, live.stdout.as_slice()), (Outcome::Exited(0), &b"x"[..]));
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_may_not_do_never_reaches_a_backend() {
    let backend = Script::of(vec![], Ending::Exited(0)).backend();
    let allowance = Allowance { languages: Permitted::Only(vec!["ruby"]), ..Allowance::everything() };
    let refused = admit(&engine(&backend), &allowance, defaults()).await.unwrap_err();
    assert!(matches!(refused, RunError::Forbidden(refusal) if refusal.field == Field::Language));
    let elsewhere =
        Allowance { backends: Permitted::Only(vec![BackendName::Docker]), ..Allowance::everything() };
    let unplaced = admit(&engine(&backend), &elsewhere, defaults()).await.unwrap_err();
    assert!(matches!(unplaced, RunError::NoBackend));
    assert!(backend.log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_its_turn_and_its_clock_starts_then() {
    let backend = Script::of(vec![Act::Sleep(8 * SECOND)], Ending::Exited(0)).backend();
    let engine = engine(&backend).with_slots(Slots::new(1, 1));
    let everything = Allowance::everything();
    let (first, second) = (
        admit(&engine, &everything, defaults()).await.unwrap(),
        admit(&engine, &everything, defaults()).await.unwrap(),
    );
    assert!(matches!(admit(&engine, &everything, defaults()).await, Err(RunError::Busy { waiting: 1, .. })));
    let (one, two) = (RunId::new(), RunId::new());
    let (mut unobserved, mut unobserved_too) = (Unobserved, Unobserved);
    let (first, second) = tokio::join!(
        engine.run(&one, first, &mut unobserved, pending()),
        engine.run(&two, second, &mut unobserved_too, pending())
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.usage.queue, first.outcome), (Duration::ZERO, Outcome::Exited(0)));
    assert_eq!((second.usage.queue, second.outcome), (8 * SECOND, Outcome::Exited(0)));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_in_the_queue_never_starts() {
    let backend = Script::of(vec![Act::Sleep(8 * SECOND)], Ending::Exited(0)).backend();
    let engine = engine(&backend).with_slots(Slots::new(1, 1));
    let everything = Allowance::everything();
    let (_running, waiting) = (
        admit(&engine, &everything, defaults()).await.unwrap(),
        admit(&engine, &everything, defaults()).await.unwrap(),
    );
    let cancel = async {
        sleep(SECOND).await;
        None
    };
    let report = engine.run(&RunId::new(), waiting, &mut Unobserved, cancel).await.unwrap();
    assert_eq!((report.outcome, report.usage.queue), (Outcome::Cancelled(None), SECOND));
    assert_eq!(report.enforcement.kept(), [], "nothing ran");
    assert_eq!(engine.slots().unwrap().waiting(), 0);
    assert!(backend.log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_program_that_fails_is_a_run_that_took_place() {
    let script = Script::of(vec![say("one\n"), complain("oh\n")], Ending::Exited(3));
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited(3));
    assert_eq!((report.stdout.to_bytes(), report.stderr.to_bytes()), (b"one\n".to_vec(), b"oh\n".to_vec()));
    assert_eq!(report.enforcement.kept(), Guarantee::ALL);
    assert_eq!((report.usage.cpu, report.usage.memory_peak), (Duration::from_millis(3), 4096));
    assert_eq!((report.backend, report.runtime.as_str()), (BackendName::Native, "Scripted 1.0"));
    assert!(report.id.starts_with("run_") && report.files.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_wall_clock_ends_a_program_that_does_not() {
    let script = Script::of(vec![complain("partial"), Act::Sleep(100 * SECOND)], Ending::Exited(0));
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(10 * SECOND)));
    assert_eq!(report.stderr.to_bytes(), b"partial\nExecution timed out after 10s\n");
    assert_eq!(report.usage.wall, 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_exits_in_time_is_not_timed_out() {
    let script = Script::of(vec![Act::Sleep(SECOND * 9)], Ending::Exited(0));
    assert_eq!(play(script, defaults()).await.unwrap().outcome, Outcome::Exited(0));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_exited_by_itself_as_the_deadline_came_has_exited() {
    let mut script = Script::of(vec![Act::Sleep(100 * SECOND)], Ending::Exited(0));
    script.ending_after_kill = Ending::Exited(7);
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited(7));
    assert_eq!(report.stderr.to_bytes(), b"");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_lost_keeps_its_output_and_says_why() {
    let gone = "The program is gone";
    let script = Script::of(vec![say("begun\n"), complain("partial")], Ending::Lost(gone));
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Signaled(9));
    assert_eq!(report.stdout.to_bytes(), b"begun\n");
    assert_eq!(report.stderr.to_bytes(), b"partial\nThe program is gone\n");
    let mut script = Script::of(vec![Act::Sleep(100 * SECOND)], Ending::Exited(0));
    script.ending_after_kill = Ending::Lost(gone);
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(10 * SECOND)));
    assert_eq!(report.stderr.to_bytes(), b"The program is gone\nExecution timed out after 10s\n");
}

#[tokio::test]
async fn a_flood_of_output_does_not_drown_the_clock() {
    let limits = LimitsRequest { timeout: Some(Duration::from_millis(50)), ..LimitsRequest::default() };
    let script = Script::of(vec![Act::Flood(vec![b'y'; 4096])], Ending::Exited(0));
    let report = play(script, request(limits)).await.unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(Duration::from_millis(50))));
    assert!(report.stdout.truncated());
    let stdout = String::from_utf8(report.stdout.to_bytes()).unwrap();
    assert!(stdout.starts_with("yyyy") && stdout.ends_with("yyyy") && stdout.contains("bytes omitted"));
}

#[tokio::test(start_paused = true)]
async fn what_is_written_between_the_kill_and_the_end_is_still_seen() {
    let mut script = Script::of(vec![Act::Sleep(100 * SECOND)], Ending::Exited(0));
    script.after_kill = vec![Act::Sleep(SECOND), complain("a grandchild's last words\n")];
    let report = play(script, defaults()).await.unwrap();
    assert_eq!(report.stderr.to_bytes(), b"a grandchild's last words\nExecution timed out after 10s\n");
    assert_eq!(report.usage.wall, 11 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_will_not_die_does_not_hold_the_caller() {
    let mut script = Script::of(vec![Act::Sleep(100 * SECOND)], Ending::Exited(0));
    script.after_kill = vec![Act::Sleep(1000 * SECOND)];
    let backend = script.backend();
    let began = Instant::now();
    let error = run(&engine(&backend), defaults(), &mut Unobserved, pending()).await.unwrap_err();
    assert!(matches!(error, RunError::Unkillable { .. }), "{error}");
    assert_eq!(began.elapsed(), 19 * SECOND, "the timeout, and the time that killed processes may take");
    assert_eq!(*backend.log.lock().unwrap(), ["start main.mjs", "kill", "drop"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_program_is_killed_and_waited_for() {
    let mut script = Script::of(vec![say("begun\n"), Act::Sleep(100 * SECOND)], Ending::Exited(0));
    script.after_kill = vec![Act::Sleep(SECOND)];
    let backend = script.backend();
    let cancel = async {
        sleep(2 * SECOND).await;
        Some(15)
    };
    let report = run(&engine(&backend), defaults(), &mut Unobserved, cancel).await.unwrap();
    assert_eq!(report.outcome, Outcome::Cancelled(Some(15)));
    assert_eq!(report.outcome.exit_code(), 143);
    assert_eq!(report.usage.wall, 3 * SECOND);
    assert_eq!(report.stdout.to_bytes(), b"begun\n");
    assert_eq!(*backend.log.lock().unwrap(), ["start main.mjs", "kill", "finish", "drop"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_cancelled_before_its_box_exists_never_starts() {
    let mut script = Script::of(vec![say("begun\n")], Ending::Exited(0));
    script.start_takes = 5 * SECOND;
    let backend = script.backend();
    let cancel = async {
        sleep(SECOND).await;
        Some(2)
    };
    let report = run(&engine(&backend), defaults(), &mut Unobserved, cancel).await.unwrap();
    assert_eq!(report.outcome, Outcome::Cancelled(Some(2)));
    assert!(backend.log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_goes_away_cancels_the_run() {
    let script = Script::of(vec![say("begun\n"), Act::Sleep(100 * SECOND)], Ending::Exited(0));
    let backend = script.backend();
    let mut live = Live { leaves_after: Some(1), ..Live::default() };
    let report = run(&engine(&backend), defaults(), &mut live, pending()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Cancelled(Some(13)));
    assert_eq!(report.usage.wall, Duration::ZERO);
}

/// A request in a language that is compiled.
fn compiled(name: &str, limits: LimitsRequest) -> RunRequest {
    let mut request = request(limits);
    request.execution.language = Language::by_name(name).unwrap();
    request
}

fn c() -> RunRequest {
    compiled("c", LimitsRequest::default())
}

fn read_as_it_is(unread: &Unread<'_>) -> Result<Prepared, Unprepared> {
    Ok(Prepared::unchanged(unread))
}

async fn compile_and_run(script: Script, request: RunRequest, live: &mut Live) -> Report {
    let engine = Engine::new(vec![script.backend()], read_as_it_is);
    run(&engine, request, live, pending()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_compiler_and_its_program_are_told_apart() {
    let mut script = Script::of(vec![say("begun\n"), Act::Sleep(SECOND)], Ending::Exited(3));
    script.compiler = (vec![say("warning\n"), complain("odd\n"), Act::Sleep(5 * SECOND)], Ending::Exited(0));
    let mut live = Live::default();
    let report = compile_and_run(script, c(), &mut live).await;
    let compiler = report.compile.unwrap();
    assert_eq!(
        (report.stage, report.outcome, compiler.outcome),
        (Stage::Run, Outcome::Exited(3), Outcome::Exited(0))
    );
    assert_eq!((report.stdout.to_bytes(), report.stderr.to_bytes()), (b"begun\n".to_vec(), Vec::new()));
    assert_eq!(
        (compiler.stdout.to_bytes(), compiler.stderr.to_bytes()),
        (b"warning\n".to_vec(), b"odd\n".to_vec())
    );
    assert_eq!((report.usage.wall, compiler.usage.wall), (SECOND, 5 * SECOND));
    assert_eq!((live.begun_with, live.stages), (Some(Stage::Compile), vec!["warning\n".len()]));
    assert_eq!(live.stdout, b"warning\nbegun\n");
}

#[tokio::test(start_paused = true)]
async fn code_that_does_not_compile_does_not_run() {
    let mut script = Script::of(vec![say("never\n")], Ending::Exited(0));
    script.compiler = (vec![complain("no such x\n")], Ending::Exited(1));
    let backend = script.backend();
    let mut live = Live::default();
    let engine = Engine::new(vec![backend.clone()], read_as_it_is);
    let report = run(&engine, c(), &mut live, pending()).await.unwrap();
    assert_eq!((report.stage, report.outcome), (Stage::Compile, Outcome::Exited(1)));
    assert_eq!((report.stdout.to_bytes(), report.stderr.to_bytes()), (Vec::new(), b"no such x\n".to_vec()));
    assert_eq!(report.compile.unwrap().stderr.to_bytes(), b"no such x\n");
    assert_eq!(report.usage, Usage::default(), "there was no program to use anything");
    assert_eq!(*backend.log.lock().unwrap(), ["compile main.c", "finish", "drop"]);
    assert!(live.stages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_compiler_has_a_clock_of_its_own() {
    let limits = LimitsRequest {
        timeout: Some(2 * SECOND),
        compile_timeout: Some(20 * SECOND),
        ..LimitsRequest::default()
    };
    let mut script = Script::of(vec![Act::Sleep(SECOND)], Ending::Exited(0));
    script.compiler = (vec![Act::Sleep(19 * SECOND)], Ending::Exited(0));
    let report = compile_and_run(script.clone(), compiled("c", limits), &mut Live::default()).await;
    assert_eq!(
        (report.stage, report.outcome),
        (Stage::Run, Outcome::Exited(0)),
        "compiling takes no time of the run"
    );
    let mut late = script.clone();
    late.acts = vec![Act::Sleep(3 * SECOND)];
    let report = compile_and_run(late, compiled("c", limits), &mut Live::default()).await;
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(2 * SECOND)));
    assert_eq!((report.stage, report.usage.wall), (Stage::Run, 2 * SECOND));
    script.compiler = (vec![complain("slowly\n"), Act::Sleep(21 * SECOND)], Ending::Exited(0));
    let report = compile_and_run(script, compiled("c", limits), &mut Live::default()).await;
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(20 * SECOND)));
    assert_eq!(report.stage, Stage::Compile);
    assert_eq!(report.stderr.to_bytes(), b"slowly\nExecution timed out after 20s of compiling\n");
}

#[tokio::test(start_paused = true)]
async fn a_compiler_that_is_out_of_memory_has_its_own_limit() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.compiler = (vec![], Ending::OutOfMemory);
    let report = compile_and_run(script, c(), &mut Live::default()).await;
    assert_eq!((report.stage, report.outcome), (Stage::Compile, Outcome::OutOfMemory));
    assert_eq!(report.stderr.to_bytes(), b"Memory limit exceeded while compiling (512M)\n");
}

#[tokio::test(start_paused = true)]
async fn the_same_code_is_compiled_once() {
    let mut script = Script::of(vec![say("begun\n")], Ending::Exited(0));
    script.compiler = (vec![complain("odd\n")], Ending::Exited(0));
    let backend = script.backend();
    let engine = Engine::new(vec![backend.clone()], read_as_it_is).with_programs(Programs::new(1 << 20));
    let compiled_now =
        || backend.log.lock().unwrap().iter().filter(|done| done.starts_with("compile")).count();
    let mut first = Live::default();
    let report = run(&engine, c(), &mut first, pending()).await.unwrap();
    assert!(!report.compile.unwrap().cached && first.begun_with == Some(Stage::Compile));
    let mut second = Live::default();
    let report = run(&engine, c(), &mut second, pending()).await.unwrap();
    let compiler = report.compile.unwrap();
    assert!(compiler.cached && compiler.usage == Usage::default());
    assert_eq!(compiler.stderr.to_bytes(), b"odd\n", "what it said then");
    assert_eq!((second.begun_with, second.stderr), (Some(Stage::Run), Vec::new()));
    assert_eq!(compiled_now(), 1);
    let mut other = c();
    other.execution.code = Code::parse(b"other code".to_vec(), None).unwrap();
    run(&engine, other, &mut Unobserved, pending()).await.unwrap();
    let mut with_a_file = c();
    let header =
        InputFile { path: BoxPath::parse("x.h").unwrap(), content: b"1".to_vec(), executable: false };
    with_a_file.execution.files.push(header);
    run(&engine, with_a_file, &mut Unobserved, pending()).await.unwrap();
    let mut with_a_variable = c();
    with_a_variable.sandbox.env = EnvVar::parse_all(vec![("CPATH".into(), "/x".into())]).unwrap();
    run(&engine, with_a_variable, &mut Unobserved, pending()).await.unwrap();
    let output = Some(1024);
    run(
        &engine,
        compiled("c", LimitsRequest { output, ..LimitsRequest::default() }),
        &mut Unobserved,
        pending(),
    )
    .await
    .unwrap();
    assert_eq!(
        compiled_now(),
        5,
        "what a program, or what is kept of its compiler's output, depends on makes it another one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_there_tells_nobody_what_another_caller_has_sent() {
    let mut script = Script::of(vec![say("begun\n")], Ending::Exited(0));
    script.compiler = (vec![], Ending::Exited(0));
    let engine = Engine::new(vec![script.backend()], read_as_it_is).with_programs(Programs::new(1 << 20));
    let is_cached = async |caller: &str| {
        let origin = Origin { caller: caller.into(), ..Origin::default() };
        let rights = Rights { allowance: &Allowance::everything(), policy: &Policy::open(), scans: None };
        let admission = engine.admit(&origin, rights, c()).await.unwrap();
        let report = engine.carry_out(&RunId::new(), admission, &mut Unobserved, pending()).await.unwrap();
        report.compile.unwrap().cached
    };
    assert!(!is_cached("alice").await);
    assert!(is_cached("alice").await, "the control");
    assert!(!is_cached("bob").await);
    assert!(is_cached("bob").await);
}

#[tokio::test(start_paused = true)]
async fn code_that_does_not_compile_is_tried_again() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.compiler = (vec![], Ending::Exited(1));
    let backend = script.backend();
    let engine = Engine::new(vec![backend.clone()], read_as_it_is).with_programs(Programs::new(1 << 20));
    for _ in 0..2 {
        let report = run(&engine, c(), &mut Unobserved, pending()).await.unwrap();
        assert!(!report.compile.unwrap().cached);
    }
    assert_eq!(backend.log.lock().unwrap().iter().filter(|done| done.starts_with("compile")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_heap_is_out_of_memory_and_the_same_exit_status_is_not() {
    let last_words = "Terminating due to java.lang.OutOfMemoryError: Java heap space\n";
    let java = || compiled("java", LimitsRequest::default());
    let full = Script::of(vec![complain("working\n"), complain(last_words)], Ending::Exited(3));
    let report = compile_and_run(full, java(), &mut Live::default()).await;
    assert_eq!((report.outcome, report.stage), (Outcome::OutOfMemory, Stage::Run));
    assert!(report.stderr.to_bytes().ends_with(b"Memory limit exceeded (256M)\n"));
    let own = Script::of(vec![complain("working\n")], Ending::Exited(3));
    assert_eq!(compile_and_run(own, java(), &mut Live::default()).await.outcome, Outcome::Exited(3));
}

#[tokio::test(start_paused = true)]
async fn out_of_memory_is_the_backends_counter_and_not_a_signal() {
    let report = play(Script::of(vec![], Ending::OutOfMemory), defaults()).await.unwrap();
    assert_eq!((report.outcome, report.outcome.exit_code()), (Outcome::OutOfMemory, 137));
    assert_eq!(report.stderr.to_bytes(), b"Memory limit exceeded (256M)\n");
    let report = play(Script::of(vec![], Ending::Signaled(9)), defaults()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Signaled(9));
    assert_eq!(report.stderr.to_bytes(), b"");
}

#[tokio::test(start_paused = true)]
async fn cpu_time_that_runs_out_is_a_timeout_that_says_so() {
    let limits = LimitsRequest { cpu_time: Some(2 * SECOND), ..LimitsRequest::default() };
    let report = play(Script::of(vec![], Ending::CpuTimeExhausted), request(limits)).await.unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Cpu(2 * SECOND)));
    assert_eq!(report.stderr.to_bytes(), b"Execution timed out after 2s of CPU time\n");
}

#[tokio::test(start_paused = true)]
async fn the_words_about_a_timeout_survive_truncation() {
    let limits = LimitsRequest { output: Some(64), ..LimitsRequest::default() };
    let acts = vec![complain(&"x".repeat(1000)), Act::Sleep(100 * SECOND)];
    let report = play(Script::of(acts, Ending::Exited(0)), request(limits)).await.unwrap();
    let stderr = String::from_utf8(report.stderr.to_bytes()).unwrap();
    assert!(stderr.ends_with("\nExecution timed out after 10s\n"), "{stderr}");
    assert!(report.stderr.truncated());
}

#[tokio::test(start_paused = true)]
async fn a_syntax_error_is_a_failed_run_without_a_box() {
    let backend = Script::of(vec![say("never")], Ending::Exited(0)).backend();
    let mut asked = defaults();
    asked.execution.code = Code::parse(b"const = 1".to_vec(), None).unwrap();
    let mut live = Live::default();
    let report = run(&engine(&backend), asked, &mut live, pending()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited(1));
    assert_eq!(report.stderr.to_bytes(), b"main.ts:1:7: unexpected token\n");
    assert_eq!(live.stderr, report.stderr.to_bytes());
    assert_eq!(report.runtime, "Scripted typescript 1.0");
    assert_eq!(report.enforcement.kept(), [], "nothing ran");
    assert!(backend.log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_preparing_takes_counts() {
    let limits = LimitsRequest { timeout: Some(5 * SECOND), ..LimitsRequest::default() };
    let mut asked = request(limits);
    asked.execution.code = Code::parse(b"1 // large".to_vec(), None).unwrap();
    let backend = Script::of(vec![Act::Sleep(4 * SECOND)], Ending::Signaled(9)).backend();
    let report = run(&engine(&backend), asked, &mut Live::default(), pending()).await.unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut(TimeLimit::Wall(5 * SECOND)), "3 s were left");
    assert_eq!(report.usage.wall, 5 * SECOND);
    assert!(report.usage.cpu >= SPENT.cpu && report.usage.memory_peak >= SPENT.memory_peak);
    let control =
        play(Script::of(vec![Act::Sleep(4 * SECOND)], Ending::Exited(0)), request(limits)).await.unwrap();
    assert_eq!(control.outcome, Outcome::Exited(0));
}

#[tokio::test(start_paused = true)]
async fn preparing_that_exceeds_a_limit_ends_the_run_by_that_limit() {
    let backend = Script::of(vec![say("never")], Ending::Exited(0)).backend();
    let mut asked = defaults();
    asked.execution.code = Code::parse(b"x<(a= // large".to_vec(), None).unwrap();
    let report = run(&engine(&backend), asked, &mut Live::default(), pending()).await.unwrap();
    assert_eq!((report.outcome, report.usage), (Outcome::OutOfMemory, SPENT));
    let stderr = String::from_utf8(report.stderr.to_bytes()).unwrap();
    assert!(stderr.contains("Memory limit exceeded"), "{stderr}");
    assert!(backend.log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_box_that_cannot_be_built_is_our_failure() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.fails_to_start = true;
    let error = play(script, defaults()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot mount the root");
}

#[tokio::test(start_paused = true)]
async fn a_guarantee_that_the_host_cannot_keep_refuses_the_run_unless_waived() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.unmet = vec![Guarantee::Memory, Guarantee::Cpu];
    let error = play(script.clone(), defaults()).await.unwrap_err();
    let said = "the native backend cannot guarantee 'memory', 'cpu' here: the host has none";
    assert_eq!(error.to_string(), said);
    let mut waiving = defaults();
    waiving.sandbox.waived = vec![Guarantee::Memory, Guarantee::Cpu];
    let report = play(script, waiving).await.unwrap();
    assert_eq!(report.enforcement.waived(), [Guarantee::Memory, Guarantee::Cpu]);
}

#[tokio::test(start_paused = true)]
async fn auto_never_chooses_a_backend_without_isolation() {
    for name in [BackendName::Process, BackendName::None] {
        let mut script = Script::of(vec![], Ending::Exited(0));
        script.name = name;
        let error = play(script.clone(), defaults()).await.unwrap_err();
        assert!(matches!(error, RunError::NoBackend), "{error}");
        let mut named = defaults();
        named.sandbox.backend = BackendChoice::Named(name);
        assert_eq!(play(script, named).await.unwrap().backend, name);
    }
}

fn naming_an_image(backend: BackendChoice) -> RunRequest {
    let mut request = defaults();
    (request.sandbox.backend, request.sandbox.image) = (backend, Some("our/image:1".into()));
    request
}

fn backends(names: &[BackendName]) -> Engine {
    let scripted = |name: &BackendName| {
        let script = Script { name: *name, ..Script::of(vec![], Ending::Exited(0)) };
        script.backend() as Arc<dyn Backend>
    };
    Engine::new(names.iter().map(scripted).collect(), prepare)
}

fn is_about_the_image(refused: &RunError) -> bool {
    matches!(refused, RunError::Invalid(invalid) if invalid.field == Field::Image)
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_takes_no_image_refuses_a_request_that_names_one() {
    for name in [BackendName::Native, BackendName::Wasm, BackendName::Process, BackendName::None] {
        let (engine, choice) = (backends(&[name]), BackendChoice::Named(name));
        let refused = admit(&engine, &Allowance::everything(), naming_an_image(choice)).await.unwrap_err();
        assert!(is_about_the_image(&refused), "{refused}");
        assert_eq!(
            refused.to_string(),
            format!("the {name} backend takes no image, but 'our/image:1' is named")
        );
        let mut without = defaults();
        without.sandbox.backend = choice;
        assert_eq!(
            admit(&engine, &Allowance::everything(), without).await.unwrap().backend(),
            name,
            "the control"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn auto_chooses_a_backend_that_takes_the_image() {
    let all = Allowance::everything();
    let both = backends(&[BackendName::Native, BackendName::Docker]);
    let placed = admit(&both, &all, naming_an_image(BackendChoice::Auto)).await.unwrap();
    assert_eq!(placed.backend(), BackendName::Docker);
    assert_eq!(admit(&both, &all, defaults()).await.unwrap().backend(), BackendName::Native, "the control");

    let only_native = Allowance { backends: Permitted::Only(vec![BackendName::Native]), ..all };
    let refused = admit(&both, &only_native, naming_an_image(BackendChoice::Auto)).await.unwrap_err();
    assert!(is_about_the_image(&refused), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_no_backend_can_run_is_refused_with_the_reason_of_the_one_that_takes_it() {
    let native = Script::of(vec![], Ending::Exited(0)).backend();
    let mut docker = Script::of(vec![], Ending::Exited(0));
    (docker.name, docker.not_ready) = (BackendName::Docker, true);
    let engine = Engine::new(vec![native, docker.backend()], prepare);
    let refused =
        admit(&engine, &Allowance::everything(), naming_an_image(BackendChoice::Auto)).await.unwrap_err();
    assert_eq!(refused.to_string(), "the docker backend cannot run here: the script says no");
}

#[tokio::test(start_paused = true)]
async fn to_name_a_backend_without_isolation_is_to_do_without_what_it_lacks() {
    for (name, accepted) in [(BackendName::Process, true), (BackendName::Docker, false)] {
        let mut script = Script::of(vec![], Ending::Exited(0));
        (script.name, script.unmet) = (name, vec![Guarantee::Filesystem, Guarantee::Network]);
        let mut asked = defaults();
        asked.sandbox.backend = BackendChoice::Named(name);
        asked.sandbox.waived = vec![Guarantee::Cpu];
        let played = play(script, asked).await;
        assert_eq!(played.is_ok(), accepted, "{name}");
        let Ok(report) = played else { continue };
        let waived = [Guarantee::Filesystem, Guarantee::Network, Guarantee::Cpu];
        assert_eq!(report.enforcement.waived(), waived);
        assert!(report.enforcement.kept().contains(&Guarantee::Memory));
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_is_opened_when_it_is_asked_and_only_then() {
    let opened = Arc::new(Mutex::new(Vec::new()));
    let deferred = |name, not_ready| {
        let opened = opened.clone();
        let mut script = Script::of(vec![], Ending::Exited(0));
        (script.name, script.not_ready) = (name, not_ready);
        Arc::new(Deferred::new(name, move || {
            opened.lock().unwrap().push(name);
            Arc::into_inner(script.backend()).unwrap()
        }))
    };
    let backends = [BackendName::Native, BackendName::Docker, BackendName::Wasm];
    let engine = Engine::new(
        backends.into_iter().map(|name| deferred(name, name == BackendName::Native) as _).collect(),
        prepare,
    );
    engine.backends().for_each(|backend| assert_eq!((backend.leaks_cleaned(), backend.pool()), (0, None)));
    engine.retire().await;
    assert!(opened.lock().unwrap().is_empty(), "nobody has asked for anything");
    let report = run(&engine, defaults(), &mut Unobserved, pending()).await.unwrap();
    assert_eq!(report.backend, BackendName::Docker);
    run(&engine, defaults(), &mut Unobserved, pending()).await.unwrap();
    assert_eq!(*opened.lock().unwrap(), [BackendName::Native, BackendName::Docker], "each of them once");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_was_not_built_in_is_never_chosen_and_says_how_to_get_it_when_named() {
    let absent = || Arc::new(Absent::new(BackendName::Wasm, "this build has none", "build it in"));
    let engine = Engine::new(vec![absent(), Script::of(vec![], Ending::Exited(0)).backend()], prepare);
    let report = run(&engine, defaults(), &mut Unobserved, pending()).await.unwrap();
    assert_eq!(report.backend, BackendName::Native);
    let mut asked = defaults();
    asked.sandbox.backend = BackendChoice::Named(BackendName::Wasm);
    let error = run(&engine, asked, &mut Unobserved, pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "the wasm backend cannot run here: this build has none");
    assert!(
        matches!(error, RunError::Backend(BackendError::Unavailable { hint, .. }) if hint == "build it in")
    );
}

#[tokio::test(start_paused = true)]
async fn auto_never_falls_to_a_backend_in_which_programs_behave_differently() {
    let alone = backends(&[BackendName::Wasm]);
    let refused = admit(&alone, &Allowance::everything(), defaults()).await.unwrap_err();
    assert!(matches!(refused, RunError::NoBackend), "{refused}");
    let mut named = defaults();
    named.sandbox.backend = BackendChoice::Named(BackendName::Wasm);
    let admitted = admit(&alone, &Allowance::everything(), named).await.unwrap();
    assert_eq!(admitted.enforcement().kept(), Guarantee::ALL, "named, it is a box like any other");
}

#[tokio::test(start_paused = true)]
async fn auto_takes_the_strongest_that_is_able_and_says_what_the_strongest_lacks() {
    let of = |name, not_ready| {
        let mut script = Script::of(vec![], Ending::Exited(0));
        (script.name, script.not_ready) = (name, not_ready);
        script.backend()
    };
    let (native, docker) = (of(BackendName::Native, true), of(BackendName::Docker, false));
    let engine = Engine::new(vec![native.clone(), docker], prepare);
    let report = run(&engine, defaults(), &mut Unobserved, pending()).await.unwrap();
    assert_eq!(report.backend, BackendName::Docker);
    let engine = Engine::new(vec![native, of(BackendName::Docker, true)], prepare);
    let error = run(&engine, defaults(), &mut Unobserved, pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "the native backend cannot run here: the script says no");
}

#[tokio::test(start_paused = true)]
async fn a_named_backend_is_that_one_or_none() {
    let mut asked = defaults();
    asked.sandbox.backend = BackendChoice::Named(BackendName::Wasm);
    let error = play(Script::of(vec![], Ending::Exited(0)), asked).await.unwrap_err();
    assert_eq!(error.to_string(), "the wasm backend is not part of this belljar");
}

#[tokio::test(start_paused = true)]
async fn a_network_that_the_backend_lacks_is_refused() {
    let mut asked = defaults();
    asked.sandbox.network = Network::Full;
    let error = play(Script::of(vec![], Ending::Exited(0)), asked).await.unwrap_err();
    assert_eq!(error.to_string(), "the native backend cannot give a box the network 'full'");
}

#[tokio::test(start_paused = true)]
async fn files_are_in_the_report_only_if_asked_for() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.files = vec![CollectedFile { path: "a.txt".into(), content: b"a".to_vec() }];
    let mut asked = defaults();
    asked.execution.collect = vec![Glob::parse("*.txt").unwrap()];
    let report = play(script.clone(), asked).await.unwrap();
    assert_eq!(report.files, Some(script.files.clone()));
    assert_eq!(play(script, defaults()).await.unwrap().files, None);
}

#[tokio::test(start_paused = true)]
async fn a_pattern_that_no_file_matches_is_named_on_stderr() {
    let mut script = Script::of(vec![], Ending::Exited(0));
    script.files = vec![CollectedFile { path: "a.txt".into(), content: b"a".to_vec() }];
    let collecting = |patterns: &[&str]| {
        let mut asked = defaults();
        asked.execution.collect = patterns.iter().map(|pattern| Glob::parse(pattern).unwrap()).collect();
        asked
    };
    let said = async |asked| {
        String::from_utf8(play(script.clone(), asked).await.unwrap().stderr.to_bytes()).unwrap()
    };
    assert_eq!(said(collecting(&["*.txt"])).await, "", "the control");
    let expected = "Nothing to collect: no file matches '*.png', 'out/**'\n";
    assert_eq!(said(collecting(&["*.png", "*.txt", "out/**"])).await, expected);
    let many: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(said(collecting(&many)).await.ends_with("'6', '7' and 12 more patterns\n"));
    let mut optional = collecting(&["*.png"]);
    optional.execution.collect[0] = Glob::parse("*.png").unwrap().optional();
    assert_eq!(said(optional).await, "");
}

#[test]
fn explaining_starts_nothing() {
    let backend = Script::of(vec![], Ending::Exited(0)).backend();
    assert_eq!(engine(&backend).explain(&Allowance::everything(), defaults()).unwrap(), "play main.mjs\n");
    assert!(backend.log.lock().unwrap().is_empty());
}

proptest! {
    #[test]
    fn what_was_shown_live_and_what_came_after_are_the_whole(
        pieces in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..80)), 0..20),
        limit in 64u64..400,
        timed_out in any::<bool>(),
    ) {
        let mut acts: Vec<Act> = pieces.iter().map(|(out, bytes)| {
            Act::Say(if *out { Stream::Stdout } else { Stream::Stderr }, bytes.clone())
        }).collect();
        if timed_out {
            acts.push(Act::Sleep(1000 * SECOND));
        }
        let limits = LimitsRequest { output: Some(limit), ..LimitsRequest::default() };
        let mut live = Live::default();
        let engine = engine(&Script::of(acts, Ending::Exited(0)).backend());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let report = runtime.block_on(run(&engine, request(limits), &mut live, pending())).unwrap();
        live.stdout.extend(report.stdout.after_head());
        live.stderr.extend(report.stderr.after_head());
        prop_assert_eq!(&live.stdout, &report.stdout.to_bytes());
        prop_assert_eq!(&live.stderr, &report.stderr.to_bytes());
        let note = b"Execution timed out after 10s\n";
        prop_assert_eq!(live.stderr.ends_with(note), timed_out);
    }
}

/// Finds the code itself.
#[derive(Debug)]
struct Reader;

impl Scanner for Reader {
    fn scan(&self, subject: &Subject) -> Result<Scanned, Unscanned> {
        if subject.code.bytes() == b"const = 1" {
            return Err(Unscanned { reason: "it hurts".to_owned() });
        }
        let place = Position { line: 1, column: 1 };
        let rule = subject.language.name.to_owned();
        let (message, excerpt) = (String::new(), String::from_utf8_lossy(subject.code.bytes()).into_owned());
        let (severity, start, end, within) = (Severity::Low, place, place, None);
        let findings = vec![Finding { rule, severity, message, start, end, excerpt, within }];
        Ok(Scanned { findings, launches: Vec::new() })
    }
}

#[tokio::test(start_paused = true)]
async fn the_code_of_runs_is_scanned_if_that_is_wanted() {
    let scanned = async |scanning: Scanning, code: &[u8]| {
        let engine = engine(&Script::of(Vec::new(), Ending::Exited(0)).backend())
            .with_scanner(Arc::new(Reader), scanning);
        let mut request = request(LimitsRequest::default());
        request.execution.code = Code::parse(code.to_vec(), None).unwrap();
        run(&engine, request, &mut Unobserved, pending()).await.map(|report| report.findings)
    };
    let found = scanned(Scanning::EveryRun, b"let x = 1").await.unwrap();
    assert_eq!(found.iter().map(|finding| finding.excerpt.as_str()).collect::<Vec<_>>(), ["let x = 1"]);
    assert_eq!(scanned(Scanning::OnRequest, b"let x = 1").await.unwrap(), []);
    let failed = scanned(Scanning::EveryRun, b"const = 1").await.unwrap_err();
    assert!(
        matches!(failed, RunError::Unscanned(_)),
        "code that could not be scanned does not run: {failed}"
    );
}

#[tokio::test]
async fn an_engine_without_a_scanner_says_so() {
    let subject = || Subject {
        language: Language::by_name("sh").unwrap(),
        code: Code::parse(b"echo".to_vec(), None).unwrap(),
        allowed_imports: None,
    };
    let engine = engine(&Script::of(Vec::new(), Ending::Exited(0)).backend());
    assert!(matches!(engine.scan(subject()).await, Err(RunError::Unscanned(_))));
    let engine = engine.with_scanner(Arc::new(Reader), Scanning::OnRequest);
    assert_eq!(engine.scan(subject()).await.unwrap()[0].rule, "sh", "the control");
}
