//! The audit log, for callers that may read it.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use belljar_ledger::{LedgerError, Reader};
use belljar_wire::{AuditList, AuditRecord, AuditVerdict, Code, Problem};
use tokio::sync::Semaphore;

use super::query::Query;
use super::{App, Refused, answer, describe, page};
use crate::caller::Caller;
use crate::config::Audit;
use crate::runs::PATIENCE;

/// Questions to the audit log at a time: each takes a thread, and a verification reads all of it.
pub(super) const AT_A_TIME: usize = 2;
/// What a record can take, at most, to render it. The ledger keeps less than that of every part.
const RECORD_BYTES: usize = 4 << 20;

/// Search the audit log
///
/// The attempts to run something that match all parameters, newest first: also those that were refused. With keys, only a
/// key with `audit = true` may ask.
#[describe::path(
    get, path = "/v1/audit", tag = "audit", operation_id = "listAudit",
    params(
        ("language" = Option<String>, Query, description = "Only attempts in this language", example = "python"),
        ("status" = inline(Option<belljar_wire::AuditStatusName>), Query, description = "Only attempts that ended like this", example = "exited"),
        ("caller" = Option<String>, Query, description = "Only attempts of this caller", example = "ci"),
        ("from" = Option<String>, Query, description = "Only attempts from this time on: a time in RFC 3339, a date, or how long ago", example = "2h"),
        ("to" = Option<String>, Query, description = "Only attempts before this time", example = "2026-11-17T10:00:00Z"),
        ("q" = Option<String>, Query, description = "Only attempts with all of these words, or words that begin with them, in the code, the output, the error or the rules of findings", example = "import socket"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 200, description = "How many records to return at most", example = 50),
        ("cursor" = Option<String>, Query, pattern = "^[1-9][0-9]{0,17}$", description = "The `next_cursor` of the page before, to get the next one"),
    ),
    responses(
        (status = 200, description = "A page of records", body = AuditList),
        (status = 400, description = "A parameter is not valid; `field` names it", body = Problem),
        (status = 403, description = "The caller may not read the audit log", body = Problem),
        (status = 404, description = "The server keeps no audit log", body = Problem),
        (status = 500, description = "The audit log cannot be read", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<AuditList>, Refused> {
    let (query, limit) = Query::of(&uri).audit(SystemTime::now())?;
    let found = ask(&app, &caller, move |reader, _| reader.search(&query, page::asked_for(limit))).await?;
    let (records, next_cursor) = page::cut(found, limit, |record| record.seq.to_string());
    Ok(Json(AuditList { records, next_cursor }))
}

/// Fetch a record
///
/// Everything that the audit log has about one attempt.
#[describe::path(
    get, path = "/v1/audit/{id}", tag = "audit", operation_id = "getAudit",
    params(("id" = String, Path, description = "The identifier of the run, or the number of the record")),
    responses(
        (status = 200, description = "The record", body = AuditRecord),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = Problem),
        (status = 403, description = "The caller may not read the audit log", body = Problem),
        (status = 404, description = "There is no such record, or the server keeps no audit log", body = Problem),
        (status = 500, description = "The audit log cannot be read", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn find(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Refused> {
    Query::of(&uri).none()?;
    let id = page::identifier(id);
    let wanted = id.clone();
    let record: Option<AuditRecord> = ask(&app, &caller, move |reader, _| reader.find(&wanted)).await?;
    let record = record.ok_or_else(|| no_such_record(&id))?;
    Ok(answer::counted(&app.memory, RECORD_BYTES, PATIENCE, move || record).await?)
}

/// Verify the audit log
///
/// Reads all of the audit log, and says whether anything in it was changed, removed or inserted.
#[describe::path(
    get, path = "/v1/audit/verify", tag = "audit", operation_id = "verifyAudit",
    responses(
        (status = 200, description = "Whether the audit log is as it was written", body = AuditVerdict),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = Problem),
        (status = 403, description = "The caller may not read the audit log", body = Problem),
        (status = 404, description = "The server keeps no audit log", body = Problem),
        (status = 500, description = "The audit log cannot be read", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn verify(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<AuditVerdict>, Refused> {
    Query::of(&uri).none()?;
    Ok(Json(ask(&app, &caller, |reader, audit| reader.verify(&audit.key)).await?))
}

/// Asks the audit log something, on a thread that may block.
async fn ask<T: Send + 'static>(
    app: &App,
    caller: &Caller,
    question: impl FnOnce(&mut Reader, &Audit) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, Problem> {
    caller.may_audit()?;
    let audit = app.config.audit.clone().ok_or_else(no_audit)?;
    let places: Arc<Semaphore> = app.audits.clone();
    // The semaphore is never closed.
    let place = places.acquire_owned().await;
    let asking = tokio::task::spawn_blocking(move || {
        let _place = place;
        let mut reader = Reader::open(&audit.dir)?;
        question(&mut reader, &audit)
    });
    match asking.await {
        Ok(answer) => answer.map_err(|error| unreadable(&error)),
        Err(_) => Err(Problem::new(
            Code::Internal,
            "the question to the audit log was lost",
            "see the server's log",
        )),
    }
}

fn no_audit() -> Problem {
    let hint = "remove enabled = false from [audit], and restart the server";
    Problem::new(Code::NotFound, "this server keeps no audit log", hint)
}

fn no_such_record(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("the audit log has no record '{}'", shown.escape_debug());
    Problem::new(Code::NotFound, message, "check the id; old records may have been pruned")
}

fn unreadable(error: &LedgerError) -> Problem {
    let hint = "`belljar audit verify` on the server's host shows more";
    Problem::new(Code::Internal, error.with_causes(), hint)
}
