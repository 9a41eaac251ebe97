//! What a run printed: bounded, shown live, and ended with a line of Belljar's own where the contract requires one.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::time::Duration;

use belljar_core::backend::{BoxFuture, PullEvent, Stream};
use belljar_core::egress::NetworkEvent;
use belljar_core::language::Language;
use belljar_core::limits::{Bytes, show_duration};
use belljar_core::outcome::{CollectedFile, Outcome, Stage, Start, TimeLimit};
use belljar_core::request::{BackendName, Glob};
use belljar_core::{Captured, Collector};

use crate::{RunError, advice};

/// How many patterns that no file matches are named.
const MAX_NAMED: usize = 8;

/// Sees the head of each stream as it arrives.
pub trait Observer: Send + Debug {
    /// A person has decided about the run, for which it waited.
    fn decided(&mut self) {}

    /// The run has its slot: it has left the queue.
    fn left_queue(&mut self) {}

    /// An image is being pulled, for which the run waits. Called before the program runs, if at all.
    fn pulling(&mut self, _: &PullEvent) {}

    /// The program runs; this is everything known about it in advance. Called once, before any output, unless the run
    /// never got that far.
    fn started(&mut self, _: &Started<'_>) {}

    /// The compiler is done and its program runs. What was written before is the compiler's. Called once if the run
    /// [started](Observer::started) with a compiler that succeeded.
    fn next_stage(&mut self) {}

    /// The program did something with its network. Called between its start and its end, for as much of it as can be told.
    fn network(&mut self, _: &NetworkEvent) {}

    /// Files of the run are about to be collected, which may come to so many bytes. Resolves when there is room for them,
    /// or to `Break` if there is none: then the run fails. It keeps its slot meanwhile.
    fn make_room(&mut self, _: Bytes) -> BoxFuture<'_, ControlFlow<()>> {
        Box::pin(std::future::ready(ControlFlow::Continue(())))
    }

    /// The next bytes beyond the head, as the program wrote them. The report has the last of them.
    fn beyond_head(&mut self, _: Stream, _: &[u8]) {}

    /// The next bytes, exactly as the program wrote them. `Break` cancels the run: nobody is listening any more.
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()>;
}

/// A program that has begun to run.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are those of the report")]
pub struct Started<'a> {
    pub language: Language,
    pub runtime: &'a str,
    pub backend: BackendName,
    pub start: Start,
    pub image: Option<&'a str>,
    pub queue: Duration,
    /// What runs now.
    pub stage: Stage,
}

/// No observer; the report has everything.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn output(&mut self, _: Stream, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

pub(crate) struct Transcript<'a> {
    stdout: Collector,
    stderr: Collector,
    stderr_ends_a_line: bool,
    /// The end of stderr, as far as anybody looks at it.
    stderr_tail: Vec<u8>,
    observer: &'a mut dyn Observer,
}

impl<'a> Transcript<'a> {
    pub(crate) fn new(limit: Bytes, observer: &'a mut dyn Observer) -> Transcript<'a> {
        let (stdout, stderr) = (Collector::new(limit), Collector::new(limit));
        Transcript { stdout, stderr, stderr_ends_a_line: true, stderr_tail: Vec::new(), observer }
    }

    /// The transcript of a compiler: another one, for the same observer.
    pub(crate) fn of_a_compiler(&mut self, limit: Bytes) -> Transcript<'_> {
        Transcript::new(limit, &mut *self.observer)
    }

    /// The end of what was written to stderr so far.
    pub(crate) fn end_of_stderr(&self) -> &[u8] {
        &self.stderr_tail
    }

    pub(crate) fn left_queue(&mut self) {
        self.observer.left_queue();
    }

    pub(crate) fn pulling(&mut self, event: &PullEvent) {
        self.observer.pulling(event);
    }

    pub(crate) fn started(&mut self, started: &Started<'_>) {
        self.observer.started(started);
    }

    pub(crate) fn next_stage(&mut self) {
        self.observer.next_stage();
    }

    pub(crate) fn network(&mut self, event: &NetworkEvent) {
        self.observer.network(event);
    }

