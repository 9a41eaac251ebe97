//! Writes records: several of them in one transaction, each chained to the one before.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::chain::{self, Hash, signed_anchor, signed_record};
use crate::entry::{Entry, millis};
use crate::error::{Doing, LedgerError, file};
use crate::head::{Head, HeadFile, Said};
use crate::key::Key;
use crate::schema::{self, FORMAT, HASHED, SEALS};
use crate::{FILE, verify};

/// How long to wait for another process that writes.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// How often a ledger that seems to be changed is looked at again.
const RECHECKS: usize = 3;
/// How many records are pruned in one transaction.
const PRUNED_AT_ONCE: u64 = 5000;

/// When a record counts as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// When it is on disk.
    Always,
    /// When the system has it. It is brought to the disk with [`Book::sync`].
    Later,
}

/// How much is kept: whichever is reached first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Records that are older are pruned.
    pub age: Option<Duration>,
    /// If the database is larger, its oldest records are pruned.
    pub bytes: Option<u64>,
}

/// A ledger that is written to.
#[derive(Debug)]
pub struct Book {
    db: Connection,
    key: Key,
    head: HeadFile,
    /// The file in which SQLite has what is not in the database yet.
    wal: PathBuf,
    /// The last record that was written here.
    last: Option<Head>,
}

impl Book {
    /// The ledger of this directory, which is made if there is none. The directory is the one that has the key.
    ///
    /// # Errors
    /// That it cannot be opened, or is not as it was left: then nothing is written to it, so that the evidence stays.
    pub fn open(dir: &Path, key: Key, sync: Sync) -> Result<Book, LedgerError> {
        let dir = dir.canonicalize().map_err(file("find", dir))?;
        let path = dir.join(FILE);
        make_private(&path).map_err(file("make", &path))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NOFOLLOW
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db = Connection::open_with_flags(&path, flags).doing("open the ledger")?;
        configure(&db, sync).doing("set the ledger up")?;
        make_tables(&mut db).doing("make the tables of the ledger")?;
        let (head, wal) = (HeadFile::open(&dir)?, dir.join("ledger.db-wal"));
        let book = Book { db, key, head, wal, last: None };
        // Another process may be writing: its records come between the two looks at the head and at the records.
        let mut checked = book.refuse_what_was_changed();
        for _ in 0..RECHECKS {
            if checked.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            checked = book.refuse_what_was_changed();
        }
        checked.map(|()| book)
    }

    /// Looks at the end only: `verify` looks at all of it.
    fn refuse_what_was_changed(&self) -> Result<(), LedgerError> {
        let tampered = |why: String| Err(LedgerError::Tampered { why });
        let public = self.key.public();
        if let Some(flaw) = verify::schema_flaw(&self.db)? {
            return tampered(flaw.message);
        }
        let said = self.head.read(&public)?;
        let end = verify::last(&self.db, &public)?;
        match (said, end) {
            (_, verify::End::Forged(seq)) => tampered(format!("record {seq} was changed or inserted")),
            (Said::Nonsense, _) => tampered("ledger.head was changed, or belongs to another key".to_owned()),
            (Said::Nothing, verify::End::Record(last)) if last.seq > 0 => {
                tampered("ledger.head is missing".to_owned())
            }
            (Said::Head(head), verify::End::Record(last)) if head.seq > last.seq => {
                tampered(format!("records {} to {} are missing at its end", last.seq + 1, head.seq))
            }
            // A new ledger says so at once: from now on, a missing head was removed.
            (Said::Nothing, verify::End::Record(last)) => self.head.advance(&self.key, last),
            (Said::Head(_), verify::End::Record(_)) => Ok(()),
        }
    }

