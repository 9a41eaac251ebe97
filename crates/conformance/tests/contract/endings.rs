//! How a run ends: `status`, `exit_code`, `signal`, and the exit status of `belljar` itself.

use std::time::Duration;

use belljar_conformance::{
    Cell, PATIENCE, Ran, Running, Start, Status, eventually, process_holding, promise, secret, spelled,
};
use rustix::process::Signal;

fn the_result_of_a_plain_run_says_everything_the_contract_names(cell: &Cell) {
    let ran = cell.language("bash").run("echo out; echo err >&2");
    assert!(ran.id.starts_with("run_") && ran.id.len() > 12, "{}", ran.id);
    assert_eq!((ran.ok(), ran.stderr.as_str(), ran.signal), ("out\n", "err\n", None));
    assert!(!ran.stdout_truncated && !ran.stderr_truncated && !ran.timed_out && !ran.oom_killed);
    assert!(ran.usage.wall_ms > 0.0 && ran.usage.cpu_ms > 0.0, "{:?}", ran.usage);
    // A zygote has Pythons only.
    let start = if cell.start() == Start::Warm { "warm" } else { "cold" };
    assert_eq!((ran.start.as_str(), ran.language.as_str()), (start, "bash"));
    assert_eq!((ran.backend.as_str(), ran.network.as_str()), (cell.backend(), "none"));
    assert_eq!(ran.image.is_some(), cell.backend() == "docker", "{:?}", ran.image);
    assert!(ran.image.as_ref().is_none_or(|image| image.contains("@sha256:")), "{:?}", ran.image);
    assert!(ran.files.is_none() && ran.findings.is_empty());
    assert_eq!(ran.isolation.waived, cell.waived());
    let warned = ran.messages.starts_with("warning: ") && ran.messages.lines().count() == 1;
    assert_eq!(warned, cell.is_only_by_name(), "{}", ran.messages);
    assert!(warned || ran.messages.is_empty(), "with --json nothing else is printed: {}", ran.messages);
}

promise!(the_result_of_a_plain_run_says_everything_the_contract_names; no zygote: "its runtime has no zygote");

fn two_runs_have_two_ids(cell: &Cell) {
    assert_ne!(cell.run("true").id, cell.run("true").id);
}

promise!(two_runs_have_two_ids);

fn root_gets_every_guarantee_of_a_box_and_none_without_one(cell: &Cell) {
    let all = ["filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"];
    let isolation = &cell.run("true").isolation;
    if cell.is_only_by_name() {
        return assert_eq!(
            (isolation.kept.len(), isolation.waived.as_slice()),
            (0, all.map(str::to_owned).as_slice())
        );
    }
    let promised: Vec<_> =
        all.into_iter().filter(|name| !cell.waived().iter().any(|one| one == name)).collect();
    assert_eq!(isolation.kept, promised);
}

promise!(root_gets_every_guarantee_of_a_box_and_none_without_one, root);

fn what_the_host_cannot_keep_is_an_error_unless_it_is_waived_by_name(cell: &Cell) {
    if cell.is_only_by_name() {
        let named = cell.without_waivers().run("true");
        return assert_eq!(named.isolation.waived, cell.waived(), "to name it is to waive what it lacks");
    }
    let Some(unmet) = cell.waived().first() else {
        let all = cell.without_waivers().run("true");
        return assert_eq!(all.isolation.kept.len(), 8, "{all:?}");
    };
    let refusal = cell.without_waivers().refuse("true");
    assert_eq!(refusal.error.code, "guarantee_unmet");
    assert!(refusal.error.message.contains(unmet.as_str()), "{refusal:?}");
    let ran = cell.run("true");
    assert!(ran.isolation.waived.contains(unmet) && !ran.isolation.kept.contains(unmet), "{ran:?}");
    assert_eq!(ran.isolation.kept.len() + ran.isolation.waived.len(), 8);
}

promise!(what_the_host_cannot_keep_is_an_error_unless_it_is_waived_by_name, nobody);

fn a_waiver_is_recorded_even_where_the_host_could_keep_it(cell: &Cell) {
    let ran = cell.option("--waive", "network").run("true");
    assert!(ran.isolation.waived.contains(&"network".to_owned()), "{ran:?}");
    assert!(!ran.isolation.kept.contains(&"network".to_owned()), "{ran:?}");
}

promise!(a_waiver_is_recorded_even_where_the_host_could_keep_it; cold: "something is waived");

fn an_exit_status_is_passed_on_as_it_is(cell: &Cell) {
    for code in [0, 1, 7, 124, 125, 126, 127, 137, 255] {
        let ran = cell.run(&format!("exit {code}"));
        assert_eq!((ran.status, ran.exit_code, ran.signal), (Status::Exited, code, None));
        assert!(!ran.timed_out && !ran.oom_killed, "a status alone proves nothing: {ran:?}");
        assert_eq!(cell.plain(&format!("exit {code}")).code(), code);
    }
}

promise!(an_exit_status_is_passed_on_as_it_is);

