//! Turns a request into a command line.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_core::Field;
use belljar_core::backend::{BackendError, ExecutionSpec, PROGRAM, SandboxSpec, Work};
use belljar_core::language::java;
use belljar_core::limits::{Bytes, THREAD_VARIABLES};
use belljar_core::path::BoxPath;
use belljar_core::request::{EnvVar, InputFile};
use belljar_jail::plan::Command;

use crate::runtimes::{BASE_SYSTEM, Runtime};

/// The directories of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Its home.
    pub home: PathBuf,
    /// Where it starts, and where its code is.
    pub cwd: PathBuf,
    /// For its temporary files.
    pub tmp: PathBuf,
}

/// The command that compiles the code, or that is the program.
#[must_use]
pub fn command(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    runtime: &Runtime,
    source: &BoxPath,
    places: &Places,
) -> Command {
    let source = places.cwd.join(source.as_str());
    // Not in the working directory, where a collector would find it.
    let program = places.tmp.join(PROGRAM);
    let heap_mb = heap_mb(sandbox.limits.memory).to_string();
    let runtime_path = runtime.program.to_string_lossy();
    let cpus = sandbox.limits.cpu_count().to_string();
    let word = |word: &str| -> String {
        word.replace("{runtime}", &runtime_path)
            .replace("{source}", &source.to_string_lossy())
            .replace("{program}", &program.to_string_lossy())
            .replace("{tmp}", &places.tmp.to_string_lossy())
            .replace("{heap_mb}", &heap_mb)
            .replace("{cpus}", &cpus)
    };
    let env = environment(sandbox, execution, runtime, places, word);
    let (stage, args) = match &execution.work {
        Work::Compile => (execution.language.compiler(), &[][..]),
        Work::Run(_) => (execution.language.program(), execution.args.as_slice()),
    };
    let words = stage.map_or(&[][..], |stage| stage.argv);
    let argv = words.iter().map(|text| match *text {
        // Names that are the caller's own, so nothing in them is replaced.
        "{classpath}" => class_path(sandbox).to_owned(),
        "{program}:{classpath}" => format!("{}:{}", word("{program}"), class_path(sandbox)),
        "{main_class}" => java::Types::of(&execution.source.text).main_class(),
        text => word(text),
    });
    let mut argv: Vec<Vec<u8>> = argv.map(String::into_bytes).collect();
    argv.extend(args.iter().map(|arg| arg.as_str().as_bytes().to_vec()));
    let program = words.first().map(|text| word(text)).unwrap_or_default().into();
    Command { program, argv, env, cwd: places.cwd.clone() }
}

/// Where Java looks for classes besides the program itself: where the caller says, else in the working directory.
fn class_path(sandbox: &SandboxSpec) -> &str {
    sandbox.env.iter().find(|variable| variable.name() == "CLASSPATH").map_or(".", EnvVar::value)
}

/// How large a heap may be for all of a virtual machine to fit into the memory limit. What is not heap is mostly code and
/// tables, which do not grow with the program's data.
fn heap_mb(memory: Bytes) -> u64 {
    let memory_mb = memory.get() >> 20;
    let rest = (memory_mb * 3 / 8).clamp(32, 192);
    memory_mb.saturating_sub(rest).max(8)
}

