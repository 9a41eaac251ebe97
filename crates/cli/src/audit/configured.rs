//! `[audit]` in `belljar.toml`, and the ledger that it asks for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::limits::{Bytes, parse_duration};
use belljar_ledger::book::refuse_others;
use belljar_ledger::{Book, Key, LedgerError, OnFull, Redactor, Retention, Scribe, ScribeSettings, Written};
use belljar_server::config::Audit;
use belljar_wire::{Code, Problem};
use serde::Deserialize;

use crate::settings::{Scalar, Settings};
use crate::state::refuse_replaceable;

/// How large the ledger becomes if the configuration does not say.
const USUAL_SIZE: u64 = 4 << 30;
/// Accounts of runs that wait to be written, besides those of runs that are under way.
const WAITING: usize = 4096;
const DAY: u64 = 24 * 3600;

/// The table `[audit]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct AuditTable {
    /// Without it, servers record, and commands do not.
    pub(crate) enabled: Option<bool>,
    pub(crate) durable: bool,
    retain: RetainTable,
    pub(crate) on_full: OnFullWord,
    redact: Vec<String>,
}

/// How much is kept.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct RetainTable {
    age: Option<Scalar>,
    size: Option<Scalar>,
}

/// What happens if nothing can be recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnFullWord {
    #[default]
    Refuse,
    Run,
}

impl OnFullWord {
    pub(crate) fn name(self) -> &'static str {
        match self {
            OnFullWord::Refuse => "refuse",
            OnFullWord::Run => "run",
        }
    }
}

/// A ledger that is to be written: where, and how.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) dir: PathBuf,
    settings: ScribeSettings,
}

/// The key of a ledger, read while its file can be.
#[derive(Debug)]
pub(crate) struct Unlocked {
    planned: Planned,
    key: Key,
}

impl Planned {
    /// The ledger of a server, unless the settings say that there is none. `runs` is how many runs there can be at a time.
    pub(crate) fn of_server(settings: &Settings, runs: usize) -> Result<Option<Planned>, Problem> {
        settings.audit.enabled.unwrap_or(true).then(|| Planned::of(settings, runs)).transpose()
    }

    /// The ledger of a command such as `belljar run`, if the settings ask for one.
    pub(crate) fn of_command(settings: &Settings, runs: usize) -> Result<Option<Planned>, Problem> {
        settings.audit.enabled.unwrap_or(false).then(|| Planned::of(settings, runs)).transpose()
    }

    fn of(settings: &Settings, runs: usize) -> Result<Planned, Problem> {
        let table = &settings.audit;
        let redactor =
            Redactor::new(&table.redact).map_err(|error| wrong(settings, "redact", &error.with_causes()))?;
        let on_full = match table.on_full {
            OnFullWord::Refuse => OnFull::Refuse,
            OnFullWord::Run => OnFull::Run,
        };
        let (durable, retention) = (table.durable, retention(settings)?);
        let dir = settings.host.state_dir.clone().ok_or_else(nowhere)?;
        refuse_replaceable(&dir)?;
        let places = runs.saturating_add(WAITING);
        Ok(Planned { dir, settings: ScribeSettings { durable, on_full, retention, redactor, places } })
    }

    /// Refuses a ledger that another user wrote.
    pub(crate) fn of_ones_own(self) -> Result<Planned, Problem> {
        refuse_others(&self.dir).map_err(|error| unusable(&error))?;
        Ok(self)
    }

    /// Reads the key, or makes it.
    pub(crate) fn unlock(self) -> Result<Unlocked, Problem> {
        let key = Key::find_or_make(&self.dir).map_err(|error| unusable(&error))?;
        Ok(Unlocked { planned: self, key })
    }

    /// What records a single run.
    pub(crate) fn write_once(self) -> Result<Arc<Written>, Problem> {
        Written::open(&self.dir, self.settings).map(Arc::new).map_err(|error| unusable(&error))
    }
}

impl Unlocked {
    /// How it is read.
    pub(crate) fn audit(&self) -> Audit {
        Audit { dir: self.planned.dir.clone(), key: self.key.public() }
    }

    /// Begins to write.
    pub(crate) fn start(self) -> Result<Arc<Scribe>, Problem> {
        let Unlocked { planned: Planned { dir, settings }, key } = self;
        let book = Book::open(&dir, key, settings.sync()).map_err(|error| unusable(&error))?;
        let started = Scribe::start(book, settings).map_err(|cause| {
            let message = format!("cannot start the thread that writes the ledger: {cause}");
            Problem::new(Code::Internal, message, "check the limit on processes (ulimit -u)")
        });
        started.map(Arc::new)
    }
}

/// How much is kept: at most the usual size, unless the configuration says otherwise.
pub(crate) fn retention(settings: &Settings) -> Result<Retention, Problem> {
    let RetainTable { age, size } = &settings.audit.retain;
    let age = age.as_ref().map(|Scalar(text)| {
        parse_age(text).ok_or_else(|| wrong(settings, "retain.age", "write a time such as 90d or 12h"))
    });
    let bytes = size.as_ref().map(|Scalar(text)| {
        let parsed = Bytes::parse(text).ok().map(Bytes::get).filter(|bytes| *bytes >= 1 << 20);
        parsed.ok_or_else(|| wrong(settings, "retain.size", "write a size of at least 1M, such as 4G"))
    });
    Ok(Retention { age: age.transpose()?, bytes: Some(bytes.transpose()?.unwrap_or(USUAL_SIZE)) })
}

fn parse_age(text: &str) -> Option<Duration> {
    let age = match text.trim().strip_suffix('d') {
        Some(days) => Duration::from_secs(days.parse::<u32>().ok().map(u64::from)?.checked_mul(DAY)?),
        None => parse_duration(text).ok()?,
    };
    (age >= Duration::from_secs(1)).then_some(age)
}

fn wrong(settings: &Settings, option: &str, message: &str) -> Problem {
    let message = format!("{option} of [audit] in {}: {message}", settings.config);
    Problem::new(Code::InvalidRequest, message, "see docs/audit.md for the options of [audit]")
}

fn nowhere() -> Problem {
    let message = "there is no directory for the ledger";
    Problem::new(Code::InvalidRequest, message, "set BELLJAR_STATE_DIR to an absolute path")
}

pub(crate) fn unusable(error: &LedgerError) -> Problem {
    let (code, hint) = match error {
        LedgerError::Tampered { .. } => (
            Code::Internal,
            "`belljar audit verify` shows what is wrong; to begin a new ledger, move ledger.db and ledger.head away",
        ),
        LedgerError::Absent { .. } => (
            Code::NotFound,
            "`belljar serve` keeps one; other commands do if [audit] in belljar.toml has enabled = true",
        ),
        LedgerError::File { .. }
        | LedgerError::Database { .. }
        | LedgerError::NoKey { .. }
        | LedgerError::Pattern { .. } => (
            Code::Internal,
            "check the owner and the space of its directory; enabled = false in [audit] does without",
        ),
    };
    Problem::new(code, error.with_causes(), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_may_be_given_in_days() {
        assert_eq!(parse_age("90d"), Some(Duration::from_secs(90 * DAY)));
        assert_eq!(parse_age("12h"), Some(Duration::from_secs(12 * 3600)));
        for text in ["", "d", "0d", "-1d", "soon", "10ms"] {
            assert_eq!(parse_age(text), None, "{text}");
        }
    }
}
