//! What the code finds inside: directories, environment, identity, and one budget for all it writes.

use std::process::Command;

use belljar_conformance::{Cell, Scratch, promise, secret};

fn the_surroundings_are_those_of_the_contract(cell: &Cell) {
    let ran = cell.run("pwd; echo $HOME $USER $LANG $TZ; uname -n; id -u; date +%Z");
    let lines: Vec<_> = ran.ok().lines().collect();
    assert_eq!(lines[..3], ["/sandbox", "/sandbox sandbox C.UTF-8 UTC", "belljar"]);
    assert_ne!(lines[3].parse::<u32>().unwrap(), 0, "a uid that is not 0");
    assert_eq!(lines[4], "UTC");
}

promise!(the_surroundings_are_those_of_the_contract; needs filesystem, privileges);

fn the_variables_are_those_of_the_contract(cell: &Cell) {
    let ran = cell.run("cd \"$HOME\" && test \"$(pwd)\" = \"$HOME\" && echo $USER $LANG $TZ; date +%Z");
    assert_eq!(ran.ok(), "sandbox C.UTF-8 UTC\nUTC\n");
    assert_eq!(cell.run("basename $HOME; basename $(pwd)").ok(), "sandbox\nsandbox\n");
}

promise!(the_variables_are_those_of_the_contract);

fn the_path_is_plain(cell: &Cell) {
    let path = cell.run("echo $PATH").ok().trim().to_owned();
    for dir in path.split(':') {
        assert!(
            ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].contains(&dir),
            "{path}"
        );
    }
}

promise!(the_path_is_plain; no zygote: "a version manager's Python is on the path of its boxes");

/// E1
fn nothing_of_the_callers_environment_gets_in(cell: &Cell) {
    let marker = secret();
    let seen = cell
        .caller_env("MARKER", &marker)
        .caller_env("LD_PRELOAD_TOO", "x")
        .run("tr '\\0' '\\n' < /proc/self/environ");
    assert!(!seen.ok().contains(&marker), "{}", seen.stdout);
    let known = [
        "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "TERM",
        "SHELL", "HOSTNAME", "TMPDIR",
    ];
    for line in seen.stdout.lines() {
        let name = line.split('=').next().unwrap();
        assert!(known.contains(&name) || THREAD_VARIABLES.contains(&name), "unexpected {line}");
    }
    let told = cell.option("--env", &format!("MARKER={marker}")).run("echo $MARKER");
    assert_eq!(told.ok().trim(), marker, "the control: a variable that was asked for gets in");
}

promise!(nothing_of_the_callers_environment_gets_in);

fn variables_are_passed_as_they_are_and_may_replace_the_usual_ones(cell: &Cell) {
    let cell = cell
        .option("--env", "A=x = y; $z 'ü'\n2")
        .option("--env", "EMPTY=")
        .option("--env", "TZ=Europe/Oslo");
    let ran = cell.run("printf '%s|%s|%s' \"$A\" \"${EMPTY-unset}\" \"$TZ\"");
    assert_eq!(ran.ok(), "x = y; $z 'ü'\n2||Europe/Oslo");
}

promise!(variables_are_passed_as_they_are_and_may_replace_the_usual_ones; cold: "the environment is what the runtime was started with");

fn the_working_directory_is_writable_and_its_files_may_be_executed(cell: &Cell) {
    let ran = cell.run(
        // Under its own name: to busybox, that is the program.
        "printf '#!/bin/sh\\necho ran\\n' > tool && chmod +x tool && ./tool && cp /bin/true true && ./true && \
        echo too",
    );
    assert_eq!(ran.ok(), "ran\ntoo\n");
}

promise!(the_working_directory_is_writable_and_its_files_may_be_executed);

fn temporary_files_work_as_programs_expect(cell: &Cell) {
    let python = r"
import tempfile
with tempfile.TemporaryFile() as f: f.write(b'x')
from multiprocessing import shared_memory as s
m = s.SharedMemory(create=True, size=10); m.close(); m.unlink(); print('both')";
    assert_eq!(cell.language("python").run(python).ok(), "both\n");
}

