//! What JSON may cost. A value of two bytes can take hundreds of bytes of memory once it has been read, so the number
//! of values is bounded before anything is built from them. The length of strings is bounded with the length of the text,
//! and `serde_json` bounds the depth.

use memchr::memchr_iter;

use crate::problem::{Code, Problem};

/// The most values in one text: scalars, lists, objects, and the names in objects. 4,096 files, each with a path, a content
/// and an encoding, fit.
pub const MAX_VALUES: usize = 32 << 10;
/// The most memory that a value takes beyond its own text. It was measured where it is highest, in a message of MCP that
/// holds objects with one name each.
const VALUE_BYTES: usize = 512;

/// How many bytes the values of a text take at most, once it has been read, beyond the text itself. Whether it is JSON at
/// all is for its reader to say. Allocates nothing, and stops at the first value too many.
///
/// # Errors
/// That there are more than [`MAX_VALUES`].
pub fn cost(json: &[u8]) -> Result<usize, Problem> {
    let values = Values(json).take(MAX_VALUES + 1).count();
    if values > MAX_VALUES {
        let message = format!("the request has more than {MAX_VALUES} values");
        let hint = "send fewer of them: put many small files into one archive, or many arguments into a file";
        return Err(Problem::new(Code::TooLarge, message, hint));
    }
    Ok(values * VALUE_BYTES)
}

/// The values that are left in a text, in the order in which they begin.
struct Values<'a>(&'a [u8]);

impl Iterator for Values<'_> {
    type Item = ();

    fn next(&mut self) -> Option<()> {
        let begin = self.0.iter().position(|byte| !b" \t\r\n,:]}".contains(byte))?;
        let (first, rest) = self.0[begin..].split_first()?;
        self.0 = match first {
            b'"' => after_string(rest),
            b'{' | b'[' => rest,
            _ => after_word(rest),
        };
        Some(())
    }
}

/// The end of a string is looked for, and not each escape on the way: a file has one in every line.
fn after_string(text: &[u8]) -> &[u8] {
    let is_escaped = |at: usize| text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1;
    memchr_iter(b'"', text).find(|at| !is_escaped(*at)).map_or(&[], |end| &text[end + 1..])
}

fn after_word(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| b" \t\r\n,:]}[{\"".contains(byte));
    &text[end.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn count(json: &str) -> usize {
        Values(json.as_bytes()).count()
    }

    #[test]
    fn names_and_values_count() {
        for (json, values) in [
            ("", 0),
            (" \n", 0),
            ("0", 1),
            (" -1.5e3 ", 1),
            ("null", 1),
            (r#""a, [b]: {c}""#, 1),
            (r#""\"\\""#, 1),
            (r#"["\\","a\\\"b","\n\""]"#, 4),
            ("[]", 1),
            ("[1,2 , 3]", 4),
            (r#"["", "", ""]"#, 4),
            (r#"{"a": 1, "b": [true]}"#, 6),
            (r#"[{"":0},{"":0}]"#, 7),
        ] {
            assert_eq!(count(json), values, "{json}");
        }
    }

    #[test]
    fn what_is_not_json_counts_no_less_than_what_a_reader_gets_to_see() {
        for (text, values) in [(r#"["a"#, 2), (r#""a\"#, 1), (r#"1"a"2"#, 3), ("[[[[", 4), ("1[2{3", 5)] {
            assert_eq!(count(text), values, "{text}");
        }
    }

    #[test]
    fn one_value_too_many_is_refused() {
        let list = |items: usize| format!("[{}]", vec!["0"; items].join(","));
        assert_eq!(cost(list(MAX_VALUES - 1).as_bytes()).unwrap(), MAX_VALUES * VALUE_BYTES);
        let problem = cost(list(MAX_VALUES).as_bytes()).unwrap_err();
        assert_eq!(problem.error.code, Code::TooLarge);
        assert_eq!(problem.error.message, "the request has more than 32768 values");
        assert!(cost(format!("\"{}\"", "[0]".repeat(MAX_VALUES)).as_bytes()).is_ok());
    }

    fn size(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
            Value::Object(entries) => 1 + entries.values().map(|value| 1 + size(value)).sum::<usize>(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn as_many_are_counted_as_are_read(value in json()) {
            prop_assert_eq!(count(&value.to_string()), size(&value));
            prop_assert_eq!(count(&crate::to_json(&value)), size(&value));
        }
    }
}
