//! Finds the runtime of a language on this host, and the smallest part of the host that it must see.
//!
//! The program on the search path is often not the interpreter: it is a version manager's shim, a proxy, a chain of
//! links or a virtual environment. None of these work in a box, where the manager does not exist. Taking each manager's
//! layout apart would mean knowing them all. Instead the candidate is run once and asked what it really is, with the
//! arguments in the language's row; only the shims of pyenv and its relatives, which are slow, are looked through first. The answer is cached in a small file until something that it depends on changes,
//! because asking costs more than a whole run does otherwise.

mod answer;
mod ask;
mod cache;
mod reach;
mod shim;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_core::Field;
use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use answer::Answered;
use cache::Cache;
pub use reach::BASE_SYSTEM;
use reach::Reach;

/// Variables by which version managers find their files or choose a version. The caller passes those of them that are
/// set as [`RuntimeSettings::manager_env`].
pub const MANAGER_VARIABLES: &[&str] = &[
    "ASDF_DATA_DIR",
    "ASDF_DIR",
    "CARGO_HOME",
    "JENV_ROOT",
    "MISE_CONFIG_DIR",
    "MISE_DATA_DIR",
    "NODENV_ROOT",
    "NODENV_VERSION",
    "PLENV_ROOT",
    "PLENV_VERSION",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "RBENV_ROOT",
    "RBENV_VERSION",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "VOLTA_HOME",
];

/// Where to look, as the caller would.
#[derive(Debug, Clone, Default)]
pub struct RuntimeSettings {
    /// The caller's `PATH`.
    pub search_path: OsString,
    /// The caller's home, where managers keep their choices. It is never shown to a box as a whole.
    pub home: Option<PathBuf>,
    /// Those of [`MANAGER_VARIABLES`] that the caller has set.
    pub manager_env: Vec<(OsString, OsString)>,
    /// Programs that the configuration names; they are taken instead of searching.
    pub overrides: Vec<(Language, PathBuf)>,
    /// Runtimes that a search found while more could be reached. They are taken before all others, as they are: to ask them
    /// again would take most of the time until the first run.
    pub found: Vec<(Language, Runtime)>,
    /// Where answers are cached. Without it, every search asks.
    pub cache_dir: Option<PathBuf>,
}

/// A runtime of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Name and version, `CPython 3.11.7`.
    pub label: String,
    /// The executable itself: not a shim or a proxy. A link only if its name or location matters to the program: `sh`,
    /// `clang++`, a virtual environment.
    pub program: PathBuf,
    /// Files and directories that it needs beyond [`BASE_SYSTEM`], parents first, none inside another. Each is shown
    /// read-only at its own path; a link is shown as its target.
    pub mounts: Vec<PathBuf>,
    /// The directories of other runtimes that the configuration names, for a language whose programs call those of
    /// others. They come first on the search path.
    pub beside: Vec<PathBuf>,
}

/// Finds runtimes.
#[derive(Debug)]
pub struct Runtimes {
    settings: RuntimeSettings,
    cache: Option<Cache>,
}

impl Runtimes {
    /// Searches nothing yet.
    #[must_use]
    pub fn new(settings: RuntimeSettings) -> Runtimes {
        let cache = settings.cache_dir.clone().map(Cache::new);
        Runtimes { settings, cache }
    }

    /// Finds the runtime of a language: the one that the configuration names, otherwise the first program on the search
    /// path that can be used. May run it, for at most a few seconds.
    ///
    /// # Errors
    /// There is none, or none that a box could use; the hint says how to get one.
    pub fn find(&self, language: Language) -> Result<Runtime, BackendError> {
        let mut runtime = self.find_alone(language)?;
        // One that was found earlier has them already.
        if language.is_shell() && chosen(&self.settings.found, language).is_none() {
            self.add_others(language, &mut runtime);
        }
        Ok(runtime)
    }

