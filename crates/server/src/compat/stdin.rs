//! A standard input that is written while the program runs.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The most bytes that may wait for a program that does not read them.
pub(super) const MAX_WAITING: usize = 1 << 20;
/// What a piece costs, however short it is.
const PER_PIECE: usize = 64;

/// The writing end. Dropping it ends the input.
#[derive(Debug)]
pub(super) struct Writer {
    pieces: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

/// The reading end, for the thread that feeds the program.
#[derive(Debug)]
pub(super) struct Reader {
    pieces: Receiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    piece: io::Cursor<Vec<u8>>,
}

/// More was written than the program has read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Both ends.
pub(super) fn pipe() -> (Writer, Reader) {
    let (sender, receiver) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let reader = Reader { pieces: receiver, waiting: waiting.clone(), piece: io::Cursor::default() };
    (Writer { pieces: sender, waiting }, reader)
}

impl Writer {
    /// Hands bytes over without waiting. A program that has ended takes whatever it is given.
    pub(super) fn write(&self, bytes: Vec<u8>) -> Result<(), Full> {
        let size = bytes.len() + PER_PIECE;
        if self.waiting.load(Ordering::Acquire) + size > MAX_WAITING {
            return Err(Full);
        }
        self.waiting.fetch_add(size, Ordering::AcqRel);
        // It fails only when nobody reads any more.
        let _ = self.pieces.send(bytes);
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.piece.read(buffer)?;
            if length > 0 {
                return Ok(length);
            }
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            self.waiting.fetch_sub(piece.len() + PER_PIECE, Ordering::AcqRel);
            self.piece = io::Cursor::new(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_until_the_writer_is_gone() {
        let (writer, mut reader) = pipe();
        for piece in ["one", "", "two"] {
            writer.write(piece.into()).unwrap();
        }
        drop(writer);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "onetwo");
    }

    #[test]
    fn what_nobody_reads_does_not_pile_up() {
        let (writer, mut reader) = pipe();
        assert_eq!(writer.write(vec![0; MAX_WAITING]), Err(Full));
        while writer.write(Vec::new()).is_ok() {}
        assert_eq!(writer.waiting.load(Ordering::Relaxed), MAX_WAITING);
        let (writer, mut buffer) = (writer, [0; 1]);
        std::thread::spawn(move || reader.read(&mut buffer));
        while writer.write(b"x".to_vec()) == Err(Full) {
            std::thread::yield_now();
        }
    }
}
