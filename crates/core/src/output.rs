//! Output of hostile code: bounded before it is stored, head and tail kept, the middle counted.

use std::collections::VecDeque;

use crate::limits::Bytes;

/// Collects one stream. Half of the limit goes to the head, half to the tail; what falls between is dropped and
/// counted. It never holds more than the limit, however much is pushed.
#[derive(Debug)]
pub struct Collector {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    seen: u64,
}

impl Collector {
    /// A collector that keeps at most `limit` bytes.
    #[must_use]
    pub fn new(limit: Bytes) -> Collector {
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        let head_limit = limit - limit / 2;
        Collector {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_limit,
            tail_limit: limit - head_limit,
            seen: 0,
        }
    }

    /// Takes the next bytes of the stream, and returns the part of them that belongs to the head: what may be shown
    /// live. The rest is known only at the end.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.seen += bytes.len() as u64;
        let room = self.head_limit - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
        head
    }

    /// The last bytes that were pushed, but not more than `most`, and not more than is kept.
    #[must_use]
    pub fn end(&self, most: usize) -> Vec<u8> {
        // If something is missing between them, the head is not the end.
        let whole = self.seen == (self.head.len() + self.tail.len()) as u64;
        let head = if whole { self.head.as_slice() } else { &[] };
        let from_head = most.saturating_sub(self.tail.len()).min(head.len());
        let from_tail = most.min(self.tail.len());
        let tail = self.tail.range(self.tail.len() - from_tail..);
        head[head.len() - from_head..].iter().chain(tail).copied().collect()
    }

    /// What was kept, when the stream has ended.
    #[must_use]
    pub fn finish(self) -> Captured {
        let kept = (self.head.len() + self.tail.len()) as u64;
        Captured { head: self.head, tail: self.tail.into(), missing: self.seen - kept }
    }
}

/// What was kept of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    head: Vec<u8>,
    tail: Vec<u8>,
    missing: u64,
}

impl Captured {
    /// Whether something was dropped.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.missing > 0
    }

    /// How many bytes were kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether nothing was kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was kept from the beginning of the stream: all that a live view has shown.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Head, one line that says how much is missing (if anything is), tail.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), &self.after_head()].concat()
    }

    /// What follows the head: the line that says how much is missing, and the tail. This is what a live view
    /// has not shown yet.
    #[must_use]
    pub fn after_head(&self) -> Vec<u8> {
        if self.missing == 0 {
            return self.tail.clone();
        }
        let before = if self.head.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
        let notice = format!("{before}[... {} bytes omitted ...]\n", self.missing);
        [notice.as_bytes(), &self.tail].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(limit: u64, pieces: &[&[u8]]) -> Captured {
        let mut collector = Collector::new(Bytes::new(limit));
        for piece in pieces {
            collector.push(piece);
        }
        collector.finish()
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        let captured = collect(10, &[b"hello", b"world"]);
        assert_eq!(captured.to_bytes(), b"helloworld");
        assert!(!captured.truncated());
    }

    #[test]
    fn beyond_the_limit_one_line_says_how_much_is_missing() {
        let captured = collect(10, &[b"0123456789abcdefghij"]);
        assert_eq!(captured.to_bytes(), b"01234\n[... 10 bytes omitted ...]\nfghij");
        assert!(captured.truncated());
    }

    #[test]
    fn the_notice_is_on_its_own_line() {
        let captured = collect(4, &[b"0\n2345678\n"]);
        assert_eq!(captured.to_bytes(), b"0\n[... 6 bytes omitted ...]\n8\n");
    }

    #[test]
    fn the_end_of_a_stream_spans_head_and_tail_unless_something_is_missing_between_them() {
        let mut collector = Collector::new(Bytes::new(8));
        collector.push(b"abcd");
        assert_eq!(collector.end(2), b"cd");
        collector.push(b"ef");
        assert_eq!((collector.end(3), collector.end(100)), (b"def".to_vec(), b"abcdef".to_vec()));
        collector.push(b"ghijk");
        assert_eq!((collector.end(3), collector.end(100)), (b"ijk".to_vec(), b"hijk".to_vec()));
    }

    proptest! {
        #[test]
        fn how_the_bytes_arrive_does_not_matter(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(1usize..20, 0..40),
            limit in 1u64..100,
        ) {
            let mut collector = Collector::new(Bytes::new(limit));
            let mut live = Vec::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                live.extend_from_slice(collector.push(piece));
                rest = after;
            }
            live.extend_from_slice(collector.push(rest));
            let captured = collector.finish();
            prop_assert_eq!(&captured, &collect(limit, &[&bytes]));
            live.extend_from_slice(&captured.after_head());
            prop_assert_eq!(live, captured.to_bytes());
            prop_assert_eq!(captured.truncated(), bytes.len() as u64 > limit);
            prop_assert_eq!(captured.missing, (bytes.len() as u64).saturating_sub(limit));
            prop_assert!(bytes.starts_with(&captured.head) && bytes.ends_with(&captured.tail));
        }
    }
}
