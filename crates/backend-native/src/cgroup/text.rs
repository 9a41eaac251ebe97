//! The result of a probe as text, so that the next run of the command need not probe again.
//!
//! Only success is written down: what was missing may be available the next time, and a user who has just fixed it
//! wants to see that. The text names the host, the boot, the user and the namespaces for which it is valid.
//!
//! ```text
//! belljar-cgroups 1
//! host b1946ac9-… 0 pid:[4026531836] mnt:[4026531841]
//! v1
//! group memory /sys/fs/cgroup/memory/belljar
//! group cpu,cpuacct /sys/fs/cgroup/cpu,cpuacct/belljar
//! end
//! ```

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::Lines;

use super::v2::Claim;
use super::{Cgroups, Controller, Group, Settings, V1, V2, Verdicts, parent_name};

/// Text that is not of this form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cached probe of cgroups is malformed: expected {expected}")]
pub struct TextError {
    expected: &'static str,
}

/// Why a cached probe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Stale {
    /// It is damaged, or of another version.
    #[error(transparent)]
    Malformed(#[from] TextError),
    /// It was made elsewhere: another boot, user or namespace.
    #[error("the cached probe of cgroups is from another boot, user or namespace")]
    Elsewhere,
    /// What it found no longer exists.
    #[error("the cgroups of the cached probe no longer exist: {why}")]
    Gone {
        /// The reason that was observed.
        why: String,
    },
    /// It could not be compared with the current state.
    #[error("cannot determine the cgroup of this process")]
    Unknown(#[source] io::Error),
}

const FIRST_LINE: &str = "belljar-cgroups 1";
const LAST_LINE: &str = "end";

impl Cgroups {
    /// What to cache of a probe; nothing, if anything was missing.
    ///
    /// # Errors
    /// `/proc` could not be read.
    pub fn to_text(&self) -> io::Result<Option<String>> {
        let all_kept = |verdicts: &Verdicts| verdicts.kept().len() == Verdicts::GUARANTEES.len();
        let found = match self {
            Cgroups::V1(v1) if all_kept(&v1.verdicts) => show_v1(v1),
            Cgroups::V2(v2) if all_kept(&v2.verdicts) => show_v2(v2),
            Cgroups::V1(_) | Cgroups::V2(_) | Cgroups::Unavailable { .. } => return Ok(None),
        };
        Ok(Some(format!("{FIRST_LINE}\nhost {}\n{found}{LAST_LINE}\n", host()?)))
    }

    /// The result of an earlier probe, if it still holds. Like [`probe`](Cgroups::probe), this may move the process.
    ///
    /// # Errors
    /// It does not hold; probe again.
    pub fn from_text(text: &str, settings: &Settings) -> Result<Cgroups, Stale> {
        match Remembered::parse(text)? {
            remembered if remembered.host != host().map_err(Stale::Unknown)? => Err(Stale::Elsewhere),
            remembered => remembered.found.settle(settings),
        }
    }
}

/// The text, parsed but not yet verified.
#[derive(Debug, PartialEq, Eq)]
struct Remembered<'a> {
    host: &'a str,
    found: Found,
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    V1(Vec<Group>),
    V2(Claim, PathBuf),
}

impl Found {
    fn settle(self, settings: &Settings) -> Result<Cgroups, Stale> {
        match self {
            Found::V1(hierarchies) => Ok(Cgroups::V1(V1::known_good(hierarchies))),
            Found::V2(claim, base) => {
                let parent = parent_name().map_err(Stale::Unknown)?;
                let v2 = V2::known_good(claim, &base, &parent, settings);
                v2.map(Cgroups::V2).map_err(|refusal| Stale::Gone { why: refusal.why })
            }
        }
    }
}

impl Remembered<'_> {
    fn parse(text: &str) -> Result<Remembered<'_>, TextError> {
        let expected = |expected| TextError { expected };
        let body = text.strip_suffix(&format!("{LAST_LINE}\n")).ok_or(expected("its last line"))?;
        let mut lines = body.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(expected("its first line"));
        }
        let host = lines.next().and_then(|line| line.strip_prefix("host ")).ok_or(expected("the host"))?;
        let found = match lines.next().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
            Some(("v1", "")) => Found::V1(parse_groups(lines)?),
            Some(("v2", claim)) if lines.next().is_none() => parse_v2(claim)?,
            _ => return Err(expected("v1 or v2")),
        };
        Ok(Remembered { host, found })
    }
}

fn parse_groups(lines: Lines<'_>) -> Result<Vec<Group>, TextError> {
    let groups: Option<Vec<Group>> = lines.map(parse_group).collect();
    let groups = groups.filter(|groups| complete(groups));
    groups.ok_or(TextError { expected: "a directory for each controller of cgroup v1" })
}

/// Each controller in exactly one directory.
fn complete(groups: &[Group]) -> bool {
    let mut names: Vec<&str> =
        groups.iter().flat_map(|group| &group.controllers).map(|it| it.name()).collect();
    let mut all: Vec<&str> = Controller::ALL.into_iter().map(Controller::name).collect();
    names.sort_unstable();
    all.sort_unstable();
    names == all
}

