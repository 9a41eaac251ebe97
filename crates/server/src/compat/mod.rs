//! Protocols that clients already speak, as one more way to [`Runs`](crate::Runs): [`piston`] is version 2 of Piston's
//! API, [`fusion`] is that of SandboxFusion.
//!
//! Each translates a request into ours, hands it over, and translates what it came to. Both have words of their own for a field
//! that is not what it should be, so that `shallow` reads JSON without judging it.

mod encoding;
mod ended;
pub(crate) mod fusion;
pub(crate) mod piston;
mod shallow;
mod stdin;
mod time;

use axum::Router;
use belljar_engine::WayIn;

use crate::http::{App, mark};

/// What is mounted for them; the guard of [`http`](crate::http) stands before all of it.
pub(crate) fn router(app: &App) -> Router {
    let (piston, fusion) = (piston::router(app), fusion::router(app));
    mark(piston, WayIn::Piston).merge(mark(fusion, WayIn::SandboxFusion))
}
