//! A policy as text.

use belljar_core::policy::{Policy, Written};
use belljar_wire::to_json;
use serde::Serialize;

/// As `belljar.toml` would have it, with the origin of each line in a comment.
pub(super) fn toml(policy: &Policy) -> String {
    let mut lines = vec![
        ("[policy]".to_owned(), None),
        (format!("default = \"{}\"", policy.default), Some(&policy.default_origin)),
    ];
    if !policy.rules.is_empty() {
        lines.push(("rules = [".to_owned(), None));
        for rule in &policy.rules {
            lines.push((
                format!("  {{ when = {}, then = \"{}\" }},", rule.when, rule.then),
                Some(&rule.origin),
            ));
        }
        lines.push(("]".to_owned(), None));
    }
    for list in &policy.allowed_imports {
        // What else is imported is denied, unless a rule above says otherwise.
        let names: Vec<_> = list.modules.iter().map(|module| quoted(module)).collect();
        let name = format!("allowed-imports.{}", list.language);
        lines.push((format!("{name} = [{}]", names.join(", ")), Some(&list.origin)));
    }
    aligned(&lines)
}

/// Comments stand below each other, unless a line is long.
fn aligned(lines: &[(String, Option<&Written>)]) -> String {
    const WIDEST: usize = 80;
    let short = lines.iter().filter(|(_, origin)| origin.is_some()).map(|(line, _)| line.chars().count());
    let width = short.filter(|width| *width <= WIDEST).max().unwrap_or(0);
    let mut text = String::new();
    for (line, origin) in lines {
        match origin {
            Some(origin) if line.chars().count() > WIDEST => text += &format!("# {origin}:\n{line}\n"),
            Some(origin) => text += &format!("{line:width$}  # {origin}\n"),
            None => text += &format!("{line}\n"),
        }
    }
    text
}

fn quoted(text: &str) -> String {
    // Names of modules have no control characters.
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The same as JSON.
pub(super) fn json(policy: &Policy) -> String {
    #[derive(Serialize)]
    struct Shown {
        default: Line,
        rules: Vec<Line>,
        allowed_imports: Vec<Imports>,
    }
    #[derive(Serialize)]
    struct Line {
        when: String,
        then: &'static str,
        origin: String,
    }
    #[derive(Serialize)]
    struct Imports {
        language: &'static str,
        modules: Vec<String>,
        origin: String,
    }
    let line =
        |when: String, then: &'static str, origin: &Written| Line { when, then, origin: origin.to_string() };
    let rules = policy.rules.iter().map(|rule| line(rule.when.to_string(), rule.then.name(), &rule.origin));
    let imports = policy.allowed_imports.iter().map(|list| Imports {
        language: list.language,
        modules: list.modules.clone(),
        origin: list.origin.to_string(),
    });
    to_json(&Shown {
        default: line("{}".to_owned(), policy.default.name(), &policy.default_origin),
        rules: rules.collect(),
        allowed_imports: imports.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::table::{Policies, PolicyFile, PolicyTable};
    use belljar_core::policy::Preset;

    fn read(text: &str) -> Policy {
        #[derive(serde::Deserialize)]
        struct File {
            policy: PolicyTable,
        }
        let file: File = ::toml::from_str(text).unwrap();
        let policies = Policies::read(&file.policy, std::iter::empty(), PolicyFile { path: "b.toml", text });
        (*policies.unwrap().general).clone()
    }

    #[test]
    fn what_is_shown_can_be_pasted() {
        for preset in Preset::ALL {
            let (policy, shown) = (preset.policy(), toml(&preset.policy()));
            let pasted = read(&shown);
            let rules = |policy: &Policy| {
                policy.rules.iter().map(|rule| (rule.when.clone(), rule.then)).collect::<Vec<_>>()
            };
            assert_eq!((rules(&pasted), pasted.default), (rules(&policy), policy.default), "{shown}");
            let imports = |policy: &Policy| {
                let mut lists: Vec<_> =
                    policy.allowed_imports.iter().map(|list| (list.language, list.modules.clone())).collect();
                lists.sort();
                lists
            };
            assert_eq!(imports(&pasted), imports(&policy));
        }
    }

    #[test]
    fn every_line_says_where_it_comes_from() {
        let text =
            "[policy]\npreset = 'standard'\nrules = [{ when = { network = 'full' }, then = 'deny' }]\n";
        insta::assert_snapshot!(toml(&read(text)), @r#"
        [policy]
        default = "allow"                                       # the preset standard
        rules = [
          { when = { network = "full" }, then = "deny" },       # b.toml:3
          { when = { severity = "critical" }, then = "deny" },  # the preset standard
          { when = { severity = "high" }, then = "approve" },   # the preset standard
        ]
        "#);
    }
}
