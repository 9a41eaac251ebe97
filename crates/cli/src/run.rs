//! `belljar run`: from the command line to a request, to a report, to output and an exit status.

mod elsewhere;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use belljar_core::Field;
use belljar_core::allowance::Allowance;
use belljar_core::backend::{PullEvent, Stream};
use belljar_core::egress::NetworkEvent;
use belljar_core::limits::{BoxLimits, Bytes, ExecutionLimits, show_duration};
use belljar_core::outcome::{CollectedFile, Outcome, Report, Stage, Start, TimeLimit, Usage};
use belljar_core::policy::{Action, Policy};
use belljar_core::request::{self as domain, BackendName};
use belljar_engine::{
    Admission, Admitted, Engine, Observer, Origin, Rights, RunId, Started, Unobserved, WayIn,
};
use belljar_jail::Standby;
use belljar_wire::{
    Code, Local, LocalCode, LocalFile, OutputForm, Plan, Problem, RunRequest, RunResult, to_json,
};
use rustix::process::geteuid;

use crate::approvals::configured::for_command;
use crate::args::{RunArgs, Verbosity};
use crate::audit::configured::Planned;
use crate::cancel::Signals;
use crate::collect::{Existing, Unwritten, WhyUnwritten, write_beneath};
use crate::configuration::{Configuration, FolderFile};
use crate::mistaken::module_for_memory;
use crate::output::PassThrough;
use crate::policy::{self, terminal};
use crate::problem::{self, say};
use crate::progress::PullProgress;
use crate::settings::{Environment, Settings};
use crate::source::{Meant, Place, meant};
use crate::{compose, scanner};

pub(crate) fn run(
    args: RunArgs,
    verbosity: Verbosity,
    environment: Environment<'_>,
    standby: Option<Standby>,
) -> ExitCode {
    let json = args.json;
    let attempted = match (module_for_memory(&args), args.url.clone()) {
        (Some(problem), _) => Err(problem),
        (None, None) => attempt(args, verbosity, environment, standby),
        (None, Some(url)) => {
            drop(standby);
            elsewhere::attempt(args, &url, verbosity, environment)
        }
    };
    match attempted {
        Ok(status) => ExitCode::from(status),
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::RUN_FAILED)
        }
    }
}

fn attempt(
    args: RunArgs,
    verbosity: Verbosity,
    environment: Environment<'_>,
    standby: Option<Standby>,
) -> Result<u8, Problem> {
    let settings = settings_here(&args, verbosity, environment)?;
    // Another backend cannot use the box that was made ahead, which would stay until the end of the run.
    let standby = standby.filter(|_| settings.may_be_native());
    let delivery = Delivery::of(&args);
    let scanning = settings.scan.scanning();
    let ledger = Planned::of_command(&settings, 1)?;
    let policy = settings.policies.general.clone();
    // What is open asks nobody, and need not open a file.
    let elsewhere = || if policy.is_open() { Ok(None) } else { for_command(&settings) };
    let approver = terminal::approver(args.yes, elsewhere)?;
    let (request, host) = asked(args, settings)?;
    let engine = compose::engine(host, standby).with_scanner(scanner::single(), scanning);
    let mut engine = engine.with_approver(approver);
    if let Some(ledger) = ledger {
        engine = engine.with_recorder(ledger.write_once()?);
    }
    match delivery {
        Delivery::Plan { json } => explain(&engine, &policy, request, json),
        Delivery::PassThrough { destination } => {
            let mut passed = PassThrough::to_our_own();
            let report = drive(&engine, &policy, request, &mut passed, verbosity)?;
            passed.finish(&report).map_err(|cause| undeliverable("its output", &cause))?;
            bring_back(report.files.as_deref(), &destination, verbosity)?;
            narrate_end(&report, verbosity);
            Ok(report.outcome.exit_code())
        }
        Delivery::Json { form, destination } => {
            let report = drive(&engine, &policy, request, &mut Unobserved, verbosity)?;
            if let Some(destination) = destination {
                bring_back(report.files.as_deref(), &destination, verbosity)?;
            }
            let status = report.outcome.exit_code();
            say(&to_json(&RunResult::new(&report, form)));
            narrate_end(&report, verbosity);
            Ok(status)
        }
    }
}

