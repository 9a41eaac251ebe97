//! How a Python that boots in a template gets to run the zygote's script.
//!
//! CPython must boot as it does in a cold run: with the same command line and environment, and in a virtual environment
//! with what that switches off, such as the user's own packages. What every CPython reads from a file on its way is
//! `encodings/__init__.py` of its standard library. In the template that file has a few lines more, which install a hook;
//! the boxes themselves have the original.

use std::io;
use std::path::{Path, PathBuf};

use belljar_host::runtimes::{BASE_SYSTEM, Runtime};
use belljar_jail::plan::Step;

const HOOK: &str = include_str!("hook.py");

/// The steps that put the hook where the runtime will find it. There may be more than one place: a path and what it is
/// a link to are shown separately.
pub(super) fn hooked(runtime: &Runtime) -> io::Result<Vec<Step>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for prefix in prefixes(&runtime.program) {
        for lib in ["lib", "lib64"] {
            let file = prefix.join(lib).join(directory(runtime)?).join("encodings/__init__.py");
            if is_shown(&file, runtime) && file.is_file() && !files.contains(&file) {
                files.push(file);
            }
        }
    }
    if files.is_empty() {
        let message = format!("there is none in the usual place beside {}", runtime.program.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    files.into_iter().map(|file| Ok(Step::Cover(file.clone(), extended(&file)?))).collect()
}

fn extended(file: &Path) -> io::Result<Vec<u8>> {
    let mut content = std::fs::read(file)?;
    content.extend_from_slice(HOOK.as_bytes());
    Ok(content)
}

/// `python3.11`, as directories are called.
fn directory(runtime: &Runtime) -> io::Result<String> {
    let minor = runtime.label.strip_prefix("CPython ").and_then(|version| version.rsplit_once('.'));
    let (minor, _) = minor.ok_or(io::ErrorKind::InvalidData)?;
    Ok(format!("python{minor}"))
}

/// Where the standard library may be: beside the program, beside what it is a link to, and beside the Python that a
/// virtual environment was made from.
fn prefixes(program: &Path) -> Vec<PathBuf> {
    let mut programs = vec![program.to_owned()];
    programs.extend(program.canonicalize());
    let mut bins: Vec<PathBuf> =
        programs.iter().filter_map(|path| path.parent().map(Path::to_owned)).collect();
    bins.extend(home_of_virtual_environment(program));
    let real: Vec<PathBuf> = bins.iter().filter_map(|bin| bin.canonicalize().ok()).collect();
    bins.extend(real);
    bins.iter().filter_map(|bin| bin.parent().map(Path::to_owned)).collect()
}

/// The key `home` of its `pyvenv.cfg` (PEP 405).
fn home_of_virtual_environment(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    let text = std::fs::read_to_string(prefix.join("pyvenv.cfg")).ok()?;
    let settings = text.lines().filter_map(|line| line.split_once('='));
    let home = settings.into_iter().find(|(key, _)| key.trim() == "home").map(|(_, value)| value.trim())?;
    Some(PathBuf::from(home)).filter(|home| home.is_absolute())
}

/// Whether a box has this file.
fn is_shown(file: &Path, runtime: &Runtime) -> bool {
    let base = BASE_SYSTEM.iter().map(Path::new);
    base.chain(runtime.mounts.iter().map(PathBuf::as_path)).any(|part| file.starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("belljar-stdlib-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Scratch(dir.canonicalize().unwrap())
        }

        fn file(&self, path: &str, content: &str) -> PathBuf {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn runtime(program: PathBuf, mounts: Vec<PathBuf>) -> Runtime {
        Runtime { label: "CPython 3.11.7".into(), program, mounts, beside: Vec::new() }
    }

    fn covered(steps: &[Step]) -> Vec<&Path> {
        let mut paths = Vec::new();
        for step in steps {
            if let Step::Cover(path, _) = step {
                paths.push(path.as_path());
            }
        }
        paths
    }

    #[test]
    fn the_file_keeps_its_lines_and_gets_more() {
        let dir = Scratch::new("plain");
        let program = dir.file("bin/python3", "");
        let file = dir.file("lib/python3.11/encodings/__init__.py", "first = 1\n");
        let steps = hooked(&runtime(program, vec![dir.0.clone()])).unwrap();
        assert_eq!(steps, [Step::Cover(file, format!("first = 1\n{HOOK}").into_bytes())]);
    }

    #[test]
    fn a_virtual_environment_has_the_library_of_its_base_whether_it_is_linked_or_copied() {
        let dir = Scratch::new("venv");
        let base = dir.file("base/bin/python3", "");
        let file = dir.file("base/lib/python3.11/encodings/__init__.py", "");
        let home = format!("home = {}\nversion = 3.11.7\n", base.parent().unwrap().display());
        dir.file("linked/pyvenv.cfg", "version = 3.11.7\n");
        dir.file("linked/bin/activate", "");
        std::os::unix::fs::symlink(&base, dir.0.join("linked/bin/python")).unwrap();
        dir.file("copied/pyvenv.cfg", &home);
        dir.file("copied/bin/python", "");
        for name in ["linked", "copied"] {
            let program = dir.0.join(name).join("bin/python");
            let steps = hooked(&runtime(program, vec![dir.0.clone()])).unwrap();
            assert_eq!(covered(&steps), [file.as_path()], "{name}");
        }
    }

    #[test]
    fn what_the_box_does_not_show_cannot_be_covered() {
        let dir = Scratch::new("hidden");
        let program = dir.file("bin/python3", "");
        dir.file("lib/python3.11/encodings/__init__.py", "");
        let error = hooked(&runtime(program, vec![dir.0.join("bin")])).unwrap_err();
        assert!(error.to_string().contains("beside"), "{error}");
    }
}
