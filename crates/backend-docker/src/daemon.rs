//! The daemon: where it listens, and what is known about it after the first call.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use belljar_core::backend::BackendError;
use belljar_core::guarantee::{Offer, Standing};

use crate::api::{Api, OLDEST, Version};
use crate::errors;
use crate::extras::Extras;
use crate::image::Images;
use crate::trial::{Trial, Verdict};

/// Docker's default socket.
const USUAL: &str = "/var/run/docker.sock";
/// The default socket of a user's own daemon, in the user's runtime directory.
const USERS_OWN: &str = "docker.sock";

/// A daemon that may or may not exist.
#[derive(Debug)]
pub(crate) struct Daemon {
    host: Option<String>,
    runtime_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    /// Whether to ignore what is cached about it.
    anew: bool,
    known: OnceLock<Known>,
    absent: OnceLock<Offer>,
    /// Whether there has been a call. Without one, nothing is said to a daemon.
    called: AtomicBool,
    /// What the last check found, reason and hint, if the daemon did not answer.
    down: Mutex<Option<(String, String)>>,
}

/// What is known about a daemon after the first call.
#[derive(Debug)]
struct Known {
    api: Api,
    verdict: Verdict,
}

impl Daemon {
    pub(crate) fn new(
        host: Option<String>,
        runtime_dir: Option<PathBuf>,
        state_dir: Option<PathBuf>,
        anew: bool,
    ) -> Daemon {
        let (known, absent) = (OnceLock::new(), OnceLock::new());
        let (called, down) = (AtomicBool::new(false), Mutex::new(None));
        Daemon { host, runtime_dir, state_dir, anew, known, absent, called, down }
    }

    /// The connection, if there has been a call.
    pub(crate) fn known(&self) -> Option<Api> {
        self.known.get().map(|known| known.api.clone())
    }

    /// What it can guarantee; nothing, if it does not exist.
    pub(crate) fn offer(&self) -> &Offer {
        let absent = || {
            Offer::by_asking(|_| Standing::Unmet {
                why: "no Docker daemon was found".into(),
                fix: "install Docker and start it".into(),
            })
        };
        self.known.get().map_or_else(|| self.absent.get_or_init(absent), |known| &known.verdict.offer)
    }

    /// What its containers get in addition.
    pub(crate) fn extras(&self) -> Extras {
        self.known.get().map(|known| known.verdict.extras.clone()).unwrap_or_default()
    }

    /// The connection. The first call also probes what the daemon can guarantee. A failure to connect is not cached:
    /// the daemon may be there the next time.
    pub(crate) async fn api(&self, images: &Images, runtime: Option<&str>) -> Result<Api, BackendError> {
        if let Some(api) = self.known() {
            return Ok(api);
        }
        self.called.store(true, Ordering::Relaxed);
        let (api, version) = self.greet().await?;
        let state_dir = self.state_dir.as_deref();
        let trial = Trial { api: &api, version: &version, images, runtime, state_dir };
        let verdict = if self.anew { trial.again().await? } else { trial.verdict().await? };
        Ok(self.known.get_or_init(|| Known { api, verdict }).api.clone())
    }

    /// Checks whether the daemon answers, once there has been a call. Whoever asks whether the backend is ready then
    /// gets this answer, and does not have to wait for the daemon.
    pub(crate) async fn check(&self, images: &Images, runtime: Option<&str>) {
        if !self.called.load(Ordering::Relaxed) {
            return;
        }
        let checked = match self.known() {
            Some(api) => api.ping().await.map_err(|error| errors::gone("make containers", &error)),
            None => self.api(images, runtime).await.map(drop),
        };
        *self.lock_down() = checked.err().map(explained);
    }

    /// Why the daemon cannot be used, if the last check found that.
    pub(crate) fn trouble(&self) -> Option<BackendError> {
        self.lock_down().clone().map(|(reason, hint)| errors::unavailable(reason, hint))
    }

    fn lock_down(&self) -> MutexGuard<'_, Option<(String, String)>> {
        // It is replaced as a whole, so a panic cannot have left half of it.
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn greet(&self) -> Result<(Api, Version), BackendError> {
        let socket = self.socket()?;
        let (api, version) = Api::greet(&socket).await.map_err(|error| errors::unreachable(&error))?;
        if version.api_version < OLDEST {
            return Err(errors::too_old(&version.version, version.api_version));
        }
        if version.is_podman() {
            return Err(errors::podman(&version.version));
        }
        Ok((api, version))
    }

    /// The socket that was named, or the first of the usual ones that exists.
    fn socket(&self) -> Result<PathBuf, BackendError> {
        if let Some(host) = &self.host {
            let path = host.strip_prefix("unix://").filter(|path| path.starts_with('/'));
            return path.map(PathBuf::from).ok_or_else(|| {
                errors::unavailable(
                    format!(
                        "DOCKER_HOST is '{}', but only Unix sockets on this host are supported",
                        host.escape_debug()
                    ),
                    "name a socket: DOCKER_HOST=unix:///var/run/docker.sock".into(),
                )
            });
        }
        let own = self.runtime_dir.iter().map(|dir| dir.join(USERS_OWN));
        let mut candidates = std::iter::once(PathBuf::from(USUAL)).chain(own);
        Ok(candidates.find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(USUAL)))
    }
}

/// The reason and the hint of an error, which cannot be copied itself.
fn explained(error: BackendError) -> (String, String) {
    let shown = error.to_string();
    match error {
        BackendError::Unavailable { reason, hint, .. } => (reason, hint),
        BackendError::Setup { hint, source, .. } => (format!("{shown}: {source}"), hint),
        BackendError::RuntimeMissing { hint, .. } | BackendError::Unusable { hint, .. } => (shown, hint),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn daemon(host: Option<&str>, runtime_dir: Option<&Path>) -> Daemon {
        Daemon::new(host.map(str::to_owned), runtime_dir.map(Path::to_owned), None, false)
    }

    #[test]
    fn only_sockets_of_this_host_can_be_named() {
        let named = daemon(Some("unix:///some/where.sock"), None).socket();
        assert_eq!(named.unwrap(), Path::new("/some/where.sock"));
        for host in ["tcp://10.0.0.1:2375", "ssh://root@there", "unix://", "/var/run/docker.sock"] {
            let refused = daemon(Some(host), None).socket();
            assert!(matches!(refused, Err(BackendError::Unavailable { .. })), "{host}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn a_missing_daemon_a_forbidden_one_and_a_stopped_one_give_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let host = format!("unix://{}", socket.display());
        let hint = async || match daemon(Some(&host), None).greet().await {
            Err(BackendError::Unavailable { reason, hint, .. }) => (reason, hint),
            other => panic!("{other:?}"),
        };
        let (reason, absent) = hint().await;
        assert!(reason.contains("docker.sock") && absent.contains("install"), "{reason} {absent}");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let (_, down) = hint().await;
        assert!(down.contains("start the daemon"), "{down}");
    }
}
