//! Caches what runtimes report about themselves, one small file for each candidate.
//!
//! An entry begins with everything that it depends on, as text. An entry is valid if it begins with the text that the
//! same things give now.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_core::language::Language;

use super::{Runtime, RuntimeSettings, reach};
use crate::state;

/// What an answer depends on.
#[derive(Debug)]
pub(super) struct Key {
    file_name: String,
    text: Vec<u8>,
}

impl Key {
    pub(super) fn of(language: Language, candidate: &Path, settings: &RuntimeSettings) -> Key {
        let mut question = DefaultHasher::new();
        (language.runtime.programs, language.runtime.ask, language.runtime.also).hash(&mut question);
        (&settings.search_path, &settings.home, &settings.manager_env).hash(&mut question);
        // What is shown anyway is not in the answer.
        reach::BASE_SYSTEM.hash(&mut question);
        let question = question.finish();

        let mut text = format!("belljar {} asked {question:016x}\n", env!("CARGO_PKG_VERSION")).into_bytes();
        for witness in witnesses(candidate, settings) {
            let _ = write!(text, "{} ", stamp(&witness));
            text.extend_from_slice(witness.as_os_str().as_bytes());
            text.push(b'\n');
        }
        let mut name = DefaultHasher::new();
        (question, candidate).hash(&mut name);
        Key { file_name: format!("runtime-{:016x}", name.finish()), text }
    }
}

/// The files that decide what a candidate stands for: itself, and the files in which version managers record their
/// choice.
fn witnesses(candidate: &Path, settings: &RuntimeSettings) -> Vec<PathBuf> {
    let mut files = vec![candidate.to_owned()];
    if reach::is_in_base_system(candidate) {
        return files;
    }
    if let Some(beside_bin) = candidate.parent().and_then(Path::parent) {
        // pyenv and its relatives; virtual environments.
        files.extend([beside_bin.join("version"), beside_bin.join("pyvenv.cfg")]);
    }
    let configured = |name: &str| {
        settings
            .manager_env
            .iter()
            .find(|(variable, _)| variable == name)
            .map(|(_, value)| PathBuf::from(value))
    };
    let in_home = |path: &str| settings.home.as_ref().map(|home| home.join(path));
    let rustup = configured("RUSTUP_HOME").or_else(|| in_home(".rustup"));
    let mise = configured("MISE_CONFIG_DIR").or_else(|| in_home(".config/mise"));
    files.extend(rustup.map(|dir| dir.join("settings.toml")));
    files.extend(mise.map(|dir| dir.join("config.toml")));
    files.extend(in_home(".tool-versions"));
    files
}

/// Changes whenever the file is replaced, written to, or given other permissions.
fn stamp(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(of) => format!(
            "{}:{}:{}:{}.{}:{}.{}",
            of.dev(),
            of.ino(),
            of.size(),
            of.mtime(),
            of.mtime_nsec(),
            of.ctime(),
            of.ctime_nsec()
        ),
        Err(_) => "absent".to_owned(),
    }
}

/// The directory with the entries.
#[derive(Debug)]
pub(super) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(super) fn new(dir: PathBuf) -> Cache {
        Cache { dir }
    }

    pub(super) fn load(&self, key: &Key) -> Option<Runtime> {
        let entry = state::read(&self.dir, &key.file_name)?;
        parse(entry.strip_prefix(key.text.as_slice())?)
    }

    pub(super) fn store(&self, key: &Key, runtime: &Runtime) {
        let Some(value) = render(runtime) else { return };
        let entry = [key.text.as_slice(), value.as_slice()].concat();
        state::write(&self.dir, &key.file_name, &entry);
    }
}

/// `None` for a path that a line cannot hold.
fn render(runtime: &Runtime) -> Option<Vec<u8>> {
    let mut head = String::new();
    writeln!(head, "{}\n{}", runtime.label, stamp(&runtime.program)).ok()?;
    let mut value = head.into_bytes();
    for path in std::iter::once(&runtime.program).chain(&runtime.mounts) {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&b'\n') {
            return None;
        }
        value.extend_from_slice(bytes);
        value.push(b'\n');
    }
    value.extend_from_slice(b"end\n");
    Some(value)
}

/// `None` if it is incomplete, or if the program or a mount has changed.
fn parse(value: &[u8]) -> Option<Runtime> {
    let mut lines = value.strip_suffix(b"\nend\n")?.split(|byte| *byte == b'\n');
    let label = str::from_utf8(lines.next()?).ok()?.to_owned();
    let program_stamp = lines.next()?;
    let mut paths = lines.map(|line| PathBuf::from(std::ffi::OsStr::from_bytes(line)));
    let program = paths.next()?;
    let mounts: Vec<PathBuf> = paths.collect();
    let intact = stamp(&program).as_bytes() == program_stamp && mounts.iter().all(|mount| mount.exists());
    (intact && program.is_absolute()).then_some(Runtime { label, program, mounts, beside: Vec::new() })
}
