//! Images: which one a run gets, whether it is allowed, and what is added to it.
//!
//! A **prepared** image is the requested one plus one layer: Belljar's PID 1, the directories that every box has, and
//! links that make `/tmp` a part of the one disk. It is made when an image is first used. Its name contains what it was
//! made from, and is used to find it again. A language without an official image gets its runtime in the same layer, as
//! a package of the base image.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::inside::SANDBOX;
use belljar_core::Field;
use belljar_core::backend::{BackendError, PullEvent, PullListener};
use belljar_core::language::Language;
use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::api::{Api, ApiError, escaped, within};
use crate::archive::Archive;
use crate::container::{CODE_ID, Container};
use crate::errors::{self, printable};
use crate::file_lock::file_lock;
use crate::init::{self, ground};
use crate::owner::Owner;

/// The name of prepared images, each with a tag of its own.
const PREPARED: &str = "belljar-prepared";
/// Stands for the image that a bare one was made from.
pub(crate) const BARE: &str = "bare";
/// Changes whenever the added layer does.
const EDITION: &str = "1";
/// How long a container may exist that is made only to prepare an image.
const PREPARING: Duration = Duration::from_secs(600);
/// How long it may take to add a package to an image: mostly the time to fetch it.
const ADDING: Duration = Duration::from_secs(300);
/// The memory of a package manager, and how many processes it may have.
const ADDING_MEMORY: u64 = 512 << 20;
const ADDING_PIDS: u64 = 64;
/// The longest reference to an image.
const LONGEST: usize = 512;

/// Which images a request may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImagePolicy {
    /// Whatever the daemon can pull.
    Any,
    /// Only those of the languages.
    #[default]
    OfLanguages,
    /// Those of the languages and these; a `*` at the end matches anything.
    Listed(Vec<String>),
}

impl ImagePolicy {
    fn allows(&self, image: &str) -> bool {
        match self {
            ImagePolicy::Any => true,
            ImagePolicy::OfLanguages => false,
            ImagePolicy::Listed(listed) => listed.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => image.starts_with(start),
                None => image == pattern,
            }),
        }
    }
}

/// The images of this backend.
pub(crate) struct Images {
    pub(crate) policy: ImagePolicy,
    /// The image of runs that name none, in place of those of the languages.
    pub(crate) default: Option<String>,
    pub(crate) of_languages: Vec<(Language, String)>,
    pub(crate) init: PathBuf,
    /// Images are prepared one at a time: another run may be about to need the same.
    pub(crate) preparing: Mutex<()>,
    /// Where processes of this user lock each other out.
    pub(crate) state_dir: Option<PathBuf>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The image that a run is to get.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Choice {
    pub(crate) reference: String,
    /// The package that has to be added to it.
    pub(crate) package: Option<&'static str>,
}

/// An image for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// As it was requested, with its digest: `python:3.11-slim@sha256:…`.
    pub(crate) identity: String,
    /// Of the requested image.
    pub(crate) id: String,
    /// The package that is added to it.
    pub(crate) package: Option<&'static str>,
    /// The image from which containers are made.
    pub(crate) prepared: String,
    /// Variables that the image sets.
    pub(crate) env: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    repo_digests: Option<Vec<String>>,
    #[serde(default)]
    config: Option<Config>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(default)]
    env: Option<Vec<String>>,
}

impl Images {
    /// The image for a run.
    pub(crate) fn choose(&self, language: Language, named: Option<&str>) -> Result<Choice, BackendError> {
        let reference = self.reference(language, named)?;
        let usual = language.image.filter(|usual| usual.reference == reference);
        Ok(Choice { reference, package: usual.and_then(|usual| usual.package) })
    }

    fn reference(&self, language: Language, named: Option<&str>) -> Result<String, BackendError> {
        let own = self.of_languages.iter().find(|(of, _)| *of == language).map(|(_, image)| image.as_str());
        let own = own.or(language.image.map(|image| image.reference));
        let default = self.default.as_deref();
        match (named, default.or(own)) {
            (Some(named), _) if [default, own].contains(&Some(named)) || self.permits(named)? => {
                Ok(named.to_owned())
            }
            (Some(named), _) => Err(unusable(
                format!("the image '{}' is not allowed here", named.escape_debug()),
                "add it to `images` in the table [docker] of the configuration".into(),
            )),
            (None, Some(usual)) => Ok(usual.to_owned()),
            (None, None) => Err(BackendError::RuntimeMissing {
                language,
                hint: format!(
                    "name an image that has it: --image REF, or {language} = \"REF\" in the table \
                     [docker.languages] of the configuration"
                ),
            }),
        }
    }

