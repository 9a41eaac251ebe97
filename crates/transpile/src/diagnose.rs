//! Syntax errors as a person reads them: position and reason, the line, and a mark under it.

use std::fmt::Write;

use oxc_diagnostics::OxcDiagnostic;

/// More would only say again that the first one confused the parser.
const MOST_ERRORS: usize = 10;
/// Of a longer line, only the part around the error is shown.
const WIDTH: usize = 120;

/// Describes the first errors of a file.
pub(crate) fn describe<'a>(
    name: &str,
    text: &str,
    errors: impl Iterator<Item = &'a OxcDiagnostic>,
) -> String {
    let mut description = String::new();
    for error in errors.take(MOST_ERRORS) {
        let offset = error.labels.first().map_or(0, |label| label.offset());
        let place = Place::of(text, usize::try_from(offset).unwrap_or(usize::MAX));
        let (line, column, reason) = (place.line, place.column, error.message.as_ref());
        // Writing to a String cannot fail.
        let _ = writeln!(description, "{name}:{line}:{column}: {reason}\n{}", place.excerpt());
    }
    description
}

/// A position in a text, counted from one.
struct Place<'a> {
    line: usize,
    /// In characters.
    column: usize,
    text: &'a str,
}

impl Place<'_> {
    fn of(text: &str, offset: usize) -> Place<'_> {
        let offset = text.floor_char_boundary(offset);
        let start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[start..].lines().next().unwrap_or_default();
        Place {
            line: text[..start].matches('\n').count() + 1,
            column: text[start..offset].chars().count() + 1,
            text: line,
        }
    }

    /// The line and the mark, with tabs kept so that the two stay aligned and other control characters made inert.
    fn excerpt(&self) -> String {
        let first = (self.column - 1).saturating_sub(WIDTH / 2);
        let shown = self.text.chars().skip(first).take(WIDTH);
        let line: String = shown.map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        let before = line.chars().take(self.column - 1 - first);
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        format!("{line}\n{indent}^")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, offset: usize, expected: (usize, usize, &str)) {
        let place = Place::of(text, offset);
        assert_eq!((place.line, place.column, place.excerpt().as_str()), expected);
    }

    #[test]
    fn a_place_is_a_line_a_column_and_a_mark() {
        check("", 0, (1, 1, "\n^"));
        check("let x", 4, (1, 5, "let x\n    ^"));
        check("a\r\nlet é = ;\n", 12, (2, 9, "let é = ;\n        ^"));
        check("a\n\tb c\n", 5, (2, 4, "\tb c\n\t  ^"));
        check("a\n", 2, (2, 1, "\n^"));
        check("\x1b[31m!", 5, (1, 6, " [31m!\n     ^"));
    }

    #[test]
    fn of_a_long_line_the_part_around_the_error_is_shown() {
        let text = format!("{}!{}", "a".repeat(1000), "b".repeat(1000));
        let place = Place::of(&text, 1000);
        assert_eq!(place.column, 1001);
        assert_eq!(place.excerpt(), format!("{}!{}\n{}^", "a".repeat(60), "b".repeat(59), " ".repeat(60)));
    }

    proptest! {
        #[test]
        fn any_offset_in_any_text_is_a_place(text in "(?s).{0,200}", offset in 0usize..1000) {
            let place = Place::of(&text, offset);
            let excerpt = place.excerpt();
            prop_assert!(excerpt.lines().count() <= 2 && excerpt.ends_with('^'));
            prop_assert!(place.line >= 1 && place.column >= 1);
        }
    }
}
