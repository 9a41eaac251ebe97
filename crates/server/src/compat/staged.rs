//! A run whose stages are told apart: a compiler that works, then the program that it made.
//!
//! To the engine a run is one thing with one clock. These protocols give each stage a clock of its own, so the whole
//! run is given both together and the stages are watched from here.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::Captured;
use belljar_core::backend::Stream;
use belljar_core::language::Language;
use belljar_core::outcome::{Outcome, Report};
use belljar_wire::Problem;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::caller::Caller;
use crate::runs::{End, Finished, Run, RunEvent, Runs};

/// How long the stages may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clocks {
    pub(super) compile: Duration,
    pub(super) run: Duration,
}

impl Clocks {
    /// What the run as a whole may take: a caller's ceiling is one on that.
    pub(super) fn whole(self, compiled: bool, ceiling: Option<Duration>) -> Duration {
        let sum = if compiled { self.compile.saturating_add(self.run) } else { self.run };
        ceiling.map_or(sum, |ceiling| sum.min(ceiling))
    }
}

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Compile,
    Run,
}

/// Whether a language's code is compiled by a command of its own.
pub(super) fn is_compiled(language: Language) -> bool {
    language.stages.len() > 1
}

/// What happens next to a run.
#[derive(Debug)]
pub(super) enum Turn {
    /// A stage begins; before the second, the first has succeeded.
    Begun(Stage),
    /// The program or its compiler wrote something.
    Output(Stream, bytes::Bytes),
    /// The box is gone.
    Ended(End),
}

/// A run under way.
#[derive(Debug)]
pub(super) struct Staged {
    run: Run,
    runs: Runs,
    caller: Caller,
    clocks: Clocks,
    compiled: bool,
    commands: watch::Receiver<usize>,
    alarm: Option<Instant>,
    began: Option<Instant>,
    /// How long compiling took, if it succeeded.
    compiling: Option<Duration>,
    overrun: bool,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Concluded {
    finished: Arc<Finished>,
    /// The stage that it came to.
    pub(super) reached: Stage,
    /// How long compiling took, if it succeeded; `None` if nothing was to be compiled.
    pub(super) compiling: Option<Duration>,
    /// Whether the clock of a stage ran out.
    pub(super) timed_out: bool,
    /// How long the last stage took.
    pub(super) wall: Duration,
}

impl Staged {
    pub(super) fn watch(
        run: Run,
        language: Language,
        clocks: Clocks,
        runs: &Runs,
        caller: &Caller,
    ) -> Staged {
        Staged {
            commands: run.stage(),
            run,
            runs: runs.clone(),
            caller: caller.clone(),
            clocks,
            compiled: is_compiled(language),
            alarm: None,
            began: None,
            compiling: None,
            overrun: false,
        }
    }

    /// Waits for what happens next. May be dropped before it is done; nothing is lost by that.
    pub(super) async fn next(&mut self) -> Turn {
        loop {
            let happened = tokio::select! {
                biased;
                // The beginning comes first, however late it is listened to.
                Ok(()) = self.commands.changed(), if self.began.is_some() => Happened::NextStage,
                event = self.run.next() => Happened::Event(event),
                () = ring(self.alarm) => Happened::AlarmRang,
            };
            match happened {
                Happened::NextStage => return self.begin(Stage::Run),
                Happened::Event(RunEvent::Pulling(_)) => {}
                Happened::Event(RunEvent::Started(_)) if self.compiled => return self.begin(Stage::Compile),
                Happened::Event(RunEvent::Started(_)) => return self.begin(Stage::Run),
                Happened::Event(RunEvent::Output(stream, bytes)) => return Turn::Output(stream, bytes),
                Happened::Event(RunEvent::Ended(end)) => return Turn::Ended(end),
                Happened::AlarmRang => {
                    self.overrun = true;
                    self.cancel();
                }
            }
        }
    }

    /// Ends it; that it has ended is told as ever.
    pub(super) fn cancel(&mut self) {
        self.alarm = None;
        // It fails only if the run has ended by itself.
        let _ = self.runs.cancel(&self.caller, self.run.id.as_str());
    }

    /// What it came to, when it has ended.
    pub(super) fn conclude(self, finished: Arc<Finished>) -> Concluded {
        let (compiled, since) = (*self.commands.borrow() > 0, self.began.map(|began| began.elapsed()));
        let compiling = self.compiling.or(since.filter(|_| compiled));
        let reached = if self.compiled && compiling.is_none() { Stage::Compile } else { Stage::Run };
        let overran = self.overrun && matches!(finished.report.outcome, Outcome::Cancelled(_));
        let timed_out = overran || matches!(finished.report.outcome, Outcome::TimedOut(_));
        let wall = match self.compiling {
            Some(_) => since.unwrap_or_default(),
            None => finished.report.usage.wall,
        };
        Concluded { finished, reached, compiling, timed_out, wall }
    }

    /// Nobody watches the clock of a run without a compiler: the engine does.
    fn begin(&mut self, stage: Stage) -> Turn {
        let now = Instant::now();
        if self.compiled {
            let time = match stage {
                Stage::Compile => self.clocks.compile,
                Stage::Run => self.clocks.run,
            };
            self.alarm = Some(now + time);
            self.compiling = (stage == Stage::Run).then(|| now - self.began.unwrap_or(now));
        }
        self.began = Some(now);
        Turn::Begun(stage)
    }
}

impl Concluded {
    /// What it can take to render the run's output and files.
    pub(super) fn rendered_bytes(&self) -> usize {
        self.finished.rendered_bytes()
    }

    /// Everything that is known of the run as a whole.
    pub(super) fn report(&self) -> &Report {
        &self.finished.report
    }
}

/// Both streams as they came. The engine tells the head of each live; the tail follows at the end.
#[derive(Debug, Default)]
pub(super) struct Interleaved(Vec<u8>);

impl Interleaved {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn finish(mut self, report: &Report) -> Vec<u8> {
        for rest in [&report.stdout, &report.stderr].map(Captured::after_head) {
            self.push(&rest);
        }
        self.0
    }
}

/// Waits for a run to end, and keeps what it wrote in the order in which it came.
///
/// # Errors
/// That Belljar could not run it.
pub(super) async fn to_the_end(mut run: Staged) -> Result<(Concluded, Vec<u8>), Problem> {
    let mut output = Interleaved::default();
    loop {
        match run.next().await {
            Turn::Begun(_) => {}
            Turn::Output(_, bytes) => output.push(&bytes),
            Turn::Ended(end) => {
                let concluded = run.conclude(end?);
                let output = output.finish(concluded.report());
                return Ok((concluded, output));
            }
        }
    }
}

enum Happened {
    NextStage,
    Event(RunEvent),
    AlarmRang,
}

async fn ring(alarm: Option<Instant>) {
    match alarm {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
