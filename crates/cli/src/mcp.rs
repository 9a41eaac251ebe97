//! `belljar mcp`: an MCP server for the one client that started this process. Only the protocol writes to stdout.

mod install;

use std::io::{self, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use belljar_core::allowance::{Allowance, Permitted, Workspaces};
use belljar_core::request::{BackendChoice, Network, parse_waivers};
use belljar_ledger::approvals::Abandoned;
use belljar_server::config::usual_allowance;
use belljar_server::mcp::{self, ToolName};
use belljar_server::{Caller, Config};
use belljar_wire::{Code, Problem};
use clap::{Args, Subcommand, ValueHint};
use tracing::Level;

use crate::approvals::configured::{Configured, Opened};
use crate::args::{Choices, Verbosity};
use crate::audit::configured::Planned;
use crate::cancel::Signals;
use crate::configuration::FolderFile;
use crate::problem;
use crate::serve::cannot_serve;
use crate::serve::log::{self, Format};
use crate::settings::{Environment, Settings};
use crate::{compose, doctor, scanner};
use install::InstallArgs;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,

    #[command(flatten)]
    options: ServerOptions,
}

// Not a doc comment: clap would take it for the description of the commands that this is flattened into.
// What the server takes, and what `install` passes on to it.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// Name of the tool that runs code [default: run_code]
    #[arg(long, value_name = "NAME")]
    tool_name: Option<String>,

    /// Directory that a call may show to its code, read-only, with what is beneath it; repeatable [default: none]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    workspace_root: Vec<PathBuf>,

    #[command(flatten)]
    choices: Choices,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl ServerOptions {
    /// The settings in effect. A list of roots on the command line is the whole list.
    fn settings(&self, environment: Environment<'_>) -> Result<Settings, Problem> {
        let mut settings = Settings::gather(&self.choices, self.config.as_deref(), environment)?;
        if let Some(name) = &self.tool_name {
            settings.mcp.tool_name = ToolName::parse(name)?;
        }
        if !self.workspace_root.is_empty() {
            settings.workspace_roots = self.roots()?;
        }
        Ok(settings)
    }

    /// The roots as absolute paths, because clients start the server in any directory.
    fn roots(&self) -> Result<Vec<PathBuf>, Problem> {
        self.workspace_root.iter().map(|root| absolute("--workspace-root", root)).collect()
    }

    /// The words that say the same on another command line.
    fn words(&self) -> Result<Vec<String>, Problem> {
        let mut words = Vec::new();
        if let Some(name) = &self.tool_name {
            words.extend(["--tool-name".to_owned(), name.clone()]);
        }
        for root in self.roots()? {
            words.extend(["--workspace-root".to_owned(), text_of("--workspace-root", root)?]);
        }
        words.extend(self.choices.words());
        if let Some(config) = &self.config {
            words.extend(["--config".to_owned(), text_of("--config", absolute("--config", config)?)?]);
        }
        Ok(words)
    }
}

/// The path keeps its symbolic links, because clients know a directory by that name; only `..` is resolved.
fn absolute(option: &str, path: &Path) -> Result<PathBuf, Problem> {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    let found = if goes_up { path.canonicalize() } else { std::path::absolute(path) };
    found.map_err(|cause| {
        let message = format!("{option}: cannot tell where '{}' is: {cause}", path.display());
        Problem::new(Code::InvalidRequest, message, "write an absolute path")
    })
}

fn text_of(option: &str, path: PathBuf) -> Result<String, Problem> {
    path.into_os_string().into_string().map_err(|path| {
        let message = format!("{option}: the path {} is not UTF-8", path.display());
        Problem::new(Code::InvalidRequest, message, "use a path that is")
    })
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

/// The approvals, if runs can need any, and how long a call waits for one.
fn approvals(settings: &Settings) -> Result<Option<(Opened, Duration)>, Problem> {
    let configured = Configured::of(settings)?;
    if settings.policies.are_open() {
        return Ok(None);
    }
    let wait = configured.wait;
    Ok(Some((configured.prepare(settings)?.start(Abandoned::Keep)?, wait)))
}

fn serve(args: &McpArgs, verbosity: Verbosity, environment: Environment<'_>) -> Result<(), Problem> {
    FolderFile::tell_if_overlooked(args.options.config.as_deref(), verbosity, environment);
    let settings = args.options.settings(environment)?;
    for root in settings.workspace_roots.iter().filter(|root| !root.is_dir()) {
        problem::warn(&format!("the workspace root {} is not a directory", root.display()), verbosity);
    }
    let policy = settings.policies.general.clone();
    let caller = Caller::anonymous(allowance(&settings)?, policy, &settings.defaults());
    let chosen = doctor::backend_choice(&settings)?;
    let ledger = Planned::of_command(&settings, 1024)?;
    let approvals = approvals(&settings)?;
    let Settings { mcp: protocol, mut host, scan, policies, .. } = settings;
    host.docker.for_others = true;
    let mut config = Config { mcp: protocol, ..Config::default() };
    let scanning = scan.scanning();
    let expected = scanning == belljar_engine::Scanning::EveryRun || !policies.are_open();
    let mut engine = compose::engine(host, None).with_scanner(scanner::warm(expected), scanning);
    let scribe = ledger.map(|ledger| ledger.of_ones_own()?.unlock()?.start()).transpose()?;
    if let Some(scribe) = &scribe {
        engine = engine.with_recorder(scribe.clone());
    }
    if let Some((approvals, wait)) = &approvals {
        engine = engine.with_approver(approvals.waiting.clone());
        (config.approvals, config.approval_wait) = (Some(approvals.waiting.store().clone()), *wait);
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
    allowance.workspaces = Workspaces::Beneath(settings.workspace_roots.clone());
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
