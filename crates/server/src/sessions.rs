//! Sessions of the console. A browser that has shown a key gets a token in a cookie, and the token stands for the key from
//! then on: the browser need not keep the key. Sessions are in memory only, so that they end with the server.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::caller::{KeyHash, random_hex};

/// How long a session lasts, however much it is used: a day's work.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions of one key at a time. One more ends the oldest of them.
const MOST_OF_A_KEY: usize = 16;

/// The sessions that there are, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<VecDeque<Session>>);

/// One browser that has logged in. As with keys, only the hash of the token is kept.
#[derive(Debug)]
struct Session {
    token: KeyHash,
    key: KeyHash,
    began: Instant,
}

impl Sessions {
    /// Begins a session of whoever has this key, and returns its token.
    ///
    /// # Errors
    /// That the kernel has no random bits to give.
    pub(crate) fn begin(&self, key: KeyHash, now: Instant) -> io::Result<String> {
        let token = random_hex()?;
        let mut sessions = self.current(now);
        let of_key = |session: &Session| session.key == key;
        if sessions.iter().filter(|session| of_key(session)).count() >= MOST_OF_A_KEY
            && let Some(oldest) = sessions.iter().position(of_key)
        {
            sessions.remove(oldest);
        }
        sessions.push_back(Session { token: KeyHash::of(&token), key, began: now });
        Ok(token)
    }

    /// The key that a token stands for.
    pub(crate) fn key(&self, token: &str, now: Instant) -> Option<KeyHash> {
        let token = KeyHash::of(token);
        self.current(now).iter().find(|session| session.token == token).map(|session| session.key)
    }

    /// Ends the session of this token, if there is one.
    pub(crate) fn end(&self, token: &str, now: Instant) {
        let token = KeyHash::of(token);
        self.current(now).retain(|session| session.token != token);
    }

    /// Ends the sessions of all keys but those that are still known.
    pub(crate) fn keep(&self, is_known: impl Fn(KeyHash) -> bool) {
        self.lock().retain(|session| is_known(session.key));
    }

    /// The sessions that have not expired.
    fn current(&self, now: Instant) -> MutexGuard<'_, VecDeque<Session>> {
        let mut sessions = self.lock();
        while sessions.front().is_some_and(|oldest| now.saturating_duration_since(oldest.began) >= LIFETIME) {
            sessions.pop_front();
        }
        sessions
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Session>> {
        // Nothing between two changes of the list can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_stands_for_its_key_until_it_ends() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let (mine, yours) = (KeyHash::of("mine"), KeyHash::of("yours"));
        let first = sessions.begin(mine, now).unwrap();
        let second = sessions.begin(yours, now).unwrap();
        assert_eq!(sessions.key(&first, now), Some(mine));
        assert_eq!(sessions.key(&second, now), Some(yours));
        assert_eq!(sessions.key("", now), None);
        sessions.end(&first, now);
        assert_eq!(sessions.key(&first, now), None);
        assert_eq!(sessions.key(&second, now), Some(yours));
    }

    #[test]
    fn a_session_expires() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let token = sessions.begin(KeyHash::of("key"), now).unwrap();
        assert!(sessions.key(&token, now + LIFETIME - Duration::from_secs(1)).is_some());
        assert!(sessions.key(&token, now + LIFETIME).is_none());
        assert!(sessions.0.lock().unwrap().is_empty());
    }

    #[test]
    fn one_key_has_a_bounded_number_of_sessions_and_takes_none_from_others() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let other = sessions.begin(KeyHash::of("other"), now).unwrap();
        let key = KeyHash::of("key");
        let tokens: Vec<_> = (0..=MOST_OF_A_KEY).map(|_| sessions.begin(key, now).unwrap()).collect();
        assert!(sessions.key(&tokens[0], now).is_none());
        assert!(tokens[1..].iter().all(|token| sessions.key(token, now) == Some(key)));
        assert!(sessions.key(&other, now).is_some());
    }

    #[test]
    fn the_sessions_of_a_key_that_is_removed_end() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let (kept, removed) = (KeyHash::of("kept"), KeyHash::of("removed"));
        let tokens = [kept, removed].map(|key| sessions.begin(key, now).unwrap());
        sessions.keep(|key| key == kept);
        assert_eq!(tokens.map(|token| sessions.key(&token, now)), [Some(kept), None]);
    }
}
