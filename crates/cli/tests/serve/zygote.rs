//! The zygote and what comes of it, attacked: by the programs that it becomes, from outside, and by what it imports.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::pool::{kill_all, pool_of, python, run_warm, waiting, with};
use crate::server::{Server, eventually};

const WAITING: &str = "[pool.languages.python]\nmin = 2\nmax = 2\n";
/// No box waits, so each run is one that is forked.
const FORKED: &str = "[pool.languages.python]\nmin = 0\nmax = 0\n";

/// Runs a child of the zygote in a new box.
fn run_forked(server: &Server, body: &Value) -> Value {
    eventually("a zygote lives", || {
        server.post("/v1/runs", &python("1")).result()["start"] == json!("zygote")
    });
    let result = server.post("/v1/runs", body).result();
    assert_eq!(result["start"], json!("zygote"), "{result}");
    result
}

/// The zygote of a server: the one Python beneath it that is not in a box, as far as numbers of processes go.
fn zygote(server: &Server) -> Option<Pid> {
    let numbers = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let is_outside = |pid: &Pid| numbers(&pid.as_raw_nonzero().to_string()) == numbers("self");
    waiting(server, "/sandbox/main.py").into_iter().find(is_outside)
}

pub(crate) fn stdout(result: &Value) -> &str {
    result["stdout"].as_str().unwrap_or_else(|| panic!("{result}"))
}

#[test]
fn where_no_box_is_to_wait_each_run_is_forked() {
    let server = Server::with(FORKED, &[]);
    for number in 0..5 {
        let result = run_forked(&server, &python(&format!("print({number})\nraise SystemExit({number})")));
        assert_eq!((stdout(&result), &result["exit_code"]), (&*format!("{number}\n"), &json!(number)));
    }
    let pool = pool_of(&server, "python");
    assert_eq!(
        (&pool["hits"], &pool["ready"], &pool["refills"]),
        (&json!(0), &json!(0), &json!(0)),
        "{pool}"
    );
}

/// With and without boxes that wait: those have been started without what the request brings.
#[test]
fn arguments_and_variables_reach_a_child_and_nobody_else() {
    for pool in [FORKED, WAITING] {
        let server = Server::with(pool, &[]);
        eventually("a zygote lives", || {
            let asked = with(python("1"), &json!({"args": ["x"]}));
            server.post("/v1/runs", &asked).result()["start"] == json!("zygote")
        });
        let code = "import os, sys\nprint(sys.argv[1:], os.environ.get('SECRET'), os.getenv('USER'), os.listdir('.'))\n\
                    os.system('echo $SECRET')";
        let more =
            json!({"args": ["a", "b c", "\u{fc}", ""], "env": {"SECRET": "hunter2 = x", "USER": "me"}});
        let result = server.post("/v1/runs", &with(python(code), &more)).result();
        assert_eq!((&result["start"], &result["cold_reason"]), (&json!("zygote"), &Value::Null), "{result}");
        let expected = "['a', 'b c', '\u{fc}', ''] hunter2 = x me ['main.py']\nhunter2 = x\n";
        assert_eq!(stdout(&result), expected, "{result}");
        let searches = "import re\nfound = 0\n\
                        for line in open('/proc/self/maps'):\n    \
                            span, rights, *_, name = line.split()[0], line.split()[1], line.split()[-1]\n    \
                            if 'r' not in rights or name.startswith('[v'): continue\n    \
                            start, end = (int(text, 16) for text in span.split('-'))\n    \
                            with open('/proc/self/mem', 'rb') as memory:\n        \
                                memory.seek(start)\n        \
                                found += len(re.findall(b'hunter[2]', memory.read(end - start)))\n\
                        print(found)";
        let next = server.post("/v1/runs", &python(searches)).result();
        assert_eq!(stdout(&next), "0\n", "{next}");
    }
}

/// Concurrent runs and the pool look for the zygote at the same time. None of them may miss it and start cold.
#[test]
fn runs_that_come_together_are_all_forked() {
    let server = Server::with(&format!("[server]\nslots = 4\n{FORKED}"), &[]);
    run_forked(&server, &python("1"));
    let callers = || {
        for _ in 0..40 {
            assert_eq!(server.post("/v1/runs", &python("1")).result()["start"], json!("zygote"));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(callers))));
}

