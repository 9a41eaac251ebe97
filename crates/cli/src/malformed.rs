//! Why `belljar.toml` cannot be understood, and what to write instead. Keys are told from the table in which one is misspelt:
//! the parser knows them, and names them in its message.

use std::path::Path;

use belljar_core::spelling::nearest;
use belljar_wire::{Code, Problem};

use crate::settings::LimitsTable;

/// What stands in the file outside of all tables. Only there can a key be called `runtimes`.
const TOP: &str = "the keys are backend, language, network, image, waive, [limits], [runtimes], [docker], [mcp], [server], \
                   [pool], [audit], [scan], [policy], [approvals] and [[keys]]";
const OF_THE_TOP: &str = "runtimes";

/// A file that is not TOML, or has something in it that no setting is.
pub(crate) fn malformed_file(path: &Path, text: &str, fault: &toml::de::Error) -> Problem {
    let line = fault.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
    let (what, hint) = described(fault.message());
    Problem::new(Code::InvalidRequest, format!("{}:{line}: {what}", path.display()), hint)
}

/// The fault and a hint. What the hint lists, the fault need not.
fn described(message: &str) -> (String, String) {
    let message = message.trim().replace('\n', ", ");
    // The parser quotes the word that it has found, and then those that it knows.
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match &quoted[..] {
        [key, known @ ..] if message.starts_with("unknown field ") => {
            (format!("unknown field `{key}`"), key_hint(key, known))
        }
        [word, known @ ..] if message.starts_with("unknown variant ") => {
            (format!("unknown word `{word}`"), format!("write {}", known.join(" or ")))
        }
        [key, ..] if message.starts_with("missing field ") => {
            (message.clone(), format!("add {key} = ... to this table"))
        }
        _ => (
            without_names(&message),
            "correct that line; a setting that is left out has its default".to_owned(),
        ),
    }
}

fn key_hint(key: &str, known: &[&str]) -> String {
    let is_top = known.contains(&OF_THE_TOP);
    let list = match known {
        _ if is_top => TOP.to_owned(),
        [only] => format!("the only key here is {only}"),
        known => format!("the keys here are {}", known.join(", ")),
    };
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'? T{}", &list[1..]),
        None if is_top && is_limit(key) => format!("write it below a line [limits]; {list}"),
        None => list,
    }
}

/// Whether it is a key of `[limits]`.
fn is_limit(key: &str) -> bool {
    toml::from_str::<LimitsTable>(&format!("{key} = 1")).is_ok()
}

