//! A run that is waited for, with what each of its stages wrote.

use std::sync::Arc;

use belljar_core::Captured;
use belljar_core::outcome::{Report, Stage};
use belljar_wire::Problem;

use crate::runs::{Finished, Run, RunEvent};

/// Both streams of each stage as they came, joined.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) compile: Vec<u8>,
    pub(super) run: Vec<u8>,
}

impl Written {
    fn of(&mut self, stage: Stage) -> &mut Vec<u8> {
        match stage {
            Stage::Compile => &mut self.compile,
            Stage::Run => &mut self.run,
        }
    }

    /// Events have the head of each stream; the tail follows at the end.
    fn finish(mut self, report: &Report) -> Written {
        if let Some(compiler) = &report.compile {
            // Nothing was told live of a program that was there already.
            let whole = if compiler.cached { Captured::to_bytes } else { Captured::after_head };
            self.compile.extend(whole(&compiler.stdout));
            self.compile.extend(whole(&compiler.stderr));
        }
        if report.stage == Stage::Run {
            self.run.extend(report.stdout.after_head());
            self.run.extend(report.stderr.after_head());
        }
        self
    }
}

/// Waits for a run to end, and keeps what it wrote in the order in which it came.
///
/// # Errors
/// That Belljar could not run it.
pub(super) async fn to_the_end(mut run: Run) -> Result<(Arc<Finished>, Written), Problem> {
    let (mut written, mut stage) = (Written::default(), Stage::Run);
    loop {
        match run.next().await {
            RunEvent::Pulling(_) | RunEvent::Network(_) => {}
            RunEvent::Started(started) => stage = started.stage(),
            RunEvent::NextStage => stage = Stage::Run,
            RunEvent::Output(_, bytes) => written.of(stage).extend_from_slice(&bytes),
            RunEvent::Ended(end) => {
                let finished = end?;
                let written = written.finish(&finished.report);
                return Ok((finished, written));
            }
        }
    }
}