    pub(crate) async fn make_room(&mut self, bytes: Bytes) -> Result<(), RunError> {
        match self.observer.make_room(bytes).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(RunError::NoRoom { bytes }),
        }
    }

    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        let head = match stream {
            Stream::Stdout => self.stdout.push(bytes),
            Stream::Stderr => {
                self.stderr_ends_a_line = bytes.last().map_or(self.stderr_ends_a_line, |last| *last == b'\n');
                self.keep_tail(bytes);
                self.stderr.push(bytes)
            }
        };
        let beyond = &bytes[head.len()..];
        if !beyond.is_empty() {
            self.observer.beyond_head(stream, beyond);
        }
        // Called even if nothing of it is shown live, so that a listener that has left can say so.
        self.observer.output(stream, head)
    }

    /// A line of Belljar's own on stderr, after whatever the code has written. It is treated like all output, so that
    /// every API shows it. It is in the tail, which survives truncation.
    pub(crate) fn note(&mut self, text: &str) {
        let before = if self.stderr_ends_a_line { "" } else { "\n" };
        let line = format!("{before}{}\n", text.trim_end_matches('\n'));
        // A listener that has left cannot cancel the run again: it is over.
        let _ = self.push(Stream::Stderr, line.as_bytes());
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(advice::TAIL)..];
        let excess = (self.stderr_tail.len() + bytes.len()).saturating_sub(advice::TAIL);
        self.stderr_tail.drain(..excess);
        self.stderr_tail.extend_from_slice(bytes);
    }

    /// A line for the reader, if there is something to say about a program that failed like this.
    pub(crate) fn advise(&mut self, outcome: Outcome, on: impl FnOnce(&[u8]) -> Option<String>) {
        if outcome == Outcome::Exited(1)
            && let Some(advice) = on(&self.stderr_tail)
        {
            self.note(&advice);
        }
    }

    pub(crate) fn note_files(&mut self, left_out: usize, most: Bytes) {
        if left_out > 0 {
            self.note(&format!("Files not collected: {left_out} (all files together may have {most})"));
        }
    }

    /// Names the patterns that no file matches. A file that was left out for want of room may have matched any of them.
    pub(crate) fn note_unmatched(&mut self, patterns: &[Glob], files: &[CollectedFile], left_out: usize) {
        let matches = |glob: &Glob| files.iter().any(|file| glob.matches(&file.path));
        let unmatched = patterns.iter().filter(|glob| !glob.is_optional() && !matches(glob));
        let names: Vec<_> = unmatched.map(|glob| format!("'{}'", glob.as_str().escape_debug())).collect();
        if left_out == 0 && !names.is_empty() {
            let (shown, more) = (names.len().min(MAX_NAMED), names.len().saturating_sub(MAX_NAMED));
            let more = if more > 0 { format!(" and {more} more patterns") } else { String::new() };
            self.note(&format!("Nothing to collect: no file matches {}{more}", names[..shown].join(", ")));
        }
    }

    /// The text that the contract promises for a run that a limit ended.
    pub(crate) fn note_ending(&mut self, outcome: Outcome, memory: Bytes) {
        match outcome {
            Outcome::TimedOut(TimeLimit::Wall(limit)) => {
                self.note(&format!("Execution timed out after {}", show_duration(limit)));
            }
            Outcome::TimedOut(TimeLimit::Cpu(limit)) => {
                self.note(&format!("Execution timed out after {} of CPU time", show_duration(limit)));
            }
            Outcome::OutOfMemory => self.note(&format!("Memory limit exceeded ({memory})")),
            Outcome::Exited(_) | Outcome::Signaled(_) | Outcome::Cancelled(_) | Outcome::Denied => {}
        }
    }

    /// The same for a compiler that a limit ended.
    pub(crate) fn note_compiler_ending(&mut self, outcome: Outcome, memory: Bytes) {
        match outcome {
            Outcome::TimedOut(TimeLimit::Wall(limit) | TimeLimit::Cpu(limit)) => {
                self.note(&format!("Execution timed out after {} of compiling", show_duration(limit)));
            }
            Outcome::OutOfMemory => {
                self.note(&format!("Memory limit exceeded while compiling ({memory})"));
            }
            Outcome::Exited(_) | Outcome::Signaled(_) | Outcome::Cancelled(_) | Outcome::Denied => {}
        }
    }

    pub(crate) fn finish(self) -> (Captured, Captured) {
        (self.stdout.finish(), self.stderr.finish())
    }
}
