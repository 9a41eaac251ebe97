//! What the ledger promises: it can only be added to, and whoever changes the file is found out.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::path::Path;
use std::time::{Duration, SystemTime};

use belljar_core::outcome::{Outcome, Stage, Start, Usage};
use belljar_core::request::Code;
use belljar_engine::{Account, Asked, Excerpt, Fate, Origin, Ran, WayIn};
use belljar_ledger::schema::{HASHED, SEALS};
use belljar_ledger::{
    Book, Entry, FILE, HEAD_FILE, Key, LedgerError, OnFull, Query, Reader, Redactor, Retention,
    ScribeSettings, Sync, Written,
};
use belljar_wire::{AuditFlawKind, AuditVerdict};
use ed25519_dalek::{Signer, SigningKey};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};

fn account(number: usize, code: &str) -> Account {
    let ran = Ran {
        outcome: Outcome::Exited(0),
        stdout: Excerpt { head: format!("output {number}\n").into_bytes(), ..Excerpt::default() },
        stderr: Excerpt::default(),
        usage: Usage::default(),
        compile: None,
        stage: Stage::Run,
        start: Start::Warm,
        runtime: "CPython 3".to_owned(),
        image: None,
        network: "none".to_owned(),
        network_use: None,
        kept: Vec::new(),
        waived: Vec::new(),
        produced: Vec::new(),
    };
    let origin = Origin {
        caller: if number.is_multiple_of(2) { "even".into() } else { "odd".into() },
        surface: WayIn::Http,
        peer: Some([127, 0, 0, 1].into()),
        cells: None,
    };
    let asked = Asked {
        language: "python".to_owned(),
        code: Some(Code::parse(code.as_bytes().to_vec(), None).unwrap()),
        ..Asked::default()
    };
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
    Account {
        id: format!("run_{number}"),
        at,
        origin,
        asked,
        findings: Vec::new(),
        decision: None,
        fate: Fate::Ran(Box::new(ran)),
    }
}

fn entry(number: usize) -> Entry {
    let redactor = Redactor::new(&[]).unwrap();
    Entry::new(&account(number, &format!("print('number_{number}')")), &redactor)
}

fn open(dir: &Path) -> Result<Book, LedgerError> {
    Book::open(dir, Key::find_or_make(dir)?, Sync::Later)
}

/// A ledger with so many records, each written with the next few, and closed.
fn ledger(records: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut book = open(dir.path()).unwrap();
    let entries: Vec<_> = (1..=records).map(entry).collect();
    entries.chunks(3).for_each(|batch| book.append(batch).unwrap());
    book.sync().unwrap();
    drop(book);
    // All of it in one file, so that a test can copy it.
    let db = Connection::open(dir.path().join(FILE)).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    dir
}

fn verdict(dir: &Path) -> AuditVerdict {
    Reader::open(dir).unwrap().verify(&Key::find(dir).unwrap().public()).unwrap()
}

/// The first flaw: its kind and its record.
fn flaw(dir: &Path) -> (AuditFlawKind, u64) {
    let verdict = verdict(dir);
    assert!(!verdict.ok, "nothing was found");
    verdict.flaw.map(|flaw| (flaw.kind, flaw.seq)).unwrap()
}

/// The database as one who can write it has it: without the triggers, which are put back afterwards.
fn tamper(dir: &Path, change: impl FnOnce(&Connection)) {
    let db = Connection::open(dir.join(FILE)).unwrap();
    db.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let triggers = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'";
    let triggers: Vec<(String, String)> = db
        .prepare(triggers)
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    triggers.iter().for_each(|(name, _)| db.execute_batch(&format!("DROP TRIGGER {name}")).unwrap());
    change(&db);
    triggers.iter().for_each(|(_, sql)| db.execute_batch(sql).unwrap());
}

#[test]
fn a_ledger_that_nobody_touched_is_whole() {
    let dir = ledger(10);
    let verdict = verdict(dir.path());
    assert_eq!((verdict.ok, verdict.records, verdict.first, verdict.last), (true, 10, Some(1), Some(10)));
    let mut book = open(dir.path()).unwrap();
    book.append(&[entry(11)]).unwrap();
    assert!(self::verdict(dir.path()).ok, "also before the head has it");
    assert_eq!(Reader::open(dir.path()).unwrap().last().unwrap(), 11);
}

#[test]
fn the_columns_of_the_table_are_those_that_are_hashed_and_the_seals() {
    let dir = ledger(1);
    let db = Connection::open(dir.path().join(FILE)).unwrap();
    let mut statement = db.prepare("SELECT name FROM pragma_table_info('records')").unwrap();
    let found: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let known: Vec<_> = HASHED.iter().chain(&SEALS).map(|(name, _)| *name).collect();
    assert_eq!(found, known);
}

