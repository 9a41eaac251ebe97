//! `belljar policy`: what may run, and why.

mod show;
pub(crate) mod table;
pub(crate) mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use belljar_core::allowance::Allowance;
use belljar_core::policy::{Action, Policy, Preset, Ruling};
use belljar_engine::{Appraisal, Rights};
use belljar_wire::{Code, Decision, Finding, Problem, to_json};
use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;

use crate::args::{Choices, RunArgs, Verbosity};
use crate::problem::{self, say};
use crate::run;
use crate::settings::{Environment, Settings};
use crate::{compose, scanner};

/// The exit status of `policy check` for a run that needs an approval, and for one that is denied.
const NEEDS_APPROVAL: u8 = 3;
const DENIED: u8 = 126;

#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Print the policy in effect, as belljar.toml would have it, and where each line comes from
    Show(ShowArgs),
    /// Say what the policy does with a run, and which line of it decides
    #[command(override_usage = "belljar policy check [LANGUAGE] [FILE | -] [-c CODE] [OPTIONS] [-- ARGS...]")]
    Check(Box<CheckArgs>),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// A ready policy instead: open, standard or strict
    #[arg(long, value_name = "NAME", conflicts_with = "key")]
    preset: Option<String>,

    /// The policy for the holder of this key
    #[arg(long, value_name = "NAME")]
    key: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    run: RunArgs,

    /// As the holder of this key
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    key: Option<String>,
}

/// What `policy check --json` prints.
#[derive(Debug, Serialize)]
struct Checked {
    decision: Decision,
    /// Where the rule is written: a file and a line, or a preset.
    origin: Origin,
    /// The backend that would run it, if one can.
    backend: Option<&'static str>,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Origin {
    place: String,
    line: Option<usize>,
}

pub(crate) fn run(args: PolicyArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    let (done, json) = match args.command {
        PolicyCommand::Show(args) => (show(&args, environment).map(|()| 0), args.json),
        PolicyCommand::Check(args) => {
            let json = args.run.json;
            (check(*args, verbosity, environment), json)
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn show(args: &ShowArgs, environment: Environment<'_>) -> Result<(), Problem> {
    let policy = match &args.preset {
        Some(name) => Preset::by_name(name)
            .ok_or_else(|| {
                let message = format!("there is no preset '{}'", name.escape_debug());
                Problem::new(Code::InvalidRequest, message, "the presets are open, standard and strict")
            })?
            .policy(),
        None => {
            let settings = Settings::gather(&Choices::default(), args.config.as_deref(), environment)?;
            of_caller(&settings, args.key.as_deref())?.clone()
        }
    };
    say(&if args.json { show::json(&policy) } else { show::toml(&policy) });
    Ok(())
}

/// The policy of a key, or of those without one.
fn of_caller<'a>(settings: &'a Settings, key: Option<&str>) -> Result<&'a Policy, Problem> {
    let Some(name) = key else { return Ok(&settings.policies.general) };
    let at = settings.keys.iter().position(|key| key.name() == name).ok_or_else(|| {
        let message = format!("there is no key '{}' in {}", name.escape_debug(), settings.config);
        Problem::new(Code::InvalidRequest, message, "name one of its [[keys]]")
    })?;
    Ok(settings.policies.of_key(at))
}

fn check(args: CheckArgs, verbosity: Verbosity, environment: Environment<'_>) -> Result<u8, Problem> {
    let CheckArgs { run: args, key } = args;
    let (json, settings) = (args.json, run::settings_here(&args, verbosity, environment)?);
    let policy = of_caller(&settings, key.as_deref())?.clone();
    let (request, host) = run::asked(args, settings)?;
    let engine =
        compose::engine(host, None).with_scanner(scanner::single(), belljar_engine::Scanning::OnRequest);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|cause| {
        let message = format!("cannot set up the event loop: {cause}");
        Problem::new(Code::Internal, message, "check the limit on open files (ulimit -n)")
    })?;
    let rights = Rights { allowance: &Allowance::everything(), policy: &policy, scans: None };
    let appraisal = runtime.block_on(engine.appraise(&run::origin(), rights, request))?;
    let action = appraisal.ruling.decision.action;
    say(&if json { to_json(&Checked::from(appraisal)) } else { described(&appraisal) });
    Ok(match action {
        Action::Allow | Action::Warn => 0,
        Action::Approve => NEEDS_APPROVAL,
        Action::Deny => DENIED,
    })
}

impl From<Appraisal> for Checked {
    fn from(appraisal: Appraisal) -> Checked {
        let Appraisal { ruling: Ruling { decision, origin }, findings, backend, .. } = appraisal;
        Checked {
            decision: Decision::from(&decision),
            origin: Origin { place: origin.place.to_string(), line: origin.line },
            backend: backend.map(belljar_core::request::BackendName::name),
            findings: findings.iter().map(Finding::from).collect(),
        }
    }
}

/// What the policy says, as `policy check` and `run --explain` tell it.
pub(crate) fn described(appraisal: &Appraisal) -> String {
    let Appraisal { ruling: Ruling { decision, origin }, findings, .. } = appraisal;
    let verdict = match decision.action {
        Action::Allow => "allowed",
        Action::Warn => "allowed, with a warning",
        Action::Approve => "needs an approval",
        Action::Deny => "denied",
    };
    let mut text = format!("{verdict}: {}\n", decision.reason);
    text += &format!("  rule:    {}\n  written: {origin}\n", decision.rule);
    for finding in findings {
        let (line, severity) = (finding.start.line, finding.severity);
        text += &format!("  line {line}: {severity} {}: {}\n", finding.rule, finding.message);
    }
    crate::output::inert(&text)
}
