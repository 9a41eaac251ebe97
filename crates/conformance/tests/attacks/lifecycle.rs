//! L: processes and signals. Nothing survives a run, nothing inside can hold, kill or forge from inside.

use belljar_conformance::{
    Cell, Ran, Status, eventually, observations, outside, process_holding, promise, secret, spelled,
    survivors,
};

/// L1, L2, L3
fn a_daemon_that_holds_stdout_neither_stays_nor_holds_the_caller(cell: &Cell) {
    let word = secret();
    let control = outside(&format!("daemon {word} 2>/dev/null </dev/null | head -n 1; true"));
    assert_eq!(control[0].op, "daemon");
    eventually("the control: outside one stays", || process_holding(&word).len() == 1);
    for pid in process_holding(&word) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let ran = cell.with_probe().run(&format!("./probe daemon {}; echo before the end", spelled(&word)));
    assert!(ran.ok().ends_with("before the end\n"), "what was written is kept: {ran:?}");
    assert_eq!(survivors(&word), [] as [u32; 0]);
}

promise!(a_daemon_that_holds_stdout_neither_stays_nor_holds_the_caller);

/// L3
fn a_daemon_does_not_outlive_a_timeout_or_a_signal(cell: &Cell) {
    for end in ["sleep 1000", "kill -9 $$", "exit 3"] {
        let word = secret();
        let code = format!("./probe daemon {}; {end}", spelled(&word));
        let ran = cell.with_probe().run_until_its_timeout(&code, |ran| ran.stdout.contains("daemon"));
        assert_eq!(ran.timed_out, end.starts_with("sleep"), "{end}: {ran:?}");
        assert_eq!(survivors(&word), [] as [u32; 0], "{end}");
    }
}

promise!(a_daemon_does_not_outlive_a_timeout_or_a_signal);

/// L4
fn stopping_oneself_does_not_stop_the_clock(cell: &Cell) {
    let cell = cell.limit("timeout", "500ms");
    for stop in [
        "kill -STOP $$",
        "sh -c 'kill -STOP $PPID; kill -STOP $$'",
        "kill -STOP $PPID; sleep 1000; sleep 1000",
    ] {
        let ran = cell.run(stop);
        assert_eq!(ran.status, Status::TimedOut, "{stop}: {ran:?}");
    }
}

promise!(stopping_oneself_does_not_stop_the_clock);

/// L4
fn stopping_everyone_stops_only_oneself_and_not_the_clock(cell: &Cell) {
    let ran = cell.limit("timeout", "500ms").run("kill -STOP 1; kill -STOP -1; kill -STOP $$");
    assert_eq!(ran.status, Status::TimedOut, "{ran:?}");
}

promise!(stopping_everyone_stops_only_oneself_and_not_the_clock; needs privileges);

/// L5
fn killing_everyone_kills_only_oneself(cell: &Cell) {
    let all = cell.with_probe().run("./probe kill -1 9; echo alive");
    assert!(all.status == Status::Exited || all.status == Status::Signaled, "{all:?}");
    let init = cell.with_probe().run("./probe kill 1 9; ./probe kill 1 15; sleep 0.2; echo alive");
    assert!(init.stdout.ends_with("alive\n"), "PID 1 of the box is there to stay: {init:?}");
    assert_eq!(cell.run("echo next").ok(), "next\n");
}

promise!(killing_everyone_kills_only_oneself; needs privileges);

/// L6, E8
fn processes_of_the_host_cannot_be_named(cell: &Cell) {
    let own = std::process::id();
    assert_eq!(outside(&format!("kill {own} 0"))[0].errno, 0, "the control");
    let pidfd = format!("call {} {own} 0", libc::SYS_pidfd_open);
    let seen = cell.probes(&[&format!("kill {own} 0"), &pidfd, &format!("read /proc/{own}/cmdline")]);
    seen[0].fails_with(&[libc::ESRCH]);
    seen[1].fails_with(&[libc::ESRCH, libc::EPERM, libc::ENOSYS]);
    seen[2].fails_with(&[libc::ENOENT]);
}

promise!(processes_of_the_host_cannot_be_named; needs privileges);

/// L7
fn a_subreaper_and_a_death_signal_save_nobody(cell: &Cell) {
    let word = secret();
    let code = format!(
        r"
import ctypes, os, signal, time
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None)
libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
libc.prctl(PR_SET_PDEATHSIG, 0)
if os.fork() == 0:
    os.setsid()
    for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
    os.execv('/bin/sleep', ['{word}', '1000'])
time.sleep(0.2)
print('out')"
    );
    let ran = cell.language("python").run(&code);
    assert_eq!(ran.ok(), "out\n", "{ran:?}");
    assert_eq!(survivors(&word), [] as [u32; 0]);
}

promise!(a_subreaper_and_a_death_signal_save_nobody);

/// L8
fn a_process_that_waits_in_the_kernel_is_killed_on_time(cell: &Cell) {
    let ran = cell.limit("timeout", "500ms").run("mkfifo f; (cat f &) ; cat f");
    assert_eq!(ran.status, Status::TimedOut);
}

promise!(a_process_that_waits_in_the_kernel_is_killed_on_time);

/// L10, F12
fn cgroups_are_out_of_reach(cell: &Cell) {
    assert!(outside("list /sys/fs/cgroup")[0].ret > 0, "the control");
    if cell.has_an_image() {
        let files =
            ["memory/memory.limit_in_bytes", "memory.max", "pids/pids.max", "pids.max", "cgroup.procs"];
        let writes: Vec<_> = files.iter().map(|file| format!("write /sys/fs/cgroup/{file}")).collect();
        let seen = cell.probes(&writes.iter().map(String::as_str).collect::<Vec<_>>());
        for one in &seen {
            one.fails_with(&[libc::ENOENT, libc::EROFS, libc::EACCES]);
        }
        assert!(seen.iter().any(|one| one.errno != libc::ENOENT), "the control: some are there: {seen:?}");
        return;
    }
    for seen in cell.probes(&["list /sys/fs/cgroup", "list /sys"]) {
        assert!(seen.errno == libc::ENOENT || seen.ret == 0, "{seen:?}");
    }
}

