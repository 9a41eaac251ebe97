//! JSON that is looked at without being believed: a field keeps what it holds if that is plain, and remembers only what
//! kind of thing it was if not. So a protocol can refuse a field in its own words, and a body of sixteen megabytes of
//! brackets does not become a tree of a gigabyte.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most items of a list or an object that are kept.
pub(super) const MAX_ITEMS: usize = 4096;

/// A value, as far as it is plain.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Shallow {
    /// `null`, or nothing at all.
    #[default]
    Nothing,
    Bool,
    Number(f64),
    Text(String),
    List,
    Object,
}

impl Shallow {
    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        if let Shallow::Text(text) = self { Some(text) } else { None }
    }

    /// The text, if it is one.
    pub(super) fn into_text(self) -> Option<String> {
        if let Shallow::Text(text) = self { Some(text) } else { None }
    }

    /// The number, if it is one.
    pub(super) fn number(&self) -> Option<f64> {
        if let Shallow::Number(number) = self { Some(*number) } else { None }
    }
}

/// A list, or something that should have been one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Items<T> {
    /// `null`, or no such field.
    #[default]
    Nothing,
    List(Vec<T>),
    TooMany,
    NotAList,
}

/// An object of whatever names, or something that should have been one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Entries<T> {
    /// `null`, or no such field.
    #[default]
    Nothing,
    Object(BTreeMap<String, T>),
    TooMany,
    NotAnObject,
}

/// What a value of any kind becomes; only lists and objects take more than one word to say.
trait Kind<'de>: Sized {
    fn nothing() -> Self;
    fn plain(value: Shallow) -> Self;
    fn list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error>;
    fn object<A: MapAccess<'de>>(entries: A) -> Result<Self, A::Error>;
}

impl<'de> Kind<'de> for Shallow {
    fn nothing() -> Shallow {
        Shallow::Nothing
    }

    fn plain(value: Shallow) -> Shallow {
        value
    }

    fn list<A: SeqAccess<'de>>(items: A) -> Result<Shallow, A::Error> {
        skip_items(items).map(|()| Shallow::List)
    }

    fn object<A: MapAccess<'de>>(entries: A) -> Result<Shallow, A::Error> {
        skip_entries(entries).map(|()| Shallow::Object)
    }
}

impl<'de, T: Deserialize<'de>> Kind<'de> for Items<T> {
    fn nothing() -> Items<T> {
        Items::Nothing
    }

    fn plain(_: Shallow) -> Items<T> {
        Items::NotAList
    }

    fn list<A: SeqAccess<'de>>(mut items: A) -> Result<Items<T>, A::Error> {
        let mut kept = Vec::new();
        while let Some(item) = items.next_element()? {
            if kept.len() == MAX_ITEMS {
                return skip_items(items).map(|()| Items::TooMany);
            }
            kept.push(item);
        }
        Ok(Items::List(kept))
    }

    fn object<A: MapAccess<'de>>(entries: A) -> Result<Items<T>, A::Error> {
        skip_entries(entries).map(|()| Items::NotAList)
    }
}

impl<'de, T: Deserialize<'de>> Kind<'de> for Entries<T> {
    fn nothing() -> Entries<T> {
        Entries::Nothing
    }

    fn plain(_: Shallow) -> Entries<T> {
        Entries::NotAnObject
    }

    fn list<A: SeqAccess<'de>>(items: A) -> Result<Entries<T>, A::Error> {
        skip_items(items).map(|()| Entries::NotAnObject)
    }

    fn object<A: MapAccess<'de>>(mut entries: A) -> Result<Entries<T>, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some((name, value)) = entries.next_entry()? {
            if kept.len() == MAX_ITEMS {
                return skip_entries(entries).map(|()| Entries::TooMany);
            }
            kept.insert(name, value);
        }
        Ok(Entries::Object(kept))
    }
}

