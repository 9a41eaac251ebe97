//! What is where. The guard stands before all of it, the routers of other protocols included.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Router, middleware};
use belljar_engine::WayIn;
use belljar_wire::{Code, Problem};

use super::problem::with_status;
use super::{App, Refused, access_log, approvals, audit, console, docs, files, guard, host, runs, scan};
use crate::caller::Caller;

pub(crate) fn router(app: &App) -> Router {
    let contract = Router::new()
        .route("/v1/runs", post(runs::create).get(runs::list))
        .route("/v1/runs/{id}", get(runs::find))
        .route("/v1/runs/{id}/events", get(runs::follow))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/scan", post(scan::create))
        .route("/v1/files", put(files::upload).get(files::list))
        .route("/v1/files/{id}", get(files::find).delete(files::delete))
        .route("/v1/languages", get(host::languages))
        .route("/v1/backends", get(host::backends))
        .route("/v1/pool", get(host::pool))
        .route("/v1/audit", get(audit::list))
        .route("/v1/audit/verify", get(audit::verify))
        .route("/v1/audit/{id}", get(audit::find))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::find))
        .route("/v1/approvals/{id}/approve", post(approvals::approve))
        .route("/v1/approvals/{id}/deny", post(approvals::deny))
        .route("/v1/approvals/{id}/revoke", post(approvals::revoke))
        .route("/healthz", get(host::health))
        .route("/readyz", get(host::readiness))
        .route("/metrics", get(host::metrics))
        .with_state(app.clone());
    contract
        .merge(docs::router())
        .merge(console::router(app))
        .merge(mark(crate::mcp::router(app), WayIn::Mcp))
        .merge(crate::compat::router(app))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_way)
        .layer(middleware::from_fn_with_state(app.clone(), guard::identify))
        .layer(middleware::from_fn_with_state(app.clone(), access_log::record))
}

/// Says of every request through this router that it came in here. The guard has identified the caller before.
pub(crate) fn mark(router: Router, surface: WayIn) -> Router {
    router.layer(middleware::map_request(move |mut request: Request| async move {
        if let Some(caller) = request.extensions_mut().remove::<Caller>() {
            request.extensions_mut().insert(caller.through(surface));
        }
        request
    }))
}

async fn nothing_here() -> Refused {
    Refused(Problem::new(Code::NotFound, "there is nothing at this path", "GET /docs lists the paths"))
}

async fn not_that_way() -> Response {
    let hint = "the Allow header lists the methods that this path accepts";
    let problem = Problem::new(Code::InvalidRequest, "this path does not accept that method", hint);
    with_status(StatusCode::METHOD_NOT_ALLOWED, &problem)
}
