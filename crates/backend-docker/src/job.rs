//! Turns a request into the description of a container and the orders for its PID 1.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use belljar_core::Field;
use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec, Work};
use belljar_core::path::BoxPath;
use belljar_core::request::InputFile;
use belljar_host::program;

use crate::container::{CODE_ID, ContainerSpec, Overlay, is_emulator};
use crate::extras::Extras;
use crate::frame::{Collect, GivenFile, LONGEST, StartProgram, Supply, Told};
use crate::image::Image;
use crate::init::ground;
use crate::inside;
use crate::runtimes::Runtime;

/// Everything that a run needs, before anything is made for it.
pub(crate) struct Job {
    pub(crate) spec: ContainerSpec,
    pub(crate) order: StartProgram,
    pub(crate) supply: Supply,
    /// The files for the container's disk, the code first.
    pub(crate) contents: Vec<Vec<u8>>,
    /// The layer over the workspace; it exists as long as this does.
    pub(crate) layer: Option<Arc<Layer>>,
}

/// What makes its container.
pub(crate) struct Engine<'a> {
    /// The daemon's runtime, if not its default.
    pub(crate) runtime: Option<&'a str>,
    pub(crate) extras: Extras,
}

impl Job {
    pub(crate) fn new(
        sandbox: &SandboxSpec,
        execution: &mut ExecutionSpec,
        image: &Image,
        runtime: &Runtime,
        engine: Engine<'_>,
    ) -> Result<Job, BackendError> {
        check_room(sandbox, execution)?;
        program::check_workspace(sandbox)?;
        let workspace = sandbox.workspace.as_ref().map(|dir| find_workspace(dir.as_path())).transpose()?;
        let source = program::name_source(sandbox, execution)?;
        let order = order(sandbox, execution, image, runtime, &source);
        let temporary = temporary(engine.runtime);
        let collect = collect(sandbox, execution, &source, &temporary);
        let files = take_files(execution, &source);
        let program = take_program(execution, &temporary);
        let cpu_ms =
            execution.limits.cpu_time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let mut spec = ContainerSpec {
            image: image.prepared.clone(),
            runtime: engine.runtime.map(str::to_owned),
            limits: sandbox.limits,
            network: sandbox.network.clone(),
            gate: None,
            user: (CODE_ID, CODE_ID),
            workspace: None,
            extras: engine.extras,
        };
        let Some(Found { path, owner }) = workspace else {
            let (files, contents) = given(files.into_iter().chain(program));
            let supply = Supply { files, cpu_ms, collect };
            return Ok(Job { spec, order, supply, contents, layer: None });
        };
        let layer =
            Layer::write(&files).map_err(crate::errors::setup("put the run's files over the workspace"))?;
        spec.user = owner.unwrap_or(spec.user);
        spec.workspace = Some(Overlay { layers: vec![layer.path().to_owned(), path] });
        let (files, contents) = given(program.into_iter());
        let supply = Supply { files, cpu_ms, collect };
        Ok(Job { spec, order, supply, contents, layer: Some(Arc::new(layer)) })
    }

    /// The messages to PID 1, up to the standard input.
    pub(crate) fn supplies(supply: Supply, contents: &[Vec<u8>]) -> Vec<u8> {
        let mut told = Told::Supply(supply).encode();
        for piece in contents.iter().flat_map(|content| content.chunks(LONGEST)) {
            told.extend(Told::Content(piece.to_vec()).encode());
        }
        told
    }
}

fn order(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    image: &Image,
    runtime: &Runtime,
    source: &BoxPath,
) -> StartProgram {
    let places = inside::places(sandbox);
    let found = belljar_host::runtimes::Runtime {
        label: runtime.label.clone(),
        program: PathBuf::from(&runtime.program),
        mounts: Vec::new(),
        beside: Vec::new(),
    };
    let command = program::command(sandbox, execution, &found, source, &places);
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let env = command.env.iter().map(text).collect();
    StartProgram {
        command: command.argv.iter().map(text).collect(),
        env: environment(sandbox, image, env),
        cwd: places.cwd.to_string_lossy().into_owned(),
        gate: None,
    }
}

/// The image's own variables, except for those that every box has. Of these, the image may set the search path.
fn environment(sandbox: &SandboxSpec, image: &Image, env: Vec<String>) -> Vec<(String, String)> {
    let ours = env.iter().filter_map(|variable| variable.split_once('='));
    let ours: Vec<_> = ours.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let callers = |name: &str| sandbox.env.iter().any(|variable| variable.name() == name);
    let images_path = |name: &str| name == "PATH" && !callers("PATH");
    let has = |variables: &[(String, String)], name: &str| variables.iter().any(|(other, _)| other == name);
    let images = image.env.iter().filter(|(name, _)| !has(&ours, name) || images_path(name));
    let kept = ours.iter().filter(|(name, _)| !(images_path(name) && has(&image.env, name)));
    images.chain(kept).cloned().collect()
}

