//! What a run has to say on its way to whoever listens.
//!
//! The engine never waits for a listener: a slow one must not hold up a box, or its slot. Nor is anything dropped,
//! because only the head of each stream is ever told live, and that is bounded by the run's own limit on output. What
//! a listener has not fetched yet is joined into larger pieces, so that the number of pieces is bounded, too. Of an image
//! that is being fetched, only the latest news of each layer is kept: they replace what was said before.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::backend::{PullEvent, Stream};
use belljar_engine::{Observer, RunId, Started};
use belljar_wire::RunStarted;
use bytes::BytesMut;
use tokio::sync::{Notify, watch};

/// Pieces that wait; beyond that, a piece joins the last one of its stream, whatever stands between them.
const MAX_PIECES: usize = 256;

/// One piece of news.
#[derive(Debug)]
pub(crate) enum News {
    Pulling(PullEvent),
    Started(RunStarted),
    Output(Stream, BytesMut),
}

/// Both ends of the way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Feed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
    /// Which of the language's commands runs.
    stage: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<News>,
    closed: bool,
    unheard: bool,
}

impl Feed {
    /// The next piece of news, or `None` when there will be no more.
    pub(crate) async fn next(&self) -> Option<News> {
        loop {
            let news = self.0.news.notified();
            {
                let mut state = self.state();
                if let Some(piece) = state.pieces.pop_front() {
                    return Some(piece);
                }
                if state.closed {
                    return None;
                }
            }
            news.await;
        }
    }

    /// Which of the language's commands runs, whether or not anybody listens to what they print.
    pub(crate) fn stage(&self) -> watch::Receiver<usize> {
        self.0.stage.subscribe()
    }

    /// Nobody listens: nothing is stored from here on.
    pub(crate) fn stop_listening(&self) {
        let mut state = self.state();
        state.unheard = true;
        state.pieces = VecDeque::new();
    }

    /// Nothing will follow.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.0.news.notify_one();
    }

    fn push(&self, piece: News) {
        let mut state = self.state();
        if !state.unheard {
            state.push(piece);
            drop(state);
            self.0.news.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked while it held the lock had changed one queue or one flag, whole or not at all.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, piece: News) {
        match piece {
            News::Started(_) => self.pieces.push_back(piece),
            News::Pulling(event) => self.push_pull(event),
            News::Output(stream, bytes) => self.push_output(stream, bytes),
        }
    }

    fn push_pull(&mut self, event: PullEvent) {
        let same = |piece: &&mut News| matches!(piece, News::Pulling(of) if of.layer == event.layer);
        let crowded = self.pieces.len() >= MAX_PIECES;
        match self.pieces.iter_mut().find(same) {
            Some(earlier) => *earlier = News::Pulling(event),
            None if !crowded => self.pieces.push_back(News::Pulling(event)),
            None => {}
        }
    }

    fn push_output(&mut self, stream: Stream, bytes: BytesMut) {
        let crowded = self.pieces.len() >= MAX_PIECES;
        let same = |piece: &&mut News| matches!(piece, News::Output(of, _) if *of == stream);
        let last = if crowded {
            self.pieces.iter_mut().rev().find(same)
        } else {
            self.pieces.back_mut().filter(same)
        };
        match last {
            Some(News::Output(_, earlier)) => earlier.extend_from_slice(&bytes),
            _ => self.pieces.push_back(News::Output(stream, bytes)),
        }
    }
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) id: RunId,
    pub(crate) feed: Feed,
}

impl Observer for Reporter {
    fn pulling(&mut self, event: &PullEvent) {
        self.feed.push(News::Pulling(event.clone()));
    }

    fn started(&mut self, started: &Started<'_>) {
        self.feed.push(News::Started(RunStarted::new(self.id.as_str(), started)));
    }

    fn next_stage(&mut self) {
        self.feed.0.stage.send_modify(|stage| *stage += 1);
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        if !bytes.is_empty() {
            self.feed.push(News::Output(stream, bytes.into()));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> Reporter {
        Reporter { id: RunId::new(), feed: Feed::default() }
    }

    async fn drain(feed: &Feed) -> Vec<(Stream, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(News::Output(stream, bytes)) = feed.next().await {
            all.push((stream, bytes.to_vec()));
        }
        all
    }

    #[tokio::test]
    async fn pieces_that_nobody_has_fetched_are_joined_in_their_order() {
        let mut reporter = reporter();
        for (stream, text) in [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c")] {
            let _ = reporter.output(stream, text.as_bytes());
        }
        let _ = reporter.output(Stream::Stdout, b"d");
        reporter.feed.close();
        let told = drain(&reporter.feed).await;
        let expected = [(Stream::Stdout, "ab"), (Stream::Stderr, "c"), (Stream::Stdout, "d")];
        assert_eq!(told, expected.map(|(stream, text)| (stream, text.as_bytes().to_vec())));
    }

    #[tokio::test]
    async fn a_program_that_alternates_does_not_make_the_queue_grow() {
        let mut reporter = reporter();
        for _ in 0..10_000 {
            let _ = reporter.output(Stream::Stdout, b"o");
            let _ = reporter.output(Stream::Stderr, b"e");
        }
        reporter.feed.close();
        let told = drain(&reporter.feed).await;
        assert!(told.len() <= MAX_PIECES + 2, "{}", told.len());
        for (of, byte) in [(Stream::Stdout, b'o'), (Stream::Stderr, b'e')] {
            let all: Vec<u8> =
                told.iter().filter(|(stream, _)| *stream == of).flat_map(|(_, text)| text.clone()).collect();
            assert_eq!(all, vec![byte; 10_000]);
        }
    }

    #[tokio::test]
    async fn of_each_layer_only_the_latest_is_kept() {
        let mut reporter = reporter();
        let event = |layer: usize, there: u64| PullEvent {
            image: "a:1".into(),
            layer: Some(layer.to_string()),
            status: "Downloading".into(),
            progress: Some((there, 3)),
        };
        for (layer, there) in [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)] {
            reporter.pulling(&event(layer, there));
        }
        let mut told = Vec::new();
        for _ in 0..2 {
            let Some(News::Pulling(event)) = reporter.feed.next().await else { panic!("two layers") };
            told.push(event);
        }
        assert_eq!(told, [event(0, 3), event(1, 2)]);
        (0..10_000).for_each(|layer| reporter.pulling(&event(layer, 1)));
        assert_eq!(reporter.feed.state().pieces.len(), MAX_PIECES);
    }

    #[tokio::test]
    async fn without_a_listener_nothing_is_stored() {
        let mut reporter = reporter();
        reporter.feed.stop_listening();
        let _ = reporter.output(Stream::Stdout, b"x");
        reporter.feed.close();
        assert!(reporter.feed.next().await.is_none());
    }
}
