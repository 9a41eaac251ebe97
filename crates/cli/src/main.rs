//! The `belljar` command: the only crate that knows the command line, the environment, configuration files and
//! the terminal, and the only one that names concrete backends.

#![forbid(unsafe_code)]

mod approvals;
mod args;
mod audit;
mod bench;
mod cancel;
mod collect;
mod completions;
mod compose;
mod config;
mod configuration;
mod docker;
mod doctor;
mod egress;
mod folder;
mod key;
mod languages;
mod malformed;
mod mcp;
mod mistaken;
mod offered;
mod output;
mod policy;
mod pool;
mod problem;
mod progress;
mod remote;
mod run;
mod scan;
mod scanner;
mod secrets;
mod serve;
mod settings;
mod source;
mod state;
mod table;
mod wasm;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Command};
use belljar_jail::{Allocator, Standby};

#[cfg(target_env = "musl")]
use dlmalloc::GlobalDlmalloc as SmallAllocator;
#[cfg(not(target_env = "musl"))]
use std::alloc::System as SmallAllocator;

#[global_allocator]
static ALLOCATOR: Allocator<SmallAllocator> = Allocator(SmallAllocator);

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = belljar_jail::keep(argv.first().map(OsString::as_os_str)) {
        return ended;
    }
    if let Some(ended) = belljar_egress::run_as_gateway(argv.first().map(OsString::as_os_str)) {
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
    if let Some(done) = belljar_worker::run_as_worker(&scanner::jobs()) {
        return done;
    }
    match Cli::read(&argv) {
        Ok(cli) => {
            problem::choose_colors(cli.globals.color());
            dispatch(cli, standby)
        }
        Err(usage) => problem::report_usage(&usage, &argv),
    }
}

fn dispatch(cli: Cli, standby: Option<Standby>) -> ExitCode {
    let environment = |name: &str| std::env::var_os(name);
    let verbosity = cli.globals.verbosity();
    match cli.command {
        Command::Run(args) => run::run(*args, verbosity, &environment, standby),
        Command::Languages(args) => languages::run(&args, verbosity, &environment),
        Command::Doctor(args) => doctor::run(&args, verbosity, &environment),
        Command::Serve(args) => serve::run(&args, verbosity, &environment),
        Command::Mcp(args) => mcp::run(&args, verbosity, &environment),
        Command::Approvals(args) => approvals::run(&args, &environment),
        Command::Audit(args) => audit::run(&args, &environment),
        Command::Policy(args) => policy::run(args, verbosity, &environment),
        Command::Pool(args) => pool::run(&args, verbosity, &environment),
        Command::Wasm(args) => wasm::run(&args, verbosity, &environment),
        Command::Key(args) => key::run(&args),
        Command::Config(args) => config::run(&args, &environment),
        Command::Scan(args) => scan::run(&args, &environment),
        Command::Bench(args) => bench::run(&args, verbosity),
        Command::Completions(args) => completions::run(&args),
        Command::Openapi => {
            problem::say(belljar_server::http::openapi());
            ExitCode::SUCCESS
        }
        Command::Man(args) => completions::write_man_pages(&args),
    }
}
