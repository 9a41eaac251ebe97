//! Feeding a program. It may read slowly, late or never; that must not block anything else.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use belljar_core::request::Stdin;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// A pipe: the program's end and ours.
///
/// A host file is never handed over itself: through `/proc/self/fd/0` the code could open it again for writing.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// Feeds everything to the reader of the pipe: what fits at once, the rest from a separate thread, because reading and
/// writing may both take for ever.
pub fn feed(pipe: OwnedFd, stdin: Stdin) -> io::Result<()> {
    match stdin {
        Stdin::Empty => Ok(()),
        Stdin::Bytes(bytes) => match pour(&pipe, &bytes) {
            Ok(poured) => feed_rest(pipe, bytes, poured),
            // It has ended already, or does not read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        },
        Stdin::Stream(stream) => pump_beside(stream, File::from(pipe)),
    }
}

/// Feeds what remains after the first bytes, if anything.
pub fn feed_rest(pipe: OwnedFd, bytes: Vec<u8>, poured: usize) -> io::Result<()> {
    if poured >= bytes.len() {
        return Ok(());
    }
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags - OFlags::NONBLOCK)?;
    let mut rest = io::Cursor::new(bytes);
    rest.set_position(poured as u64);
    pump_beside(Box::new(rest), File::from(pipe))
}

/// Writes into a pipe what fits without blocking, and returns how much that was. An error means that nothing was
/// written.
pub fn pour(pipe: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = rustix::fs::fcntl_getfl(pipe)?;
    rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?;
    let mut poured = 0;
    while poured < bytes.len() {
        match rustix::io::retry_on_intr(|| rustix::io::write(pipe, &bytes[poured..])) {
            Ok(length) => poured += length,
            Err(Errno::AGAIN) => break,
            // The reader has gone, which is not an error.
            Err(_) if poured > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(poured)
}

fn pump_beside(source: Box<dyn Read + Send>, pipe: File) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("stdin".into()).stack_size(128 * 1024);
    thread.spawn(move || pump(source, pipe)).map(drop)
}

/// Copies until either side ends. A program that has ended closes its side, and writing fails.
fn pump(mut source: Box<dyn Read + Send>, mut pipe: File) {
    let mut buffer = [0; 16 * 1024];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if pipe.write_all(&buffer[..length]).is_err() => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_pipe_holds_arrives_whole_without_blocking_the_feeder() {
        let (reader, writer) = pipe().unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        feed(writer, Stdin::Bytes(bytes.clone())).unwrap();
        let mut read = Vec::new();
        File::from(reader).read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn a_pipe_without_a_reader_fails_before_the_first_byte_but_not_while_feeding() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(pour(&writer, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        feed(writer, Stdin::Bytes(b"x".to_vec())).unwrap();
    }
}
