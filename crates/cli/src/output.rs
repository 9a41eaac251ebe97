//! Passes the program's output on: live, byte for byte into a file or a pipe, and with escape sequences made visible
//! on a terminal.

use std::fmt;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use belljar_core::backend::Stream;
use belljar_core::outcome::{Changes, Report, Stage};
use belljar_engine::{Observer, Started};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Passes stdout and stderr of a run through to our own.
#[derive(Debug)]
pub(crate) struct PassThrough {
    stdout: Outlet,
    stderr: Outlet,
    stage: Stage,
}

impl PassThrough {
    pub(crate) fn to_our_own() -> PassThrough {
        PassThrough {
            stdout: Outlet::new(rustix::stdio::stdout(), io::stdout().is_terminal()),
            stderr: Outlet::new(rustix::stdio::stderr(), io::stderr().is_terminal()),
            stage: Stage::Run,
        }
    }

    /// From here on, this is what writes.
    pub(crate) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Writes what was held back until the end of the run, and waits until all output is written.
    pub(crate) fn finish(self, report: &Report) -> io::Result<()> {
        let (stdout, stderr) = (report.stdout.after_head(), report.stderr.after_head());
        self.finish_with(&stdout, &stderr, report.changes.as_ref())
    }

    /// The same with the rest of both streams.
    pub(crate) fn finish_with(
        mut self,
        stdout: &[u8],
        stderr: &[u8],
        changes: Option<&Changes>,
    ) -> io::Result<()> {
        let _ = self.output(Stream::Stdout, stdout);
        let _ = self.output(Stream::Stderr, stderr);
        if let Some(changes) = changes {
            let _ = self.stderr.pass(told(changes).as_bytes());
        }
        self.stdout.close().and(self.stderr.close())
    }
}

/// Whatever a compiler writes goes to stderr: stdout is for the program.
impl Observer for PassThrough {
    fn started(&mut self, started: &Started<'_>) {
        self.stage = started.stage;
    }

    fn next_stage(&mut self) {
        self.stage = Stage::Run;
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        match (stream, self.stage) {
            (Stream::Stdout, Stage::Run) => self.stdout.pass(bytes),
            (Stream::Stderr, _) | (Stream::Stdout, Stage::Compile) => self.stderr.pass(bytes),
        }
    }
}

/// One line for each file, and the patch. A name of the program's own cannot look like a line of ours.
fn told(changes: &Changes) -> String {
    let Changes { added, changed, removed, patch, truncated } = changes;
    let lists = [("added", added), ("changed", changed), ("removed", removed)];
    let lines = lists.into_iter().flat_map(|(word, names)| names.iter().map(move |name| (word, name)));
    let mut text: String = lines.map(|(word, name)| format!("{word:<8} {}\n", name.escape_debug())).collect();
    text += patch;
    if *truncated {
        text += "belljar: there were more changes than are shown here\n";
    }
    text
}

/// A write of at most this many bytes to a pipe that polls as writable does not block: it is atomic, and a page
/// is free (pipe(7), `PIPE_BUF`).
const PIECE: usize = 4096;

/// Our stdout or stderr. The thread that writes to it also watches the clock, so it must not wait for the reader:
/// once a reader stalls, another thread takes over the writing.
#[derive(Debug)]
struct Outlet {
    fd: BorrowedFd<'static>,
    filter: Option<Inert>,
    state: State,
}

#[derive(Debug)]
enum State {
    Direct,
    Behind(Sender<Vec<u8>>, JoinHandle<io::Result<()>>),
    Broken(io::Error),
}

impl Outlet {
    fn new(fd: BorrowedFd<'static>, is_terminal: bool) -> Outlet {
        Outlet { fd, filter: is_terminal.then(Inert::default), state: State::Direct }
    }

