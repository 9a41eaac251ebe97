//! Approvals, as two processes have them: two stores over one file.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use belljar_core::finding::{Finding, Position, Severity};
use belljar_ledger::approvals::{
    ApprovalError, ApprovalTerms, Approvals, FILE, Found, Listed, Own, Ruling, Settled, Submission, Submitted,
};
use belljar_wire::{ApprovalPolicy, ApprovalRequest, ApprovalStatus, Code, Problem};

const HOUR: Duration = Duration::from_secs(3600);
const TERMS: ApprovalTerms = ApprovalTerms { expire: HOUR, remember: HOUR, own: Own::Refused };

fn open(dir: &Path) -> Approvals {
    Approvals::open(dir, TERMS).unwrap()
}

fn run(caller: &str, code: &str) -> Submission {
    let mut digest = [0; 32];
    digest.iter_mut().zip(code.bytes()).for_each(|(slot, byte)| *slot = byte);
    Submission {
        digest,
        caller: caller.to_owned(),
        surface: "http".to_owned(),
        peer: Some("127.0.0.1".to_owned()),
        language: "python".to_owned(),
        code: code.as_bytes().to_vec(),
        policy: ApprovalPolicy { rule: "severity = high".to_owned(), reason: "it is severe".to_owned() },
        findings: vec![Finding {
            rule: "python.process.spawn".to_owned(),
            severity: Severity::High,
            message: "starts another program".to_owned(),
            start: Position { line: 1, column: 1 },
            end: Position { line: 1, column: 5 },
            excerpt: code.to_owned(),
            within: None,
        }],
        request: ApprovalRequest {
            network: "none".to_owned(),
            backend: "native".to_owned(),
            ..Default::default()
        },
    }
}

fn ruling(approve: bool, by: &str) -> Ruling {
    Ruling { approve, by: by.to_owned(), reason: Some("because".to_owned()), remember: None }
}

fn pending(submitted: Submitted) -> String {
    match submitted {
        Submitted::Pending { id, .. } => id,
        Submitted::Settled(settled) => panic!("{settled:?}"),
    }
}

fn settled(submitted: Submitted) -> Settled {
    match submitted {
        Submitted::Settled(settled) => settled,
        Submitted::Pending { id, .. } => panic!("{id} waits"),
    }
}

fn code_of(error: ApprovalError) -> Code {
    Problem::from(error).error.code
}

#[test]
fn what_was_asked_is_shown_and_a_decision_reaches_another_process() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (server, person) = (open(dir.path()), open(dir.path()));
    let id = pending(server.submit(&run("ci", "evil()"), now).unwrap());
    assert!(id.starts_with("apr_") && id.len() == 30, "{id}");
    let Found { approval, findings } = person.find(&id, now).unwrap().unwrap();
    assert_eq!((approval.status, approval.code.as_str()), (ApprovalStatus::Pending, "evil()"));
    assert_eq!((findings, approval.findings.len()), (run("ci", "evil()").findings, 1));
    assert_eq!(
        (approval.policy.reason.as_str(), approval.request.backend.as_str()),
        ("it is severe", "native")
    );
    assert!(approval.digest.starts_with("6576696c2829"), "{}", approval.digest);
    assert_eq!(server.take(&id, now).unwrap(), None);
    let version = server.version().unwrap();
    assert_eq!(server.version().unwrap(), version, "nothing has changed");
    let decided = person.decide(&id, &ruling(true, "boss"), now).unwrap().approval.decision.unwrap();
    assert_eq!((decided.approved, decided.by.as_str(), decided.remembered_until), (true, "boss", None));
    assert_ne!(server.version().unwrap(), version);
    assert_eq!(server.settled_among(std::slice::from_ref(&id), now).unwrap(), [id.as_str()]);
    let told = server.take(&id, now).unwrap().unwrap();
    assert_eq!((told.status, told.by.as_deref()), (ApprovalStatus::Approved, Some("boss")));
    assert_eq!(told.reason.as_deref(), Some("because"));
    // It was for this time.
    assert_ne!(pending(server.submit(&run("ci", "evil()"), now).unwrap()), id);
}

