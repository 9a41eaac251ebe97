//! Packages. The languages are those that the host's administrator installed: they are listed, and cannot be installed or
//! removed here.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;

use super::PistonRefusal;
use super::runtimes::{known, name_of};
use super::version::Version;
use crate::caller::Caller;
use crate::http::App;

/// A package as Piston tells it.
#[derive(Debug, Serialize)]
pub(super) struct Package {
    language: &'static str,
    language_version: String,
    installed: bool,
}

/// `GET /api/v2/packages`: every language that is known here. One that is not installed has no version yet.
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<Package>>, PistonRefusal> {
    let package = |(language, version): (_, Option<Version>)| Package {
        language: name_of(language),
        language_version: version.unwrap_or_default().to_string(),
        installed: version.is_some(),
    };
    Ok(Json(known(&app, &caller).await?.into_iter().map(package).collect()))
}

/// `POST /api/v2/packages`.
pub(super) async fn install() -> PistonRefusal {
    the_hosts("install what is missing there; `belljar languages` says how")
}

/// `DELETE /api/v2/packages`.
pub(super) async fn uninstall() -> PistonRefusal {
    the_hosts("uninstall there what should not run")
}

/// Piston has no status for it; this is what HTTP has for a server that does not do such a thing.
fn the_hosts(hint: &str) -> PistonRefusal {
    let message = format!("packages are those of the server's host: {hint}");
    PistonRefusal { status: StatusCode::NOT_IMPLEMENTED, message, retry_after: None }
}
