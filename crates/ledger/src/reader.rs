//! Reads a ledger that anybody may have written: nothing in it is trusted, its content is text and nothing else, and what
//! is read is bounded.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_wire::{AuditRecord, AuditSummary, AuditVerdict, Decision, moment};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use serde::de::DeserializeOwned;

use crate::chain::hex;
use crate::entry::Used;
use crate::error::{Doing, LedgerError, file};
use crate::key::PublicKey;
use crate::schema::label;
use crate::{FILE, verify};

/// The longest value, and the longest record. Ours are shorter.
const LONGEST: i32 = 16 << 20;
/// How long a search may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many characters of the code a summary has.
const CODE_SHOWN: usize = 200;
/// How many words a search may have.
const MOST_WORDS: usize = 16;

/// A ledger that is read.
#[derive(Debug)]
pub struct Reader {
    db: Connection,
    dir: PathBuf,
}

/// Which records are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// In this language.
    pub language: Option<String>,
    /// That ended like this.
    pub status: Option<String>,
    /// Of this caller.
    pub caller: Option<String>,
    /// Asked for at this time or later, in milliseconds since 1970.
    pub from: Option<i64>,
    /// Asked for before this time.
    pub to: Option<i64>,
    /// With all of these words, or words that begin with them, in the code, the output or the error.
    pub words: Option<String>,
    /// Only records before this one.
    pub before: Option<u64>,
}

impl Reader {
    /// The ledger of this directory.
    ///
    /// # Errors
    /// That there is none, or that it cannot be opened.
    pub fn open(dir: &Path) -> Result<Reader, LedgerError> {
        let dir = dir.canonicalize().map_err(|_| LedgerError::Absent { path: dir.join(FILE) })?;
        let path = dir.join(FILE);
        let found = path.symlink_metadata();
        match found {
            Ok(found) if found.is_file() && found.len() > 0 => {}
            Ok(found) if !found.is_file() => {
                let cause = std::io::Error::other("it is not a regular file");
                return Err(file("open", &path)(cause));
            }
            _ => return Err(LedgerError::Absent { path }),
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NOFOLLOW
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&path, flags).doing("open the ledger")?;
        distrust(&db).doing("open the ledger")?;
        Ok(Reader { db, dir })
    }

    /// The newest records that are wanted, newest first, at most so many.
    ///
    /// # Errors
    /// That the ledger cannot be read, or that the search took too long.
    pub fn search(&mut self, query: &Query, limit: usize) -> Result<Vec<AuditSummary>, LedgerError> {
        self.within_patience(|db| {
            let Some(span) = query.span(db)? else { return Ok(Vec::new()) };
            let (text, values) = query.statement(span, limit);
            let mut statement = db.prepare_cached(&text)?;
            let rows = statement.query_map(rusqlite::params_from_iter(values), |row| Ok(summary(row)))?;
            rows.collect()
        })
    }

    /// Records that come after this one, oldest first, at most so many.
    ///
    /// # Errors
    /// That the ledger cannot be read.
    pub fn after(&mut self, seq: u64, limit: usize) -> Result<Vec<AuditRecord>, LedgerError> {
        let text = format!("SELECT * FROM records WHERE seq > ?1 ORDER BY seq LIMIT {limit}");
        self.within_patience(|db| {
            let mut statement = db.prepare_cached(&text)?;
            statement.query_map([seq], |row| Ok(record(row)))?.collect()
        })
    }

    /// The number of the last record.
    ///
    /// # Errors
    /// That the ledger cannot be read.
    pub fn last(&mut self) -> Result<u64, LedgerError> {
        self.within_patience(|db| {
            db.query_row("SELECT coalesce(max(seq), 0) FROM records", [], |row| row.get(0))
        })
    }

    /// The record of this run, or with this number.
    ///
    /// # Errors
    /// That the ledger cannot be read.
    pub fn find(&mut self, id: &str) -> Result<Option<AuditRecord>, LedgerError> {
        let (column, value) = match id.parse::<i64>() {
            Ok(seq) => ("seq", Value::Integer(seq)),
            Err(_) => ("id", Value::Text(id.to_owned())),
        };
        let text = format!("SELECT * FROM records WHERE {column} = ?1");
        self.within_patience(|db| {
            let mut statement = db.prepare_cached(&text)?;
            let mut rows = statement.query([value])?;
            Ok(rows.next()?.map(record))
        })
    }