/// Whether the run's files fit on its disk, counted in pages.
fn check_room(sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<(), BackendError> {
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

/// The directory for temporary files: a part of the disk, except in gVisor, where it is a disk of its own.
fn temporary(runtime: Option<&str>) -> String {
    if is_emulator(runtime) { "/tmp".to_owned() } else { ground::part("tmp") }
}

fn collect(
    sandbox: &SandboxSpec,
    execution: &ExecutionSpec,
    source: &BoxPath,
    temporary: &str,
) -> Option<Collect> {
    let patterns = &execution.collect;
    let from = match execution.work {
        Work::Compile => temporary.to_owned(),
        Work::Run(_) => inside::SANDBOX.to_owned(),
    };
    (!patterns.is_empty()).then(|| Collect {
        from,
        patterns: patterns.iter().map(|glob| glob.as_str().to_owned()).collect(),
        source: source.as_str().to_owned(),
        bytes: execution.limits.collected.get(),
        names: sandbox.limits.max_files(),
    })
}

struct File {
    path: String,
    executable: bool,
    content: Vec<u8>,
}

/// The code comes first: that identifies it where it goes through a pipe.
fn take_files(execution: &mut ExecutionSpec, source: &BoxPath) -> Vec<File> {
    let content = std::mem::take(&mut execution.source.text);
    let code = (!execution.source.in_workspace).then(|| File {
        path: source.as_str().to_owned(),
        executable: false,
        content,
    });
    let files = std::mem::take(&mut execution.files).into_iter().map(|file| File {
        path: file.path.as_str().to_owned(),
        executable: file.executable,
        content: file.content,
    });
    code.into_iter().chain(files).collect()
}

/// What a compiler made, for the directory for temporary files.
fn take_program(execution: &ExecutionSpec, temporary: &str) -> Vec<File> {
    let Work::Run(program) = &execution.work else { return Vec::new() };
    let file = |file: &InputFile| File {
        path: format!("{temporary}/{}", file.path),
        executable: file.executable,
        content: file.content.clone(),
    };
    program.files().iter().map(file).collect()
}

/// Files as they are announced, and their contents.
fn given(files: impl Iterator<Item = File>) -> (Vec<GivenFile>, Vec<Vec<u8>>) {
    let announced = |File { path, executable, content }: File| {
        (GivenFile { path, executable, length: content.len() as u64 }, content)
    };
    files.map(announced).unzip()
}

/// A workspace that exists.
struct Found {
    path: PathBuf,
    /// Its owner, unless that is root: then the code can read what all users can read.
    owner: Option<(u32, u32)>,
}

fn find_workspace(dir: &Path) -> Result<Found, BackendError> {
    let shown = dir.display();
    let unusable = |message: String| BackendError::Unusable {
        field: Field::Workspace,
        message,
        hint: "name an existing directory, such as --workspace .".into(),
    };
    let cannot = |error: io::Error| unusable(format!("the workspace '{shown}' cannot be read: {error}"));
    let found = fs::metadata(dir).map_err(cannot)?;
    // The daemon resolves it from its own root, and a comma would end the mount option.
    let path = real_path(dir).map_err(cannot)?;
    if path.to_str().is_none_or(|path| path.contains([',', '\\', '"'])) {
        return Err(unusable(format!(
            "the path of the workspace '{shown}' has a character that Docker does not support"
        )));
    }
    let owner = (found.uid() != 0).then_some((found.uid(), found.gid()));
    Ok(Found { path, owner })
}

/// The real path of a directory, from the kernel.
fn real_path(dir: &Path) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    let open = fs::File::open(dir)?;
    fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))
}

/// Files of the host that are put over a workspace. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Layer {
    outer: PathBuf,
    inner: PathBuf,
}

impl Layer {
    fn write(files: &[File]) -> io::Result<Layer> {
        // Only this user and the daemon can pass the outer directory.
        let outer = std::env::temp_dir().join(format!("belljar-docker-{}", crate::image::unique()));
        fs::DirBuilder::new().mode(0o700).create(&outer)?;
        let layer = Layer { inner: outer.join("over"), outer };
        fs::DirBuilder::new().mode(0o755).create(layer.path())?;
        for file in files {
            let path = layer.path().join(&file.path);
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            let mode = if file.executable { 0o755 } else { 0o644 };
            let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
            io::Write::write_all(&mut open, &file.content)?;
        }
        Ok(layer)
    }

    fn path(&self) -> &Path {
        &self.inner
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.outer);
    }
}