#[test]
fn a_caller_that_disconnects_while_a_child_starts_leaves_nothing_for_the_next() {
    let server = Server::with(FORKED, &[]);
    run_forked(&server, &python("1"));
    let before = zygote(&server);
    let body = python("print(1)").to_string();
    let content = [("content-type", "application/json")];
    for tenths in 0..60 {
        let caller = server.send("POST", "/v1/runs", &content, body.as_bytes());
        std::thread::sleep(Duration::from_micros(tenths * 100));
        drop(caller);
    }
    for _ in 0..5 {
        let result = server.post("/v1/runs", &python("print(2)")).result();
        assert_eq!((stdout(&result), &result["start"]), ("2\n", &json!("zygote")), "{result}");
    }
    assert_eq!((zygote(&server), before.is_some()), (before, true));
}

#[test]
fn what_a_program_does_to_its_interpreter_is_gone_with_it() {
    let program = python(include_str!("zygote/spoil.py"));
    let cold = Server::with("[pool]\nenabled = false\n", &[]).post("/v1/runs", &program).result();
    let (clean, spoilt) = stdout(&cold).split_once('\n').unwrap();
    assert!(clean.starts_with("[250, 'q', "), "{cold}");
    assert!(
        spoilt.starts_with("[251, 'z', 'z") && spoilt.contains("777"),
        "the control: it can be spoilt: {cold}"
    );
    let (waiting, forked) = (Server::with(WAITING, &[]), Server::with(FORKED, &[]));
    for _ in 0..4 {
        assert_eq!(run_warm(&waiting, &program)["stdout"], cold["stdout"]);
        assert_eq!(run_forked(&forked, &program)["stdout"], cold["stdout"]);
    }
}

#[test]
fn a_child_shares_no_memory_with_the_zygote_or_its_siblings() {
    let code = "import mmap\n\
                def shared(): return [l for l in open('/proc/self/smaps') if l.startswith('VmFlags') and ' sh' in l]\n\
                print(len(shared()))\n\
                own = mmap.mmap(-1, 4096)\n\
                print(len(shared()))";
    let server = Server::with(WAITING, &[]);
    assert_eq!(stdout(&run_warm(&server, &python(code))), "0\n1\n", "the control is the second");
    assert_eq!(stdout(&run_forked(&Server::with(FORKED, &[]), &python(code))), "0\n1\n");
}

#[test]
fn neither_the_zygote_nor_a_sibling_can_be_reached_from_inside() {
    let server = Server::with("[pool.languages.python]\nmin = 3\nmax = 3\n", &[]);
    let all_wait = || pool_of(&server, "python")["ready"] == json!(3);
    eventually("all wait", all_wait);
    let zygote = zygote(&server).expect("there is one");
    let others = waiting(&server, "/sandbox/main.py");
    assert_eq!(others.len(), 4, "the zygote and its children");
    let pids: Vec<_> = others.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    assert!(
        others.iter().all(|pid| test_kill_process(*pid).is_ok()),
        "the control: outside they can be named"
    );
    let code = include_str!("zygote/reach.py").replace("PIDS", &format!("{pids:?}"));
    let result = run_warm(&server, &python(&code));
    let lines: Vec<_> = stdout(&result).lines().collect();
    let (attempts, rest) = lines.split_at(pids.len());
    for attempt in attempts {
        let denied = [
            "No such process",
            "No such file or directory",
            "Function not implemented",
            "Operation not permitted",
        ];
        assert!(
            attempt.split('|').all(|one| denied.contains(&one)) && attempt.matches('|').count() == 3,
            "{attempt}"
        );
    }
    assert_eq!(rest[..3], ["None|True", "[] ['2'] []", "2"], "the controls, and nothing of others: {result}");
    assert_eq!(rest[3..], ["No such process", "No such process"], "there is nobody else to kill: {result}");
    eventually("one that ran is replaced", all_wait);
    let survivors = waiting(&server, "/sandbox/main.py");
    assert!(survivors.contains(&zygote), "the zygote has not noticed");
    assert!(others.iter().filter(|pid| survivors.contains(pid)).count() == 3, "nor has anybody else");
}

