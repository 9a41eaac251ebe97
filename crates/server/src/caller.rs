//! Who asks, and what they may do.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::allowance::Allowance;
use belljar_core::policy::Policy;
use belljar_engine::{Origin, Rights, Scans, WayIn};
use belljar_wire::{Code, Problem};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Config;
use crate::defaults::Defaults;

/// The name of the one caller of a server without keys.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// One who asks. Every request carries one (as an extension, on HTTP); a run belongs to the caller that started it,
/// and no other caller can see it.
#[derive(Debug, Clone)]
pub struct Caller(Arc<Account>, Entrance);

/// Where a request came in.
#[derive(Debug, Clone)]
struct Entrance {
    surface: WayIn,
    peer: Option<IpAddr>,
    cells: Option<Arc<[String]>>,
    scans: Option<Arc<Scans>>,
}

#[derive(Debug)]
struct Account {
    name: Arc<str>,
    allowance: Allowance,
    policy: Arc<Policy>,
    defaults: Defaults,
    quota: Quota,
    /// Whether they may read the audit log.
    audits: bool,
    /// Whether they may decide about runs that wait for approval.
    approves: bool,
    meter: Arc<Meter>,
}

/// How much a caller may do at a time; `None` is as much as the server can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quota {
    /// Runs at a time, those in the queue included.
    pub concurrent: Option<usize>,
    /// Requests in a minute.
    pub per_minute: Option<u32>,
    /// Bytes of uploaded files that are kept.
    pub uploads: Option<usize>,
}

/// What a caller is at, which outlives a reload of the configuration.
#[derive(Debug, Default)]
struct Meter {
    runs: AtomicUsize,
    waits: Arc<AtomicUsize>,
    spent: Mutex<Option<Spent>>,
}

/// Requests of late, as a bucket that leaks.
#[derive(Debug, Clone, Copy)]
struct Spent {
    level: f64,
    at: Instant,
}

/// One of a caller's runs, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Presence(Arc<Meter>);

impl Caller {
    /// The one caller of a server without keys, and of a server on standard input and output.
    #[must_use]
    pub fn anonymous(allowance: Allowance, policy: Arc<Policy>, defaults: &Defaults) -> Caller {
        let defaults = defaults.within(&allowance);
        let (name, quota, meter) = (ANONYMOUS.into(), Quota::default(), Arc::default());
        let (audits, approves) = (true, true);
        Caller::new(Account { name, allowance, policy, defaults, quota, audits, approves, meter })
    }

    fn holder(key: &Key, defaults: &Defaults, meter: Arc<Meter>) -> Caller {
        let Key { name, allowance, policy, quota, audits, approves, .. } = key.clone();
        let (name, defaults) = (name.into(), defaults.within(&allowance));
        Caller::new(Account { name, allowance, policy, defaults, quota, audits, approves, meter })
    }

    fn new(account: Account) -> Caller {
        Caller(Arc::new(account), Entrance { surface: WayIn::Http, peer: None, cells: None, scans: None })
    }

    /// The same caller, of whom this request came from this address.
    pub(crate) fn at(self, peer: Option<IpAddr>) -> Caller {
        Caller(self.0, Entrance { peer, ..self.1 })
    }

    /// The same caller, who came in here.
    #[must_use]
    pub fn through(self, surface: WayIn) -> Caller {
        Caller(self.0, Entrance { surface, ..self.1 })
    }

    /// The same caller, who wrote this: it is what is scanned and recorded as the code, instead of the program that reads it.
    pub(crate) fn writing(self, cells: Arc<[String]>) -> Caller {
        Caller(self.0, Entrance { cells: Some(cells), ..self.1 })
    }

    /// The same caller, for a request that runs more than once: what is the same in all of these runs is scanned once.
    pub(crate) fn repeating(self) -> Caller {
        Caller(self.0, Entrance { scans: Some(Arc::default()), ..self.1 })
    }

    /// Who asks, for the record.
    pub(crate) fn origin(&self) -> Origin {
        let Entrance { surface, peer, cells, scans: _ } = self.1.clone();
        Origin { caller: self.0.name.clone(), surface, peer, cells }
    }

    /// Refuses who may not read the audit log.
    pub(crate) fn may_audit(&self) -> Result<(), Problem> {
        if self.0.audits {
            return Ok(());
        }
        let message = "this key may not read the audit log";
        Err(Problem::new(Code::Forbidden, message, "write audit = true for it in [[keys]]"))
    }

    /// Whether they may decide about runs that wait for approval, and see those of others.
    pub(crate) fn approves(&self) -> bool {
        self.0.approves
    }

    /// Refuses who may not decide about runs that wait for approval.
    pub(crate) fn may_approve(&self) -> Result<(), Problem> {
        if self.0.approves {
            return Ok(());
        }
        let message = "this key may not approve or deny runs";
        Err(Problem::new(Code::Forbidden, message, "write approve = true for it in [[keys]]"))
    }