#[test]
fn a_change_of_any_column_of_any_record_is_found() {
    let dir = ledger(7);
    let columns: Vec<_> = HASHED.iter().chain(&SEALS).map(|(name, kind)| (*name, *kind)).collect();
    for seq in [1, 4, 7] {
        for (column, kind) in &columns {
            let copy = copy_of(dir.path());
            let other = match *column {
                "seq" => "seq + 1000",
                "id" => "'run_forged'",
                _ if kind.starts_with("INTEGER") => "coalesce(-1 - \"C\", 5)",
                _ if kind.starts_with("BLOB") => "randomblob(length(\"C\"))",
                _ => "coalesce(\"C\", '') || 'x'",
            };
            let change =
                format!("UPDATE records SET \"{column}\" = {} WHERE seq = {seq}", other.replace('C', column));
            tamper(copy.path(), |db| assert_eq!(db.execute(&change, []).unwrap(), 1));
            let expected = match (*column, seq) {
                ("seq", 7) => (AuditFlawKind::Removed, 7),
                ("seq", _) => (AuditFlawKind::Removed, seq),
                _ => (AuditFlawKind::Changed, seq),
            };
            assert_eq!(flaw(copy.path()), expected, "{column} of {seq}");
        }
    }
    assert!(verdict(dir.path()).ok, "the control");
}

/// The type of a value is a part of it: a number as text, or a text as bytes, would be read differently.
#[test]
fn a_change_of_type_is_found() {
    let dir = ledger(2);
    for change in ["code = CAST(code AS BLOB)", "peer = ''", "image = ''", "network = NULL"] {
        let copy = copy_of(dir.path());
        tamper(copy.path(), |db| {
            assert_eq!(db.execute(&format!("UPDATE records SET {change} WHERE seq = 1"), []).unwrap(), 1);
        });
        assert_eq!(flaw(copy.path()), (AuditFlawKind::Changed, 1), "{change}");
    }
}

#[test]
fn removed_reordered_and_inserted_records_are_found_by_the_first() {
    let cases: [(&str, &str, (AuditFlawKind, u64)); 7] = [
        ("the first", "DELETE FROM records WHERE seq = 1", (AuditFlawKind::Removed, 1)),
        ("some", "DELETE FROM records WHERE seq IN (4, 5)", (AuditFlawKind::Removed, 4)),
        ("the last", "DELETE FROM records WHERE seq = 9", (AuditFlawKind::Cut, 9)),
        ("the tail", "DELETE FROM records WHERE seq > 6", (AuditFlawKind::Cut, 7)),
        ("all", "DELETE FROM records", (AuditFlawKind::Cut, 1)),
        (
            "two in the other order",
            "UPDATE records SET seq = -3 WHERE seq = 3; UPDATE records SET seq = 3 WHERE seq = 5; \
             UPDATE records SET seq = 5 WHERE seq = -3",
            (AuditFlawKind::Changed, 3),
        ),
        (
            "one that is renumbered away",
            "DELETE FROM records WHERE seq = 4; UPDATE records SET seq = seq - 1 WHERE seq > 4",
            (AuditFlawKind::Changed, 4),
        ),
    ];
    for (name, change, expected) in cases {
        let dir = ledger(9);
        tamper(dir.path(), |db| db.execute_batch(change).unwrap());
        assert_eq!(flaw(dir.path()), expected, "{name}");
    }
}

/// Who knows how the chain is made, but does not have the key, can write records that are chained perfectly.
#[test]
fn a_chain_that_was_rewritten_with_another_key_is_found_at_its_first_record() {
    for first in [1, 5, 9] {
        let dir = ledger(9);
        tamper(dir.path(), |db| rewrite(db, first, &SigningKey::from_bytes(&[7; 32])));
        assert_eq!(flaw(dir.path()), (AuditFlawKind::Changed, u64::try_from(first).unwrap()));
        assert!(open(dir.path()).is_err(), "nothing is added to it");
    }
    // The control: with the key itself, only what is written outside the database tells.
    let dir = ledger(9);
    let seed = std::fs::read_to_string(dir.path().join("ledger.key")).unwrap();
    let byte = |at: usize| u8::from_str_radix(&seed[2 * at..2 * at + 2], 16).unwrap();
    let key = SigningKey::from_bytes(&std::array::from_fn(byte));
    tamper(dir.path(), |db| rewrite(db, 5, &key));
    assert_eq!(flaw(dir.path()), (AuditFlawKind::Changed, 9));
}

