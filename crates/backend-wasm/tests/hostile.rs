//! Hostile modules in the place of an interpreter: a flaw in an interpreter could make it do what they do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use belljar_core::backend::{
    Backend, BackendError, Compiled, Ending, Event, ExecutionSpec, Finished, SandboxSpec, Source, Stream,
    Work,
};
use belljar_core::guarantee::resolve;
use belljar_core::language::Language;
use belljar_core::limits::LimitsRequest;
use belljar_core::path::{BoxPath, Workspace};
use belljar_core::request::{Network, Stdin};
use belljar_wasm::{Interpreter, Shelf, Wasm, install_from};

/// What a module did.
struct Ran {
    finished: Finished,
    stdout: Vec<u8>,
    stderr: String,
}

/// A backend whose Python is this module.
struct Bench {
    state: tempfile::TempDir,
    limits: LimitsRequest,
    workspace: Option<Workspace>,
    /// The time after which it is killed.
    patience: Duration,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("module.wasm");
        std::fs::write(&file, wat::parse_str(text).unwrap()).unwrap();
        let python = Interpreter::of(Language::parse("python").unwrap()).unwrap();
        install_from(&Shelf::new(state.path()), python, &file, &mut |_| {}).unwrap();
        Bench { state, limits: LimitsRequest::default(), workspace: None, patience: Duration::from_secs(2) }
    }

    /// A module with these imports, memory, and this body.
    fn calling(imports: &[(&str, &str)], body: &str) -> Bench {
        let import = |(name, types): &(&str, &str)| {
            format!(
                "(import \"wasi_snapshot_preview1\" \"{name}\" (func ${name} (param {types}) (result i32)))"
            )
        };
        let imports: String = imports.iter().map(import).collect();
        Bench::new(&format!(
            "(module {imports}
               (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $exit (param i32)))
               (memory (export \"memory\") 2)
               (func (export \"_start\") {body}))"
        ))
    }

    fn limit(mut self, limits: LimitsRequest) -> Bench {
        self.limits = limits;
        self
    }

    async fn begin(&self) -> Result<Box<dyn belljar_core::backend::Execution>, BackendError> {
        let wasm = Wasm::open(Some(self.state.path().to_owned()));
        let (limits, execution) = self.limits.resolve().unwrap();
        let sandbox = SandboxSpec {
            limits,
            network: Network::None,
            secrets: Vec::new(),
            workspace: self.workspace.clone(),
            env: Vec::new(),
            image: None,
            enforcement: resolve(wasm.offer(), &[]).unwrap(),
        };
        let program = ExecutionSpec {
            id: "run_test".into(),
            language: Language::parse("python").unwrap(),
            source: Source {
                name: BoxPath::parse("main.py").unwrap(),
                named_by_caller: false,
                in_workspace: false,
                text: b"code".to_vec(),
            },
            args: Vec::new(),
            stdin: Stdin::Stream(Box::new(Silent)),
            files: Vec::new(),
            collect: Vec::new(),
            limits: execution,
            work: Work::Run(Compiled::default()),
        };
        wasm.start(sandbox, program, &|_| {}).await
    }

    /// Runs it, and kills it after a while as the engine would.
    async fn run(&self) -> Ran {
        let mut running = self.begin().await.unwrap();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let deadline = tokio::time::sleep(self.patience);
        tokio::pin!(deadline);
        let mut killed = false;
        loop {
            tokio::select! {
                () = &mut deadline, if !killed => { running.kill(); killed = true; }
                event = running.next_event() => match event.unwrap() {
                    Event::Output(Stream::Stdout, bytes) if stdout.len() < 1 << 20 => stdout.extend_from_slice(bytes),
                    Event::Output(Stream::Stderr, bytes) => stderr.extend_from_slice(bytes),
                    Event::Output(Stream::Stdout, _) => {}
                    Event::Network(_) => panic!("there is no network"),
                    Event::Ended => break,
                },
            }
        }
        let finished = running.finish().await.unwrap();
        Ran { finished, stdout, stderr: String::from_utf8(stderr).unwrap() }
    }

    /// The status with which it ends.
    async fn status(&self) -> u8 {
        let ending = self.run().await.finished.ending;
        let Ending::Exited(code) = ending else { panic!("it did not exit: {ending:?}") };
        code
    }
}

/// Input that never comes.
struct Silent;

impl std::io::Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_secs(3600));
        Ok(0)
    }
}

const KILLED: Ending = Ending::Signaled(9);
const NOENT: u8 = 44;