promise!(cgroups_are_out_of_reach; needs filesystem);

/// L11
fn a_fork_storm_does_not_outrun_the_kill(cell: &Cell) {
    for _ in 0..5 {
        let word = secret();
        let bomb = format!("./probe fork-bomb {}", spelled(&word));
        let ran = cell.with_probe().limit("timeout", "300ms").run(&bomb);
        assert_eq!(ran.status, Status::TimedOut, "{ran:?}");
        assert_eq!(survivors(&word), [] as [u32; 0]);
    }
}

promise!(a_fork_storm_does_not_outrun_the_kill; needs pids);

/// L11
fn a_crowd_of_daemons_dies_with_its_run(cell: &Cell) {
    for end in ["time.sleep(1000)", "pass"] {
        let word = secret();
        let code = format!(
            r"
import os, time
word = ''.join({parts:?})
for _ in range(300):
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: os.execv('/bin/sleep', [word, '1000'])
            os._exit(0)
    except OSError: break
{end}",
            parts = word.split_at(word.len() / 2)
        );
        cell.language("python").limit("timeout", "1500ms").run(&code);
        assert_eq!(survivors(&word), [] as [u32; 0], "{end}");
    }
}

promise!(a_crowd_of_daemons_dies_with_its_run);

/// L13
fn standard_input_may_be_closed_binary_or_left_unread(cell: &Cell) {
    let cell = cell.option("--stdin", "-");
    assert_eq!(cell.caller_stdin(&[0, 255, 10, 0]).run("od -An -tx1").ok().trim(), "00 ff 0a 00");
    assert_eq!(cell.caller_stdin(b"x").run("exec 0<&-; echo closed").ok(), "closed\n");
    assert_eq!(cell.caller_stdin(b"").run("cat; echo end").ok(), "end\n");
}

promise!(standard_input_may_be_closed_binary_or_left_unread);

/// L14, K4
fn the_result_cannot_be_forged_through_init(cell: &Cell) {
    let vm_write = format!("call {} 1 0 0 0 0 0", libc::SYS_process_vm_writev);
    let vm_read = format!("call {} 1 0 0 0 0 0", libc::SYS_process_vm_readv);
    let ptrace = format!("call {} 16 1 0 0", libc::SYS_ptrace); // PTRACE_ATTACH
    let steal = format!("call {} 3 0 0", libc::SYS_pidfd_getfd);
    let tries = [
        "list /proc/1/fd",
        "read /proc/1/environ",
        "write /proc/1/mem",
        "read /proc/1/mem",
        "read /proc/1/maps",
        "list /proc/1/map_files",
        &vm_write,
        &vm_read,
        &ptrace,
        &steal,
    ];
    let seen = cell.probes(&tries);
    for (attempt, seen) in tries.iter().zip(&seen) {
        let denied = [libc::EPERM, libc::EACCES, libc::ENOENT, libc::EBADF, libc::ENOSYS];
        let empty = seen.errno == 0 && seen.ret == 0 && !attempt.starts_with("call");
        assert!(denied.contains(&seen.errno) || empty, "{attempt}: {seen:?}");
    }
    // The control: the same tools work on a process that may be looked at.
    let own = cell.probes(&["list /proc/self/fd", "read /proc/self/maps"]);
    assert!(own[0].ret >= 3 && own[1].ret > 0, "{own:?}");
}

promise!(the_result_cannot_be_forged_through_init; needs privileges);

/// L14, F7, F8
fn no_descriptor_leaks_in(cell: &Cell) {
    let seen = cell.probe("fds");
    assert_eq!(seen.ret, 3, "only 0, 1 and 2: {seen:?}");
    for line in seen.text.lines() {
        let target = line.split(' ').nth(1).unwrap_or_default();
        assert!(
            target.starts_with("pipe:") || target == "/dev/null" || target.starts_with("socket:"),
            "{line}"
        );
    }
    let control = cell.with_probe().run("exec 7</; ./probe fds");
    assert_eq!(observations(control.ok())[0].ret, 4, "the control: one that is open is seen");
}

promise!(no_descriptor_leaks_in);

/// L15, E6, F14
fn a_box_knows_nothing_of_the_one_before(cell: &Cell) {
    let word = secret();
    let leave = format!(
        "echo {word} > /tmp/{word}; echo {word} > /dev/shm/{word}; echo {word} > {word}; echo $$; \
            ls -a /tmp /dev/shm . | grep -c {word}"
    );
    let first = cell.run(&leave);
    assert!(first.ok().trim().ends_with('3'), "the control: the first sees its own: {first:?}");
    let second = cell.run(&format!(
        "echo $$; ls -aR /tmp /dev/shm /sandbox | grep -c {word}; grep -rs {word} /tmp /dev/shm && \
        echo found; true"
    ));
    assert_eq!(second.stdout.lines().nth(1), Some("0"), "{second:?}");
    assert!(!second.stdout.contains("found"));
    // An engine's own threads have had a few numbers before.
    let pid =
        |ran: &Ran| ran.stdout.lines().next().and_then(|line| line.parse::<u32>().ok()).unwrap_or(u32::MAX);
    let (first, second) = (pid(&first), pid(&second));
    assert!(first == second || (cell.has_an_image() && first.max(second) < 50), "{first} {second}");
}

promise!(a_box_knows_nothing_of_the_one_before; needs filesystem);
