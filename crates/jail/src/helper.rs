//! Helpers: processes on the host that Belljar needs and does not trust. An interpreter is asked for its version before
//! there can be a box for it, and a parser reads what a stranger wrote.
//!
//! A helper has nothing to lose: no capabilities, no file that it can change, no socket, no other process that it can
//! touch. Root's helper is `nobody`. An interpreter may read everything that its caller may read, because nobody knows
//! which files it needs before it has told; but the only way out is the few lines that it prints. A parser can open
//! nothing at all.
//!
//! Without Landlock (Linux before 5.13, or switched off) an ordinary user's interpreter could still change that user's
//! files, as it could if the user ran it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Gid, Signal, Uid, geteuid, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::confine::{drop_capabilities, empty_bounding_set};
use crate::plan::{Access, Resource};
use crate::seccomp::Filter;
use crate::{landlock, sys};

const NOBODY: u32 = 65534;

/// What a helper may use at most.
#[derive(Debug, Clone, Copy)]
pub struct HelperLimits {
    /// Memory of its own, in bytes.
    pub memory: u64,
    /// CPU time.
    pub cpu: Duration,
    /// The size of a file that it writes.
    pub file_size: u64,
}

/// Confines a program that will be asked about itself. It can read what the caller can read, and write beneath
/// `scratch`, which becomes its own.
///
/// # Errors
/// The kernel's, while the rules are made. Those of the program's own process are reported by `spawn`.
pub fn confine_helper(command: &mut Command, scratch: Option<&Path>, limits: HelperLimits) -> io::Result<()> {
    let identity = Identity::of_an_interpreter();
    if let (Identity::Nobody { .. }, Some(scratch)) = (identity, scratch) {
        std::os::unix::fs::chown(scratch, Some(NOBODY), Some(NOBODY))?;
    }
    let rules = ruleset_for(scratch)?;
    let (standard, apart) = (Filter::standard(), Filter::apart());
    let confine = move || {
        set_limits(&[
            (Resource::Cpu, limits.cpu.as_secs().max(1)),
            (Resource::Data, limits.memory),
            (Resource::FileSize, limits.file_size),
            (Resource::Core, 0),
        ])?;
        identity.take()?;
        rustix::thread::set_no_new_privs(true)?;
        rules.as_ref().map_or(Ok(()), landlock::enforce)?;
        apart.load()?;
        standard.load()?;
        sys::close_on_exec_from(3)
    };
    // SAFETY: the closure makes only system calls. It allocates nothing and takes no lock: the filters were compiled and
    // the rule set was made before. So it may run in a child that was forked from a process with threads.
    unsafe { command.pre_exec(confine) };
    Ok(())
}

/// Confines this process, which reads its input from an open file and writes to another, and dies with its parent. It
/// must have one thread.
///
/// # Errors
/// The kernel's. A process that could not be confined must not read its input.
pub fn confine_parser(limits: HelperLimits) -> io::Result<()> {
    set_limits(&[
        (Resource::Data, limits.memory),
        (Resource::FileSize, limits.file_size),
        (Resource::Core, 0),
    ])?;
    sys::end_after(limits.cpu)?;
    Identity::of_a_parser().take()?;
    // Changing the user clears this (prctl(2)).
    set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_no_new_privs(true)?;
    if landlock::abi() > 0 {
        landlock::restrict(&[])?;
    }
    Filter::parser().load()
}

/// Confines this process, which carries packets between a box and sockets of the host. It can make connections, and do
/// nothing else to the host: open no file, start or touch no process. It must have one thread. It is not tied to the thread
/// that started it, which may end before the run does: it ends with the socket to its parent.
///
/// # Errors
/// The kernel's. A process that could not be confined must not read a packet.
pub fn confine_gateway(limits: HelperLimits) -> io::Result<()> {
    set_limits(&[
        (Resource::Data, limits.memory),
        (Resource::FileSize, limits.file_size),
        (Resource::Core, 0),
    ])?;
    Identity::of_a_parser().take()?;
    // It may hold secrets, which no other process of its user is to read (ptrace(2)).
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    if landlock::abi() > 0 {
        landlock::restrict(&[])?;
    }
    Filter::gateway().load()
}

/// Gives a process that confined itself with [`confine_parser`] this much CPU time from now on.
///
/// # Errors
/// The kernel's.
pub fn renew_cpu_time(cpu: Duration) -> io::Result<()> {
    sys::end_after(cpu)
}

fn set_limits(limits: &[(Resource, u64)]) -> io::Result<()> {
    limits.iter().try_for_each(|(resource, value)| sys::set_limit(None, *resource, *value))
}

/// Everything may be read, and only the scratch directory changed.
fn ruleset_for(scratch: Option<&Path>) -> io::Result<Option<OwnedFd>> {
    if landlock::abi() == 0 {
        return Ok(None);
    }
    let mut rules: Vec<(PathBuf, Access)> =
        vec![("/".into(), Access::Read), ("/dev/null".into(), Access::Use)];
    rules.extend(scratch.map(|path| (path.to_owned(), Access::Write)));
    landlock::ruleset(&rules).map(Some)
}

