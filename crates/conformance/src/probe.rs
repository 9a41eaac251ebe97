//! The in-box probe from the outside: what to ask it, and what it answered.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::cell::{Cell, finish, start};
use crate::host::{self, Scratch};
use crate::served::Start;

/// What one attempt came to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// What was tried.
    pub op: String,
    /// What the call returned, or how many were had.
    pub ret: i64,
    /// Why it failed or stopped; 0 if it did not.
    pub errno: i32,
    /// What was read.
    pub text: String,
}

impl Observation {
    /// Asserts that the attempt worked.
    #[track_caller]
    pub fn succeeds(&self) -> &Observation {
        assert_eq!(self.errno, 0, "should have worked: {self:?}");
        self
    }

    /// Asserts that the attempt failed for one of these reasons.
    #[track_caller]
    pub fn fails_with(&self, errnos: &[i32]) -> &Observation {
        assert!(errnos.contains(&self.errno), "should have failed with one of {errnos:?}: {self:?}");
        self
    }

    /// The value of a line `Name:\tvalue` in what was read.
    #[track_caller]
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        let line = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no field {name} in {self:?}")).trim()
    }
}

impl Cell {
    /// Runs the probe in a box with these arguments.
    #[track_caller]
    #[must_use]
    pub fn probe(&self, args: &str) -> Observation {
        let mut all = self.probes(&[args]);
        assert_eq!(all.len(), 1, "one attempt, one line: {all:?}");
        all.remove(0)
    }

    /// Runs the probe in one box once for each of these.
    #[track_caller]
    #[must_use]
    pub fn probes(&self, attempts: &[&str]) -> Vec<Observation> {
        let ran = self.with_probe().run(&script(attempts));
        let observed = observations(&ran.stdout);
        assert!(observed.len() >= attempts.len(), "the probe did not finish: {ran:?}");
        observed
    }

    /// The cell with each network that its backend provides: what no program may do, it may do in none of them. As nobody
    /// looks up that name, nothing leaves this host that is not sent to a public address.
    pub fn in_each_network(&self) -> impl Iterator<Item = Cell> {
        let networks: &[&str] = match self.backend() {
            "native" => &["none", "allow:example.org:443", "full"],
            _ => &["none"],
        };
        networks.iter().map(|network| self.option("--network", network))
    }

    /// A cell whose boxes hold the probe, for scripts that call `./probe` themselves.
    #[must_use]
    pub fn with_probe(&self) -> Cell {
        let probe = match self.start() {
            Start::Cold => host::probe(self.user()),
            Start::Warm | Start::Zygote => host::small_probe(self.user()),
        };
        self.language("sh").option("--file", &format!("{}:probe", probe.display()))
    }
}

/// Reads what the probe printed.
///
/// # Panics
/// If it is not what the probe prints.
#[must_use]
pub fn observations(stdout: &str) -> Vec<Observation> {
    let lines = stdout.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|fault| panic!("{fault}: {line}"))).collect()
}

/// The probe itself, for controls that run it in ways of their own.
#[must_use]
pub fn probe_program() -> &'static Path {
    Path::new(env!("BELLJAR_PROBE"))
}

/// The control: the same attempt on the bare host, as the user who runs the tests.
#[must_use]
pub fn outside(args: &str) -> Vec<Observation> {
    outside_with_env(args, &[])
}

/// [`outside`], with these variables.
#[must_use]
pub fn outside_with_env(args: &str, env: &[(&str, &str)]) -> Vec<Observation> {
    let dir = Scratch::new();
    let mut command = shell(args, probe_program(), &dir);
    command.envs(env.iter().copied());
    observations(&finish(start(command, None)).stdout_text())
}

/// [`outside`], for what only root may do. If the tests do not run as root, there is no such control, which is recorded.
///
/// # Panics
/// If the tests do not run as root and `CI` or `BELLJAR_REQUIRE` is set.
#[must_use]
pub fn outside_as_root(attempt: &str) -> Option<Observation> {
    if rustix::process::geteuid().is_root() {
        return outside(attempt).into_iter().next();
    }
    host::skip("the control", "only root can do it, and the tests do not run as root");
    None
}

/// [`outside`], as an ordinary user.
#[must_use]
pub fn outside_as_nobody(args: &str) -> Vec<Observation> {
    let dir = Scratch::new();
    let mut command = shell(args, &host::probe(crate::User::Nobody), &dir);
    host::become_user(&mut command, crate::User::Nobody);
    observations(&finish(start(command, None)).stdout_text())
}

/// A word for a shell, whatever is in it.
#[must_use]
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A word for a shell to put together, so that only the process which gets it has it in its command line.
///
/// # Panics
/// If the word is too short to be taken apart.
#[must_use]
pub fn spelled(word: &str) -> String {
    let (head, tail) = word.split_at(word.len() / 2);
    format!("$(printf %s%s {head} {tail})")
}

fn shell(args: &str, probe: &Path, dir: &Scratch) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{} {args}", probe.display())).current_dir(dir.path());
    command
}

fn script(attempts: &[&str]) -> String {
    attempts.iter().map(|args| format!("./probe {args}\n")).collect()
}
