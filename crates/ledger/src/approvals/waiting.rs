//! The requests of a process that wait for a decision, and the thread that tells them. Any process can decide, so the
//! thread looks whether the file has changed, for as long as somebody waits. Otherwise it sleeps.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use belljar_engine::{Answer, Approver, Ask, Carried, Described, Pending, Unapprovable, Verdict};
use belljar_wire::{ApprovalFile, ApprovalPolicy, ApprovalRequest, ApprovalStatus, AuditFile};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::error::ApprovalError;
use super::store::{ApprovalTerms, Approvals, Settled, Submission, Submitted};
use crate::entry::{digested, stated};
use crate::error::file;

/// How often the thread looks for decisions while somebody waits for one.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Who decided, where nobody did.
const NOBODY: &str = "nobody";

/// What becomes of an approval when the last request that waits for it goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// Nobody is asked any more.
    Cancel,
    /// It can be decided for the next request, until it expires.
    Keep,
}

/// Asks people through the file, and waits for what they decide.
#[derive(Debug)]
pub struct Waiting {
    store: Arc<Approvals>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiters: Vec<Waiter>,
    /// Approvals that somebody does not wait for any more, and what becomes of each.
    left: Vec<(String, Abandoned)>,
    tickets: u64,
    /// Whether somebody began to wait whom nobody has looked for yet.
    fresh: bool,
    abandoned: Abandoned,
    ended: bool,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    id: String,
    expires: SystemTime,
    tell: oneshot::Sender<Verdict>,
}

impl Waiting {
    /// Begins to watch the approvals of this directory, on a thread of its own.
    ///
    /// # Errors
    /// That the file cannot be opened, or the thread cannot be started.
    pub fn start(dir: &Path, terms: ApprovalTerms, abandoned: Abandoned) -> Result<Waiting, ApprovalError> {
        let store = Arc::new(Approvals::open(dir, terms)?);
        // A connection of its own: SQLite tells a connection only of what others have changed.
        let watched = Approvals::open(dir, terms)?;
        let shared = Arc::new(Shared::new(abandoned));
        let watch = Watch { store: watched, shared: shared.clone(), version: None };
        let thread = std::thread::Builder::new().name("belljar-approve".to_owned()).spawn(|| watch.work());
        let thread = thread.map_err(file("start the thread that watches", dir))?;
        Ok(Waiting { store, shared, thread: Mutex::new(Some(thread)) })
    }

    /// The file.
    #[must_use]
    pub fn store(&self) -> &Arc<Approvals> {
        &self.store
    }

    /// From now on, what requests leave behind stays to be decided: this process is about to end, and they may come again.
    pub fn keep_what_is_left(&self) {
        self.shared.locked().abandoned = Abandoned::Keep;
    }

    fn submit(&self, ask: &Ask) -> Result<Answer, ApprovalError> {
        match self.store.submit(&Submission::from(ask), SystemTime::now())? {
            Submitted::Settled(settled) => Ok(Answer::Decided(verdict(settled, self.store.terms()))),
            Submitted::Pending { id, expires } => {
                let (tell, told) = oneshot::channel();
                let leaving = self.shared.register(id.clone(), expires, tell);
                let approval_id = id.clone();
                let decided = Box::pin(async move {
                    let _leaving = leaving;
                    told.await.unwrap_or_else(|_| unwatched(id))
                });
                Ok(Answer::Pending(Pending { approval_id, decided }))
            }
        }
    }
}