    /// Adds records, all of them or none.
    ///
    /// # Errors
    /// Most likely, the disk is full.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), LedgerError> {
        let doing = "write to the ledger";
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        let mut last = last_of(&transaction).doing(doing)?;
        let recorded = millis(SystemTime::now());
        for entry in entries {
            last = insert(&transaction, &self.key, entry, last, recorded).doing(doing)?;
        }
        transaction.commit().doing(doing)?;
        self.last = Some(last);
        Ok(())
    }

    /// Says outside the database how many records there are. They must be on disk, which [`sync`](Book::sync) takes care of.
    ///
    /// # Errors
    /// That the file cannot be written.
    pub fn advance_head(&self) -> Result<(), LedgerError> {
        self.last.map_or(Ok(()), |last| self.head.advance(&self.key, last))
    }

    /// Brings everything to the disk.
    ///
    /// # Errors
    /// That the disk does not take it.
    pub fn sync(&self) -> Result<(), LedgerError> {
        match File::open(&self.wal) {
            Ok(wal) => wal.sync_data().map_err(file("sync", &self.wal))?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(LedgerError::File { doing: "sync", path: self.wal.clone(), source }),
        }
        self.advance_head()?;
        self.head.sync()
    }

    /// Removes what need not be kept any longer, from the oldest on, and leaves a signed note of what was removed. Returns
    /// how many records it removed.
    ///
    /// # Errors
    /// As [`append`](Book::append).
    pub fn prune(&mut self, retention: Retention, now: SystemTime) -> Result<u64, LedgerError> {
        let mut pruned = 0;
        loop {
            let doing = "prune the ledger";
            let transaction =
                self.db.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
            let Some(through) = expendable(&transaction, retention, now).doing(doing)? else { break };
            let removed = remove(&transaction, &self.key, through, millis(now)).doing(doing)?;
            transaction.commit().doing(doing)?;
            give_space_back(&self.db).doing(doing)?;
            pruned += removed;
            if removed == 0 {
                break;
            }
        }
        Ok(pruned)
    }
}

/// One page with each step of the statement.
fn give_space_back(db: &Connection) -> rusqlite::Result<()> {
    let mut statement = db.prepare("PRAGMA incremental_vacuum")?;
    let mut pages = statement.query([])?;
    while pages.next()?.is_some() {}
    // Readers may be in the way; then it is done the next time.
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Only its owner can read it; SQLite gives the files beside it the same mode.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Refuses a ledger that somebody else can write, such as a server that gave up root's rights: root reads it, with care, and
/// does not write to it. A server with `keep-root` writes to it all the same, as its operator decided.
///
/// # Errors
/// That it belongs to another user, or that others can write to it.
pub fn refuse_others(dir: &Path) -> Result<(), LedgerError> {
    let path = dir.join(FILE);
    let found = match path.symlink_metadata() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(file("find", &path))?,
    };
    let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
    let why = if owner != us {
        format!(
            "it belongs to the user {owner}; use another state directory, or give the file to the user {us}"
        )
    } else if found.mode() & 0o022 != 0 {
        "servers without root's rights write to it; use another state directory (BELLJAR_STATE_DIR)"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(file("write to", &path)(io::Error::new(io::ErrorKind::PermissionDenied, why)))
}

fn configure(db: &Connection, sync: Sync) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // The last who closes the database would also remove the files beside it. An unprivileged server has those very files, each
    // mounted at its place, and would go on with files that nobody else sees.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Before there are tables: so that space can be given back without rewriting the file.
    db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0")?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    db.execute_batch(match sync {
        Sync::Always => "PRAGMA synchronous = FULL",
        Sync::Later => "PRAGMA synchronous = NORMAL",
    })?;
    db.query_row("PRAGMA journal_size_limit = 16777216", [], |_| Ok(()))
}

fn make_tables(db: &mut Connection) -> rusqlite::Result<()> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let there: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if there == 0 {
        for (_, statement) in schema::statements() {
            transaction.execute_batch(&statement)?;
        }
        let mut genesis = [0; 32];
        getrandom(&mut genesis, GetRandomFlags::empty())
            .map_err(|errno| rusqlite::Error::ToSqlConversionFailure(Box::new(errno)))?;
        let meta = "INSERT INTO meta (name, value) VALUES (?1, ?2)";
        transaction.execute(meta, params!["genesis", genesis])?;
        transaction.execute(meta, params!["format", FORMAT])?;
    }
    transaction.commit()
}

