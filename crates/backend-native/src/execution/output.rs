//! What a program writes: its two streams, and the buffer that they are read into.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_core::backend::Stream;
use rustix::buffer::spare_capacity;
use rustix::pipe::PipeFlags;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// The most output that is read at once, and by how many calls.
const BUFFER: usize = 64 * 1024;
const READS: usize = 64;
/// After so many small pieces of output in a row, there is a pause before the next: a program that writes single bytes would
/// make Belljar spend as much CPU time as the program. Few programs write so often.
const SMALL: usize = 4096;
const SMALL_PIECES: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// Both streams of a program. Each is `None` when it has been read to its end.
pub(super) struct Output {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    buffer: Vec<u8>,
    /// How many pieces of output in a row were small.
    small_pieces: u32,
    /// Output is read again from this time on.
    pause: Option<Instant>,
}

impl Output {
    /// Makes the pipes. Also returns the program's ends of stdout and stderr.
    pub(super) fn new() -> io::Result<(Output, OwnedFd, OwnedFd)> {
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        let output = Output { stdout, stderr, buffer: Vec::new(), small_pieces: 0, pause: None };
        Ok((output, stdout_end, stderr_end))
    }

    /// Whether both streams have been read to their ends.
    pub(super) fn has_ended(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// What was last read.
    pub(super) fn last(&self, length: usize) -> &[u8] {
        &self.buffer[..length]
    }

    /// Waits until a stream can be read, and says which. Only a program that `lives` is made to pause.
    pub(super) async fn readable(&self, lives: bool) -> Stream {
        let pause = self.pause.filter(|_| lives);
        tokio::select! {
            () = readable(self.stdout.as_ref(), pause) => Stream::Stdout,
            () = readable(self.stderr.as_ref(), pause) => Stream::Stderr,
        }
    }

    /// Reads what is available; `None` if that is nothing, or the end of the stream. Several times, because
    /// handling an event costs more than a read.
    pub(super) fn read(&mut self, stream: Stream) -> Option<usize> {
        self.clear();
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        for _ in 0..READS {
            let so_far = self.buffer.len();
            if so_far == self.buffer.capacity() {
                break;
            }
            match pipe.as_ref()?.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The end stays, and is seen again by the next call.
                Ok(0) | Err(_) if so_far > 0 => break,
                Ok(0) | Err(_) => *pipe = None,
                Ok(_) => {}
            }
        }
        (!self.buffer.is_empty()).then(|| self.consider_pause(self.buffer.len()))
    }

    /// Reads the rest of the streams, which no process can write to any more although they may still be open. `None`: both
    /// have ended.
    pub(super) fn read_the_rest(&mut self) -> Option<(Stream, usize)> {
        self.clear();
        for (stream, pipe) in [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)] {
            let Some(open) = pipe else { continue };
            match rustix::io::read(open.as_fd(), spare_capacity(&mut self.buffer)) {
                Ok(length) if length > 0 => return Some((stream, length)),
                _ => *pipe = None,
            }
        }
        None
    }

    fn clear(&mut self) {
        self.buffer.clear();
        // Not sooner: a parked box needs no buffer.
        self.buffer.reserve(BUFFER);
    }

    fn consider_pause(&mut self, length: usize) -> usize {
        self.small_pieces = if length < SMALL { self.small_pieces.saturating_add(1) } else { 0 };
        self.pause = (self.small_pieces >= SMALL_PIECES).then(|| Instant::now() + PAUSE);
        length
    }
}

/// Waits until there is something to read, but not before the end of a pause.
async fn readable(pipe: Option<&Receiver>, pause: Option<Instant>) {
    if let Some(end) = pause {
        tokio::time::sleep_until(end).await;
    }
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}
