//! What the configuration says about Docker, and what fetching an image looks like on a terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_core::backend::PullEvent;
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

/// What was said about Docker, wherever that was.
#[derive(Debug, Clone, Default)]
pub(crate) struct DockerChoices {
    /// `DOCKER_HOST`.
    pub(crate) host: Option<String>,
    pub(crate) runtime: Option<String>,
    images: Option<Vec<String>>,
    pull: Option<bool>,
    of_languages: Vec<(Language, String)>,
    /// Whether runs that name no backend go to it.
    pub(crate) preferred: bool,
    /// Whether what is remembered of the daemon is to be found out anew.
    pub(crate) anew: bool,
    /// Whether others say what is to be run, also where this process runs one thing after the other.
    pub(crate) for_others: bool,
}

/// For whom runs are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The user of this process, who may name any image.
    Oneself,
    /// Whoever speaks to a server.
    Others,
}

impl DockerChoices {
    /// What the configuration says, with the rest still to be filled in.
    pub(crate) fn read(mut table: DockerTable, config: &str) -> Result<DockerChoices, Problem> {
        let language = |(name, image): (String, String)| {
            let language = Language::by_name(&name).ok_or_else(|| {
                let message = format!(
                    "{config}: there is no language '{}' for [docker.languages]",
                    name.escape_debug()
                );
                Problem::new(Code::InvalidRequest, message, "`belljar languages` lists those that there are")
            })?;
            Ok((language, image))
        };
        let languages = std::mem::take(&mut table.languages);
        let of_languages = languages.into_iter().map(language).collect::<Result<_, Problem>>()?;
        let DockerTable { runtime, images, pull, .. } = table;
        Ok(DockerChoices {
            host: None,
            runtime,
            images,
            pull,
            of_languages,
            preferred: false,
            anew: false,
            for_others: false,
        })
    }

    /// Whether somebody has said something about it: that a server may use it, which takes more than being there.
    pub(crate) fn is_wanted(&self) -> bool {
        let DockerChoices { host, runtime, images, pull, of_languages, preferred, .. } = self;
        let said = (host.is_some(), runtime.is_some(), images.is_some(), pull.is_some());
        *preferred || !of_languages.is_empty() || said != (false, false, false, false)
    }

    /// The socket that it listens on, if it is one of this host.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        match &self.host {
            None => Some(PathBuf::from("/var/run/docker.sock")),
            Some(host) => host.strip_prefix("unix://").map(PathBuf::from),
        }
    }

    /// What the backend is told.
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
            of_languages: self.of_languages.clone(),
            init: PathBuf::from("/proc/self/exe"),
            progress: std::io::stderr().is_terminal().then(|| progress() as belljar_docker::Progress),
            pull: audience == Audience::Others && self.pull.unwrap_or(self.preferred),
            // Containers that wait for runs that go elsewhere would wait in vain.
            pool: pool.filter(|_| self.preferred).map(pool_settings),
            anew: self.anew,
        }
    }
}

/// The same boxes that would wait elsewhere.
fn pool_settings(pool: &PoolSettings) -> belljar_docker::PoolSettings {
    let languages = pool.languages.iter().map(|(language, bounds)| (*language, bounds.min, bounds.max));
    belljar_docker::PoolSettings {
        max_age: pool.max_age,
        limits: pool.limits,
        languages: languages.collect(),
    }
}

/// A line for each layer of an image that is being fetched, redrawn as it comes.
fn progress() -> Arc<dyn Fn(&PullEvent) + Send + Sync> {
    let bars = Mutex::new(Bars::default());
    Arc::new(move |event| {
        let text = bars.lock().unwrap_or_else(PoisonError::into_inner).show(event);
        // Whoever closed the terminal does not want to see it.
        let _ = std::io::stderr().write_all(text.as_bytes());
    })
}

/// The lines on the terminal, in the order in which they came.
#[derive(Debug, Default)]
struct Bars(Vec<(String, String)>);

const WIDTH: u64 = 30;

impl Bars {
    /// What is to be written: up to the line of this layer, the line, and down again.
    fn show(&mut self, event: &PullEvent) -> String {
        let key = event.layer.clone().unwrap_or_else(|| event.image.clone());
        let line = match event.progress {
            Some((there, of)) if of > 0 => format!("{key} {} {}", bar(there, of), event.status),
            _ => format!("{key} {}", event.status),
        };
        let known = self.0.iter().position(|(known, _)| *known == key);
        let Some(at) = known else {
            self.0.push((key, line.clone()));
            return format!("{line}\n");
        };
        self.0[at].1.clone_from(&line);
        let up = self.0.len() - at;
        format!("\x1b[{up}A\r\x1b[2K{line}\x1b[{up}B\r")
    }
}

fn bar(there: u64, of: u64) -> String {
    let filled = there.min(of) * WIDTH / of;
    (0..WIDTH).map(|at| if at < filled { '#' } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(layer: &str, progress: Option<(u64, u64)>) -> PullEvent {
        PullEvent {
            image: "alpine".into(),
            layer: Some(layer.into()),
            status: "Downloading".into(),
            progress,
        }
    }

    #[test]
    fn each_layer_has_a_line_of_its_own_that_is_redrawn() {
        let mut bars = Bars::default();
        assert_eq!(bars.show(&event("one", None)), "one Downloading\n");
        assert!(bars.show(&event("two", Some((1, 2)))).ends_with("Downloading\n"));
        let redrawn = bars.show(&event("one", Some((2, 2))));
        assert!(redrawn.starts_with("\x1b[2A") && redrawn.contains(&"#".repeat(30)), "{redrawn:?}");
        assert_eq!(bar(1, 2).matches('#').count(), 15);
    }

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
