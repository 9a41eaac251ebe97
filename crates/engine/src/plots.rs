//! Adds to a run what makes matplotlib save what it would have shown, if the run asks for plots and could show any.

use belljar_core::path::BoxPath;
use belljar_core::plots;
use belljar_core::request::{EnvVar, ExecutionRequest, Glob, InputFile, SandboxRequest};

/// Does nothing for a run that cannot draw, or that chooses a backend itself. Otherwise returns the path of a file which
/// is not the caller's, and which no pattern of the caller means.
pub(crate) fn provide(sandbox: &mut SandboxRequest, execution: &mut ExecutionRequest) -> Option<String> {
    (execution.extras.plots && could_draw(sandbox, execution)).then(|| add(sandbox, execution)).flatten()
}

fn could_draw(sandbox: &SandboxRequest, execution: &ExecutionRequest) -> bool {
    let ours = [plots::CONFIGURATION, "matplotlibrc"];
    let chooses = sandbox.env.iter().any(|variable| variable.name() == plots::VARIABLE)
        || execution.files.iter().any(|file| ours.contains(&file.path.as_str()));
    let is_code = |file: &&InputFile| file.path.as_str().ends_with(".py");
    let mut files = execution.files.iter().filter(is_code);
    // Nobody has read a workspace.
    let shows = sandbox.workspace.is_some()
        || plots::could_show(execution.code.bytes())
        || files.any(|file| plots::could_show(&file.content));
    execution.language.name == "python" && shows && !chooses
}

fn add(sandbox: &mut SandboxRequest, execution: &mut ExecutionRequest) -> Option<String> {
    let beside = execution.code.file_name().and_then(|name| name.as_str().rsplit_once('/'));
    let module = beside.map_or(plots::FILE.to_owned(), |(dir, _)| format!("{dir}/{}", plots::FILE));
    let pictures = Glob::parse(plots::PICTURES).ok()?.optional();
    let mut files = vec![file(&module, plots::SOURCE)?];
    // A workspace takes the place of the home as the working directory, and may have a configuration of its own.
    if sandbox.workspace.is_some() {
        let backend = format!("module://{}", plots::MODULE);
        sandbox.env.extend(EnvVar::parse_all(vec![(plots::VARIABLE.to_owned(), backend)]).ok()?);
    } else {
        files.push(file(plots::CONFIGURATION, plots::CONFIGURED)?);
    }
    execution.files.extend(files);
    execution.collect.push(pictures);
    Some(module)
}

fn file(path: &str, text: &str) -> Option<InputFile> {
    let path = BoxPath::parse(path).ok()?;
    Some(InputFile { path, content: text.as_bytes().to_vec(), executable: false })
}