fn parse_group(line: &str) -> Option<Group> {
    let (controllers, dir) = line.strip_prefix("group ")?.split_once(' ')?;
    let controllers: Option<Vec<Controller>> = controllers.split(',').map(Controller::from_name).collect();
    Some(Group { dir: unescape(dir)?, controllers: controllers? })
}

fn parse_v2(claim: &str) -> Result<Found, TextError> {
    let base = |path: &str| unescape(path).ok_or(TextError { expected: "an absolute path" });
    match claim.split_once(' ').unwrap_or((claim, "")) {
        ("top", path) => Ok(Found::V2(Claim::Top, base(path)?)),
        ("own", path) => Ok(Found::V2(Claim::Own, base(path)?)),
        ("scope", "") => Ok(Found::V2(Claim::Scope, PathBuf::new())),
        _ => Err(TextError { expected: "top, own or scope" }),
    }
}

fn show_v1(v1: &V1) -> String {
    let mut text = "v1\n".to_owned();
    for group in &v1.hierarchies {
        let names: Vec<&str> = group.controllers.iter().map(|controller| controller.name()).collect();
        let _ = writeln!(text, "group {} {}", names.join(","), escape(&group.dir));
    }
    text
}

fn show_v2(v2: &V2) -> String {
    let base = escape(&v2.ground.base);
    match v2.ground.claim {
        Claim::Top => format!("v2 top {base}\n"),
        Claim::Own => format!("v2 own {base}\n"),
        Claim::Scope => "v2 scope\n".to_owned(),
    }
}

/// What a probe is valid for.
fn host() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let uid = rustix::process::geteuid().as_raw();
    let namespace = |name: &str| fs::read_link(format!("/proc/self/ns/{name}"));
    Ok(format!("{} {uid} {} {}", boot.trim(), namespace("pid")?.display(), namespace("mnt")?.display()))
}

/// Printable ASCII as it is, every other byte and the backslash as `\xNN`.
fn escape(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'\\' | 0..=0x1f | 0x7f..=0xff => drop(write!(text, "\\x{byte:02x}")),
            _ => text.push(char::from(*byte)),
        }
        text
    })
}

fn unescape(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escaped) = rest.split_at(at);
        let digits = escaped.strip_prefix("\\x")?.get(..2)?;
        bytes.extend(plain.as_bytes());
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = escaped.get(4..)?;
    }
    bytes.extend(rest.as_bytes());
    let path = PathBuf::from(OsString::from_vec(bytes));
    (path.is_absolute() && escape(&path) == text).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(found: &str) -> Result<Found, TextError> {
        Remembered::parse(&format!("belljar-cgroups 1\nhost here\n{found}end\n")).map(|remembered| {
            assert_eq!(remembered.host, "here");
            remembered.found
        })
    }

    const WHOLE: &str = "v1\ngroup memory /m/belljar\ngroup pids /p\ngroup cpu,cpuacct /c\\x0a\\xff,d\n";

    #[test]
    fn what_was_found_reads_back_as_it_was_shown() {
        let Found::V1(groups) = parse(WHOLE).unwrap() else { panic!("not version 1") };
        assert_eq!(groups[2].dir.as_os_str().as_bytes(), b"/c\n\xff,d");
        assert_eq!(show_v1(&V1::known_good(groups)), WHOLE);
        assert_eq!(parse("v2 scope\n").unwrap(), Found::V2(Claim::Scope, PathBuf::new()));
        assert_eq!(parse("v2 own /a b\n").unwrap(), Found::V2(Claim::Own, "/a b".into()));
        assert_eq!(parse("v2 top /a\n").unwrap(), Found::V2(Claim::Top, "/a".into()));
    }

    #[test]
    fn what_is_cut_short_added_to_or_changed_is_refused() {
        let text = format!("belljar-cgroups 1\nhost here\n{WHOLE}end\n");
        for end in 0..text.len() {
            assert!(Remembered::parse(&text[..end]).is_err(), "{end}");
        }
        for found in [
            "",
            "v1\n",
            "v1\ngroup memory /m\n",
            "v1\ngroup memory,pids,cpu,cpuacct,memory /m\n",
            "v1\ngroup memory,pids,cpu,cpuacct m\n",
            "v1\ngroup memory,pids,cpu,devices /m\n",
            "v1 x\ngroup memory,pids,cpu,cpuacct /m\n",
            "v2\n",
            "v2 top\n",
            "v2 top relative\n",
            "v2 top /a\\\n",
            "v2 top /a\\x\n",
            "v2 top /a\\x6\n",
            "v2 top /a\\x61\n",
            "v2 top /a\\xZZ\n",
            "v2 scope /a\n",
            "v2 scope\nv2 scope\n",
            "v3\n",
        ] {
            assert!(parse(found).is_err(), "{found}");
        }
        assert!(Remembered::parse(&text.replace(" 1\n", " 2\n")).is_err());
        assert!(Remembered::parse(&format!("{text}x")).is_err());
    }
}
