//! Short failure messages: a program can write megabytes, and the first few lines are enough to see what went wrong.

use std::fmt;
use std::panic;
use std::sync::Once;

/// The most characters that are shown of one text.
const MOST: usize = 400;
/// The most characters of a whole message.
const MOST_OF_A_MESSAGE: usize = 4000;

/// A text, or its beginning and how much more there is.
pub(crate) struct Brief<'a>(pub(crate) &'a str);

impl fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, omitted) = cut(self.0, MOST);
        write!(f, "{shown:?}")?;
        if omitted > 0 { write!(f, " and {omitted} characters more") } else { Ok(()) }
    }
}

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, omitted) = cut(self.0, MOST);
        f.write_str(shown)?;
        if omitted > 0 { write!(f, " ... and {omitted} characters more") } else { Ok(()) }
    }
}

/// The beginning of a text, and how many characters follow.
fn cut(text: &str, most: usize) -> (&str, usize) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], text[end..].chars().count()),
        None => (text, 0),
    }
}

/// Has every panic of this process print a message of bounded length.
pub fn keep_failures_short() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let message = panic.payload_as_str().unwrap_or_default();
            let (shown, omitted) = cut(message, MOST_OF_A_MESSAGE);
            if omitted == 0 {
                return usual(panic);
            }
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            eprintln!("panicked at {place}:\n{shown} ... and {omitted} characters more");
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_shown_whole() {
        assert_eq!(format!("{} {:?}", Brief("ä\n"), Brief("ä\n")), "ä\n \"ä\\n\"");
    }

    #[test]
    fn of_a_long_text_the_beginning_is_shown() {
        let text = "ä".repeat(30_000);
        let shown = format!("{:?}", Brief(&text));
        assert_eq!(shown, format!("\"{}\" and 29600 characters more", "ä".repeat(400)));
    }
}
