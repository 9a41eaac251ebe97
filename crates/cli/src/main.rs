//! The `belljar` command: the only crate that knows the command line, the environment, configuration files and
//! the terminal, and the only one that names concrete backends.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod cancel;
mod collect;
mod compose;
mod docker;
mod doctor;
mod key;
mod languages;
mod mcp;
mod output;
mod pool;
mod problem;
mod run;
mod serve;
mod settings;
mod source;
mod table;
mod wasm;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Command};

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = belljar_jail::keep(argv.first().map(OsString::as_os_str)) {
        return ended;
    }
    if let Some(ended) = belljar_process::supervise(argv.first().map(OsString::as_os_str)) {
        return ended;
    }
    if belljar_docker::is_init(argv.first().map(OsString::as_os_str)) {
        return belljar_docker::init();
    }
    // Before anything else, while there is one thread and little to inherit. Without one, the keeper is started later.
    let runs = argv.get(1).is_some_and(|word| word == "run");
    let standby = runs.then(belljar_jail::stand_by).and_then(Result::ok);
    if let Some(done) = belljar_transpile::run_as_worker() {
        return done;
    }
    let environment = |name: &str| std::env::var_os(name);
    match Cli::read(&argv) {
        Err(usage) => problem::report_usage(&usage, &argv),
        Ok(Cli { command: Command::Run(args) }) => run::run(*args, &environment, standby),
        Ok(Cli { command: Command::Languages(args) }) => languages::run(&args, &environment),
        Ok(Cli { command: Command::Doctor(args) }) => doctor::run(&args, &environment),
        Ok(Cli { command: Command::Serve(args) }) => serve::run(&args, &environment),
        Ok(Cli { command: Command::Mcp(args) }) => mcp::run(&args, &environment),
        Ok(Cli { command: Command::Pool(args) }) => pool::run(&args, &environment),
        Ok(Cli { command: Command::Wasm(args) }) => wasm::run(&args, &environment),
        Ok(Cli { command: Command::Key(args) }) => key::run(&args),
        Ok(Cli { command: Command::Openapi }) => {
            problem::say(&belljar_server::http::openapi());
            ExitCode::SUCCESS
        }
        Ok(Cli { command: Command::Bench(args) }) => bench::run(&args),
    }
}
