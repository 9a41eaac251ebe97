//! What is where. The guard stands before all of it, the routers of other protocols included.

use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Router, middleware};
use belljar_wire::{Code, Problem};

use super::problem::with_status;
use super::{App, Refused, access_log, docs, files, guard, host, runs};

pub(crate) fn router(app: &App) -> Router {
    let contract = Router::new()
        .route("/v1/runs", post(runs::create).get(runs::list))
        .route("/v1/runs/{id}", get(runs::find))
        .route("/v1/runs/{id}/events", get(runs::follow))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/files", put(files::upload).get(files::list))
        .route("/v1/files/{id}", get(files::find).delete(files::delete))
        .route("/v1/languages", get(host::languages))
        .route("/v1/backends", get(host::backends))
        .route("/v1/pool", get(host::pool))
        .route("/healthz", get(host::health))
        .route("/readyz", get(host::readiness))
        .route("/metrics", get(host::metrics))
        .with_state(app.clone());
    contract
        .merge(docs::router())
        .merge(crate::mcp::router(app))
        .merge(crate::compat::router(app))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_way)
        .layer(middleware::from_fn_with_state(app.clone(), guard::identify))
        .layer(middleware::from_fn_with_state(app.clone(), access_log::record))
}

async fn nothing_here() -> Refused {
    Refused(Problem::new(Code::NotFound, "there is nothing at this path", "GET /docs lists the paths"))
}

async fn not_that_way() -> Response {
    let hint = "the Allow header lists the methods that this path accepts";
    let problem = Problem::new(Code::InvalidRequest, "this path does not accept that method", hint);
    with_status(StatusCode::METHOD_NOT_ALLOWED, &problem)
}