    /// A shell finds the runtimes that the configuration names, under the names that they have in their own directory:
    /// a virtual environment is recognised by its directory, so links to it elsewhere would not do. One that cannot be
    /// used is no reason not to run the shell.
    fn add_others(&self, language: Language, runtime: &mut Runtime) {
        let configured = self.settings.overrides.iter().map(|(of, _)| *of).filter(|of| *of != language);
        let others = configured.filter_map(|of| self.find_alone(of).ok());
        for other in others {
            let dir = other.program.parent().filter(|dir| !reach::is_in_base_system(dir));
            runtime.beside.extend(dir.map(Path::to_owned));
            runtime.mounts.extend(other.mounts);
        }
        runtime.beside.dedup();
        runtime.mounts = reach::outermost(std::mem::take(&mut runtime.mounts));
    }

    fn find_alone(&self, language: Language) -> Result<Runtime, BackendError> {
        if let Some(runtime) =
            chosen(&self.settings.found, language).filter(|found| is_program(&found.program))
        {
            return Ok(runtime.clone());
        }
        if let Some(path) = self.override_for(language) {
            return self.examine(language, path).map_err(|refusal| refusal.into_error(language));
        }
        let mut refused: Vec<PathBuf> = Vec::new();
        let mut first_refusal = None;
        for candidate in self.candidates(language) {
            // Not twice through different links: `/bin` is often one to `/usr/bin`.
            if refused.iter().any(|path| is_same_file(path, &candidate)) {
                continue;
            }
            match self.examine(language, &candidate) {
                Ok(runtime) => return Ok(runtime),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
            refused.push(candidate);
        }
        Err(match first_refusal {
            Some(refusal) => refusal.into_error(language),
            None => BackendError::RuntimeMissing { language, hint: how_to_get(language) },
        })
    }

    /// Whether the runtime of a language may be outside of [`BASE_SYSTEM`], or lead out of it. Asks nobody.
    #[must_use]
    pub fn may_be_elsewhere(&self, language: Language) -> bool {
        let leads_out = |path: &Path| !reach::links(path).iter().all(|hop| reach::is_in_base_system(hop));
        match self.override_for(language) {
            Some(path) => leads_out(path),
            None => self.candidates(language).any(|path| leads_out(&path)),
        }
    }

    fn override_for(&self, language: Language) -> Option<&Path> {
        chosen(&self.settings.overrides, language).map(PathBuf::as_path)
    }

    /// The candidates on the search path, in order of preference. Relative directories are left out: their meaning
    /// depends on the caller's working directory.
    fn candidates(&self, language: Language) -> impl Iterator<Item = PathBuf> {
        let directories: Vec<PathBuf> =
            std::env::split_paths(&self.settings.search_path).filter(|dir| dir.is_absolute()).collect();
        let names = language.runtime.programs.iter();
        let paths =
            names.flat_map(move |name| directories.clone().into_iter().map(move |dir| dir.join(name)));
        paths.filter(|path| is_program(path))
    }

    fn examine(&self, language: Language, candidate: &Path) -> Result<Runtime, UnusableProgram> {
        if !candidate.is_absolute() || !is_program(candidate) {
            return Err(UnusableProgram::NoProgram { path: candidate.to_owned() });
        }
        let key = cache::Key::of(language, candidate, &self.settings);
        if let Some(runtime) = self.cache.as_ref().and_then(|cache| cache.load(&key)) {
            return Ok(runtime);
        }
        let runtime = self.inspect(language, candidate)?;
        if let Some(cache) = &self.cache {
            cache.store(&key, &runtime);
        }
        Ok(runtime)
    }

    fn inspect(&self, language: Language, candidate: &Path) -> Result<Runtime, UnusableProgram> {
        let behind = shim::chosen(candidate, &self.settings);
        if let Some(runtime) = behind.and_then(|program| self.interview(language, &program).ok()) {
            return Ok(runtime);
        }
        self.interview(language, candidate)
    }

    fn interview(&self, language: Language, candidate: &Path) -> Result<Runtime, UnusableProgram> {
        let text = ask::ask(candidate, language.runtime.ask, &self.settings)
            .map_err(|source| UnusableProgram::NoAnswer { path: candidate.to_owned(), source })?;
        let answered = Answered::read(language.runtime.answer, &text)
            .ok_or_else(|| UnusableProgram::UnclearAnswer { path: candidate.to_owned() })?;
        let program = real_program(candidate, &answered)?;
        let mut reach = Reach::new(self.settings.home.as_deref());
        for path in &answered.places {
            reach.add_needed(path)?;
        }
        if answered.places.is_empty() {
            reach.add_guessed_prefix(&program);
        }
        language.runtime.also.iter().try_for_each(|path| reach.add_needed(Path::new(path)))?;
        reach.add_program(&program)?;
        Ok(Runtime { label: answered.label, program, mounts: reach.into_mounts(), beside: Vec::new() })
    }
}

/// What there is for a language. TypeScript uses the runtime of JavaScript, even if there is only that.
fn chosen<T>(among: &[(Language, T)], language: Language) -> Option<&T> {
    let exact = among.iter().find(|(of, _)| *of == language);
    let same_runtime = || among.iter().find(|(of, _)| of.runtime.programs == language.runtime.programs);
    exact.or_else(same_runtime).map(|(_, found)| found)
}

/// The executable behind a candidate.
fn real_program(candidate: &Path, answered: &Answered) -> Result<PathBuf, UnusableProgram> {
    if let Some(told) = &answered.executable {
        return Ok(with_real_parent(told));
    }
    let name = candidate.file_name().unwrap_or_default();
    let in_bin = answered.places.iter().map(|dir| dir.join("bin").join(name)).find(|path| is_program(path));
    if let Some(program) = in_bin {
        return Ok(program.canonicalize().unwrap_or(program));
    }
    let program = last_of_its_name(candidate);
    if reach::is_in_base_system(&program) || !is_script(&program) {
        return Ok(program);
    }
    Err(UnusableProgram::Opaque { path: candidate.to_owned() })
}

/// The path with everything resolved except its last part: in a virtual environment that is a link, and must stay one.
fn with_real_parent(path: &Path) -> PathBuf {
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Follows links as long as they keep the name. Compiler drivers and multi-call binaries look at the name by which they
/// are called: `clang++` is a link to `clang`, `sh` one to `busybox`.
fn last_of_its_name(candidate: &Path) -> PathBuf {
    let name = candidate.file_name();
    let same_name = |path: &PathBuf| path.file_name() == name;
    let last = reach::links(candidate).into_iter().rfind(same_name).unwrap_or_else(|| candidate.to_owned());
    with_real_parent(&last)
}

fn is_program(path: &Path) -> bool {
    path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn is_script(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0; 2];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Why a program that was found cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableProgram {
    #[error("{} is not a program that can be run", path.display())]
    NoProgram { path: PathBuf },
    #[error("{} did not report its version: {source}", path.display())]
    NoAnswer { path: PathBuf, source: ask::NoAnswer },
    #[error("{} reported its version in an unexpected format", path.display())]
    UnclearAnswer { path: PathBuf },
    #[error("{} is a script, and did not report the path of the real program", path.display())]
    Opaque { path: PathBuf },
    #[error("it needs {}, which contains more than a runtime", path.display())]
    TooBroad { path: PathBuf },
    #[error("other users cannot read {}, and the code runs as another user", path.display())]
    Unreadable { path: PathBuf },
}

impl UnusableProgram {
    fn into_error(self, language: Language) -> BackendError {
        let hint = match &self {
            UnusableProgram::NoProgram { .. } => {
                "correct the path in the configuration, or remove it".to_owned()
            }
            UnusableProgram::Unreadable { path } => format!("chmod -R o+rX {}", path.display()),
            UnusableProgram::TooBroad { .. } => {
                format!("install it in its own directory, or {}", how_to_get(language))
            }
            UnusableProgram::NoAnswer { .. }
            | UnusableProgram::UnclearAnswer { .. }
            | UnusableProgram::Opaque { .. } => how_to_get(language),
        };
        let message = format!("the runtime for {language} cannot be used: {self}");
        BackendError::Unusable { field: Field::Language, message, hint }
    }
}

fn how_to_get(language: Language) -> String {
    let program = language.runtime.programs.first().unwrap_or(&language.name);
    format!(
        "install it with `apt-get install {}` (or this system's package manager), or put `{program}` on the PATH",
        language.package
    )
}

/// Home directories, as far as is known about this host.
fn is_home(path: &Path, home: Option<&Path>) -> bool {
    home == Some(path) || path == Path::new("/root") || path.parent() == Some(Path::new("/home"))
}
