//! Keeps what runtimes said about themselves, one small file for each candidate.
//!
//! An entry begins with everything that it depends on, as text: a hit is an entry that begins with the text which
//! the same things give now. What is in it decides which parts of the host a box sees, so only a file that nobody
//! else could have written is believed. An entry that is not believed, or cannot be written, costs time and nothing
//! else.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use belljar_core::language::Language;
use rustix::fs::OFlags;

use super::{Runtime, RuntimeSettings, reach};

const LARGEST_ENTRY: u64 = 64 * 1024;

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

/// The files that decide what a candidate stands for: itself, and where version managers note their choice.
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
        let entry = read_own_file(&self.dir.join(&key.file_name))?;
        parse(entry.strip_prefix(key.text.as_slice())?)
    }

    pub(super) fn store(&self, key: &Key, runtime: &Runtime) {
        let Some(value) = render(runtime) else { return };
        let entry = [key.text.as_slice(), value.as_slice()].concat();
        // Without it the next search asks again; there is nothing else that a caller could do.
        let _ = self.replace(&key.file_name, &entry);
    }

    fn replace(&self, file_name: &str, entry: &[u8]) -> io::Result<()> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let draft = self.dir.join(format!(".{file_name}.{}.{count}", std::process::id()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
        written?.write_all(entry).and_then(|()| fs::rename(&draft, self.dir.join(file_name))).inspect_err(
            |_| {
                let _ = fs::remove_file(&draft);
            },
        )
    }
}

/// The content of a file that only we can have written.
fn read_own_file(path: &Path) -> Option<Vec<u8>> {
    // Not blocking, in case that somebody put a pipe there.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !ours || !metadata.is_file() || metadata.len() > LARGEST_ENTRY {
        return None;
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).ok()? + 1);
    file.take(LARGEST_ENTRY).read_to_end(&mut content).ok()?;
    Some(content)
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

/// `None` if it is not whole, or if the program or a mount is no longer what it was.
fn parse(value: &[u8]) -> Option<Runtime> {
    let mut lines = value.strip_suffix(b"\nend\n")?.split(|byte| *byte == b'\n');
    let label = str::from_utf8(lines.next()?).ok()?.to_owned();
    let program_stamp = lines.next()?;
    let mut paths = lines.map(|line| PathBuf::from(std::ffi::OsStr::from_bytes(line)));
    let program = paths.next()?;
    let mounts: Vec<PathBuf> = paths.collect();
    let intact = stamp(&program).as_bytes() == program_stamp && mounts.iter().all(|mount| mount.exists());
    (intact && program.is_absolute()).then_some(Runtime { label, program, mounts })
}
