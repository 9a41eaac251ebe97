//! `belljar audit`: reads and checks the ledger of this host, or of a server. What is in it may come from anybody.

pub(crate) mod configured;
mod description;
mod elsewhere;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use belljar_ledger::key::PublicKey;
use belljar_ledger::{Key, LedgerError, Query, Reader};
use belljar_wire::{
    AUDIT_STATUSES, AuditRecord, AuditSummary, AuditVerdict, Code, Problem, parse_moment, to_json,
};
use clap::{Args, Subcommand, ValueHint};

use self::configured::unusable;
use self::description::described;
use crate::args::Choices;
use crate::output::inert;
use crate::problem::{self, say};
use crate::remote::{Remote, ServerArgs};
use crate::settings::{Environment, Settings};
use crate::table::aligned;

/// How often `--follow` looks for new records.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How many records are read at once.
const AT_ONCE: usize = 200;
/// How many characters of the code a line shows.
const CODE_SHOWN: usize = 48;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    command: Option<AuditCommand>,

    #[command(flatten)]
    tail: TailArgs,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Show the newest records, and with --follow those that come
    Tail(TailArgs),
    /// Find records by their words, their caller, their time
    Search(SearchArgs),
    /// Show everything about one attempt
    Show(ShowArgs),
    /// Print all records as JSON, one on each line, the oldest first
    Export(ExportArgs),
    /// Check that nothing was changed, removed or inserted
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct TailArgs {
    /// Number of records
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    lines: usize,

    /// Keep on showing records as they come
    #[arg(short, long)]
    follow: bool,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct SearchArgs {
    /// Words in the code, the output or the error; the beginning of a word is enough
    words: Vec<String>,

    /// Only this language
    #[arg(short, long, value_name = "LANGUAGE")]
    language: Option<String>,

    /// Only attempts that ended like this
    #[arg(long, value_name = "STATUS", value_parser = AUDIT_STATUSES)]
    status: Option<String>,

    /// Only attempts of this caller
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,

    /// Only attempts from this time on: 2026-11-17, 2026-11-17T10:00:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Only attempts before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Number of records
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: usize,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Identifier of the run, or number of the record
    id: String,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// Only records after this one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Public key to check the signatures with [default: that of ledger.key]
    #[arg(long, value_name = "HEX")]
    key: Option<String>,

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

impl AuditArgs {
    fn common(&self) -> &Common {
        match &self.command {
            None => &self.tail.common,
            Some(AuditCommand::Tail(args)) => &args.common,
            Some(AuditCommand::Search(args)) => &args.common,
            Some(AuditCommand::Show(args)) => &args.common,
            Some(AuditCommand::Export(args)) => &args.common,
            Some(AuditCommand::Verify(args)) => &args.common,
        }
    }
}

pub(crate) fn run(args: &AuditArgs, environment: Environment<'_>) -> ExitCode {
    match answer(args, environment) {
        Ok(code) => code,
        Err(problem) => {
            problem::report(&problem, args.common().json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn answer(args: &AuditArgs, environment: Environment<'_>) -> Result<ExitCode, Problem> {
    let Common { json, config, server } = args.common();
    if let Some(remote) = Remote::chosen(server, environment)? {
        return elsewhere::answer(args, &remote);
    }
    let settings = Settings::gather(&Choices::default(), config.as_deref(), environment)?;
    let dir = settings.host.state_dir.unwrap_or_default();
    let mut reader = Reader::open(&dir).map_err(|error| unreadable(&error))?;
    match &args.command {
        None => tail(&mut reader, &args.tail),
        Some(AuditCommand::Tail(args)) => tail(&mut reader, args),
        Some(AuditCommand::Search(args)) => search(&mut reader, args),
        Some(AuditCommand::Show(args)) => show(&mut reader, &args.id, *json),
        Some(AuditCommand::Export(args)) => export(&mut reader, args.after),
        Some(AuditCommand::Verify(args)) => {
            let key = match &args.key {
                Some(text) => PublicKey::parse(text).ok_or_else(|| no_key(text))?,
                None => Key::find(&dir).map_err(|error| unreadable(&error))?.public(),
            };
            verify(&mut reader, &key, *json)
        }
    }
}

fn tail(reader: &mut Reader, args: &TailArgs) -> Result<ExitCode, Problem> {
    let mut last = reader.last().map_err(|error| unreadable(&error))?;
    let mut records = reader.search(&Query::default(), args.lines).map_err(|error| unreadable(&error))?;
    records.reverse();
    print_summaries(&records, args.common.json);
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let new = reader.after(last, AT_ONCE).map_err(|error| unreadable(&error))?;
        match new.last() {
            Some(newest) => last = newest.seq,
            None => std::thread::sleep(LOOK_EVERY),
        }
        let shown = if args.common.json {
            new.iter().map(line_of_json).collect()
        } else {
            new.iter().map(|record| cells(&summary_of(record)).join("  ") + "\n").collect::<String>()
        };
        if !shown.is_empty()
            && io::stdout().write_all(shown.as_bytes()).and_then(|()| io::stdout().flush()).is_err()
        {
            // Nobody reads any more.
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn search(reader: &mut Reader, args: &SearchArgs) -> Result<ExitCode, Problem> {
    let now = SystemTime::now();
    let time = |option: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => parse_moment(text, now).map(Some).ok_or_else(|| no_time(option, text)),
    };
    let language = args.language.as_deref().map(|text| {
        belljar_core::language::Language::parse(text)
            .map_or_else(|_| text.to_owned(), |language| language.name.to_owned())
    });
    let query = Query {
        language,
        status: args.status.clone(),
        caller: args.caller.clone(),
        from: time("--from", &args.from)?,
        to: time("--to", &args.to)?,
        words: (!args.words.is_empty()).then(|| args.words.join(" ")),
        before: None,
    };
    // One more than is shown, to know whether there are more.
    let records = reader.search(&query, args.limit.saturating_add(1)).map_err(|error| unreadable(&error))?;
    print_found(&records, args);
    Ok(ExitCode::SUCCESS)
}

/// The records of a search, and that there are more of them.
fn print_found(records: &[AuditSummary], args: &SearchArgs) {
    let shown = &records[..records.len().min(args.limit)];
    print_summaries(shown, args.common.json);
    if shown.len() < records.len() {
        problem::note(&format!(
            "these are the newest {}; there are more: --limit shows more of them",
            args.limit
        ));
    }
}

fn show(reader: &mut Reader, id: &str, json: bool) -> Result<ExitCode, Problem> {
    let record = reader.find(id).map_err(|error| unreadable(&error))?.ok_or_else(|| {
        let message = format!("the ledger has no record '{}'", id.escape_debug());
        Problem::new(
            Code::NotFound,
            message,
            "`belljar audit search` finds records; old ones may have been pruned",
        )
    })?;
    say(&if json { to_json(&record) } else { described(&record) });
    Ok(ExitCode::SUCCESS)
}

fn export(reader: &mut Reader, after: u64) -> Result<ExitCode, Problem> {
    let (mut last, mut out) = (after, io::stdout().lock());
    loop {
        let records = reader.after(last, AT_ONCE).map_err(|error| unreadable(&error))?;
        let Some(newest) = records.last() else { return Ok(ExitCode::SUCCESS) };
        last = newest.seq;
        let lines: String = records.iter().map(line_of_json).collect();
        if out.write_all(lines.as_bytes()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn verify(reader: &mut Reader, key: &PublicKey, json: bool) -> Result<ExitCode, Problem> {
    let verdict = reader.verify(key).map_err(|error| unreadable(&error))?;
    Ok(print_verdict(&verdict, json))
}

fn print_verdict(verdict: &AuditVerdict, json: bool) -> ExitCode {
    say(&if json { to_json(verdict) } else { in_words(verdict) });
    if verdict.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn in_words(verdict: &AuditVerdict) -> String {
    let AuditVerdict { records, pruned_through, public_key, .. } = verdict;
    let pruned = match pruned_through {
        0 => String::new(),
        through => format!("records through {through} were pruned\n"),
    };
    match (&verdict.flaw, verdict.last, &verdict.hash) {
        (Some(flaw), ..) => format!("{pruned}the ledger is NOT whole: {}\n", inert(&flaw.message)),
        (None, Some(last), Some(hash)) => {
            format!(
                "{pruned}the ledger is whole: {records} records, the last is {last}\nhash {hash}\nkey  {public_key}\n"
            )
        }
        (None, ..) => format!("{pruned}the ledger is whole: it has no records\nkey  {public_key}\n"),
    }
}

/// None of the types has a `Serialize` that can fail.
fn line_of_json(record: &AuditRecord) -> String {
    serde_json::to_string(record).unwrap_or_default() + "\n"
}

fn print_summaries(records: &[AuditSummary], json: bool) {
    if json {
        let lines = records.iter().map(|record| serde_json::to_string(record).unwrap_or_default() + "\n");
        say(&lines.collect::<String>());
    } else {
        let heading = ["SEQ", "TIME", "STATUS", "EXIT", "CALLER", "VIA", "LANGUAGE", "ID", "CODE"];
        say(&aligned(heading, records.iter().map(cells)));
    }
}

fn summary_of(record: &AuditRecord) -> AuditSummary {
    let AuditRecord { seq, id, at, caller, surface, peer, language, code, backend, .. } = record.clone();
    let AuditRecord { decision, status, exit_code, error, .. } = record.clone();
    AuditSummary {
        seq,
        id,
        at,
        caller,
        surface,
        peer,
        language,
        code,
        backend,
        decision: decision.map(|decision| decision.action),
        status,
        exit_code,
        error,
    }
}

fn cells(record: &AuditSummary) -> [String; 9] {
    let code = record.error.as_deref().or(record.code.as_deref()).unwrap_or_default();
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    [
        record.seq.to_string(),
        record.at.clone(),
        record.status.clone(),
        record.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
        record.caller.clone(),
        record.surface.clone(),
        record.language.clone(),
        record.id.clone(),
        code.chars().take(CODE_SHOWN).collect(),
    ]
    .map(|cell| on_one_line(&cell))
}

/// Without line breaks, which could pass for another record.
pub(crate) fn on_one_line(text: &str) -> String {
    inert(&text.replace(['\n', '\t', '\r'], " "))
}

fn unreadable(error: &LedgerError) -> Problem {
    unusable(error)
}

fn no_time(option: &str, text: &str) -> Problem {
    let message = format!("{option}: '{}' is not a time", text.escape_debug());
    Problem::new(
        Code::InvalidRequest,
        message,
        "write 2026-11-17, 2026-11-17T10:00:00Z, or 2h for two hours ago",
    )
}

fn no_key(text: &str) -> Problem {
    let message = format!("'{}' is not a public key", text.escape_debug());
    Problem::new(
        Code::InvalidRequest,
        message,
        "write the 64 hexadecimal digits that `belljar audit verify` shows",
    )
}
