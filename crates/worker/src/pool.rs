//! Workers that wait for questions.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Answer, Conversation, Failure, Job, Limits, Worker};

/// After so many questions a worker is replaced.
const QUESTIONS: usize = 1000;
/// How long to wait after a worker could not be started.
const AGAIN: Duration = Duration::from_millis(100);

/// A number of workers for one job. They are started by a thread of the pool, never by whoever asks. Dropping the pool ends
/// them.
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    job: Job,
    limits: Limits,
    state: Mutex<State>,
    /// A worker is idle, missing or of no use any more, or the pool is closed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<(Worker, usize)>,
    spent: Vec<Worker>,
    missing: usize,
    /// How many threads wait for an idle worker.
    waiting: usize,
    closed: bool,
}

impl Pool {
    /// Has so many workers started, and does not wait for them.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(job: Job, limits: Limits, size: usize) -> io::Result<Pool> {
        let state = Mutex::new(State { missing: size, ..State::default() });
        let shared = Arc::new(Shared { job, limits, state, changed: Condvar::new() });
        let pool = Pool(Arc::clone(&shared));
        // Workers die with the thread that started them, so that is one which lives as long as the pool.
        thread::Builder::new().name("workers".to_owned()).spawn(move || shared.keep_up())?;
        Ok(pool)
    }

    /// Asks a worker, as soon as one is idle. Blocks for as long as that and the answer take, each at most as long as the
    /// limit on wall-clock time.
    ///
    /// # Errors
    /// A limit ended the worker, or there is none.
    pub fn ask(&self, question: &[u8]) -> Result<Answer, Failure> {
        match self.ask_one(question) {
            // It may have died while it was idle, which says nothing about the question.
            Err(Failure::Broken(_)) => self.ask_one(question),
            answered => answered,
        }
    }

    fn ask_one(&self, question: &[u8]) -> Result<Answer, Failure> {
        let (mut worker, questions) = self.0.take_idle()?;
        let answered = worker.ask(question);
        self.0.give_back(worker, questions, answered.is_ok());
        answered
    }

    /// Asks a worker if one is idle at this moment, and does not wait for the answer.
    ///
    /// # Errors
    /// The question is too long.
    pub fn begin(&self, question: &[u8]) -> Result<Option<Asked>, Failure> {
        let Some((worker, questions)) = self.0.lock().idle.pop() else { return Ok(None) };
        let shared = Arc::clone(&self.0);
        match Conversation::new(question, worker.wall) {
            Ok(conversation) => Ok(Some(Asked { shared, worker: Some(worker), questions, conversation })),
            Err(cause) => {
                shared.give_back(worker, questions, true);
                Err(Failure::Broken(cause))
            }
        }
    }
}

/// A question that a worker of a pool was asked. Dropping it ends the worker, unless it has answered.
#[derive(Debug)]
pub struct Asked {
    shared: Arc<Shared>,
    worker: Option<Worker>,
    questions: usize,
    conversation: Conversation,
}

impl Asked {
    /// Waits for the answer, for so long at most. `None` if there is none yet.
    ///
    /// # Errors
    /// A limit ended the worker, or it is broken.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<Answer>, Failure> {
        let until = (Instant::now() + patience).min(self.conversation.deadline);
        let Some(worker) = &mut self.worker else { return Ok(None) };
        let answered = worker.go_on(&mut self.conversation, until);
        if !matches!(answered, Ok(None)) {
            self.part(answered.is_ok());
        }
        answered
    }

    fn part(&mut self, sound: bool) {
        if let Some(worker) = self.worker.take() {
            self.shared.give_back(worker, self.questions, sound);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.part(false);
    }
}

impl Shared {
    /// If a thread panicked while it held the lock, the lists are as they were.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, worker: Worker, questions: usize, sound: bool) {
        let mut state = self.lock();
        let reusable = sound && questions + 1 < QUESTIONS;
        if reusable {
            state.idle.push((worker, questions + 1));
        } else {
            state.spent.push(worker);
            state.missing += 1;
        }
        // Waking the thread that starts workers for nothing would cost every question the time of a switch.
        let wanted = !reusable || state.waiting > 0;
        drop(state);
        if wanted {
            self.changed.notify_all();
        }
    }

    fn take_idle(&self) -> Result<(Worker, usize), Failure> {
        let deadline = Instant::now() + self.limits.wall;
        let mut state = self.lock();
        loop {
            if let Some(worker) = state.idle.pop() {
                return Ok(worker);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Broken(io::Error::new(io::ErrorKind::TimedOut, "no worker is idle")));
            }
            state.waiting += 1;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }

    /// Buries workers and starts others, until the pool is closed.
    fn keep_up(&self) {
        let mut state = self.lock();
        while !state.closed {
            let spent = std::mem::take(&mut state.spent);
            if spent.is_empty() && state.missing == 0 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let wanted = state.missing > 0;
            drop(state);
            drop(spent);
            let started = wanted.then(|| Worker::start(&self.job, self.limits));
            if matches!(started, Some(Err(_))) {
                thread::sleep(AGAIN);
            }
            state = self.lock();
            if let Some(Ok(worker)) = started {
                state.idle.push((worker, 0));
                state.missing -= 1;
                self.changed.notify_all();
            }
        }
        state.idle.clear();
        state.spent.clear();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("job", &self.0.job.name).finish_non_exhaustive()
    }
}