    /// What they are called, in logs and in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What they may do.
    #[must_use]
    pub fn allowance(&self) -> &Allowance {
        &self.0.allowance
    }

    /// What they may do, and what is done with what they want to run.
    pub(crate) fn rights(&self) -> Rights<'_> {
        Rights { allowance: &self.0.allowance, policy: &self.0.policy, scans: self.1.scans.as_deref() }
    }

    /// What they get if they do not say.
    pub(crate) fn defaults(&self) -> &Defaults {
        &self.0.defaults
    }

    /// The most bytes of uploaded files, of so many that the server has room for.
    pub(crate) fn upload_room(&self, all: usize) -> usize {
        self.0.quota.uploads.map_or(all, |most| most.min(all))
    }

    /// Counts a run.
    pub(crate) fn enter(&self) -> Result<Presence, Problem> {
        let most = self.0.quota.concurrent.unwrap_or(usize::MAX);
        let room = |runs: usize| (runs < most).then_some(runs + 1);
        match self.0.meter.runs.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
            Ok(_) => Ok(Presence(self.0.meter.clone())),
            Err(runs) => {
                let message = format!("{runs} runs of this key are under way, which is all that it may have");
                Err(busy(message, Duration::from_secs(1)))
            }
        }
    }

    /// Counts a request that waits for a run which it did not start.
    ///
    /// # Errors
    /// That `most` of this caller's requests do that: each of them keeps a connection that others need.
    pub(crate) fn wait(&self, most: usize) -> Result<Wait, Problem> {
        let room = |waits: usize| (waits < most).then_some(waits + 1);
        let waits = &self.0.meter.waits;
        match waits.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
            Ok(_) => Ok(Wait(waits.clone())),
            Err(waits) => {
                let message = format!("{waits} requests of this caller already wait for runs or follow them");
                Err(busy(message, Duration::from_secs(1)))
            }
        }
    }

    /// Counts a request.
    pub(crate) fn spend(&self, now: Instant) -> Result<(), Problem> {
        let Some(per_minute) = self.0.quota.per_minute else { return Ok(()) };
        let (most, rate) = (f64::from(per_minute), f64::from(per_minute) / 60.0);
        let mut spent = self.0.meter.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let before = spent.unwrap_or(Spent { level: 0.0, at: now });
        let leaked = now.saturating_duration_since(before.at).as_secs_f64() * rate;
        let level = (before.level - leaked).max(0.0) + 1.0;
        if level > most {
            let wait = Duration::from_secs_f64(((level - most) / rate).clamp(0.0, 3600.0));
            let message = format!("this key may make {per_minute} requests in a minute");
            return Err(busy(message, wait));
        }
        *spent = Some(Spent { level, at: now });
        Ok(())
    }
}

/// A request that waits, for as long as it does.
#[derive(Debug)]
pub(crate) struct Wait(Arc<AtomicUsize>);

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.runs.fetch_sub(1, Ordering::AcqRel);
    }
}

fn busy(message: String, wait: Duration) -> Problem {
    let seconds = wait.as_secs() + 1;
    let hint = format!("try again in {seconds} s");
    Problem { retry_after: Some(Duration::from_secs(seconds)), ..Problem::new(Code::Busy, message, hint) }
}

/// A key as its owner has it. It is shown once and stored nowhere.
pub struct Secret(String);

impl Secret {
    /// 256 random bits.
    ///
    /// # Errors
    /// That the kernel has none to give.
    pub fn random() -> std::io::Result<Secret> {
        Ok(Secret(format!("bj_{}", random_hex()?)))
    }