/// The settings, with the restrictions of the working directory.
pub(crate) fn settings_here(
    args: &RunArgs,
    verbosity: Verbosity,
    environment: Environment<'_>,
) -> Result<Settings, Problem> {
    let named = args.config.as_deref();
    let folder = FolderFile::find(named, environment)?;
    if geteuid().is_root() {
        FolderFile::tell_if_overlooked(named, verbosity, environment);
    } else if let Some(note) = folder.note().filter(|_| verbosity == Verbosity::Verbose) {
        problem::note(&note);
    }
    let choose = || Configuration::choose(named, environment);
    Settings::gather_with(&args.choices, &choose, &folder, environment)
}

/// What the caller gets, and where it goes.
enum Delivery {
    Plan { json: bool },
    PassThrough { destination: Destination },
    Json { form: OutputForm, destination: Option<Destination> },
}

/// Where collected files go.
struct Destination {
    directory: PathBuf,
    existing: Existing,
}

impl Delivery {
    fn of(args: &RunArgs) -> Delivery {
        let form = if args.base64 { OutputForm::TextAndBase64 } else { OutputForm::Text };
        let existing = if args.overwrite { Existing::Replace } else { Existing::Keep };
        let collect_to = args.collect_to.clone();
        match args {
            RunArgs { explain: true, json, .. } => Delivery::Plan { json: *json },
            RunArgs { json: true, .. } => {
                let destination = collect_to.map(|directory| Destination { directory, existing });
                Delivery::Json { form, destination }
            }
            _ => {
                let directory = collect_to.unwrap_or_else(|| ".".into());
                Delivery::PassThrough { destination: Destination { directory, existing } }
            }
        }
    }
}

/// What would be done, and what the policy would say.
fn explain(engine: &Engine, policy: &Policy, request: domain::RunRequest, json: bool) -> Result<u8, Problem> {
    let rights = Rights { allowance: &Allowance::everything(), policy, scans: None };
    let appraised = event_loop()?.block_on(engine.appraise(&origin(), rights, request))?;
    let decided = format!("\npolicy:\n{}", policy::described(&appraised));
    let text = engine.explain(&Allowance::everything(), appraised.request)? + &decided;
    if json {
        say(&to_json(&Plan { plan: text.lines().map(str::to_owned).collect() }));
    } else {
        say(&text);
    }
    Ok(0)
}

fn event_loop() -> Result<tokio::runtime::Runtime, Problem> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)
}

fn cannot(cause: io::Error) -> Problem {
    let message = format!("cannot set up the event loop: {cause}");
    Problem::new(Code::Internal, message, "check the limit on open files (ulimit -n)")
}

/// Runs the request on one thread; signals cancel it.
fn drive(
    engine: &Engine,
    policy: &Policy,
    request: domain::RunRequest,
    observer: &mut dyn Observer,
    verbosity: Verbosity,
) -> Result<Report, Problem> {
    let memory = request.sandbox.limits.memory;
    let limits = (verbosity == Verbosity::Verbose).then(|| described_limits(&request));
    let mut narrator = Narrator { limits, observer };
    let mut observer = PullProgress::new(verbosity, &mut narrator);
    let runtime = event_loop()?;
    runtime.block_on(async {
        let signals = Signals::listen().map_err(cannot)?;
        let impatient = signals.impatient();
        // A backend may wait for a daemon, on this thread, before there is anything to clean up.
        impatient.now();
        let rights = Rights { allowance: &Allowance::everything(), policy, scans: None };
        let admission = engine.admit(&origin(), rights, request).await?;
        impatient.later();
        if let Admission::Admitted(admitted) = &admission {
            warn_of(admitted, verbosity);
            warn_of_memory(admitted.backend(), memory, verbosity);
        }
        let report = engine.carry_out(&RunId::new(), admission, &mut observer, signals.first()).await;
        impatient.now();
        Ok(report?)
    })
}

/// Warns about a run that is about to begin.
fn warn_of(admitted: &Admitted, verbosity: Verbosity) {
    problem::warn_of(admitted.backend(), admitted.enforcement().waived(), verbosity);
    if let Some(decision) = admitted.decision().filter(|decision| decision.action == Action::Warn) {
        problem::warn(&format!("the policy warns: {}", decision.reason), verbosity);
    }
}

