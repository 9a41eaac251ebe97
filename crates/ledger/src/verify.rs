//! Whether the ledger is as it was written, and if not, which record is the first that was changed, removed or inserted.
//!
//! Every record is signed, and every hash covers the record before. So one signature confirms all records up to it, and
//! only where the chain does not hold are signatures looked at one by one.

use std::path::Path;

use belljar_wire::{AuditFlaw, AuditFlawKind, AuditVerdict};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::book::last_of;
use crate::chain::{self, Hash, hex, signed_anchor, signed_record};
use crate::error::{Doing, LedgerError};
use crate::head::{self, Head, Said};
use crate::key::PublicKey;
use crate::schema::{self, FORMAT, HASHED};

/// How often a signature is checked, in records.
const EVERY: u64 = 1000;
const DOING: &str = "read the ledger";

/// The end of a chain.
pub(crate) enum End {
    /// This is the last record, and it is as it was written.
    Record(Head),
    /// It is not.
    Forged(u64),
}

/// Checks the ledger of a directory.
///
/// # Errors
/// That it cannot be read.
pub fn verify(db: &Connection, dir: &Path, key: &PublicKey) -> Result<AuditVerdict, LedgerError> {
    // First the head: records that are added meanwhile are no flaw.
    let said = head::read(dir, key)?;
    let transaction = db.unchecked_transaction().doing(DOING)?;
    let mut check = Check { db: &transaction, key, records: 0, first: None, last: None, confirmed: 0 };
    let (pruned, flaw) = match check.all(said) {
        Ok(found) => found,
        // What is damaged so that SQLite cannot read it was changed, too.
        Err(LedgerError::Database { source, .. }) if is_damage(&source) => {
            let seq = check.last.map_or(1, |last| last.seq + 1);
            (0, Some(flaw(AuditFlawKind::Changed, seq, format!("record {seq} cannot be read: {source}"))))
        }
        Err(error) => return Err(error),
    };
    Ok(AuditVerdict {
        ok: flaw.is_none(),
        records: check.records,
        first: check.first,
        last: check.last.filter(|_| check.records > 0).map(|last| last.seq),
        hash: check.last.filter(|_| check.records > 0).map(|last| hex(&last.hash)),
        pruned_through: pruned,
        public_key: key.to_string(),
        flaw,
    })
}

struct Check<'a> {
    db: &'a Connection,
    key: &'a PublicKey,
    records: u64,
    first: Option<u64>,
    last: Option<Head>,
    /// The last record whose signature was checked.
    confirmed: u64,
}

type Flaw = Option<AuditFlaw>;

