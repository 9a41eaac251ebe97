//! Hundreds of generated programs: each has the same result in a parked box as in one that was built for it.
//!
//! `BELLJAR_PROGRAMS` is their number (200 by default; CI sets more). `differential/programs.py` generates them, and prints any
//! of them.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::pool::pool_of;
use crate::server::{Server, eventually};

/// How many are under way at a time.
const ABREAST: usize = 3;
/// What a caller is told of a run that does not depend on how long it took.
const TOLD: [&str; 6] = ["stdout", "stderr", "exit_code", "signal", "status", "timed_out"];

#[test]
fn programs_say_the_same_warm_and_cold() {
    let programs = programs(count());
    let pool = "[server]\nslots = 8\n[pool.languages.python]\nmin = 4\nmax = 8\n";
    let (warm, cold) = (Server::with(pool, &[]), Server::with("[pool]\nenabled = false\n", &[]));
    let (next, differences, starts) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::default());
    let compare = || {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (one, other) = (run_ahead(&warm, program, &starts), cold.post("/v1/runs", program).result());
            assert_eq!(other["start"], json!("cold"));
            if TOLD.iter().any(|field| without_addresses(&one[field]) != without_addresses(&other[field])) {
                let code = program["code"].as_str().unwrap();
                differences.lock().unwrap().push(format!("{code}\n--- warm\n{one}\n--- cold\n{other}"));
            }
        }
    };
    std::thread::scope(|scope| (0..ABREAST).for_each(|_| drop(scope.spawn(compare))));
    let (differences, starts) = (differences.into_inner().unwrap(), starts.into_inner().unwrap());
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        programs.len(),
        differences.join("\n\n")
    );
    let warm = starts.get("warm").copied().unwrap_or_default();
    assert!(warm * 2 > programs.len(), "too few were warm to say anything: {starts:?}");
}

/// How many programs to try.
#[allow(clippy::disallowed_methods, reason = "CI runs more of them than a developer")]
fn count() -> usize {
    std::env::var("BELLJAR_PROGRAMS").map_or(200, |count| count.parse().unwrap())
}

fn programs(count: usize) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/differential/programs.py");
    let made = Command::new("python3").args([script, &count.to_string()]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut programs: Vec<Value> = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(programs.len(), count);
    for program in &mut programs {
        program["language"] = json!("python");
        program["limits"] = json!({"timeout_ms": 30_000});
    }
    programs
}

/// Runs where something was ready for it: a box, or if others took the last one, a zygote.
fn run_ahead(server: &Server, program: &Value, starts: &Mutex<BTreeMap<String, usize>>) -> Value {
    for _ in 0..20 {
        eventually("a box waits", || pool_of(server, "python")["ready"].as_u64() > Some(0));
        let result = server.post("/v1/runs", program).result();
        if result["start"] != json!("cold") {
            *starts.lock().unwrap().entry(result["start"].as_str().unwrap().to_owned()).or_default() += 1;
            return result;
        }
    }
    panic!("never but cold: {program}");
}

/// Where something lies in memory is told in tracebacks of destructors, and differs from any run to any other.
fn without_addresses(told: &Value) -> Value {
    let Some(text) = told.as_str() else { return told.clone() };
    let mut parts = text.split("0x");
    let head = parts.next().unwrap_or_default().to_owned();
    let tails = parts.map(|part| format!("0x{}", part.trim_start_matches(|c: char| c.is_ascii_hexdigit())));
    json!(head + &tails.collect::<String>())
}
