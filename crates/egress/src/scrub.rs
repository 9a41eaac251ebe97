//! Takes a value out of what a host answers, if the host sends it back as it is. The length stays the same, so that nothing
//! else of an answer has to change.

/// A shorter value is found in ordinary text, which must not change.
const SHORTEST: usize = 8;
const INSTEAD: u8 = b'*';

/// One direction of one connection.
pub(crate) struct Scrub {
    value: Vec<u8>,
    /// The end of what has come so far, which may be the beginning of the value.
    held: Vec<u8>,
}

impl Scrub {
    pub(crate) fn new(value: &str) -> Scrub {
        Scrub { value: value.as_bytes().to_vec(), held: Vec::new() }
    }

    /// Takes what has come, and appends to `out` what can be shown of it.
    pub(crate) fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.value.len() < SHORTEST {
            return out.extend_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(found) = find(&self.held[at..], &self.value) {
            self.held[at + found..][..self.value.len()].fill(INSTEAD);
            at += found + self.value.len();
        }
        let longest = (self.value.len() - 1).min(self.held.len());
        let begun = (1..=longest).rev().find(|length| self.held.ends_with(&self.value[..*length]));
        let shown = self.held.len() - begun.unwrap_or(0);
        out.extend(self.held.drain(..shown));
    }

    /// Nothing more comes for now.
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }
}

fn find(text: &[u8], value: &[u8]) -> Option<usize> {
    let first = value.first()?;
    let mut from = 0;
    loop {
        from += text.get(from..)?.iter().position(|byte| byte == first)?;
        if text[from..].starts_with(value) {
            return Some(from);
        }
        from += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(value: &str, text: &str, piece: usize) -> String {
        let (mut scrub, mut out) = (Scrub::new(value), Vec::new());
        text.as_bytes().chunks(piece).for_each(|part| scrub.pass(part, &mut out));
        scrub.flush(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_value_does_not_come_back_however_it_is_cut() {
        let text = "key=sk-live-1234, again sk-live-1234sk-live-1234, sk-live-123 and sk-live-";
        let expected = "key=************, again ************************, sk-live-123 and sk-live-";
        for piece in [1, 2, 5, 11, 12, 13, 1000] {
            assert_eq!(scrubbed("sk-live-1234", text, piece), expected, "{piece}");
        }
        assert_eq!(scrubbed("aaaaaaaab", "aaaaaaaaaab aaaaaaaa", 3), "aa********* aaaaaaaa");
        assert_eq!(scrubbed("short", "short", 9), "short", "too short to be told from text");
    }

    #[test]
    fn an_answer_that_ends_like_the_value_begins_is_not_held_for_ever() {
        let (mut scrub, mut out) = (Scrub::new("sk-live-1234"), Vec::new());
        scrub.pass(b"ends in s", &mut out);
        assert_eq!(out, b"ends in ");
        scrub.flush(&mut out);
        assert_eq!(out, b"ends in s");
    }
}