    fn permits(&self, named: &str) -> Result<bool, BackendError> {
        let proper = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        if named.is_empty() || named.len() > LONGEST || !named.chars().all(proper) {
            return Err(unusable(
                format!("'{}' is not the name of an image", named.escape_debug()),
                "write it as in --image python:3.11-slim".into(),
            ));
        }
        Ok(self.policy.allows(named))
    }

    /// Finds an image, pulls it if it is missing, and prepares it.
    pub(crate) async fn get(
        &self,
        api: &Api,
        choice: &Choice,
        waiting: PullListener<'_>,
    ) -> Result<Image, BackendError> {
        let reference = choice.reference.as_str();
        let found = match self.look(api, reference).await {
            Err(error) if error.is(StatusCode::NOT_FOUND) => {
                self.pull(api, reference, waiting).await?;
                self.look(api, reference).await
            }
            other => other,
        };
        let inspected = found.map_err(|error| missing(reference, &error))?;
        let image = self.describe(choice, inspected)?;
        if !is_prepared(api, &image).await? {
            self.prepare(api, &image, waiting).await?;
            // What it replaces is of no use any more. If it cannot be removed now, it is the next time.
            let _ = self.prune(api).await;
        }
        Ok(image)
    }

    /// The same, if everything that it takes is on this host: nothing is pulled or added.
    pub(crate) async fn get_local(&self, api: &Api, choice: &Choice) -> Result<Option<Image>, BackendError> {
        let inspected = match self.look(api, &choice.reference).await {
            Ok(inspected) => inspected,
            Err(error) if error.is(StatusCode::NOT_FOUND) => return Ok(None),
            Err(error) => return Err(errors::api("look for an image")(error)),
        };
        let image = self.describe(choice, inspected)?;
        if image.package.is_some() && !is_prepared(api, &image).await? {
            return Ok(None);
        }
        self.get(api, choice, &|_| {}).await.map(Some)
    }

    async fn look(&self, api: &Api, reference: &str) -> Result<Inspected, ApiError> {
        api.get(&format!("/images/{}/json", escaped(reference))).await
    }

    fn describe(&self, choice: &Choice, inspected: Inspected) -> Result<Image, BackendError> {
        let Choice { reference, package } = choice;
        let Inspected { id, repo_digests, config } = inspected;
        let digest = repo_digests.unwrap_or_default().into_iter().find_map(|digest| {
            let (_, digest) = digest.split_once('@')?;
            Some(digest.to_owned())
        });
        let digest = digest.unwrap_or_else(|| id.clone());
        let identity =
            if reference.contains('@') { reference.clone() } else { format!("{reference}@{digest}") };
        let env = config.and_then(|config| config.env).unwrap_or_default();
        let env = env.iter().filter_map(|variable| variable.split_once('='));
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let prepared =
            self.prepared_name(&id, *package).map_err(errors::setup("examine the belljar binary"))?;
        Ok(Image { identity, id, package: *package, prepared, env })
    }

    async fn pull(&self, api: &Api, reference: &str, waiting: PullListener<'_>) -> Result<(), BackendError> {
        let path = format!("/images/create?fromImage={}", escaped(&with_tag(reference)));
        let tell = |told: &Value| {
            let Some(event) = pull_event(reference, told) else { return };
            waiting(&event);
        };
        api.follow(&path, None, tell).await.map_err(|error| missing(reference, &error))
    }

