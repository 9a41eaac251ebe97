//! The thread that writes: killed at any moment, and with a disk that is full. Both need a process of their own, which is
//! this program once more.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::explicit_write,
    reason = "the other process tells on its stdout what it has written, past the harness that would capture it"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use belljar_core::request::Code;
use belljar_engine::{Account, Asked, Fate, Origin, Place, Recorder, RunId};
use belljar_ledger::{Book, Key, OnFull, Reader, Redactor, Retention, Scribe, ScribeSettings};

/// The directory of the ledger, for the process that is started.
const DIR: &str = "BELLJAR_LEDGER_DIR";
/// Whether a record must be on disk before it counts.
const DURABLE: &str = "BELLJAR_LEDGER_DURABLE";
const PATIENCE: Duration = Duration::from_secs(120);

fn account(code: &str) -> Box<Account> {
    Box::new(Account {
        id: RunId::new().to_string(),
        at: SystemTime::now(),
        origin: Origin::default(),
        asked: Asked {
            language: "python".to_owned(),
            code: Some(Code::parse(code.as_bytes().to_vec(), None).unwrap()),
            ..Asked::default()
        },
        findings: Vec::new(),
        decision: None,
        fate: Fate::Refused("a test".to_owned()),
    })
}

fn scribe(dir: &Path, durable: bool, on_full: OnFull) -> Scribe {
    let redactor = Redactor::new(&[]).unwrap();
    let settings = ScribeSettings { durable, on_full, retention: Retention::default(), redactor, places: 64 };
    let book = Book::open(dir, Key::find_or_make(dir).unwrap(), settings.sync()).unwrap();
    Scribe::start(book, settings).unwrap()
}

fn verified(dir: &Path) -> u64 {
    let verdict = Reader::open(dir).unwrap().verify(&Key::find(dir).unwrap().public()).unwrap();
    assert!(verdict.ok, "{:?}", verdict.flaw);
    verdict.records
}

/// This program again, with one test of it.
fn again(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(DIR, dir).stdout(Stdio::piped());
    command
}

/// Only in a process that was started by another test: writes records until it is killed, and says which are kept.
#[test]
fn writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let durable = std::env::var_os(DURABLE).is_some();
    let scribe = Arc::new(scribe(&dir, durable, OnFull::Refuse));
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let scribe = scribe.clone();
            std::thread::spawn(move || write_for_ever(&scribe))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

fn write_for_ever(scribe: &Scribe) {
    let waiting = tokio::runtime::Builder::new_current_thread().build().unwrap();
    loop {
        if scribe.reserve().is_err() {
            std::thread::yield_now();
            continue;
        }
        let account = account("print(1)");
        let id = account.id.clone();
        if let Some(kept) = scribe.record(account) {
            waiting.block_on(kept).unwrap();
        }
        writeln!(std::io::stdout(), "kept {id}").unwrap();
    }
}

/// What the process said before it was killed, after so many lines.
fn killed_after(mut child: Child, lines: usize) -> Vec<String> {
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let kept = |line: String| line.strip_prefix("kept ").map(str::to_owned);
    let mut heard: Vec<String> = said.by_ref().filter_map(kept).take(lines).collect();
    child.kill().unwrap();
    heard.extend(said.filter_map(kept));
    child.wait().unwrap();
    // The last line may be cut.
    heard.retain(|id| id.len() == 30);
    heard
}

#[test]
fn a_writer_that_is_killed_a_hundred_times_leaves_a_whole_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let mut promised: BTreeSet<String> = BTreeSet::new();
    for round in 0..100 {
        let mut command = again("writes_until_it_is_killed", dir.path());
        let durable = round % 2 == 0;
        if durable {
            command.env(DURABLE, "1");
        }
        let heard = killed_after(command.spawn().unwrap(), 1 + round % 9);
        assert!(!heard.is_empty(), "it wrote nothing in round {round}");
        if durable {
            promised.extend(heard);
        }
        verified(dir.path());
    }
    let mut reader = Reader::open(dir.path()).unwrap();
    let missing: Vec<_> = promised.iter().filter(|id| reader.find(id).unwrap().is_none()).collect();
    assert!(
        promised.len() >= 100 && missing.is_empty(),
        "{} of {} are missing",
        missing.len(),
        promised.len()
    );
    let scribe = scribe(dir.path(), false, OnFull::Refuse);
    assert_eq!(scribe.reserve(), Ok(Place::Held));
    drop(scribe.record(account("after all")));
    scribe.stop();
    verified(dir.path());
}

