//! The thread that writes the ledger of a server, and what a single run has instead.
//!
//! The threads that answer requests only hand an account over. What takes time, the search for secrets, hashes,
//! signatures and the disk, happens here, for many records at once.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use belljar_engine::{Account, Fate, Kept, Place, Recorder, Unrecordable};
use tokio::sync::oneshot;

use crate::book::{Book, Retention, Sync, refuse_others};
use crate::entry::Entry;
use crate::error::LedgerError;
use crate::key::Key;
use crate::redact::Redactor;

/// How long records wait for others, if nobody waits for them to be on disk.
const GATHER: Duration = Duration::from_millis(20);
/// How many records are written at once.
const MOST_AT_ONCE: usize = 256;
/// How long after a record it is on disk, and the head has it.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// How often records are pruned.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How long to wait after a failure before it is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How many bytes may wait to be written.
const MOST_WAITING: usize = 64 << 20;

/// What happens if nothing can be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    /// Runs are refused.
    #[default]
    Refuse,
    /// They take place all the same. The next record says how many there were.
    Run,
}

/// How a ledger is to be written.
#[derive(Debug)]
pub struct ScribeSettings {
    /// Whether no result is told before its record is on disk.
    pub durable: bool,
    /// What happens if nothing can be recorded.
    pub on_full: OnFull,
    /// How much is kept.
    pub retention: Retention,
    /// What is taken out.
    pub redactor: Redactor,
    /// How many accounts there may be at a time, of runs that are under way or have ended.
    pub places: usize,
}

impl ScribeSettings {
    /// When a record counts as written.
    #[must_use]
    pub fn sync(&self) -> Sync {
        if self.durable { Sync::Always } else { Sync::Later }
    }
}

/// Hands accounts to the thread that writes.
#[derive(Debug)]
pub struct Scribe {
    shared: Arc<Shared>,
    sender: Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    durable: bool,
    on_full: OnFull,
    /// Places that are not taken.
    free: AtomicUsize,
    /// Bytes that wait to be written.
    waiting: AtomicUsize,
    /// Attempts that were not recorded.
    lost: AtomicU64,
    /// Why nothing can be written.
    trouble: Mutex<Option<String>>,
}

enum Message {
    Account(Box<Account>, Option<Told>),
    Stop,
}

/// Tells one who waits whether the record is on disk.
type Told = oneshot::Sender<Result<(), Unrecordable>>;

impl Scribe {
    /// Begins to write, on a thread of its own.
    ///
    /// # Errors
    /// That the thread cannot be started.
    pub fn start(book: Book, settings: ScribeSettings) -> std::io::Result<Scribe> {
        let ScribeSettings { durable, on_full, retention, redactor, places } = settings;
        let shared = Arc::new(Shared {
            durable,
            on_full,
            free: AtomicUsize::new(places),
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            trouble: Mutex::default(),
        });
        let (sender, receiver) = mpsc::channel();
        let writer = Writer {
            book,
            redactor,
            retention,
            receiver,
            shared: shared.clone(),
            unsynced: None,
            pruned: None,
            batch: Batch::default(),
        };
        let thread = std::thread::Builder::new().name("belljar-ledger".to_owned()).spawn(|| writer.work())?;
        Ok(Scribe { shared, sender, thread: Mutex::new(Some(thread)) })
    }

    /// Writes what has been handed over, brings it to the disk, and ends the thread.
    pub fn stop(&self) {
        let _ = self.sender.send(Message::Stop);
        if let Some(thread) = locked(&self.thread).take() {
            let _ = thread.join();
        }
    }