#[test]
fn a_zygote_that_is_killed_is_replaced_and_costs_nobody_a_run() {
    let server = Server::with(WAITING, &[]);
    for round in 0..3 {
        // One that has never been of use is not replaced at once.
        eventually("it is of use", || {
            pool_of(&server, "python")["ready"] == json!(2) && zygote(&server).is_some()
        });
        let first = zygote(&server).unwrap();
        kill_all(&[first]);
        let result = server.post("/v1/runs", &python("print(1)")).result();
        assert_eq!(stdout(&result), "1\n", "round {round}");
        eventually("there is another", || zygote(&server).is_some_and(|next| next != first));
        assert_eq!(stdout(&run_warm(&server, &python("print(2)"))), "2\n");
    }
}

#[test]
fn a_zygote_that_hangs_is_given_up() {
    let server = Server::with(FORKED, &[]);
    run_forked(&server, &python("1"));
    let hanging = zygote(&server).expect("a zygote");
    kill_process(hanging, Signal::STOP).unwrap();
    let result = server.post("/v1/runs", &python("print(1)")).result();
    assert_eq!((stdout(&result), &result["start"]), ("1\n", &json!("cold")), "{result}");
    run_forked(&server, &python("2"));
    assert_ne!(zygote(&server), Some(hanging));
}

