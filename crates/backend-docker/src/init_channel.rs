//! Our end of the connection to PID 1 of a container.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use belljar_core::request::Stdin;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc};

use crate::api::Attached;
use crate::frame::{LONGEST, STDIN_WINDOW, Said, Told};

/// The length of the header that an engine puts before each piece of a stream.
pub(crate) const HEAD: usize = 8;
/// The most that is kept of what PID 1 writes to stderr: only a dying process writes there.
const MOST_ASIDE: usize = 4 << 10;

/// An open channel.
pub(crate) struct InitChannel {
    from: ReadHalf<Attached>,
    /// The raw bytes.
    raw: Vec<u8>,
    /// How much of the piece at the start of `raw` is missing, and whether it belongs to the protocol.
    piece: (usize, bool),
    said: Vec<u8>,
    ready: VecDeque<Said>,
    aside: Vec<u8>,
    to: mpsc::UnboundedSender<Vec<u8>>,
    window: Arc<Semaphore>,
}

impl InitChannel {
    pub(crate) fn new(attached: Attached) -> InitChannel {
        let (from, to) = tokio::io::split(attached);
        let (sender, frames) = mpsc::unbounded_channel();
        tokio::spawn(write(to, frames));
        InitChannel {
            from,
            raw: Vec::new(),
            piece: (0, false),
            said: Vec::new(),
            ready: VecDeque::new(),
            aside: Vec::new(),
            to: sender,
            window: Arc::new(Semaphore::new(STDIN_WINDOW)),
        }
    }

    /// Sends a message, as soon as there is room.
    pub(crate) fn tell(&self, told: &Told) {
        self.tell_raw(told.encode());
    }

    pub(crate) fn tell_raw(&self, frames: Vec<u8>) {
        // If the channel is closed, the message is lost; reading reports that.
        let _ = self.to.send(frames);
    }

    /// The next message; `None` if the other side has disconnected. The future may be dropped: nothing is lost.
    pub(crate) async fn hear(&mut self) -> io::Result<Option<Said>> {
        loop {
            if let Some(said) = self.ready.pop_front() {
                if let Said::Taken(count) = said {
                    // It may claim to have read more than it was sent; the window never grows beyond its size.
                    let room = STDIN_WINDOW.saturating_sub(self.window.available_permits());
                    self.window.add_permits(room.min(count as usize));
                    continue;
                }
                return Ok(Some(said));
            }
            self.raw.reserve(LONGEST);
            if self.from.read_buf(&mut self.raw).await? == 0 {
                return Ok(None);
            }
            self.sort()?;
        }
    }

    /// What it wrote to stderr, where only a dying process writes.
    pub(crate) fn last_words(&self) -> String {
        String::from_utf8_lossy(&self.aside).trim().escape_debug().to_string()
    }

    /// Feeds the program's standard input as it is read.
    pub(crate) fn feed(&self, stdin: Stdin) -> io::Result<()> {
        let (to, window) = (self.to.clone(), self.window.clone());
        match stdin {
            Stdin::Empty => self.tell(&Told::StdinEnd),
            Stdin::Bytes(bytes) => drop(tokio::spawn(async move {
                for piece in bytes.chunks(STDIN_WINDOW) {
                    if !send(&to, &window, piece).await {
                        return;
                    }
                }
                let _ = to.send(Told::StdinEnd.encode());
            })),
            Stdin::Stream(stream) => pump_beside(stream, to, window)?,
        }
        Ok(())
    }

    /// Separates protocol bytes from others.
    fn sort(&mut self) -> io::Result<()> {
        let mut raw = std::mem::take(&mut self.raw);
        let mut at = 0;
        loop {
            if self.piece.0 == 0 {
                let Some(head) = raw[at..].first_chunk::<HEAD>() else { break };
                let [stream, _, _, _, a, b, c, d] = *head;
                self.piece = (u32::from_be_bytes([a, b, c, d]) as usize, stream == 1);
                at += HEAD;
            }
            let count = self.piece.0.min(raw.len() - at);
            let bytes = &raw[at..at + count];
            if self.piece.1 {
                self.said.extend_from_slice(bytes);
            } else {
                let room = MOST_ASIDE.saturating_sub(self.aside.len());
                self.aside.extend_from_slice(&bytes[..count.min(room)]);
            }
            self.piece.0 -= count;
            at += count;
            while let Some(said) = Said::take(&mut self.said)? {
                self.ready.push_back(said);
            }
            if at == raw.len() {
                break;
            }
        }
        raw.drain(..at);
        self.raw = raw;
        Ok(())
    }
}

async fn write(mut to: WriteHalf<Attached>, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frames) = frames.recv().await {
        if to.write_all(&frames).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Sends a piece when there is room for it. False if the other side is gone.
async fn send(to: &mpsc::UnboundedSender<Vec<u8>>, window: &Semaphore, piece: &[u8]) -> bool {
    let count = u32::try_from(piece.len()).unwrap_or(u32::MAX);
    let Ok(permits) = window.acquire_many(count).await else { return false };
    permits.forget();
    to.send(Told::Stdin(piece.to_vec()).encode()).is_ok()
}

/// On a separate thread, because reading may take for ever.
fn pump_beside(
    mut stream: Box<dyn io::Read + Send>,
    to: mpsc::UnboundedSender<Vec<u8>>,
    window: Arc<Semaphore>,
) -> io::Result<()> {
    let (pieces, mut read) = mpsc::channel::<Vec<u8>>(1);
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut buffer = vec![0; STDIN_WINDOW / 2];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if pieces.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    })?;
    tokio::spawn(async move {
        while let Some(piece) = read.recv().await {
            if !send(&to, &window, &piece).await {
                return;
            }
        }
        let _ = to.send(Told::StdinEnd.encode());
    });
    Ok(())
}