    /// Checks all of it.
    ///
    /// # Errors
    /// That the ledger cannot be read.
    pub fn verify(&mut self, key: &PublicKey) -> Result<AuditVerdict, LedgerError> {
        verify::verify(&self.db, &self.dir, key)
    }

    fn within_patience<T>(
        &mut self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        let deadline = Instant::now() + PATIENCE;
        self.db.progress_handler(10_000, Some(move || Instant::now() > deadline)).doing("read the ledger")?;
        let found = read(&self.db).doing("read the ledger");
        self.db.progress_handler(0, None::<fn() -> bool>).doing("read the ledger")?;
        found
    }
}

/// Makes SQLite distrust what it reads (sqlite.org/security.html).
fn distrust(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(Duration::from_secs(5))?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    db.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    db.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; PRAGMA query_only = ON")
}

/// The first and the last record that a search has to look at, where that is known.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    first: Option<u64>,
    last: Option<u64>,
}

impl Query {
    /// Where the records of the wanted time are. Records come in the order in which runs ended, so their times are almost in
    /// order: nearly all records between these two are wanted.
    fn span(&self, db: &Connection) -> rusqlite::Result<Option<Span>> {
        let find = |order: &str, condition: &str, time: i64| {
            let text = format!(
                "SELECT seq FROM records INDEXED BY times WHERE at {condition} ?1 ORDER BY seq {order} LIMIT 1"
            );
            db.prepare_cached(&text)?.query_row([time], |row| row.get::<_, u64>(0)).optional()
        };
        let mut span = Span { first: None, last: self.before.map(|seq| seq.saturating_sub(1)) };
        if let Some(to) = self.to {
            let Some(last) = find("DESC", "<", to)? else { return Ok(None) };
            span.last = Some(span.last.map_or(last, |known| known.min(last)));
        }
        if let Some(from) = self.from {
            let Some(first) = find("ASC", ">=", from)? else { return Ok(None) };
            span.first = Some(first);
        }
        Ok(Some(span))
    }

    /// The index of words answers for words and for labels, newest first, and nothing is sorted. What it says is compared with
    /// the record.
    fn statement(&self, span: Span, limit: usize) -> (String, Vec<Value>) {
        let text = |text: &Option<String>| text.clone().map(Value::Text);
        let number =
            |number: Option<u64>| number.map(|seq| Value::Integer(i64::try_from(seq).unwrap_or(i64::MAX)));
        let matching = self.matching().map(Value::Text);
        let (from, seq) = match matching {
            Some(_) => ("words CROSS JOIN records ON records.seq = words.rowid", "words.rowid"),
            None => ("records INDEXED BY times", "seq"),
        };
        let wanted = [
            ("words MATCH ?".to_owned(), matching),
            (format!("{seq} >= ?"), number(span.first)),
            (format!("{seq} <= ?"), number(span.last)),
            ("at >= ?".to_owned(), self.from.map(Value::Integer)),
            ("at < ?".to_owned(), self.to.map(Value::Integer)),
            ("language = ?".to_owned(), text(&self.language)),
            ("status = ?".to_owned(), text(&self.status)),
            ("caller = ?".to_owned(), text(&self.caller)),
        ];
        let wanted = wanted.into_iter().filter_map(|(condition, value)| Some((condition, value?)));
        let (conditions, values): (Vec<_>, Vec<_>) = wanted.unzip();
        let conditions = if conditions.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", conditions.join(" AND "))
        };
        let columns = "seq, id, at, caller, surface, peer, language, substr(code, 1, 200) AS code, backend, \
                       decision, status, exit_code, error";
        let statement = format!("SELECT {columns} FROM {from}{conditions} ORDER BY {seq} DESC LIMIT {limit}");
        (statement, values)
    }

    /// What the index of words is asked for, if anything.
    fn matching(&self) -> Option<String> {
        let labelled = [("caller", &self.caller), ("language", &self.language), ("status", &self.status)];
        let labels =
            labelled.into_iter().filter_map(|(column, value)| Some(label(column, value.as_deref()?)));
        let phrases: Vec<_> = labels
            .map(|label| format!("\"{label}\""))
            .chain(self.words.as_deref().and_then(matching))
            .collect();
        (!phrases.is_empty()).then(|| phrases.join(" "))
    }
}

