//! Which runtime an image has, and what it reports about itself.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_jail::seccomp::Listener;

use crate::frame::{Found, LONGEST, Question};

/// How long the listener is waited for before looking whether there is still anything to wait for.
const LOOK: Duration = Duration::from_millis(5);

/// Allows all calls that have to be asked for during some work. The programs are those of the image, and no code of a caller
/// is there yet.
pub(super) fn while_allowing<T>(listener: Option<&Listener>, work: impl FnOnce() -> T) -> T {
    let Some(listener) = listener else { return work() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match listener.next_asked() {
                    Ok(Some(asked)) => drop(listener.allow(&asked)),
                    Ok(None) | Err(_) => std::thread::sleep(LOOK),
                }
            }
        });
        let came_to = work();
        done.store(true, Ordering::Relaxed);
        came_to
    })
}

/// Finds the first of the programs that answers.
pub(super) fn answer(question: &Question) -> Found {
    let path = question.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value.as_str());
    let mut last = Found::default();
    for program in question.programs.iter().filter_map(|name| find(name, path)) {
        match ask(&program, question) {
            Ok(text) => return Found { program: Some(program.to_string_lossy().into_owned()), text },
            Err(text) => last.text = text,
        }
    }
    last
}

fn find(name: &str, path: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    path.split(':').map(|dir| Path::new(dir).join(name)).find(runs)
}

fn ask(program: &Path, question: &Question) -> Result<String, String> {
    let mut text = String::new();
    for words in &question.ask {
        let mut command = Command::new(program);
        command.args(words).env_clear().current_dir("/");
        command.envs(question.env.iter().map(|(name, value)| (name, value)));
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        // Some answer on stdout, some on stderr; warnings on the other stream are not part of the answer.
        let blank = output.stdout.iter().all(u8::is_ascii_whitespace);
        let said = if blank { output.stderr } else { output.stdout };
        let said = String::from_utf8_lossy(&said[..said.len().min(LONGEST / 8)]).into_owned();
        if !output.status.success() {
            return Err(said);
        }
        text.push_str(&said);
        text.push('\n');
    }
    let mut short = String::new();
    // In JSON, a byte may take six.
    let _ = text.as_bytes().take((LONGEST / 8) as u64).read_to_string(&mut short);
    Ok(short)
}