#[tokio::test]
async fn a_loop_a_sleep_and_a_read_without_end_are_ended_when_told() {
    let endless = Bench::calling(&[], "(loop (br 0))");
    assert_eq!(endless.run().await.finished.ending, KILLED);
    // A subscription to the clock, a long time from now.
    let sleeping = Bench::calling(
        &[("poll_oneoff", "i32 i32 i32 i32")],
        "(i64.store (i32.const 24) (i64.const 0x7fffffffffffffff))
         (drop (call $poll_oneoff (i32.const 0) (i32.const 256) (i32.const 1) (i32.const 512)))",
    );
    assert_eq!(sleeping.run().await.finished.ending, KILLED);
    let reading = Bench::calling(
        &[("fd_read", "i32 i32 i32 i32")],
        "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 64))
         (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 128)))",
    );
    assert_eq!(reading.run().await.finished.ending, KILLED);
}

#[tokio::test]
async fn a_flood_is_drained_and_bounded_and_ended_when_told() {
    let flooding = Bench::calling(
        &[("fd_write", "i32 i32 i32 i32")],
        "(i32.store (i32.const 4) (i32.const 65536))
         (loop (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 128))) (br 0))",
    );
    let ran = flooding.run().await;
    assert_eq!(ran.finished.ending, KILLED);
    assert!(ran.stdout.len() > 100_000, "what it wrote was seen");
}

#[tokio::test]
async fn memory_that_grows_without_end_is_out_of_memory_and_within_the_limit_is_not() {
    let limits = LimitsRequest { memory: Some(16 << 20), ..LimitsRequest::default() };
    let growing = Bench::calling(&[], "(loop (drop (memory.grow (i32.const 1))) (br 0))").limit(limits);
    let finished = growing.run().await.finished;
    assert_eq!(finished.ending, Ending::OutOfMemory);
    assert!(finished.memory_peak <= 16 << 20, "{}", finished.memory_peak);
    let modest = Bench::calling(&[], "(drop (memory.grow (i32.const 100)))").limit(limits);
    assert_eq!(modest.status().await, 0);
}

#[tokio::test]
async fn cpu_time_is_limited_separately_and_a_rate_slows_down() {
    let time = Some(Duration::from_millis(200));
    let limits = LimitsRequest { cpu_time: time, ..LimitsRequest::default() };
    let mut computing = Bench::calling(&[], "(loop (br 0))").limit(limits);
    computing.patience = Duration::from_secs(60);
    let finished = computing.run().await.finished;
    assert_eq!(finished.ending, Ending::CpuTimeExhausted);
    assert!(finished.cpu >= Duration::from_millis(200));
    let limits = LimitsRequest { cpus: Some(0.2), ..LimitsRequest::default() };
    let slow = Bench::calling(&[], "(loop (br 0))").limit(limits);
    let used = slow.run().await.finished.cpu;
    // A fifth of two seconds, with some tolerance.
    assert!(used < Duration::from_millis(1000), "{used:?}");
}

