//! The file of the approvals.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use belljar_core::finding::{Finding, Position, Severity};
use belljar_engine::RunId;
use belljar_wire::{
    Approval, ApprovalDecision, ApprovalPolicy, ApprovalRequest, ApprovalStatus, ApprovalSummary, moment,
};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

use super::error::ApprovalError;
use super::{FILE, notice, schema};
use crate::book::{BUSY, make_private};
use crate::chain::hex;
use crate::entry::millis;
use crate::error::{Doing, LedgerError, file};
use crate::reader::{integer, json, number, text};

/// How much code a person can be asked about. What cannot be shown cannot be approved.
const MOST_CODE: usize = 256 << 10;
/// How much there may be besides: findings, arguments, files. What is in files is left out before it comes to that.
const MOST_DETAILS: usize = 768 << 10;
/// How many approvals of one caller may wait at a time, and of all callers.
const PENDING_OF_CALLER: u64 = 32;
const PENDING: u64 = 256;
/// How many approvals are kept that somebody decided, and how many that nobody did. They are counted apart, so that no
/// caller can push decisions out by asking and leaving.
const DECIDED_KEPT: u64 = 1000;
const UNDECIDED_KEPT: u64 = 100;
/// For how long they are kept.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest value that is read. Ours are shorter.
const LONGEST: i32 = 4 << 20;
/// How many bytes of the code a summary is made from, and how many characters it has.
const CODE_READ: usize = 800;
const CODE_SHOWN: usize = 200;

/// The status at the time `:now`.
const STATUS: &str = "CASE WHEN status = 'pending' AND expires <= :now THEN 'expired' ELSE status END";

/// The approvals of a state directory. Calls block for as long as the disk takes.
#[derive(Debug)]
pub struct Approvals {
    db: Mutex<Connection>,
    terms: Mutex<ApprovalTerms>,
}

/// What holds for approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalTerms {
    /// How long there is to decide.
    pub expire: Duration,
    /// For how long a decision may be remembered, at most.
    pub remember: Duration,
    /// Whether callers may decide about their own runs.
    pub own: Own,
}

/// Whether callers may decide about their own runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// They may: there is only one caller, or the configuration says so.
    Allowed,
    /// Somebody else must.
    Refused,
}

/// A run that needs approval.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are those of the approval")]
pub struct Submission {
    pub digest: [u8; 32],
    pub caller: String,
    pub surface: String,
    pub peer: Option<String>,
    pub language: String,
    pub code: Vec<u8>,
    pub policy: ApprovalPolicy,
    pub findings: Vec<Finding>,
    pub request: ApprovalRequest,
}

/// What becomes of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// Somebody has decided before.
    Settled(Settled),
    /// It waits for a decision.
    Pending {
        /// Its identifier.
        id: String,
        /// Until when.
        expires: SystemTime,
    },
}

/// An approval that nobody can decide any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Its identifier.
    pub id: String,
    /// What became of it.
    pub status: ApprovalStatus,
    /// Who decided, if somebody did.
    pub by: Option<String>,
    /// Their reason.
    pub reason: Option<String>,
}

/// A decision.
#[derive(Debug, Clone)]
pub struct Ruling {
    /// Whether the run is allowed.
    pub approve: bool,
    /// Who decides.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// For how long the decision holds for the same requests of the same caller.
    pub remember: Option<Duration>,
}

/// Which approvals are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// Only those with this status.
    pub status: Option<ApprovalStatus>,
    /// Only those of this caller.
    pub caller: Option<String>,
    /// Only those whose decision holds for further requests.
    pub remembered: bool,
    /// Only those before this one.
    pub before: Option<String>,
}

/// An approval with what is shown in another form, too.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The approval.
    pub approval: Approval,
    /// What the scan of the code found.
    pub findings: Vec<Finding>,
}

impl Approvals {
    /// The approvals of this directory, which are made if there are none.
    ///
    /// # Errors
    /// That the file cannot be opened, or is not one of approvals.
    pub fn open(dir: &Path, terms: ApprovalTerms) -> Result<Approvals, ApprovalError> {
        let dir = dir.canonicalize().map_err(file("find", dir))?;
        let path = dir.join(FILE);
        make_private(&path).map_err(file("make", &path))?;
        let mut db = connect(&path)?;
        make_tables(&mut db).doing("make the tables of the approvals")?;
        schema::check(&db)?;
        Ok(Approvals { db: Mutex::new(db), terms: Mutex::new(terms) })
    }

