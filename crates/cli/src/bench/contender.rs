//! The contenders: the bare interpreter, belljar, and the other sandboxes on this host, each with about the same
//! limits: no network, 256 MB of memory, 50 processes, one CPU, a read-only root, 64 MB of disk, no privileges.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use clap::builder::PossibleValue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use serde::Serialize;

use super::Snippet;
use super::statistics::Milliseconds;
use crate::languages;

pub(super) const BARE: &str = "bare";
pub(super) const BELLJAR: &str = "belljar";
pub(super) const BUBBLEWRAP: &str = "bubblewrap";
pub(super) const NSJAIL: &str = "nsjail";
pub(super) const DOCKER: &str = "docker";
/// Belljar's other backends go by its name and theirs.
const OTHER_BACKENDS: &str = "belljar-";
/// Every contender, in the order in which they are shown.
pub(super) const NAMES: [&str; 8] =
    [BARE, BELLJAR, "belljar-docker", "belljar-wasm", "belljar-process", BUBBLEWRAP, NSJAIL, DOCKER];

/// The names that `--only` takes. One that this build cannot measure is not offered, but says why it is missing.
pub(super) fn values() -> Vec<PossibleValue> {
    let hidden = |name: &str| name == "belljar-wasm" && cfg!(not(feature = "wasm"));
    NAMES.into_iter().map(|name| PossibleValue::new(name).hide(hidden(name))).collect()
}

/// Much longer than any of them takes.
const DEADLINE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What belljar's own filter refuses and nsjail's language for filters has a name for.
const NSJAIL_FILTER: &str = "POLICY bench { KILL { ptrace, process_vm_readv, process_vm_writev, mount, umount, \
    pivot_root, chroot, unshare, setns, bpf, perf_event_open, userfaultfd, keyctl, add_key, request_key, \
    open_by_handle_at, init_module, delete_module, kexec_load, reboot } } USE bench DEFAULT ALLOW";

/// A contender that works here: it has just run the snippet.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    argv: Vec<String>,
}

/// A contender that does not work here.
#[derive(Debug, Serialize)]
pub(super) struct Absent {
    pub(super) name: &'static str,
    pub(super) why: String,
}

/// The other sandboxes on this host.
#[derive(Debug)]
pub(super) struct Peers {
    docker_image: String,
    cgroup: Option<NsjailCgroup>,
}

impl Contender {
    /// How long it takes from start to end, with its output read.
    pub(super) fn time_one_run(&self) -> io::Result<Milliseconds> {
        let began = Instant::now();
        let output = run_to_end(&self.argv)?;
        let took = began.elapsed();
        match output.status.success() {
            true => Ok(took.as_secs_f64() * 1000.0),
            false => Err(io::Error::other(format!("{} failed half-way: {}", self.name, complaint(&output)))),
        }
    }
}

impl Peers {
    pub(super) fn find(docker_image: &str) -> Peers {
        Peers { docker_image: docker_image.to_owned(), cgroup: NsjailCgroup::make() }
    }

    /// Tells those that can run the snippet from those that cannot, by letting them.
    pub(super) fn line_up(
        &self,
        snippet: &Snippet,
        program: &str,
        only: &[String],
    ) -> (Vec<Contender>, Vec<Absent>) {
        let wanted =
            NAMES.into_iter().filter(|name| only.is_empty() || only.iter().any(|chosen| chosen == name));
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        for name in wanted {
            let tried = self.command(name, snippet, program).and_then(|argv| rehearse(argv, snippet));
            match tried {
                Ok(argv) => present.push(Contender { name, argv }),
                Err(why) => absent.push(Absent { name, why }),
            }
        }
        (present, absent)
    }

    fn command(&self, name: &'static str, snippet: &Snippet, program: &str) -> Result<Vec<String>, String> {
        let direct = [program, snippet.option, snippet.code];
        match name {
            BARE => Ok(words(&[&direct])),
            BELLJAR => Ok(words(&[&["/proc/self/exe", "run", snippet.language, "-c", snippet.code]])),
            _ if let Some(backend) = name.strip_prefix(OTHER_BACKENDS) => {
                let run = ["/proc/self/exe", "run", snippet.language, "-c", snippet.code];
                Ok(words(&[&run, &["--backend", backend]]))
            }
            BUBBLEWRAP => Ok(words(&[&[&installed("bwrap")?], BWRAP, &binds("--ro-bind", program), &direct])),
            NSJAIL => Ok(self.nsjail(&installed("nsjail")?, program, &direct)),
            _ => self.docker(&installed("docker")?, snippet),
        }
    }

