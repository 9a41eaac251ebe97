//! What names stand for: imports, aliases and simple assignments, followed without regard to order and conditions.

use std::collections::HashMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::view::Value;

/// Longer names are no names of anything that a rule knows.
const LONGEST_PATH: usize = 200;
/// What may be put together from pieces, in bytes.
const LONGEST_TEXT: usize = 4 << 10;
/// What may be decoded, in bytes.
const LONGEST_DECODED: usize = 256 << 10;
/// Of everything that is put together or decoded in one program, in bytes.
const FUEL: usize = 8 << 20;
/// How many values of one name are kept.
const MOST_VALUES: usize = 4;

/// Undoes an encoding.
pub(crate) type Decode = fn(&str) -> Option<Vec<u8>>;

/// The names of a program, scope by scope.
#[derive(Debug)]
pub(crate) struct Names {
    scopes: Vec<Scope>,
    /// Scopes by the offset at which they begin.
    known: HashMap<u32, usize>,
    current: usize,
    fuel: usize,
}

#[derive(Debug, Default)]
struct Scope {
    parent: Option<usize>,
    names: HashMap<Rc<str>, Vec<Value>>,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { scopes: vec![Scope::default()], known: HashMap::new(), current: 0, fuel: FUEL }
    }

    /// Enters the scope that begins at this offset and returns the one to go back to.
    pub(crate) fn enter(&mut self, offset: u32) -> usize {
        let outer = self.current;
        self.current = *self.known.entry(offset).or_insert_with(|| {
            self.scopes.push(Scope { parent: Some(outer), names: HashMap::new() });
            self.scopes.len() - 1
        });
        outer
    }

    pub(crate) fn leave(&mut self, outer: usize) {
        self.current = outer;
    }

    pub(crate) fn bind(&mut self, name: &str, value: Value) {
        self.bind_in(self.current, name, value);
    }

    /// Binds in the outermost scope: attributes of objects, which have no scope.
    pub(crate) fn bind_globally(&mut self, name: &str, value: Value) {
        self.bind_in(0, name, value);
    }

    fn bind_in(&mut self, scope: usize, name: &str, value: Value) {
        let Some(scope) = self.scopes.get_mut(scope) else { return };
        let values = scope.names.entry(name.into()).or_default();
        if !values.contains(&value) {
            if values.len() == MOST_VALUES {
                values.remove(0);
            }
            values.push(value);
        }
    }

    /// Everything that a name may stand for. `None` if nothing in the program binds it.
    pub(crate) fn all(&self, name: &str) -> Option<&[Value]> {
        let mut scope = self.scopes.get(self.current);
        while let Some(inner) = scope {
            if let Some(values) = inner.names.get(name) {
                return Some(values);
            }
            scope = inner.parent.and_then(|parent| self.scopes.get(parent));
        }
        None
    }

    /// What a name most likely stands for. A name that nothing binds stands for itself.
    pub(crate) fn one(&self, name: &str) -> Value {
        match self.all(name) {
            None => path(name),
            Some(values) => {
                let known = values.iter().rev().find(|value| **value != Value::Unknown);
                known.cloned().unwrap_or(Value::Unknown)
            }
        }
    }

    /// An attribute of something.
    pub(crate) fn attribute(&mut self, of: &Value, name: &str) -> Value {
        match of {
            Value::Path(base) if base.len() + name.len() < LONGEST_PATH => self
                .spend(base.len() + name.len())
                .map_or(Value::Unknown, |()| path(&format!("{base}.{name}"))),
            Value::Map(entries) => {
                let entry = entries.iter().find(|(key, _)| key.as_ref() == name);
                entry.map_or(Value::Unknown, |(_, value)| value.clone())
            }
            Value::Path(_)
            | Value::Text(_)
            | Value::Decoded(_)
            | Value::Number(_)
            | Value::List(_)
            | Value::Unknown => path(&format!("?.{name}")),
        }
    }

    /// What a call returns.
    pub(crate) fn result(&mut self, of: &Value) -> Value {
        match of {
            Value::Path(name) if name.len() + 2 < LONGEST_PATH && self.spend(name.len()).is_some() => {
                path(&format!("{name}()"))
            }
            Value::Path(_)
            | Value::Text(_)
            | Value::Decoded(_)
            | Value::Number(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Unknown => Value::Unknown,
        }
    }

    pub(crate) fn concatenated(&mut self, left: &Value, right: &Value) -> Value {
        let (Some(first), Some(second)) = (left.text(), right.text()) else { return Value::Unknown };
        let size = first.len() + second.len();
        if size > LONGEST_TEXT || self.spend(size).is_none() {
            return Value::Unknown;
        }
        let either = if matches!(left, Value::Decoded(_)) { left } else { right };
        either.like(format!("{first}{second}").into())
    }

    pub(crate) fn joined(&mut self, between: &str, parts: &[Value]) -> Value {
        let mut joined = Value::Text("".into());
        for (index, part) in parts.iter().enumerate() {
            if index > 0 && !between.is_empty() {
                joined = self.concatenated(&joined, &Value::Text(between.into()));
            }
            joined = self.concatenated(&joined, part);
        }
        joined
    }

    pub(crate) fn reversed(&mut self, value: &Value) -> Value {
        match value.text() {
            Some(text) if text.len() <= LONGEST_DECODED && self.spend(text.len()).is_some() => {
                Value::Decoded(text.chars().rev().collect::<String>().into())
            }
            Some(_) | None => Value::Unknown,
        }
    }

    /// Text that was encoded in some way that is often used to hide code.
    pub(crate) fn decoded(&mut self, value: &Value, decode: Decode) -> Value {
        match value.text() {
            Some(text) if text.len() <= LONGEST_DECODED && self.spend(text.len()).is_some() => {
                match decode(text).map(String::from_utf8) {
                    Some(Ok(text)) => Value::Decoded(text.into()),
                    Some(Err(_)) | None => Value::Unknown,
                }
            }
            Some(_) | None => Value::Unknown,
        }
    }

    fn spend(&mut self, bytes: usize) -> Option<()> {
        self.fuel = self.fuel.checked_sub(bytes)?;
        Some(())
    }
}

