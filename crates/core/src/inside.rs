//! What every box has inside, whoever makes it: its places, its users, and how a request becomes commands, variables and
//! the name of the code's file.

use crate::Field;
use crate::backend::{BackendError, ExecutionSpec, SandboxSpec};
use crate::path::BoxPath;
use crate::request::InputFile;

/// The directory that is always writable, and the home of the code's user.
pub const SANDBOX: &str = "/sandbox";
/// Where a workspace is shown.
pub const WORK: &str = "/work";
/// Where a compiler puts its result: not in the working directory, where a collector would find it.
pub const PROGRAM: &str = "/tmp/main";
/// Where commands are looked for.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The box's name for itself.
pub const HOSTNAME: &str = "belljar";

/// A variable of the environment and its value.
pub type Variable = (String, String);

/// The directory that the program starts in.
#[must_use]
pub fn working_dir(sandbox: &SandboxSpec) -> &'static str {
    if sandbox.workspace.is_some() { WORK } else { SANDBOX }
}

/// What the words of a language's row stand for, in one box.
#[derive(Debug)]
pub struct Meaning {
    runtime: String,
    source: String,
    memory_mb: String,
    cpus: String,
}

impl Meaning {
    /// With this runtime, and this name for the code's file.
    #[must_use]
    pub fn new(sandbox: &SandboxSpec, runtime: &str, source: &BoxPath) -> Meaning {
        Meaning {
            runtime: runtime.to_owned(),
            source: format!("{}/{source}", working_dir(sandbox)),
            memory_mb: (sandbox.limits.memory.get() >> 20).to_string(),
            cpus: sandbox.limits.cpus.milli().div_ceil(1000).to_string(),
        }
    }

    /// A word with everything put in that stands in braces.
    #[must_use]
    pub fn of(&self, word: &str) -> String {
        word.replace("{runtime}", &self.runtime)
            .replace("{source}", &self.source)
            .replace("{program}", PROGRAM)
            .replace("{memory_mb}", &self.memory_mb)
            .replace("{cpus}", &self.cpus)
    }
}

/// The commands of a run, in order; the last is the program, and has the arguments.
#[must_use]
pub fn commands(execution: &ExecutionSpec, meaning: &Meaning) -> Vec<Vec<String>> {
    let stages = execution.language.stages;
    let mut commands: Vec<Vec<String>> =
        stages.iter().map(|stage| stage.argv.iter().map(|word| meaning.of(word)).collect()).collect();
    if let Some(program) = commands.last_mut() {
        program.extend(execution.args.iter().map(|arg| arg.as_str().to_owned()));
    }
    commands
}

/// The whole environment of the program. A caller's variable replaces one of ours.
#[must_use]
pub fn environment(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    meaning: &Meaning,
    path: &str,
) -> Vec<Variable> {
    let ours = [("HOME", SANDBOX), ("USER", "sandbox"), ("LANG", "C.UTF-8"), ("TZ", "UTC"), ("PATH", path)];
    let ours = ours.iter().chain(execution.language.env).map(|(name, value)| (*name, meaning.of(value)));
    let theirs = || sandbox.env.iter().map(|variable| (variable.name(), variable.value()));
    let kept = ours.filter(|(name, _)| theirs().all(|(other, _)| other != *name));
    let theirs = theirs().map(|(name, value)| (name, value.to_owned()));
    kept.chain(theirs).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What the code's file is called. A name that the caller did not choose gives way to files that are there: those of the
/// request, and those of the workspace, of which `in_workspace` knows.
///
/// # Errors
/// A file of the request that would take the place of the code.
pub fn name_source(
    execution: &ExecutionSpec,
    in_workspace: impl Fn(&BoxPath) -> bool,
) -> Result<BoxPath, BackendError> {
    let wanted = &execution.source.name;
    let takes = |file: &InputFile, name: &BoxPath| {
        file.path == *name || file.path.parents().any(|parent| parent == name.as_str())
    };
    let given = |name: &BoxPath| execution.files.iter().any(|file| takes(file, name));
    if execution.source.named_by_caller {
        if given(wanted) {
            return Err(BackendError::Unusable {
                field: Field::Files,
                message: format!("the file '{wanted}' would replace the code of the same name"),
                hint: format!("give it another name in the box: --file {wanted}:OTHER"),
            });
        }
        return Ok(wanted.clone());
    }
    let (stem, ending) = wanted.as_str().rsplit_once('.').unwrap_or((wanted.as_str(), ""));
    let candidates = (1..100).filter_map(|n| BoxPath::parse(&format!("{stem}_{n}.{ending}")).ok());
    let free =
        std::iter::once(wanted.clone()).chain(candidates).find(|name| !given(name) && !in_workspace(name));
    Ok(free.unwrap_or_else(|| wanted.clone()))
}

/// Whether the run's files fit into its disk, page by page.
///
/// # Errors
/// That they do not, with the limit that would do.
pub fn check_room(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<(), BackendError> {
    let lengths = execution.files.iter().map(|file| file.content.len()).chain([execution.source.text.len()]);
    let pages: u64 = lengths.map(|length| (length as u64).div_ceil(4096) * 4096).sum();
    let disk = sandbox.limits.disk;
    if pages <= disk.get() {
        return Ok(());
    }
    Err(BackendError::Unusable {
        field: Field::Files,
        message: format!("the run's files need {pages} bytes, and --disk allows {disk}"),
        hint: format!("raise the limit: --disk {}M", (pages >> 20) + 16),
    })
}