promise!(temporary_files_work_as_programs_expect);

/// F2
fn nothing_else_is_writable(cell: &Cell) {
    // Devices are bound over plain files, which is what a listing shows.
    let devices = "! -path /dev/null ! -path /dev/zero ! -path /dev/full ! -path /dev/random ! -path /dev/urandom \
         ! -path /dev/tty";
    let own = "-path /proc -o -path /sandbox -o -path /tmp -o -path /dev/shm";
    let ran = cell.limit("timeout", "100s").run(&format!(
        "find / \\( {own} \\) -prune -o -type d -writable -print 2>/dev/null; \
         find / \\( {own} -o -path /usr \\) -prune -o -type f -writable {devices} -print 2>/dev/null; \
         touch /sandbox/a /tmp/a /dev/shm/a && echo own"
    ));
    assert_eq!(ran.ok(), "own\n");
    for dir in ["/", "/etc", "/usr", "/usr/bin", "/dev", "/proc", "/var", "/run", "/home", "/root"] {
        let ran = cell.run(&format!("touch {dir}/new"));
        assert_ne!(ran.exit_code, 0, "{dir} takes a file");
    }
}

promise!(nothing_else_is_writable; needs filesystem);

/// R8, F14: one budget
fn everything_writable_shares_one_budget(cell: &Cell) {
    let cell = cell.with_probe().limit("disk", "8M");
    let places = ["/tmp/fill", "/dev/shm/fill", "/sandbox/fill"];
    for place in places {
        let alone = cell.run(&format!("rm -f /tmp/fill; ./probe exhaust disk 5 {place}"));
        assert!(alone.ok().contains("\"errno\":0"), "{place} alone has room for 5M: {}", alone.stdout);
    }
    let together =
        cell.run("for p in /tmp/fill /dev/shm/fill /sandbox/fill; do ./probe exhaust disk 3 $p; done");
    let seen = belljar_conformance::observations(together.ok());
    let total: i64 = seen.iter().map(|one| one.ret).sum();
    assert!(seen.iter().any(|one| one.errno == libc::ENOSPC), "9M do not fit into 8M: {seen:?}");
    assert!(total <= 8 << 20, "{total}");
}

promise!(everything_writable_shares_one_budget; needs disk; cold: "the disk is made with the box");

/// Variables by which programs choose how many threads to start.
const THREAD_VARIABLES: &[&str] = &[
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "GOMAXPROCS",
];

fn programs_are_told_how_many_threads_to_start(cell: &Cell) {
    let print = |name: &&str| format!("echo {name} ${name}; ");
    let code: String = THREAD_VARIABLES.iter().map(print).collect();
    let all =
        |count: &str| -> String { THREAD_VARIABLES.iter().map(|name| format!("{name} {count}\n")).collect() };
    assert_eq!(cell.run(&code).ok(), all("1"), "one CPU by default");
    assert_eq!(cell.limit("cpus", "1.5").run(&code).ok(), all("2"), "rounded up");
    let own = cell.option("--env", "OMP_NUM_THREADS=7").run("echo $OMP_NUM_THREADS $GOMAXPROCS");
    assert_eq!(own.ok(), "7 1\n", "the caller's own value wins");
}

promise!(programs_are_told_how_many_threads_to_start; needs cpu; cold: "the environment is what the runtime was started with");

/// How many CPUs and how much memory a program finds, by the files that programs read.
const MACHINE: &str = r"
import os
memory = dict(line.split(':') for line in open('/proc/meminfo'))
print(memory['MemTotal'].strip(), '/', memory['MemAvailable'].strip(), '/', os.sysconf('SC_NPROCESSORS_ONLN'))
print(open('/proc/cpuinfo').read().count('processor'), open('/proc/loadavg').read().split()[0])
up = lambda: float(open('/proc/uptime').read().split()[0])
before = up()
while up() == before: pass
started = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK')
print(0 <= up() - started < 10000, open('/proc/version').read().split()[:3] == ['Linux', 'version', os.uname().release])
";

