//! Fields that are not what they should be, told as FastAPI tells them.

use std::time::Duration;

use belljar_core::allowance::Ceilings;
use belljar_core::limits::Bytes;
use serde::Serialize;

use crate::compat::shallow::{Items, Shallow};
use crate::compat::time::LONGEST;

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    r#type: &'static str,
    loc: Vec<Step>,
    msg: String,
}

/// One step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Step {
    Name(String),
    Item(usize),
}

impl Fault {
    /// Something is wrong at this place of the body.
    pub(super) fn at(place: &[&str], r#type: &'static str, msg: impl Into<String>) -> Fault {
        let loc = std::iter::once(&"body").chain(place).map(|name| Step::Name((*name).to_owned())).collect();
        Fault { r#type, loc, msg: msg.into() }
    }

    /// The same, at an item of the list that is there.
    fn item(mut self, at: usize) -> Fault {
        self.loc.push(Step::Item(at));
        self
    }

    pub(super) fn not_json(fault: &serde_json::Error) -> Fault {
        Fault::at(&[], "json_invalid", format!("JSON decode error: {fault}"))
    }
}

/// Text that has to be there.
pub(super) fn text(name: &str, field: Shallow) -> Result<String, Fault> {
    optional_text(name, field)?.ok_or_else(|| missing(name))
}

/// Text that may be left out.
pub(super) fn optional_text(name: &str, field: Shallow) -> Result<Option<String>, Fault> {
    if field == Shallow::Nothing {
        return Ok(None);
    }
    field.into_text().map(Some).ok_or_else(|| no_text(&[name]))
}

/// A list of texts.
pub(super) fn texts(name: &str, field: Items<Shallow>) -> Result<Option<Vec<String>>, Fault> {
    let items = match field {
        Items::Nothing => return Ok(None),
        Items::List(items) => items,
        Items::TooMany => return Err(Fault::at(&[name], "too_long", "List should have fewer items")),
        Items::NotAList => return Err(Fault::at(&[name], "list_type", "Input should be a valid list")),
    };
    let text = |(at, item): (usize, Shallow)| item.into_text().ok_or_else(|| no_text(&[name]).item(at));
    items.into_iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
}

/// A time in seconds, above zero and within the caller's ceiling.
pub(super) fn seconds(
    name: &str,
    field: &Shallow,
    ceiling: Option<Duration>,
) -> Result<Option<Duration>, Fault> {
    let Some(seconds) = number(name, field)? else { return Ok(None) };
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(Fault::at(&[name], "greater_than", "Input should be greater than 0"));
    }
    let most = ceiling.unwrap_or(LONGEST);
    let asked = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    if asked > most {
        return Err(too_much(name, most.as_secs_f64()));
    }
    Ok(Some(asked.max(Duration::from_millis(1))))
}

/// A number of megabytes; zero or less is no limit of one's own.
pub(super) fn megabytes(name: &str, field: &Shallow, ceilings: &Ceilings) -> Result<Option<u64>, Fault> {
    let Some(asked) = number(name, field)?.filter(|asked| *asked > 0.0) else { return Ok(None) };
    let bytes = asked * f64::from(1 << 20);
    if asked.fract() != 0.0 {
        return Err(Fault::at(&[name], "int_from_float", "Input should be a valid integer"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "above zero; `as` saturates")]
    let bytes = bytes as u64;
    match ceilings.memory.map(Bytes::get) {
        Some(most) if bytes > most => {
            Err(too_much(name, f64::from(u32::try_from(most >> 20).unwrap_or(u32::MAX))))
        }
        _ => Ok(Some(bytes)),
    }
}

/// A number, also one that was written as text.
pub(super) fn number(name: &str, field: &Shallow) -> Result<Option<f64>, Fault> {
    if *field == Shallow::Nothing {
        return Ok(None);
    }
    let written = || field.text().and_then(|text| text.trim().parse().ok());
    field
        .number()
        .or_else(written)
        .map(Some)
        .ok_or_else(|| Fault::at(&[name], "float_type", "Input should be a valid number"))
}

pub(super) fn missing(name: &str) -> Fault {
    Fault::at(&[name], "missing", "Field required")
}

pub(super) fn no_text(place: &[&str]) -> Fault {
    Fault::at(place, "string_type", "Input should be a valid string")
}

fn too_much(name: &str, most: f64) -> Fault {
    Fault::at(&[name], "less_than_equal", format!("Input should be less than or equal to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings() -> Ceilings {
        let (timeout, memory) = (Some(Duration::from_millis(2500)), Some(Bytes::new(64 << 20)));
        Ceilings { timeout, memory, ..Ceilings::default() }
    }

    #[test]
    fn times_are_positive_and_within_the_ceiling() {
        let read = |value| seconds("run_timeout", &value, ceilings().timeout);
        assert_eq!(read(Shallow::Nothing), Ok(None));
        assert_eq!(read(Shallow::Number(2.5)), Ok(Some(Duration::from_millis(2500))));
        assert_eq!(read(Shallow::Text("1".into())), Ok(Some(Duration::from_secs(1))));
        let message = |value| read(value).unwrap_err().msg;
        for wrong in [0.0, -1.0, f64::NAN] {
            assert_eq!(message(Shallow::Number(wrong)), "Input should be greater than 0");
        }
        for wrong in [2.6, 1e300, f64::INFINITY] {
            assert_eq!(message(Shallow::Number(wrong)), "Input should be less than or equal to 2.5");
        }
        for wrong in [Shallow::Bool, Shallow::List, Shallow::Object, Shallow::Text("soon".into())] {
            assert_eq!(message(wrong), "Input should be a valid number");
        }
    }

    #[test]
    fn memory_is_whole_and_within_the_ceiling() {
        let read = |value| megabytes("memory_limit_MB", &Shallow::Number(value), &ceilings());
        assert_eq!((read(-1.0), read(0.0), read(64.0)), (Ok(None), Ok(None), Ok(Some(64 << 20))));
        assert_eq!(read(65.0).unwrap_err().msg, "Input should be less than or equal to 64");
        assert_eq!(read(1.5).unwrap_err().r#type, "int_from_float");
        assert!(read(1e300).is_err());
    }
}
