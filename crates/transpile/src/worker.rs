//! What this crate has workers do, within the limits of a run.

use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use belljar_core::outcome::{Outcome, TimeLimit, Usage};
use belljar_worker::{Excess, Job, Limits, Spent, Worker};

use crate::{Budget, strip};

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    DetectModule,
    StripTypes,
}

/// What a worker found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The JavaScript of a script; empty where only detection was asked for.
    Script(Vec<u8>),
    /// The same of a module.
    Module(Vec<u8>),
    /// Syntax errors, ready to be shown.
    Errors(String),
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A limit of the run ended it.
    Limit(Outcome),
    /// The worker failed, or ended at a limit of its own. All of these are far from anything that a person writes.
    Worker(belljar_worker::Failure),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Limit(_) => f.write_str("the code takes more to parse than the run may use"),
            Failure::Worker(failure) => failure.fmt(f),
        }
    }
}

/// The jobs of this crate, for [`belljar_worker::run_as_worker`].
pub const JOBS: [Job; 2] = [
    Job {
        name: "detect-module",
        prepare: || (),
        perform: |question, limits| perform(Task::DetectModule, question, limits),
    },
    Job {
        name: "strip-types",
        prepare: || (),
        perform: |question, limits| perform(Task::StripTypes, question, limits),
    },
];

/// The largest code that is accepted, 4 MiB, takes a fraction of this.
const CPU: Duration = Duration::from_secs(2);
/// For a worker that gets no CPU, or is stopped.
const PATIENCE: Duration = Duration::from_secs(15);
/// Memory of its own, the stack included.
const MEMORY: u64 = 1 << 30;
/// A release build takes about 1 KiB for each level of nesting.
const STACK: u64 = 256 << 20;

/// Has a worker do `task` for a file called `name`, and says what that took.
pub(crate) fn ask(task: Task, name: &str, text: &[u8], budget: Budget) -> (Result<Reply, Failure>, Usage) {
    let began = Instant::now();
    let limits = allowed(budget);
    let (reply, spent) = match converse(task, name, text, limits) {
        Ok((reply, spent)) => (Ok(reply), Some(spent)),
        Err(failure) => (Err(budget.blame(failure)), None),
    };
    let wall = began.elapsed();
    // One that was killed did not tell what it had used. It has one thread at a time, so it was not more than this.
    let most = Spent { cpu: wall.min(limits.cpu), memory_peak: limits.memory };
    let Spent { cpu, memory_peak } = spent.unwrap_or(most);
    (reply, Usage { wall, cpu, memory_peak, ..Usage::default() })
}

fn converse(
    task: Task,
    name: &str,
    text: &[u8],
    limits: Limits,
) -> Result<(Reply, Spent), belljar_worker::Failure> {
    let broken = belljar_worker::Failure::Broken;
    let mut worker = Worker::start(&task.job(), limits).map_err(broken)?;
    let (answer, spent) = worker.ask(&[name.as_bytes(), b"\0", text].concat())?;
    let reply = Reply::decode(answer).ok_or_else(|| broken(io::ErrorKind::InvalidData.into()))?;
    Ok((reply, spent))
}

/// What a worker may use.
fn allowed(budget: Budget) -> Limits {
    Limits {
        wall: budget.timeout.min(PATIENCE),
        cpu: budget.cpu_time.map_or(CPU, |limit| limit.min(CPU)),
        memory: budget.memory.get().min(MEMORY),
    }
}

impl Budget {
    /// Whether it was the run's limit that was exceeded, or one of the worker's own.
    fn blame(self, failure: belljar_worker::Failure) -> Failure {
        let belljar_worker::Failure::TooMuch(excess) = failure else { return Failure::Worker(failure) };
        match (excess, self.cpu_time) {
            (Excess::Wall, _) if self.timeout <= PATIENCE => {
                Failure::Limit(Outcome::TimedOut(TimeLimit::Wall(self.timeout)))
            }
            (Excess::Cpu, Some(limit)) if limit <= CPU => {
                Failure::Limit(Outcome::TimedOut(TimeLimit::Cpu(limit)))
            }
            (Excess::Memory, _) if self.memory.get() <= MEMORY => Failure::Limit(Outcome::OutOfMemory),
            (Excess::Wall | Excess::Cpu | Excess::Memory | Excess::Depth, _) => Failure::Worker(failure),
        }
    }
}

/// In the worker: the question is a file's name, a zero byte, and the text.
fn perform(task: Task, question: Vec<u8>, limits: Limits) -> io::Result<Vec<u8>> {
    let question = String::from_utf8(question).ok();
    let Some((name, text)) = question.as_deref().and_then(|question| question.split_once('\0')) else {
        return Ok(Reply::Script(Vec::new()).encode());
    };
    let (name, text) = (name.to_owned(), text.to_owned());
    with_a_large_stack(limits.memory, move || task.perform(&name, &text)).map(|reply| reply.encode())
}

/// The stack may have half of the memory.
fn with_a_large_stack<T: Send + 'static>(
    memory: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let size = usize::try_from((memory / 2).min(STACK)).map_err(io::Error::other)?;
    let thread = thread::Builder::new().stack_size(size).spawn(work).map_err(|cause| {
        // What `pthread_create` answers if there is no memory for the stack.
        if cause.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::OutOfMemory.into() } else { cause }
    })?;
    thread.join().map_err(|_| io::Error::other("the parser panicked"))
}

impl Task {
    fn job(self) -> Job {
        let [detect_module, strip_types] = JOBS;
        match self {
            Task::DetectModule => detect_module,
            Task::StripTypes => strip_types,
        }
    }

    fn perform(self, name: &str, text: &str) -> Reply {
        match self {
            Task::DetectModule => strip::detect_module(text),
            Task::StripTypes => strip::strip_types(name, text),
        }
    }
}

impl Reply {
    fn tag(&self) -> u8 {
        match self {
            Reply::Script(_) => b'S',
            Reply::Module(_) => b'M',
            Reply::Errors(_) => b'E',
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Reply::Script(text) | Reply::Module(text) => text,
            Reply::Errors(message) => message.as_bytes(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [&[self.tag()], self.bytes()].concat()
    }

    fn decode(mut tagged: Vec<u8>) -> Option<Reply> {
        let text = tagged.split_off(1.min(tagged.len()));
        match tagged.first()? {
            b'S' => Some(Reply::Script(text)),
            b'M' => Some(Reply::Module(text)),
            b'E' => String::from_utf8(text).ok().map(Reply::Errors),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_survives_the_way_to_the_parent() {
        for reply in [Reply::Script(vec![]), Reply::Module(b"x".to_vec()), Reply::Errors("é".to_owned())] {
            assert_eq!(Reply::decode(reply.encode()), Some(reply));
        }
        assert_eq!(Reply::decode(vec![]), None);
        assert_eq!(Reply::decode(b"?".to_vec()), None);
    }
}