    fn pass(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        match &mut self.filter {
            None => self.write(bytes),
            Some(filter) => {
                let shown = filter.push(bytes);
                self.write(shown.as_bytes())
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if bytes.is_empty() {
            return self.is_listened_to();
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match &self.state {
                State::Broken(_) => return ControlFlow::Break(()),
                State::Behind(sender, _) => {
                    // What is waiting is bounded: only the head of the output comes here live.
                    if sender.send(rest.to_vec()).is_err() {
                        return ControlFlow::Break(());
                    }
                    return ControlFlow::Continue(());
                }
                State::Direct if !is_writable(self.fd) => self.state = writer(self.fd),
                State::Direct => {
                    let (piece, after) = rest.split_at(rest.len().min(PIECE));
                    match write_all(self.fd, piece) {
                        Ok(()) => rest = after,
                        Err(fault) => self.state = State::Broken(fault),
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// After the head of the output nothing is written until the end, so check whether the reader has left.
    fn is_listened_to(&self) -> ControlFlow<()> {
        let gone = match &self.state {
            State::Direct => has_no_reader(self.fd),
            State::Behind(_, thread) => thread.is_finished(),
            State::Broken(_) => true,
        };
        if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// A reader that leaves early is not an error; anything else that keeps us from writing is.
    fn close(mut self) -> io::Result<()> {
        if let Some(rest) = self.filter.as_mut().map(Inert::finish) {
            let _ = self.write(rest.as_bytes());
        }
        let written = match self.state {
            State::Direct => Ok(()),
            State::Broken(fault) => Err(fault),
            State::Behind(sender, thread) => {
                drop(sender);
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the writer stopped")))
            }
        };
        match written {
            Err(fault) if fault.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

fn writer(fd: BorrowedFd<'static>) -> State {
    let (sender, receiver) = channel::<Vec<u8>>();
    let write = move || receiver.into_iter().try_for_each(|bytes| write_all(fd, &bytes));
    match std::thread::Builder::new().name("output".to_owned()).spawn(write) {
        Ok(thread) => State::Behind(sender, thread),
        Err(fault) => State::Broken(fault),
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // If poll itself fails, the write will say why.
    poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&now)).map_or(true, |ready| ready > 0)
}

/// poll(2) reports an error for a pipe or socket whose reading end is closed.
fn has_no_reader(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&fd, PollFlags::empty())];
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Someone else made the file description non-blocking; it may be theirs as well as ours.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None).or_else(|errno| match errno {
                    Errno::INTR => Ok(0),
                    errno => Err(errno),
                })?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The text with control characters made visible.
pub(crate) fn inert(text: &str) -> String {
    let mut filter = Inert::default();
    filter.push(text.as_bytes()) + &filter.finish()
}

/// Makes a stream of bytes safe for a terminal: the result is UTF-8 without control characters, other than line
/// breaks and tabs. C0 controls and DEL become `^[`, C1 controls and bytes that are no text become `\x9b`, and characters
/// that change the direction of the text around them become `\u202e`. A carriage return stays only in front of a line
/// feed: alone it would let a line be written over. What a piece ends with may be the beginning of a character, or of
/// such a pair; it waits for the rest.
#[derive(Debug, Default)]
struct Inert {
    unfinished: Vec<u8>,
}

impl Inert {
    fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.unfinished.is_empty() {
            bytes
        } else {
            joined = [self.unfinished.as_slice(), bytes].concat();
            &joined
        };
        let whole = bytes.len() - unfinished(bytes);
        let shown = Shown(&bytes[..whole]).to_string();
        self.unfinished = bytes[whole..].to_vec();
        shown
    }

    fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.unfinished);
        Shown(&rest).to_string()
    }
}

/// How many bytes at the end could be the beginning of a line break or of a character.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") { 1 } else { unfinished_character(bytes) }
}

fn unfinished_character(bytes: &[u8]) -> usize {
    let candidates = 1..=bytes.len().min(3);
    let unfinished = |length: &usize| {
        let end = &bytes[bytes.len() - length..];
        str::from_utf8(end).is_err_and(|fault| fault.valid_up_to() == 0 && fault.error_len().is_none())
    };
    candidates.into_iter().find(unfinished).unwrap_or(0)
}

struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            let mut lines = chunk.valid().split("\r\n");
            lines.next().map_or(Ok(()), |line| show_line(f, line))?;
            lines.try_for_each(|line| f.write_str("\r\n").and_then(|()| show_line(f, line)))?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

fn show_line(f: &mut fmt::Formatter<'_>, line: &str) -> fmt::Result {
    for part in line.split_inclusive(is_active) {
        match part.chars().next_back().filter(|last| is_active(*last)) {
            Some(last) => {
                f.write_str(&part[..part.len() - last.len_utf8()])?;
                show_active(f, last)?;
            }
            None => f.write_str(part)?,
        }
    }
    Ok(())
}

/// Whether a terminal does something else with it than show it.
fn is_active(c: char) -> bool {
    (c.is_control() && !"\n\t".contains(c)) || turns_text(c)
}

/// Embeddings, overrides and isolates of the bidirectional algorithm, with which text can be made to look like other
/// text (CVE-2021-42574). The marks remain: they order only themselves.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn show_active(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match u8::try_from(c) {
        Ok(byte) if byte < 0x80 => write!(f, "^{}", char::from(byte ^ 0x40)),
        Ok(byte) => write!(f, "\\x{byte:02x}"),
        Err(_) => write!(f, "\\u{:04x}", u32::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::pipe::pipe;
    use std::io::Read;

    #[test]
    fn escapes_become_visible_and_text_stays() {
        assert_eq!(inert("plain, ümläut, 日本\n\ttab\r\n"), "plain, ümläut, 日本\n\ttab\r\n");
        assert_eq!(inert("\x1b]0;title\x07\x1b[31mred\x08\x7f\0"), "^[]0;title^G^[[31mred^H^?^@");
        assert_eq!(inert("a\u{9b}31mb\u{85}"), "a\\x9b31mb\\x85");
        assert_eq!(
            inert("if \u{202e}txet\u{202c} \u{2066}x\u{2069}"),
            "if \\u202etxet\\u202c \\u2066x\\u2069"
        );
        assert_eq!(inert("evil\rgood\r\nend\r"), "evil^Mgood\r\nend^M");
        assert_eq!(inert("\r\r\n\n\r"), "^M\r\n\n^M");
        let mut filter = Inert::default();
        assert_eq!(filter.push(b"latin \x9b31m \xe4 end\n"), "latin \\x9b31m \\xe4 end\n");
    }

    #[test]
    fn a_character_cut_in_two_is_put_together_again() {
        let mut filter = Inert::default();
        assert_eq!(filter.push(b"a\xc2"), "a");
        assert_eq!(filter.push(b"\x9bm"), "\\x9bm");
        assert_eq!(filter.push("日".as_bytes().split_at(2).0), "");
        assert_eq!(filter.push("日".as_bytes().split_at(2).1), "日");
        assert_eq!(filter.push(b"line\r"), "line");
        assert_eq!(filter.push(b"\nnext\r"), "\r\nnext");
        assert_eq!(filter.push(b"over"), "^Mover");
        assert_eq!(filter.push(b"\xf0\x9f"), "");
        assert_eq!(filter.finish(), "\\xf0\\x9f");
    }

    proptest! {
        #[test]
        fn no_bytes_in_no_pieces_can_drive_a_terminal(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0x1b), Just(0xc2), Just(0x9b), Just(0xe2), Just(0x80),
                    Just(0xae), Just(b'\r'), Just(b'\n')], 0..200),
            cuts in proptest::collection::vec(0usize..8, 0..60),
        ) {
            let mut whole = Inert::default();
            let at_once = whole.push(&bytes) + &whole.finish();
            let (mut filter, mut pieces, mut rest) = (Inert::default(), String::new(), bytes.as_slice());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces += &filter.push(piece);
                rest = after;
            }
            pieces += &filter.push(rest);
            pieces += &filter.finish();
            prop_assert_eq!(&pieces, &at_once);
            prop_assert!(!at_once.replace("\r\n", "\n").chars().any(is_active));
        }

        #[test]
        fn text_without_controls_is_not_touched(text in "[^\\p{Cc}\u{202a}-\u{202e}\u{2066}-\u{2069}]{0,80}") {
            prop_assert_eq!(inert(&text), text);
        }
    }