/// The name of the code's file. A name that the caller did not choose is changed if another file has it.
///
/// # Errors
/// The caller did choose the name, and another file has it too.
pub fn name_source(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<BoxPath, BackendError> {
    let wanted = &execution.source.name;
    if execution.source.in_workspace {
        return Ok(wanted.clone());
    }
    let takes = |file: &InputFile, name: &BoxPath| {
        file.path == *name || file.path.parents().any(|parent| parent == name.as_str())
    };
    let given = |name: &BoxPath| execution.files.iter().any(|file| takes(file, name));
    if execution.source.named_by_caller {
        if given(wanted) {
            return Err(BackendError::Unusable {
                field: Field::Files,
                message: format!("the file '{wanted}' would overwrite the code, which has the same name"),
                hint: format!("give it another name in the box: --file {wanted}:OTHER"),
            });
        }
        return Ok(wanted.clone());
    }
    let in_workspace = |name: &BoxPath| {
        sandbox
            .workspace
            .as_ref()
            .is_some_and(|dir| dir.as_path().join(name.as_str()).symlink_metadata().is_ok())
    };
    let (stem, ending) = wanted.as_str().rsplit_once('.').unwrap_or((wanted.as_str(), ""));
    let candidates = (1..100).filter_map(|n| BoxPath::parse(&format!("{stem}_{n}.{ending}")).ok());
    let free =
        std::iter::once(wanted.clone()).chain(candidates).find(|name| !given(name) && !in_workspace(name));
    Ok(free.unwrap_or_else(|| wanted.clone()))
}

/// Whether this directory of the host can be a workspace.
///
/// # Errors
/// It is not a directory, cannot be read, or is the whole machine.
pub fn check_workspace(sandbox: &SandboxSpec) -> Result<(), BackendError> {
    let Some(workspace) = &sandbox.workspace else { return Ok(()) };
    let shown = workspace.as_path().display();
    let unusable = |message: String| BackendError::Unusable {
        field: Field::Workspace,
        message,
        hint: "name an existing directory, such as --workspace .".into(),
    };
    if let Some(missing) = missing_permission(workspace.as_path()) {
        return Err(missing);
    }
    match std::fs::metadata(workspace.as_path()) {
        Ok(found) if is_root(&found) => {
            Err(unusable(format!("the workspace '{shown}' is the root of this machine")))
        }
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(unusable(format!("the workspace '{shown}' is not a directory"))),
        Err(error) => Err(unusable(format!("the workspace '{shown}' cannot be read: {error}"))),
    }
}

/// The first permission that this process lacks on the way to a workspace, and the command that gives it. As a server
/// that root started is nobody on the host, that is the most usual reason why a workspace cannot be shown.
fn missing_permission(workspace: &Path) -> Option<BackendError> {
    let (search, list) = (rustix::fs::Access::EXEC_OK, rustix::fs::Access::READ_OK);
    let lacks = |dir: &Path, right| {
        rustix::fs::access(dir, right).is_err_and(|error| error == rustix::io::Errno::ACCESS)
    };
    let mut way: Vec<_> = workspace.ancestors().collect();
    way.reverse();
    let (dir, right, rights) = way
        .iter()
        .find(|dir| lacks(dir, search))
        .map(|dir| (*dir, "x", if *dir == workspace { "rX" } else { "x" }))
        .or_else(|| lacks(workspace, list).then_some((workspace, "r", "rX")))?;
    let owned = std::fs::metadata(dir)
        .is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw() && found.uid() != 0);
    let (class, who) = if owned { ("u", "its owner") } else { ("o", "other users") };
    let everything = if rights == "rX" { "-R " } else { "" };
    Some(BackendError::Unusable {
        field: Field::Workspace,
        message: format!(
            "the workspace '{}' cannot be read: {} has no permission {right} for {who}",
            workspace.display(),
            dir.display()
        ),
        hint: format!("chmod {everything}{class}+{rights} {}", dir.display()),
    })
}

/// Whether this is `/`, under any name.
fn is_root(found: &std::fs::Metadata) -> bool {
    std::fs::metadata("/").is_ok_and(|root| (root.dev(), root.ino()) == (found.dev(), found.ino()))
}

/// The whole environment of the program. A caller's variable replaces one of ours.
fn environment(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    runtime: &Runtime,
    places: &Places,
    word: impl Fn(&str) -> String,
) -> Vec<Vec<u8>> {
    let home = runtime.program.parent().filter(|dir| !BASE_SYSTEM.iter().any(|path| Path::new(path) == *dir));
    let first = home.into_iter().chain(runtime.beside.iter().map(PathBuf::as_path));
    let first: String = first.map(|dir| format!("{}:", dir.display())).collect();
    let path = format!("{first}/usr/local/bin:/usr/bin:/bin");
    let (at_home, tmp) = (places.home.to_string_lossy(), places.tmp.to_string_lossy());
    let ours =
        [("HOME", &*at_home), ("USER", "sandbox"), ("LANG", "C.UTF-8"), ("TZ", "UTC"), ("PATH", &path)];
    // A program whose temporary directory is elsewhere must be told.
    let ours = ours.into_iter().chain((tmp != "/tmp").then_some(("TMPDIR", &*tmp)));
    let ours = ours.chain(THREAD_VARIABLES.iter().map(|name| (*name, "{cpus}")));
    let ours = ours.chain(execution.language.env.iter().copied()).map(|(name, value)| (name, word(value)));
    let theirs = || sandbox.env.iter().map(|variable| (variable.name(), variable.value()));
    let kept = ours.filter(|(name, _)| theirs().all(|(other, _)| other != *name));
    let theirs = theirs().map(|(name, value)| (name, value.to_owned()));
    kept.chain(theirs).map(|(name, value)| format!("{name}={value}").into_bytes()).collect()
}
