//! Text that is too long for a model to read at once: its head and its tail, or one page of it. Everything is counted
//! in characters, because that is what a model is billed for and what it can count.

/// Which part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) offset: usize,
    pub(super) length: usize,
    /// Whether neither was asked for.
    pub(super) is_whole: bool,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<'a> {
    pub(super) content: &'a str,
    pub(super) offset: usize,
    pub(super) total: usize,
    /// Where the next one begins, if there is more.
    pub(super) next: Option<usize>,
}

/// Shares a number of characters between two texts of these lengths: what the shorter one does not need, the longer
/// one has.
pub(super) fn share(budget: usize, first: usize, second: usize) -> (usize, usize) {
    let half = budget / 2;
    if first <= half {
        (first, budget - first)
    } else if second <= half {
        (budget - second, second)
    } else {
        (half, half)
    }
}

/// A text in so many characters: all of it, or head and tail around what `note` says of the number that is missing
/// and of where it begins.
pub(super) fn head_and_tail(
    text: &str,
    budget: usize,
    note: impl FnOnce(usize, usize) -> String,
) -> Option<String> {
    let total = text.chars().count();
    if total <= budget {
        return None;
    }
    let head = budget / 2;
    let tail = budget - head;
    let (before, after) = (up_to(text, head), from(text, total - tail));
    Some(format!("{before}\n{}\n{after}", note(total - budget, head)))
}

/// One page of a text.
pub(super) fn page(text: &str, window: Window) -> Page<'_> {
    let total = text.chars().count();
    let offset = window.offset.min(total);
    let content = up_to(from(text, offset), window.length);
    let end = (offset + window.length).min(total);
    Page { content, offset, total, next: (end < total).then_some(end) }
}

/// The last so many characters of a text.
pub(super) fn last(text: &str, characters: usize) -> &str {
    from(text, text.chars().count().saturating_sub(characters))
}

fn up_to(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(index, _)| &text[..index])
}

fn from(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or("", |(index, _)| &text[index..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_shorter_text_does_not_need_the_longer_one_has() {
        assert_eq!(share(100, 10, 1000), (10, 90));
        assert_eq!(share(100, 1000, 10), (90, 10));
        assert_eq!(share(100, 1000, 1000), (50, 50));
        assert_eq!(share(100, 40, 40), (40, 60));
    }

    #[test]
    fn a_long_text_keeps_its_head_and_its_tail() {
        let note = |missing, offset| format!("[{missing} from {offset}]");
        assert_eq!(head_and_tail("äöü", 3, note), None);
        assert_eq!(head_and_tail("äbcdefghiö", 4, note).unwrap(), "äb\n[6 from 2]\niö");
    }

    proptest! {
        #[test]
        fn pages_put_together_are_the_text(text in ".{0,200}", length in 1usize..50) {
            let (mut whole, mut next) = (String::new(), Some(0));
            while let Some(offset) = next {
                let page = page(&text, Window { offset, length, is_whole: false });
                prop_assert!(page.content.chars().count() <= length);
                whole += page.content;
                next = page.next;
            }
            prop_assert_eq!(whole, text);
        }
    }

    #[test]
    fn the_last_characters_are_whole_ones() {
        assert_eq!((last("aäö", 2), last("aäö", 9), last("a", 0)), ("äö", "aäö", ""));
    }

    #[test]
    fn beyond_the_end_there_is_nothing() {
        let window = Window { offset: 10, length: usize::MAX / 2, is_whole: false };
        assert_eq!(page("abc", window), Page { content: "", offset: 3, total: 3, next: None });
    }
}