    /// An outlet into a pipe that lives as long as the test process: an outlet's descriptor is our own stdout.
    fn outlet_into_a_pipe() -> (Outlet, std::fs::File) {
        let (reader, writer) = pipe().unwrap();
        let writer = Box::leak(Box::new(writer));
        (Outlet::new(std::os::fd::AsFd::as_fd(writer), false), reader.into())
    }

    #[test]
    fn a_reader_that_stalls_does_not_stall_the_writer() {
        let (mut outlet, mut reader) = outlet_into_a_pipe();
        let sent: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        for piece in sent.chunks(10_000) {
            assert!(outlet.pass(piece).is_continue());
        }
        assert!(matches!(outlet.state, State::Behind(..)));
        let length = sent.len();
        let reading = std::thread::spawn(move || {
            let mut got = vec![0; length];
            reader.read_exact(&mut got).map(|()| got)
        });
        outlet.close().unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), sent);
    }

    #[test]
    fn a_reader_that_leaves_is_noticed_and_no_error() {
        let (mut outlet, reader) = outlet_into_a_pipe();
        assert!(outlet.pass(b"one").is_continue());
        drop(reader);
        assert!(outlet.pass(b"two").is_break());
        assert!(outlet.close().is_ok());
    }

    #[test]
    fn a_reader_that_leaves_is_noticed_even_when_there_is_nothing_to_write() {
        let (mut outlet, reader) = outlet_into_a_pipe();
        assert_eq!(outlet.pass(b""), ControlFlow::Continue(()));
        drop(reader);
        assert_eq!(outlet.pass(b""), ControlFlow::Break(()));
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = Box::leak(Box::new(std::fs::File::options().write(true).open("/dev/full").unwrap()));
        let mut outlet = Outlet::new(std::os::fd::AsFd::as_fd(full), false);
        assert!(outlet.pass(b"x").is_break());
        assert_eq!(outlet.close().unwrap_err().raw_os_error(), Some(28));
    }
}
