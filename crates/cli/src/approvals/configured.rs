//! `[approvals]` in `belljar.toml`.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::limits::parse_duration;
use belljar_engine::{Answer, Approver, Ask, Unapprovable};
use belljar_ledger::approvals::{Abandoned, ApprovalTerms, Approvals, Own, Polling, Waiting};
use belljar_wire::{Code, Problem};
use serde::Deserialize;

use super::webhook::{Hook, Webhook};
use crate::problem;
use crate::settings::{Scalar, Settings};
use crate::state::refuse_replaceable;

const USUAL_WAIT: Duration = Duration::from_secs(10);
const USUAL_EXPIRY: Duration = Duration::from_secs(3600);
const USUAL_MEMORY: Duration = Duration::from_secs(24 * 3600);
/// The longest times.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
const DAY: u64 = 24 * 3600;

/// The table `[approvals]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct ApprovalsTable {
    wait: Option<Scalar>,
    expire: Option<Scalar>,
    remember: Option<Scalar>,
    allow_own: bool,
    webhook: Option<String>,
    webhook_secret: Option<Hidden>,
}

/// A secret, which no message shows.
#[derive(Clone, Deserialize)]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// What holds for approvals.
#[derive(Debug)]
pub(crate) struct Configured {
    /// How long an answer waits for a decision.
    pub(crate) wait: Duration,
    pub(crate) terms: ApprovalTerms,
    pub(crate) hook: Option<Hook>,
}

impl Configured {
    /// What the settings say.
    pub(crate) fn of(settings: &Settings) -> Result<Configured, Problem> {
        let fallback = ApprovalsTable::default();
        let table = settings.approvals.as_ref().unwrap_or(&fallback);
        let place = Place(settings);
        let wait = place.time("wait", table.wait.as_ref(), Duration::ZERO..=LONGEST_WAIT)?;
        let expire = place.time("expire", table.expire.as_ref(), Duration::from_secs(1)..=LONGEST)?;
        let remember = place.time("remember", table.remember.as_ref(), Duration::ZERO..=LONGEST)?;
        // Without keys there is one caller, who has to decide.
        let own = if table.allow_own || settings.keys.is_empty() { Own::Allowed } else { Own::Refused };
        Ok(Configured {
            wait: wait.unwrap_or(USUAL_WAIT),
            terms: ApprovalTerms {
                expire: expire.unwrap_or(USUAL_EXPIRY),
                remember: remember.unwrap_or(USUAL_MEMORY),
                own,
            },
            hook: place.hook(table)?,
        })
    }

    /// The same, with the directory of the file, which is made.
    pub(crate) fn prepare(self, settings: &Settings) -> Result<Prepared, Problem> {
        let dir = settings.host.state_dir.clone().ok_or_else(nowhere)?;
        refuse_replaceable(&dir)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|cause| {
            let message = format!("cannot make the directory {}: {cause}", dir.display());
            Problem::new(Code::Internal, message, "set BELLJAR_STATE_DIR to a directory that you can write")
        })?;
        Ok(Prepared { dir, configured: self })
    }
}

/// Approvals that can be asked for, once the file is opened.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) dir: PathBuf,
    configured: Configured,
}

impl Prepared {
    /// Opens the file, and begins to watch it. With a webhook, begins to tell it of changes.
    pub(crate) fn start(self, abandoned: Abandoned) -> Result<Opened, Problem> {
        let Prepared { dir, configured: Configured { terms, hook, .. } } = self;
        let waiting = Arc::new(Waiting::start(&dir, terms, abandoned)?);
        let webhook = hook.map(|hook| Webhook::start(hook, &dir, terms)).transpose()?;
        Ok(Opened { waiting, _webhook: webhook })
    }
}

/// Asks through the file, for `belljar run` without a terminal. Only if the configuration has `[approvals]`.
pub(crate) fn for_command(settings: &Settings) -> Result<Option<Arc<dyn Approver>>, Problem> {
    if settings.approvals.is_none() {
        return Ok(None);
    }
    let Prepared { dir, configured } = Configured::of(settings)?.prepare(settings)?;
    let store = Approvals::open(&dir, configured.terms)?;
    Ok(Some(Arc::new(Announced(Polling::new(store)))))
}

/// Tells the person who waits what for.
#[derive(Debug)]
struct Announced(Polling);

impl Approver for Announced {
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable> {
        let answer = self.0.ask(ask)?;
        if let Answer::Pending(pending) = &answer {
            let id = &pending.approval_id;
            problem::note(&format!("waiting for approval; decide with: belljar approvals show {id}"));
        }
        Ok(answer)
    }
}

/// What approvals need while a server runs.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) waiting: Arc<Waiting>,
    _webhook: Option<Webhook>,
}

/// Where the table is written, for messages about it.
struct Place<'a>(&'a Settings);

impl Place<'_> {
    fn time(
        &self,
        option: &str,
        text: Option<&Scalar>,
        range: std::ops::RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, Problem> {
        let Some(Scalar(text)) = text else { return Ok(None) };
        let time = parse_time(text).filter(|time| range.contains(time));
        let (least, most) = (range.start().as_secs(), range.end().as_secs());
        let message = format!("'{}' is not a time from {least} s to {most} s", text.escape_debug());
        time.map(Some).ok_or_else(|| self.wrong(option, &message, "write a time such as 30s, 2h or 1d"))
    }

    fn hook(&self, table: &ApprovalsTable) -> Result<Option<Hook>, Problem> {
        match (&table.webhook, &table.webhook_secret) {
            (Some(url), Some(Hidden(secret))) => Hook::parse(url, secret)
                .map(Some)
                .map_err(|(option, message, hint)| self.wrong(option, &message, hint)),
            (Some(_), None) => {
                let hint =
                    "write webhook-secret = \"…\" with 16 characters or more, which the receiver knows, too";
                Err(self.wrong("webhook-secret", "a webhook needs a secret to sign with", hint))
            }
            (None, Some(_)) => Err(self.wrong(
                "webhook",
                "there is a secret, but no webhook",
                "write webhook = \"http://…\"",
            )),
            (None, None) => Ok(None),
        }
    }

    fn wrong(&self, option: &str, message: &str, hint: &str) -> Problem {
        let message = format!("{option} of [approvals] in {}: {message}", self.0.config);
        Problem::new(Code::InvalidRequest, message, hint)
    }
}

/// A time, which may be given in days.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    match text.trim().strip_suffix('d') {
        Some(days) => days.parse::<u32>().ok().map(|days| Duration::from_secs(u64::from(days) * DAY)),
        None => parse_duration(text).ok(),
    }
}

pub(super) fn nowhere() -> Problem {
    let message = "there is no directory for the approvals";
    Problem::new(Code::InvalidRequest, message, "set BELLJAR_STATE_DIR to an absolute path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_given_in_days() {
        assert_eq!(parse_time("2d"), Some(Duration::from_secs(2 * DAY)));
        assert_eq!(parse_time("90m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse_time("0s"), Some(Duration::ZERO));
        for text in ["", "d", "-1d", "1.5d", "soon", "99999999999d"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn no_message_shows_the_secret() {
        let table: ApprovalsTable = toml::from_str("webhook-secret = \"correct horse battery\"").unwrap();
        assert!(!format!("{table:?}").contains("horse"), "{table:?}");
        assert!(table.webhook_secret.is_some_and(|Hidden(secret)| secret.contains("horse")), "the control");
    }
}
