//! The same policy as a seccomp profile for container engines, rendered from the same table.
//!
//! A profile can express less: conditions cannot be ordered or negated without looking at the upper half of a register.
//! So a call that the table refuses for *some* arguments and allows otherwise is allowed here. A caller that gives this
//! profile to an engine also loads the exact [`Filter`](super::Filter) inside; the profile is the fence around it.

use std::fmt::Write;

use super::policy::{Case, Policy, Rule, STANDARD, Test, Verdict};

/// The policy for untrusted code as a Docker seccomp profile, in JSON.
#[must_use]
pub fn profile() -> String {
    render(&STANDARD)
}

fn render(policy: &Policy) -> String {
    let mut rules: Vec<String> =
        policy.groups.iter().flat_map(|group| rules(group.rule, group.calls)).collect();
    for (name, case) in &FIRST_PROCESS {
        rules.extend(conditions(case).map(|args| entry(name, Verdict::Allow, &args)));
    }
    format!(
        "{{\"defaultAction\":\"{}\",\"defaultErrnoRet\":{},\"architectures\":[\"{ARCHITECTURE}\"],\"syscalls\":[{}]}}",
        action(policy.unlisted),
        errno(policy.unlisted),
        rules.join(",")
    )
}

/// What a container's PID 1 does before it is under the exact filter: it makes itself non-dumpable, and loads that
/// filter, for all its threads.
const FIRST_PROCESS: [(&str, Case); 2] = [
    ("\"prctl\"", Case { when: &[is(0, &[libc::PR_SET_DUMPABLE.cast_unsigned()])], then: Verdict::Allow }),
    (
        "\"seccomp\"",
        Case {
            when: &[is(0, &[libc::SECCOMP_SET_MODE_FILTER]), is(1, &[TSYNC, LISTENED])],
            then: Verdict::Allow,
        },
    ),
];
/// `SECCOMP_FILTER_FLAG_TSYNC`, as a 32-bit number.
const TSYNC: u32 = 1;
/// The same with `SECCOMP_FILTER_FLAG_NEW_LISTENER` and `SECCOMP_FILTER_FLAG_TSYNC_ESRCH`.
const LISTENED: u32 = 1 | 8 | 16;

const fn is(argument: u8, any_of: &'static [u32]) -> Test {
    Test { argument, mask: !0, any_of }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

fn rules(rule: Rule, calls: &[(u32, &str)]) -> Vec<String> {
    let names = calls.iter().map(|(_, name)| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    match rule {
        Rule::Always(verdict) => vec![entry(&names, verdict, "")],
        Rule::ByArguments { otherwise: Verdict::Allow, .. } => vec![entry(&names, Verdict::Allow, "")],
        Rule::ByArguments { cases, .. } => {
            let allowed = cases.iter().filter(|case| matches!(case.then, Verdict::Allow | Verdict::Ask));
            allowed.flat_map(conditions).map(|args| entry(&names, Verdict::Allow, &args)).collect()
        }
    }
}

fn entry(names: &str, verdict: Verdict, args: &str) -> String {
    let mut text = format!("{{\"names\":[{names}],\"action\":\"{}\"", action(verdict));
    if let Verdict::Deny(number) = verdict {
        // Writing to a string cannot fail.
        let _ = write!(text, ",\"errnoRet\":{number}");
    }
    text + &format!(",\"args\":[{args}]}}")
}

/// Every combination in which a case can hold: one value for each of its tests.
fn conditions(case: &Case) -> impl Iterator<Item = String> + use<> {
    let all = case.when.iter().fold(vec![String::new()], |so_far, test| {
        let with = |before: &String| {
            test.any_of.iter().map(|value| joined(before, &comparison(test, *value))).collect::<Vec<_>>()
        };
        so_far.iter().flat_map(with).collect()
    });
    all.into_iter()
}

fn joined(before: &str, next: &str) -> String {
    if before.is_empty() { next.to_owned() } else { format!("{before},{next}") }
}

fn comparison(test: &Test, value: u32) -> String {
    format!(
        "{{\"index\":{},\"value\":{},\"valueTwo\":{value},\"op\":\"SCMP_CMP_MASKED_EQ\"}}",
        test.argument, test.mask
    )
}

fn action(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow | Verdict::Ask => "SCMP_ACT_ALLOW",
        Verdict::Deny(_) | Verdict::Ignore => "SCMP_ACT_ERRNO",
        Verdict::Kill => "SCMP_ACT_KILL_PROCESS",
    }
}

fn errno(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Deny(number) => number,
        Verdict::Allow | Verdict::Ask | Verdict::Ignore | Verdict::Kill => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_always_allowed_or_refused_is_said_as_it_is() {
        let profile = profile();
        assert!(profile.contains("\"defaultErrnoRet\":38"), "unlisted numbers do not exist");
        let mount = profile.split("{\"names\"").find(|rule| rule.contains("\"pivot_root\"")).unwrap();
        assert!(mount.contains("SCMP_ACT_ERRNO") && mount.contains("\"errnoRet\":1"), "{mount}");
        let read = profile.split("{\"names\"").find(|rule| rule.contains("\"pread64\"")).unwrap();
        assert!(read.contains("SCMP_ACT_ALLOW") && read.contains("\"args\":[]"), "{read}");
    }

    #[test]
    fn a_call_for_some_arguments_has_a_rule_for_each_of_them() {
        let profile = profile();
        let sockets: Vec<_> =
            profile.split("{\"names\"").filter(|rule| rule.starts_with(":[\"socket\"]")).collect();
        // Three kinds of unix sockets, two families with two types and five protocols, and two types of netlink.
        assert_eq!(sockets.len(), 3 + 2 * 2 * 5 + 2, "{sockets:?}");
        assert!(sockets.iter().all(|rule| rule.contains("SCMP_ACT_ALLOW")));
    }

    #[test]
    fn only_one_kind_of_filter_can_be_loaded() {
        let profile = profile();
        let rules: Vec<_> =
            profile.split("{\"names\"").filter(|rule| rule.starts_with(":[\"seccomp\"]")).collect();
        assert_eq!(
            rules.len(),
            4,
            "two questions, and PID 1's own filter, with or without a listener: {rules:?}"
        );
        assert!(rules.iter().all(|rule| rule.contains("\"index\":0")), "{rules:?}");
        for (rule, flags) in rules[2..].iter().zip([TSYNC, LISTENED]) {
            let only = format!("\"index\":1,\"value\":4294967295,\"valueTwo\":{flags},");
            assert!(rule.contains(&only), "{rules:?}");
        }
    }

    #[test]
    fn every_call_of_the_table_is_in_it() {
        let profile = profile();
        for row in STANDARD.rows() {
            assert!(profile.contains(&format!("\"{}\"", row.name)), "{}", row.name);
        }
    }
}