fn the_files_of_proc_describe_the_box(cell: &Cell) {
    if cell.backend() != "native" {
        return; // Elsewhere they are the engine's or the host's.
    }
    let python = cell.language("python");
    let told = |memory: &str| format!("{memory} kB / {memory} kB / 1\n1 0.00\nTrue True\n");
    assert_eq!(python.run(MACHINE).ok(), told("262144"), "the default");
    assert_eq!(python.limit("memory", "1G").run(MACHINE).ok(), told("1048576"), "a limit of the request");
    assert_eq!(python.limit("memory", "100M").run(MACHINE).ok(), told("102400"), "and one of fewer digits");
    let ran = python.run("open('/proc/meminfo', 'a')");
    assert!(
        ran.exit_code == 1 && ran.stderr.contains("OSError") | ran.stderr.contains("PermissionError"),
        "{ran:?}"
    );
}

promise!(the_files_of_proc_describe_the_box; needs memory);

fn the_cpus_of_the_files_are_those_of_the_limit(cell: &Cell) {
    if cell.backend() != "native" {
        return; // Elsewhere they are the engine's or the host's.
    }
    let both =
        cell.limit("cpus", "2").run("grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat");
    let host = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    assert_eq!(both.ok(), format!("{host}\n{host}\n"), "as many as the host has, if that is fewer");
}

promise!(the_cpus_of_the_files_are_those_of_the_limit; needs cpu; cold: "the environment is what the runtime was started with");

fn the_usual_tools_say_what_the_box_has(cell: &Cell) {
    if cell.backend() != "native" {
        return; // An image may not have them.
    }
    let network =
        cell.run("tail -n +3 /proc/net/dev | wc -l; cmp /proc/mounts /proc/self/mounts && echo same");
    assert_eq!(network.ok(), "1\nsame\n", "its own network and its own mounts");
    let tools = "nproc; free -m | awk '/Mem:/ { print $2 }'; uptime | grep -o 'load average: 0.00'; \
        ps -o comm= -p $$; set -- $(ps -o etimes= -p $$); test $1 -lt 10000 && echo young; \
        top -bn1 | grep -c Tasks";
    assert_eq!(cell.run(tools).ok(), "1\n256\nload average: 0.00\nsh\nyoung\n1\n");
}

promise!(the_usual_tools_say_what_the_box_has; needs memory, cpu; no zygote: "ps shows the name of the runtime");

fn pseudo_terminals_work(cell: &Cell) {
    let code = r#"
import os, pty
pid, terminal = pty.fork()
if pid == 0:
    os.execlp("sh", "sh", "-c", "test -t 0 && tty; echo own > /dev/tty; read word; echo got $word")
os.write(terminal, b"typed\n")
said = b""
try:
    while piece := os.read(terminal, 1000): said += piece
except OSError:
    pass
print(os.waitpid(pid, 0)[1], sorted(said.decode().split()))"#;
    let ran = cell.language("python").run(code);
    let told = ran.ok();
    assert!(told.starts_with("0 ['/dev/pts/"), "{told}");
    assert!(told.ends_with("', 'got', 'own', 'typed', 'typed']\n"), "echoed, and read: {told}");
}

promise!(pseudo_terminals_work; needs filesystem);

fn a_terminal_can_be_recorded(cell: &Cell) {
    if cell.has_an_image() {
        return; // It may not have `script`.
    }
    let ran = cell.run("script -qec 'test -t 1 && echo terminal' /dev/null; test -t 1 || echo none");
    assert_eq!(ran.ok(), "terminal\r\nnone\n");
}

promise!(a_terminal_can_be_recorded; needs filesystem);

