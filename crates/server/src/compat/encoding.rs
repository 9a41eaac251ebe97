//! Bytes as text, in the ways that clients write them.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use belljar_core::Captured;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Base64 of either alphabet, with or without padding, with line breaks or without: what Node.js and Python accept.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(&compact).or_else(|_| URL_SAFE.decode(&compact)).ok()
}

/// Two hexadecimal digits a byte.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// What was kept of a stream, as text; what is no UTF-8 is replaced.
pub(super) fn to_text(captured: &Captured) -> String {
    String::from_utf8_lossy(&captured.to_bytes()).into_owned()
}

pub(super) fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_clients_write_it() {
        for text in ["+/8=", "+/8", "-_8=", "-_8", "+/\n8=\n"] {
            assert_eq!(from_base64(text).unwrap(), [0xfb, 0xff], "{text}");
        }
        assert_eq!(from_base64(""), Some(Vec::new()));
        for text in ["!", "a", "ä"] {
            assert_eq!(from_base64(text), None, "{text}");
        }
    }

    #[test]
    fn hexadecimal_digits_come_in_pairs() {
        assert_eq!(from_hex("00fFa1").unwrap(), [0, 255, 161]);
        assert_eq!(from_hex(""), Some(Vec::new()));
        for text in ["0", "0g", "ä0", "+1"] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
