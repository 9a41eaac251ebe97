//! The ledger of a server, asked over HTTP.

use std::process::ExitCode;
use std::time::SystemTime;

use belljar_client::AuditQuery;
use belljar_wire::{AuditSummary, Code, Problem, parse_moment, to_json};

use super::{
    AuditArgs, AuditCommand, SearchArgs, TailArgs, described, no_time, print_found, print_summaries,
    print_verdict,
};
use crate::problem::say;
use crate::remote::Remote;

/// The most that a server lists at once.
const PAGE: usize = 200;

pub(super) fn answer(args: &AuditArgs, remote: &Remote) -> Result<ExitCode, Problem> {
    let json = args.common().json;
    match &args.command {
        None => tail(remote, &args.tail),
        Some(AuditCommand::Tail(args)) => tail(remote, args),
        Some(AuditCommand::Search(args)) => search(remote, args),
        Some(AuditCommand::Show(args)) => {
            let record = remote.ask(async |client| client.audit_record(&args.id).await)?;
            say(&if json { to_json(&record) } else { described(&record) });
            Ok(ExitCode::SUCCESS)
        }
        Some(AuditCommand::Export(_)) => Err(only_here("audit export")),
        Some(AuditCommand::Verify(args)) if args.key.is_some() => Err(only_here("audit verify --key")),
        Some(AuditCommand::Verify(_)) => {
            let verdict = remote.ask(async |client| client.verify_audit().await)?;
            Ok(print_verdict(&verdict, json))
        }
    }
}

fn tail(remote: &Remote, args: &TailArgs) -> Result<ExitCode, Problem> {
    if args.follow {
        return Err(only_here("audit tail --follow"));
    }
    let mut records = all(remote, AuditQuery::default(), args.lines)?;
    records.reverse();
    print_summaries(&records, args.common.json);
    Ok(ExitCode::SUCCESS)
}

fn search(remote: &Remote, args: &SearchArgs) -> Result<ExitCode, Problem> {
    for (option, text) in [("--from", &args.from), ("--to", &args.to)] {
        if let Some(text) = text.as_ref().filter(|text| parse_moment(text, SystemTime::now()).is_none()) {
            return Err(no_time(option, text));
        }
    }
    let query = AuditQuery {
        language: args.language.clone(),
        status: args.status.clone(),
        caller: args.caller.clone(),
        from: args.from.clone(),
        to: args.to.clone(),
        words: (!args.words.is_empty()).then(|| args.words.join(" ")),
        ..AuditQuery::default()
    };
    let records = all(remote, query, args.limit.saturating_add(1))?;
    print_found(&records, args);
    Ok(ExitCode::SUCCESS)
}

/// So many records, newest first, page by page.
fn all(remote: &Remote, mut query: AuditQuery, most: usize) -> Result<Vec<AuditSummary>, Problem> {
    let mut records: Vec<AuditSummary> = Vec::new();
    while records.len() < most {
        query.limit = Some((most - records.len()).min(PAGE));
        let page = remote.ask(async |client| client.audit(&query).await)?;
        records.extend(page.records);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    Ok(records)
}

fn only_here(command: &str) -> Problem {
    let message = format!("`belljar {command}` reads the ledger's own file, and a server does not give that");
    Problem::new(Code::InvalidRequest, message, "run it on the server's host, without --url and BELLJAR_URL")
}
