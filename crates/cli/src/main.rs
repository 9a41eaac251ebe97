//! The `belljar` command: the only crate that knows the command line, the environment, configuration files and
//! the terminal, and the only one that names concrete backends.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod cancel;
mod collect;
mod compose;
mod doctor;
mod languages;
mod output;
mod problem;
mod run;
mod settings;
mod source;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if belljar_jail::is_keeper(argv.first().map(OsString::as_os_str)) {
        return belljar_jail::keep();
    }
    if let Some(done) = belljar_transpile::run_as_worker() {
        return done;
    }
    let environment = |name: &str| std::env::var_os(name);
    match Cli::try_parse_from(&argv) {
        Err(usage) => problem::report_usage(&usage, &argv),
        Ok(Cli { command: Command::Run(args) }) => run::run(*args, &environment),
        Ok(Cli { command: Command::Languages(args) }) => languages::run(&args, &environment),
        Ok(Cli { command: Command::Doctor(args) }) => doctor::run(&args, &environment),
        Ok(Cli { command: Command::Bench(args) }) => bench::run(&args),
    }
}