    async fn prepare(&self, api: &Api, image: &Image, waiting: PullListener<'_>) -> Result<(), BackendError> {
        let _turn = self.preparing.lock().await;
        let _lock = file_lock(self.state_dir.as_deref()).await;
        let failed = errors::api("prepare the image");
        if exists(api, &image.prepared).await.map_err(&failed)? {
            return Ok(());
        }
        let owner =
            Owner::this().map_err(errors::setup("identify this process as the owner of a container"))?;
        let layer = layer(&self.init).map_err(errors::setup("read the belljar binary"))?;
        let labels = owner.labels(PREPARING);
        let description = match image.package {
            Some(package) => adding(&image.id, package, &labels),
            None => json!({ "Image": image.id, "Cmd": ["-"], "NetworkDisabled": true, "Labels": labels }),
        };
        let name = format!("belljar-prepare-{}", unique());
        let container = Container::make(api, name, &description).await.map_err(&failed)?;
        if let Some(package) = image.package {
            waiting(&PullEvent {
                image: image.identity.clone(),
                layer: None,
                status: format!("Adding {package} to the image, once"),
                progress: None,
            });
            add(&container, image, package).await?;
        }
        let to = format!("/containers/{}/archive?path=/", container.name());
        api.put_archive(&to, layer.into()).await.map_err(&failed)?;
        let (repository, tag) = image.prepared.split_once(':').unwrap_or((PREPARED, "latest"));
        let commit = format!(
            "/commit?container={}&repo={repository}&tag={tag}&pause=false&comment=prepared%20for%20belljar",
            container.name()
        );
        // Volumes that the image declares would be separate writable disks.
        let description = json!({
            "Labels": self.labels(&image.id, image.package), "Volumes": {}, "Healthcheck": { "Test": ["NONE"] },
        });
        api.post::<Value>(&commit, &description).await.map_err(&failed)?;
        container.remove().await.map_err(&failed)
    }

    /// The name contains what it was made from: the image, and what was added, the file of PID 1 with its age.
    pub(crate) fn prepared_name(&self, base: &str, package: Option<&str>) -> std::io::Result<String> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(&self.init)?;
        let version = env!("CARGO_PKG_VERSION");
        let file = format!("{} {}.{}", file.len(), file.mtime(), file.mtime_nsec());
        let package = package.unwrap_or_default();
        let digest = Sha256::digest(format!("{EDITION} {version} {base} {package} {file}").as_bytes());
        let tag: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{PREPARED}:{tag}"))
    }

    /// An image that contains only what every box has, to test the engine.
    pub(crate) async fn bare(&self, api: &Api) -> Result<String, BackendError> {
        let prepared = self.prepared_name(BARE, None).map_err(errors::setup("examine the belljar binary"))?;
        let failed = errors::api("import a test image");
        if exists(api, &prepared).await.map_err(&failed)? {
            return Ok(prepared);
        }
        let _lock = file_lock(self.state_dir.as_deref()).await;
        if !exists(api, &prepared).await.map_err(&failed)? {
            let layer = layer(&self.init).map_err(errors::setup("read the belljar binary"))?;
            let labels = self.labels(BARE, None);
            let labels = labels.iter().map(|(name, value)| format!("&changes={}", change(name, value)));
            let labels: String = labels.collect();
            let path = format!("/images/create?fromSrc=-&repo={}{labels}", escaped(&prepared));
            api.follow(&path, Some(Bytes::from(layer)), |_| {}).await.map_err(failed)?;
        }
        Ok(prepared)
    }
}

/// A line of a Dockerfile that labels an image, escaped for a query.
fn change(name: &str, value: &str) -> String {
    escaped(&format!("LABEL {name}={}", json!(value)))
}

async fn is_prepared(api: &Api, image: &Image) -> Result<bool, BackendError> {
    exists(api, &image.prepared).await.map_err(errors::api("look for the prepared image"))
}

/// A container in which the package manager of an image adds a package: the one container with a network and a root
/// user. Nothing runs in it but the image's own programs.
fn adding(image: &str, package: &str, labels: &Value) -> Value {
    json!({
        "Image": image, "Entrypoint": [], "Cmd": ["apk", "add", "--no-cache", package], "User": "0", "Labels": labels,
        "HostConfig": {
            "NetworkMode": "bridge", "Memory": ADDING_MEMORY, "PidsLimit": ADDING_PIDS,
            "SecurityOpt": ["no-new-privileges:true"], "LogConfig": { "Type": "json-file" },
        },
    })
}