    /// What holds for them.
    #[must_use]
    pub fn terms(&self) -> ApprovalTerms {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this holds for them, as a configuration that was reloaded says.
    pub fn replace_terms(&self, terms: ApprovalTerms) {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner) = terms;
    }

    /// Asks for approval of a run, unless somebody has decided about the same run of the same caller. If the same run of
    /// the same caller waits already, both wait for one decision.
    ///
    /// # Errors
    /// Too many wait, or it is too large to be shown to a person.
    pub fn submit(&self, run: &Submission, now: SystemTime) -> Result<Submitted, ApprovalError> {
        let stored = Stored::of(run)?;
        self.change("ask for approval", |db| {
            prune(db, now)?;
            if let Some(settled) = decided_before(db, run, now)? {
                return Ok(Ok(Submitted::Settled(settled)));
            }
            if let Some((id, expires)) = join(db, run, now)? {
                return Ok(Ok(Submitted::Pending { id, expires: at(expires) }));
            }
            if let Some(full) = full(db, &run.caller, now)? {
                return Ok(Err(full));
            }
            let expires = now + self.terms().expire;
            let id = insert(db, run, &stored, now, expires)?;
            Ok(Ok(Submitted::Pending { id, expires }))
        })?
    }

    /// Decides. Of two who do, the first wins.
    ///
    /// # Errors
    /// There is no such approval, it is settled, or it is one's own.
    pub fn decide(&self, id: &str, ruling: &Ruling, now: SystemTime) -> Result<Found, ApprovalError> {
        let ApprovalTerms { remember, own, .. } = self.terms();
        if ruling.remember.is_some_and(|time| time > remember) {
            return Err(ApprovalError::TooLong { most: remember });
        }
        self.change("decide", |db| {
            let Some((caller, settled)) = state(db, id, now)? else {
                return Ok(Err(ApprovalError::NoSuch { id: id.to_owned() }));
            };
            if settled.status != ApprovalStatus::Pending {
                lapse(db, id, now)?;
                return Ok(Err(ApprovalError::Settled { status: settled.status, by: settled.by }));
            }
            if own == Own::Refused && caller == ruling.by {
                return Ok(Err(ApprovalError::Own { by: caller }));
            }
            settle(db, id, ruling, now).map(Ok)
        })??;
        self.find(id, now)?.ok_or_else(|| ApprovalError::NoSuch { id: id.to_owned() })
    }

    /// Takes a decision back: from now on it holds for no further request, and the same run has to be asked for again. What
    /// has begun goes on.
    ///
    /// # Errors
    /// There is no such approval, or it holds for no further request.
    pub fn revoke(
        &self,
        id: &str,
        by: &str,
        reason: Option<&str>,
        now: SystemTime,
    ) -> Result<Found, ApprovalError> {
        self.change("revoke a decision", |db| {
            let Some((_, settled)) = state(db, id, now)? else {
                return Ok(Err(ApprovalError::NoSuch { id: id.to_owned() }));
            };
            let said = [settled.reason.as_deref(), Some(&format!("revoked by {by}")), reason];
            let said = said.into_iter().flatten().collect::<Vec<_>>().join("; ");
            let revoked = "UPDATE approvals SET remembered = ?2, taken = 2, reason = ?3 WHERE id = ?1 \
                           AND status IN ('approved', 'denied') AND (remembered > ?2 OR (taken = 0 AND expires > ?2))";
            let changed = db.execute(revoked, params![id, millis(now), said])?;
            Ok(if changed > 0 { Ok(()) } else { Err(ApprovalError::NotRemembered { status: settled.status }) })
        })??;
        self.find(id, now)?.ok_or_else(|| ApprovalError::NoSuch { id: id.to_owned() })
    }

