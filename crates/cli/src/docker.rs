//! What the configuration says about Docker.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_core::language::Language;
use belljar_docker::{ImagePolicy, Settings};
use belljar_native::PoolSettings;
use belljar_wire::{Code, Problem};
use serde::Deserialize;

use crate::settings::Host;

/// The table `[docker]` of `belljar.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DockerTable {
    pub(crate) runtime: Option<String>,
    /// Images that a request may name, besides those of the languages.
    images: Option<Vec<String>>,
    /// Whether a server fetches the images of the languages when it starts.
    pull: Option<bool>,
    /// Images for languages, in place of the usual ones.
    languages: BTreeMap<String, String>,
}

/// The settings about Docker, from all sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct DockerChoices {
    /// `DOCKER_HOST`.
    pub(crate) host: Option<String>,
    pub(crate) runtime: Option<String>,
    /// The image of runs that name none: `image` in `belljar.toml`, for one.
    pub(crate) default_image: Option<String>,
    images: Option<Vec<String>>,
    pull: Option<bool>,
    of_languages: Vec<(Language, String)>,
    /// Whether it is the default backend.
    pub(crate) preferred: bool,
    /// Whether to probe the daemon again instead of using the cached result.
    pub(crate) anew: bool,
    /// Whether the runs are requested by someone other than the user of this process, such as an MCP client.
    pub(crate) for_others: bool,
}

/// Who requests the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The user of this process, who may name any image.
    Oneself,
    /// The clients of a server.
    Others,
}

impl DockerChoices {
    /// What the configuration says, with the rest still to be filled in.
    pub(crate) fn read(mut table: DockerTable, config: &str) -> Result<DockerChoices, Problem> {
        let language = |(name, image): (String, String)| {
            let language = Language::by_name(&name).ok_or_else(|| {
                let message =
                    format!("{config}: unknown language '{}' in [docker.languages]", name.escape_debug());
                Problem::new(Code::InvalidRequest, message, "`belljar languages` lists them")
            })?;
            Ok((language, image))
        };
        let languages = std::mem::take(&mut table.languages);
        let of_languages = languages.into_iter().map(language).collect::<Result<_, Problem>>()?;
        let DockerTable { runtime, images, pull, .. } = table;
        Ok(DockerChoices {
            host: None,
            runtime,
            default_image: None,
            images,
            pull,
            of_languages,
            preferred: false,
            anew: false,
            for_others: false,
        })
    }

    /// Whether any setting mentions Docker. A server uses a daemon only then, not just because there is one.
    pub(crate) fn is_wanted(&self) -> bool {
        let DockerChoices { host, runtime, images, pull, of_languages, preferred, .. } = self;
        let said = (host.is_some(), runtime.is_some(), images.is_some(), pull.is_some());
        *preferred || !of_languages.is_empty() || said != (false, false, false, false)
    }

    /// The socket of the daemon, if it is on this host.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        match &self.host {
            None => Some(PathBuf::from("/var/run/docker.sock")),
            Some(host) => host.strip_prefix("unix://").map(PathBuf::from),
        }
    }

    /// The settings of the backend.
    pub(crate) fn settings(&self, host: &Host, audience: Audience, pool: Option<&PoolSettings>) -> Settings {
        let images = match (&self.images, audience) {
            (Some(listed), _) => ImagePolicy::Listed(listed.clone()),
            (None, Audience::Oneself) if !self.for_others => ImagePolicy::Any,
            (None, Audience::Oneself | Audience::Others) => ImagePolicy::OfLanguages,
        };
        Settings {
            host: self.host.clone(),
            runtime_dir: host.runtime_dir.clone(),
            state_dir: host.state_dir.clone(),
            runtime: self.runtime.clone(),
            images,
            default_image: self.default_image.clone(),
            of_languages: self.of_languages.clone(),
            init: PathBuf::from("/proc/self/exe"),
            pull: audience == Audience::Others && self.pull.unwrap_or(self.preferred),
            // A pool for a backend that is not the default would never be used.
            pool: pool.filter(|_| self.preferred).map(pool_settings),
            anew: self.anew,
            restricted_networks: host.network.restrict(),
        }
    }
}

/// The settings of the warm pool, as this backend takes them.
fn pool_settings(pool: &PoolSettings) -> belljar_docker::PoolSettings {
    let languages = pool.languages.iter().map(|(language, bounds)| (*language, bounds.min, bounds.max));
    belljar_docker::PoolSettings {
        max_age: pool.max_age,
        limits: pool.limits,
        languages: languages.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_lets_others_name_only_what_is_listed() {
        let table: DockerTable =
            toml::from_str("images = [\"our/*\"]\nlanguages = { c = \"gcc:14\" }").unwrap();
        let choices = DockerChoices::read(table, "x").unwrap();
        assert_eq!(choices.of_languages.len(), 1);
        assert_eq!(choices.images.as_deref(), Some(["our/*".to_owned()].as_slice()));
        let table: DockerTable = toml::from_str("languages = { klingon = \"x\" }").unwrap();
        assert!(DockerChoices::read(table, "x").is_err());
        assert!(toml::from_str::<DockerTable>("imagse = []").is_err());
    }
}
