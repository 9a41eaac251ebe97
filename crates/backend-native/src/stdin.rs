//! Feeding a program. It may read slowly, late or never; that is nobody's problem but its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use belljar_core::request::Stdin;
use rustix::pipe::PipeFlags;

/// What a fresh pipe holds without anyone reading.
const PIPE_CAPACITY: usize = 64 * 1024;

/// What is still to be fed.
pub(crate) struct Feed(Option<(Box<dyn Read + Send>, File)>);

impl Feed {
    /// The program's end of the pipe, if there is anything to feed; a little is in the pipe already.
    ///
    /// A host file is never handed over itself: through `/proc/self/fd/0` the code could open it anew for writing.
    pub(crate) fn prepare(stdin: Stdin) -> io::Result<(Option<OwnedFd>, Feed)> {
        let source: Box<dyn Read + Send> = match stdin {
            Stdin::Empty => return Ok((None, Feed(None))),
            Stdin::Bytes(bytes) if bytes.len() <= PIPE_CAPACITY => {
                let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                File::from(writer).write_all(&bytes)?;
                return Ok((Some(reader), Feed(None)));
            }
            Stdin::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            Stdin::Stream(stream) => stream,
        };
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Some(reader), Feed(Some((source, File::from(writer))))))
    }

    /// Feeds the rest, on a thread of its own: reading and writing may both take for ever.
    pub(crate) fn begin(self) -> io::Result<()> {
        let Some((source, pipe)) = self.0 else { return Ok(()) };
        let thread = std::thread::Builder::new().name("stdin".into()).stack_size(128 * 1024);
        thread.spawn(move || pump(source, pipe)).map(drop)
    }
}

/// Copies until one side has had enough. A program that has ended closes its side, and writing fails.
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