    /// What became of an approval that a request waits for; `None` if it still does. Whoever is told a decision has taken it;
    /// a decision that was revoked before is told to nobody.
    ///
    /// # Errors
    /// That the file cannot be used.
    pub fn take(&self, id: &str, now: SystemTime) -> Result<Option<Settled>, ApprovalError> {
        self.change("look at an approval", |db| {
            lapse(db, id, now)?;
            let Some((_, settled)) = state(db, id, now)? else { return Ok(Some(lost(id))) };
            if settled.status == ApprovalStatus::Pending {
                return Ok(None);
            }
            let told = db.execute("UPDATE approvals SET taken = 1 WHERE id = ?1 AND taken <> 2", [id])?;
            Ok(Some(if told > 0 {
                settled
            } else {
                Settled { status: ApprovalStatus::Cancelled, ..settled }
            }))
        })
    }

    /// Those of these approvals that do not wait any more. It only reads.
    ///
    /// # Errors
    /// That the file cannot be read.
    pub fn settled_among(&self, ids: &[String], now: SystemTime) -> Result<Vec<String>, ApprovalError> {
        let db = self.locked();
        let waits = "SELECT count(*) FROM approvals WHERE id = ?1 AND status = 'pending' AND expires > ?2";
        let mut statement = db.prepare_cached(waits).doing("look at approvals")?;
        let mut settled = Vec::new();
        for id in ids {
            let waits: u64 =
                statement.query_row(params![id, millis(now)], |row| row.get(0)).doing("look at approvals")?;
            if waits == 0 {
                settled.push(id.clone());
            }
        }
        Ok(settled)
    }

    /// One request does not wait any more. If `cancel` is set and no other does, nobody is asked any longer.
    ///
    /// # Errors
    /// That the file cannot be used.
    pub fn leave(&self, id: &str, cancel: bool, now: SystemTime) -> Result<(), ApprovalError> {
        self.change("withdraw an approval", |db| {
            let leave =
                "UPDATE approvals SET waiting = max(waiting - 1, 0) WHERE id = ?1 AND status = 'pending'";
            db.execute(leave, [id])?;
            if !cancel {
                return Ok(());
            }
            let cancel = "UPDATE approvals SET status = 'cancelled', decided = ?2 \
                          WHERE id = ?1 AND status = 'pending' AND waiting = 0 AND expires > ?2";
            if db.execute(cancel, params![id, millis(now)])? > 0 {
                notice::add(db, id, ApprovalStatus::Cancelled, now)?;
            }
            Ok(())
        })
    }

    /// At most `limit` approvals, the newest first.
    ///
    /// # Errors
    /// That the file cannot be read.
    pub fn list(
        &self,
        wanted: &Listed,
        limit: usize,
        now: SystemTime,
    ) -> Result<Vec<ApprovalSummary>, ApprovalError> {
        let query = format!(
            "SELECT id, {STATUS} AS state, created, expires, caller, surface, language, \
             substr(code, 1, {CODE_READ}) AS code, policy, decided, decider, reason, remembered FROM approvals \
             WHERE (:status IS NULL OR state = :status) AND (:caller IS NULL OR caller = :caller) \
             AND (NOT :remembered OR state IN ('approved', 'denied') AND remembered > :now) \
             AND (:before IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit"
        );
        let db = self.locked();
        let mut statement = db.prepare_cached(&query).doing("list the approvals")?;
        let rows = statement.query_map(
            rusqlite::named_params! {
                ":now": millis(now), ":status": wanted.status.map(ApprovalStatus::name), ":caller": wanted.caller,
                ":before": wanted.before, ":remembered": wanted.remembered, ":limit": i64::try_from(limit).unwrap_or(i64::MAX),
            },
            |row| Ok(summary(row)),
        );
        Ok(rows.doing("list the approvals")?.collect::<Result<_, _>>().doing("list the approvals")?)
    }

    /// One approval.
    ///
    /// # Errors
    /// That the file cannot be read.
    pub fn find(&self, id: &str, now: SystemTime) -> Result<Option<Found>, ApprovalError> {
        let query = format!("SELECT *, {STATUS} AS state FROM approvals WHERE id = :id");
        let db = self.locked();
        let mut statement = db.prepare_cached(&query).doing("look at an approval")?;
        let found = statement
            .query_row(rusqlite::named_params! { ":now": millis(now), ":id": id }, |row| Ok(found(row)));
        Ok(found.optional().doing("look at an approval")?)
    }

