//! What a client hears while it waits, if it asked to.

use std::time::Duration;

use belljar_core::limits::show_duration;
use belljar_wire::ImagePull;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often.
const EVERY: Duration = Duration::from_secs(1);
/// How much of the program's last line is told, in characters.
const MAX_LINE: usize = 200;

/// The progress of one call.
#[derive(Debug)]
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    began: Instant,
    ticks: Interval,
    line: LastLine,
    /// The image that the run waits for.
    pulling: Option<String>,
}

impl Progress {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Progress {
        let began = Instant::now();
        let mut ticks = interval_at(began + EVERY, EVERY);
        // Two at once would tell nothing that one does not.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let token = context.meta.get_progress_token();
        Progress { peer: context.peer.clone(), token, began, ticks, line: LastLine::default(), pulling: None }
    }

    /// Waits until it is time to say something. For a client that did not ask, that time does not come.
    pub(super) async fn due(&mut self) {
        match self.token {
            Some(_) => drop(self.ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Says how long it has been, and what the program said last.
    pub(super) async fn tell(&self) {
        let Some(token) = self.token.clone() else { return };
        let elapsed = self.began.elapsed();
        let seconds = show_duration(Duration::from_secs(elapsed.as_secs()));
        let message = match (&self.pulling, self.line.text()) {
            (Some(image), _) => format!("fetching {image} for {seconds}"),
            (None, Some(line)) => format!("running for {seconds}: {line}"),
            (None, None) => format!("running for {seconds}"),
        };
        let progress = ProgressNotificationParam::new(token, elapsed.as_secs_f64()).with_message(message);
        // A client that is gone is noticed elsewhere.
        let _ = self.peer.notify_progress(progress).await;
    }

    /// Takes in that an image is being fetched.
    pub(super) fn pulling(&mut self, pull: &ImagePull) {
        self.pulling = Some(pull.image.clone());
    }

    /// Takes in that the program runs.
    pub(super) fn began_to_run(&mut self) {
        self.pulling = None;
    }

    /// Takes in what the program wrote.
    pub(super) fn heard(&mut self, bytes: &[u8]) {
        self.line.push(bytes);
    }
}

/// The last line that a program wrote with anything in it, bounded, and with nothing in it that a terminal obeys.
#[derive(Debug, Default)]
struct LastLine {
    last: String,
    open: Vec<u8>,
}

impl LastLine {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = (MAX_LINE * 4).saturating_sub(self.open.len());
            self.open.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.last = visible(&self.open).unwrap_or(std::mem::take(&mut self.last));
                self.open.clear();
            }
        }
    }

    fn text(&self) -> Option<String> {
        visible(&self.open).or_else(|| Some(self.last.clone()).filter(|line| !line.is_empty()))
    }
}

fn visible(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let shown: String = text.chars().filter(|c| !c.is_control()).take(MAX_LINE).collect();
    Some(shown.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(pieces: &[&[u8]]) -> Option<String> {
        let mut line = LastLine::default();
        pieces.iter().for_each(|piece| line.push(piece));
        line.text()
    }

    #[test]
    fn the_last_line_is_told_whole_or_not() {
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[b"one\ntw", b"o\n\n  \n"]).as_deref(), Some("two"));
        assert_eq!(last(&[b"one\n", b"50 %"]).as_deref(), Some("50 %"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_left_out() {
        assert_eq!(last(&[b"\x1b[31mred\x07\xff\n"]).as_deref(), Some("[31mred\u{fffd}"));
    }

    #[test]
    fn a_line_without_an_end_does_not_grow() {
        let mut line = LastLine::default();
        (0..1000).for_each(|_| line.push(&[b'x'; 1000]));
        assert_eq!(line.open.len(), MAX_LINE * 4);
        assert_eq!(line.text().unwrap().len(), MAX_LINE);
    }
}
