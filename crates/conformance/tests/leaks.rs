//! Nothing is left behind, however a run ends: no process, cgroup, container, mount, temporary file or descriptor.
//!
//! `BELLJAR_LEAK_RUNS` is the number of runs with each ending (8 by default), `BELLJAR_KILL_RUNS` the number of runs in which
//! `belljar` itself is killed (10 by default); CI sets more. An ordinary user's runs take the same paths with fewer things to
//! leave behind, so there is only an eighth as many of the first kind.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and is configured by its environment"
)]

use std::time::Duration;

use belljar_conformance::{
    Cell, Running, User, Watch, eventually, process_holding, promise, secret, spelled, survivors,
};
use rustix::process::{Pid, Signal, kill_process};

/// How many runs are under way at a time.
const ABREAST: usize = 4;

fn count(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// One ending, and the exit statuses that show it.
struct Ending {
    code: &'static str,
    options: &'static [(&'static str, &'static str)],
    interrupt: Option<Signal>,
    statuses: &'static [i32],
}

const ENDINGS: &[Ending] = &[
    Ending { code: "exit 3", options: &[], interrupt: None, statuses: &[3] },
    Ending { code: "kill -9 $$", options: &[], interrupt: None, statuses: &[137] },
    Ending {
        code: "echo x > f; sleep 60 & sleep 60",
        options: &[("--timeout", "50ms")],
        interrupt: None,
        statuses: &[124],
    },
    Ending {
        code: "./probe exhaust memory 100",
        options: &[("--memory", "16M")],
        interrupt: None,
        statuses: &[137],
    },
    Ending {
        code: "./probe fork-bomb",
        options: &[("--timeout", "100ms")],
        interrupt: None,
        statuses: &[124],
    },
    Ending { code: "echo ready; sleep 60", options: &[], interrupt: Some(Signal::INT), statuses: &[130] },
    Ending { code: "echo ready; sleep 60", options: &[], interrupt: Some(Signal::TERM), statuses: &[143] },
    Ending { code: "true", options: &[("--workspace", "/no/such/place")], interrupt: None, statuses: &[125] },
];

fn start(cell: &Cell, ending: &Ending) -> Running {
    let cell = cell.with_probe();
    let cell = ending.options.iter().fold(cell, |cell, (name, value)| cell.option(name, value));
    let running = cell.start_plain(ending.code);
    if let Some(signal) = ending.interrupt {
        running.wait_for("ready");
        running.signal(signal);
    }
    running
}

/// Without a limit on processes a fork bomb would be one for the machine, and without one on memory nothing ends by it.
fn is_bounded(cell: &Cell, ending: &Ending) -> bool {
    let needs = [("bomb", "pids"), ("exhaust memory", "memory")];
    needs.iter().all(|(attempt, guarantee)| !ending.code.contains(attempt) || cell.keeps(guarantee))
}

fn nothing_is_left_behind_by_any_ending(cell: &Cell) {
    let endings: Vec<&Ending> = ENDINGS.iter().filter(|ending| is_bounded(cell, ending)).collect();
    let watch = Watch::over(cell);
    let cell = watch.cell();
    let each = count("BELLJAR_LEAK_RUNS", 8);
    let each = match cell.user() {
        User::Root => each,
        User::Nobody => each.div_ceil(8),
    };
    let runs: Vec<&&Ending> = endings.iter().cycle().take(each * endings.len()).collect();
    for batch in runs.chunks(ABREAST) {
        let started: Vec<_> = batch.iter().map(|ending| (start(cell, ending), ending)).collect();
        for (running, ending) in started {
            let ended = running.finish();
            assert!(ending.statuses.contains(&ended.code()), "{}: {ended:?}", ending.code);
        }
    }
    watch.assert_nothing_left();
}

promise!(nothing_is_left_behind_by_any_ending; cold: "it is about the command line");

/// Starts a run whose processes can be found by a word.
fn start_found_by(cell: &Cell, word: &str) -> Running {
    let running = cell
        .with_probe()
        .limit("timeout", "60s")
        .start_plain(&format!("./probe daemon {}; echo ready; sleep 50", spelled(word)));
    running.wait_for("ready");
    assert!(!process_holding(word).is_empty(), "the control: it runs");
    running
}

/// The processes between `belljar` and the code that can be found by a word: its children, or where an engine makes the
/// box, the first process in it.
fn keepers(cell: &Cell, belljar: u32, word: &str) -> Vec<u32> {
    let keepers = match cell.has_an_image() {
        true => process_holding(word).into_iter().filter_map(first_in_the_box_of).collect(),
        false => children(belljar),
    };
    assert!(!keepers.is_empty(), "there is one between belljar and the box");
    keepers
}

/// The process that is number 1 where this one lives, if that is not where we live ourselves.
fn first_in_the_box_of(pid: u32) -> Option<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let is_first = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    let there = namespace(pid).filter(|there| Some(there) != namespace(std::process::id()).as_ref())?;
    let all = std::fs::read_dir("/proc").expect("Linux has one");
    let mut pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid| namespace(*pid).as_ref() == Some(&there) && is_first(pid))
}

