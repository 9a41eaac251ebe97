//! The tables. A record is a row of `records`; its columns are data, so that the hash, the tests and the tables cannot
//! disagree about them.

use sha2::{Digest, Sha256};

use crate::chain::hex;

/// The version of the tables and of the encoding that is hashed. Every record has it in its column `format`.
pub const FORMAT: i64 = 2;

/// A column of `records`: its name and its type.
pub type Column = (&'static str, &'static str);

/// The columns that are hashed, in the order in which they are. `previous` is the hash of the record before.
pub const HASHED: [Column; 38] = [
    ("seq", "INTEGER PRIMARY KEY"),
    ("format", "INTEGER NOT NULL"),
    ("id", "TEXT NOT NULL UNIQUE"),
    ("at", "INTEGER NOT NULL"),
    ("recorded", "INTEGER NOT NULL"),
    ("caller", "TEXT NOT NULL"),
    ("surface", "TEXT NOT NULL"),
    ("peer", "TEXT"),
    ("language", "TEXT NOT NULL"),
    ("code", "TEXT"),
    ("code_bytes", "INTEGER"),
    ("code_sha256", "TEXT"),
    ("request", "TEXT NOT NULL"),
    ("files", "TEXT NOT NULL"),
    ("limits", "TEXT"),
    ("network", "TEXT"),
    ("backend", "TEXT"),
    ("image", "TEXT"),
    ("findings", "TEXT NOT NULL"),
    ("decision", "TEXT"),
    ("decider", "TEXT"),
    ("status", "TEXT NOT NULL"),
    ("exit_code", "INTEGER"),
    ("error", "TEXT"),
    ("stdout", "TEXT"),
    ("stderr", "TEXT"),
    ("stdout_bytes", "INTEGER"),
    ("stderr_bytes", "INTEGER"),
    ("produced", "TEXT NOT NULL"),
    ("usage", "TEXT"),
    ("compile", "TEXT"),
    ("stage", "TEXT"),
    ("start", "TEXT"),
    ("runtime", "TEXT"),
    ("kept", "TEXT NOT NULL"),
    ("waived", "TEXT NOT NULL"),
    ("redactions", "INTEGER NOT NULL"),
    ("previous", "BLOB NOT NULL"),
];

/// The columns by whose values records are searched for: each value is a word of the index, too, so that a search for several
/// values and words is one question to the index.
pub(crate) const LABELLED: [&str; 3] = ["caller", "language", "status"];

/// The word for the value of a column. It begins with a character that no text has, for private use (U+E000). It is a hash,
/// because a word of the index has letters and digits only; that two values may have the same word does not matter.
pub(crate) fn label(column: &str, value: &str) -> String {
    let digest = Sha256::new().chain_update(column).chain_update([0]).chain_update(value).finalize();
    format!("\u{e000}{}", hex(&digest[..8]))
}

/// The columns that are made from the others.
pub const SEALS: [Column; 2] = [("hash", "BLOB NOT NULL"), ("signature", "BLOB NOT NULL")];

/// The columns of a record that its writer fills in from an account: all but the number, the chain and the seals.
#[cfg(test)]
pub(crate) fn filled() -> impl Iterator<Item = &'static str> {
    HASHED
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !["seq", "format", "recorded", "previous"].contains(name))
}

/// Everything that the database has besides what SQLite makes itself: its name and the statement that makes it.
pub(crate) fn statements() -> Vec<(&'static str, String)> {
    let columns: Vec<_> = HASHED.iter().chain(&SEALS).map(|(name, kind)| format!("{name} {kind}")).collect();
    let mut statements = vec![
        ("meta", "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)".to_owned()),
        ("records", format!("CREATE TABLE records ({})", columns.join(", "))),
        (
            "anchors",
            "CREATE TABLE anchors (through INTEGER PRIMARY KEY, at INTEGER NOT NULL, hash BLOB NOT NULL, \
             signature BLOB NOT NULL)"
                .to_owned(),
        ),
        // What is searched for: words, and labels. It keeps no text, and is no evidence: `verify` does not look at it.
        (
            "words",
            "CREATE VIRTUAL TABLE words USING fts5(text, content='', contentless_delete=1, \
             tokenize=\"unicode61 tokenchars '_'\")"
                .to_owned(),
        ),
        // The times in the order of the records: to look through all of them takes a tenth of the time.
        ("times", "CREATE INDEX times ON records (seq, at)".to_owned()),
    ];
    statements.extend(guards());
    statements
}

/// Triggers against accidents: who can write the file can drop them, which `verify` notices.
fn guards() -> Vec<(&'static str, String)> {
    let refuse = "SELECT RAISE(ABORT, 'the ledger can only be added to')";
    vec![
        ("records_stay", format!("CREATE TRIGGER records_stay BEFORE UPDATE ON records BEGIN {refuse}; END")),
        (
            "records_are_kept",
            format!(
                "CREATE TRIGGER records_are_kept BEFORE DELETE ON records \
                 WHEN OLD.seq > coalesce((SELECT max(through) FROM anchors), 0) BEGIN {refuse}; END"
            ),
        ),
        ("anchors_stay", format!("CREATE TRIGGER anchors_stay BEFORE UPDATE ON anchors BEGIN {refuse}; END")),
        (
            "anchors_are_kept",
            format!("CREATE TRIGGER anchors_are_kept BEFORE DELETE ON anchors BEGIN {refuse}; END"),
        ),
    ]
}