    /// Why nothing can be written at the moment.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        locked(&self.shared.trouble).clone()
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Recorder for Scribe {
    fn reserve(&self) -> Result<Place, Unrecordable> {
        match self.shared.take_place() {
            Ok(()) => Ok(Place::Held),
            Err(why) => self.shared.go_without(why),
        }
    }

    fn release(&self) {
        self.shared.free.fetch_add(1, Ordering::AcqRel);
    }

    fn record(&self, account: Box<Account>) -> Option<Kept> {
        self.shared.waiting.fetch_add(weight(&account), Ordering::AcqRel);
        if !self.shared.durable {
            // It fails only when the thread has ended: nothing is admitted any more then.
            let _ = self.sender.send(Message::Account(account, None));
            return None;
        }
        let (tell, told) = oneshot::channel();
        let _ = self.sender.send(Message::Account(account, Some(tell)));
        Some(Box::pin(async { told.await.unwrap_or_else(|_| Err(unrecordable("the ledger is closed"))) }))
    }
}

impl Shared {
    fn take_place(&self) -> Result<(), String> {
        if let Some(trouble) = locked(&self.trouble).clone() {
            return Err(trouble);
        }
        let full = "too many records wait to be written";
        if self.waiting.load(Ordering::Acquire) > MOST_WAITING {
            return Err(full.to_owned());
        }
        let take = |free: usize| free.checked_sub(1);
        let taken = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(drop).map_err(|_| full.to_owned())
    }

    fn go_without(&self, why: String) -> Result<Place, Unrecordable> {
        match self.on_full {
            OnFull::Refuse => Err(Unrecordable { why }),
            OnFull::Run => {
                self.lost.fetch_add(1, Ordering::AcqRel);
                Ok(Place::Forgone)
            }
        }
    }
}

struct Writer {
    book: Book,
    redactor: Redactor,
    retention: Retention,
    receiver: Receiver<Message>,
    shared: Arc<Shared>,
    /// When the first record was written that may not be on disk.
    unsynced: Option<Instant>,
    pruned: Option<Instant>,
    batch: Batch,
}

/// What is about to be written.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    told: Vec<Told>,
    places: usize,
    bytes: usize,
    stop: bool,
}

impl Writer {
    fn work(mut self) {
        loop {
            self.gather();
            if !self.batch.entries.is_empty() {
                self.write();
            }
            let stop = self.batch.stop;
            if self.unsynced.is_some_and(|since| stop || since.elapsed() >= SYNC_AFTER) {
                self.sync();
            }
            if stop {
                return self.leave();
            }
            if self.batch.entries.is_empty() && self.pruned.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
                self.prune();
            }
        }
    }

    /// Waits for accounts, and takes all that there are.
    fn gather(&mut self) {
        let wait = match (self.batch.entries.is_empty(), self.unsynced) {
            (false, _) => RETRY,
            (true, Some(since)) => SYNC_AFTER.saturating_sub(since.elapsed()),
            (true, None) => PRUNE_EVERY,
        };
        match self.receiver.recv_timeout(wait) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => self.batch.stop = true,
        }
        if !self.shared.durable && !self.batch.stop {
            std::thread::sleep(GATHER);
        }
        // What could not be written before is not made larger than it must be.
        while self.batch.entries.len() < MOST_AT_ONCE && !self.batch.stop {
            match self.receiver.try_recv() {
                Ok(message) => self.take(message),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Account(account, told) => {
                self.batch.places += 1;
                self.batch.bytes += weight(&account);
                self.batch.entries.push(Entry::new(&account, &self.redactor));
                self.batch.told.extend(told);
            }
            Message::Stop => self.batch.stop = true,
        }
    }

    fn write(&mut self) {
        let lost = self.shared.lost.swap(0, Ordering::AcqRel);
        if lost > 0 {
            self.batch.entries.push(Entry::unrecorded(lost, &self.redactor));
        }
        match self.book.append(&self.batch.entries) {
            Ok(()) => {
                self.recovered();
                if self.shared.durable
                    && let Err(error) = self.book.advance_head()
                {
                    tracing::error!(error = error.with_causes(), "cannot write the head of the ledger");
                }
                self.unsynced.get_or_insert_with(Instant::now);
                let Batch { told, places, bytes, stop, .. } = std::mem::take(&mut self.batch);
                self.batch.stop = stop;
                self.shared.free.fetch_add(places, Ordering::AcqRel);
                self.shared.waiting.fetch_sub(bytes, Ordering::AcqRel);
                told.into_iter().for_each(|told| drop(told.send(Ok(()))));
            }
            Err(error) => {
                // The note is made anew when it can be written, with all that are lost by then.
                if lost > 0 {
                    self.batch.entries.pop();
                    self.shared.lost.fetch_add(lost, Ordering::AcqRel);
                }
                self.failed(&error);
            }
        }
    }

    /// The records stay, to be written when that is possible again. Who waits for them is told that they are not on disk.
    fn failed(&mut self, error: &LedgerError) {
        let why = error.with_causes();
        let before = locked(&self.shared.trouble).replace(why.clone());
        if before.is_none() {
            tracing::error!(error = why, "cannot write the ledger");
        }
        for told in self.batch.told.drain(..) {
            let _ = told.send(Err(unrecordable(&why)));
        }
    }

    fn recovered(&self) {
        if locked(&self.shared.trouble).take().is_some() {
            tracing::info!("the ledger can be written again");
        }
    }

    fn sync(&mut self) {
        match self.book.sync() {
            Ok(()) => self.unsynced = None,
            Err(error) => {
                tracing::error!(error = error.with_causes(), "cannot bring the ledger to the disk");
                // Tried again after a while.
                self.unsynced = Some(Instant::now());
            }
        }
    }

    fn prune(&mut self) {
        self.pruned = Some(Instant::now());
        match self.book.prune(self.retention, SystemTime::now()) {
            Ok(0) => {}
            Ok(records) => tracing::info!(records, "pruned the ledger"),
            Err(error) => tracing::warn!(error = error.with_causes(), "cannot prune the ledger"),
        }
    }

    fn leave(self) {
        let unwritten = self.batch.entries.len() + self.receiver.try_iter().count();
        if unwritten > 0 {
            tracing::error!(
                records = unwritten,
                "records were lost, because the ledger could not be written"
            );
        }
    }
}

