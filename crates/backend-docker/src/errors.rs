//! Errors of the daemon, in words: what was observed, and what would help.

use std::io;

use belljar_core::Field;
use belljar_core::backend::BackendError;
use belljar_core::request::BackendName;

use crate::api::{ApiError, ApiVersion, OLDEST};

/// The backend cannot run here.
pub(crate) fn unavailable(reason: String, hint: String) -> BackendError {
    BackendError::Unavailable { backend: BackendName::Docker, reason, hint }
}

/// An API call that failed during this step. A missing daemon, or one with a full disk, makes the backend unavailable.
pub(crate) fn api(step: &'static str) -> impl Fn(ApiError) -> BackendError {
    move |error| match error {
        ApiError::Unreachable { .. } | ApiError::Broken(_) | ApiError::TooLate { .. } => gone(step, &error),
        ApiError::Refused { message, .. } if is_full(&message) => full(step, &message),
        ApiError::Refused { .. } | ApiError::Unreadable(_) => BackendError::Setup {
            step: step.to_owned(),
            hint: "`belljar doctor` shows what the daemon can do".into(),
            source: io::Error::other(printable(&error.to_string())),
        },
    }
}

/// A daemon that was there and no longer answers.
pub(crate) fn gone(step: &str, error: &ApiError) -> BackendError {
    unavailable(
        format!("the Docker daemon went away, and was needed to {step}: {}", printable(&error.to_string())),
        "check that the daemon runs, and read its log: systemctl status docker".into(),
    )
}

/// A runtime that the daemon does not have.
pub(crate) fn unknown_runtime(runtime: &str, known: &[String]) -> BackendError {
    BackendError::Unusable {
        field: Field::Runtime,
        message: format!("the Docker daemon has no runtime '{}'", printable(runtime)),
        hint: format!(
            "it has {}; `runtimes` in its configuration, /etc/docker/daemon.json, adds others",
            printable(&known.join(", "))
        ),
    }
}

/// Whether a daemon reports that its disk is full, in the words of strerror(3): there is no code for it.
pub(crate) fn is_full(message: &str) -> bool {
    message.contains("no space left on device")
}

/// A daemon with a full disk.
pub(crate) fn full(step: &str, message: &str) -> BackendError {
    unavailable(
        format!("the daemon has no disk space left to {step}: {}", printable(message)),
        "free disk space where the daemon keeps its data (docker info -f '{{.DockerRootDir}}'): docker system prune"
            .into(),
    )
}

/// Text from a daemon or a registry, made safe for a terminal and limited in length.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .take(300)
        .collect::<String>()
        .escape_debug()
        .to_string()
        .replace("\\\"", "\"")
        .replace("\\'", "'")
}

/// A step in this process that failed.
pub(crate) fn setup(step: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Setup {
        step: step.to_owned(),
        hint: "`belljar doctor` shows what the daemon can do".into(),
        source,
    }
}

/// Why a daemon cannot be reached.
pub(crate) fn unreachable(error: &ApiError) -> BackendError {
    let observed = match error {
        ApiError::Unreachable { source, .. } => Some(source.kind()),
        ApiError::Broken(_)
        | ApiError::Refused { .. }
        | ApiError::Unreadable(_)
        | ApiError::TooLate { .. } => None,
    };
    let hint = if observed == Some(io::ErrorKind::NotFound) {
        "install Docker and start it, or name its socket: DOCKER_HOST=unix:///PATH"
    } else if observed == Some(io::ErrorKind::PermissionDenied) {
        "allow this user to use the socket (usermod -aG docker USER, which is equivalent to root), or run Docker \
         rootless; for a server that root started, name the socket: DOCKER_HOST=unix:///PATH"
    } else if observed.is_some() {
        "start the daemon: systemctl start docker"
    } else {
        "check that the daemon runs, and read its log: systemctl status docker"
    };
    unavailable(error.to_string(), hint.to_owned())
}

/// A daemon that lacks what we need.
pub(crate) fn too_old(version: &str, api: ApiVersion) -> BackendError {
    unavailable(
        format!(
            "the daemon is too old: version {version} has version {api} of the API, and {OLDEST} is needed"
        ),
        "install Docker 19.03 or later".into(),
    )
}

/// A daemon that would not make the container that was asked for.
pub(crate) fn podman(version: &str) -> BackendError {
    unavailable(
        format!(
            "the socket belongs to Podman {}, whose version of Docker's API lacks what a box needs: the seccomp \
             profile, masked paths, and the owner and number of files of a tmpfs",
            printable(version)
        ),
        "name the socket of a Docker daemon (DOCKER_HOST=unix:///PATH), or use --backend native".into(),
    )
}
