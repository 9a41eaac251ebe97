//! Protocols that clients already speak, as one more way to [`Runs`](crate::Runs).

use axum::Router;

use crate::http::App;

/// What is mounted for them; the guard of [`http`](crate::http) stands before all of it.
pub(crate) fn router(_: &App) -> Router {
    Router::new()
}