    /// A number that is another one when another connection has changed something.
    ///
    /// # Errors
    /// That the file cannot be read.
    pub fn version(&self) -> Result<i64, ApprovalError> {
        let version = self.locked().pragma_query_value(None, "data_version", |row| row.get(0));
        Ok(version.doing("look at the approvals")?)
    }

    /// One transaction, in which nobody else writes.
    pub(super) fn change<T>(
        &self,
        doing: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, ApprovalError> {
        let mut db = self.locked();
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        let changed = change(&transaction).doing(doing)?;
        transaction.commit().doing(doing)?;
        Ok(changed)
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, Connection> {
        // A transaction that was not committed has been rolled back.
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path) -> Result<Connection, LedgerError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).doing("open the approvals")?;
    configure(&db).doing("set the approvals up")?;
    Ok(db)
}

/// As the ledger, and without trust: root may open what an unprivileged server has written.
fn configure(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    // The files beside it stay: an unprivileged server has them mounted at their places.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    db.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    db.execute_batch(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0; PRAGMA cell_size_check = ON",
    )?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    // A decision is on disk before anybody acts on it.
    db.execute_batch("PRAGMA synchronous = FULL")?;
    db.query_row("PRAGMA journal_size_limit = 4194304", [], |_| Ok(()))
}

fn make_tables(db: &mut Connection) -> rusqlite::Result<()> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let there: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if there == 0 {
        schema::make(&transaction)?;
    }
    transaction.commit()
}

/// A finding as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredFinding {
    rule: String,
    severity: String,
    message: String,
    at: [u32; 4],
    excerpt: String,
    #[serde(default)]
    within: Option<String>,
}

impl StoredFinding {
    fn of(finding: &Finding) -> StoredFinding {
        let Finding { rule, severity, message, start, end, excerpt, within } = finding.clone();
        let at = [start.line, start.column, end.line, end.column];
        StoredFinding { rule, severity: severity.name().to_owned(), message, at, excerpt, within }
    }

    fn read(self) -> Finding {
        let StoredFinding { rule, severity, message, at, excerpt, within } = self;
        let [line, column, end_line, end_column] = at;
        Finding {
            rule,
            severity: Severity::by_name(&severity).unwrap_or(Severity::Critical),
            message,
            start: Position { line, column },
            end: Position { line: end_line, column: end_column },
            excerpt,
            within,
        }
    }
}

/// The parts of a submission that are stored as JSON.
struct Stored {
    policy: String,
    findings: String,
    request: String,
}

impl Stored {
    fn of(run: &Submission) -> Result<Stored, ApprovalError> {
        if run.code.len() > MOST_CODE {
            return Err(ApprovalError::TooLarge { part: "code", most: MOST_CODE });
        }
        let findings: Vec<_> = run.findings.iter().map(StoredFinding::of).collect();
        // None of the types has a `Serialize` that can fail.
        let [policy, findings, request] = [
            serde_json::to_string(&run.policy),
            serde_json::to_string(&findings),
            serde_json::to_string(&run.request),
        ]
        .map(Result::unwrap_or_default);
        if policy.len() + findings.len() + request.len() > MOST_DETAILS {
            return Err(ApprovalError::TooLarge { part: "request besides its code", most: MOST_DETAILS });
        }
        Ok(Stored { policy, findings, request })
    }
}

/// A decision about the same run that is remembered, or that nobody has been told.
fn decided_before(db: &Connection, run: &Submission, now: SystemTime) -> rusqlite::Result<Option<Settled>> {
    let decided = "SELECT id FROM approvals WHERE digest = ?1 AND caller = ?2 AND status IN ('approved', 'denied') \
                   AND (remembered > ?3 OR (taken = 0 AND expires > ?3)) ORDER BY decided DESC, id DESC LIMIT 1";
    let id =
        db.query_row(decided, params![run.digest, run.caller, millis(now)], |row| row.get::<_, String>(0));
    let Some(id) = id.optional()? else { return Ok(None) };
    db.execute("UPDATE approvals SET taken = 1, requests = requests + 1 WHERE id = ?1", [&id])?;
    Ok(state(db, &id, now)?.map(|(_, settled)| settled))
}

