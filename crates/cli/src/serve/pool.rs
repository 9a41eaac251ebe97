//! `[pool]` in `belljar.toml`: the warm pool.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_core::language::Language;
use belljar_core::limits::BoxLimits;
use belljar_native::{Bounds, PoolSettings};
use belljar_wire::Problem;
use serde::Deserialize;

use super::tables::Place;
use crate::settings::Scalar;

/// The languages of the warm pool if the configuration names none.
const USUAL: [&str; 3] = ["python", "javascript", "bash"];
const USUAL_BOUNDS: Bounds = Bounds { min: 1, max: 16 };
/// The most boxes of a language. Each takes some descriptors and a few processes, so other limits come first.
const MOST: usize = 1000;
const USUAL_MEMORY: u64 = 256 << 20;
const USUAL_AGE: Duration = Duration::from_secs(300);

/// The table `[pool]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct PoolTable {
    enabled: Option<bool>,
    memory: Option<Scalar>,
    max_age: Option<Scalar>,
    languages: Option<BTreeMap<String, BoundsTable>>,
}

impl PoolTable {
    /// The pool of a server that may be gone in a minute, if the configuration does not say otherwise: one box of the language
    /// that most ask for, and the others once somebody has asked.
    pub(super) fn keep_small(&mut self) {
        let bounds = |name: &str| {
            let bounds =
                BoundsTable { min: Some(usize::from(name == "python")), max: Some(8), preload: Vec::new() };
            (name.to_owned(), bounds)
        };
        self.languages.get_or_insert_with(|| USUAL.into_iter().map(bounds).collect());
    }
}

/// How many boxes of a language the pool keeps.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct BoundsTable {
    min: Option<usize>,
    max: Option<usize>,
    preload: Vec<String>,
}

/// The settings of the pool, unless it is disabled. `place` is the name of the file, for messages; `limits` are those
/// of its boxes.
pub(crate) fn configured(
    table: &PoolTable,
    place: &str,
    limits: BoxLimits,
) -> Result<Option<PoolSettings>, Problem> {
    let at = |option: &'static str| Place { place, table: "pool", option };
    let memory = at("memory").size(table.memory.as_ref())?.map_or(USUAL_MEMORY, |size| size as u64);
    let max_age = at("max-age").time(table.max_age.as_ref())?.unwrap_or(USUAL_AGE);
    let languages = match &table.languages {
        None => USUAL.into_iter().filter_map(Language::by_name).map(|name| (name, USUAL_BOUNDS)).collect(),
        Some(tables) => languages(tables, place)?,
    };
    let preload = preload(table, place)?;
    let settings = PoolSettings { memory, max_age, limits, preload, languages };
    Ok(table.enabled.unwrap_or(true).then_some(settings))
}

fn languages(
    tables: &BTreeMap<String, BoundsTable>,
    place: &str,
) -> Result<Vec<(Language, Bounds)>, Problem> {
    let at = |option: &'static str| Place { place, table: "pool.languages", option };
    let mut languages: Vec<(Language, Bounds)> = Vec::new();
    for (name, table) in tables {
        let language = Language::parse(name).map_err(|fault| at("a name").blame(fault.into()))?;
        if language.parking.is_none() {
            let message = format!("{language} cannot be in the warm pool");
            return Err(at(language.name).wrong(&message, "[pool.languages.python]"));
        }
        if languages.iter().any(|(other, _)| *other == language) {
            return Err(at(language.name).wrong("it is configured twice", "one [pool.languages.python]"));
        }
        languages.push((language, bounds(table, &at(language.name))?));
    }
    Ok(languages)
}

