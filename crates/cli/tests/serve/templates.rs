//! Boxes that are built on a template: what they show is locked down, is what the host has at that moment, and no process
//! lives where it came from.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::pool::{python, run_warm};
use crate::server::{Server, eventually};

const COLD: &str = "[pool]\nenabled = false\n";

/// The root of a box that is built on a template belongs to the server, and so to nobody in the box.
const OWNER_OF_ROOT: &str = "stat -c %u /";
const NOBODY: &str = "65534\n";

fn bash(code: &str) -> Value {
    json!({"language": "bash", "code": code})
}

fn stdout_of(server: &Server, body: &Value) -> String {
    let result = server.post("/v1/runs", body).result();
    assert_eq!(result["exit_code"], json!(0), "{result}");
    result["stdout"].as_str().unwrap().to_owned()
}

#[test]
fn the_boxes_of_a_server_are_built_on_templates_and_that_of_the_command_line_is_not() {
    let server = Server::with(COLD, &[]);
    assert_eq!(stdout_of(&server, &bash(OWNER_OF_ROOT)), NOBODY);
    let alone =
        Command::new(env!("CARGO_BIN_EXE_belljar")).args(["run", "bash", "-c", OWNER_OF_ROOT]).output();
    assert_eq!(String::from_utf8_lossy(&alone.unwrap().stdout), "0\n", "the control");
}

/// A mount of a box: where, and its options.
fn mounts(table: &str) -> Vec<(String, Vec<String>)> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let (point, options) = (fields.next()?, fields.next()?);
        Some((point.to_owned(), options.split(',').map(str::to_owned).collect()))
    };
    table.lines().filter_map(mount).collect()
}

/// What the code may write to, and `/proc`, which the kernel protects itself.
const WRITABLE: &[&str] =
    &["/sandbox", "/tmp", "/dev/shm", "/dev/pts", "/proc", "/proc/mounts", "/proc/net", "/proc/uptime"];

#[test]
fn every_mount_has_its_flags_cold_and_warm() {
    let cold = Server::with(COLD, &[]);
    let warm = Server::with("[pool.languages.python]\nmin = 1\nmax = 2\n", &[]);
    let table = "print(open('/proc/self/mountinfo').read(), end='')";
    let of_warm = run_warm(&warm, &python(table));
    let tables =
        [stdout_of(&cold, &bash("cat /proc/self/mountinfo")), of_warm["stdout"].as_str().unwrap().to_owned()];
    for table in tables {
        let mounts = mounts(&table);
        for point in ["/", "/usr/lib", "/dev/null", "/sandbox", "/proc", "/proc/cpuinfo", "/proc/meminfo"] {
            assert!(mounts.iter().any(|(at, _)| at == point), "the control: {point} in {table}");
        }
        for (point, options) in &mounts {
            let has = |option: &str| options.iter().any(|one| one == option);
            assert!(has("nosuid"), "{point}: {options:?}");
            assert!(has("ro") || WRITABLE.contains(&point.as_str()), "{point}: {options:?}");
            assert!(has("nodev") || has("noexec"), "{point}: {options:?}");
            assert!(has("noexec") || !point.starts_with("/proc"), "{point}: {options:?}");
        }
    }
}

#[test]
fn what_is_beneath_a_mount_of_the_box_cannot_be_reached() {
    let server = Server::with(COLD, &[]);
    // A file of the box before it, the whole of its disk space and the empty `/proc` of the template are covered.
    let script = "ls -A /sandbox /tmp /dev/shm; ls /dev/pts; umount /sandbox /dev/pts 2>/dev/null && echo unmounted; \
        cat /sandbox/meminfo /sandbox/../sandbox/0/x 2>/dev/null; ls -d /proc/sys /proc/kcore 2>/dev/null; true";
    let said = stdout_of(&server, &bash(script));
    assert_eq!(said, "/dev/shm:\n\n/sandbox:\nmain.bash\n\n/tmp:\nptmx\n");
}

/// A bash of its own, in a directory that is shown to boxes and can be replaced.
struct Tool(TempDir);

impl Tool {
    fn new() -> Tool {
        // Not beneath `/tmp`: what is mounted there is mounted in each box.
        let folder = tempfile::Builder::new().prefix("belljar-template-").tempdir_in("/opt").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let tool = Tool(folder);
        tool.install();
        tool
    }

    fn bin(&self) -> PathBuf {
        self.0.path().join("bin")
    }

    fn program(&self) -> PathBuf {
        self.bin().join("bash")
    }