pub(crate) fn path(name: &str) -> Value {
    Value::Path(name.into())
}

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Base64, also of the kind for URLs, and with white space in it.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let alphabet = if text.contains(['-', '_']) { alphabet::URL_SAFE } else { alphabet::STANDARD };
    GeneralPurpose::new(&alphabet, LENIENT).decode(text).ok()
}

/// Hexadecimal digits, also with white space in between.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// The cipher of `codecs.decode(x, "rot13")`.
pub(crate) fn from_rot13(text: &str) -> Option<Vec<u8>> {
    let turn = |byte: u8, first: u8| first + (byte - first + 13) % 26;
    let turned = text.bytes().map(|byte| match byte {
        b'a'..=b'z' => turn(byte, b'a'),
        b'A'..=b'Z' => turn(byte, b'A'),
        _ => byte,
    });
    Some(turned.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_undone() {
        let text = |decoded: Option<Vec<u8>>| decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        assert_eq!(text(from_base64("b3Muc3\nlzdGVt")), Some("os.system".to_owned()));
        assert_eq!(text(from_base64("aWQ")), Some("id".to_owned()));
        assert_eq!(text(from_hex("69 64")), Some("id".to_owned()));
        assert_eq!(text(from_rot13("bf.flfgrz")), Some("os.system".to_owned()));
        assert_eq!((from_base64("*"), from_hex("6")), (None, None));
    }

    #[test]
    fn an_inner_name_hides_an_outer_one() {
        let mut names = Names::new();
        names.bind("x", path("os"));
        let outer = names.enter(10);
        assert_eq!(names.one("x"), path("os"));
        names.bind("x", Value::Unknown);
        assert_eq!(names.one("x"), Value::Unknown);
        names.leave(outer);
        assert_eq!((names.one("x"), names.one("eval")), (path("os"), path("eval")));
    }

    #[test]
    fn texts_cannot_be_doubled_without_end() {
        let mut names = Names::new();
        let mut text = Value::Text("0123456789abcdef".into());
        for _ in 0..40 {
            text = names.concatenated(&text, &text.clone());
        }
        assert_eq!(text, Value::Unknown);
    }
}
