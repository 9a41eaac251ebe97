//! The events of a run, from its start, for any number of readers.
//!
//! The engine never waits for a reader: a slow one must not hold up a run, or its slot. A reader keeps nothing but its
//! position, so it costs the same whether it reads or not. Each event carries a bounded piece of output.
//!
//! What the log itself holds is bounded, too. Only the head of each stream is logged, and the run's own limit on output
//! bounds that; when the run has ended, the log reads it from the result instead of keeping a second copy. The order of
//! the two streams is kept for the first [`MAX_TURNS`] changes between them. Of an image that is being pulled, only the
//! latest event of each layer is kept, because it replaces the earlier ones. Of what the program does with its network, the last events are
//! kept (`activity.rs`); a reader that comes too late for others hears how many they were.

mod activity;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::backend::{BoxFuture, PullEvent, Stream};
use belljar_core::egress::NetworkEvent;
use belljar_core::outcome::Stage;
use belljar_engine::{Observer, RunId, Started};
use belljar_wire::RunStarted;
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use self::activity::Activity;
use crate::http::body::{Memory, Share};
use crate::runs::{Finished, PATIENCE};

/// Changes between stdout and stderr whose order is kept. Output after that is joined to the last turn of its stream.
const MAX_TURNS: usize = 1024;
/// Layers of an image whose progress is kept.
const MAX_LAYERS: usize = 256;
/// The most bytes of output in one event.
pub(crate) const MAX_PIECE: usize = 4 << 10;
/// How many bytes at the end of a stream are kept beyond its head, while the run goes on.
const MAX_TAIL: usize = 16 << 10;
/// About what an event about an image takes.
const PULL_BYTES: usize = 256;

/// One event. The end of a run is not among them: it is known elsewhere.
#[derive(Debug)]
pub(crate) enum LogEvent {
    Pulling(PullEvent),
    Started(RunStarted),
    NextStage,
    Network(NetworkEvent),
    Output(Stream, Bytes),
}

/// The events of one run. A clone is the same log.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    grown: Notify,
    left_queue: AtomicBool,
    /// Whether a person has decided, for which the run waited.
    decided: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// The latest event of each layer, with a number that grows from event to event.
    pulls: Vec<(u64, PullEvent)>,
    last_pull: u64,
    started: Option<RunStarted>,
    /// What the compiler wrote, if the run started with one.
    compiler: Section,
    /// Whether the program runs that the compiler made.
    next_stage: bool,
    /// What the program wrote.
    program: Section,
    network: Activity,
    closed: bool,
}

/// What one stage wrote.
#[derive(Debug, Default)]
struct Section {
    /// Which stream was written to, in order, and how long it was afterwards.
    turns: Vec<(Stream, usize)>,
    output: Output,
    /// What followed the head of stdout, and of stderr.
    tails: [Tail; 2],
}

/// The end of what a stream had beyond its head.
#[derive(Debug, Default)]
struct Tail {
    last: VecDeque<u8>,
    seen: u64,
}

/// The end of what a run has written to a stream so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SoFar {
    /// Bytes that are not UTF-8 are replaced.
    pub(crate) text: String,
    /// How many bytes came before.
    pub(crate) before: u64,
}

/// Where the heads of the two streams are.
#[derive(Debug)]
enum Output {
    Growing { stdout: Vec<u8>, stderr: Vec<u8> },
    InResult(Arc<Finished>, Stage),
}

/// Reads a log from its start.
#[derive(Debug)]
pub(crate) struct Reader {
    log: EventLog,
    position: Position,
}

/// How much of a log has been read.
#[derive(Debug, Default)]
struct Position {
    pull: u64,
    started: bool,
    compiler: SectionPosition,
    next_stage: bool,
    network: u64,
    program: SectionPosition,
}

/// How much of what a stage wrote has been read.
#[derive(Debug, Default)]
struct SectionPosition {
    turn: usize,
    stdout: usize,
    stderr: usize,
}

impl EventLog {
    /// A reader at the start of the log.
    pub(crate) fn read(&self) -> Reader {
        Reader { log: self.clone(), position: Position::default() }
    }

