//! What a box contains: turns a request into the files, the arguments and the environment of a program.

use std::path::Path;

use belljar_core::Field;
use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::path::BoxPath;
use belljar_host::program::{check_workspace, name_source};

use crate::fs::{Budget, Device, Files, Workspace};
use crate::interpreters::Interpreter;
use crate::wasi::System;
use crate::wasi::abi::Errno;

/// The directory that is always writable, and the home of the code's user.
pub(crate) const SANDBOX: &str = "/sandbox";
const WORK: &str = "/work";
/// The directory for an interpreter's own files, read-only. Not in `/usr`: some modules bring their own.
const LIBRARY: &str = "/lib/belljar";

/// A box that is ready for its program.
pub(crate) struct Draft {
    pub(crate) system: System,
    /// The name of the code's own file in the working directory.
    pub(crate) source: BoxPath,
}

/// Everything that a program finds.
pub(crate) fn draft(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    interpreter: &Interpreter,
) -> Result<Draft, BackendError> {
    check_workspace(sandbox)?;
    let source = name_source(sandbox, execution)?;
    let mut files = Files::new(Budget::new(&sandbox.limits));
    furnish(&mut files, interpreter).map_err(|errno| too_small(sandbox, errno))?;
    let cwd = if let Some(workspace) = &sandbox.workspace {
        show(&mut files, workspace.as_path())?;
        WORK
    } else {
        SANDBOX
    };
    put_inputs(&mut files, cwd, execution, &source).map_err(|errno| too_small(sandbox, errno))?;
    let args = arguments(execution, interpreter, cwd, &source);
    let env = environment(sandbox, interpreter, cwd);
    Ok(Draft { system: System::new(args, env, files), source })
}

/// What is the same in every box.
fn furnish(files: &mut Files, interpreter: &Interpreter) -> Result<(), Errno> {
    for dir in [SANDBOX, "/tmp", "/dev/shm"] {
        files.furnish_dir(dir, true)?;
    }
    for (path, device) in [
        ("/dev/null", Device::Null),
        ("/dev/zero", Device::Zero),
        ("/dev/random", Device::Random),
        ("/dev/urandom", Device::Random),
        ("/dev/stdin", Device::Stdin),
        ("/dev/stdout", Device::Stdout),
        ("/dev/stderr", Device::Stderr),
    ] {
        files.furnish_device(path, device)?;
    }
    for (name, text) in interpreter.library {
        files.furnish_file(&format!("{LIBRARY}/{name}"), text.as_bytes())?;
    }
    Ok(())
}

fn show(files: &mut Files, workspace: &Path) -> Result<(), BackendError> {
    let unusable = |why: String| BackendError::Unusable {
        field: Field::Workspace,
        message: format!("the workspace '{}' {why}", workspace.display()),
        hint: "name an existing directory, such as --workspace .".into(),
    };
    let opened =
        Workspace::open(workspace).map_err(|error| unusable(format!("cannot be opened: {error}")))?;
    files.furnish_workspace(WORK, opened).map_err(|errno| unusable(format!("cannot be shown: {errno:?}")))
}

fn put_inputs(
    files: &mut Files,
    cwd: &str,
    execution: &ExecutionSpec,
    source: &BoxPath,
) -> Result<(), Errno> {
    let code = execution.source.to_put().map(|text| (source, text));
    let given = execution.files.iter().map(|file| (&file.path, file.content.as_slice()));
    for (path, content) in code.into_iter().chain(given) {
        files.furnish_file(&format!("{cwd}/{path}"), content)?;
    }
    Ok(())
}

fn too_small(sandbox: &SandboxSpec, errno: Errno) -> BackendError {
    let message = if matches!(errno, Errno::Nospc | Errno::Fbig) {
        let limits = &sandbox.limits;
        format!("the run's files do not fit: --disk allows {}, --memory {}", limits.disk, limits.memory)
    } else {
        format!("the run's files cannot be put into the box: {errno:?}")
    };
    BackendError::Unusable { field: Field::Files, message, hint: "raise --disk or --memory".into() }
}

fn arguments(
    execution: &ExecutionSpec,
    interpreter: &Interpreter,
    cwd: &str,
    source: &BoxPath,
) -> Vec<Vec<u8>> {
    let source = format!("{cwd}/{source}");
    let words = interpreter.argv.iter().map(|word| word.replace("{source}", &source).replace("{cwd}", cwd));
    let args = execution.args.iter().map(|arg| arg.as_str().to_owned());
    words.chain(args).map(String::into_bytes).collect()
}

/// The whole environment of the program. A caller's variable replaces one of ours.
fn environment(sandbox: &SandboxSpec, interpreter: &Interpreter, cwd: &str) -> Vec<Vec<u8>> {
    let ours = [
        ("HOME", SANDBOX),
        ("USER", "sandbox"),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("PWD", cwd),
    ];
    let ours = ours.iter().chain(interpreter.env).copied();
    let theirs = || sandbox.env.iter().map(|variable| (variable.name(), variable.value()));
    let kept = ours.filter(|(name, _)| theirs().all(|(other, _)| other != *name));
    kept.chain(theirs()).map(|(name, value)| format!("{name}={value}").into_bytes()).collect()
}
