//! A server that root starts has none of root's rights.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};

use crate::pool::{cgroups, descendants, lives, run_warm};
use crate::server::{Server, eventually};

const POOL: &str = "[pool.languages.python]\nmin = 2\nmax = 2\n[pool.languages.bash]\nmin = 2\nmax = 2\n";
/// Programs of this backend are what the server is.
const PROCESS: &str = "[server.allow]\nbackends = ['native', 'process']\n";

fn uid(pid: Pid) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

/// What a shell script has to say that is whatever the server is.
fn as_the_server(server: &Server, script: &str) -> Value {
    server.post("/v1/runs", &json!({"language": "sh", "backend": "process", "code": script})).result()
}

#[test]
fn nobody_beneath_a_server_is_root_but_who_cleans_up_after_it() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let server = Server::with(POOL, &[]);
    run_warm(&server, &json!({"language": "python", "code": "print(1)"}));
    assert_eq!(uid(server.started()), Some(0), "the control");
    assert_ne!(server.pid(), server.started());
    let mut tree = descendants(server.pid());
    assert!(tree.len() >= 8, "warden, keepers, zygote, boxes: {tree:?}");
    tree.push(server.pid());
    let roots: Vec<_> = tree.iter().filter(|pid| uid(**pid) == Some(0)).collect();
    assert!(roots.is_empty(), "{roots:?}");
    let parents: Vec<_> =
        descendants(server.started()).into_iter().filter(|pid| uid(*pid) == Some(0)).collect();
    assert!(parents.len() <= 1, "the undertaker: {parents:?}");
}

#[test]
fn no_two_servers_have_the_same_ids_for_their_boxes() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let servers = [Server::start(), Server::start()];
    let ids = servers.each_ref().map(|server| {
        let map = fs::read_to_string(format!("/proc/{}/uid_map", server.pid().as_raw_nonzero())).unwrap();
        let numbers: Vec<u32> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let &[_, _, _, _, first, count] = &numbers[..] else { panic!("{map}") };
        let code = json!({"language": "sh", "code": "cat /proc/self/uid_map"});
        let stdout = server.post("/v1/runs", &code).result()["stdout"].as_str().unwrap().to_owned();
        let outside =
            stdout.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap());
        let outside: Vec<_> = outside.collect();
        assert!(
            !outside.is_empty() && outside.iter().all(|id| (first..first + count).contains(id)),
            "{stdout}"
        );
        first..first + count
    });
    assert!(ids[0].end <= ids[1].start || ids[1].end <= ids[0].start, "{ids:?}");
}

#[test]
fn what_belongs_to_root_is_out_of_reach_for_the_server() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (secret, theirs) = (open.path().join("secret"), open.path().join("theirs"));
    fs::write(&secret, "planted").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let attempts = format!(
        "cat {secret}; echo x > {theirs}; chmod 777 {secret}; mount -t tmpfs none /mnt; kill -0 1 && echo signalled; \
         for top in /sys/fs/cgroup /sys/fs/cgroup/memory; do echo 1 > $top/cgroup.procs && echo moved; done; \
         echo 1 > /proc/sys/kernel/hostname; ls /root && echo looked; true",
        secret = secret.display(),
        theirs = theirs.display(),
    );
    let unprivileged = Server::with(PROCESS, &[]);
    let result = as_the_server(&unprivileged, &attempts);
    let said = result["stdout"].as_str().unwrap();
    let harm = ["planted", "signalled", "moved"].into_iter().find(|word| said.contains(word));
    assert_eq!(harm, None, "{result}");
    assert!(!theirs.exists() && secret.metadata().unwrap().mode() & 0o777 == 0o600);
    let kept = Server::with(&format!("[server]\nkeep-root = true\n{PROCESS}"), &[]);
    let control = as_the_server(&kept, &format!("cat {}; kill -0 1 && echo signalled", secret.display()));
    assert_eq!(control["stdout"], json!("plantedsignalled\n"), "the control: {control}");
}

