//! Who asks, before anything else: every request that passes carries its [`Caller`](crate::Caller).

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::App;

pub(super) async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(app.anonymous.clone());
    next.run(request).await
}