/// Changes the code of all records from this one on, and chains them anew, as the format says, with another key.
fn rewrite(db: &Connection, first: i64, key: &SigningKey) {
    let columns: Vec<_> = HASHED.iter().map(|(name, _)| *name).collect();
    let select = format!("SELECT {} FROM records WHERE seq = ?1", columns.join(", "));
    let mut link: Option<Vec<u8>> = None;
    for seq in first..=9 {
        db.execute("UPDATE records SET code = 'forged' WHERE seq = ?1", [seq]).unwrap();
        if let Some(link) = link {
            db.execute("UPDATE records SET previous = ?2 WHERE seq = ?1", params![seq, link]).unwrap();
        }
        let hash = db.query_row(&select, [seq], |row| Ok(hash(row))).unwrap();
        let signed = [b"belljar ledger record 1 signed\n".as_slice(), &hash].concat();
        let signature = key.sign(&signed).to_bytes();
        let seal = "UPDATE records SET hash = ?2, signature = ?3 WHERE seq = ?1";
        db.execute(seal, params![seq, hash, signature]).unwrap();
        link = Some(
            Sha256::digest([b"belljar ledger link 1\n".as_slice(), &hash, &signature].concat()).to_vec(),
        );
    }
}

/// The encoding of format 1, written down once more: a ledger of an earlier version must stay verifiable.
fn hash(row: &rusqlite::Row<'_>) -> [u8; 32] {
    let mut bytes = b"belljar ledger record 1\n".to_vec();
    for at in 0..HASHED.len() {
        let (kind, value) = match row.get_ref(at).unwrap() {
            ValueRef::Null => (0, None),
            ValueRef::Integer(number) => (1, Some(number.to_le_bytes().to_vec())),
            ValueRef::Real(number) => (2, Some(number.to_bits().to_le_bytes().to_vec())),
            ValueRef::Text(text) => (3, Some(text.to_vec())),
            ValueRef::Blob(blob) => (4, Some(blob.to_vec())),
        };
        bytes.push(kind);
        if let Some(value) = value {
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value);
        }
    }
    Sha256::digest(&bytes).into()
}

#[test]
fn records_that_somebody_appended_are_found() {
    let dir = ledger(4);
    tamper(dir.path(), |db| {
        let columns: Vec<_> = HASHED.iter().chain(&SEALS).map(|(name, _)| *name).collect();
        let same = columns.join(", ").replacen("seq", "seq + 1", 1).replacen("id", "'run_x'", 1);
        db.execute(&format!("INSERT INTO records SELECT {same} FROM records WHERE seq = 4"), []).unwrap();
    });
    assert_eq!(flaw(dir.path()), (AuditFlawKind::Changed, 5));
    assert!(open(dir.path()).unwrap_err().with_causes().contains("record 5 was changed or inserted"));
}

#[test]
fn the_head_cannot_be_removed_shortened_or_forged() {
    let dir = ledger(4);
    let head = dir.path().join(HEAD_FILE);
    let whole = std::fs::read(&head).unwrap();
    for wrong in [None, Some(vec![]), Some(vec![1; 256]), Some(whole.iter().map(|byte| byte ^ 1).collect())] {
        match wrong {
            None => std::fs::remove_file(&head).unwrap(),
            Some(bytes) => std::fs::write(&head, bytes).unwrap(),
        }
        assert_eq!(flaw(dir.path()).0, AuditFlawKind::Head);
        assert!(matches!(open(dir.path()).unwrap_err(), LedgerError::Tampered { .. }));
    }
    std::fs::write(&head, whole).unwrap();
    assert!(verdict(dir.path()).ok, "the control");
}

#[test]
fn an_empty_database_in_place_of_the_ledger_is_found() {
    let (dir, empty) = (ledger(4), ledger(0));
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(dir.path().join(name));
    }
    std::fs::copy(empty.path().join(FILE), dir.path().join(FILE)).unwrap();
    assert_eq!(flaw(dir.path()), (AuditFlawKind::Cut, 1));
    let refused = open(dir.path()).unwrap_err().with_causes();
    assert!(refused.contains("records 1 to 4 are missing"), "{refused}");
}

#[test]
fn records_can_only_be_added() {
    let dir = ledger(3);
    let db = Connection::open(dir.path().join(FILE)).unwrap();
    for change in ["UPDATE records SET code = ''", "DELETE FROM records", "DELETE FROM records WHERE seq = 1"]
    {
        let refused = db.execute(change, []).unwrap_err().to_string();
        assert!(refused.contains("can only be added to"), "{refused}");
    }
    assert!(verdict(dir.path()).ok);
}