/// Warns about a limit that will not be reached. Docker's daemon may be on another machine.
fn warn_of_memory(backend: BackendName, limit: Bytes, verbosity: Verbosity) {
    let info = rustix::system::sysinfo();
    let units = (info.totalram as u64).saturating_add(info.totalswap as u64);
    let machine = units.saturating_mul(info.mem_unit.into());
    if let Some(text) = beyond(limit, machine).filter(|_| backend != BackendName::Docker) {
        problem::warn(&text, verbosity);
    }
}

fn beyond(limit: Bytes, machine: u64) -> Option<String> {
    let has = machine as f64 / f64::from(1 << 30);
    (limit.get() > machine).then(|| {
        format!(
            "the memory limit is {limit}, but this machine has only {has:.1} GiB, and runs out of it first"
        )
    })
}

/// Who runs something from the command line.
pub(crate) fn origin() -> Origin {
    let caller = format!("uid:{}", rustix::process::getuid().as_raw());
    Origin { caller: caller.into(), surface: WayIn::CommandLine, peer: None, cells: None }
}

/// Says with `--verbose` how the program was started and what it does with its network, and passes everything on to another
/// observer.
#[derive(Debug)]
struct Narrator<'a> {
    /// The limits in words, with `--verbose`.
    limits: Option<String>,
    observer: &'a mut dyn Observer,
}

impl Observer for Narrator<'_> {
    fn pulling(&mut self, event: &PullEvent) {
        self.observer.pulling(event);
    }

    fn started(&mut self, started: &Started<'_>) {
        if let Some(limits) = &self.limits {
            let Started { runtime, backend, start, image, .. } = started;
            let image = image.map(|image| format!(", image {image}")).unwrap_or_default();
            problem::note(&format!("{backend} backend, {runtime}{image}, {} start", start_name(*start)));
            problem::note(limits);
        }
        self.observer.started(started);
    }

    fn next_stage(&mut self) {
        self.observer.next_stage();
    }

    fn network(&mut self, event: &NetworkEvent) {
        if self.limits.is_some() {
            note_network(event);
        }
        self.observer.network(event);
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        self.observer.output(stream, bytes)
    }
}

/// Says what a program does with its network.
fn note_network(event: &NetworkEvent) {
    problem::note(&format!("network: {event}"));
}

fn start_name(start: Start) -> &'static str {
    match start {
        Start::Warm => "warm",
        Start::Zygote => "zygote",
        Start::Cold => "cold",
    }
}

fn described_limits(request: &domain::RunRequest) -> String {
    let BoxLimits { memory, cpus, pids, disk } = request.sandbox.limits;
    let ExecutionLimits { timeout, cpu_time, output, compile, .. } = request.execution.limits;
    let compiler = match request.execution.language.is_compiled() {
        true => format!(
            "; compile-timeout {}, compile-memory {}",
            show_duration(compile.timeout),
            compile.sandbox.memory
        ),
        false => String::new(),
    };
    let timeout = show_duration(timeout);
    let cpu_time = cpu_time.map_or("none".to_owned(), show_duration);
    let network = &request.sandbox.network;
    format!(
        "limits: timeout {timeout}, cpu-time {cpu_time}, memory {memory}, cpus {cpus}, pids {pids}, \
         disk {disk}, output-limit {output}{compiler}; network {network}"
    )
}

/// Says with `--verbose` how the run ended.
fn narrate_end(report: &Report, verbosity: Verbosity) {
    if verbosity != Verbosity::Verbose {
        return;
    }
    if let Some(compiler) = &report.compile {
        problem::note(&format!("the compiler {}", ended(compiler.outcome, compiler.usage)));
    }
    if report.stage == Stage::Run {
        problem::note(&ended(report.outcome, report.usage));
    }
    if !report.enforcement.waived().is_empty() {
        let waived: Vec<_> = report.enforcement.waived().iter().map(|guarantee| guarantee.name()).collect();
        problem::note(&format!("not guaranteed: {}", waived.join(", ")));
    }
}

fn ended(outcome: Outcome, usage: Usage) -> String {
    let Usage { wall, cpu, memory_peak, .. } = usage;
    let [wall, cpu] = [wall, cpu].map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
    let memory = format!("{:.1} MiB", memory_peak as f64 / f64::from(1 << 20));
    format!("{} after {wall} ({cpu} of CPU time, peak memory {memory})", ending(outcome))
}