/// The end of the chain: the last record, else what was pruned, else where it began.
pub(crate) fn last_of(db: &Connection) -> rusqlite::Result<Head> {
    let head = |row: &rusqlite::Row<'_>| {
        let (seq, hash, signature): (u64, Hash, Option<Vec<u8>>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Head { seq, hash: signature.map_or(hash, |signature| chain::link(&hash, &signature)) })
    };
    let ends = [
        "SELECT seq, hash, signature FROM records ORDER BY seq DESC LIMIT 1",
        "SELECT through, hash, NULL FROM anchors ORDER BY through DESC LIMIT 1",
    ];
    for end in ends {
        if let Some(found) = db.prepare_cached(end)?.query_row([], head).optional()? {
            return Ok(found);
        }
    }
    let hash: Hash = db.query_row("SELECT value FROM meta WHERE name = 'genesis'", [], |row| row.get(0))?;
    Ok(Head { seq: 0, hash })
}

fn insert(
    transaction: &Transaction<'_>,
    key: &Key,
    entry: &Entry,
    last: Head,
    recorded: i64,
) -> rusqlite::Result<Head> {
    let seq = last.seq + 1;
    let mut filled = entry.values.iter();
    let mut values: Vec<Value> = Vec::with_capacity(HASHED.len() + SEALS.len());
    for (name, _) in HASHED {
        values.push(match name {
            "seq" => Value::Integer(i64::try_from(seq).unwrap_or(i64::MAX)),
            "format" => Value::Integer(FORMAT),
            "recorded" => Value::Integer(recorded),
            "previous" => Value::Blob(last.hash.to_vec()),
            _ => filled.next().map_or(Value::Null, |(_, value)| value.clone()),
        });
    }
    let hash = chain::of_values(&values);
    let signature = key.sign(&signed_record(&hash));
    values.push(Value::Blob(hash.to_vec()));
    values.push(Value::Blob(signature.to_vec()));
    let places = vec!["?"; values.len()].join(", ");
    let statement = format!("INSERT INTO records VALUES ({places})");
    transaction.prepare_cached(&statement)?.execute(rusqlite::params_from_iter(values))?;
    let words = "INSERT INTO words (rowid, text) VALUES (?1, ?2)";
    transaction.prepare_cached(words)?.execute(params![seq, entry.words_and_labels()])?;
    Ok(Head { seq, hash: chain::link(&hash, &signature) })
}

/// The last record that may go now, if any.
fn expendable(db: &Connection, retention: Retention, now: SystemTime) -> rusqlite::Result<Option<u64>> {
    let (first, last): (Option<u64>, Option<u64>) =
        db.query_row("SELECT min(seq), max(seq) FROM records", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
    let most = (first + PRUNED_AT_ONCE - 1).min(last);
    let mut through = None;
    if let Some(oldest) = retention.age.and_then(|age| now.checked_sub(age)) {
        // Up to the first that is young enough: what is pruned is a prefix.
        let young = "SELECT min(seq) FROM records WHERE recorded >= ?1 AND seq <= ?2";
        let young: Option<u64> = db.query_row(young, params![millis(oldest), most], |row| row.get(0))?;
        through = through.max(Some(young.map_or(most, |young| young - 1)));
    }
    if let Some(bytes) = retention.bytes {
        let pages = |name| db.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        let used = (pages("page_count")? - pages("freelist_count")?) * pages("page_size")?;
        if used > bytes {
            // The share of the records that the excess is, and a tenth more, so that it is not done for every record.
            let records = last - first + 1;
            let share = (used - bytes + bytes / 10) as f64 / used as f64;
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and records"
            )]
            let share = (records as f64 * share.min(1.0)).ceil() as u64;
            through = through.max(Some((first + share.max(1) - 1).min(most)));
        }
    }
    Ok(through.filter(|through| *through >= first))
}

fn remove(transaction: &Transaction<'_>, key: &Key, through: u64, at: i64) -> rusqlite::Result<u64> {
    let seals = "SELECT hash, signature FROM records WHERE seq = ?1";
    let hash = transaction.query_row(seals, [through], |row| {
        let (hash, signature): (Hash, Vec<u8>) = (row.get(0)?, row.get(1)?);
        Ok(chain::link(&hash, &signature))
    })?;
    let signature = key.sign(&signed_anchor(through, at, &hash));
    transaction.execute(
        "INSERT INTO anchors (through, at, hash, signature) VALUES (?1, ?2, ?3, ?4)",
        params![through, at, hash, signature],
    )?;
    transaction.execute("DELETE FROM words WHERE rowid <= ?1", [through])?;
    let removed = transaction.execute("DELETE FROM records WHERE seq <= ?1", [through])?;
    Ok(removed as u64)
}