/// L12
fn an_exit_status_beyond_a_byte_wraps_as_the_kernel_does(cell: &Cell) {
    let ran = cell.language("python").run("import os; os._exit(256 + 3)");
    assert_eq!(ran.exit_code, 3);
}

promise!(an_exit_status_beyond_a_byte_wraps_as_the_kernel_does);

/// L12
fn a_signal_is_128_and_its_number(cell: &Cell) {
    for (name, number) in
        [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("SYS", 31), ("INT", 2), ("HUP", 1), ("PIPE", 13)]
    {
        let code = format!("kill -{name} $$; sleep 5");
        let ran = cell.run(&code);
        assert_eq!(
            (ran.status, ran.signal, ran.exit_code),
            (Status::Signaled, Some(number), 128 + number),
            "{name}"
        );
        assert!(!ran.oom_killed && !ran.timed_out);
        assert_eq!(cell.plain(&code).code(), 128 + number, "{name}");
    }
}

promise!(a_signal_is_128_and_its_number);

fn a_timeout_is_124_and_keeps_what_was_written(cell: &Cell) {
    let code = "echo partial; echo told >&2; sleep 1000";
    let ran = cell.run_until_its_timeout(code, |ran| ran.stderr.starts_with("told\n"));
    assert_eq!((ran.status, ran.exit_code, ran.timed_out), (Status::TimedOut, 124, true));
    assert_eq!(ran.stdout, "partial\n");
    assert!(ran.stderr.starts_with("told\n") && ran.stderr.contains("Execution timed out"), "{}", ran.stderr);
    assert!(ran.usage.wall_ms >= 500.0, "{:?}", ran.usage);
    let plain = cell.limit("timeout", "3s").plain(code);
    assert_eq!((plain.code(), plain.stdout_text().as_str()), (124, "partial\n"));
    assert!(plain.stderr_text().contains("Execution timed out"));
}

promise!(a_timeout_is_124_and_keeps_what_was_written);

fn a_run_within_its_time_is_not_timed_out(cell: &Cell) {
    let ran = cell.limit("timeout", "5s").run("sleep 0.3; echo done");
    assert_eq!((ran.ok(), ran.timed_out), ("done\n", false));
}

promise!(a_run_within_its_time_is_not_timed_out);

fn out_of_memory_is_137_and_says_the_limit(cell: &Cell) {
    let hog = "./probe exhaust memory 128";
    assert!(cell.with_probe().limit("memory", "256M").run(hog).ok().contains("\"ret\":128"), "the control");
    let ran = cell.with_probe().limit("memory", "64M").run(&format!("echo before; exec {hog}"));
    assert_eq!(ran.stdout, "before\n");
    let plain = cell.with_probe().limit("memory", "64M").plain(&format!("exec {hog}"));
    assert_eq!(plain.code(), 137);
    if was_killed_unexplained(cell, &ran) {
        return;
    }
    assert_eq!((ran.status, ran.exit_code, ran.oom_killed), (Status::OutOfMemory, 137, true), "{ran:?}");
    assert!(ran.stderr.contains("Memory limit exceeded") && ran.stderr.contains("64M"), "{}", ran.stderr);
    let peak = ran.usage.memory_peak_bytes;
    assert!((48 << 20..=64 << 20).contains(&peak), "the peak is at the limit: {peak}");
    assert!(!counts_inside(cell) || plain.stderr_text().contains("Memory limit exceeded"));
}

/// Whether the box's counters can be read from inside, which it takes to keep `cpu`. Without them, the memory limit kills
/// the whole box together with the process that could report it.
fn counts_inside(cell: &Cell) -> bool {
    cell.keeps("cpu")
}

/// Whether a box without counters was killed, and nobody learned by what: it has the exit code of one that ran out of
/// memory, and claims nothing that is not known.
fn was_killed_unexplained(cell: &Cell, ran: &Ran) -> bool {
    let known = (ran.status, ran.exit_code, ran.signal, ran.oom_killed);
    !counts_inside(cell) && known == (Status::Signaled, 137, Some(9), false)
}

promise!(out_of_memory_is_137_and_says_the_limit; needs memory);

fn a_run_that_ends_while_it_is_being_killed_has_a_result(cell: &Cell) {
    for _ in 0..20 {
        let race = cell.limit("timeout", "150ms").run("sleep 0.14");
        assert!([Status::Exited, Status::TimedOut].contains(&race.status), "{race:?}");
        if cell.keeps("memory") {
            // The kernel of gVisor needs about 16 MB for itself.
            let memory = if cell.has_an_image() { "32M" } else { "16M" };
            let bomb = cell.with_probe().limit("memory", memory).run("./probe exhaust pipes 100");
            let unexplained = was_killed_unexplained(cell, &bomb);
            assert!(unexplained || bomb.status == Status::OutOfMemory, "{bomb:?}");
        }
    }
}

promise!(a_run_that_ends_while_it_is_being_killed_has_a_result);