    /// The text, for the one time that it is shown.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the configuration has of it.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The SHA-256 of a key. A key has 256 random bits, so that neither salt nor slowness would add anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub(crate) fn of(secret: &str) -> KeyHash {
        KeyHash(Sha256::digest(secret).into())
    }

    /// 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<KeyHash> {
        let digits = text.as_bytes();
        let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
        let byte = |at: usize| u8::try_from(digit(2 * at)? * 16 + digit(2 * at + 1)?).ok();
        let mut hash = [0; 32];
        for (at, slot) in hash.iter_mut().enumerate() {
            *slot = byte(at)?;
        }
        (digits.len() == 64).then_some(KeyHash(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// 256 random bits, in hexadecimal.
pub(crate) fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    // Up to 256 bytes come whole or not at all (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key as the configuration has it.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Key {
    pub name: String,
    pub hash: KeyHash,
    pub allowance: Allowance,
    pub policy: Arc<Policy>,
    pub quota: Quota,
    /// Whether its holder may read the audit log.
    pub audits: bool,
    /// Whether its holder may decide about runs that wait for approval.
    pub approves: bool,
}

/// Who may ask.
#[derive(Debug)]
pub(crate) enum Callers {
    /// Anybody who can connect: such a server listens on this machine only.
    Anyone(Caller),
    /// Anybody with one of these keys.
    Holders(Vec<(KeyHash, Caller)>),
}

impl Callers {
    /// Those of a configuration. A caller that was there before goes on with what it is at.
    pub(crate) fn new(config: &Config, before: Option<&Callers>) -> Callers {
        if config.keys.is_empty() {
            return Callers::Anyone(Caller::anonymous(
                config.anonymous.clone(),
                config.policy.clone(),
                &config.defaults,
            ));
        }
        let holder = |key: &Key| {
            let meter = before.and_then(|before| before.meter(&key.name)).unwrap_or_default();
            (key.hash, Caller::holder(key, &config.defaults, meter))
        };
        Callers::Holders(config.keys.iter().map(holder).collect())
    }

    /// Each of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Caller> {
        let (anyone, holders) = match self {
            Callers::Anyone(caller) => (Some(caller), &[][..]),
            Callers::Holders(holders) => (None, &holders[..]),
        };
        anyone.into_iter().chain(holders.iter().map(|(_, caller)| caller))
    }

    /// Whose key this is. Takes the same time for every key that is not known, whatever it has in common with one
    /// that is.
    pub(crate) fn holder(&self, presented: &str) -> Option<Caller> {
        let Callers::Holders(holders) = self else { return None };
        let hash = KeyHash::of(presented);
        let mut found = None;
        for (known, caller) in holders {
            if bool::from(known.0.ct_eq(&hash.0)) {
                found = Some(caller.clone());
            }
        }
        found
    }

    /// Who has the key of this hash.
    pub(crate) fn by_hash(&self, hash: KeyHash) -> Option<Caller> {
        let Callers::Holders(holders) = self else { return None };
        holders.iter().find(|(known, _)| *known == hash).map(|(_, caller)| caller.clone())
    }

    fn meter(&self, name: &str) -> Option<Arc<Meter>> {
        let Callers::Holders(holders) = self else { return None };
        holders.iter().find(|(_, caller)| caller.name() == name).map(|(_, caller)| caller.0.meter.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, secret: &Secret, quota: Quota) -> Key {
        let (allowance, policy, approves) = (Allowance::boxed(), Arc::default(), false);
        Key { name: name.into(), hash: secret.hash(), allowance, policy, quota, audits: false, approves }
    }

    fn callers(keys: &[Key], before: Option<&Callers>) -> Callers {
        Callers::new(&Config { keys: keys.to_vec(), ..Config::default() }, before)
    }

    #[test]
    fn a_key_is_known_by_its_hash_alone() {
        let (mine, yours) = (Secret::random().unwrap(), Secret::random().unwrap());
        let keys = [key("mine", &mine, Quota::default()), key("yours", &yours, Quota::default())];
        let callers = callers(&keys, None);
        assert_eq!(callers.holder(mine.reveal()).unwrap().name(), "mine");
        assert_eq!(callers.holder(yours.reveal()).unwrap().name(), "yours");
        for wrong in ["", "bj_", &mine.hash().to_string(), &mine.reveal().to_uppercase()] {
            assert!(callers.holder(wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{mine:?} {:?}", keys[0].hash), "Secret(…) KeyHash(…)");
    }

    #[test]
    fn a_hash_reads_back_as_it_was_shown() {
        let hash = Secret::random().unwrap().hash();
        assert_eq!(KeyHash::parse(&hash.to_string()), Some(hash));
        for text in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"ä".repeat(32)] {
            assert_eq!(KeyHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn requests_beyond_the_rate_are_refused_until_time_has_passed() {
        let (secret, now) = (Secret::random().unwrap(), Instant::now());
        let quota = Quota { per_minute: Some(2), ..Quota::default() };
        let callers = callers(&[key("a", &secret, quota)], None);
        let caller = callers.holder(secret.reveal()).unwrap();
        assert!(caller.spend(now).is_ok() && caller.spend(now).is_ok());
        let refused = caller.spend(now).unwrap_err();
        assert_eq!((refused.error.code, refused.retry_after.unwrap().as_secs()), (Code::Busy, 31));
        assert!(caller.spend(now + Duration::from_secs(31)).is_ok());
        assert!(caller.spend(now + Duration::from_secs(31)).is_err());
    }

    #[test]
    fn what_a_caller_is_at_outlives_a_reload() {
        let secret = Secret::random().unwrap();
        let quota = Quota { concurrent: Some(1), ..Quota::default() };
        let keys = [key("a", &secret, quota)];
        let before = callers(&keys, None);
        let presence = before.holder(secret.reveal()).unwrap().enter().unwrap();
        let after = callers(&keys, Some(&before));
        let caller = after.holder(secret.reveal()).unwrap();
        assert_eq!(caller.enter().unwrap_err().error.code, Code::Busy);
        drop(presence);
        assert!(caller.enter().is_ok());
    }
}