fn children(belljar: u32) -> Vec<u32> {
    let listed =
        std::fs::read_to_string(format!("/proc/{belljar}/task/{belljar}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}

#[track_caller]
fn assert_gone(word: &str) {
    assert_eq!(survivors(word), [] as [u32; 0], "still there");
}

/// The control of all the others: what is there while a run is on is seen as left.
fn what_is_there_is_seen(cell: &Cell) {
    let watch = Watch::over(cell);
    let running = start_found_by(watch.cell(), &secret());
    let left = watch.left();
    let seen = |what: &str| left.iter().any(|one| one.contains(what));
    assert!(seen("./probe daemon") && seen("sleep 50"), "{left:#?}");
    assert_eq!(seen("container "), cell.has_an_image(), "{left:#?}");
    if !cell.has_an_image() {
        let keeper = if cell.is_only_by_name() { "belljar-supervisor" } else { "belljar-keeper" };
        assert!(seen(keeper), "{left:#?}");
        assert_eq!(seen("cgroup "), cell.keeps("memory"), "{left:#?}");
    }
    running.signal(Signal::TERM);
    let _ = running.finish();
    watch.assert_nothing_left();
}

promise!(what_is_there_is_seen; cold: "it is about the command line");

fn killing_belljar_takes_the_box_with_it(cell: &Cell) {
    let watch = Watch::over(cell);
    let cell = watch.cell();
    let moments = [0, 1, 2, 3, 5, 8, 13, 20, 35, 60];
    for run in 0..count("BELLJAR_KILL_RUNS", 10) {
        let word = secret();
        let running = cell
            .with_probe()
            .limit("timeout", "60s")
            .start_plain(&format!("./probe daemon {}; sleep 50", spelled(&word)));
        std::thread::sleep(Duration::from_millis(moments[run % moments.len()]));
        running.signal(Signal::KILL);
        let _ = running.finish();
        assert_gone(&word);
    }
    let word = secret();
    let running = start_found_by(cell, &word);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code(), 137);
    assert_gone(&word);
    let_the_next_run_sweep(cell);
    watch.assert_nothing_left();
}

/// A container whose owner was killed is dead, and is removed by the next run: docs/docker.md says so.
fn let_the_next_run_sweep(cell: &Cell) {
    if cell.has_an_image() {
        cell.run("sleep 2").ok();
    }
}

promise!(killing_belljar_takes_the_box_with_it; cold: "it is about the command line");

fn killing_the_keeper_takes_the_box_with_it_and_is_reported(cell: &Cell) {
    let watch = Watch::over(cell);
    let cell = watch.cell();
    let word = secret();
    let running = start_found_by(cell, &word);
    keepers(cell, running.pid(), &word).into_iter().for_each(kill);
    let ended = running.finish();
    assert!(ended.code() == 125 || ended.code() == 137, "not taken for a success: {ended:?}");
    assert_gone(&word);
    watch.assert_nothing_left();
}

promise!(killing_the_keeper_takes_the_box_with_it_and_is_reported; needs privileges; cold: "it is about the command line");

fn a_run_whose_keeper_is_killed_is_reported_soon(cell: &Cell) {
    let watch = Watch::over(cell);
    let word = secret();
    let code = format!("exec sh -c 'sleep 200; :' {}", spelled(&word));
    let running = watch.cell().limit("timeout", "200s").start_json(&code);
    // With --json nothing is said until the end.
    eventually("it runs", || !process_holding(&word).is_empty());
    keepers(cell, running.pid(), &word).into_iter().for_each(kill);
    let ended = running.finish();
    assert_ne!(ended.code(), 0, "not taken for a success: {ended:?}");
    watch.assert_nothing_left();
}

promise!(a_run_whose_keeper_is_killed_is_reported_soon; cold: "it is about the command line");

fn killing_both_at_once_leaves_nothing_that_the_next_run_does_not_clean_up(cell: &Cell) {
    let watch = Watch::over(cell);
    let cell = watch.cell();
    for _ in 0..5 {
        let word = secret();
        let running = start_found_by(cell, &word);
        let mut all = keepers(cell, running.pid(), &word);
        all.push(running.pid());
        all.into_iter().for_each(kill);
        let _ = running.finish();
        assert_gone(&word);
    }
    assert_eq!(cell.run("echo next").ok(), "next\n");
    let_the_next_run_sweep(cell);
    watch.assert_nothing_left();
}

promise!(killing_both_at_once_leaves_nothing_that_the_next_run_does_not_clean_up; needs privileges; cold: "it is about the command line");
