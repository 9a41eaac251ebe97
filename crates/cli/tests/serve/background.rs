//! The server in the background: one for all who ask for the same, and gone when nobody does.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::server::eventually;
use crate::unix::{Home, NOBODY, WAIVED, ask};

/// Ends the servers of a home with it.
struct Background(Home);

impl Background {
    fn of(user: u32) -> Background {
        Background(Home::of(user))
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = self.0.belljar(self.0.user);
        command.args(["serve", "--background"]).args(options);
        command
    }

    fn start(&self, options: &[&str]) -> PathBuf {
        path_in(&self.command(options).output().unwrap())
    }

    /// The processes that were started as servers here, without those that these have started.
    fn servers(&self) -> Vec<Pid> {
        let place = format!("unix:{}", self.0.folder.path().display());
        let is_server = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            words.any(|word| word.starts_with(place.as_bytes()))
        };
        let all: Vec<u32> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(is_server)
            .collect();
        let parent = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
        };
        let first = all.iter().filter(|pid| !parent(**pid).is_some_and(|parent| all.contains(&parent)));
        first.filter_map(|pid| Pid::from_raw((*pid).cast_signed())).collect()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        for pid in self.servers() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn path_in(output: &Output) -> PathBuf {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    let stdout = str::from_utf8(&output.stdout).unwrap();
    let path = stdout.strip_prefix("listening on unix:").and_then(|rest| rest.strip_suffix('\n'));
    path.unwrap_or_else(|| panic!("{stdout:?}")).into()
}

fn log_of(socket: &Path) -> String {
    fs::read_to_string(format!("{}.log", socket.display())).unwrap()
}