/// Checks that these are names of modules: they become part of a program.
fn preload(table: &PoolTable, place: &str) -> Result<Vec<(Language, Vec<String>)>, Problem> {
    let is_name = |name: &str| {
        let plain = |part: &str| {
            let word = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            !part.is_empty() && part.bytes().all(word) && !part.as_bytes()[0].is_ascii_digit()
        };
        name.split('.').all(plain)
    };
    let mut preload = Vec::new();
    for (name, table) in table.languages.iter().flatten().filter(|(_, table)| !table.preload.is_empty()) {
        let at = Place { place, table: "pool.languages", option: "preload" };
        let language = Language::parse(name).map_err(|fault| at.blame(fault.into()))?;
        if language.name != "python" {
            return Err(at.wrong("modules can be preloaded for python only", "[pool.languages.python]"));
        }
        if let Some(wrong) = table.preload.iter().find(|name| !is_name(name)) {
            return Err(at.wrong(&format!("{wrong:?} is not the name of a module"), "preload = [\"numpy\"]"));
        }
        preload.push((language, table.preload.clone()));
    }
    Ok(preload)
}

fn bounds(table: &BoundsTable, at: &Place<'_>) -> Result<Bounds, Problem> {
    let min = table.min.unwrap_or(USUAL_BOUNDS.min);
    let max = table.max.unwrap_or(USUAL_BOUNDS.max.max(min));
    if max > MOST || min > max {
        let message = format!(
            "min is {min} and max is {max}; min must not be larger than max, and max not larger than {MOST}"
        );
        return Err(at.wrong(&message, "min = 1 and max = 16"));
    }
    Ok(Bounds { min, max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::limits::{Bytes, LimitsRequest};

    fn read(text: &str) -> Result<Option<PoolSettings>, String> {
        let table: PoolTable = toml::from_str(text).map_err(|fault| fault.message().to_owned())?;
        let limits = LimitsRequest { disk: Some(1 << 20), ..LimitsRequest::default() };
        configured(&table, "belljar.toml", limits.resolve().unwrap().0)
            .map_err(|problem| problem.error.message)
    }

    #[test]
    fn nothing_written_keeps_a_box_of_each_of_the_usual_languages() {
        let pool = read("").unwrap().unwrap();
        let names: Vec<_> = pool.languages.iter().map(|(language, _)| language.name).collect();
        assert_eq!(names, USUAL);
        assert!(pool.languages.iter().all(|(_, bounds)| *bounds == USUAL_BOUNDS));
        assert_eq!((pool.memory, pool.max_age), (USUAL_MEMORY, USUAL_AGE));
        assert_eq!(pool.limits.disk, Bytes::new(1 << 20), "as a request that names none would have it");
    }

    #[test]
    fn every_option_is_understood() {
        let pool =
            read("memory = '64M'\nmax-age = '1m'\n[languages.py]\nmin = 2\nmax = 4\n[languages.lua]\n");
        let pool = pool.unwrap().unwrap();
        assert_eq!((pool.memory, pool.max_age), (64 << 20, Duration::from_secs(60)));
        let named = |name: &str| Language::by_name(name).unwrap();
        let (lua, python) = ((named("lua"), USUAL_BOUNDS), (named("python"), Bounds { min: 2, max: 4 }));
        assert_eq!(pool.languages, [lua, python]);
        assert!(read("enabled = false").unwrap().is_none());
        assert_eq!(
            read("[languages.sh]\nmin = 20").unwrap().unwrap().languages[0].1,
            Bounds { min: 20, max: 20 }
        );
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        assert_eq!(
            read("[languages.cobol]").unwrap_err(),
            "a name of [pool.languages] in belljar.toml: unknown language 'cobol'"
        );
        assert!(read("[languages.java]").unwrap_err().contains("java cannot be in the warm pool"));
        assert!(read("[languages.sh]\nmin = 3\nmax = 2").unwrap_err().contains("min is 3 and max is 2"));
        assert!(read("[languages.sh]\nmax = 100000").unwrap_err().contains("max not larger than 1000"));
        assert!(read("[languages.py]\n[languages.python]").unwrap_err().contains("configured twice"));
        assert!(read("memroy = 1").unwrap_err().contains("unknown field `memroy`"));
        assert!(read("[languages.sh]\nsize = 1").unwrap_err().contains("unknown field `size`"));
        assert!(read("max-age = 'long'").unwrap_err().contains("max-age of [pool] in belljar.toml"));
    }
}
