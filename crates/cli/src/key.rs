//! `belljar key new`: creates an API key, shows it once, and prints what goes into the configuration.

use std::process::ExitCode;

use belljar_server::caller::Secret;
use belljar_wire::{Code, Problem, to_json};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::problem::{self, say};
use crate::serve::tables::{KEY_NAMES, is_key_name};

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create an API key; it is shown once, and only its hash goes into the configuration
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Name of the key, which appears in logs
    #[arg(long, default_value = "default", value_parser = key_name)]
    name: String,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct NewKey<'a> {
    name: &'a str,
    key: &'a str,
    sha256: String,
}

pub(crate) fn run(args: &KeyArgs) -> ExitCode {
    let KeyCommand::New(args) = &args.command;
    match Secret::random() {
        Ok(secret) => {
            say(&if args.json { as_json(&args.name, &secret) } else { in_words(&args.name, &secret) });
            ExitCode::SUCCESS
        }
        Err(cause) => {
            let message = format!("cannot create a key: {cause}");
            problem::report(&Problem::new(Code::Internal, message, "try again"), args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

/// A name that the configuration takes.
fn key_name(text: &str) -> Result<String, &'static str> {
    if is_key_name(text) { Ok(text.to_owned()) } else { Err(KEY_NAMES) }
}

fn as_json(name: &str, secret: &Secret) -> String {
    to_json(&NewKey { name, key: secret.reveal(), sha256: secret.hash().to_string() })
}

fn in_words(name: &str, secret: &Secret) -> String {
    let key = secret.reveal();
    let name = quoted(name);
    format!(
        "{key}\n\n\
         This is the key. It is not stored and cannot be shown again. Add its hash to belljar.toml:\n\n\
         [[keys]]\n\
         name = {name}\n\
         sha256 = \"{}\"\n",
        secret.hash()
    )
}

/// A string of TOML. Only control characters would need more than this, and no name has any.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_taken_comes_back_from_the_configuration() {
        for name in ["ci", "ä", "it's \"me\"", "C:\\x\\u0041", "\u{1f511}", "a # b"] {
            let table: toml::Table =
                toml::from_str(&format!("name = {}", quoted(&key_name(name).unwrap()))).unwrap();
            assert_eq!(table["name"].as_str(), Some(name));
        }
        for name in ["", "a\nb", "\u{7f}", "\u{85}", &"x".repeat(65)] {
            assert!(key_name(name).is_err(), "{name:?}");
        }
    }
}