async fn add(container: &Container, image: &Image, package: &str) -> Result<(), BackendError> {
    let failed = errors::api("add a package to the image");
    let ended = async {
        container.start().await?;
        container.exit_code().await
    };
    let why = match within(ADDING, ended).await {
        Ok(0) => return Ok(()),
        Ok(_) => container.last_line().await.map_err(failed)?,
        Err(ApiError::TooLate { patience }) => format!("it took more than {} s", patience.as_secs()),
        // There is no package manager in it.
        Err(ApiError::Refused { message, .. }) if !errors::is_full(&message) => message,
        Err(error) => return Err(failed(error)),
    };
    Err(errors::unavailable(
        format!(
            "the package {package} cannot be added to the image '{}': {}",
            image.identity,
            printable(&why)
        ),
        format!(
            "let the daemon's containers reach the internet (docker run --rm {} apk update), or name an image \
             that has it: --image REF",
            image.identity.split('@').next().unwrap_or_default()
        ),
    ))
}

/// A progress message of a pull. In the line that names the image, the tag takes the place of the layer.
fn pull_event(image: &str, told: &Value) -> Option<PullEvent> {
    let text = |name: &str| told[name].as_str().map(printable);
    let status = text("status")?;
    let layer = text("id").filter(|_| !status.starts_with("Pulling from "));
    let detail = &told["progressDetail"];
    let progress = detail["current"].as_u64().zip(detail["total"].as_u64());
    Some(PullEvent { image: image.to_owned(), layer, status, progress })
}