#[test]
fn the_tables_must_be_those_of_a_ledger() {
    let changes = [
        "DROP TRIGGER records_stay",
        "CREATE TABLE more (x)",
        "ALTER TABLE records ADD COLUMN secret TEXT",
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM meta; END",
        "DROP INDEX times",
        "UPDATE meta SET value = 1 WHERE name = 'format'",
        "CREATE VIEW v AS SELECT 1",
    ];
    for change in changes {
        let dir = ledger(3);
        Connection::open(dir.path().join(FILE)).unwrap().execute_batch(change).unwrap();
        assert_eq!(flaw(dir.path()).0, AuditFlawKind::Schema, "{change}");
        assert!(matches!(open(dir.path()).unwrap_err(), LedgerError::Tampered { .. }), "{change}");
    }
}

#[test]
fn what_is_pruned_is_a_prefix_and_the_rest_can_be_verified() {
    let dir = ledger(20);
    let mut book = open(dir.path()).unwrap();
    let none = Retention { age: Some(Duration::from_secs(3600)), bytes: Some(1 << 30) };
    assert_eq!(book.prune(none, SystemTime::now()).unwrap(), 0, "the control");
    let later = SystemTime::now() + Duration::from_secs(7200);
    assert_eq!(book.prune(none, later).unwrap(), 20);
    let empty = verdict(dir.path());
    assert_eq!((empty.ok, empty.records, empty.pruned_through), (true, 0, 20));
    book.append(&[entry(21), entry(22)]).unwrap();
    book.sync().unwrap();
    let verdict = verdict(dir.path());
    assert_eq!((verdict.ok, verdict.first, verdict.last), (true, Some(21), Some(22)));
    assert!(open(dir.path()).is_ok());
    drop(book);
    let copy = copy_of(dir.path());
    tamper(copy.path(), |db| assert_eq!(db.execute("UPDATE anchors SET through = 19", []).unwrap(), 1));
    assert_eq!(flaw(copy.path()).0, AuditFlawKind::Anchor);
    tamper(dir.path(), |db| assert_eq!(db.execute("DELETE FROM anchors", []).unwrap(), 1));
    assert_eq!(flaw(dir.path()), (AuditFlawKind::Removed, 1));
}

#[test]
fn a_ledger_that_is_too_large_loses_its_oldest_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = open(dir.path()).unwrap();
    let redactor = Redactor::new(&[]).unwrap();
    let large: Vec<_> =
        (1..=200).map(|number| Entry::new(&account(number, &"x = 1\n".repeat(2000)), &redactor)).collect();
    book.append(&large).unwrap();
    let limit = 1 << 20;
    let pruned = book.prune(Retention { age: None, bytes: Some(limit) }, SystemTime::now()).unwrap();
    assert!((100..200).contains(&pruned), "{pruned}");
    book.sync().unwrap();
    drop(book);
    let verdict = verdict(dir.path());
    assert_eq!((verdict.ok, verdict.first, verdict.last), (true, Some(pruned + 1), Some(200)));
    let size = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
    assert!(size <= limit, "the space was given back: {size}");
    let mut reader = Reader::open(dir.path()).unwrap();
    assert!(reader.find("run_1").unwrap().is_none() && reader.find("run_200").unwrap().is_some());
}