/// Only in a process that was started by another test, whose disk is small.
#[test]
fn fills_its_disk() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let ballast = dir.join("ballast");
    for on_full in [OnFull::Refuse, OnFull::Run] {
        let ledger = dir.join(format!("{on_full:?}"));
        fill(&ledger, on_full, &ballast);
        std::fs::remove_dir_all(ledger).unwrap();
    }
    println!("done");
}

fn fill(dir: &Path, on_full: OnFull, ballast: &Path) {
    std::fs::write(ballast, vec![0; 1 << 20]).unwrap();
    let scribe = scribe(dir, false, on_full);
    let (mut recorded, mut unrecorded, code) = (0_usize, 0_usize, "x = 1\n".repeat(5000));
    let deadline = Instant::now() + PATIENCE;
    let mut go = |scribe: &Scribe| match scribe.reserve() {
        Ok(Place::Held) => {
            drop(scribe.record(account(&code)));
            recorded += 1;
            Ok(true)
        }
        Ok(Place::Forgone) => {
            unrecorded += 1;
            Ok(false)
        }
        Err(refused) => Err(refused.why),
    };
    while scribe.trouble().is_none() {
        assert!(Instant::now() < deadline, "the disk does not fill up");
        let _ = go(&scribe);
    }
    assert!(scribe.trouble().unwrap().contains("full"), "{:?}", scribe.trouble());
    match on_full {
        OnFull::Refuse => assert!(go(&scribe).unwrap_err().contains("full")),
        OnFull::Run => assert_eq!(go(&scribe), Ok(false)),
    }
    // As soon as there is space, everything that was promised is written.
    std::fs::remove_file(ballast).unwrap();
    while scribe.trouble().is_some() {
        assert!(Instant::now() < deadline, "it does not recover");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Those that waited for it come first.
    while go(&scribe) != Ok(true) {
        assert!(Instant::now() < deadline, "there is no room for another record");
        std::thread::sleep(Duration::from_millis(10));
    }
    scribe.stop();
    verified(dir);
    let all = Reader::open(dir).unwrap().after(0, 10_000).unwrap();
    let (notes, records): (Vec<_>, Vec<_>) = all.iter().partition(|record| record.status == "unrecorded");
    assert_eq!(records.len(), recorded, "{on_full:?}");
    let counts = notes.iter().map(|note| {
        let (count, words) = note.error.as_deref().unwrap().split_once(' ').unwrap();
        assert!(words.contains("not recorded"), "{words}");
        count.parse::<usize>().unwrap()
    });
    assert_eq!(counts.sum::<usize>(), unrecorded, "{on_full:?}");
    assert_eq!(unrecorded > 0, on_full == OnFull::Run);
}

#[test]
fn a_full_disk_refuses_or_is_noted_and_nothing_that_was_promised_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let inside = again("fills_its_disk", dir.path());
    // In a namespace of its own, so that no other process ever sees the file system.
    let script = "mount -t tmpfs -o size=3m belljar-test \"$BELLJAR_LEDGER_DIR\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.arg(inside.get_program()).args(inside.get_args()).env(DIR, dir.path());
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if failed.contains("unshare:") && std::env::var_os("CI").is_none() {
        eprintln!("skipped: this host has no user namespaces: {failed}");
        return;
    }
    assert!(output.status.success() && said.contains("done"), "{said}{failed}");
}

#[test]
fn a_place_that_is_not_used_can_be_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let scribe = scribe(dir.path(), false, OnFull::Refuse);
    for _ in 0..64 {
        assert_eq!(scribe.reserve(), Ok(Place::Held));
    }
    assert!(scribe.reserve().unwrap_err().why.contains("too many records"));
    scribe.release();
    assert_eq!(scribe.reserve(), Ok(Place::Held));
    scribe.stop();
    assert_eq!(verified(dir.path()), 0);
}