/// Waits for the decision that the same run of the same caller waits for.
fn join(db: &Connection, run: &Submission, now: SystemTime) -> rusqlite::Result<Option<(String, i64)>> {
    let join = "UPDATE approvals SET waiting = waiting + 1, requests = requests + 1 \
                WHERE digest = ?1 AND caller = ?2 AND status = 'pending' AND expires > ?3 RETURNING id, expires";
    let joined = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    db.query_row(join, params![run.digest, run.caller, millis(now)], joined).optional()
}

fn full(db: &Connection, caller: &str, now: SystemTime) -> rusqlite::Result<Option<ApprovalError>> {
    let counted = "SELECT count(*), coalesce(sum(caller = ?2), 0) FROM approvals WHERE status = 'pending' AND expires > ?1";
    let (all, own): (u64, u64) =
        db.query_row(counted, params![millis(now), caller], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(match (own >= PENDING_OF_CALLER, all >= PENDING) {
        (true, _) => Some(ApprovalError::Full { most: PENDING_OF_CALLER, of_caller: true }),
        (false, true) => Some(ApprovalError::Full { most: PENDING, of_caller: false }),
        (false, false) => None,
    })
}

fn insert(
    db: &Connection,
    run: &Submission,
    stored: &Stored,
    now: SystemTime,
    expires: SystemTime,
) -> rusqlite::Result<String> {
    let id = RunId::new().as_str().replacen("run_", "apr_", 1);
    let Submission { digest, caller, surface, peer, language, code, .. } = run;
    let Stored { policy, findings, request } = stored;
    db.execute(
        "INSERT INTO approvals VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'pending', NULL, NULL, NULL, \
         NULL, 1, 1, 0)",
        params![
            id, digest, caller, surface, peer, language, code, policy, findings, request, millis(now), millis(expires)
        ],
    )?;
    notice::add(db, &id, ApprovalStatus::Pending, now)?;
    Ok(id)
}

/// Who asked, and where it is.
fn state(db: &Connection, id: &str, now: SystemTime) -> rusqlite::Result<Option<(String, Settled)>> {
    let query = format!("SELECT caller, {STATUS} AS state, decider, reason FROM approvals WHERE id = :id");
    let read = |row: &Row<'_>| {
        let (by, reason) = (text(row, "decider"), text(row, "reason"));
        let settled = Settled { id: id.to_owned(), status: status(row), by, reason };
        Ok((text(row, "caller").unwrap_or_default(), settled))
    };
    db.query_row(&query, rusqlite::named_params! { ":now": millis(now), ":id": id }, read).optional()
}

fn settle(db: &Connection, id: &str, ruling: &Ruling, now: SystemTime) -> rusqlite::Result<()> {
    let status = if ruling.approve { ApprovalStatus::Approved } else { ApprovalStatus::Denied };
    let remembered = ruling.remember.map(|time| millis(now + time));
    db.execute(
        "UPDATE approvals SET status = ?2, decided = ?3, decider = ?4, reason = ?5, remembered = ?6 \
         WHERE id = ?1 AND status = 'pending'",
        params![id, status.name(), millis(now), ruling.by, ruling.reason, remembered],
    )?;
    notice::add(db, id, status, now)
}

/// Writes that the time of an approval is over, if it is.
fn lapse(db: &Connection, id: &str, now: SystemTime) -> rusqlite::Result<()> {
    let lapse = "UPDATE approvals SET status = 'expired', decided = expires WHERE id = ?1 AND status = 'pending' AND expires <= ?2";
    if db.execute(lapse, params![id, millis(now)])? > 0 {
        notice::add(db, id, ApprovalStatus::Expired, now)?;
    }
    Ok(())
}