#[test]
fn records_are_found_by_what_they_are() {
    let dir = ledger(30);
    let mut reader = Reader::open(dir.path()).unwrap();
    let mut found = |query: Query| -> Vec<u64> {
        reader.search(&query, 5).unwrap().iter().map(|record| record.seq).collect()
    };
    assert_eq!(found(Query::default()), [30, 29, 28, 27, 26]);
    assert_eq!(found(Query { before: Some(3), ..Query::default() }), [2, 1]);
    assert_eq!(found(Query { caller: Some("odd".into()), ..Query::default() }), [29, 27, 25, 23, 21]);
    assert_eq!(found(Query { language: Some("ruby".into()), ..Query::default() }), [0; 0]);
    assert_eq!(found(Query { status: Some("exited".into()), before: Some(2), ..Query::default() }), [1]);
    assert_eq!(found(Query { from: Some(5000), to: Some(7000), ..Query::default() }), [6, 5]);
    let words = |words: &str| Query { words: Some(words.into()), ..Query::default() };
    assert_eq!(found(words("number_7")), [7]);
    assert_eq!(found(words("print number_1")), [19, 18, 17, 16, 15]);
    assert_eq!(found(words("print('number_12')")), [12]);
    assert_eq!(found(words("print nothing")), [0; 0]);
    assert_eq!(found(words("\" OR 1=1 --")), [0; 0], "the words are no syntax");
    assert_eq!(found(Query { caller: Some("even".into()), ..words("output") }), [30, 28, 26, 24, 22]);
    assert_eq!(found(Query { caller: Some("nobody".into()), ..words("output") }), [0; 0]);
    let odd = Query { caller: Some("odd".into()), status: Some("exited".into()), ..Query::default() };
    assert_eq!(found(Query { before: Some(4), ..odd.clone() }), [3, 1]);
    assert_eq!(found(Query { status: Some("denied".into()), ..odd.clone() }), [0; 0]);
    assert_eq!(found(Query { from: Some(5000), to: Some(8000), ..odd.clone() }), [7, 5]);
    assert_eq!(found(Query { words: Some("number_5".into()), to: Some(8000), ..odd }), [5]);
    for empty in
        [Query { from: Some(31_000), ..words("output") }, Query { to: Some(1000), ..words("output") }]
    {
        assert_eq!(found(empty), [0; 0]);
    }
    assert_eq!(found(words("o")), [0; 0], "a single letter is a word of its own");
    let record = reader.find("run_7").unwrap().unwrap();
    assert_eq!((record.seq, record.code.as_deref()), (7, Some("print('number_7')")));
    assert_eq!(reader.find("7").unwrap().unwrap(), record);
    assert_eq!(record.peer.as_deref(), Some("127.0.0.1"));
    assert_eq!(reader.after(28, 10).unwrap().len(), 2);
}

/// Who opens the ledger of somebody else gets an error or text, whatever is in the file.
#[test]
fn a_database_that_is_none_is_an_error_and_no_more() {
    let dir = ledger(50);
    let whole = std::fs::read(dir.path().join(FILE)).unwrap();
    let key = Key::find(dir.path()).unwrap().public();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(whole.len() / 97) {
        let mut damaged = whole.clone();
        let end = (at + 64).min(damaged.len());
        damaged[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let copy = tempfile::tempdir().unwrap();
        std::fs::write(copy.path().join(FILE), &damaged).unwrap();
        std::fs::copy(dir.path().join(HEAD_FILE), copy.path().join(HEAD_FILE)).unwrap();
        let Ok(mut reader) = Reader::open(copy.path()) else { continue };
        let _ = reader.search(&Query { words: Some("print".into()), ..Query::default() }, 10);
        let _ = reader.after(0, 100);
        refused += usize::from(!reader.verify(&key).is_ok_and(|verdict| verdict.ok));
    }
    assert!(refused > 20, "only {refused} of the damages were found");
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(FILE)).unwrap();
    assert!(Reader::open(dir.path()).is_err(), "a link is not followed");
}

/// Root is not to write what a server that gave up root's rights may have prepared for it.
#[test]
fn the_ledger_of_another_user_is_not_written_to() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = ledger(2);
    let settings = || ScribeSettings {
        durable: false,
        on_full: OnFull::Refuse,
        retention: Retention::default(),
        redactor: Redactor::new(&[]).unwrap(),
        places: 1,
    };
    assert!(Written::open(dir.path(), settings()).is_ok(), "the control");
    let path = dir.path().join(FILE);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o660)).unwrap();
    let refused = Written::open(dir.path(), settings()).unwrap_err().with_causes();
    assert!(refused.contains("servers without root's rights write to it"), "{refused}");
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    let refused = Written::open(dir.path(), settings()).unwrap_err().with_causes();
    assert!(refused.contains("belongs to the user 12345"), "{refused}");
    assert!(verdict(dir.path()).ok, "it can be read");
}

#[test]
fn several_processes_may_write() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let dir = dir.path();
            scope.spawn(move || {
                let mut book = open(dir).unwrap();
                for number in 0..25 {
                    book.append(&[entry(writer * 100 + number)]).unwrap();
                    book.sync().unwrap();
                }
            });
        }
    });
    let verdict = verdict(dir.path());
    assert_eq!((verdict.ok, verdict.records), (true, 100));
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

#[test]
fn a_record_of_the_same_run_cannot_be_written_twice() {
    let dir = ledger(1);
    let mut book = open(dir.path()).unwrap();
    assert!(book.append(&[entry(2), entry(1)]).is_err());
    let count: i64 = Connection::open(dir.path().join(FILE))
        .unwrap()
        .query_row("SELECT count(*) FROM records", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 1, "all or none");
}
