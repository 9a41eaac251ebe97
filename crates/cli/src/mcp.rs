//! `belljar mcp`: an MCP server for the one client that started this process. Only the protocol writes to stdout.

mod install;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use belljar_core::allowance::{Allowance, Permitted};
use belljar_core::request::{BackendChoice, Network, parse_waivers};
use belljar_server::config::usual_allowance;
use belljar_server::mcp::{self, ToolName};
use belljar_server::{Caller, Config};
use belljar_wire::Problem;
use clap::{Args, Subcommand, ValueHint};
use tracing::Level;

use crate::args::{Choices, Verbosity};
use crate::audit::configured::{Planned, Unless};
use crate::cancel::Signals;
use crate::problem;
use crate::serve::cannot_serve;
use crate::serve::log::{self, Format};
use crate::settings::{Environment, Settings};
use crate::{compose, doctor};
use install::InstallArgs;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,

    /// Name of the tool that runs code [default: run_code]
    #[arg(long, value_name = "NAME")]
    tool_name: Option<String>,

    #[command(flatten)]
    choices: Choices,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Add this server to the configuration of an MCP client
    Install(InstallArgs),
}

pub(crate) fn run(args: &McpArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    let done = match &args.command {
        None => serve(args, verbosity, environment),
        Some(McpCommand::Install(install)) => install::install(install, verbosity, environment),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            problem::report(&problem, false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn serve(args: &McpArgs, verbosity: Verbosity, environment: Environment<'_>) -> Result<(), Problem> {
    let settings = Settings::gather(&args.choices, args.config.as_deref(), environment)?;
    let caller = Caller::anonymous(allowance(&settings)?, &settings.defaults());
    let chosen = doctor::backend_choice(&settings)?;
    let ledger = Planned::of(&settings, Unless::Configured, 1024)?;
    let Settings { mcp: mut protocol, mut host, .. } = settings;
    host.docker.for_others = true;
    if let Some(name) = &args.tool_name {
        protocol.tool_name = ToolName::parse(name)?;
    }
    let config = Config { mcp: protocol, ..Config::default() };
    let mut engine = compose::engine(host, None);
    let scribe = ledger.map(|ledger| ledger.unlock()?.start()).transpose()?;
    if let Some(scribe) = &scribe {
        engine = engine.with_recorder(scribe.clone());
    }
    if let BackendChoice::Named(name) = chosen
        && name.is_only_by_name()
    {
        let placement = engine.place(chosen, &Network::None, &[])?;
        problem::warn_of(name, placement.enforcement.waived(), verbosity);
    }
    if verbosity != Verbosity::Quiet {
        greet();
    }
    let _log = log::begin(Format::Human, log::level(Level::WARN, verbosity), environment);
    let served = mcp::serve_stdio(engine, &config, caller, told_to_stop());
    if let Some(scribe) = scribe {
        scribe.stop();
    }
    served.map_err(|cause| cannot_serve(&cause))
}

/// Tells a person at a terminal why nothing happens.
fn greet() {
    if io::stdin().is_terminal() {
        let _ = writeln!(
            io::stderr(),
            "This is an MCP server on standard input and output, to be started by an MCP client. See belljar mcp install --help"
        );
    }
}

/// The user who started this process may do anything, but the requests come from a model, which may follow
/// instructions that it has read somewhere. So it gets a real sandbox, unless the user has chosen otherwise.
fn allowance(settings: &Settings) -> Result<Allowance, Problem> {
    let mut allowance = usual_allowance(&settings.limits);
    allowance.waivers = Permitted::Only(parse_waivers(&settings.waive)?);
    if let (Some(chosen), Permitted::Only(names)) = (&settings.backend, &mut allowance.backends)
        && let BackendChoice::Named(name) = BackendChoice::parse(chosen)?
        && !names.contains(&name)
    {
        names.push(name);
    }
    Ok(allowance)
}

async fn told_to_stop() {
    match Signals::listen() {
        Ok(signals) => drop(signals.first().await),
        Err(cause) => {
            tracing::error!(%cause, "cannot listen to signals");
            std::future::pending().await
        }
    }
}