fn ending(outcome: Outcome) -> String {
    match outcome {
        Outcome::Exited(status) => format!("exited with status {status}"),
        Outcome::Signaled(signal) => format!("killed by signal {signal}"),
        Outcome::TimedOut(TimeLimit::Wall(limit)) => format!("timed out, limit {}", show_duration(limit)),
        Outcome::TimedOut(TimeLimit::Cpu(limit)) => {
            format!("used up its CPU time, limit {}", show_duration(limit))
        }
        Outcome::OutOfMemory => "ran out of memory".to_owned(),
        Outcome::Cancelled(_) => "cancelled".to_owned(),
        Outcome::Denied => "denied by the policy".to_owned(),
    }
}

/// The most files that are named in messages about files which were not written: the program chose their number.
const MOST_NAMED: usize = 10;

/// Writes the collected files. A file that is refused is a warning as long as there are others: the run took place, and
/// its exit status says how it ended.
fn bring_back(
    files: Option<&[CollectedFile]>,
    destination: &Destination,
    verbosity: Verbosity,
) -> Result<(), Problem> {
    let Some(files) = files.filter(|files| !files.is_empty()) else { return Ok(()) };
    let Destination { directory, existing } = destination;
    let unwritten =
        write_beneath(directory, files, *existing).map_err(|(path, cause)| undeliverable(&path, &cause))?;
    if unwritten.len() == files.len() {
        return Err(nothing_written(&unwritten));
    }
    for line in named(&unwritten) {
        problem::warn(&line, verbosity);
    }
    if unwritten.iter().any(|one| one.why == WhyUnwritten::Exists) {
        problem::warn("existing files are replaced only with --overwrite", verbosity);
    }
    Ok(())
}

fn named(unwritten: &[Unwritten]) -> Vec<String> {
    let mut lines: Vec<_> = unwritten.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    if unwritten.len() > MOST_NAMED {
        lines.push(format!("{} more files were not written", unwritten.len() - MOST_NAMED));
    }
    lines
}

fn nothing_written(unwritten: &[Unwritten]) -> Problem {
    let hint = match unwritten.iter().any(|one| one.why == WhyUnwritten::Exists) {
        true => "replace existing files with --overwrite, or choose another directory with --collect-to",
        false => "choose other files with --collect, or get them in the result with --json",
    };
    let message = format!("the program ran, but {}", named(unwritten).join("; "));
    Problem::new(Code::InvalidRequest, message, hint).at(Field::Collect)
}

fn undeliverable(what: &str, cause: &io::Error) -> Problem {
    let message = format!("the program ran, but {what} could not be written: {cause}");
    Problem::new(Code::Internal, message, "free some space or choose another directory, and run it again")
}

/// The request that the command line asks for, and what the backends need to know about this host.
pub(crate) fn asked(
    args: RunArgs,
    settings: Settings,
) -> Result<(domain::RunRequest, crate::settings::Host), Problem> {
    let (request, local, host) = written(args, settings)?;
    Ok((request.parse(local)?, host))
}

/// The same as it is written, and what has no good place in JSON.
fn written(args: RunArgs, settings: Settings) -> Result<(RunRequest, Local, crate::settings::Host), Problem> {
    let meant =
        meant(&args.words, args.language.as_deref(), args.code.as_deref(), io::stdin().is_terminal())?;
    let stdin = standard_input(args.stdin.as_deref(), &meant)?;
    let files = args.file.iter().map(|given| local_file(given)).collect::<Result<Vec<_>, _>>()?;
    let env = variables(args.env)?;
    let workspace = args.workspace.as_deref().map(workspace).transpose()?;
    let (language, code) = meant.read(settings.language, workspace.as_deref().map(Path::new), &files)?;
    let (text, code) = as_text(code);
    let request = RunRequest {
        language: language.name.to_owned(),
        code: text,
        stdin: None,
        args: args.args,
        env,
        files: Vec::new(),
        collect: args.collect,
        limits: settings.limits,
        network: settings.network,
        secrets: args.secret,
        image: settings.image,
        backend: settings.backend,
        workspace,
        writable: args.writable,
        changes: args.changes,
        waive: settings.waive,
        output_base64: args.base64,
        plots: args.plots,
        // Whoever reads JSON may compare what a program wrote.
        hints: !args.json,
        allowed_imports: args.allowed_imports,
    };
    Ok((request, Local { code, stdin, files, ..Local::default() }, settings.host))
}