#[test]
fn of_two_who_decide_at_once_one_wins() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (server, deciders) = (open(dir.path()), [open(dir.path()), open(dir.path())]);
    for round in 0..20 {
        let id = pending(server.submit(&run("ci", &format!("round {round}")), now).unwrap());
        let (id, barrier) = (id.as_str(), Barrier::new(2));
        let decide = &|(at, store): (usize, &Approvals)| {
            barrier.wait();
            store.decide(id, &ruling(at == 0, &format!("decider {at}")), now)
        };
        let decided: Vec<_> = std::thread::scope(|scope| {
            let start = |one| scope.spawn(move || decide(one));
            let threads: Vec<_> = deciders.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let won: Vec<_> = decided.iter().filter_map(|decided| decided.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{decided:?}");
        let decision = won[0].approval.decision.clone().unwrap();
        let told = server.take(id, now).unwrap().unwrap();
        assert_eq!(told.by, Some(decision.by));
        assert_eq!(told.status == ApprovalStatus::Approved, decision.approved);
        let lost = decided.into_iter().find_map(Result::err).unwrap();
        assert!(lost.to_string().contains("'decider"), "{lost}");
        assert_eq!(code_of(lost), Code::Conflict);
    }
}

#[test]
fn a_decision_comes_before_the_end_or_not_at_all() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (server, person) = (open(dir.path()), open(dir.path()));
    let (before, after) = (now + HOUR - Duration::from_millis(1), now + HOUR);
    for round in 0..20 {
        let id = pending(server.submit(&run("ci", &format!("round {round}")), now).unwrap());
        let (id, barrier) = (id.as_str(), Barrier::new(2));
        let (told, decided) = std::thread::scope(|scope| {
            let person = scope.spawn(|| {
                barrier.wait();
                person.decide(id, &ruling(true, "boss"), before)
            });
            barrier.wait();
            (server.take(id, after).unwrap().unwrap(), person.join().unwrap())
        });
        match decided {
            Ok(_) => assert_eq!(told.status, ApprovalStatus::Approved),
            Err(error) => {
                assert_eq!(told.status, ApprovalStatus::Expired);
                assert_eq!(code_of(error), Code::Conflict);
            }
        }
    }
    let id = pending(server.submit(&run("ci", "late"), now).unwrap());
    let late = person.decide(&id, &ruling(true, "boss"), after).unwrap_err();
    assert_eq!(late.to_string(), "the approval was expired already");
    assert_eq!(person.find(&id, after).unwrap().unwrap().approval.status, ApprovalStatus::Expired);
    assert_eq!(server.take(&id, after).unwrap().unwrap().status, ApprovalStatus::Expired);
}

#[test]
fn a_decision_that_nobody_waited_for_holds_for_the_next_request() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let id = pending(open(dir.path()).submit(&run("ci", "a"), now).unwrap());
    // The server is gone.
    open(dir.path()).decide(&id, &ruling(true, "boss"), now).unwrap();
    let server = open(dir.path());
    // Another digest, and another caller, are another approval.
    assert_ne!(pending(server.submit(&run("ci", "b"), now).unwrap()), id);
    assert_ne!(pending(server.submit(&run("other", "a"), now).unwrap()), id);
    let told = settled(server.submit(&run("ci", "a"), now).unwrap());
    assert_eq!((told.id, told.status), (id.clone(), ApprovalStatus::Approved));
    assert_ne!(pending(server.submit(&run("ci", "a"), now).unwrap()), id, "once");
}

#[test]
fn a_decision_that_nobody_waited_for_expires() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let id = pending(store.submit(&run("ci", "a"), now).unwrap());
    store.decide(&id, &ruling(true, "boss"), now).unwrap();
    assert_ne!(pending(store.submit(&run("ci", "a"), now + HOUR).unwrap()), id);
}

#[test]
fn a_remembered_decision_holds_for_its_digest_its_caller_and_its_time() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    for (code, approve) in [("yes", true), ("no", false)] {
        let id = pending(store.submit(&run("ci", code), now).unwrap());
        let remember = Some(HOUR / 2);
        let ruling = Ruling { remember, ..ruling(approve, "boss") };
        assert!(
            store.decide(&id, &ruling, now).unwrap().approval.decision.unwrap().remembered_until.is_some()
        );
        for later in [Duration::ZERO, HOUR / 4] {
            let told = settled(store.submit(&run("ci", code), now + later).unwrap());
            assert_eq!((&told.id, told.status == ApprovalStatus::Approved), (&id, approve));
        }
        pending(store.submit(&run("other", code), now).unwrap());
        pending(store.submit(&run("ci", &format!("{code} changed")), now).unwrap());
        assert_ne!(pending(store.submit(&run("ci", code), now + HOUR / 2).unwrap()), id);
    }
    let id = pending(store.submit(&run("ci", "x"), now).unwrap());
    let longer = Ruling { remember: Some(HOUR * 2), ..ruling(true, "boss") };
    let refused = store.decide(&id, &longer, now).unwrap_err();
    assert!(refused.to_string().contains("3600 s"), "{refused}");
    assert_eq!(store.find(&id, now).unwrap().unwrap().approval.status, ApprovalStatus::Pending);
}