#[test]
fn nothing_of_roots_comes_along_but_what_is_needed() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "planted").unwrap();
    let state = folder.path().join("state");
    let script = format!("exec 9<{}; exec {} \"$@\"", secret.display(), env!("CARGO_BIN_EXE_belljar"));
    let mut command = Command::new("bash");
    command.args(["-c", &script, "belljar", "serve", "--listen", "127.0.0.1:0"]);
    let server = Server::spawn_in(command, state.clone(), folder);
    assert_eq!(server.get("/healthz").status, 200);
    let holds = |pid: Pid| {
        let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == secret)
    };
    assert!(holds(server.started()), "the control");
    assert!(!holds(server.pid()));
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let shared = fs::read_to_string(state.join("servers.group")).unwrap();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
    assert_eq!(groups.trim(), shared.trim(), "only the group that may write the ledger");
    assert!(state.join("ledger.key").exists(), "the control");
    let its_own = format!("/proc/{}/root{}", server.pid().as_raw_nonzero(), state.display());
    assert!(
        Path::new(&its_own).join("ledger.db").exists() && !Path::new(&its_own).join("ledger.key").exists()
    );
    // What root remembers is believed by root, and by the next server: what this one does to it goes with it.
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", server.pid().as_raw_nonzero())).unwrap();
    let mut shown = mounts.lines().filter(|line| line.split(' ').nth(4) == state.to_str()).peekable();
    assert!(shown.peek().is_some() && shown.all(|line| line.contains(" - tmpfs ")), "{mounts}");
    let place =
        |name: &str| fs::read_link(format!("/proc/{}/{name}", server.pid().as_raw_nonzero())).unwrap();
    assert_eq!((place("cwd"), place("fd/0")), ("/".into(), "/dev/null".into()));
}

#[test]
fn a_server_has_no_terminal_and_is_heard_at_it() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::Read;
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let stream = || fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("BELLJAR_STATE_DIR", state.path())
        .current_dir("/tmp")
        .stdin(stream())
        .stdout(stream())
        .stderr(stream())
        .spawn()
        .unwrap();
    let (mut screen, mut said) = (fs::File::from(terminal), String::new());
    while !said.contains("listening on http://") {
        let mut piece = [0; 512];
        let length = screen.read(&mut piece).unwrap();
        said += &String::from_utf8_lossy(&piece[..length]);
    }
    let parent = Pid::from_child(&child);
    let server = descendants(parent).into_iter().find(|pid| uid(*pid) != Some(0)).unwrap();
    let open = |pid: Pid| {
        let entries = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let (its_own, parents) = (open(server), open(parent));
    kill_process(parent, Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(parents.contains(&Path::new(&name).to_owned()), "the control: {parents:?}");
    assert!(!its_own.iter().any(|path| path.starts_with("/dev/pts")), "{its_own:?}");
}

#[test]
fn a_root_that_cannot_leave_its_rights_behind_does_not_serve_unless_it_is_told_to() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let command = || {
        let mut command = Command::new("setpriv");
        let words =
            ["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_belljar"), "serve", "--listen", "127.0.0.1:0"];
        command.args(words);
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir().unwrap();
    let refused =
        command().current_dir(folder.path()).env("BELLJAR_STATE_DIR", state.path()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(said.contains("cannot drop root privileges") && said.contains("keep-root"), "{said}");
    fs::write(folder.path().join("belljar.toml"), "[server]\nkeep-root = true\n").unwrap();
    let mut kept = command();
    kept.args(["--config", "belljar.toml"]);
    let server = Server::spawn(kept, folder);
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.log().contains("the server runs as root"), "{}", server.log());
}