    /// Puts a new directory in the place of the one that is there.
    fn install(&self) {
        let (new, old) = (self.0.path().join("new"), self.0.path().join("old"));
        let _ = fs::remove_dir_all(&old);
        fs::create_dir(&new).unwrap();
        fs::copy("/bin/bash", new.join("bash")).unwrap();
        if self.bin().exists() {
            fs::rename(self.bin(), &old).unwrap();
        }
        fs::rename(&new, self.bin()).unwrap();
    }

    fn config(&self) -> String {
        format!("[runtimes]\nbash = '{}'\n{COLD}", self.program().display())
    }

    fn inode(&self) -> String {
        format!("{}\n", fs::metadata(self.program()).unwrap().ino())
    }
}

const INODE_OF_BASH: &str = "stat -Lc %i /proc/$$/exe";

#[test]
fn a_directory_that_is_replaced_is_shown_to_the_next_box() {
    let tool = Tool::new();
    let server = Server::with(&tool.config(), &[]);
    assert_eq!(stdout_of(&server, &bash(OWNER_OF_ROOT)), NOBODY, "the control: there is a template");
    let old = tool.inode();
    assert_eq!(stdout_of(&server, &bash(INODE_OF_BASH)), old, "the control");
    tool.install();
    assert_ne!(tool.inode(), old, "the control");
    assert_eq!(stdout_of(&server, &bash(INODE_OF_BASH)), tool.inode());
    assert_eq!(stdout_of(&server, &bash(OWNER_OF_ROOT)), NOBODY, "there is a template again");
}

#[test]
fn what_is_mounted_on_the_host_later_is_shown_to_the_next_box() {
    let tool = Tool::new();
    let place = tool.bin().join("mounted");
    fs::create_dir(&place).unwrap();
    let server = Server::with(&tool.config(), &[]);
    let script = format!("grep -c ' {} ' /proc/self/mountinfo; true", place.display());
    assert_eq!(stdout_of(&server, &bash(&script)), "0\n");
    // In the mount namespace of the server, which is gone with it.
    let own = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    let pid = server.pid().as_raw_nonzero().to_string();
    assert_ne!(own(&pid), own("self"), "the server has mounts of its own");
    let mounted = Command::new("nsenter")
        .args(["--target", &pid, "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(&place)
        .status();
    assert!(mounted.unwrap().success());
    assert_eq!(stdout_of(&server, &bash(&script)), "1\n");
    assert_eq!(stdout_of(&server, &bash(OWNER_OF_ROOT)), NOBODY, "there is a template again");
}

/// The mount namespaces that a process holds by a descriptor.
fn held_by(pid: &str) -> BTreeSet<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("mnt:")).collect()
}

fn processes_in(namespaces: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let lives_there =
        |process: &PathBuf| fs::read_link(process.join("ns/mnt")).is_ok_and(|one| namespaces.contains(&one));
    all.filter(lives_there).collect()
}

#[test]
fn no_process_lives_in_a_template_and_killing_the_warden_costs_no_run() {
    let server = Server::with(COLD, &[]);
    assert_eq!(stdout_of(&server, &bash(OWNER_OF_ROOT)), NOBODY);
    let pid = server.pid().as_raw_nonzero().to_string();
    let templates = held_by(&pid);
    assert!(!templates.is_empty(), "the control");
    eventually("nobody visits it", || processes_in(&templates).is_empty());
    let own = BTreeSet::from([fs::read_link(Path::new("/proc").join(&pid).join("ns/mnt")).unwrap()]);
    assert!(!processes_in(&own).is_empty(), "the control");
    crate::pool::kill_all(&crate::pool::descendants(server.pid()));
    eventually("a run ends well", || {
        let result = server.post("/v1/runs", &bash(OWNER_OF_ROOT)).result();
        result["stdout"] == json!(NOBODY)
    });
    assert_eq!(held_by(&pid), templates, "the template is the same");
}

/// Where mounts spread from one mount namespace to another, as they do on hosts with systemd.
#[test]
fn no_mount_of_a_box_has_peers_on_the_host() {
    let shared = |command: &[&str]| {
        let told = Command::new("unshare")
            .args(["--mount", "--propagation", "shared"])
            .args(command)
            .env("BELLJAR_STATE_DIR", TempDir::new().unwrap().path())
            .output()
            .unwrap();
        assert!(told.status.success(), "{told:?}");
        String::from_utf8(told.stdout).unwrap()
    };
    let has_peers = |table: &str| table.contains(" shared:") || table.contains(" master:");
    assert!(has_peers(&shared(&["cat", "/proc/self/mountinfo"])), "the control");
    let of_box = shared(&[env!("CARGO_BIN_EXE_belljar"), "run", "bash", "-c", "cat /proc/self/mountinfo"]);
    assert!(of_box.contains(" /usr/lib ") && !has_peers(&of_box), "{of_box}");
}
