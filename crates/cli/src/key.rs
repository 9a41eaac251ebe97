//! `belljar key new`: makes a key, shows it once, and says what goes into the configuration.

use std::process::ExitCode;

use belljar_server::caller::Secret;
use belljar_wire::{Code, Problem, to_json};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::problem::{self, say};

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a new key; it is shown once, and only its hash goes into the configuration
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Who it is for, as it will stand in logs
    #[arg(long, default_value = "default")]
    name: String,

    /// Print JSON
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
            let message = format!("cannot make a key: {cause}");
            problem::report(&Problem::new(Code::Internal, message, "try it again"), args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn as_json(name: &str, secret: &Secret) -> String {
    to_json(&NewKey { name, key: secret.reveal(), sha256: secret.hash().to_string() })
}

fn in_words(name: &str, secret: &Secret) -> String {
    let key = secret.reveal();
    let name = name.escape_default();
    format!(
        "{key}\n\n\
         This is the key; it is not stored and will not be shown again. For belljar.toml:\n\n\
         [[keys]]\n\
         name = \"{name}\"\n\
         sha256 = \"{}\"\n",
        secret.hash()
    )
}
