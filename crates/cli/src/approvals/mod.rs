//! `belljar approvals`: shows and decides what waits for approval, on this host or on a server. What is shown may come from
//! anybody.

pub(crate) mod configured;
mod elsewhere;
mod highlight;
mod shown;
mod webhook;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use belljar_ledger::approvals::{ApprovalError, Approvals, FILE, Found, Listed, Ruling};
use belljar_wire::{
    Approval, ApprovalList, ApprovalRuling, ApprovalStatus, ApprovalSummary, Code, Problem, to_json,
};
use clap::{Args, Subcommand, ValueHint};

use self::configured::{Configured, nowhere, parse_time};
use crate::args::Choices;
use crate::audit::on_one_line;
use crate::problem::{self, say};
use crate::remote::{Remote, ServerArgs};
use crate::settings::{Environment, Settings};
use crate::table::aligned;

/// How many characters of the code a line shows.
const CODE_SHOWN: usize = 48;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ApprovalsArgs {
    #[command(subcommand)]
    command: Option<ApprovalsCommand>,

    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum ApprovalsCommand {
    /// List the runs that wait for approval, or those of another status
    List(ListArgs),
    /// Show the code of a run with what was found in it, and everything that a decision covers
    Show(ShowArgs),
    /// Let a run begin
    Approve(ApproveArgs),
    /// Refuse a run
    Deny(DenyArgs),
    /// Take back a decision that is remembered, so that the same run has to be asked for again
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only approvals with this status
    #[arg(long, value_name = "STATUS", default_value = "pending",
          value_parser = ["pending", "approved", "denied", "expired", "cancelled", "all"])]
    status: String,

    /// Only decisions that are remembered, with the time until which they hold
    #[arg(long, conflicts_with = "status")]
    remembered: bool,

    /// Number of approvals
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: usize,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Identifier of the approval
    id: String,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ApproveArgs {
    /// Identifier of the approval
    id: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// For how long the same run of the same caller needs no other approval, such as 1h
    #[arg(long, value_name = "TIME")]
    remember: Option<String>,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct DenyArgs {
    /// Identifier of the approval
    id: String,

    /// Why, for whoever asked for the run, and for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// For how long the same run of the same caller is denied without asking, such as 1h
    #[arg(long, value_name = "TIME")]
    remember: Option<String>,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Identifier of the approval
    id: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
    config: Option<PathBuf>,

    #[command(flatten)]
    server: ServerArgs,
}

impl ApprovalsArgs {
    fn common(&self) -> &Common {
        match &self.command {
            None => &self.list.common,
            Some(ApprovalsCommand::List(args)) => &args.common,
            Some(ApprovalsCommand::Show(args)) => &args.common,
            Some(ApprovalsCommand::Approve(args)) => &args.common,
            Some(ApprovalsCommand::Deny(args)) => &args.common,
            Some(ApprovalsCommand::Revoke(args)) => &args.common,
        }
    }
}

pub(crate) fn run(args: &ApprovalsArgs, environment: Environment<'_>) -> ExitCode {
    let json = args.common().json;
    match act(args, environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn act(args: &ApprovalsArgs, environment: Environment<'_>) -> Result<(), Problem> {
    if let Some(remote) = Remote::chosen(&args.common().server, environment)? {
        return elsewhere::act(args, &remote);
    }
    let settings = Settings::gather(&Choices::default(), args.common().config.as_deref(), environment)?;
    let (store, json) = (open(&settings)?, args.common().json);
    match &args.command {
        None => list(store.as_ref(), &args.list),
        Some(ApprovalsCommand::List(args)) => list(store.as_ref(), args),
        Some(ApprovalsCommand::Show(args)) => show(store.as_ref(), &args.id, json),
        Some(ApprovalsCommand::Approve(args)) => {
            let ruling = ruling(true, args.reason.clone(), args.remember.as_deref())?;
            decide(store.as_ref(), &args.id, &ruling, json)
        }
        Some(ApprovalsCommand::Deny(args)) => {
            let ruling = ruling(false, Some(args.reason.clone()), args.remember.as_deref())?;
            decide(store.as_ref(), &args.id, &ruling, json)
        }
        Some(ApprovalsCommand::Revoke(args)) => revoke(store.as_ref(), args),
    }
}

/// The approvals of this host, if anything was ever asked here.
fn open(settings: &Settings) -> Result<Option<Approvals>, Problem> {
    let terms = Configured::of(settings)?.terms;
    let dir = settings.host.state_dir.as_ref().ok_or_else(nowhere)?;
    if !dir.join(FILE).exists() {
        return Ok(None);
    }
    Ok(Some(Approvals::open(dir, terms)?))
}

fn list(store: Option<&Approvals>, args: &ListArgs) -> Result<(), Problem> {
    // A word that is no status is `all`: there are no others.
    let status = ApprovalStatus::by_name(&args.status).filter(|_| !args.remembered);
    let wanted = Listed { status, remembered: args.remembered, ..Listed::default() };
    let listed = store.map(|store| store.list(&wanted, args.limit, SystemTime::now())).transpose()?;
    print_list(listed.unwrap_or_default(), args);
    Ok(())
}

fn print_list(approvals: Vec<ApprovalSummary>, args: &ListArgs) {
    if args.common.json {
        say(&to_json(&ApprovalList { approvals, next_cursor: None }));
    } else if approvals.is_empty() {
        let what = match (args.remembered, args.status.as_str()) {
            (true, _) => "no decision is remembered",
            (false, "pending") => "nothing waits for approval",
            (false, _) => "there are no such approvals",
        };
        say(&format!("{what}\n"));
    } else {
        let until = if args.remembered { "REMEMBERED UNTIL" } else { "EXPIRES" };
        let heading = ["ID", "STATUS", "ASKED", until, "CALLER", "VIA", "LANGUAGE", "WHY", "CODE"];
        say(&aligned(heading, approvals.iter().map(|approval| cells(approval, args.remembered))));
    }
}

fn cells(approval: &ApprovalSummary, remembered: bool) -> [String; 9] {
    let code = approval.code.split_whitespace().collect::<Vec<_>>().join(" ");
    let until = approval.decision.as_ref().filter(|_| remembered);
    let until = until.and_then(|decision| decision.remembered_until.clone());
    [
        approval.id.clone(),
        approval.status.name().to_owned(),
        approval.created_at.clone(),
        until.unwrap_or_else(|| approval.expires_at.clone()),
        approval.caller.clone(),
        approval.surface.clone(),
        approval.language.clone(),
        approval.policy.rule.chars().take(CODE_SHOWN).collect(),
        code.chars().take(CODE_SHOWN).collect(),
    ]
    .map(|cell| on_one_line(&cell))
}

fn show(store: Option<&Approvals>, id: &str, json: bool) -> Result<(), Problem> {
    let found = store.map(|store| store.find(id, SystemTime::now())).transpose()?.flatten();
    print_approval(&found.ok_or_else(|| no_such(id))?, json);
    Ok(())
}

fn print_approval(found: &Found, json: bool) {
    if json {
        say(&to_json(&found.approval));
    } else {
        let _ = anstream::stdout().write_all(shown::described(found).as_bytes());
    }
}

fn memory(text: Option<&str>) -> Result<Option<Duration>, Problem> {
    text.map(|text| parse_time(text).ok_or_else(|| no_time(text))).transpose()
}

fn ruling(approve: bool, reason: Option<String>, remember: Option<&str>) -> Result<Ruling, Problem> {
    let remember = memory(remember)?;
    let said = ApprovalRuling { reason, remember_s: None }.check()?.said();
    Ok(Ruling { approve, by: ourselves(), reason: said, remember: remember.filter(|time| !time.is_zero()) })
}

fn decide(store: Option<&Approvals>, id: &str, ruling: &Ruling, json: bool) -> Result<(), Problem> {
    let store = store.ok_or_else(|| no_such(id))?;
    let Found { approval, .. } = store.decide(id, ruling, SystemTime::now())?;
    print_decision(approval, json);
    Ok(())
}

fn print_decision(approval: Approval, json: bool) {
    if json {
        say(&to_json(&approval));
        return;
    }
    let until = approval.decision.and_then(|decision| decision.remembered_until);
    let until = until.map(|until| format!(", and the same run until {until}")).unwrap_or_default();
    let (word, caller) = (approval.status.name(), on_one_line(&approval.caller));
    say(&format!("{word} the run of {caller}{until}\n"));
}

fn revoke(store: Option<&Approvals>, args: &RevokeArgs) -> Result<(), Problem> {
    let store = store.ok_or_else(|| no_such(&args.id))?;
    let said = ApprovalRuling { reason: args.reason.clone(), remember_s: None }.check()?.said();
    let Found { approval, .. } = store.revoke(&args.id, &ourselves(), said.as_deref(), SystemTime::now())?;
    print_revoked(&approval, args.common.json);
    Ok(())
}

fn print_revoked(approval: &Approval, json: bool) {
    if json {
        return say(&to_json(approval));
    }
    let caller = on_one_line(&approval.caller);
    say(&format!("revoked; the same run of {caller} has to be asked for again\n"));
}

/// As whom `belljar run` runs things.
fn ourselves() -> String {
    format!("uid:{}", rustix::process::getuid().as_raw())
}

fn no_such(id: &str) -> Problem {
    let mut problem = Problem::from(ApprovalError::NoSuch { id: id.to_owned() });
    problem.error.hint = "`belljar approvals` lists what waits; old approvals are removed".to_owned();
    problem
}

fn no_time(text: &str) -> Problem {
    let message = format!("--remember: '{}' is not a time", text.escape_debug());
    Problem::new(Code::InvalidRequest, message, "write a time such as 30m, 1h or 2d")
}