fn out_of_cpu_time_is_a_timeout(cell: &Cell) {
    let ran = cell.limit("cpu-time", "300ms").run("echo partial; while :; do :; done");
    assert_eq!((ran.status, ran.exit_code, ran.timed_out), (Status::TimedOut, 124, true), "{ran:?}");
    assert!(ran.stdout == "partial\n" && ran.stderr.contains("Execution timed out"), "{ran:?}");
    assert!((250.0..5000.0).contains(&ran.usage.cpu_ms), "{:?}", ran.usage);
    let idle = cell.limit("cpu-time", "300ms").run("sleep 1; echo rested");
    assert_eq!(idle.ok(), "rested\n", "sleeping costs no CPU time");
}

promise!(out_of_cpu_time_is_a_timeout; needs cpu);

fn the_cpu_rate_is_kept(cell: &Cell) {
    let busy = "i=0; while [ $i -lt 100000000 ]; do i=$((i+1)); done";
    let rate = |cpus: &str| {
        let usage = cell.limit("cpus", cpus).limit("timeout", "2s").run(busy).usage;
        usage.cpu_ms / usage.wall_ms
    };
    let fifth = rate("0.2");
    assert!(fifth < 0.35, "a fifth of a CPU, not {fifth}");
    // How much of a whole CPU a program gets depends on what else the machine does.
    eventually("the control: more is had of a whole CPU", || rate("1") > fifth);
}

promise!(the_cpu_rate_is_kept; needs cpu);

fn an_interrupt_cancels_the_run(cell: &Cell) {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let ran = interrupted_once_it_runs(cell, signal);
        assert_eq!((ran.status, ran.exit_code), (Status::Cancelled, 128 + number), "{ran:?}");
        assert_eq!(ran.stdout, "begun\n");
    }
}

/// With `--json` nothing is said until the end, so the program is looked for among the processes of the host.
fn interrupted_once_it_runs(cell: &Cell, signal: Signal) -> Ran {
    let word = secret();
    let code = format!("echo begun; exec sh -c 'sleep 200; :' {}", spelled(&word));
    let begin = || cell.limit("timeout", "200s").start_json(&code);
    let interrupted = |running: Running| {
        running.signal(signal);
        Ran::read(running.finish())
    };
    // A signal that arrives before Belljar has heard of the start ends the run without its output. Only a second look tells
    // the two apart, and the runtime of an engine may hide the process.
    let mut pause = Duration::from_millis(100);
    loop {
        let running = begin();
        if !cell.has_an_image() {
            eventually("it runs", || !process_holding(&word).is_empty());
        }
        std::thread::sleep(pause);
        let ran = interrupted(running);
        if !ran.stdout.is_empty() || pause > PATIENCE {
            return ran;
        }
        pause *= 4;
    }
}

promise!(an_interrupt_cancels_the_run; cold: "it is about the command line");

fn limits_have_the_defaults_of_the_contract(cell: &Cell) {
    let probe = cell.with_probe();
    // Beside the rest, where a run can be left to itself.
    let unsaid = cell.with_the_usual_time_limit();
    let clock = (cell.start() == Start::Cold).then(|| unsaid.start_json("sleep 50"));
    if cell.keeps("disk") {
        let disk = cell.probe("exhaust disk 100 /tmp/f");
        assert!((60 << 20..=64 << 20).contains(&disk.ret) && disk.errno == libc::ENOSPC, "64M: {disk:?}");
    }
    let out = probe.run("head -c 1100000 /dev/zero | tr '\\0' x");
    assert!(out.stdout_truncated && out.stdout.contains("[... 51424 bytes omitted ...]"), "1M");
    if cell.keeps("pids") {
        let pids = cell.probe("exhaust forks 100");
        assert!((44..50).contains(&pids.ret) && pids.errno == libc::EAGAIN, "50: {pids:?}");
    }
    if cell.keeps("memory") {
        assert_eq!(probe.run("./probe exhaust memory 230").exit_code, 0, "256M");
        assert_eq!(probe.run("exec ./probe exhaust memory 270").status, Status::OutOfMemory, "256M");
    }
    let clock = clock.map_or_else(|| unsaid.run("sleep 50"), |clock| Ran::read(clock.finish()));
    assert_eq!(clock.status, Status::TimedOut);
    assert!(clock.stderr.contains("timed out after 10s"), "{clock:?}");
    assert!((10_000.0..50_000.0).contains(&clock.usage.wall_ms), "10s: {:?}", clock.usage);
}

promise!(limits_have_the_defaults_of_the_contract);

fn a_command_that_is_not_found_is_127_from_the_shell_itself(cell: &Cell) {
    let ran = cell.run("no-such-command-anywhere");
    assert_eq!(ran.exit_code, 127);
    assert!(ran.stderr.contains("not found"));
}

promise!(a_command_that_is_not_found_is_127_from_the_shell_itself);

fn the_peak_of_memory_is_that_of_the_whole_tree(cell: &Cell) {
    let ran = cell.with_probe().run("./probe exhaust together 160");
    assert!(ran.usage.memory_peak_bytes > 160 << 20, "{:?}", ran.usage);
    let small = cell.run("true");
    assert!(small.usage.memory_peak_bytes < 30 << 20, "{:?}", small.usage);
}

promise!(the_peak_of_memory_is_that_of_the_whole_tree; needs memory);