impl Approver for Waiting {
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable> {
        // It waits for the disk. Other requests go on elsewhere meanwhile.
        let submit = || self.submit(&ask).map_err(|error| Unapprovable { why: error.to_string() });
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(submit),
            _ => submit(),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.locked().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(abandoned: Abandoned) -> Shared {
        let state = State {
            waiters: Vec::new(),
            left: Vec::new(),
            tickets: 0,
            fresh: false,
            abandoned,
            ended: false,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn register(
        self: &Arc<Shared>,
        id: String,
        expires: SystemTime,
        tell: oneshot::Sender<Verdict>,
    ) -> Leaving {
        let mut state = self.locked();
        state.tickets += 1;
        let ticket = state.tickets;
        state.waiters.push(Waiter { ticket, id, expires, tell });
        state.fresh = true;
        drop(state);
        self.changed.notify_all();
        Leaving { shared: self.clone(), ticket }
    }

    /// A panic while the lock was held left the state as it was before or after one change.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a request does not wait any more, when its future is dropped before it was told.
struct Leaving {
    shared: Arc<Shared>,
    ticket: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.shared.locked();
        // Whoever was told is not there any more.
        let Some(at) = state.waiters.iter().position(|waiter| waiter.ticket == self.ticket) else { return };
        let (Waiter { id, .. }, abandoned) = (state.waiters.swap_remove(at), state.abandoned);
        state.left.push((id, abandoned));
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// The thread.
struct Watch {
    store: Approvals,
    shared: Arc<Shared>,
    /// That of the file when it was last looked at.
    version: Option<i64>,
}

impl Watch {
    fn work(mut self) {
        loop {
            let mut state = self.shared.locked();
            if state.left.is_empty() && !state.ended {
                state = self.pause(state);
            }
            let (left, ended) = (std::mem::take(&mut state.left), state.ended);
            let fresh = std::mem::take(&mut state.fresh);
            let waiting: Vec<_> = state.waiters.iter().map(|one| (one.id.clone(), one.expires)).collect();
            drop(state);
            left.into_iter().for_each(|(id, abandoned)| self.leave(&id, abandoned));
            if ended {
                // Dropping the senders wakes those who still wait.
                return self.shared.locked().waiters.clear();
            }
            if let Err(error) = self.look(waiting, fresh) {
                tracing::error!(%error, "cannot look for decisions");
                // Tried again the next time.
                self.version = None;
            }
        }
    }

    fn pause<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.fresh {
            return state;
        }
        if state.waiters.is_empty() {
            return self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.shared.changed.wait_timeout(state, LOOK_EVERY);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn look(&mut self, waiting: Vec<(String, SystemTime)>, fresh: bool) -> Result<(), ApprovalError> {
        if waiting.is_empty() {
            return Ok(());
        }
        let (version, now) = (self.store.version()?, SystemTime::now());
        let is_due = fresh || waiting.iter().any(|(_, expires)| *expires <= now);
        if self.version.replace(version) == Some(version) && !is_due {
            return Ok(());
        }
        let mut ids: Vec<String> = waiting.into_iter().map(|(id, _)| id).collect();
        ids.sort();
        ids.dedup();
        for id in self.store.settled_among(&ids, now)? {
            if let Some(settled) = self.store.take(&id, now)? {
                self.tell(&settled);
            }
        }
        Ok(())
    }

    fn tell(&self, settled: &Settled) {
        let mut state = self.shared.locked();
        let (told, waiters) =
            std::mem::take(&mut state.waiters).into_iter().partition(|waiter| waiter.id == settled.id);
        state.waiters = waiters;
        drop(state);
        let told: Vec<Waiter> = told;
        for waiter in told {
            // It fails if the request has gone away at this moment.
            let _ = waiter.tell.send(verdict(settled.clone(), self.store.terms()));
        }
    }

    fn leave(&self, id: &str, abandoned: Abandoned) {
        let left = self.store.leave(id, abandoned == Abandoned::Cancel, SystemTime::now());
        if let Err(error) = left {
            tracing::warn!(%error, id, "cannot withdraw an approval");
        }
    }
}

pub(super) fn verdict(settled: Settled, terms: ApprovalTerms) -> Verdict {
    let Settled { id, status, by, reason } = settled;
    let by = by.unwrap_or_else(|| NOBODY.to_owned());
    let approval_id = Some(id);
    match status {
        ApprovalStatus::Approved => Verdict { approved: true, by, reason, approval_id },
        ApprovalStatus::Denied => Verdict { approved: false, by, reason, approval_id },
        ApprovalStatus::Expired => {
            let reason = Some(format!("nobody decided within {} s", terms.expire.as_secs()));
            Verdict { approved: false, by, reason, approval_id }
        }
        ApprovalStatus::Cancelled | ApprovalStatus::Pending => {
            // A decision that was revoked has a reason that says so.
            let reason = reason.unwrap_or_else(|| "the request for approval was withdrawn".to_owned());
            Verdict { approved: false, by, reason: Some(reason), approval_id }
        }
    }
}

/// The thread has ended: nobody will tell.
fn unwatched(id: String) -> Verdict {
    undecided(id, "nobody waits for the decision any more".to_owned())
}

pub(super) fn undecided(id: String, why: String) -> Verdict {
    Verdict { approved: false, by: NOBODY.to_owned(), reason: Some(why), approval_id: Some(id) }
}

impl From<&Ask> for Submission {
    fn from(ask: &Ask) -> Submission {
        let Ask { digest, origin, language, code, findings, decision, run } = ask;
        Submission {
            digest: *digest,
            caller: origin.caller.to_string(),
            surface: origin.surface.name().to_owned(),
            peer: origin.peer.map(|peer| peer.to_string()),
            language: language.name.to_owned(),
            code: code.bytes().to_vec(),
            policy: ApprovalPolicy { rule: decision.rule.clone(), reason: decision.reason.clone() },
            findings: findings.clone(),
            request: described(language.name, run),
        }
    }
}

fn described(language: &str, run: &Described) -> ApprovalRequest {
    let run = run.clone();
    ApprovalRequest {
        args: run.args,
        env: run.env_names,
        stdin: run.stdin.as_ref().map(carried),
        files: run.files.iter().map(carried).collect(),
        limits: stated(language, (run.box_limits, run.limits)),
        network: run.network,
        secrets: run.secrets,
        image: run.image,
        backend: run.backend.name().to_owned(),
        workspace: run.workspace,
        writable: run.writable,
        collect: run.collect,
        waive: run.waived.into_iter().map(str::to_owned).collect(),
    }
}

fn carried(carried: &Carried) -> ApprovalFile {
    let AuditFile { path, size, sha256 } = digested(&carried.digested);
    ApprovalFile { path, size, sha256, text: carried.text.clone() }
}