fn skip_items<'de, A: SeqAccess<'de>>(mut items: A) -> Result<(), A::Error> {
    while items.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

fn skip_entries<'de, A: MapAccess<'de>>(mut entries: A) -> Result<(), A::Error> {
    while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

struct OfKind<K>(PhantomData<K>);

impl<'de, K: Kind<'de>> Visitor<'de> for OfKind<K> {
    type Value = K;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<K, E> {
        Ok(K::nothing())
    }

    fn visit_bool<E>(self, _: bool) -> Result<K, E> {
        Ok(K::plain(Shallow::Bool))
    }

    fn visit_f64<E>(self, number: f64) -> Result<K, E> {
        Ok(K::plain(Shallow::Number(number)))
    }

    #[allow(clippy::cast_precision_loss, reason = "no limit is so large that the last digits would matter")]
    fn visit_u64<E>(self, number: u64) -> Result<K, E> {
        Ok(K::plain(Shallow::Number(number as f64)))
    }

    #[allow(clippy::cast_precision_loss, reason = "no limit is so large that the last digits would matter")]
    fn visit_i64<E>(self, number: i64) -> Result<K, E> {
        Ok(K::plain(Shallow::Number(number as f64)))
    }

    fn visit_str<E>(self, text: &str) -> Result<K, E> {
        Ok(K::plain(Shallow::Text(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<K, E> {
        Ok(K::plain(Shallow::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<K, A::Error> {
        K::list(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<K, A::Error> {
        K::object(entries)
    }
}

impl<'de> Deserialize<'de> for Shallow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shallow, D::Error> {
        deserializer.deserialize_any(OfKind(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Items<T>, D::Error> {
        deserializer.deserialize_any(OfKind(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<T>, D::Error> {
        deserializer.deserialize_any(OfKind(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a, T: Deserialize<'a>>(json: &'a str) -> T {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_is_plain_is_kept_and_of_the_rest_only_its_kind() {
        assert_eq!(read::<Shallow>("null"), Shallow::Nothing);
        assert_eq!(read::<Shallow>("true"), Shallow::Bool);
        assert_eq!(read::<Shallow>("-1"), Shallow::Number(-1.0));
        assert_eq!(read::<Shallow>("1.5"), Shallow::Number(1.5));
        assert_eq!(read::<Shallow>("\"a\\n\""), Shallow::Text("a\n".into()));
        assert_eq!(read::<Shallow>("[[1], {}]"), Shallow::List);
        assert_eq!(read::<Shallow>("{\"a\": [1]}"), Shallow::Object);
    }

    #[test]
    fn a_list_is_told_from_what_is_none() {
        assert_eq!(read::<Items<Shallow>>("[1]"), Items::List(vec![Shallow::Number(1.0)]));
        assert_eq!(read::<Items<Shallow>>("null"), Items::Nothing);
        for other in ["1", "\"a\"", "{}", "false"] {
            assert_eq!(read::<Items<Shallow>>(other), Items::NotAList);
        }
    }

    #[test]
    fn an_object_is_told_from_what_is_none() {
        let one = BTreeMap::from([("a".to_owned(), Shallow::Bool)]);
        assert_eq!(read::<Entries<Shallow>>("{\"a\": true}"), Entries::Object(one));
        assert_eq!(read::<Entries<Shallow>>("null"), Entries::Nothing);
        for other in ["1", "\"a\"", "[]", "false"] {
            assert_eq!(read::<Entries<Shallow>>(other), Entries::NotAnObject);
        }
    }

    #[test]
    fn more_than_is_sensible_is_not_kept() {
        let many = format!("[{}0]", "0,".repeat(MAX_ITEMS));
        assert_eq!(read::<Items<Shallow>>(&many), Items::TooMany);
        let entries: Vec<_> = (0..=MAX_ITEMS).map(|n| format!("\"{n}\": 0")).collect();
        let many = format!("{{{}}}", entries.join(","));
        assert_eq!(read::<Entries<Shallow>>(&many), Entries::TooMany);
    }
}
