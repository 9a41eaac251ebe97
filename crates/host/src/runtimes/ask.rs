//! Runs a candidate once and reads what it reports about itself.
//!
//! The program on the search path may be anything, and there can be no box for it before it has told what it needs. So
//! it runs on the host with nothing to lose ([`belljar_jail::confine_helper`]): it can read, but not write, connect or
//! signal; with next to no environment, in `/`, and for a limited time.

use std::fs::{DirBuilder, remove_dir_all};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use belljar_jail::{HelperLimits, confine_helper};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::RuntimeSettings;

const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: usize = 64 * 1024;
/// What an interpreter may use to tell its version. Some commit a part of the host's memory when they start.
const LIMITS: HelperLimits = HelperLimits { memory: 8 << 30, cpu: PATIENCE, file_size: 16 << 20 };

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("it cannot be started ({0})")]
    NotStarted(io::Error),
    #[error("its output cannot be read ({0})")]
    NotHeard(io::Error),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    TooLate,
    #[error("its answer is too long")]
    TooLong,
    #[error("{status}{}", last_words(.text))]
    Failed { status: ExitStatus, text: String },
}

/// Asks all the questions and returns the concatenated answers.
pub(super) fn ask(
    program: &Path,
    questions: &[&[&str]],
    settings: &RuntimeSettings,
) -> Result<String, NoAnswer> {
    let deadline = Instant::now() + PATIENCE;
    let scratch = Scratch::make(settings).ok();
    let mut answers = String::new();
    for question in questions {
        let mut command = quiet_command(program, settings);
        let scratch = scratch.as_ref().map(|scratch| scratch.path.as_path());
        command.envs(scratch.map(|path| ("TMPDIR", path)));
        confine_helper(&mut command, scratch, LIMITS).map_err(NoAnswer::NotStarted)?;
        answers.push_str(&listen(command.args(*question), deadline)?);
        answers.push('\n');
    }
    Ok(answers)
}

/// A directory for temporary files, without which R does not start. It is locked while it is in use; one that is not
/// locked belonged to a process that was killed, and is removed by the next that makes one.
struct Scratch {
    path: PathBuf,
    _lock: OwnedFd,
}

const SCRATCH_PREFIX: &str = "asked-";
/// A new directory is lost if somebody else sweeps between its making and its locking.
const ATTEMPTS: u32 = 3;

