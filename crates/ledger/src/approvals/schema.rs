//! The tables of the approvals.

use rusqlite::Connection;

use super::error::ApprovalError;
use crate::error::Doing;

/// What the database has: the name of each part and the statement that makes it.
///
/// Times are milliseconds since 1970. `waiting` is how many requests wait for the decision, `taken` whether one has been
/// told it: 0 for no, 1 for yes, 2 if the decision was revoked, which nobody is told any more. `remembered` is until when it holds for others. A pending approval whose time has come counts as expired,
/// whether or not anybody has written that.
const STATEMENTS: [(&str, &str); 5] = [
    (
        "approvals",
        "CREATE TABLE approvals (id TEXT PRIMARY KEY, digest BLOB NOT NULL, caller TEXT NOT NULL, \
         surface TEXT NOT NULL, peer TEXT, language TEXT NOT NULL, code BLOB NOT NULL, policy TEXT NOT NULL, \
         findings TEXT NOT NULL, request TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL, \
         status TEXT NOT NULL, decided INTEGER, decider TEXT, reason TEXT, remembered INTEGER, \
         requests INTEGER NOT NULL, waiting INTEGER NOT NULL, taken INTEGER NOT NULL)",
    ),
    ("by_digest", "CREATE INDEX by_digest ON approvals (digest, caller)"),
    ("by_status", "CREATE INDEX by_status ON approvals (status, id)"),
    (
        "notices",
        "CREATE TABLE notices (seq INTEGER PRIMARY KEY AUTOINCREMENT, approval TEXT NOT NULL, event TEXT NOT NULL, \
         at INTEGER NOT NULL, due INTEGER NOT NULL, attempts INTEGER NOT NULL)",
    ),
    // SQLite makes it for AUTOINCREMENT.
    ("sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)"),
];

/// Makes the tables in a new file.
pub(super) fn make(db: &Connection) -> rusqlite::Result<()> {
    let own = STATEMENTS.iter().filter(|(name, _)| *name != "sqlite_sequence");
    own.into_iter().try_for_each(|(_, statement)| db.execute_batch(statement))
}

/// Refuses a file that has anything else: another version made it, or somebody who means harm. A table can have
/// expressions, which SQLite would carry out with the rights of whoever opens the file.
pub(super) fn check(db: &Connection) -> Result<(), ApprovalError> {
    let doing = "read the tables of the approvals";
    let mut statement =
        db.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").doing(doing)?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let mut found: Vec<(String, String)> = rows.doing(doing)?.collect::<Result<_, _>>().doing(doing)?;
    found.sort();
    let mut expected = STATEMENTS.map(|(name, sql)| (name.to_owned(), sql.to_owned()));
    expected.sort();
    if found == expected { Ok(()) } else { Err(ApprovalError::Foreign) }
}