#[tokio::test]
async fn traps_are_the_signals_that_they_would_have_been_and_are_told() {
    for (body, signal, words) in [
        ("unreachable", 6, "unreachable"),
        ("(drop (i32.load (i32.const -1)))", 11, "out of bounds memory access"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", 8, "integer divide by zero"),
    ] {
        let ran = Bench::calling(&[], body).run().await;
        assert_eq!(ran.finished.ending, Ending::Signaled(signal), "{body}");
        assert!(ran.stderr.contains(words), "{body}: {}", ran.stderr);
    }
    let recursing = Bench::new(
        "(module (memory (export \"memory\") 1) (func $again (call $again) (call $again))
           (func (export \"_start\") (call $again)))",
    );
    assert_eq!(recursing.run().await.finished.ending, Ending::Signaled(11));
}

#[tokio::test]
async fn addresses_outside_of_the_memory_are_refused_in_every_call() {
    const FAULT: u8 = 21;
    let far = "(i32.const -4)";
    for (name, types, args) in [
        ("args_sizes_get", "i32 i32", format!("{far} {far}")),
        ("environ_get", "i32 i32", format!("{far} {far}")),
        ("clock_time_get", "i32 i64 i32", format!("(i32.const 0) (i64.const 0) {far}")),
        ("fd_fdstat_get", "i32 i32", format!("(i32.const 1) {far}")),
        ("fd_filestat_get", "i32 i32", format!("(i32.const 3) {far}")),
        ("fd_prestat_get", "i32 i32", format!("(i32.const 3) {far}")),
        ("fd_read", "i32 i32 i32 i32", format!("(i32.const 0) {far} (i32.const 9) {far}")),
        ("fd_write", "i32 i32 i32 i32", format!("(i32.const 1) {far} (i32.const 9) {far}")),
        ("path_create_directory", "i32 i32 i32", format!("(i32.const 3) {far} (i32.const 99)")),
        ("poll_oneoff", "i32 i32 i32 i32", format!("{far} {far} (i32.const 2) {far}")),
        ("random_get", "i32 i32", format!("{far} (i32.const 64)")),
    ] {
        let bench = Bench::calling(&[(name, types)], &format!("(call $exit (call ${name} {args}))"));
        assert_eq!(bench.status().await, FAULT, "{name}");
    }
}

/// Opens a path from the root, and ends with the error.
async fn opening(path: &str, workspace: Option<&Path>) -> u8 {
    let text = format!(
        "(module
           (import \"wasi_snapshot_preview1\" \"path_open\"
             (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
           (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $exit (param i32)))
           (memory (export \"memory\") 1)
           (data (i32.const 64) \"{path}\")
           (func (export \"_start\")
             (call $exit (call $open (i32.const 3) (i32.const 1) (i32.const 64) (i32.const {}) (i32.const 0)
               (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 0)))))",
        path.len()
    );
    let mut bench = Bench::new(&text);
    bench.workspace = workspace.map(|dir| Workspace::parse(dir).unwrap());
    bench.status().await
}

#[tokio::test]
async fn no_path_and_no_link_leads_out_of_the_box() {
    const ACCES: u8 = 2;
    const LOOP: u8 = 32;
    let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    let secret = secret.to_str().unwrap();
    std::fs::write(inside.path().join("seen"), "x").unwrap();
    let link =
        |name: &str, target: &str| std::os::unix::fs::symlink(target, inside.path().join(name)).unwrap();
    link("absolute", secret);
    link("relative", &format!("{}{secret}", "../".repeat(20)));
    link("magic", "/proc/self/root");
    link("round", "round");
    link("good", "./seen");
    rustix::fs::mkfifoat(rustix::fs::CWD, inside.path().join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let work = Some(inside.path());
    assert_eq!(opening("sandbox/main.py", None).await, 0, "the control");
    assert_eq!(opening("work/seen", work).await, 0, "the control");
    assert_eq!(opening("work/good", work).await, 0, "the control");
    for path in
        ["../../../../../etc/passwd", "/etc/passwd", "sandbox/../../etc/passwd", "proc/self/environ", secret]
    {
        assert_eq!(opening(path, None).await, NOENT, "{path}");
    }
    for path in ["work/absolute", "work/relative", "work/magic/etc/passwd", "work/../../../etc/passwd"] {
        assert_eq!(opening(path, work).await, NOENT, "{path}");
    }
    assert_eq!(opening("work/round", work).await, LOOP);
    assert_eq!(opening("work/pipe", work).await, ACCES, "nothing waits for a writer");
}

#[tokio::test]
async fn a_module_that_wants_more_than_the_system_is_not_run() {
    let bench = Bench::new(
        "(module (import \"env\" \"system\" (func (param i32) (result i32)))
           (memory (export \"memory\") 1) (func (export \"_start\")))",
    );
    let refused = bench.begin().await.err().expect("it is refused");
    assert!(matches!(refused, BackendError::Setup { .. }), "{refused:?}");
}

#[tokio::test]
async fn what_was_compiled_is_not_loaded_when_it_was_changed_or_others_could() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::calling(&[], "(call $exit (i32.const 7))");
    assert_eq!(bench.status().await, 7, "the control");
    let dir = bench.state.path().join("wasm");
    let compiled = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let compiled =
        compiled.into_iter().find(|path| path.extension().is_some_and(|it| it == "cwasm")).unwrap();
    let before = std::fs::read(&compiled).unwrap();
    let mut after = before.clone();
    *after.last_mut().unwrap() ^= 1;
    std::fs::write(&compiled, &after).unwrap();
    assert_eq!(bench.status().await, 7, "it is compiled again");
    assert_eq!(std::fs::read(&compiled).unwrap(), before);

    std::fs::write(dir.join("python.wasm"), "changed").unwrap();
    std::fs::write(&compiled, &after).unwrap();
    assert!(matches!(bench.begin().await.err(), Some(BackendError::Setup { .. })), "neither is what it was");

    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(bench.begin().await.err(), Some(BackendError::RuntimeMissing { .. })), "others could");
}