    fn nsjail(&self, nsjail: &str, program: &str, direct: &[&str]) -> Vec<String> {
        let prefix = binds_of(program).map(|prefix| format!("{prefix}:{prefix}"));
        let prefix: Vec<&str> = prefix.iter().flat_map(|bind| ["--bindmount_ro", bind]).collect();
        let filter = ["--seccomp_string", NSJAIL_FILTER];
        let limits = self.cgroup.as_ref().map(NsjailCgroup::options).unwrap_or_default();
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        words(&[&[nsjail], NSJAIL_OPTIONS, &prefix, &filter, &limits, &["--"], direct])
    }

    fn docker(&self, docker: &str, snippet: &Snippet) -> Result<Vec<String>, String> {
        let ask = |argv: &[&str]| run_to_end(&words(&[&[docker], argv])).map_err(|error| error.to_string());
        if !ask(&["version", "--format", "{{.Server.Version}}"])?.status.success() {
            return Err("its daemon does not answer".to_owned());
        }
        if !ask(&["image", "inspect", &self.docker_image])?.status.success() {
            return Err(format!("the image {} is not here", self.docker_image));
        }
        let inside = [&self.docker_image, snippet.program, snippet.option, snippet.code];
        Ok(words(&[&[docker], DOCKER_RUN, &inside]))
    }
}

const BWRAP: &[&str] = &[
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
];

const NSJAIL_OPTIONS: &[&str] = &[
    "--really_quiet",
    "--mode",
    "o",
    "--user",
    "65534",
    "--group",
    "65534",
    "--hostname",
    "box",
    "--bindmount_ro",
    "/usr",
    "--symlink",
    "/usr/bin:/bin",
    "--symlink",
    "/usr/lib:/lib",
    "--symlink",
    "/usr/lib64:/lib64",
    "--bindmount_ro",
    "/dev/null",
    "--bindmount_ro",
    "/dev/urandom",
    "--mount",
    "none:/tmp:tmpfs:size=67108864",
    "--rlimit_as",
    "hard",
    "--rlimit_fsize",
    "64",
    "--rlimit_nofile",
    "256",
    "--time_limit",
    "10",
];

const DOCKER_RUN: &[&str] = &[
    "run",
    "--rm",
    "--network",
    "none",
    "--read-only",
    "--memory",
    "256m",
    "--memory-swap",
    "256m",
    "--pids-limit",
    "50",
    "--cpus",
    "1",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--user",
    "65534:65534",
    "--tmpfs",
    "/tmp:size=64m",
    "--workdir",
    "/tmp",
];

/// The interpreter that belljar would use for a snippet.
pub(super) fn interpreter(snippet: &Snippet) -> io::Result<String> {
    let found = languages::find(snippet.language, &|name| env::var_os(name));
    found.map_err(|problem| io::Error::other(problem.error.message))
}

/// Everyone is missing, for the same reason.
pub(super) fn nobody(why: &str) -> Vec<Absent> {
    NAMES.into_iter().map(|name| Absent { name, why: why.to_owned() }).collect()
}

fn words(parts: &[&[&str]]) -> Vec<String> {
    parts.iter().copied().flatten().map(|word| (*word).to_owned()).collect()
}

fn installed(program: &str) -> Result<String, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    let found = found.as_deref().and_then(Path::to_str).map(str::to_owned);
    found.ok_or_else(|| format!("{program} is not installed"))
}

/// Options that show an interpreter's prefix, which need not be under `/usr`.
fn binds<'a>(option: &'a str, program: &'a str) -> Vec<&'a str> {
    binds_of(program).map_or(vec![], |prefix| vec![option, prefix, prefix])
}

/// The prefix of an interpreter, `/opt/python` of `/opt/python/bin/python3`, unless `/usr` has it.
fn binds_of(program: &str) -> Option<&str> {
    let usual = ["/usr/", "/bin/"].iter().any(|prefix| program.starts_with(prefix));
    if usual { None } else { Path::new(program).parent()?.parent()?.to_str() }
}

/// Lets a contender run the snippet once, to see that it can.
fn rehearse(argv: Vec<String>, snippet: &Snippet) -> Result<Vec<String>, String> {
    let output = run_to_end(&argv).map_err(|error| error.to_string())?;
    match output.status.success() && output.stdout == snippet.prints.as_bytes() {
        true => Ok(argv),
        false => Err(complaint(&output)),
    }
}

/// What a failed program said last, in one line.
fn complaint(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    let last: String = last.chars().filter(|c| !c.is_control()).take(160).collect();
    format!("{}, {last}", output.status)
}

/// Whether a contender gets this variable: where things are, and what belljar and docker are told. What else a shell
/// exports slows some interpreters down (`NODE_EXTRA_CA_CERTS` doubles what Node takes) and never gets into a box.
fn is_needed(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let where_things_are = ["PATH", "HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"].contains(&name.as_ref());
    where_things_are || name.starts_with("BELLJAR_") || name.starts_with("DOCKER_")
}