async fn exists(api: &Api, image: &str) -> Result<bool, ApiError> {
    match api.get::<Value>(&format!("/images/{}/json", escaped(image))).await {
        Ok(_) => Ok(true),
        Err(error) if error.is(StatusCode::NOT_FOUND) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is added to an image.
fn layer(init: &Path) -> std::io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.directory(".belljar");
    archive.file(init::PROGRAM.trim_start_matches('/'), 0o555, &std::fs::read(init)?);
    for path in [SANDBOX, crate::inside::WORK] {
        archive.directory(path.trim_start_matches('/'));
    }
    archive.link("tmp", &ground::part("tmp"));
    archive.link("var/tmp", "/tmp");
    let users = format!(
        "root:x:0:0:root:/:/sbin/nologin\nsandbox:x:{CODE_ID}:{CODE_ID}:sandbox:{SANDBOX}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/sbin/nologin\n"
    );
    archive.file("etc/passwd", 0o644, users.as_bytes());
    archive.file(
        "etc/group",
        0o644,
        format!("root:x:0:\nsandbox:x:{CODE_ID}:\nnogroup:x:65534:\n").as_bytes(),
    );
    Ok(archive.finish())
}

/// Without a tag, the daemon would pull all of them.
fn with_tag(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    if name.contains(':') || name.contains('@') {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

fn missing(reference: &str, error: &ApiError) -> BackendError {
    match error {
        ApiError::Refused { message, .. } if errors::is_full(message) => {
            errors::full(&format!("pull the image '{reference}'"), message)
        }
        ApiError::Refused { message, .. } => errors::unavailable(
            format!(
                "the image '{reference}' is not on this host and cannot be pulled: {}",
                printable(message)
            ),
            format!(
                "pull it where there is a network (docker pull {reference}), or name another with --image"
            ),
        ),
        ApiError::Unreachable { .. }
        | ApiError::Broken(_)
        | ApiError::Unreadable(_)
        | ApiError::TooLate { .. } => errors::unavailable(
            format!("the image '{reference}' is not available: {error}"),
            "check that the daemon runs: docker info".into(),
        ),
    }
}

fn unusable(message: String, hint: String) -> BackendError {
    BackendError::Unusable { field: Field::Image, message, hint }
}

/// A word that is in no other container's name.
pub(crate) fn unique() -> String {
    let mut bytes = [0; 8];
    // Without randomness, two names are the same and the second container is refused.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(policy: ImagePolicy) -> Images {
        let c = Language::parse("c").unwrap();
        Images {
            policy,
            default: None,
            of_languages: vec![(c, "gcc:14".into())],
            init: "/proc/self/exe".into(),
            preparing: Mutex::new(()),
            state_dir: None,
        }
    }

    #[test]
    fn a_language_has_its_own_image_whatever_the_policy() {
        let images = images(ImagePolicy::OfLanguages);
        let python = Language::parse("python").unwrap();
        assert_eq!(images.reference(python, None).unwrap(), "python:3.11-slim");
        assert_eq!(images.reference(python, Some("python:3.11-slim")).unwrap(), "python:3.11-slim");
        assert_eq!(images.reference(Language::parse("c").unwrap(), None).unwrap(), "gcc:14");
        let none = images.choose(Language::parse("go").unwrap(), None);
        assert!(matches!(none, Err(BackendError::RuntimeMissing { .. })), "{none:?}");
    }

    #[test]
    fn a_default_image_takes_the_place_of_those_of_the_languages() {
        let images = Images { default: Some("our/all:1".into()), ..images(ImagePolicy::OfLanguages) };
        let python = Language::parse("python").unwrap();
        assert_eq!(images.reference(python, None).unwrap(), "our/all:1");
        assert_eq!(images.reference(Language::parse("go").unwrap(), None).unwrap(), "our/all:1");
        assert_eq!(images.reference(python, Some("our/all:1")).unwrap(), "our/all:1");
        assert_eq!(images.reference(python, Some("python:3.11-slim")).unwrap(), "python:3.11-slim");
        assert!(images.choose(python, Some("our/all:2")).is_err(), "the control");
    }

    #[test]
    fn a_package_is_added_to_the_default_image_alone() {
        let images = images(ImagePolicy::Any);
        let package = |language: &str, named: Option<&str>| {
            images.choose(Language::parse(language).unwrap(), named).unwrap().package
        };
        assert_eq!(package("zsh", None), Some("zsh"));
        assert_eq!(package("lua", Some("alpine:3.20")), Some("lua5.4"), "the default, by its name");
        assert_eq!(package("lua", Some("our/lua:1")), None);
        assert_eq!((package("sh", None), package("bash", None)), (None, None));
    }

    #[test]
    fn a_prepared_image_is_named_after_what_was_added() {
        let images = images(ImagePolicy::Any);
        let name = |package| images.prepared_name("sha256:1", package).unwrap();
        assert_eq!(name(Some("zsh")), name(Some("zsh")));
        assert!(name(Some("zsh")) != name(None) && name(Some("zsh")) != name(Some("lua5.4")));
    }

    #[test]
    fn other_images_are_a_matter_of_the_policy() {
        let python = Language::parse("python").unwrap();
        let refused = images(ImagePolicy::OfLanguages).choose(python, Some("alpine:3.20"));
        assert!(matches!(refused, Err(BackendError::Unusable { field: Field::Image, .. })), "{refused:?}");
        assert!(images(ImagePolicy::Any).choose(python, Some("alpine:3.20")).is_ok());
        let listed = images(ImagePolicy::Listed(vec!["our/*".into(), "alpine:3.20".into()]));
        assert!(listed.choose(python, Some("our/python:1")).is_ok());
        assert!(listed.choose(python, Some("alpine:3.20")).is_ok());
        assert!(listed.choose(python, Some("alpine:3.21")).is_err());
        assert!(images(ImagePolicy::Any).choose(python, Some("a b")).is_err());
    }

    #[test]
    fn only_one_tag_is_fetched() {
        assert_eq!(with_tag("alpine"), "alpine:latest");
        assert_eq!(with_tag("host:5000/alpine"), "host:5000/alpine:latest");
        assert_eq!(with_tag("alpine:3.20"), "alpine:3.20");
    }

    #[test]
    fn a_pull_event_has_the_bytes_of_a_layer_and_none_for_the_image() {
        let of =
            |told: Value| pull_event("a:1", &told).map(|event| (event.layer, event.status, event.progress));
        let first = of(json!({"status": "Pulling from a", "id": "1"}));
        assert_eq!(first, Some((None, "Pulling from a".into(), None)));
        let layer =
            json!({"status": "Downloading", "id": "4f4f", "progressDetail": {"current": 1, "total": 2}});
        assert_eq!(of(layer), Some((Some("4f4f".into()), "Downloading".into(), Some((1, 2)))));
        assert_eq!(of(json!({"error": "no such manifest"})), None, "that is how the pull ends");
    }

    #[test]
    fn what_a_registry_says_is_harmless() {
        assert_eq!(printable("\u{1b}[2Jno \"x\""), "\\u{1b}[2Jno \"x\"");
    }
}