    /// Whether a person has decided, for which the run waited.
    pub(crate) fn decided(&self) -> watch::Receiver<bool> {
        self.0.decided.subscribe()
    }

    /// Whether the run has its slot.
    pub(crate) fn has_left_queue(&self) -> bool {
        self.0.left_queue.load(Ordering::Relaxed)
    }

    /// The last 16 KiB that were written to a stream, at most, by what runs now.
    pub(crate) fn so_far(&self, stream: Stream) -> SoFar {
        let mut state = self.state();
        let section = state.section();
        let (head, tail) = (section.output.of(stream), &section.tails[index(stream)]);
        let total = head.len() as u64 + tail.seen;
        let mut last: Vec<u8> = tail.last.iter().copied().collect();
        if tail.seen == last.len() as u64 {
            let more = head.len().min(MAX_TAIL - last.len());
            last.splice(0..0, head[head.len() - more..].iter().copied());
        }
        let whole = last.len() as u64 == total;
        // What was cut may have been cut within a character.
        let is_rest = |byte: &&u8| !whole && **byte & 0xc0 == 0x80;
        let text = &last[last.iter().take(3).take_while(is_rest).count()..];
        SoFar { text: String::from_utf8_lossy(text).into_owned(), before: total - text.len() as u64 }
    }

    /// Ends the log. With a result, the output is read from there from now on.
    pub(crate) fn close(&self, result: Option<&Arc<Finished>>) {
        let mut state = self.state();
        state.closed = true;
        state.compiler.close(result, Stage::Compile);
        state.program.close(result, Stage::Run);
        drop(state);
        self.0.grown.notify_waiters();
    }

    /// About how many bytes the log holds beyond the result.
    pub(crate) fn bytes(&self) -> usize {
        let state = self.state();
        let told = state.pulls.len() * PULL_BYTES + state.network.bytes();
        state.compiler.bytes() + state.program.bytes() + told
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.grown.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves a log that lacks its last event at worst.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// The next event, or `None` when there will be no more.
    pub(crate) async fn next(&mut self) -> Option<LogEvent> {
        let Reader { log, position } = self;
        loop {
            // A future that exists before the log is looked at hears of everything that comes after that look.
            let grown = log.0.grown.notified();
            {
                let state = log.state();
                if let Some(event) = state.after(position) {
                    return Some(event);
                }
                if state.closed {
                    return None;
                }
            }
            grown.await;
        }
    }
}

impl State {
    /// The first event after a position, which moves beyond it.
    fn after(&self, position: &mut Position) -> Option<LogEvent> {
        let unread = self.pulls.iter().filter(|(number, _)| *number > position.pull);
        if let Some((number, event)) = unread.min_by_key(|(number, _)| *number) {
            position.pull = *number;
            return Some(LogEvent::Pulling(event.clone()));
        }
        if let Some(started) = self.started.as_ref().filter(|_| !position.started) {
            position.started = true;
            return Some(LogEvent::Started(started.clone()));
        }
        if self.compiles() && !position.next_stage {
            let event = self.compiler.after(&mut position.compiler);
            return event.or_else(|| {
                position.next_stage = self.next_stage;
                self.next_stage.then_some(LogEvent::NextStage)
            });
        }
        let event = self.network.after(&mut position.network).map(LogEvent::Network);
        event.or_else(|| self.program.after(&mut position.program))
    }

    /// Whether it started with a compiler.
    fn compiles(&self) -> bool {
        self.started.as_ref().is_some_and(|started| started.stage() == Stage::Compile)
    }

    fn section(&mut self) -> &mut Section {
        if self.compiles() && !self.next_stage { &mut self.compiler } else { &mut self.program }
    }

    fn pull(&mut self, event: PullEvent) {
        self.last_pull += 1;
        let (number, room) = (self.last_pull, self.pulls.len() < MAX_LAYERS);
        match self.pulls.iter_mut().find(|(_, earlier)| earlier.layer == event.layer) {
            Some(earlier) => *earlier = (number, event),
            None if room => self.pulls.push((number, event)),
            None => {}
        }
    }
}

impl Section {
    fn close(&mut self, result: Option<&Arc<Finished>>, stage: Stage) {
        self.turns.shrink_to_fit();
        self.tails = Default::default();
        if let Some(finished) = result {
            self.output = Output::InResult(finished.clone(), stage);
        }
    }

