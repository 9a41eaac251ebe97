//! What a webhook has to be told. A notice is written with the change that it is about, by whichever process makes the
//! change, so that none is lost when that process ends.

use std::time::{Duration, SystemTime};

use belljar_wire::{ApprovalStatus, ApprovalSummary};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::ApprovalError;
use super::store::{Approvals, summary};
use crate::entry::millis;
use crate::reader::{integer, number, text};

/// Notices that nobody has sent by then are dropped: there is no webhook, or it is gone.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// How many there may be.
const MOST: u64 = 2000;

/// What happened to an approval, for a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its number, which is the same when it is sent again.
    pub seq: u64,
    /// What the approval became.
    pub event: ApprovalStatus,
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// How often it was tried before.
    pub attempts: u64,
    /// The approval, as it is now.
    pub approval: ApprovalSummary,
}

pub(super) fn add(db: &Connection, id: &str, event: ApprovalStatus, now: SystemTime) -> rusqlite::Result<()> {
    let add = "INSERT INTO notices (approval, event, at, due, attempts) VALUES (?1, ?2, ?3, ?3, 0)";
    db.execute(add, params![id, event.name(), millis(now)]).map(drop)
}

pub(super) fn prune(db: &Connection, now: SystemTime) -> rusqlite::Result<()> {
    let old = now.checked_sub(KEPT_FOR).map_or(0, millis);
    db.execute("DELETE FROM notices WHERE at < ?1 OR approval NOT IN (SELECT id FROM approvals)", [old])?;
    let beyond = "DELETE FROM notices WHERE seq <= (SELECT max(seq) FROM notices) - ?1";
    db.execute(beyond, [MOST]).map(drop)
}

impl Approvals {
    /// The next notice that is due. Until `until`, no other process is given the same.
    ///
    /// # Errors
    /// That the file cannot be used.
    pub fn next_notice(&self, now: SystemTime, until: SystemTime) -> Result<Option<Notice>, ApprovalError> {
        self.change("look for notices", |db| {
            prune(db, now)?;
            // The status is that of the approval, not that of the moment: a webhook is told what is written.
            let due = "SELECT seq, event, notices.at AS happened, attempts, approvals.*, approvals.status AS state \
                       FROM notices JOIN approvals ON approvals.id = notices.approval \
                       WHERE due <= ?1 ORDER BY seq LIMIT 1";
            let found = db.query_row(due, [millis(now)], |row| Ok(notice(row))).optional()?;
            if let Some(notice) = &found {
                let claim = "UPDATE notices SET due = ?2, attempts = attempts + 1 WHERE seq = ?1";
                db.execute(claim, params![notice.seq, millis(until)])?;
            }
            Ok(found)
        })
    }

    /// It was sent, or is given up.
    ///
    /// # Errors
    /// That the file cannot be used.
    pub fn drop_notice(&self, seq: u64) -> Result<(), ApprovalError> {
        self.change("remove a notice", |db| db.execute("DELETE FROM notices WHERE seq = ?1", [seq]).map(drop))
    }

    /// It could not be sent, and is tried again then.
    ///
    /// # Errors
    /// That the file cannot be used.
    pub fn defer_notice(&self, seq: u64, until: SystemTime) -> Result<(), ApprovalError> {
        let defer = "UPDATE notices SET due = ?2 WHERE seq = ?1";
        self.change("defer a notice", |db| db.execute(defer, params![seq, millis(until)]).map(drop))
    }

    /// When the next notice is due, if there is one, in milliseconds since 1970.
    ///
    /// # Errors
    /// That the file cannot be read.
    pub fn notices_due(&self) -> Result<Option<i64>, ApprovalError> {
        use crate::error::Doing;
        let due = self.locked().query_row("SELECT min(due) FROM notices", [], |row| row.get(0));
        Ok(due.doing("look for notices")?)
    }
}

fn notice(row: &Row<'_>) -> Notice {
    let event = text(row, "event").unwrap_or_default();
    Notice {
        seq: number(row, "seq").unwrap_or_default(),
        event: ApprovalStatus::by_name(&event).unwrap_or(ApprovalStatus::Cancelled),
        at: integer(row, "happened").unwrap_or_default(),
        attempts: number(row, "attempts").unwrap_or_default(),
        approval: summary(row),
    }
}