/// Who a helper is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// A user that owns nothing, for root. Root's programs are often in a directory that only root can enter, so an
    /// interpreter keeps the right to read.
    Nobody { keeps: CapabilitySet },
    /// The caller, without capabilities: an ordinary user, or a root that cannot become anybody else.
    Caller,
}

impl Identity {
    fn of_a_parser() -> Identity {
        Identity::for_root(CapabilitySet::empty())
    }

    /// A root without the right to read everything would be denied its own programs as `nobody`.
    fn of_an_interpreter() -> Identity {
        let held = rustix::thread::capabilities(None).map(|sets| sets.permitted);
        match held.is_ok_and(|held| held.contains(CapabilitySet::DAC_READ_SEARCH)) {
            true => Identity::for_root(CapabilitySet::DAC_READ_SEARCH),
            false => Identity::Caller,
        }
    }

    fn for_root(keeps: CapabilitySet) -> Identity {
        if geteuid().is_root() && has_nobody() { Identity::Nobody { keeps } } else { Identity::Caller }
    }

    fn take(self) -> io::Result<()> {
        match self {
            Identity::Nobody { keeps } => become_nobody(keeps),
            Identity::Caller => {
                // An ordinary user cannot drop groups.
                let _ = rustix::thread::set_thread_groups(&[]);
                drop_capabilities()
            }
        }
    }
}

/// Whether there is such a user: a user namespace may have only a few.
fn has_nobody() -> bool {
    let Ok(map) = std::fs::read_to_string("/proc/self/uid_map") else { return false };
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        match (numbers.next(), numbers.nth(1)) {
            (Some(first), Some(count)) => (first..first + count).contains(&u64::from(NOBODY)),
            _ => false,
        }
    })
}

fn become_nobody(keeps: CapabilitySet) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // What is not in the bounding set cannot become inheritable, so this comes first.
    let root = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: keeps, ..root })?;
    empty_bounding_set()?;
    rustix::thread::set_keep_capabilities(!keeps.is_empty())?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let sets = CapabilitySets { effective: keeps, permitted: keeps, inheritable: keeps };
    rustix::thread::set_capabilities(None, sets)?;
    if !keeps.is_empty() {
        // Otherwise it would be lost at `exec`.
        rustix::thread::configure_capability_in_ambient_set(keeps, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LIMITS: HelperLimits =
        HelperLimits { memory: 256 << 20, cpu: Duration::from_secs(10), file_size: 1 << 20 };

    struct Case {
        dir: PathBuf,
        scratch: PathBuf,
    }

    impl Case {
        fn new(name: &str) -> Case {
            let dir = std::env::temp_dir().join(format!("belljar-helper-{}-{name}", std::process::id()));
            let scratch = dir.join("scratch");
            std::fs::create_dir_all(&scratch).unwrap();
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
            Case { dir, scratch }
        }

        fn sh(&self, script: &str) -> Command {
            let mut command = Command::new("/bin/sh");
            command
                .args(["-c", script, "sh"])
                .arg(&self.dir)
                .arg(&self.scratch)
                .stdin(std::process::Stdio::null());
            command
        }

        fn confined(&self, script: &str) -> String {
            let mut command = self.sh(script);
            confine_helper(&mut command, Some(&self.scratch), LIMITS).unwrap();
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        }

        fn free(&self, script: &str) -> String {
            String::from_utf8(self.sh(script).output().unwrap().stdout).unwrap()
        }
    }

    impl Drop for Case {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn a_helper_reads_and_cannot_write_except_in_its_scratch_directory() {
        let case = Case::new("files");
        let script =
            "cat $1/readable; echo x 2>/dev/null >$1/new && echo wrote; echo x >$2/new && echo scratch";
        std::fs::write(case.dir.join("readable"), "read\n").unwrap();
        assert_eq!(case.free(script), "read\nwrote\nscratch\n", "the control");
        std::fs::remove_file(case.dir.join("new")).unwrap();
        std::fs::remove_file(case.scratch.join("new")).unwrap();
        let wanted = if landlock::abi() > 0 { "read\nscratch\n" } else { "read\nwrote\nscratch\n" };
        assert_eq!(case.confined(script), wanted);
    }

    #[test]
    fn a_helper_cannot_signal_or_connect() {
        let case = Case::new("others");
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let script = format!("kill {} && echo killed", other.id());
        assert_eq!(case.confined(&script), "");
        assert!(other.try_wait().unwrap().is_none());
        assert_eq!(case.free(&script), "killed\n", "the control");
        other.wait().unwrap();
        let socket = "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) and print qq(socket\\n)'";
        assert_eq!(case.free(socket), "socket\n", "the control");
        assert_eq!(case.confined(socket), "");
    }

    #[test]
    fn roots_helper_is_nobody_with_no_right_but_to_read() {
        let case = Case::new("rights");
        let status = case.confined("cat /proc/self/status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        assert_eq!(field("Seccomp:"), ["2"]);
        let held = u64::from_str_radix(&field("CapEff:")[0], 16).unwrap();
        if Identity::of_an_interpreter() == Identity::Caller {
            assert_eq!(held, 0, "{status}");
        } else {
            assert_eq!(field("Uid:"), ["65534"; 4]);
            assert_eq!(field("Groups:"), Vec::<String>::new());
            assert_eq!(held, CapabilitySet::DAC_READ_SEARCH.bits(), "{status}");
        }
    }
}
