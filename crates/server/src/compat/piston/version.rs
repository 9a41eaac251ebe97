//! Versions and the ranges by which clients choose them: <https://github.com/npm/node-semver#ranges>, as far as it
//! concerns versions without pre-releases, which is what runtimes have.

use std::fmt;

/// A version of three numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64, u64, u64);

impl Version {
    /// The version in a runtime's label, `CPython 3.11.7`. A label without one is version 0.0.0: clients want a number.
    pub(super) fn of_label(label: &str) -> Version {
        let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        let word = label.split_ascii_whitespace().find(is_number).unwrap_or_default();
        let mut numbers = word.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Version(next(), next(), next())
    }

    pub(super) fn major_and_minor(self) -> (u64, u64) {
        (self.0, self.1)
    }

    /// Whether a range means it. A range that cannot be read means nothing.
    pub(super) fn satisfies(self, range: &str) -> bool {
        range.split("||").any(|alternative| satisfies_all(self, alternative) == Some(true))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A version of which the end may be missing: `3`, `3.11`, `3.x`, `*`.
#[derive(Debug, Clone, Copy)]
struct Partial {
    numbers: [u64; 3],
    /// How many of them were given.
    given: usize,
}

impl Partial {
    fn parse(text: &str) -> Option<Partial> {
        let text = text.trim_start_matches(['v', '=']);
        let release = text.split(['-', '+']).next().unwrap_or_default();
        let (mut numbers, mut given) = ([0; 3], 0);
        for (at, part) in release.split('.').enumerate() {
            match part {
                "x" | "X" | "*" => break,
                digits => *numbers.get_mut(at)? = digits.parse().ok()?,
            }
            given = at + 1;
        }
        Some(Partial { numbers, given })
    }

    fn least(self) -> Version {
        Version(self.numbers[0], self.numbers[1], self.numbers[2])
    }

    /// The first version that is beyond everything with these first `kept` numbers; `None` if there is none.
    fn beyond(self, kept: usize) -> Option<Version> {
        let [major, minor, patch] = self.numbers;
        match kept {
            0 => None,
            1 => Some(Version(major.checked_add(1)?, 0, 0)),
            2 => Some(Version(major, minor.checked_add(1)?, 0)),
            _ => Some(Version(major, minor, patch.checked_add(1)?)),
        }
    }

    /// How many numbers a caret leaves as they are: up to the first that is not zero.
    fn caret(self) -> usize {
        let first = self.numbers.iter().position(|number| *number > 0).unwrap_or(2);
        (first + 1).min(self.given)
    }
}

fn satisfies_all(version: Version, alternative: &str) -> Option<bool> {
    if let Some((from, to)) = alternative.split_once(" - ") {
        let (from, to) = (Partial::parse(from.trim())?, Partial::parse(to.trim())?);
        return Some(version >= from.least() && to.beyond(to.given).is_none_or(|end| version < end));
    }
    let mut all = true;
    for comparator in comparators(alternative) {
        all &= satisfies_one(version, &comparator)?;
    }
    Some(all)
}

/// The words of an alternative, with an operator that stands apart joined to its version.
fn comparators(alternative: &str) -> Vec<String> {
    let mut comparators: Vec<String> = Vec::new();
    for word in alternative.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
        match comparators.last_mut() {
            Some(last) if last.ends_with(['<', '>', '=', '^', '~']) => last.push_str(word),
            _ => comparators.push(word.to_owned()),
        }
    }
    comparators
}

fn satisfies_one(version: Version, comparator: &str) -> Option<bool> {
    let operator_ends = comparator.find(|c| !"<>=^~".contains(c)).unwrap_or(comparator.len());
    let (operator, text) = comparator.split_at(operator_ends);
    let wanted = Partial::parse(text)?;
    let below = |end: Option<Version>| end.is_none_or(|end| version < end);
    let from = version >= wanted.least();
    Some(match operator {
        "" | "=" => from && below(wanted.beyond(wanted.given)),
        ">=" => from,
        "<" => version < wanted.least(),
        ">" => !below(wanted.beyond(wanted.given)),
        "<=" => below(wanted.beyond(wanted.given)),
        "^" => from && below(wanted.beyond(wanted.caret())),
        "~" | "~>" => from && below(wanted.beyond(wanted.given.min(2))),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_version_is_found_in_every_label() {
        let of = |label: &str| Version::of_label(label).to_string();
        assert_eq!(of("CPython 3.11.7"), "3.11.7");
        assert_eq!(of("zsh 5.9"), "5.9.0");
        assert_eq!(of("OpenJDK 17.0.9.1"), "17.0.9");
        assert_eq!(of("GNU bash 5.2.15"), "5.2.15");
        assert_eq!(of("rustc 1.95.0-nightly"), "1.95.0");
        assert_eq!(of("dash"), "0.0.0");
        assert_eq!(of("x 99999999999999999999.1"), "0.1.0");
    }

    #[test]
    fn ranges_mean_what_they_mean_to_npm() {
        let version = Version(3, 11, 7);
        for range in [
            "*",
            "x",
            "3",
            "v3",
            "3.x",
            "3.11",
            "3.11.*",
            "3.11.7",
            "=3.11.7",
            "= 3.11.7",
            "^3.10.0",
            "^3",
            "~3.11",
            "~3.11.2",
            ">=3.0.0",
            ">= 3",
            ">3.10",
            "<4",
            "<=3.11",
            "<=3.11.7",
            ">=3.10 <3.12",
            "2 || 3",
            "3.0 - 3.11",
            "3.11.0 - 4",
            ">=3.10,<4",
            " 3.11.7 ",
        ] {
            assert!(version.satisfies(range), "{range}");
        }
        for range in [
            "2",
            "4",
            "3.10",
            "3.11.6",
            "3.10.x",
            "^3.12",
            "~3.10",
            ">3.11",
            ">3.11.7",
            "<3.11.7",
            "<3",
            "<=3.10",
            "2 || 4",
            "3.0 - 3.10",
            ">=3.10 <3.11",
            "latest",
            "3.11.7.1",
            "3..7x",
            "!3",
            "=>3",
            ">=",
            "99999999999999999999",
        ] {
            assert!(!version.satisfies(range), "{range}");
        }
    }

    #[test]
    fn a_caret_leaves_the_first_number_that_is_not_zero() {
        assert!(Version(0, 2, 9).satisfies("^0.2.3"));
        assert!(!Version(0, 3, 0).satisfies("^0.2.3"));
        assert!(Version(0, 0, 3).satisfies("^0.0.3"));
        assert!(!Version(0, 0, 4).satisfies("^0.0.3"));
        assert!(Version(0, 5, 0).satisfies("^0"));
        assert!(Version(0, 0, 0).satisfies("*"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(label in ".{0,30}", range in "[-<>=^~|.*xv0-9, ]{0,30}") {
            let _ = Version::of_label(&label).satisfies(&range);
        }

        #[test]
        fn a_version_satisfies_itself_and_what_begins_like_it(major: u32, minor: u32, patch: u32) {
            let version = Version(major.into(), minor.into(), patch.into());
            for range in [format!("{version}"), format!("^{version}"), format!("{major}.{minor}"), format!("{major}.x")] {
                prop_assert!(version.satisfies(&range), "{}", range);
            }
            let beyond = format!(">{version}");
            prop_assert!(!version.satisfies(&beyond));
        }
    }
}