/// The ledger of a single run: written when the run has ended, without a thread.
#[derive(Debug)]
pub struct Written {
    book: Mutex<Book>,
    settings: ScribeSettings,
}

impl Written {
    /// Opens the ledger of this directory.
    ///
    /// # Errors
    /// That it cannot be opened.
    pub fn open(dir: &Path, settings: ScribeSettings) -> Result<Written, LedgerError> {
        let key = Key::find_or_make(dir)?;
        refuse_others(dir)?;
        let book = Book::open(dir, key, settings.sync())?;
        Ok(Written { book: Mutex::new(book), settings })
    }

    fn write(&self, account: &Account) -> Result<(), LedgerError> {
        let mut book = locked(&self.book);
        book.append(&[Entry::new(account, &self.settings.redactor)])?;
        book.prune(self.settings.retention, SystemTime::now())?;
        book.sync()
    }
}

impl Recorder for Written {
    fn reserve(&self) -> Result<Place, Unrecordable> {
        Ok(Place::Held)
    }

    fn release(&self) {}

    fn record(&self, account: Box<Account>) -> Option<Kept> {
        let written = self.write(&account).map_err(|error| unrecordable(&error.with_causes()));
        let told = if self.settings.on_full == OnFull::Run { Ok(()) } else { written };
        Some(Box::pin(std::future::ready(told)))
    }
}

fn weight(account: &Account) -> usize {
    let output = match &account.fate {
        Fate::Ran(ran) => [&ran.stdout, &ran.stderr].map(|one| one.head.len() + one.tail.len()).iter().sum(),
        Fate::Refused(why) | Fate::Failed(why) => why.len(),
    };
    let code = account.asked.code.as_ref().map_or(0, |code| code.bytes().len());
    let args: usize = account.asked.args.iter().map(String::len).sum();
    4096 + code + args + output + account.asked.files.len() * 128
}

fn unrecordable(why: &str) -> Unrecordable {
    Unrecordable { why: why.to_owned() }
}

/// A panic while one of these locks was held left what it guards as it was before or after one change.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