/// Runs a command to its end. What it prints must fit into a pipe; the output of these programs does.
fn run_to_end(argv: &[String]) -> io::Result<Output> {
    let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.env_clear().envs(env::vars_os().filter(|(name, _)| is_needed(name)));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| io::Error::other(format!("cannot start {program}: {error}")))?;
    if !ends_in_time(&child)? {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other(format!("{program} did not end in time")));
    }
    let status = child.wait()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) {
        out.read_to_end(&mut stdout)?;
        err.read_to_end(&mut stderr)?;
    }
    Ok(Output { status, stdout, stderr })
}

fn ends_in_time(child: &Child) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&DEADLINE))? == 1)
}

/// Where nsjail may put its cgroups. It wants a parent in each hierarchy, and does not make one.
#[derive(Debug)]
struct NsjailCgroup {
    name: String,
    folders: Vec<PathBuf>,
}

/// The hierarchies of cgroup v1 that nsjail limits something with.
const HIERARCHIES: [&str; 3] = ["memory", "pids", "cpu"];

impl NsjailCgroup {
    /// Makes the parents, where there is cgroup v1 and the right to. Elsewhere nsjail runs without these limits,
    /// which only makes it faster.
    fn make() -> Option<NsjailCgroup> {
        let name = format!("belljar-bench-{}", std::process::id());
        let roots = HIERARCHIES.map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy));
        if !geteuid().is_root() || !roots.iter().all(|root| root.join("tasks").is_file()) {
            return None;
        }
        let mut cgroup = NsjailCgroup { folders: Vec::new(), name };
        for root in roots {
            let folder = root.join(&cgroup.name);
            fs::create_dir(&folder).ok()?;
            cgroup.folders.push(folder);
        }
        Some(cgroup)
    }

    fn options(&self) -> Vec<String> {
        let limits = [
            "--cgroup_mem_max",
            "268435456",
            "--cgroup_pids_max",
            "50",
            "--cgroup_cpu_ms_per_sec",
            "1000",
            "--cgroup_mem_parent",
            &self.name,
            "--cgroup_pids_parent",
            &self.name,
            "--cgroup_cpu_parent",
            &self.name,
        ];
        words(&[&limits])
    }
}

impl Drop for NsjailCgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            // One that is still in use stays behind, and is empty.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::SNIPPETS;

    fn sh(script: &str) -> Vec<String> {
        words(&[&["/bin/sh", "-c", script]])
    }

    #[test]
    fn an_interpreter_outside_of_usr_is_bound_with_its_prefix() {
        assert_eq!(binds("--ro-bind", "/opt/py/bin/python3"), ["--ro-bind", "/opt/py", "/opt/py"]);
        assert_eq!(binds("--ro-bind", "/usr/bin/python3"), [""; 0]);
    }

    #[test]
    fn a_contender_must_print_what_the_snippet_prints() {
        let python = &SNIPPETS[1];
        assert_eq!(rehearse(sh("echo 1"), python), Ok(sh("echo 1")));
        assert_eq!(rehearse(sh("echo 2"), python), Err("exit status: 0, it printed nothing".into()));
        assert_eq!(
            rehearse(sh("echo 1; echo no such >&2; exit 3"), python),
            Err("exit status: 3, no such".into())
        );
        assert!(
            rehearse(words(&[&["/nonexistent/x"]]), python)
                .unwrap_err()
                .contains("cannot start /nonexistent/x")
        );
    }

    #[test]
    fn a_run_is_timed_from_start_to_end() {
        let time = Contender { name: BARE, argv: sh("sleep 0.05") }.time_one_run().unwrap();
        assert!((50.0..5_000.0).contains(&time), "{time}");
        let failing = Contender { name: BARE, argv: sh("exit 1") };
        assert!(failing.time_one_run().unwrap_err().to_string().contains("bare failed half-way"));
    }

    #[test]
    fn only_the_named_contenders_are_lined_up() {
        let peers = Peers { docker_image: String::new(), cgroup: None };
        let (present, absent) = peers.line_up(&SNIPPETS[0], "/bin/bash", &[BARE.to_owned()]);
        assert_eq!((present.len(), present[0].name, absent.len()), (1, BARE, 0));
    }

    #[test]
    fn a_program_that_is_nowhere_on_the_path_is_not_installed() {
        assert!(installed("sh").is_ok());
        assert_eq!(
            installed("surely-nobody-has-this"),
            Err("surely-nobody-has-this is not installed".into())
        );
    }
}