#[test]
fn nobody_decides_about_a_run_of_their_own_unless_that_is_allowed() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let strict = open(dir.path());
    let id = pending(strict.submit(&run("ci", "a"), now).unwrap());
    for approve in [true, false] {
        assert_eq!(code_of(strict.decide(&id, &ruling(approve, "ci"), now).unwrap_err()), Code::Forbidden);
    }
    let lenient = Approvals::open(dir.path(), ApprovalTerms { own: Own::Allowed, ..TERMS }).unwrap();
    assert!(lenient.decide(&id, &ruling(true, "ci"), now).is_ok());
    let other = pending(strict.submit(&run("other", "a"), now).unwrap());
    assert!(strict.decide(&other, &ruling(true, "ci"), now).is_ok());
}

#[test]
fn the_same_run_of_the_same_caller_waits_for_one_decision() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (one, other) = (open(dir.path()), open(dir.path()));
    let id = pending(one.submit(&run("ci", "a"), now).unwrap());
    assert_eq!(pending(other.submit(&run("ci", "a"), now).unwrap()), id);
    assert_eq!(one.find(&id, now).unwrap().unwrap().approval.requests, 2);
    // One of the two leaves: the other still waits. When that leaves, too, nobody is asked any more.
    one.leave(&id, true, now).unwrap();
    assert_eq!(other.take(&id, now).unwrap(), None);
    other.leave(&id, true, now).unwrap();
    assert_eq!(one.find(&id, now).unwrap().unwrap().approval.status, ApprovalStatus::Cancelled);
    let refused = one.decide(&id, &ruling(true, "boss"), now).unwrap_err();
    assert_eq!(
        (refused.to_string().as_str(), code_of(refused)),
        ("the approval was cancelled already", Code::Conflict)
    );
    // One that is left in place can still be decided.
    let id = pending(one.submit(&run("ci", "b"), now).unwrap());
    one.leave(&id, false, now).unwrap();
    assert!(one.decide(&id, &ruling(true, "boss"), now).is_ok());
    // Leaving after the decision changes nothing.
    one.leave(&id, true, now).unwrap();
    assert_eq!(settled(one.submit(&run("ci", "b"), now).unwrap()).status, ApprovalStatus::Approved);
}

#[test]
fn lists_go_from_new_to_old_by_pages_and_by_status() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let ids: Vec<_> = (0..5)
        .map(|at| {
            pending(store.submit(&run(if at < 4 { "ci" } else { "me" }, &format!("{at}")), now).unwrap())
        })
        .collect();
    store.decide(&ids[1], &ruling(false, "boss"), now).unwrap();
    let listed = |wanted: &Listed, limit, now| {
        store.list(wanted, limit, now).unwrap().into_iter().map(|one| one.id).collect::<Vec<_>>()
    };
    let with = |status| Listed { status: Some(status), ..Listed::default() };
    let newest: Vec<_> = ids.iter().rev().cloned().collect();
    assert_eq!(listed(&Listed::default(), 10, now), newest);
    assert_eq!(listed(&Listed::default(), 2, now), newest[..2]);
    assert_eq!(
        listed(&Listed { before: Some(newest[1].clone()), ..Listed::default() }, 2, now),
        newest[2..4]
    );
    assert_eq!(listed(&with(ApprovalStatus::Denied), 10, now), [ids[1].as_str()]);
    assert_eq!(listed(&with(ApprovalStatus::Pending), 10, now).len(), 4);
    assert_eq!(listed(&with(ApprovalStatus::Pending), 10, now + HOUR).len(), 0);
    assert_eq!(listed(&with(ApprovalStatus::Expired), 10, now + HOUR).len(), 4);
    assert_eq!(
        listed(&Listed { caller: Some("me".into()), ..Listed::default() }, 10, now),
        [ids[4].as_str()]
    );
}

