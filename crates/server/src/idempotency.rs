//! Requests that are sent twice because the first answer was lost: the second gets the first one's result.
//!
//! A key stands for one request of one caller. It is remembered together with the body's hash and the run that it
//! started, while that runs and then for as long as results are. A run that was cancelled (its client may have gone away, and now tries again)
//! or that Belljar could not carry out has no result to give; then the same request starts anew.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::outcome::Outcome;
use belljar_wire::{Code, Local, Problem, RunRequest};
use sha2::{Digest, Sha256};

use crate::caller::Caller;
use crate::config::Keep;
use crate::runs::{End, Found, Run, Runs};
use crate::store::Store;

/// The longest key.
const MAX_KEY: usize = 255;
/// What remembering a key costs, near enough.
pub(crate) const KEY_BYTES: usize = 512;
/// Longer than any run can take, with its time in the queue.
const LONGEST_RUN: Duration = Duration::from_secs(48 * 3600);

/// How many requests with keys can be started at a time.
const STRIPES: u64 = 256;

/// What a client calls its request.
#[derive(Debug, Clone)]
pub(crate) struct Key(String);

impl Key {
    /// The value of an `Idempotency-Key` header.
    pub(crate) fn parse(value: &[u8]) -> Result<Key, Problem> {
        let text = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
        match text {
            Some(text) if (1..=MAX_KEY).contains(&text.len()) => Ok(Key(text.to_owned())),
            _ => {
                let message = "the Idempotency-Key is not valid";
                let hint = format!("use 1 to {MAX_KEY} visible ASCII characters, such as a UUID");
                Err(Problem::new(Code::InvalidRequest, message, hint))
            }
        }
    }
}

impl Key {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The keys that are remembered.
#[derive(Debug)]
pub(crate) struct Replays {
    known: Arc<Mutex<Store<Known>>>,
    /// One of them is held while a run is started, so that two requests of the same key are one. Which one, the key says;
    /// requests of other keys seldom wait for it.
    starting: Vec<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone)]
struct Known {
    body: [u8; 32],
    run: String,
}

/// Where the answer to a request comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A run of its own.
    New(Run),
    /// The run that an earlier request of the same key started.
    Known(String),
}

impl Replays {
    pub(crate) fn new(keep: Keep) -> Replays {
        let starting = (0..STRIPES).map(|_| tokio::sync::Mutex::default()).collect();
        Replays { known: Arc::new(Mutex::new(Store::new(keep))), starting }
    }

    /// Starts a run, unless this request has started one already. Two that come at the same time are one, too: a lock is
    /// held until the run is known.
    pub(crate) async fn start(
        &self,
        runs: &Runs,
        caller: &Caller,
        key: &Key,
        body: &[u8],
        request: RunRequest,
    ) -> Result<Origin, Problem> {
        let (now, body) = (Instant::now(), Sha256::digest(body).into());
        let _starting = self.stripe(caller, key).lock().await;
        let earlier = locked(&self.known).get(caller.name(), &key.0, now);
        if let Some(earlier) = earlier {
            if earlier.body != body {
                return Err(used_otherwise(key));
            }
            if runs.find(caller, &earlier.run).is_ok_and(|found| answers(&found)) {
                return Ok(Origin::Known(earlier.run));
            }
        }
        let run = runs.begin(caller, request, Local::default()).await?;
        let started = Known { body, run: run.id.to_string() };
        // While it runs, it does not grow old.
        let until = now + LONGEST_RUN;
        locked(&self.known).put(caller.name(), key.0.clone(), started.clone(), KEY_BYTES, until);
        let (known, owner, key) = (self.known.clone(), caller.name().to_owned(), key.0.clone());
        runs.when_ended(&run, move || age(&known, &owner, key, started));
        Ok(Origin::New(run))
    }

    fn stripe(&self, caller: &Caller, key: &Key) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        (caller.name(), &key.0).hash(&mut hasher);
        &self.starting[usize::try_from(hasher.finish() % STRIPES).unwrap_or_default()]
    }
}

/// From now on a key grows old, unless it stands for another run by now.
fn age(known: &Mutex<Store<Known>>, owner: &str, key: String, ended: Known) {
    let (now, mut known) = (Instant::now(), locked(known));
    if known.get(owner, &key, now).is_some_and(|latest| latest.run == ended.run) {
        known.put(owner, key, ended, KEY_BYTES, now);
    }
}

/// A panic while the lock was held left the map as it was before or after one change.
fn locked(known: &Mutex<Store<Known>>) -> MutexGuard<'_, Store<Known>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an earlier run is, or may become, an answer.
fn answers(found: &Found) -> bool {
    match found {
        Found::Unfinished(_) => true,
        Found::Finished(end) => is_result(end),
    }
}

/// Whether a run that has ended answers a request that is sent again.
pub(crate) fn is_result(end: &End) -> bool {
    end.as_ref().is_ok_and(|finished| !matches!(finished.report.outcome, Outcome::Cancelled(_)))
}

pub(crate) fn used_otherwise(key: &Key) -> Problem {
    let message = format!("the Idempotency-Key '{}' was used for another request", key.0);
    Problem::new(Code::Conflict, message, "use a new key for every new request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_and_visible() {
        assert!(Key::parse(b"7f9c2ba4-e88f").is_ok());
        for value in [&b""[..], b"a b", b"\xff", "ä".as_bytes(), &[b'x'; 256]] {
            assert!(Key::parse(value).is_err(), "{value:?}");
        }
    }
}