impl Scratch {
    /// In the state directory if there is one. That of a server which dropped root's rights is a file system of its
    /// own, which goes with it however it ends.
    fn make(settings: &RuntimeSettings) -> io::Result<Scratch> {
        let dir = settings.cache_dir.clone().unwrap_or_else(std::env::temp_dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        sweep(&dir);
        let mut attempt = 0;
        loop {
            attempt += 1;
            match Scratch::make_in(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {}
                other => return other,
            }
        }
    }

    fn make_in(dir: &Path) -> io::Result<Scratch> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let path = dir.join(format!("{SCRATCH_PREFIX}{}-{number}-{now:x}", std::process::id()));
        // It must be new: somebody else's could hold anything.
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = open_directory(&path)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        std::fs::symlink_metadata(&path)?;
        Ok(Scratch { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove_dir_all(&self.path);
    }
}

/// Removes the directories of processes that were killed.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_scratch = entry.file_name().to_str().is_some_and(|name| name.starts_with(SCRATCH_PREFIX));
        let is_free = || {
            open_directory(&entry.path())
                .is_ok_and(|found| flock(&found, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_scratch && is_free() {
            let _ = remove_dir_all(entry.path());
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn quiet_command(program: &Path, settings: &RuntimeSettings) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(settings.manager_env.iter().map(|(name, value)| (name, value)));
    command.env("PATH", &settings.search_path).env("LANG", "C.UTF-8");
    // Asking a proxy for its version must not make it download one.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    if let Some(home) = &settings.home {
        command.env("HOME", home);
    }
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn listen(command: &mut Command, deadline: Instant) -> Result<String, NoAnswer> {
    let mut asked = Asked(command.spawn().map_err(NoAnswer::NotStarted)?);
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    asked.hear(&mut output, &mut errors, deadline)?;
    let status = asked.0.wait().map_err(NoAnswer::NotHeard)?;
    // Some answer on stdout, some on stderr; warnings on the other stream are not part of the answer.
    let said = if output.iter().all(u8::is_ascii_whitespace) { errors } else { output };
    let text = String::from_utf8_lossy(&said).into_owned();
    if status.success() { Ok(text) } else { Err(NoAnswer::Failed { status, text }) }
}

/// A running candidate. Dropping it kills it and everything that it has started.
struct Asked(Child);

impl Asked {
    /// Collects its output until it is gone. Not until its pipes are closed: a child of its own may hold them open.
    fn hear(
        &mut self,
        output: &mut Vec<u8>,
        errors: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<(), NoAnswer> {
        let (Some(mut stdout), Some(mut stderr)) = (self.0.stdout.take(), self.0.stderr.take()) else {
            return Ok(());
        };
        let exit = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).map_err(heard)?;
        let (mut stdout_open, mut stderr_open, mut running) = (true, true, true);
        loop {
            let left =
                if running { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            let watch = |open: bool| if open { PollFlags::IN } else { PollFlags::empty() };
            let mut watched = [
                PollFd::from_borrowed_fd(stdout.as_fd(), watch(stdout_open)),
                PollFd::from_borrowed_fd(stderr.as_fd(), watch(stderr_open)),
                PollFd::from_borrowed_fd(exit.as_fd(), watch(running)),
            ];
            let timeout = Timespec::try_from(left).map_err(|_| NoAnswer::TooLate)?;
            match poll(&mut watched, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(heard)?,
            };
            let [said_out, said_err, exited] =
                watched.each_ref().map(|fd| fd.revents().intersects(PollFlags::IN | PollFlags::HUP));
            let (read_out, read_err) = (stdout_open && said_out, stderr_open && said_err);
            if read_out {
                stdout_open = take(&mut stdout, output)?;
            }
            if read_err {
                stderr_open = take(&mut stderr, errors)?;
            }
            match (running, exited) {
                (true, true) => running = false,
                (true, false) if Instant::now() >= deadline => return Err(NoAnswer::TooLate),
                (true, false) => {}
                // It is gone, and its pipes are empty.
                (false, _) if !read_out && !read_err => return Ok(()),
                (false, _) => {}
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // It leads its own process group, and its number is not reused before it is waited for.
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// Reads what is available. False at the end of the stream.
fn take(stream: &mut impl Read, into: &mut Vec<u8>) -> Result<bool, NoAnswer> {
    let mut piece = [0; 4096];
    let count = stream.read(&mut piece).map_err(NoAnswer::NotHeard)?;
    into.extend_from_slice(&piece[..count]);
    if into.len() > LONGEST_ANSWER { Err(NoAnswer::TooLong) } else { Ok(count > 0) }
}

fn heard(errno: rustix::io::Errno) -> NoAnswer {
    NoAnswer::NotHeard(errno.into())
}

/// The last line of a failed candidate's output, made safe for a terminal.
fn last_words(text: &str) -> String {
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(", {}", line.trim().chars().take(200).collect::<String>().escape_debug()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_of_a_killed_process_is_removed_and_one_in_use_is_kept() {
        let dir = std::env::temp_dir().join(format!("belljar-ask-{}", std::process::id()));
        let settings = RuntimeSettings { cache_dir: Some(dir.clone()), ..RuntimeSettings::default() };
        let in_use = Scratch::make(&settings).unwrap();
        let orphan = dir.join(format!("{SCRATCH_PREFIX}1-0-0"));
        std::fs::create_dir_all(orphan.join("left")).unwrap();
        let other = Scratch::make(&settings).unwrap();
        assert!(in_use.path.exists() && other.path.exists());
        assert!(!orphan.exists(), "nobody holds its lock");
        drop((in_use, other));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        remove_dir_all(dir).unwrap();
    }
}
