//! The connection between a program and its watcher: output one way, input the other, and the order to stop. The
//! program blocks only here; the watcher never blocks.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_core::backend::Stream;
use belljar_core::request::Stdin;
use tokio::sync::Notify;

/// The most output in the queue; a program that writes more blocks.
const MAX_QUEUED: usize = 64 << 10;
/// The most input in the queue.
const MAX_INPUT: usize = 64 << 10;

/// The program was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the program was stopped")]
pub(crate) struct Stopped;

/// The link of one run; `E` is the result at its end.
#[derive(Debug)]
pub(crate) struct Link<E> {
    state: Mutex<State<E>>,
    /// Wakes the program.
    bell: Condvar,
    /// Wakes the watcher.
    news: Notify,
}

#[derive(Debug)]
struct State<E> {
    stopped: bool,
    output: VecDeque<(Stream, Vec<u8>)>,
    queued: usize,
    input: VecDeque<u8>,
    input_ended: bool,
    end: Option<E>,
}

/// An event for the watcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The program has written this.
    Output(Stream, Vec<u8>),
    /// The program has ended, and all its output has been delivered.
    Ended,
}

impl<E: Send + 'static> Link<E> {
    /// A link to a program with this standard input.
    pub(crate) fn new(stdin: Stdin) -> std::io::Result<Arc<Link<E>>> {
        let (input, stream) = match stdin {
            Stdin::Empty => (VecDeque::new(), None),
            Stdin::Bytes(bytes) => (bytes.into(), None),
            Stdin::Stream(stream) => (VecDeque::new(), Some(stream)),
        };
        let state = State {
            stopped: false,
            output: VecDeque::new(),
            queued: 0,
            input,
            input_ended: stream.is_none(),
            end: None,
        };
        let link = Arc::new(Link { state: Mutex::new(state), bell: Condvar::new(), news: Notify::new() });
        if let Some(stream) = stream {
            let feeding = Arc::clone(&link);
            let thread = std::thread::Builder::new().name("stdin".into()).stack_size(128 << 10);
            thread.spawn(move || feeding.feed(stream))?;
        }
        Ok(link)
    }

    /// Tells the program to stop.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.bell.notify_all();
    }

    /// Reports that the program has ended.
    pub(crate) fn end(&self, end: E) {
        let mut state = self.state();
        state.stopped = true;
        state.end.get_or_insert(end);
        drop(state);
        self.bell.notify_all();
        self.news.notify_one();
    }

    /// Takes the result.
    pub(crate) fn take_end(&self) -> Option<E> {
        self.state().end.take()
    }

    /// Waits for an event. The future may be dropped; nothing is lost.
    pub(crate) async fn next(&self) -> News {
        loop {
            if let Some(news) = self.look() {
                return news;
            }
            self.news.notified().await;
        }
    }

    fn look(&self) -> Option<News> {
        let mut state = self.state();
        if let Some((stream, bytes)) = state.output.pop_front() {
            state.queued -= bytes.len();
            drop(state);
            self.bell.notify_all();
            return Some(News::Output(stream, bytes));
        }
        state.end.is_some().then_some(News::Ended)
    }

    /// Whether the program was told to stop.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.state().stopped { Err(Stopped) } else { Ok(()) }
    }

    /// Lets the program sleep, but not longer than it may run.
    pub(crate) fn sleep_until(&self, until: Option<Instant>) -> Result<(), Stopped> {
        let mut state = self.state();
        while !state.stopped {
            let Some(left) = left_until(until) else { return Ok(()) };
            state = self.wait(state, left);
        }
        Err(Stopped)
    }

    /// Writes as much as there is room for, as soon as there is any; returns how much that was.
    pub(crate) fn write(&self, stream: Stream, bytes: &[u8]) -> Result<usize, Stopped> {
        let mut state = self.state();
        while !state.stopped && state.queued >= MAX_QUEUED {
            state = self.wait(state, None);
        }
        if state.stopped {
            return Err(Stopped);
        }
        let taken = bytes.len().min(MAX_QUEUED - state.queued);
        state.queue(stream, &bytes[..taken]);
        drop(state);
        self.news.notify_one();
        Ok(taken)
    }

    /// Adds a message after the program has ended. It ignores the limit of the queue: it is short, and there is only
    /// one.
    pub(crate) fn remark(&self, text: &str) {
        self.state().queue(Stream::Stderr, text.as_bytes());
    }

    /// Reads what is available, and blocks until there is something. Zero bytes mean the end.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Stopped> {
        self.await_input(None)?;
        let mut state = self.state();
        let length = state.input.read(buffer).unwrap_or(0);
        drop(state);
        self.bell.notify_all();
        Ok(length)
    }

    /// Waits until there is input or its end, and returns how much there is; `None` if the time is up first.
    pub(crate) fn await_input(&self, until: Option<Instant>) -> Result<Option<usize>, Stopped> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return Err(Stopped);
            }
            if !state.input.is_empty() || state.input_ended {
                return Ok(Some(state.input.len()));
            }
            let Some(left) = left_until(until) else { return Ok(None) };
            state = self.wait(state, left);
        }
    }

    /// Copies until either side ends.
    fn feed(&self, mut stream: Box<dyn Read + Send>) {
        let mut buffer = [0; 16 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(length @ 1..) if self.offer(&buffer[..length]) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        self.state().input_ended = true;
        self.bell.notify_all();
    }

    /// Whether the program may still read it.
    fn offer(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        while !state.stopped && state.input.len() >= MAX_INPUT {
            state = self.wait(state, None);
        }
        state.input.extend(bytes);
        let wanted = !state.stopped;
        drop(state);
        self.bell.notify_all();
        wanted
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<E>>, time: Option<Duration>) -> MutexGuard<'a, State<E>> {
        match time {
            None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(time) => self.bell.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}

impl<E> State<E> {
    fn queue(&mut self, stream: Stream, bytes: &[u8]) {
        self.queued += bytes.len();
        match self.output.back_mut() {
            Some((last, queued)) if *last == stream => queued.extend_from_slice(bytes),
            _ => self.output.push_back((stream, bytes.to_vec())),
        }
    }
}

/// How long to wait: for ever, some time, or (`None`) not at all.
fn left_until(until: Option<Instant>) -> Option<Option<Duration>> {
    match until {
        None => Some(None),
        Some(until) => until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(stdin: Stdin) -> Arc<Link<&'static str>> {
        Link::new(stdin).unwrap()
    }

    #[test]
    fn a_flood_blocks_until_it_is_read_or_stopped() {
        let link = link(Stdin::Empty);
        let mut written = 0;
        while written < MAX_QUEUED {
            written += link.write(Stream::Stdout, &[7; 10_000]).unwrap();
        }
        assert_eq!(written, MAX_QUEUED);
        let flooding = Arc::clone(&link);
        let flood = std::thread::spawn(move || while flooding.write(Stream::Stderr, &[8; 10_000]).is_ok() {});
        assert_eq!(link.look(), Some(News::Output(Stream::Stdout, vec![7; MAX_QUEUED])));
        link.stop();
        flood.join().unwrap();
        assert!(link.state().queued <= MAX_QUEUED);
    }

    #[test]
    fn a_program_that_sleeps_or_reads_for_ever_wakes_up_when_stopped() {
        let endless: Box<dyn Read + Send> = Box::new(std::io::repeat(0));
        for stdin in [Stdin::Empty, Stdin::Stream(endless)] {
            let link = link(stdin);
            let sleeping = Arc::clone(&link);
            let sleeper = std::thread::spawn(move || sleeping.sleep_until(None));
            link.stop();
            assert_eq!(sleeper.join().unwrap(), Err(Stopped));
            assert_eq!(link.read(&mut [0; 8]), Err(Stopped));
        }
    }

    #[test]
    fn input_arrives_whole_and_then_ends() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let stream: Box<dyn Read + Send> = Box::new(std::io::Cursor::new(bytes.clone()));
        for stdin in [Stdin::Bytes(bytes.clone()), Stdin::Stream(stream)] {
            let link = link(stdin);
            let (mut read, mut buffer) = (Vec::new(), [0; 7000]);
            while let Ok(length @ 1..) = link.read(&mut buffer) {
                read.extend_from_slice(&buffer[..length]);
            }
            assert!(read == bytes);
        }
    }

    #[tokio::test]
    async fn the_end_comes_after_everything_that_was_written() {
        let link = link(Stdin::Empty);
        link.write(Stream::Stdout, b"a").unwrap();
        link.write(Stream::Stdout, b"b").unwrap();
        link.write(Stream::Stderr, b"c").unwrap();
        link.end("done");
        assert_eq!(link.next().await, News::Output(Stream::Stdout, b"ab".to_vec()));
        assert_eq!(link.next().await, News::Output(Stream::Stderr, b"c".to_vec()));
        assert_eq!(link.next().await, News::Ended);
        assert_eq!(link.take_end(), Some("done"));
    }
}