/// The message without the names of our own types.
fn without_names(message: &str) -> String {
    match message.split_once("expected struct ") {
        Some((before, _)) => format!("{before}expected a table"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse;

    fn said(text: &str) -> String {
        let fault = parse(Path::new("x.toml"), text).unwrap_err().error;
        format!("{}\n{}", fault.message, fault.hint)
    }

    #[test]
    fn a_misspelt_key_is_told_with_those_of_its_table() {
        insta::assert_snapshot!(said("[policy]\ndefalt = 'deny'"), @"
        x.toml:2: unknown field `defalt`
        did you mean 'default'? The keys here are preset, default, rules, allowed-imports
        ");
        insta::assert_snapshot!(said("[[policy.rules]]\nwhen = { sevrity = 'high' }\nthen = 'deny'"), @"
        x.toml:2: unknown field `sevrity`
        did you mean 'severity'? The keys here are severity, rule, language, backend, network, image, workspace, timeout-above, cpu-time-above, memory-above, cpus-above, pids-above, disk-above, output-limit-above
        ");
        insta::assert_snapshot!(said("[[policy.rules]]\nif = { severity = 'high' }\nthen = 'deny'"), @"
        x.toml:2: unknown field `if`
        the keys here are when, then
        ");
        insta::assert_snapshot!(said("[approvals]\nwiat = '1s'"), @"
        x.toml:2: unknown field `wiat`
        did you mean 'wait'? The keys here are wait, expire, remember, allow-own, webhook, webhook-secret
        ");
        insta::assert_snapshot!(said("[audit]\nretain = { aeg = '1d' }"), @"
        x.toml:2: unknown field `aeg`
        did you mean 'age'? The keys here are age, size
        ");
        insta::assert_snapshot!(said("[[keys]]\nname = 'a'\nsha = 'b'"), @"
        x.toml:3: unknown field `sha`
        the keys here are name, sha256, concurrent, requests-per-minute, uploads, audit, approve, allow, policy
        ");
        insta::assert_snapshot!(said("[[keys]]\nname = 'a'\nsha256 = 'b'\n[keys.allow]\nlang = []"), @"
        x.toml:5: unknown field `lang`
        the keys here are languages, backends, network, secrets, waive, workspace-roots, limits
        ");
        insta::assert_snapshot!(said("[server]\nmax_connection = 1"), @"
        x.toml:2: unknown field `max_connection`
        did you mean 'max-connections'? The keys here are listen, keep-root, slots, queue, max-body, max-collect, body-memory, max-connections, max-connections-per-address, header-timeout, body-timeout, heartbeat, drain, idle-timeout, keep-runs, keep-bytes, keep-for, max-upload, upload-memory, keep-uploads-for, allow-origins, allow
        ");
        insta::assert_snapshot!(said("[scan]\non = true"), @"
        x.toml:2: unknown field `on`
        the only key here is enabled
        ");
    }

    #[test]
    fn the_keys_of_the_file_are_told_for_a_key_outside_of_tables() {
        insta::assert_snapshot!(said("[limit]\nmemory = '1G'"), @"
        x.toml:1: unknown field `limit`
        did you mean 'limits'? The keys are backend, language, network, image, waive, [limits], [runtimes], [docker], [mcp], [server], [pool], [audit], [scan], [policy], [approvals] and [[keys]]
        ");
        insta::assert_snapshot!(said("memory = '1G'"), @"
        x.toml:1: unknown field `memory`
        write it below a line [limits]; the keys are backend, language, network, image, waive, [limits], [runtimes], [docker], [mcp], [server], [pool], [audit], [scan], [policy], [approvals] and [[keys]]
        ");
        insta::assert_snapshot!(said("nonsense = 1"), @"
        x.toml:1: unknown field `nonsense`
        the keys are backend, language, network, image, waive, [limits], [runtimes], [docker], [mcp], [server], [pool], [audit], [scan], [policy], [approvals] and [[keys]]
        ");
    }

    #[test]
    fn other_faults_are_told_in_words_of_the_file() {
        insta::assert_snapshot!(said("[[policy.rules]]\nwhen = { severity = 'high' }"), @"
        x.toml:1: missing field `then`
        add then = ... to this table
        ");
        insta::assert_snapshot!(said("[audit]\non-full = 'stop'"), @"
        x.toml:2: unknown word `stop`
        write refuse or run
        ");
        insta::assert_snapshot!(said("[audit]\nretain = '1d'"), @r#"
        x.toml:2: invalid type: string "1d", expected a table
        correct that line; a setting that is left out has its default
        "#);
        insta::assert_snapshot!(said("[limits]\ntimeout = true"), @"
        x.toml:2: expected a text or a number
        correct that line; a setting that is left out has its default
        ");
        insta::assert_snapshot!(said("[[policy.rules]]\nwhen = { rule = 3 }\nthen = 'deny'"), @"
        x.toml:2: expected a text or a list of texts
        correct that line; a setting that is left out has its default
        ");
        insta::assert_snapshot!(said("[audit]\nenabled = 'yes'"), @r#"
        x.toml:2: invalid type: string "yes", expected a boolean
        correct that line; a setting that is left out has its default
        "#);
        insta::assert_snapshot!(said("[limits\ntimeout = 1"), @"
        x.toml:1: unclosed table, expected `]`
        correct that line; a setting that is left out has its default
        ");
    }
}