#[test]
fn killing_whatever_waits_while_runs_go_on_fails_none_of_them() {
    let server = Server::with("[server]\nslots = 4\n[pool.languages.python]\nmin = 3\nmax = 3\n", &[]);
    eventually("some wait", || pool_of(&server, "python")["ready"].as_u64() > Some(0));
    let callers = || {
        for number in 0..15 {
            let result = server.post("/v1/runs", &python(&format!("print({number})"))).result();
            // One whose box was killed after its code had come was killed, and says so; nothing is made up.
            let killed = result["signal"] == json!(9);
            assert!(killed || stdout(&result) == format!("{number}\n"), "{result}");
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(callers)));
        for _ in 0..20 {
            waiting(&server, "/sandbox/main.py").first().into_iter().for_each(|pid| kill_all(&[*pid]));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(stdout(&server.post("/v1/runs", &python("print('after')")).result()), "after\n");
}

/// A Python with modules of a test's own, whose boxes see them.
pub(crate) struct Installation {
    folder: TempDir,
    packages: PathBuf,
}

impl Installation {
    fn new() -> Installation {
        Installation::made_with(&["--system-site-packages"])
    }

    pub(crate) fn made_with(options: &[&str]) -> Installation {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let made = Command::new("python3")
            .args(["-m", "venv", "--without-pip"])
            .args(options)
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let versions = fs::read_dir(folder.path().join("lib")).unwrap();
        let version = versions.map(|entry| entry.unwrap().path()).next().unwrap();
        Installation { folder, packages: version.join("site-packages") }
    }

    /// A server whose zygote imports a module with this text.
    pub(crate) fn serve(&self, name: &str, text: &str) -> Server {
        fs::write(self.packages.join(format!("{name}.py")), text).unwrap();
        Server::with(&format!("{}{WAITING}preload = ['{name}']\n", self.configured()), &[])
    }

    /// What makes it the Python of a server.
    pub(crate) fn configured(&self) -> String {
        format!("[runtimes]\npython = '{}'\n", self.prefix().join("bin/python3").display())
    }

    pub(crate) fn prefix(&self) -> &Path {
        self.folder.path()
    }
}

/// Says whether a module is there before the program asks for it, and something of its own.
pub(crate) fn has(name: &str, more: &str) -> Value {
    python(&format!("import sys\nprint('{name}' in sys.modules)\n{more}"))
}

#[test]
fn what_is_preloaded_is_there_and_as_fresh_in_each_run() {
    let installation = Installation::new();
    let server = installation.serve("plain", "seen = []\n");
    for _ in 0..3 {
        let code = has("plain", "import plain\nprint(plain.seen)\nplain.seen.append(1)\nprint(plain.seen)");
        assert_eq!(stdout(&run_warm(&server, &code)), "True\n[]\n[1]\n");
    }
}

/// A module that would be a way from one run to the next is not preloaded: boxes boot without it.
#[test]
fn a_module_that_would_connect_runs_is_not_preloaded() {
    let installation = Installation::new();
    for (name, text, why) in [
        ("anonymous", "import mmap\nmemory = mmap.mmap(-1, 4096)\n", "shares no memory"),
        (
            "named",
            "import mmap, os\nfd = os.memfd_create('x')\nos.ftruncate(fd, 4096)\nmemory = mmap.mmap(fd, 4096)\n",
            "shares no memory",
        ),
        (
            // Any process that opens it for writing can write to it.
            "readable",
            "import mmap, os\nfd = os.memfd_create('x')\nos.ftruncate(fd, 4096)\nmemory = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)\n",
            "shares no memory",
        ),
        (
            "handler",
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
            "installs signal handlers",
        ),
        ("forks", "import os\nos.fork()\n", "a preloaded module started processes"),
        ("missing", "import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("fails", "raise ValueError('here')\n", "cannot preload fails: ValueError: here"),
        ("exits", "import os\nos._exit(0)\n", "cannot boot a zygote"),
    ] {
        let server = installation.serve(name, text);
        let handled = "import signal\nprint(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)";
        for _ in 0..2 {
            assert_eq!(stdout(&run_warm(&server, &has(name, handled))), "False\nTrue\n", "{name}");
        }
        // While the zygote is tried again, the problem is that of the box that it failed to enter.
        let told = [why, "each parked box boots its own runtime"];
        eventually(name, || {
            let problem = server.get("/v1/pool").result()["languages"][0]["problem"].to_string();
            told.iter().all(|words| problem.contains(words))
        });
        let log = server.log();
        let warnings: Vec<_> =
            log.lines().filter(|line| line.contains("WARN") && line.contains(why)).collect();
        // What is refused when a box is made is told by the box and by the zygote, but not each time it is tried again.
        assert!((1..=4).contains(&warnings.len()), "{name}: {warnings:?}");
    }
}

/// What a module has begun stays with the zygote.
#[test]
fn threads_and_descriptors_of_a_preloaded_module_do_not_reach_a_box() {
    let installation = Installation::new();
    let threads =
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n";
    let server = installation.serve("threads", threads);
    let count = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('Threads')])";
    assert_eq!(stdout(&run_warm(&server, &has("threads", count))), "True\n['1']\n");
    let held = "import os, socket\nfd = os.open('/', os.O_RDONLY)\npair = socket.socketpair()\n";
    let server = installation.serve("held", held);
    let count = "import os\nprint(len(os.listdir('/proc/self/fd')))\nos.open('/', 0)\nprint(len(os.listdir('/proc/self/fd')))";
    assert_eq!(stdout(&run_warm(&server, &has("held", count))), "True\n4\n5\n", "the control is the second");
}

#[test]
fn a_module_that_never_finishes_keeps_nobody_from_running() {
    let installation = Installation::new();
    let server = installation.serve("endless", "import time\ntime.sleep(1000)\n");
    let body = with(python("print(1)"), &json!({"limits": {"timeout_ms": 20_000}}));
    for _ in 0..3 {
        let result = server.post("/v1/runs", &body).result();
        assert_eq!(stdout(&result), "1\n");
        assert_ne!(&result["start"], &json!("zygote"));
    }
    assert_eq!(
        stdout(&run_warm(&server, &has("endless", ""))),
        "False\n",
        "nor boxes from booting by themselves"
    );
}

/// The kernel also counts the processes of boxes for the owner of their user namespace.
#[test]
fn a_zygote_has_more_children_than_a_program_may_have_processes() {
    let server = Server::with("[pool.languages.python]\nmin = 70\nmax = 70\n", &[]);
    eventually("all wait", || pool_of(&server, "python")["ready"] == json!(70));
    assert_eq!(pool_of(&server, "python")["losses"], json!(0));
}
