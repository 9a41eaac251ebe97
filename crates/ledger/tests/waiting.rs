//! Requests that wait for a decision which another process writes.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use belljar_core::policy::{Action, Decision};
use belljar_core::request::BackendName;
use belljar_engine::{Answer, Approver, Ask, Origin, Pending, Verdict};
use belljar_ledger::approvals::{Abandoned, ApprovalTerms, Approvals, Own, Ruling, Waiting};
use belljar_wire::{ApprovalStatus, Local, RunRequest};
use tokio::runtime::{Builder, Runtime};

const TERMS: ApprovalTerms =
    ApprovalTerms { expire: Duration::from_secs(3600), remember: Duration::from_secs(60), own: Own::Refused };
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

fn ask(code: &str) -> Ask {
    let request = RunRequest { language: "python".into(), code: code.into(), ..RunRequest::default() };
    let request = request.parse(Local::default()).unwrap();
    let decision = Decision {
        action: Action::Approve,
        rule: "default".into(),
        reason: "somebody has to".into(),
        by: "policy".into(),
        approval_id: None,
    };
    let origin = Origin { caller: "ci".into(), ..Origin::default() };
    Ask::new(&origin, &request, BackendName::Native, &[], &decision)
}

fn pending(waiting: &Waiting, code: &str) -> Pending {
    match waiting.ask(ask(code)).unwrap() {
        Answer::Pending(pending) => pending,
        Answer::Decided(verdict) => panic!("{verdict:?}"),
    }
}

fn told(decided: impl Future<Output = Verdict>) -> Verdict {
    threads().block_on(async { tokio::time::timeout(PATIENCE, decided).await.unwrap() })
}

fn ruling(approve: bool) -> Ruling {
    Ruling { approve, by: "boss".into(), reason: None, remember: None }
}

fn status(dir: &Path, id: &str) -> ApprovalStatus {
    let store = Approvals::open(dir, TERMS).unwrap();
    store.find(id, SystemTime::now()).unwrap().unwrap().approval.status
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_that_wait_are_told_what_another_process_decided() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = Waiting::start(dir.path(), TERMS, Abandoned::Cancel).unwrap();
    let (one, same, other) = (pending(&waiting, "1"), pending(&waiting, "1"), pending(&waiting, "2"));
    assert_eq!(one.approval_id, same.approval_id);
    assert_ne!(one.approval_id, other.approval_id, "other code is another approval");
    let person = Approvals::open(dir.path(), TERMS).unwrap();
    person.decide(&one.approval_id, &ruling(true), SystemTime::now()).unwrap();
    for decided in [one.decided, same.decided] {
        let verdict = told(decided);
        assert_eq!((verdict.approved, verdict.by.as_str()), (true, "boss"));
        assert_eq!(verdict.approval_id.as_ref(), Some(&one.approval_id));
    }
    person.decide(&other.approval_id, &ruling(false), SystemTime::now()).unwrap();
    assert!(!told(other.decided).approved);
    // It was for this time.
    assert_ne!(pending(&waiting, "1").approval_id, one.approval_id);
}

#[test]
fn what_nobody_decides_is_denied_when_it_expires() {
    let dir = tempfile::tempdir().unwrap();
    let terms = ApprovalTerms { expire: Duration::from_secs(1), ..TERMS };
    let waiting = Waiting::start(dir.path(), terms, Abandoned::Cancel).unwrap();
    let asked = pending(&waiting, "1");
    let verdict = told(asked.decided);
    assert_eq!((verdict.approved, verdict.by.as_str()), (false, "nobody"));
    assert!(verdict.reason.unwrap().contains("nobody decided within 1 s"));
    assert_eq!(status(dir.path(), &asked.approval_id), ApprovalStatus::Expired);
}

#[test]
fn a_request_that_goes_away_withdraws_its_question_unless_another_waits() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = Waiting::start(dir.path(), TERMS, Abandoned::Cancel).unwrap();
    let (one, same) = (pending(&waiting, "1"), pending(&waiting, "1"));
    drop(one.decided);
    drop(pending(&waiting, "2").decided);
    let other = Approvals::open(dir.path(), TERMS).unwrap();
    eventually("the second one is withdrawn", || {
        let all = other.list(&Default::default(), 10, SystemTime::now()).unwrap();
        all.iter().any(|approval| approval.status == ApprovalStatus::Cancelled)
    });
    assert_eq!(status(dir.path(), &same.approval_id), ApprovalStatus::Pending);
    drop(same.decided);
    eventually("the first one is withdrawn", || {
        status(dir.path(), &one.approval_id) == ApprovalStatus::Cancelled
    });
}

#[test]
fn what_is_left_when_the_process_ends_can_be_decided_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = Waiting::start(dir.path(), TERMS, Abandoned::Cancel).unwrap();
    waiting.keep_what_is_left();
    let asked = pending(&waiting, "1");
    drop(asked.decided);
    drop(waiting);
    let person = Approvals::open(dir.path(), TERMS).unwrap();
    person.decide(&asked.approval_id, &ruling(true), SystemTime::now()).unwrap();
    let next = Waiting::start(dir.path(), TERMS, Abandoned::Cancel).unwrap();
    // On a thread of a runtime, as a server asks.
    let answer = threads().block_on(async { next.ask(ask("1")).unwrap() });
    let Answer::Decided(verdict) = answer else { panic!("{answer:?}") };
    assert_eq!((verdict.approved, verdict.approval_id), (true, Some(asked.approval_id)));
    assert!(matches!(next.ask(ask("1 ")).unwrap(), Answer::Pending(_)), "changed code");
}

#[test]
fn whoever_waits_when_nobody_watches_any_more_is_not_approved() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = Waiting::start(dir.path(), TERMS, Abandoned::Keep).unwrap();
    let asked = pending(&waiting, "1");
    drop(waiting);
    assert!(!told(asked.decided).approved);
}
