//! What is where. The guard stands before all of it, the routers of other protocols included.

use axum::routing::post;
use axum::{Router, middleware};
use belljar_wire::{Code, Problem};

use super::{App, Refused, guard, runs};

pub(crate) fn router(app: &App) -> Router {
    let contract = Router::new().route("/v1/runs", post(runs::create)).with_state(app.clone());
    contract
        .merge(crate::mcp::router(app))
        .merge(crate::compat::router(app))
        .fallback(nothing_here)
        .layer(middleware::from_fn_with_state(app.clone(), guard::identify))
}

async fn nothing_here() -> Refused {
    Refused(Problem::new(Code::NotFound, "there is nothing at this path", "GET /docs lists what there is"))
}