fn names_of_services_protocols_and_file_types_are_known(cell: &Cell) {
    if cell.backend() != "native" {
        return; // The files are the image's or the host's.
    }
    let code = r"
import mimetypes, socket
print(socket.getaddrinfo('localhost', 'http', socket.AF_INET, socket.SOCK_STREAM)[0][4])
print(socket.getservbyname('domain', 'udp'), socket.getservbyport(443), socket.getprotobyname('icmp'))
print(mimetypes.guess_type('a.parquet')[0])
";
    let told = "('127.0.0.1', 80)\n53 https 1\napplication/vnd.apache.parquet\n";
    assert_eq!(cell.language("python").run(code).ok(), told);
}

promise!(names_of_services_protocols_and_file_types_are_known; needs filesystem);

fn there_is_no_controlling_terminal_even_if_the_caller_has_one(cell: &Cell) {
    let code = "set -- $(cat /proc/self/stat); echo tty $7; if (exec 3</dev/tty) 2>/dev/null; then echo open; \
        else echo none; fi";
    // `script` gives belljar a terminal of its own.
    let mut words =
        vec![format!("belljar run sh -c {} --backend {}", belljar_conformance::quote(code), cell.backend())];
    words.extend(cell.waived().iter().map(|waived| format!("--waive {waived}")));
    let told = cell.in_a_terminal(&words.join(" "));
    assert!(told.contains("tty 0") && told.contains("none"), "{told}");
    let mut control = Command::new("script");
    let control = control.args([
        "-qec",
        "if (exec 3</dev/tty) 2>/dev/null; then echo open; else echo none; fi",
        "/dev/null",
    ]);
    let control = control.stdin(std::process::Stdio::null()).output().expect("script is there");
    assert!(String::from_utf8_lossy(&control.stdout).contains("open"), "the control: outside there is one");
}

promise!(there_is_no_controlling_terminal_even_if_the_caller_has_one; cold: "it is about the command line");

fn a_workspace_is_read_only_at_work_and_the_working_directory(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("src/input.txt", "from the host");
    let cell = cell.option("--workspace", scratch.path().to_str().unwrap());
    assert_eq!(cell.run("pwd; cat src/input.txt; echo; echo $HOME").ok(), "/work\nfrom the host\n/sandbox\n");
    let tries = cell.run(
        "for p in new src/new src/input.txt /work/x; do echo x > $p && echo wrote $p; done; \
        rm -f src/input.txt; mkdir d; true",
    );
    assert!(!tries.stdout.contains("wrote"), "{}", tries.stdout);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "from the host");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    assert_eq!(cell.run("echo x > /sandbox/own && echo x > /tmp/own && cat /sandbox/own").ok(), "x\n");
}

promise!(a_workspace_is_read_only_at_work_and_the_working_directory; needs filesystem; cold: "a workspace is mounted while the box is made");

fn files_are_laid_over_a_workspace_without_touching_it(cell: &Cell) {
    let scratch = Scratch::new();
    let _there = scratch.file("there.txt", "host");
    let outside = Scratch::new();
    let extra = outside.file("extra.txt", "extra");
    let cell = cell
        .option("--workspace", scratch.path().to_str().unwrap())
        .option("--file", &format!("{}:sub/extra.txt", extra.display()));
    assert_eq!(cell.run("cat there.txt sub/extra.txt").ok(), "hostextra");
    let names: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["there.txt"], "the host's directory is as it was");
}

promise!(files_are_laid_over_a_workspace_without_touching_it; cold: "a workspace is mounted while the box is made");

fn code_of_a_language_finds_the_modules_of_its_workspace(cell: &Cell) {
    let scratch = Scratch::new();
    let _module = scratch.file("helper.py", "ANSWER = 42\n");
    let cell = cell.language("python").option("--workspace", scratch.path().to_str().unwrap());
    assert_eq!(cell.run("import helper; print(helper.ANSWER)").ok(), "42\n");
    assert!(!scratch.path().join("__pycache__").exists());
}

promise!(code_of_a_language_finds_the_modules_of_its_workspace; cold: "a workspace is mounted while the box is made");
