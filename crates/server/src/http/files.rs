//! Files for later runs: uploaded, listed, looked up, deleted.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_wire::{Upload, UploadList};
use bytes::Bytes;

use super::answer::elsewhere;
use super::body::{self, Received};
use super::query::Query;
use super::runs::{REPLAYED, idempotency_key};
use super::{App, Refused, describe, page};
use crate::caller::Caller;
use crate::uploads::Stored;

/// Upload a file
///
/// Keeps a file for later runs of the same caller, which get it by its `id`: `{"path": …, "upload": id}` in their `files`.
/// The body is the content, byte for byte, whatever its `Content-Type`. Files are kept in memory, for a limited time (an
/// hour by default), and for less if the server runs out of room for them.
#[describe::path(
    put, path = "/v1/files", tag = "files", operation_id = "uploadFile",
    params(
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$",
            description = "Makes it safe to send the request again: a second request with the same key and the same content gets \
                           the file of the first, while that is kept. The same key with another content is a conflict."),
    ),
    request_body(content = Option<String>, content_type = "application/octet-stream", description = "The content of the file"),
    responses(
        (status = 200, description = "An earlier request with the same key has uploaded the file", body = Upload,
            headers(("Idempotency-Replayed" = String, description = "`true`"))),
        (status = 201, description = "The file is kept", body = Upload,
            headers(("Location" = String, description = "Where it is described, and can be deleted"))),
        (status = 400, description = "The request is not valid", body = belljar_wire::Problem),
        (status = 409, description = "The Idempotency-Key was used for another content", body = belljar_wire::Problem),
        (status = 413, description = "The file is too large", body = belljar_wire::Problem),
        (status = 429, description = "The caller has no room left for files, or the server no memory; `Retry-After` says when to try again", body = belljar_wire::Problem,
            headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 500, description = "Belljar failed", body = belljar_wire::Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn upload(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refused> {
    let app = app.of(&caller);
    let (head, body) = request.into_parts();
    Query::of(&head.uri).none()?;
    let key = idempotency_key(&head.headers)?;
    let Received { bytes, share } = body::receive_file(&app, body, app.config.largest_upload()).await?;
    let uploads = app.runs.uploads().clone();
    // The buffer that was read into is larger than what was read. Copying and hashing take their time.
    let keep = move || uploads.put(&caller, key.as_ref(), Bytes::copy_from_slice(&bytes));
    let stored = elsewhere(share.bytes(), keep).await?;
    drop(share);
    Ok(match stored? {
        Stored::New(upload) => {
            let location = [(header::LOCATION, format!("/v1/files/{}", upload.described().id))];
            (StatusCode::CREATED, location, Json(upload.described())).into_response()
        }
        Stored::Known(upload) => {
            let replayed = [(REPLAYED, HeaderValue::from_static("true"))];
            (StatusCode::OK, replayed, Json(upload.described())).into_response()
        }
    })
}

/// List uploaded files
///
/// The files that the caller has uploaded and that are still kept, oldest first.
#[describe::path(
    get, path = "/v1/files", tag = "files", operation_id = "listFiles",
    responses(
        (status = 200, description = "The files", body = UploadList),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = belljar_wire::Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<UploadList>, Refused> {
    Query::of(&uri).none()?;
    let files = app.runs.uploads().list(&caller).iter().map(|upload| upload.described()).collect();
    Ok(Json(UploadList { files }))
}

/// Describe an uploaded file
#[describe::path(
    get, path = "/v1/files/{id}", tag = "files", operation_id = "getFile",
    params(("id" = String, Path, description = "The identifier of the file")),
    responses(
        (status = 200, description = "The file is kept", body = Upload),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = belljar_wire::Problem),
        (status = 404, description = "The caller has no such file, or it is no longer kept", body = belljar_wire::Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn find(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Upload>, Refused> {
    Query::of(&uri).none()?;
    Ok(Json(app.runs.uploads().find(&caller, &page::identifier(id))?.described()))
}

/// Delete an uploaded file
///
/// Runs that have it already are not affected.
#[describe::path(
    delete, path = "/v1/files/{id}", tag = "files", operation_id = "deleteFile",
    params(("id" = String, Path, description = "The identifier of the file")),
    responses(
        (status = 204, description = "The file is gone"),
        (status = 400, description = "There is a parameter, which this path does not have; `field` names it", body = belljar_wire::Problem),
        (status = 404, description = "The caller has no such file, or it is no longer kept", body = belljar_wire::Problem),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub(super) async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<StatusCode, Refused> {
    Query::of(&uri).none()?;
    app.runs.uploads().remove(&caller, &page::identifier(id))?;
    Ok(StatusCode::NO_CONTENT)
}
