//! In a build without secrets: asking for one is an error that says how to get a build that has them.

use crate::client::{belljar, configured};
use crate::world::WORLD;

pub(crate) const ALL: &[(&str, fn())] =
    &[("a_build_without_secrets_says_how_to_get_one", a_build_without_secrets_says_how_to_get_one)];

fn a_build_without_secrets_says_how_to_get_one() {
    let table = "[secrets.\"good.test\"]\nheader = \"Authorization\"\nvalue-from = \"env:KEY\"\n";
    std::fs::write(WORLD.file("secrets.toml"), table).unwrap();
    let by_table = configured("secrets.toml", "full").args(["sh", "-c", "true"]).output();
    let by_option = belljar("full").args(["--secret", "good.test", "sh", "-c", "true"]).output();
    for refused in [by_table.unwrap(), by_option.unwrap()] {
        assert_eq!(refused.status.code(), Some(125));
        let said = String::from_utf8_lossy(&refused.stdout);
        assert!(said.contains("cargo build --release --features secrets"), "{said}");
    }
    let allowed = belljar("full").args(["sh", "-c", "true"]).output().unwrap();
    assert_eq!(allowed.status.code(), Some(0), "the control");
}
