//! The store of modules and their compiled code, in the state directory. Compiled code is machine code that will run as
//! us, so only we (and root) may be able to write there, and nothing is loaded that was changed.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use wasmtime::{Engine, Module};

use crate::interpreters::Interpreter;
use crate::machine::Machine;

/// The largest module that is accepted.
const MAX_MODULE: u64 = 512 << 20;
/// The largest metadata file.
const MAX_NOTE: u64 = 4096;

/// The directory of the modules.
#[derive(Debug, Clone)]
pub struct Shelf {
    dir: PathBuf,
}

/// An installed module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its hash, in hexadecimal digits.
    pub sha256: String,
    /// How large it is.
    pub size: u64,
    /// Where it came from, in words.
    pub origin: String,
}

impl Shelf {
    /// The store under a state directory; nothing is made yet.
    #[must_use]
    pub fn new(state_dir: &Path) -> Shelf {
        Shelf { dir: state_dir.join("wasm") }
    }

    /// Its path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is installed of an interpreter.
    #[must_use]
    pub fn find(&self, interpreter: &Interpreter) -> Option<Installed> {
        let note = self.read_note(&format!("{}.module", interpreter.name)).ok()?;
        let mut lines = note.lines();
        let (sha256, size, origin) = (lines.next()?, lines.next()?, lines.next()?);
        let plain = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then_some(())?;
        Some(Installed { sha256: sha256.to_owned(), size: size.parse().ok()?, origin: origin.to_owned() })
    }

    /// Stores a module, compiled for this machine.
    ///
    /// # Errors
    /// It is not a module, or the directory cannot be written.
    pub(crate) fn put(
        &self,
        interpreter: &Interpreter,
        module: &[u8],
        origin: &str,
        machine: &Machine,
    ) -> io::Result<Installed> {
        self.make()?;
        let sha256 = hash(module);
        self.compile(module, &sha256, machine)?;
        self.write(&format!("{}.wasm", interpreter.name), module)?;
        let origin = origin.replace('\n', " ");
        let note = format!("{sha256}\n{}\n{origin}\n", module.len());
        self.write(&format!("{}.module", interpreter.name), note.as_bytes())?;
        self.discard_stale();
        Ok(Installed { sha256, size: module.len() as u64, origin })
    }

    /// Whether the compiled code of a module fits this machine, and its size.
    pub(crate) fn compiled_size(&self, installed: &Installed, machine: &Machine) -> Option<u64> {
        let name = artefact(&installed.sha256, machine);
        Some(self.open(&name).ok()?.metadata().ok()?.len())
    }

    /// The compiled code of a module, ready to run. If it was compiled for another version of Belljar, or not at all,
    /// it is compiled again, which takes a while.
    pub(crate) fn load(
        &self,
        interpreter: &Interpreter,
        installed: &Installed,
        machine: &Machine,
    ) -> io::Result<Module> {
        let name = artefact(&installed.sha256, machine);
        match self.sealed(&name).and_then(|file| load_machine_code(&machine.engine, file)) {
            Ok(module) => Ok(module),
            Err(_) => {
                let module = self.read(&format!("{}.wasm", interpreter.name), MAX_MODULE)?;
                if hash(&module) != installed.sha256 {
                    return Err(io::Error::other("the module is not the one that was installed"));
                }
                self.compile(&module, &installed.sha256, machine)?;
                load_machine_code(&machine.engine, self.sealed(&name)?)
            }
        }
    }

    /// Compiles a module, and seals the result.
    fn compile(&self, module: &[u8], sha256: &str, machine: &Machine) -> io::Result<()> {
        let compiled = machine.engine.precompile_module(module).map_err(io::Error::other)?;
        let name = artefact(sha256, machine);
        self.write(&name, &compiled)?;
        self.seal(&name, &hash(&compiled))
    }

    /// Records the state of a file when its hash was known: any change to the file changes one of these.
    fn seal(&self, name: &str, sha256: &str) -> io::Result<()> {
        let about = self.open(name)?.metadata()?;
        self.write(&format!("{name}.seal"), format!("{sha256}\n{}\n", fingerprint(&about)).as_bytes())
    }

    /// Opens a file whose seal is intact. If only the seal does not match, because both were copied, the hash decides.
    fn sealed(&self, name: &str) -> io::Result<File> {
        let note = self.read_note(&format!("{name}.seal"))?;
        let (sha256, seal) =
            note.trim_end().split_once('\n').ok_or_else(|| io::Error::other("its seal is malformed"))?;
        let mut file = self.open(name)?;
        if fingerprint(&file.metadata()?) != seal {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            if hash(&bytes) != sha256 {
                return Err(io::Error::other(format!("{name} has been changed")));
            }
            // If it cannot be sealed again, it is hashed again the next time.
            let _ = self.seal(name, sha256);
        }
        Ok(file)
    }

    fn make(&self) -> io::Result<()> {
        if let Some(above) = self.dir.parent() {
            fs::create_dir_all(above)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.check_dir(),
        }
    }

    fn check_dir(&self) -> io::Result<()> {
        let about = fs::symlink_metadata(&self.dir)?;
        if about.is_dir() { check_ours(&about, &self.dir) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    /// Opens a file that only we can have written.
    fn open(&self, name: &str) -> io::Result<File> {
        self.check_dir()?;
        let path = self.dir.join(name);
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other(format!("{} is not a file", path.display())));
        }
        check_ours(&about, &path)?;
        Ok(file)
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_note(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name, MAX_NOTE)?).map_err(io::Error::other)
    }

    /// Writes a file atomically.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let partial = self.dir.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&partial);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| fs::rename(&partial, self.dir.join(name)));
        if moved.is_err() {
            let _ = fs::remove_file(&partial);
        }
        moved
    }

    /// Removes compiled code whose module no longer exists. Loading makes again what it needs.
    fn discard_stale(&self) {
        let known: Vec<String> = crate::interpreters::INTERPRETERS
            .iter()
            .filter_map(|interpreter| Some(self.find(interpreter)?.sha256))
            .collect();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stale =
                name.contains(".cwasm") && !known.iter().any(|sha256| name.starts_with(&sha256[..32]));
            if stale {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A hash, in hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The name of a compiled module: what it was made from, and what it was made for.
fn artefact(sha256: &str, machine: &Machine) -> String {
    format!("{}-{}.cwasm", sha256.get(..32).unwrap_or(sha256), machine.make())
}

fn fingerprint(about: &fs::Metadata) -> String {
    let changed = (about.ctime(), about.ctime_nsec());
    let modified = (about.mtime(), about.mtime_nsec());
    format!("{} {} {} {modified:?} {changed:?}", about.dev(), about.ino(), about.len())
}

fn check_ours(about: &fs::Metadata, path: &Path) -> io::Result<()> {
    let ours = about.uid() == rustix::process::geteuid().as_raw() || about.uid() == 0;
    if ours && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("{} is writable by other users, so its contents are not trusted", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Loads code that we compiled.
#[allow(unsafe_code, reason = "machine code from a file cannot be checked, only where it comes from")]
fn load_machine_code(engine: &Engine, file: File) -> io::Result<Module> {
    // SAFETY: the file must be what `Engine::precompile_module` returned, and must not be changed while it is in use. It
    // comes from `Shelf::sealed` alone: it was written by us into a directory that only we (or root) can write to, its
    // hash was taken then, and it has not changed since. It is never written in place: `Shelf::write` makes a new file.
    // That it was made by the same version of the engine with the same settings is checked by the engine itself.
    unsafe { Module::deserialize_open_file(engine, file) }.map_err(io::Error::other)
}