impl Check<'_> {
    /// Up to which record the ledger was pruned, and the first flaw.
    fn all(&mut self, said: Said) -> Result<(u64, Flaw), LedgerError> {
        if let Some(flaw) = schema_flaw(self.db)? {
            return Ok((0, Some(flaw)));
        }
        let start = match self.start()? {
            Ok(start) => start,
            Err(flaw) => return Ok((0, Some(flaw))),
        };
        (self.last, self.confirmed) = (Some(start), start.seq);
        let mut flaw = self.records(start)?;
        if flaw.is_none() {
            flaw = self.confirm_last()?;
        }
        if flaw.is_none() {
            flaw = self.compare(said, start)?;
        }
        Ok((start.seq, flaw))
    }

    /// Where the chain begins: where it was made, or after what was pruned.
    fn start(&self) -> Result<Result<Head, AuditFlaw>, LedgerError> {
        let anchor = "SELECT through, at, hash, signature FROM anchors ORDER BY through DESC LIMIT 1";
        let read = |row: &Row<'_>| {
            let (through, at, hash): (u64, i64, Hash) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let signature: Vec<u8> = row.get(3)?;
            Ok((
                Head { seq: through, hash },
                self.key.has_signed(&signed_anchor(through, at, &hash), &signature),
            ))
        };
        match self.db.query_row(anchor, [], read).optional().doing(DOING)? {
            Some((start, true)) => Ok(Ok(start)),
            Some((start, false)) => {
                let message = format!("the note that records through {} were pruned was changed", start.seq);
                Ok(Err(flaw(AuditFlawKind::Anchor, start.seq, message)))
            }
            None => {
                let genesis = "SELECT value FROM meta WHERE name = 'genesis'";
                let genesis = self.db.query_row(genesis, [], |row| row.get::<_, Hash>(0)).optional();
                match genesis.doing(DOING)? {
                    Some(hash) => Ok(Ok(Head { seq: 0, hash })),
                    None => Ok(Err(flaw(AuditFlawKind::Schema, 1, "the ledger has no beginning".to_owned()))),
                }
            }
        }
    }

    fn records(&mut self, start: Head) -> Result<Flaw, LedgerError> {
        let mut statement = self.db.prepare(&format!("{} ORDER BY seq", select())).doing(DOING)?;
        let mut rows = statement.query([]).doing(DOING)?;
        let mut last = start;
        while let Some(row) = rows.next().doing(DOING)? {
            let seq: i64 = row.get(0).doing(DOING)?;
            let Ok(seq) = u64::try_from(seq) else {
                return Ok(Some(changed(last.seq + 1)));
            };
            let expected = last.seq + 1;
            if seq < expected {
                // Records that were pruned are there again.
                return Ok(Some(changed(seq)));
            }
            if seq > expected {
                return Ok(Some(self.first_forged(expected)?.unwrap_or_else(|| removed(expected, seq - 1))));
            }
            let hash = chain::of_row(row).doing(DOING)?;
            let chained = bytes(row, HASHED.len() - 1) == last.hash && bytes(row, HASHED.len()) == hash;
            if !chained {
                // If records were rewritten with new hashes, the first of them stands before this one.
                return Ok(Some(self.first_forged(seq)?.unwrap_or_else(|| changed(seq))));
            }
            let signature = bytes(row, HASHED.len() + 1);
            last = Head { seq, hash: chain::link(&hash, signature) };
            (self.records, self.first, self.last) = (self.records + 1, self.first.or(Some(seq)), Some(last));
            if seq.is_multiple_of(EVERY) {
                if !self.key.has_signed(&signed_record(&hash), signature) {
                    return Ok(Some(self.first_forged(seq + 1)?.unwrap_or_else(|| changed(seq))));
                }
                self.confirmed = seq;
            }
        }
        Ok(None)
    }

    /// The first record since the last that was confirmed, and before this one, that the key has not signed.
    fn first_forged(&self, before: u64) -> Result<Flaw, LedgerError> {
        let between = "SELECT seq, hash, signature FROM records WHERE seq > ?1 AND seq < ?2 ORDER BY seq";
        let mut statement = self.db.prepare_cached(between).doing(DOING)?;
        let mut rows = statement.query([self.confirmed, before]).doing(DOING)?;
        while let Some(row) = rows.next().doing(DOING)? {
            let is_signed = <&Hash>::try_from(bytes(row, 1))
                .is_ok_and(|hash| self.key.has_signed(&signed_record(hash), bytes(row, 2)));
            if !is_signed {
                return Ok(Some(changed(row.get(0).doing(DOING)?)));
            }
        }
        Ok(None)
    }

    fn confirm_last(&self) -> Result<Flaw, LedgerError> {
        let Some(last) = self.last.filter(|last| last.seq > self.confirmed) else { return Ok(None) };
        let seals = "SELECT hash, signature FROM records WHERE seq = ?1";
        let is_signed = |row: &Row<'_>| {
            let hash = <&Hash>::try_from(bytes(row, 0));
            Ok(hash.is_ok_and(|hash| self.key.has_signed(&signed_record(hash), bytes(row, 1))))
        };
        if self.db.query_row(seals, [last.seq], is_signed).doing(DOING)? {
            return Ok(None);
        }
        Ok(Some(self.first_forged(last.seq)?.unwrap_or_else(|| changed(last.seq))))
    }

    /// Compares the end with what is said outside the database.
    fn compare(&self, said: Said, start: Head) -> Result<Flaw, LedgerError> {
        let last = self.last.unwrap_or(start);
        match said {
            Said::Nonsense => {
                let message = "ledger.head was changed, or belongs to another key".to_owned();
                Ok(Some(flaw(AuditFlawKind::Head, last.seq, message)))
            }
            Said::Nothing if last.seq > 0 => {
                let message = "ledger.head is missing, so that it is not known how many records there were";
                Ok(Some(flaw(AuditFlawKind::Head, last.seq, message.to_owned())))
            }
            Said::Head(head) if head.seq > last.seq => {
                let message = match head.seq - last.seq {
                    1 => format!("record {} is missing at the end", head.seq),
                    _ => format!("records {} to {} are missing at the end", last.seq + 1, head.seq),
                };
                Ok(Some(flaw(AuditFlawKind::Cut, last.seq + 1, message)))
            }
            Said::Head(head) if head.seq > start.seq => {
                let seals = "SELECT hash, signature FROM records WHERE seq = ?1";
                let same = |row: &Row<'_>| {
                    let hash = <&Hash>::try_from(bytes(row, 0));
                    Ok(hash.is_ok_and(|hash| chain::link(hash, bytes(row, 1)) == head.hash))
                };
                let same = self.db.query_row(seals, [head.seq], same).doing(DOING)?;
                Ok((!same).then(|| changed(head.seq)))
            }
            Said::Nothing | Said::Head(_) => Ok(None),
        }
    }
}