/// Code that is text and has no file name goes into the request itself.
fn as_text(code: LocalCode) -> (String, Option<LocalCode>) {
    if code.file_name.is_some() {
        return (String::new(), Some(code));
    }
    match String::from_utf8(code.bytes) {
        Ok(text) => (text, None),
        Err(fault) => (String::new(), Some(LocalCode { bytes: fault.into_bytes(), ..code })),
    }
}

fn standard_input(given: Option<&Path>, meant: &Meant) -> Result<Option<Box<dyn Read + Send>>, Problem> {
    match given {
        None => Ok(None),
        Some(path) if path == "-" && meant.place == Place::Stdin => {
            let message = "standard input cannot be both the code and the input of the program";
            let hint = "pass the code with -c or as a file";
            Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Stdin))
        }
        Some(path) if path == "-" => Ok(Some(Box::new(io::stdin()))),
        Some(path) => match open_for_reading(path) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(cause) => {
                let message =
                    format!("cannot read the input of the program from {}: {cause}", path.display());
                let hint = "name a readable file, or - to pass your own standard input through";
                Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Stdin))
            }
        },
    }
}

/// The most that is copied from one file. Larger ones belong in a workspace, which is mounted and not copied.
const MAX_FILE: u64 = 256 << 20;

/// `SRC[:DEST]`; what stands after the last colon is DEST, and by default the name of SRC.
fn local_file(given: &OsStr) -> Result<LocalFile, Problem> {
    let (source, path) = split_file(given)?;
    let refused = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot copy the file {}: {cause}", source.display());
        let hint = "write --file SRC or --file SRC:DEST, where SRC is a readable file; \
                    --workspace mounts a whole directory";
        Problem::new(Code::InvalidRequest, message, hint).at(Field::Files)
    };
    let file = open_for_reading(source).map_err(|cause| refused(&cause))?;
    let executable = file.metadata().is_ok_and(|data| data.permissions().mode() & 0o111 != 0);
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content).map_err(|cause| refused(&cause))?;
    if content.len() as u64 > MAX_FILE {
        return Err(refused(&"it is larger than 256M"));
    }
    Ok(LocalFile { path, content, executable })
}

fn split_file(given: &OsStr) -> Result<(&Path, String), Problem> {
    let bytes = given.as_bytes();
    let (source, name) = match bytes.iter().rposition(|byte| *byte == b':') {
        Some(colon) => {
            (Path::new(OsStr::from_bytes(&bytes[..colon])), OsStr::from_bytes(&bytes[colon + 1..]))
        }
        None => (Path::new(given), Path::new(given).file_name().unwrap_or(given)),
    };
    let name = name.to_str().ok_or_else(|| {
        let message = format!("the name {} is not UTF-8", name.display());
        Problem::new(Code::InvalidRequest, message, "name it with --file SRC:DEST").at(Field::Files)
    })?;
    Ok((source, name.to_owned()))
}

fn open_for_reading(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(file)
}

fn variables(given: Vec<String>) -> Result<BTreeMap<String, String>, Problem> {
    given.into_iter().map(variable).collect()
}

fn variable(given: String) -> Result<(String, String), Problem> {
    match given.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => {
            let message = format!("the variable '{}' has no value", given.escape_debug());
            let hint = format!("write --env {given}=VALUE, or --env {given}=\"${given}\" to pass your own");
            Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Env))
        }
    }
}

