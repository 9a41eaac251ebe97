//! Bytes that come in pieces, as text. A character that was cut in two waits for its other half; invalid UTF-8 is
//! replaced.

/// One stream of bytes on its way to being text.
#[derive(Debug, Default)]
pub(crate) struct Text {
    /// The beginning of a character whose end has not come yet: at most three bytes.
    begun: Vec<u8>,
}

impl Text {
    /// The next bytes, as far as they are whole characters.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let whole = self.begun.len() - unfinished(&self.begun);
        let rest = self.begun.split_off(whole);
        let text = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun = rest;
        text
    }

    /// What was begun and will not be finished.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned()
    }
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|length| {
            let end = &bytes[bytes.len() - length..];
            matches!(str::from_utf8(end), Err(fault) if fault.error_len().is_none() && fault.valid_up_to() == 0)
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_that_was_cut_in_two_comes_whole() {
        let mut text = Text::default();
        assert_eq!(text.push(b"a\xf0\x9f"), "a");
        assert_eq!(text.push(b"\x90"), "");
        assert_eq!(text.push(b"\x98b"), "\u{1f418}b");
        assert_eq!(text.push(b"\xc3"), "");
        assert_eq!(text.finish(), "\u{fffd}");
        assert_eq!(text.finish(), "");
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_does_not_matter(
            pieces in proptest::collection::vec(proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac), Just(0xf0)], 0..8), 0..8),
        ) {
            let mut text = Text::default();
            let mut told: String = pieces.iter().map(|piece| text.push(piece)).collect();
            told += &text.finish();
            prop_assert_eq!(told, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }
    }
}