/// The words as SQLite's full-text search takes them: each a quoted phrase of its own, and the beginning of a word is enough. A
/// single character would begin too many.
fn matching(words: &str) -> Option<String> {
    let separate = |c: char| c.is_whitespace() || c == '\0';
    let phrases = words.split(separate).filter(|word| word.chars().any(char::is_alphanumeric));
    let phrases: Vec<_> = phrases.take(MOST_WORDS).map(phrase).collect();
    (!phrases.is_empty()).then(|| phrases.join(" "))
}

fn phrase(word: &str) -> String {
    let beginning = if word.chars().nth(1).is_some() { "*" } else { "" };
    format!("\"{}\"{beginning}", word.replace('"', "\"\""))
}

fn summary(row: &Row<'_>) -> AuditSummary {
    AuditSummary {
        seq: number(row, "seq").unwrap_or_default(),
        id: text(row, "id").unwrap_or_default(),
        at: moment(integer(row, "at").unwrap_or_default()),
        caller: text(row, "caller").unwrap_or_default(),
        surface: text(row, "surface").unwrap_or_default(),
        peer: text(row, "peer"),
        language: text(row, "language").unwrap_or_default(),
        code: text(row, "code").map(|code| code.chars().take(CODE_SHOWN).collect()),
        backend: text(row, "backend"),
        decision: json(row, "decision").map(|decision: Decision| decision.action),
        status: text(row, "status").unwrap_or_default(),
        exit_code: integer(row, "exit_code"),
        error: text(row, "error"),
    }
}

fn record(row: &Row<'_>) -> AuditRecord {
    let used: Option<Used> = json(row, "usage");
    AuditRecord {
        seq: number(row, "seq").unwrap_or_default(),
        id: text(row, "id").unwrap_or_default(),
        at: moment(integer(row, "at").unwrap_or_default()),
        recorded_at: moment(integer(row, "recorded").unwrap_or_default()),
        caller: text(row, "caller").unwrap_or_default(),
        surface: text(row, "surface").unwrap_or_default(),
        peer: text(row, "peer"),
        language: text(row, "language").unwrap_or_default(),
        code: text(row, "code"),
        code_bytes: number(row, "code_bytes"),
        code_sha256: text(row, "code_sha256"),
        request: json(row, "request").unwrap_or_default(),
        files: json(row, "files").unwrap_or_default(),
        limits: json(row, "limits"),
        network: text(row, "network"),
        backend: text(row, "backend"),
        image: text(row, "image"),
        findings: json(row, "findings").unwrap_or_default(),
        decision: json(row, "decision"),
        decider: text(row, "decider"),
        status: text(row, "status").unwrap_or_default(),
        exit_code: integer(row, "exit_code"),
        error: text(row, "error"),
        stdout: text(row, "stdout"),
        stderr: text(row, "stderr"),
        stdout_bytes: number(row, "stdout_bytes"),
        stderr_bytes: number(row, "stderr_bytes"),
        produced: json(row, "produced").unwrap_or_default(),
        usage: used.as_ref().map(|used| used.usage),
        network_denied: used.and_then(|used| used.network_denied),
        compile: json(row, "compile"),
        stage: text(row, "stage"),
        start: text(row, "start"),
        runtime: text(row, "runtime"),
        kept: json(row, "kept").unwrap_or_default(),
        waived: json(row, "waived").unwrap_or_default(),
        redactions: number(row, "redactions").unwrap_or_default(),
        previous: blob(row, "previous"),
        hash: blob(row, "hash"),
    }
}

/// A value that is not what it should be counts as absent: `verify` is there to name it.
fn value<'a>(row: &'a Row<'_>, column: &str) -> ValueRef<'a> {
    row.get_ref(column).unwrap_or(ValueRef::Null)
}

pub(crate) fn text(row: &Row<'_>, column: &str) -> Option<String> {
    let ValueRef::Text(text) = value(row, column) else { return None };
    Some(String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn integer(row: &Row<'_>, column: &str) -> Option<i64> {
    let ValueRef::Integer(number) = value(row, column) else { return None };
    Some(number)
}

pub(crate) fn number(row: &Row<'_>, column: &str) -> Option<u64> {
    integer(row, column).and_then(|number| u64::try_from(number).ok())
}

fn blob(row: &Row<'_>, column: &str) -> String {
    let ValueRef::Blob(bytes) = value(row, column) else { return String::new() };
    hex(&bytes[..bytes.len().min(64)])
}

pub(crate) fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Option<T> {
    serde_json::from_str(&text(row, column)?).ok()
}
