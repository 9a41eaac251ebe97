//! `docs/attacks.md` says which test keeps which attack out. A list that can rot is not worth having.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Attacks of each class, numbered from one.
const CLASSES: [(char, u32); 6] = [('R', 35), ('L', 16), ('K', 23), ('F', 24), ('N', 10), ('E', 9)];

type Entry = (String, String);

/// The attack ids in the doc comment above each test of the corpus.
fn tested() -> BTreeSet<Entry> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let mut entries = BTreeSet::new();
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let class = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut ids: Vec<String> = Vec::new();
        for line in fs::read_to_string(&path).unwrap().lines() {
            if let Some(doc) = line.strip_prefix("/// ") {
                ids = doc
                    .split(':')
                    .next()
                    .unwrap()
                    .split(", ")
                    .filter(|id| is_id(id))
                    .map(str::to_owned)
                    .collect();
            } else if let Some(rest) = line.strip_prefix("fn ") {
                let name = rest.split('(').next().unwrap();
                entries.extend(ids.drain(..).map(|id| (id, format!("{class}::{name}"))));
            }
        }
    }
    entries
}

/// The rows of the page: an id, and the name of a test or a reason in words.
fn listed() -> BTreeSet<Entry> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/attacks.md");
    let page = fs::read_to_string(page).expect("docs/attacks.md is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let rows = rows.filter(|(id, _)| is_id(id));
    rows.map(|(id, what)| (id.to_owned(), what.trim_matches('`').to_owned())).collect()
}

fn is_id(word: &str) -> bool {
    let mut letters = word.chars();
    let class = letters.next().filter(|class| CLASSES.iter().any(|(known, _)| known == class));
    class.is_some() && letters.as_str().parse::<u32>().is_ok()
}

#[test]
fn the_page_names_exactly_the_tests_that_there_are() {
    let tests = tested();
    let listed: BTreeSet<_> = listed().into_iter().filter(|(_, what)| what.contains("::")).collect();
    let missing: Vec<_> = tests.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&tests).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not on the page: {missing:#?}\nno such test: {gone:#?}");
}

#[test]
fn every_attack_has_a_test_or_a_reason() {
    let listed = listed();
    for (class, last) in CLASSES {
        for number in 1..=last {
            let id = format!("{class}{number}");
            assert!(listed.iter().any(|(named, _)| *named == id), "{id} is not on the page");
        }
    }
}

/// The attacks that are not tried of runs which begin otherwise than cold, and why: `promise!(name; cold: "why")`.
fn declared_cold() -> BTreeSet<Entry> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let mut entries = BTreeSet::new();
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let class = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        for declaration in text.split("\npromise!(").skip(1).filter_map(|rest| rest.split(");").next()) {
            let name = declaration.trim().split([',', ';']).next().unwrap();
            let Some((head, why)) = declaration.split_once(": \"") else { continue };
            let forked = if head.ends_with("no zygote") { "not forked: " } else { "" };
            entries.insert((format!("{class}::{name}"), format!("{forked}{}", why.trim().trim_matches('"'))));
        }
    }
    entries
}

#[test]
fn the_page_says_what_is_not_warm_and_why() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/attacks.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Not warm, by design").expect("the page has it");
    let rows =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
    let listed: BTreeSet<Entry> = rows.map(|(name, why)| (name.to_owned(), why.to_owned())).collect();
    let declared = declared_cold();
    assert!(!declared.is_empty(), "the control: declarations are found");
    assert_eq!(declared, listed);
}
