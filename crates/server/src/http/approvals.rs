//! Runs that wait for a person: listed, shown, decided.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_ledger::approvals::{ApprovalError, Approvals, Found, Ruling};
use belljar_wire::{Approval, ApprovalList, ApprovalRuling, Code, Problem};
use tokio::sync::Semaphore;

use super::body;
use super::query::Query;
use super::{App, Refused, answer, describe, page};
use crate::caller::Caller;
use crate::runs::PATIENCE;

/// Questions at a time: each takes a thread.
pub(super) const AT_A_TIME: usize = 4;
/// What an approval can take, at most, to render it: the store keeps less than a megabyte, and JSON may escape it.
const APPROVAL_BYTES: usize = 4 << 20;

/// List approvals
///
/// The runs that need a person's approval, newest first. With keys, a key with `approve = true` sees those of all callers,
/// and any other key sees its own.
#[describe::path(
    get, path = "/v1/approvals", tag = "approvals", operation_id = "listApprovals",
    params(
        ("status" = Option<belljar_wire::ApprovalStatus>, Query, description = "Only approvals with this status"),
        ("remembered" = Option<bool>, Query, description = "Whether to return only those whose decision holds for further requests"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 200, description = "How many approvals to return at most", example = 50),
        ("cursor" = Option<String>, Query, pattern = "^apr_[0-7][0-9A-HJKMNP-TV-Z]{25}$", description = "The `next_cursor` of the page before, to get the next one"),
    ),
    responses(
        (status = 200, description = "A page of approvals", body = ApprovalList),
        (status = 400, description = "A parameter is not valid; `field` names it", body = Problem),
        (status = 500, description = "The approvals cannot be read", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<ApprovalList>, Refused> {
    let (mut wanted, limit) = Query::of(&uri).approvals()?;
    wanted.caller = (!caller.approves()).then(|| caller.name().to_owned());
    let Some(store) = app.config.approvals.clone() else {
        // Nobody can be asked here, so nothing waits.
        return Ok(Json(ApprovalList { approvals: Vec::new(), next_cursor: None }));
    };
    let listing = move |store: &Approvals| store.list(&wanted, page::asked_for(limit), SystemTime::now());
    let found = ask(&app, store, listing).await?;
    let (approvals, next_cursor) = page::cut(found, limit, |approval| approval.id.clone());
    Ok(Json(ApprovalList { approvals, next_cursor }))
}

/// Show an approval
///
/// Everything that a decision about the run covers: the code with what the scan found in it, files, limits, network.
#[describe::path(
    get, path = "/v1/approvals/{id}", tag = "approvals", operation_id = "getApproval",
    params(("id" = String, Path, description = "The identifier of the approval")),
    responses(
        (status = 200, description = "The approval", body = Approval),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = Problem),
        (status = 404, description = "There is no such approval, or it is another caller's", body = Problem),
        (status = 500, description = "The approvals cannot be read", body = Problem),
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
    let (app, id) = (app.of(&caller), page::identifier(id));
    let approval = look_up(&app, &caller, id).await?;
    Ok(answer::counted(&app.memory, APPROVAL_BYTES, PATIENCE, move || approval).await?)
}

/// Approve a run
///
/// Lets the run begin. Of two decisions, the first holds. With keys, only a key with `approve = true` may decide, and not
/// about its own runs, unless the server allows that (`allow-own` in `[approvals]`).
#[describe::path(
    post, path = "/v1/approvals/{id}/approve", tag = "approvals", operation_id = "approveRun",
    params(("id" = String, Path, description = "The identifier of the approval")),
    request_body(content = ApprovalRuling, content_type = "application/json", description = "What goes with the decision; it may be left out"),
    responses(
        (status = 200, description = "The run is approved", body = Approval),
        (status = 400, description = "The request is not valid; `field` says where", body = Problem),
        (status = 403, description = "The caller may not decide, or not about this run", body = Problem),
        (status = 404, description = "There is no such approval", body = Problem),
        (status = 409, description = "Somebody has decided already, or it is too late", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The Content-Type is not application/json", body = Problem),
        (status = 500, description = "The decision cannot be written", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn approve(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Response> {
    decide(&app, &caller, page::identifier(id), request, true).await
}

/// Deny a run
///
/// The run does not begin; its result has the status `denied`, with the reason. Who may decide is as for approving.
#[describe::path(
    post, path = "/v1/approvals/{id}/deny", tag = "approvals", operation_id = "denyRun",
    params(("id" = String, Path, description = "The identifier of the approval")),
    request_body(content = ApprovalRuling, content_type = "application/json", description = "What goes with the decision; it may be left out"),
    responses(
        (status = 200, description = "The run is denied", body = Approval),
        (status = 400, description = "The request is not valid; `field` says where", body = Problem),
        (status = 403, description = "The caller may not decide, or not about this run", body = Problem),
        (status = 404, description = "There is no such approval", body = Problem),
        (status = 409, description = "Somebody has decided already, or it is too late", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The Content-Type is not application/json", body = Problem),
        (status = 500, description = "The decision cannot be written", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn deny(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Response> {
    decide(&app, &caller, page::identifier(id), request, false).await
}

/// Revoke a decision
///
/// Takes back a decision that is remembered, or that no request has been told yet: the same run has to be asked for again.
/// A run that has begun goes on. Who may revoke is who may approve, also about their own runs.
#[describe::path(
    post, path = "/v1/approvals/{id}/revoke", tag = "approvals", operation_id = "revokeApproval",
    params(("id" = String, Path, description = "The identifier of the approval")),
    request_body(content = ApprovalRuling, content_type = "application/json", description = "`reason` alone; it may be left out"),
    responses(
        (status = 200, description = "The decision holds no more", body = Approval),
        (status = 400, description = "The request is not valid; `field` says where", body = Problem),
        (status = 403, description = "The caller may not decide", body = Problem),
        (status = 404, description = "There is no such approval", body = Problem),
        (status = 409, description = "There is no decision that holds for further requests", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The Content-Type is not application/json", body = Problem),
        (status = 500, description = "The decision cannot be written", body = Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn revoke(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Response> {
    let by = caller.name().to_owned();
    settle(&app, &caller, page::identifier(id), request, move |store, id, said| {
        if said.remember_s.is_some() {
            return Err(unremembered());
        }
        Ok(store.revoke(id, &by, said.said().as_deref(), SystemTime::now())?)
    })
    .await
}

async fn decide(
    app: &App,
    caller: &Caller,
    id: String,
    request: Request,
    approve: bool,
) -> Result<Response, Response> {
    let by = caller.name().to_owned();
    settle(app, caller, id, request, move |store, id, said| {
        let ruling = Ruling { approve, by, reason: said.said(), remember: said.remember() };
        Ok(store.decide(id, &ruling, SystemTime::now())?)
    })
    .await
}

/// Changes an approval, for a caller who may, and answers with what it is then.
async fn settle(
    app: &App,
    caller: &Caller,
    id: String,
    request: Request,
    change: impl FnOnce(&Approvals, &str, &ApprovalRuling) -> Result<Found, Problem> + Send + 'static,
) -> Result<Response, Response> {
    let app = app.of(caller);
    let (head, body) = request.into_parts();
    let checked = Query::of(&head.uri).none().and_then(|()| caller.may_approve());
    checked.map_err(|problem| Refused(problem).into_response())?;
    let received = body::read_if_any(&app, &head.headers, body).await?;
    let decided = async {
        let said = ApprovalRuling::parse(&received.bytes)?;
        let store = app.config.approvals.clone().ok_or_else(|| no_such_approval(&id))?;
        let decided = ask(&app, store, move |store| change(store, &id, &said)).await?;
        answer::counted(&app.memory, APPROVAL_BYTES, PATIENCE, move || decided.approval).await
    };
    decided.await.map_err(|problem| Refused(problem).into_response())
}

/// An approval that the caller may see. One that it may not see does not exist for it.
async fn look_up(app: &App, caller: &Caller, id: String) -> Result<Approval, Problem> {
    let store = app.config.approvals.clone().ok_or_else(|| no_such_approval(&id))?;
    let wanted = id.clone();
    let found = ask(app, store, move |store| store.find(&wanted, SystemTime::now())).await?;
    let seen = found.filter(|found| caller.approves() || found.approval.caller == caller.name());
    seen.map(|found| found.approval).ok_or_else(|| no_such_approval(&id))
}

/// Asks the store something, on a thread that may block.
async fn ask<T: Send + 'static, E: Into<Problem> + Send + 'static>(
    app: &App,
    store: Arc<Approvals>,
    question: impl FnOnce(&Approvals) -> Result<T, E> + Send + 'static,
) -> Result<T, Problem> {
    let places: Arc<Semaphore> = app.approvals.clone();
    // The semaphore is never closed.
    let place = places.acquire_owned().await;
    let asking = tokio::task::spawn_blocking(move || {
        let _place = place;
        question(&store)
    });
    match asking.await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => {
            let message = "the question about approvals was lost";
            Err(Problem::new(Code::Internal, message, "see the server's log"))
        }
    }
}

fn unremembered() -> Problem {
    let mut problem =
        Problem::new(Code::InvalidRequest, "a decision is revoked for good", "leave out remember_s");
    problem.error.field = Some("remember_s".to_owned());
    problem
}

fn no_such_approval(id: &str) -> Problem {
    ApprovalError::NoSuch { id: id.to_owned() }.into()
}