#[test]
fn forged_ids_find_nothing() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let id = pending(store.submit(&run("ci", "a"), now).unwrap());
    for forged in
        ["", "%", "apr_", "' OR 1=1 --", &id.to_lowercase(), &id[..29], &format!("{id} "), &format!("{id}\0")]
    {
        assert_eq!(store.find(forged, now).unwrap(), None, "{forged:?}");
        assert_eq!(code_of(store.decide(forged, &ruling(true, "boss"), now).unwrap_err()), Code::NotFound);
    }
    assert!(store.find(&id, now).unwrap().is_some(), "the control");
}

#[test]
fn what_waits_is_bounded_for_each_caller_and_in_all() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    for caller in 0..8 {
        for at in 0..32 {
            pending(store.submit(&run(&format!("caller {caller}"), &format!("{at}")), now).unwrap());
        }
    }
    let own = store.submit(&run("caller 1", "more"), now).unwrap_err();
    assert!(own.to_string().contains("of this caller"), "{own}");
    let all = store.submit(&run("another", "more"), now).unwrap_err();
    assert_eq!((all.to_string().contains("of all callers"), code_of(all)), (true, Code::Busy));
    // One that waits already is no more.
    pending(store.submit(&run("caller 1", "1"), now).unwrap());
    pending(store.submit(&run("another", "more"), now + HOUR).unwrap());
    let large = Submission { code: vec![b'x'; (256 << 10) + 1], ..run("ci", "x") };
    assert_eq!(code_of(store.submit(&large, now + HOUR).unwrap_err()), Code::TooLarge);
    let mut names = run("ci", "names");
    names.request.args = vec!["x".repeat(1 << 20)];
    assert_eq!(code_of(store.submit(&names, now + HOUR).unwrap_err()), Code::TooLarge);
}

#[test]
fn old_ones_are_removed_and_asking_pushes_no_decision_out() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let decided = pending(store.submit(&run("ci", "decided"), now).unwrap());
    store.decide(&decided, &ruling(true, "boss"), now).unwrap();
    store.take(&decided, now).unwrap();
    for at in 0..150 {
        let id = pending(store.submit(&run("ci", &format!("{at}")), now).unwrap());
        store.leave(&id, true, now).unwrap();
    }
    let of = |status| Listed { status: Some(status), ..Listed::default() };
    assert_eq!(store.list(&of(ApprovalStatus::Cancelled), 1000, now).unwrap().len(), 101);
    assert!(store.find(&decided, now).unwrap().is_some());
    let month = Duration::from_secs(31 * 24 * 3600);
    pending(store.submit(&run("ci", "later"), now + month).unwrap());
    assert_eq!(store.list(&Listed::default(), 1000, now + month).unwrap().len(), 1);
}

#[test]
fn only_its_owner_can_read_the_file_and_a_foreign_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    drop(open(dir.path()));
    for beside in ["", "-wal", "-shm"] {
        let found = std::fs::metadata(format!("{}{beside}", path.display())).unwrap();
        assert_eq!(found.mode() & 0o777, 0o600, "{beside}");
    }
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("CREATE TRIGGER t AFTER INSERT ON approvals BEGIN DELETE FROM approvals; END").unwrap();
    assert!(matches!(Approvals::open(dir.path(), TERMS), Err(ApprovalError::Foreign)));
    db.execute_batch("DROP TRIGGER t").unwrap();
    drop(open(dir.path()));
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&path, other.path().join(FILE)).unwrap();
    assert!(Approvals::open(other.path(), TERMS).is_err());
    let garbage = tempfile::tempdir().unwrap();
    std::fs::write(garbage.path().join(FILE), "not a database, but long enough".repeat(50)).unwrap();
    assert!(Approvals::open(garbage.path(), TERMS).is_err());
}