#[test]
fn a_server_that_is_killed_beneath_its_parent_takes_everything_along_and_is_missed() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let mut server = Server::with(POOL, &[]);
    run_warm(&server, &json!({"language": "python", "code": "print(1)"}));
    let tree = descendants(server.started());
    assert!(!cgroups(server.started()).is_empty(), "the control");
    kill_process(server.pid(), Signal::KILL).unwrap();
    assert_eq!(server.wait().code(), Some(128 + 9));
    assert!(server.log().contains("the server was killed by signal 9"), "{}", server.log());
    eventually("all are gone", || !tree.iter().any(|pid| lives(*pid)));
    assert_eq!(cgroups(server.started()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_a_server_and_its_parent_leave_when_both_are_killed_is_swept_by_the_next() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let mut server = Server::with(POOL, &[]);
    run_warm(&server, &json!({"language": "python", "code": "print(1)"}));
    let mut all = descendants(server.started());
    all.push(server.started());
    for pid in &all {
        let _ = kill_process(*pid, Signal::KILL);
    }
    server.wait();
    eventually("all are dead", || !all.iter().any(|pid| lives(*pid)));
    // Whatever else of Belljar starts on this host meanwhile sweeps, too.
    let _next = Server::start();
    assert!(cgroups(server.started()).is_empty(), "{:?}", cgroups(server.started()));
}

#[test]
fn a_runtime_that_only_root_can_reach_is_found() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let closed = tempfile::tempdir().unwrap();
    let bin = closed.path().join("tools/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::copy("/bin/bash", bin.join("bash")).unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let server = Server::spawn(command, folder);
    let asked = json!({"language": "bash", "code": "echo $BASH; readlink /proc/$$/exe", "env": {"A": "b"}});
    let result = server.post("/v1/runs", &asked).result();
    let program = bin.join("bash").display().to_string();
    assert_eq!(result["stdout"], json!(format!("{program}\n{program}\n")), "{result}");
}

#[test]
fn a_configuration_that_only_root_can_read_is_read_again() {
    assert!(geteuid().is_root(), "only root has rights to leave behind");
    let server = Server::start();
    assert_eq!(server.get("/v1/backends").status, 200, "the control");
    let key = format!("[[keys]]\nname = 'a'\nsha256 = '{}'\n", "ab".repeat(32));
    fs::write(server.config_path(), key).unwrap();
    fs::set_permissions(server.config_path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(server.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    server.signal(Signal::HUP);
    eventually("a key is wanted", || server.get("/v1/backends").status == 401);
    fs::remove_file(server.config_path()).unwrap();
    fs::create_dir(server.config_path()).unwrap();
    server.signal(Signal::HUP);
    eventually("the error is logged", || {
        server.log().contains("cannot read the configuration file belljar.toml")
    });
    assert_eq!(server.get("/v1/backends").status, 401);
}

/// One message, and the process that sent it.
fn hear(socket: &std::os::unix::net::UnixDatagram) -> (String, i32) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut said = [0; 64];
    let mut slices = [std::io::IoSliceMut::new(&mut said)];
    let length = recvmsg(socket, &mut slices, &mut beside, RecvFlags::empty()).unwrap().bytes;
    let mut sender = None;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmCredentials(credentials) = message {
            sender = Some(credentials.pid.as_raw_nonzero().get());
        }
    }
    (String::from_utf8_lossy(&said[..length]).into_owned(), sender.unwrap())
}

#[test]
fn systemd_hears_from_the_process_that_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    rustix::net::sockopt::set_socket_passcred(&systemd, true).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("NOTIFY_SOCKET", &path);
    let mut server = Server::spawn(command, folder);
    let started = server.started().as_raw_nonzero().get();
    assert_eq!(hear(&systemd), ("READY=1".to_owned(), started));
    server.signal(Signal::TERM);
    assert_eq!(hear(&systemd), ("STOPPING=1".to_owned(), started));
    assert!(server.wait().success());
}

#[test]
fn a_server_of_an_ordinary_user_is_one_process() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = if geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_belljar")]);
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        command
    } else {
        Command::new(env!("CARGO_BIN_EXE_belljar"))
    };
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let state = folder.path().join("state");
    let server = Server::spawn_in(command, state, folder);
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.pid(), server.started());
    assert!(!server.log().contains("dropped root privileges"), "{}", server.log());
    assert!(Path::new("/proc").join(server.pid().as_raw_nonzero().to_string()).exists());
}