#[test]
fn ten_at_once_get_one_server() {
    for user in [0, NOBODY] {
        let home = Background::of(user);
        let starting: Vec<_> = (0..10)
            .map(|_| home.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
            .collect();
        let paths: Vec<_> =
            starting.into_iter().map(|child| path_in(&child.wait_with_output().unwrap())).collect();
        assert!(paths.iter().all(|path| path == &paths[0]), "{paths:?}");
        assert_eq!(home.servers().len(), 1);
        assert_eq!(log_of(&paths[0]).matches("listening on").count(), 1);
        let dir = paths[0].parent().unwrap().metadata().unwrap();
        assert_eq!((dir.mode() & 0o777, dir.uid()), (0o700, user));
        assert_eq!(paths[0].symlink_metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(home.start(&[]), paths[0], "and so does the eleventh");
        assert_eq!(home.servers().len(), 1);
    }
}

#[test]
fn it_does_what_its_user_may_do() {
    for user in [0, NOBODY] {
        let home = Background::of(user);
        let socket = home.start(&[]);
        let run = |request: serde_json::Value| ask(&socket, "POST", "/v1/runs", Some(&request));
        let (status, result) = run(json!({"language": "python", "code": "print(6 * 7)", "waive": WAIVED}));
        assert_eq!((status, &result["stdout"]), (200, &json!("42\n")), "{result}");
        let (status, result) = run(json!({"language": "sh", "code": "echo $0", "backend": "process"}));
        assert_eq!((status, &result["backend"]), (200, &json!("process")), "{result}");
    }
}

#[test]
fn it_stops_when_it_is_idle_and_comes_back() {
    for user in [0, NOBODY] {
        let home = Background::of(user);
        let socket = home.start(&["--idle-timeout", "200ms"]);
        eventually("the socket is gone", || !socket.exists());
        eventually("the server is gone", || home.servers().is_empty());
        assert_eq!(home.start(&[]), socket);
        assert_eq!(ask(&socket, "GET", "/healthz", None).0, 200);
    }
}

#[test]
fn one_that_was_killed_is_replaced() {
    for user in [0, NOBODY] {
        let home = Background::of(user);
        let socket = home.start(&[]);
        let before = home.servers();
        assert_eq!(before.len(), 1);
        kill_process(before[0], Signal::KILL).unwrap();
        eventually("it is gone", || home.servers().is_empty());
        assert_eq!(home.start(&[]), socket);
        assert_eq!(ask(&socket, "GET", "/healthz", None).0, 200);
        assert_ne!(home.servers(), before);
    }
}

#[test]
fn nothing_of_the_caller_comes_along_but_what_is_documented() {
    let home = Background::of(NOBODY);
    let secret = home.0.folder.path().join("secret");
    fs::write(&secret, "planted").unwrap();
    let plain = home.command(&[]);
    let program = plain.get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("bash");
    let script = format!(
        "exec 9<{}; exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {program} serve --background",
        secret.display()
    );
    command.args(["-c", &script]).current_dir(home.0.folder.path());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("AWS_SECRET_ACCESS_KEY", "planted").env("BELLJAR_API_KEY", "planted");
    command.env("BELLJAR_TIMEOUT", "7s");
    let socket = path_in(&command.output().unwrap());
    let pid = home.servers()[0].as_raw_nonzero();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    assert!(environment.contains("\0BELLJAR_TIMEOUT=7s\0"), "the control: {environment:?}");
    assert!(!environment.contains("planted"), "{environment:?}");
    let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect();
    assert!(!open.contains(&secret), "{open:?}");
    let place = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!((place("cwd"), place("fd/0")), ("/".into(), "/dev/null".into()));
    assert_eq!(place("fd/2"), PathBuf::from(format!("{}.log", socket.display())));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(session, pid.to_string(), "it leads a session of its own");
}

#[test]
fn what_makes_a_difference_makes_another_server() {
    let home = Background::of(0);
    let config = home.0.folder.path().join("other.toml");
    fs::write(&config, "[limits]\ntimeout = '7s'\n").unwrap();
    let plain = home.start(&[]);
    let configured = home.start(&["--config", config.to_str().unwrap()]);
    assert_ne!(plain, configured);
    let variable = path_in(&home.command(&[]).env("BELLJAR_TIMEOUT", "8s").output().unwrap());
    assert!(variable != plain && variable != configured);
    let other = path_in(&home.command(&[]).env("EDITOR", "ed").output().unwrap());
    assert_eq!(other, plain);
    assert_eq!(home.servers().len(), 3);
}

#[test]
fn the_socket_is_where_the_system_wants_it_or_where_it_is_named() {
    let home = Background::of(NOBODY);
    let runtime = home.0.folder.path().join("run");
    let socket = path_in(&home.command(&[]).env("XDG_RUNTIME_DIR", &runtime).output().unwrap());
    assert_eq!(socket.parent().unwrap(), runtime.join("belljar"));
    assert_eq!(home.start(&["--listen", &home.0.url()]), home.0.socket());
    assert_eq!(ask(&home.0.socket(), "GET", "/healthz", None).0, 200);
    let port = home.command(&["--listen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(port.status.code(), Some(125));
    assert!(String::from_utf8(port.stderr).unwrap().contains("--background listens on a unix socket only"));
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let home = Background::of(0);
    let config = home.0.folder.path().join("bad.toml");
    fs::write(&config, "[server]\nslots = 0\n").unwrap();
    let output = home.command(&["--config", config.to_str().unwrap()]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: slots of [server] in ") && said.contains("\nhint: "), "{said}");
    assert!(home.servers().is_empty());
    let output = home.command(&["--idle-timeout", "soon"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: --idle-timeout: "), "{said}");
}

#[test]
fn nobody_is_asked_or_written_to_in_a_directory_of_somebody_else() {
    let of_root = Background::of(0);
    let foreign = tempfile::tempdir().unwrap();
    let (socket, victim) = (foreign.path().join("x.sock"), of_root.0.folder.path().join("victim"));
    // Somebody who listens there already, and links where the server's own files would be.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    for ending in ["lock", "log"] {
        std::os::unix::fs::symlink(&victim, foreign.path().join(format!("x.sock.{ending}"))).unwrap();
    }
    std::os::unix::fs::chown(foreign.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let listen = format!("unix:{}", socket.display());
    let output = of_root.command(&["--listen", &listen]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("other users can write to"), "{said}");
    assert!(listener.accept().is_err(), "somebody else was asked");
    assert!(!victim.exists(), "a link was followed");
    // The control: the same in a directory of one's own.
    let own = of_root.0.folder.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    let socket = own.join("x.sock");
    assert_eq!(of_root.start(&["--listen", &format!("unix:{}", socket.display())]), socket);
}