#[test]
fn every_change_leaves_a_notice_which_one_process_gets() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (one, other) = (open(dir.path()), open(dir.path()));
    assert_eq!(one.notices_due().unwrap(), None);
    let id = pending(one.submit(&run("ci", "a"), now).unwrap());
    other.decide(&id, &ruling(true, "boss"), now).unwrap();
    let lease = now + Duration::from_secs(30);
    let first = one.next_notice(now, lease).unwrap().unwrap();
    assert_eq!(
        (first.event, first.attempts, first.approval.id.as_str()),
        (ApprovalStatus::Pending, 0, id.as_str())
    );
    let second = other.next_notice(now, lease).unwrap().unwrap();
    assert_eq!((second.event, second.approval.status), (ApprovalStatus::Approved, ApprovalStatus::Approved));
    assert_eq!(one.next_notice(now, lease).unwrap(), None);
    one.drop_notice(first.seq).unwrap();
    // The process that had the second one ended: another gets it.
    let again = one.next_notice(lease, lease + HOUR).unwrap().unwrap();
    assert_eq!((again.seq, again.attempts), (second.seq, 1));
    one.defer_notice(again.seq, now).unwrap();
    assert_eq!(one.next_notice(now, lease).unwrap().unwrap().attempts, 2);
    // What nobody sends is dropped.
    assert_eq!(one.next_notice(now + HOUR * 2, lease).unwrap(), None);
    assert_eq!(one.notices_due().unwrap(), None);
}

#[test]
fn a_remembered_decision_is_listed_and_can_be_revoked() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let (server, person) = (open(dir.path()), open(dir.path()));
    let id = pending(server.submit(&run("ci", "again()"), now).unwrap());
    let remembered = || {
        let wanted = Listed { remembered: true, ..Listed::default() };
        person.list(&wanted, 10, now).unwrap().into_iter().map(|approval| approval.id).collect::<Vec<_>>()
    };
    let revoke = |id: &str| person.revoke(id, "boss", Some("no more"), now);
    assert_eq!(code_of(revoke(&id).unwrap_err()), Code::Conflict, "nobody has decided");
    assert_eq!(code_of(revoke("apr_x").unwrap_err()), Code::NotFound);
    let ruling = Ruling { remember: Some(HOUR), ..ruling(true, "boss") };
    person.decide(&id, &ruling, now).unwrap();
    assert_eq!(remembered(), [id.as_str()]);
    for _ in 0..2 {
        assert_eq!(settled(server.submit(&run("ci", "again()"), now).unwrap()).id, id, "the control");
    }
    let Found { approval, .. } = revoke(&id).unwrap();
    let decision = approval.decision.unwrap();
    assert_eq!(decision.reason.as_deref(), Some("because; revoked by boss; no more"));
    assert_eq!((approval.status, decision.by.as_str()), (ApprovalStatus::Approved, "boss"));
    assert!(remembered().is_empty());
    assert_ne!(pending(server.submit(&run("ci", "again()"), now).unwrap()), id, "it is asked for again");
    assert_eq!(code_of(revoke(&id).unwrap_err()), Code::Conflict, "once");
}

#[test]
fn a_decision_that_nobody_was_told_can_be_revoked() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let ids = ["told()", "revoked()"].map(|code| {
        let id = pending(store.submit(&run("ci", code), now).unwrap());
        store.leave(&id, false, now).unwrap();
        store.decide(&id, &ruling(true, "boss"), now).unwrap();
        id
    });
    store.revoke(&ids[1], "boss", None, now).unwrap();
    assert_eq!(settled(store.submit(&run("ci", "told()"), now).unwrap()).id, ids[0], "the control");
    assert_ne!(pending(store.submit(&run("ci", "revoked()"), now).unwrap()), ids[1]);
}

#[test]
fn a_request_that_still_waits_is_not_told_a_decision_that_was_revoked() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let ids = ["told()", "revoked()"].map(|code| {
        let id = pending(store.submit(&run("ci", code), now).unwrap());
        store.decide(&id, &ruling(true, "boss"), now).unwrap();
        id
    });
    store.revoke(&ids[1], "boss", None, now).unwrap();
    let told = |id: &str| store.take(id, now).unwrap().unwrap();
    assert_eq!(told(&ids[0]).status, ApprovalStatus::Approved, "the control");
    let revoked = told(&ids[1]);
    assert_eq!(revoked.status, ApprovalStatus::Cancelled);
    assert_eq!(revoked.reason.as_deref(), Some("because; revoked by boss"));
}

#[test]
fn terms_that_are_replaced_hold_at_once() {
    let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
    let store = open(dir.path());
    let decide = |own| {
        store.replace_terms(ApprovalTerms { own, ..store.terms() });
        let id = pending(store.submit(&run("ci", &format!("{own:?}()")), now).unwrap());
        store.decide(&id, &ruling(true, "ci"), now).map(drop).map_err(code_of)
    };
    assert_eq!(decide(Own::Allowed), Ok(()), "the control");
    assert_eq!(decide(Own::Refused), Err(Code::Forbidden));
}