    /// About how many bytes it holds beyond the result.
    fn bytes(&self) -> usize {
        let output = match &self.output {
            Output::Growing { stdout, stderr } => stdout.len() + stderr.len(),
            Output::InResult(..) => 0,
        };
        let tails = self.tails.iter().map(|tail| tail.last.len()).sum::<usize>();
        output + tails + self.turns.len() * size_of::<(Stream, usize)>()
    }

    /// The first output after a position, which moves beyond it.
    fn after(&self, position: &mut SectionPosition) -> Option<LogEvent> {
        while let Some((stream, end)) = self.turns.get(position.turn) {
            if let Some(piece) = self.piece(*stream, *end, position) {
                return Some(piece);
            }
            // The last turn may still grow.
            if position.turn + 1 == self.turns.len() {
                break;
            }
            position.turn += 1;
        }
        // What was joined to a turn that this reader has left behind.
        [Stream::Stdout, Stream::Stderr]
            .into_iter()
            .find_map(|stream| self.piece(stream, usize::MAX, position))
    }

    fn piece(&self, stream: Stream, end: usize, position: &mut SectionPosition) -> Option<LogEvent> {
        let (bytes, read) = (self.output.of(stream), position.of(stream));
        let end = end.min(bytes.len()).min(*read + MAX_PIECE);
        let piece = bytes.get(*read..end).filter(|piece| !piece.is_empty())?;
        *read = end;
        Some(LogEvent::Output(stream, Bytes::copy_from_slice(piece)))
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let Some(end) = self.output.append(stream, bytes) else { return };
        let same = |turn: &&mut (Stream, usize)| turn.0 == stream;
        let crowded = self.turns.len() >= MAX_TURNS;
        let last =
            if crowded { self.turns.iter_mut().rev().find(same) } else { self.turns.last_mut().filter(same) };
        match last {
            Some(turn) => turn.1 = end,
            None => self.turns.push((stream, end)),
        }
    }
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(MAX_TAIL)..];
        let excess = (self.last.len() + bytes.len()).saturating_sub(MAX_TAIL);
        self.last.drain(..excess);
        self.last.extend(bytes);
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Output {
    fn of(&self, stream: Stream) -> &[u8] {
        match (self, stream) {
            (Output::Growing { stdout, .. }, Stream::Stdout) => stdout,
            (Output::Growing { stderr, .. }, Stream::Stderr) => stderr,
            (Output::InResult(finished, stage), stream) => finished.head(*stage, stream),
        }
    }

    /// Appends to a stream and returns its length. A run that has its result writes no more.
    fn append(&mut self, stream: Stream, bytes: &[u8]) -> Option<usize> {
        let head = match (self, stream) {
            (Output::Growing { stdout, .. }, Stream::Stdout) => stdout,
            (Output::Growing { stderr, .. }, Stream::Stderr) => stderr,
            (Output::InResult(..), Stream::Stdout | Stream::Stderr) => return None,
        };
        head.extend_from_slice(bytes);
        Some(head.len())
    }
}

impl Default for Output {
    fn default() -> Output {
        Output::Growing { stdout: Vec::new(), stderr: Vec::new() }
    }
}

impl SectionPosition {
    fn of(&mut self, stream: Stream) -> &mut usize {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// Writes the log as the engine reports what happens.
#[derive(Debug)]
pub(crate) struct Reporter {
    id: RunId,
    log: EventLog,
    memory: Memory,
    /// Set aside for the files of the run.
    pub(crate) room: Share,
}

impl Reporter {
    pub(crate) fn new(id: RunId, log: EventLog, memory: Memory) -> Reporter {
        Reporter { id, log, memory, room: Share::default() }
    }
}

impl Observer for Reporter {
    fn decided(&mut self) {
        self.log.0.decided.send_replace(true);
    }

    fn left_queue(&mut self) {
        self.log.0.left_queue.store(true, Ordering::Relaxed);
    }

    fn pulling(&mut self, event: &PullEvent) {
        self.log.change(|state| state.pull(event.clone()));
    }

    fn started(&mut self, started: &Started<'_>) {
        let started = RunStarted::new(self.id.as_str(), started);
        self.log.change(|state| state.started = Some(started));
    }

    fn next_stage(&mut self) {
        self.log.change(|state| state.next_stage = true);
    }

    fn network(&mut self, event: &NetworkEvent) {
        self.log.change(|state| state.network.push(event.clone()));
    }

    fn make_room(&mut self, bytes: belljar_core::limits::Bytes) -> BoxFuture<'_, ControlFlow<()>> {
        Box::pin(async move {
            let bytes = usize::try_from(bytes.get()).unwrap_or(usize::MAX);
            match self.room.become_of(bytes, &self.memory, PATIENCE).await {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })
    }

    fn beyond_head(&mut self, stream: Stream, bytes: &[u8]) {
        self.log.state().section().tails[index(stream)].push(bytes);
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        if !bytes.is_empty() {
            self.log.change(|state| state.section().write(stream, bytes));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> Reporter {
        Reporter::new(RunId::new(), EventLog::default(), Memory::new(1 << 20, 1 << 16))
    }

    async fn outputs(mut reader: Reader) -> Vec<(Stream, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(LogEvent::Output(stream, bytes)) = reader.next().await {
            all.push((stream, bytes.to_vec()));
        }
        all
    }

    fn joined(told: &[(Stream, Vec<u8>)], of: Stream) -> Vec<u8> {
        told.iter().filter(|(stream, _)| *stream == of).flat_map(|(_, text)| text.clone()).collect()
    }

    #[tokio::test]
    async fn every_reader_gets_everything_in_order_whenever_it_comes() {
        let mut reporter = reporter();
        let early = tokio::spawn(outputs(reporter.log.read()));
        for (stream, text) in [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c")] {
            let _ = reporter.output(stream, text.as_bytes());
        }
        let _ = reporter.output(Stream::Stdout, b"d");
        let middle = reporter.log.read();
        reporter.log.close(None);
        let expected = [(Stream::Stdout, "ab"), (Stream::Stderr, "c"), (Stream::Stdout, "d")];
        let expected = expected.map(|(stream, text)| (stream, text.as_bytes().to_vec()));
        assert_eq!(outputs(middle).await, expected);
        assert_eq!(outputs(reporter.log.read()).await, expected);
        assert_eq!(joined(&early.await.unwrap(), Stream::Stdout), b"abd");
    }

    #[tokio::test]
    async fn a_reader_that_keeps_up_sees_a_turn_grow() {
        let mut reporter = reporter();
        let mut reader = reporter.log.read();
        let mut told = Vec::new();
        for (stream, text) in [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c")] {
            let _ = reporter.output(stream, text.as_bytes());
            let Some(LogEvent::Output(_, bytes)) = reader.next().await else { panic!("no output") };
            told.push(bytes);
        }
        assert_eq!(told, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn a_program_that_alternates_does_not_make_the_log_grow() {
        let mut reporter = reporter();
        let mut early = reporter.log.read();
        assert!(reporter.output(Stream::Stdout, b"o").is_continue());
        assert!(matches!(early.next().await, Some(LogEvent::Output(Stream::Stdout, _))));
        for _ in 1..10_000 {
            let _ = reporter.output(Stream::Stderr, b"e");
            let _ = reporter.output(Stream::Stdout, b"o");
        }
        let _ = reporter.output(Stream::Stderr, b"e");
        reporter.log.close(None);
        assert_eq!(reporter.log.state().program.turns.len(), MAX_TURNS);
        let late = outputs(reporter.log.read()).await;
        assert_eq!(joined(&late, Stream::Stdout), vec![b'o'; 10_000]);
        assert_eq!(joined(&late, Stream::Stderr), vec![b'e'; 10_000]);
        let early = outputs(early).await;
        assert_eq!(joined(&early, Stream::Stdout), vec![b'o'; 9_999]);
        assert_eq!(joined(&early, Stream::Stderr), vec![b'e'; 10_000]);
    }

    #[test]
    fn the_end_of_what_was_written_so_far_is_known_whatever_came_before() {
        let mut reporter = reporter();
        let so_far = |reporter: &Reporter| reporter.log.so_far(Stream::Stdout);
        assert_eq!(so_far(&reporter), SoFar { text: String::new(), before: 0 });
        let _ = reporter.output(Stream::Stdout, "ä1".as_bytes());
        assert_eq!(so_far(&reporter), SoFar { text: "ä1".into(), before: 0 });
        reporter.beyond_head(Stream::Stdout, b"2");
        assert_eq!(so_far(&reporter), SoFar { text: "ä12".into(), before: 0 });
        reporter.beyond_head(Stream::Stdout, &vec![b'x'; MAX_TAIL - 3]);
        let SoFar { text, before } = so_far(&reporter);
        assert!(before == 2 && text.starts_with("12xx"), "no half of a character: {before} {}", text.len());
        reporter.beyond_head(Stream::Stdout, &vec![b'y'; 3 * MAX_TAIL]);
        let SoFar { text, before } = so_far(&reporter);
        assert_eq!((text, before), ("y".repeat(MAX_TAIL), 3 * MAX_TAIL as u64 + 1));
        assert_eq!(reporter.log.so_far(Stream::Stderr).before, 0);
    }

    #[tokio::test]
    async fn an_event_has_a_bounded_piece_of_the_output() {
        let mut reporter = reporter();
        let _ = reporter.output(Stream::Stdout, &vec![b'x'; 5 * MAX_PIECE / 2]);
        reporter.log.close(None);
        let lengths: Vec<_> = outputs(reporter.log.read()).await.iter().map(|(_, text)| text.len()).collect();
        assert_eq!(lengths, [MAX_PIECE, MAX_PIECE, MAX_PIECE / 2]);
    }

    #[tokio::test]
    async fn only_the_latest_event_of_each_layer_is_kept() {
        let mut reporter = reporter();
        let event = |layer: usize, there: u64| PullEvent {
            image: "a:1".into(),
            layer: Some(layer.to_string()),
            status: "Downloading".into(),
            progress: Some((there, 3)),
        };
        let mut reader = reporter.log.read();
        reporter.pulling(&event(0, 1));
        assert!(matches!(reader.next().await, Some(LogEvent::Pulling(first)) if first == event(0, 1)));
        for (layer, there) in [(1, 1), (0, 2), (1, 2), (0, 3)] {
            reporter.pulling(&event(layer, there));
        }
        for mut reader in [reader, reporter.log.read()] {
            for expected in [event(1, 2), event(0, 3)] {
                assert!(matches!(reader.next().await, Some(LogEvent::Pulling(told)) if told == expected));
            }
        }
        (0..10_000).for_each(|layer| reporter.pulling(&event(layer, 1)));
        assert_eq!(reporter.log.state().pulls.len(), MAX_LAYERS);
    }

    #[tokio::test]
    async fn what_a_program_does_with_its_network_is_told_beside_its_output() {
        use belljar_core::egress::NetworkStep;
        let mut reporter = reporter();
        let (host, port) = ("a.org".to_owned(), Some(443));
        let event = NetworkEvent { host, port, step: NetworkStep::Allowed, count: 1 };
        let mut early = reporter.log.read();
        let _ = reporter.output(Stream::Stdout, b"x");
        assert!(matches!(early.next().await, Some(LogEvent::Output(..))));
        reporter.network(&event);
        reporter.log.close(None);
        assert!(matches!(early.next().await, Some(LogEvent::Network(told)) if told == event));
        assert!(early.next().await.is_none());
        let mut late = reporter.log.read();
        assert!(matches!(late.next().await, Some(LogEvent::Network(told)) if told == event));
        assert!(matches!(late.next().await, Some(LogEvent::Output(..))) && late.next().await.is_none());
        assert!(reporter.log.bytes() > 1, "it is counted");
    }
}
