//! A run as it happens: server-sent events.

use std::collections::VecDeque;

use belljar_wire::Heard;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::ClientError;
use crate::exchange::{Answer, Server};

/// The longest event: the last one has the whole result.
const MOST: usize = 512 << 20;

/// The events of a run. Dropping it disconnects, which cancels a run that this client has started.
#[derive(Debug)]
pub struct Events {
    server: Server,
    id: Option<String>,
    body: Incoming,
    parser: Parser,
    is_over: bool,
}

impl Events {
    pub(crate) fn new(server: Server, answer: Answer) -> Events {
        let id = answer.response.headers().get("x-run-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        Events { server, id, body: answer.response.into_body(), parser: Parser::default(), is_over: false }
    }

    /// The identifier of the run, if this client has started it.
    #[must_use]
    pub fn run_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The next event; `None` after the last, which is [`Heard::End`] or [`Heard::Error`].
    ///
    /// # Errors
    /// The connection broke off, or the server said something else.
    pub async fn next(&mut self) -> Result<Option<Heard>, ClientError> {
        loop {
            if self.is_over {
                return Ok(None);
            }
            if let Some((name, data)) = self.parser.events.pop_front() {
                let event = Heard::read(&name, data.as_bytes()).map_err(|_| self.server.not_belljar())?;
                self.is_over = matches!(event, Heard::End(_) | Heard::Error(_));
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else {
                return Err(self.server.interrupted("the server said no more before the run had ended"));
            };
            let frame = frame.map_err(|cause| self.server.interrupted(cause))?;
            if let Ok(bytes) = frame.into_data() {
                self.parser.push(&bytes).map_err(|()| self.server.not_belljar())?;
            }
        }
    }
}

/// Puts events together from pieces.
#[derive(Debug, Default)]
struct Parser {
    /// The beginning of a line.
    line: Vec<u8>,
    name: String,
    data: String,
    events: VecDeque<(String, String)>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) -> Result<(), ()> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.line.extend_from_slice(line);
            let whole = std::mem::take(&mut self.line);
            let whole = String::from_utf8(whole).map_err(drop)?;
            self.take(whole.strip_suffix('\r').unwrap_or(&whole));
        }
        self.line.extend_from_slice(last);
        if self.line.len() + self.data.len() > MOST { Err(()) } else { Ok(()) }
    }

    fn take(&mut self, line: &str) {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            if !data.is_empty() {
                self.events.push_back((name, data));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" if self.data.is_empty() => value.clone_into(&mut self.data),
            "data" => self.data = format!("{}\n{value}", self.data),
            // A comment, which says that the server is still there, or a field that is of no use here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_any_pieces() {
        let text = "event: start\ndata: {\"a\":\ndata: \"ü\"}\n\n: still here\n\nevent:stdout\r\ndata:x\r\n\r\nevent: end\n";
        let whole = {
            let mut parser = Parser::default();
            parser.push(text.as_bytes()).unwrap();
            parser.events
        };
        let expected = [("start", "{\"a\":\n\"ü\"}"), ("stdout", "x")];
        let expected: VecDeque<_> = expected.map(|(name, data)| (name.to_owned(), data.to_owned())).into();
        assert_eq!(whole, expected);
        for size in 1..text.len() {
            let mut parser = Parser::default();
            text.as_bytes().chunks(size).for_each(|piece| parser.push(piece).unwrap());
            assert_eq!(parser.events, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_not_text_is_no_event() {
        assert!(Parser::default().push(b"data: \xff\n").is_err());
    }
}