/// Removes what need not be kept any longer.
fn prune(db: &Connection, now: SystemTime) -> rusqlite::Result<()> {
    let lapsed = "SELECT id FROM approvals WHERE status = 'pending' AND expires <= ?1";
    let mut statement = db.prepare_cached(lapsed)?;
    let lapsed: Vec<String> =
        statement.query_map([millis(now)], |row| row.get(0))?.collect::<Result<_, _>>()?;
    lapsed.iter().try_for_each(|id| lapse(db, id, now))?;
    let old = now.checked_sub(KEPT_FOR).map_or(0, millis);
    db.execute(
        "DELETE FROM approvals WHERE status <> 'pending' AND decided < ?1 AND coalesce(remembered, 0) <= ?2",
        params![old, millis(now)],
    )?;
    for (kinds, most) in [("'approved', 'denied'", DECIDED_KEPT), ("'expired', 'cancelled'", UNDECIDED_KEPT)]
    {
        let beyond = format!(
            "DELETE FROM approvals WHERE id IN (SELECT id FROM approvals WHERE status IN ({kinds}) \
             AND coalesce(remembered, 0) <= ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2)"
        );
        db.execute(&beyond, params![millis(now), most])?;
    }
    notice::prune(db, now)
}

/// An approval that is not there any more: somebody removed the file.
fn lost(id: &str) -> Settled {
    Settled { id: id.to_owned(), status: ApprovalStatus::Cancelled, by: None, reason: None }
}

fn at(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// A status that is none is not taken for a decision.
fn status(row: &Row<'_>) -> ApprovalStatus {
    let name = text(row, "state").unwrap_or_default();
    ApprovalStatus::by_name(&name).unwrap_or(ApprovalStatus::Cancelled)
}

fn time(row: &Row<'_>, column: &str) -> String {
    moment(integer(row, column).unwrap_or_default())
}

fn code(row: &Row<'_>) -> Vec<u8> {
    match row.get_ref("code") {
        Ok(ValueRef::Blob(bytes) | ValueRef::Text(bytes)) => bytes.to_vec(),
        Ok(ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_)) | Err(_) => Vec::new(),
    }
}

fn decision(row: &Row<'_>) -> Option<ApprovalDecision> {
    let approved = match status(row) {
        ApprovalStatus::Approved => true,
        ApprovalStatus::Denied => false,
        ApprovalStatus::Pending | ApprovalStatus::Expired | ApprovalStatus::Cancelled => return None,
    };
    Some(ApprovalDecision {
        approved,
        by: text(row, "decider").unwrap_or_default(),
        at: time(row, "decided"),
        reason: text(row, "reason"),
        remembered_until: integer(row, "remembered").map(moment),
    })
}

pub(super) fn summary(row: &Row<'_>) -> ApprovalSummary {
    ApprovalSummary {
        id: text(row, "id").unwrap_or_default(),
        status: status(row),
        created_at: time(row, "created"),
        expires_at: time(row, "expires"),
        caller: text(row, "caller").unwrap_or_default(),
        surface: text(row, "surface").unwrap_or_default(),
        language: text(row, "language").unwrap_or_default(),
        code: String::from_utf8_lossy(&code(row)).chars().take(CODE_SHOWN).collect(),
        policy: json(row, "policy").unwrap_or_default(),
        decision: decision(row),
    }
}

fn found(row: &Row<'_>) -> Found {
    let findings: Vec<StoredFinding> = json(row, "findings").unwrap_or_default();
    let findings: Vec<Finding> = findings.into_iter().map(StoredFinding::read).collect();
    let digest = match row.get_ref("digest") {
        Ok(ValueRef::Blob(bytes)) => hex(bytes),
        Ok(ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Text(_)) | Err(_) => {
            String::new()
        }
    };
    let approval = Approval {
        id: text(row, "id").unwrap_or_default(),
        status: status(row),
        created_at: time(row, "created"),
        expires_at: time(row, "expires"),
        caller: text(row, "caller").unwrap_or_default(),
        surface: text(row, "surface").unwrap_or_default(),
        peer: text(row, "peer"),
        policy: json(row, "policy").unwrap_or_default(),
        language: text(row, "language").unwrap_or_default(),
        code: String::from_utf8_lossy(&code(row)).into_owned(),
        findings: findings.iter().map(belljar_wire::Finding::from).collect(),
        request: json(row, "request").unwrap_or_default(),
        digest,
        requests: number(row, "requests").unwrap_or_default(),
        waiting: if status(row) == ApprovalStatus::Pending {
            number(row, "waiting").unwrap_or_default()
        } else {
            0
        },
        decision: decision(row),
    };
    Found { approval, findings }
}