/// The columns as they are hashed, then the hash and the signature.
fn select() -> String {
    let columns: Vec<_> = HASHED.iter().chain(&schema::SEALS).map(|(name, _)| *name).collect();
    format!("SELECT {} FROM records", columns.join(", "))
}

/// What is not bytes is none that we wrote.
fn bytes<'a>(row: &'a Row<'_>, at: usize) -> &'a [u8] {
    match row.get_ref(at) {
        Ok(ValueRef::Blob(bytes)) => bytes,
        _ => &[],
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, TooBig, TypeMismatch};
    if let rusqlite::Error::SqliteFailure(failure, _) = error {
        return matches!(failure.code, DatabaseCorrupt | NotADatabase | TooBig | TypeMismatch);
    }
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::QueryReturnedNoRows
    )
}

/// Whether the database has exactly the tables, indices and triggers of a ledger.
pub(crate) fn schema_flaw(db: &Connection) -> Result<Flaw, LedgerError> {
    let mut statement =
        db.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").doing(DOING)?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let found: Vec<(String, String)> = rows.doing(DOING)?.collect::<Result<_, _>>().doing(DOING)?;
    // The index of words has tables of its own, which SQLite makes.
    let found: Vec<_> = found.iter().filter(|(name, _)| !name.starts_with("words_")).collect();
    let expected = schema::statements();
    let wrong = |message: String| Ok(Some(flaw(AuditFlawKind::Schema, 1, message)));
    let format = db.query_row("SELECT value FROM meta WHERE name = 'format'", [], |row| row.get::<_, i64>(0));
    if let Some(format) = format.ok().filter(|format| *format != FORMAT) {
        return wrong(format!("it has format {format}, and this version of Belljar writes format {FORMAT}"));
    }
    for (name, sql) in &expected {
        match found.iter().find(|(found, _)| found == name) {
            None => return wrong(format!("'{name}' is missing in the ledger")),
            Some((_, found)) if found != sql => return wrong(format!("'{name}' of the ledger was changed")),
            Some(_) => {}
        }
    }
    match found.iter().find(|(name, _)| !expected.iter().any(|(known, _)| known == name)) {
        Some((name, _)) => wrong(format!("'{}' does not belong in the ledger", name.escape_debug())),
        None => Ok(None),
    }
}

/// The last record, if it is as it was written.
pub(crate) fn last(db: &Connection, key: &PublicKey) -> Result<End, LedgerError> {
    let newest = format!("{} ORDER BY seq DESC LIMIT 1", select());
    let read = |row: &Row<'_>| {
        let (seq, hash): (u64, Hash) = (row.get(0)?, chain::of_row(row)?);
        let signature = bytes(row, HASHED.len() + 1);
        let is_whole = bytes(row, HASHED.len()) == hash && key.has_signed(&signed_record(&hash), signature);
        let end = Head { seq, hash: chain::link(&hash, signature) };
        Ok(if is_whole { End::Record(end) } else { End::Forged(seq) })
    };
    match db.query_row(&newest, [], read).optional().doing(DOING)? {
        Some(end) => Ok(end),
        None => last_of(db).map(End::Record).doing(DOING),
    }
}

fn changed(seq: u64) -> AuditFlaw {
    flaw(AuditFlawKind::Changed, seq, format!("record {seq} was changed or inserted"))
}

fn removed(from: u64, to: u64) -> AuditFlaw {
    let message = if from == to {
        format!("record {from} was removed")
    } else {
        format!("records {from} to {to} were removed")
    };
    flaw(AuditFlawKind::Removed, from, message)
}

fn flaw(kind: AuditFlawKind, seq: u64, message: String) -> AuditFlaw {
    AuditFlaw { kind, seq, message }
}