/// The workspace as an absolute path. The root of the file system is recognized by any name.
fn workspace(given: &Path) -> Result<String, Problem> {
    let refused = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot mount the workspace {}: {cause}", given.display());
        let hint = "name a directory that exists, such as --workspace .";
        Problem::new(Code::InvalidRequest, message, hint).at(Field::Workspace)
    };
    let found = std::fs::metadata(given).map_err(|cause| refused(&cause))?;
    if !found.is_dir() {
        return Err(refused(&io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let is_root =
        std::fs::metadata("/").is_ok_and(|root| (root.dev(), root.ino()) == (found.dev(), found.ino()));
    let path = if is_root {
        PathBuf::from("/")
    } else {
        std::path::absolute(given).map_err(|cause| refused(&cause))?
    };
    path.into_os_string()
        .into_string()
        .map_err(|path: OsString| refused(&format!("its path, {}, is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn message<T>(result: Result<T, Problem>) -> String {
        result.err().map(|problem| problem.error.message).unwrap_or_default()
    }

    #[test]
    fn a_memory_limit_beyond_the_machine_is_warned_of() {
        let warning = "the memory limit is 64G, but this machine has only 23.5 GiB, and runs out of it first";
        assert_eq!(beyond(Bytes::new(64 << 30), 47 << 29).as_deref(), Some(warning));
        assert_eq!(beyond(Bytes::new(47 << 29), 47 << 29), None);
    }

    #[test]
    fn a_file_goes_by_its_own_name_or_by_the_one_after_the_last_colon() {
        let split = |given: &str| {
            let (source, name) = split_file(OsStr::new(given)).unwrap();
            (source.to_str().unwrap().to_owned(), name)
        };
        assert_eq!(split("data/in.csv"), ("data/in.csv".into(), "in.csv".into()));
        assert_eq!(split("data/in.csv:a/b.csv"), ("data/in.csv".into(), "a/b.csv".into()));
        assert_eq!(split("odd:name:b.csv"), ("odd:name".into(), "b.csv".into()));
        assert_eq!(split("x:"), ("x".into(), String::new()));
        assert!(split_file(OsStr::from_bytes(b"a\xff")).is_err());
        assert!(split_file(OsStr::from_bytes(b"a\xff:b")).is_ok());
    }

    #[test]
    fn a_file_keeps_its_bytes_and_its_executable_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        fs::write(&path, b"\0\xff").unwrap();
        assert!(!local_file(path.as_os_str()).unwrap().executable);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let file = local_file(path.as_os_str()).unwrap();
        assert_eq!(
            (file.path.as_str(), file.content.as_slice(), file.executable),
            ("tool", &b"\0\xff"[..], true)
        );
    }

    #[test]
    fn a_file_that_cannot_be_copied_is_a_clear_error() {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display();
        assert_eq!(
            message(local_file(folder.path().as_os_str())),
            format!("cannot copy the file {shown}: is a directory")
        );
        let missing = message(local_file(OsStr::new("/no/such")));
        assert_eq!(missing, "cannot copy the file /no/such: No such file or directory (os error 2)");
        assert!(message(local_file(OsStr::new("/dev/zero"))).ends_with("it is larger than 256M"));
    }

    #[test]
    fn a_variable_needs_a_value_which_may_be_empty_or_hold_an_equals_sign() {
        let given = |text: &str| variable(text.to_owned()).map_err(|problem| problem.error.hint);
        assert_eq!(given("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(given("A="), Ok(("A".into(), String::new())));
        assert_eq!(given("A"), Err("write --env A=VALUE, or --env A=\"$A\" to pass your own".into()));
    }

    #[test]
    fn the_workspace_is_an_absolute_directory_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(workspace(folder.path()).unwrap(), folder.path().to_str().unwrap());
        assert_eq!(workspace(Path::new(".")).unwrap(), std::env::current_dir().unwrap().to_str().unwrap());
        assert!(message(workspace(&file)).ends_with("not a directory"));
        assert!(message(workspace(&folder.path().join("missing"))).contains("No such file or directory"));
    }

    #[test]
    fn the_root_is_recognised_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/", folder.path().join("link")).unwrap();
        for name in ["/", "/..", "/usr/../", folder.path().join("link").to_str().unwrap()] {
            assert_eq!(workspace(Path::new(name)).unwrap(), "/", "{name}");
        }
    }

    #[test]
    fn standard_input_cannot_be_code_and_data_at_once() {
        let from_stdin = meant(&["python".into(), "-".into()], None, None, true).unwrap();
        let both = standard_input(Some(Path::new("-")), &from_stdin);
        assert_eq!(message(both), "standard input cannot be both the code and the input of the program");
        let inline = meant(&["python".into()], None, Some("1"), true).unwrap();
        assert!(standard_input(Some(Path::new("-")), &inline).unwrap().is_some());
        assert!(standard_input(None, &from_stdin).unwrap().is_none());
        let folder = message(standard_input(Some(Path::new("/")), &inline));
        assert_eq!(folder, "cannot read the input of the program from /: is a directory");
    }
}
