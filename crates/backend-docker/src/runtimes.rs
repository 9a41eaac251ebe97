//! Which runtime an image has for a language. It is asked once, in a container, and cached for that image.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::inside;
use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use serde::{Deserialize, Serialize};

use crate::frame::{Found, Question};
use crate::image::Image;
use crate::remembered;

/// The name of the cache file.
const FILE: &str = "docker-runtimes.json";
/// The most entries in the cache.
const MOST: usize = 200;

/// A runtime in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runtime {
    /// Name and version.
    pub(crate) label: String,
    /// Its path in the image.
    pub(crate) program: String,
}

/// The runtimes that were asked.
#[derive(Debug)]
pub(crate) struct Runtimes {
    state_dir: Option<PathBuf>,
    known: Mutex<BTreeMap<String, Runtime>>,
}

impl Runtimes {
    pub(crate) fn new(state_dir: Option<PathBuf>) -> Runtimes {
        Runtimes { state_dir, known: Mutex::default() }
    }

    /// What is cached about an image, from this process or an earlier one.
    pub(crate) fn recall(&self, image: &Image, language: Language) -> Option<Runtime> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            *known = remembered::read(self.state_dir.as_deref(), FILE).unwrap_or_default();
        }
        known.get(&key(image, language)).cloned()
    }

    /// Parses the image's answer, and caches it.
    pub(crate) fn learn(
        &self,
        image: &Image,
        language: Language,
        found: &Found,
    ) -> Result<Runtime, BackendError> {
        let label = language.runtime.answer.label(&found.text);
        let (Some(label), Some(program)) = (label, found.program.clone()) else {
            return Err(BackendError::RuntimeMissing {
                language,
                hint: format!("the image {} has none; name another with --image", image.identity),
            });
        };
        let runtime = Runtime { label, program };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key(image, language), runtime.clone());
        remembered::write(self.state_dir.as_deref(), FILE, &*known);
        Ok(runtime)
    }
}

/// What an image is asked.
pub(crate) fn question(image: &Image, language: Language) -> Question {
    let mut env: Vec<_> = image.env.clone();
    if env.iter().all(|(name, _)| name != "PATH") {
        env.push(("PATH".into(), format!("{}:/usr/sbin:/sbin", inside::PATH)));
    }
    env.push(("LANG".into(), "C.UTF-8".into()));
    env.push(("HOME".into(), inside::SANDBOX.into()));
    let words = |words: &&[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Question {
        programs: language.runtime.programs.iter().map(|program| (*program).to_owned()).collect(),
        ask: language.runtime.ask.iter().map(words).collect(),
        env,
    }
}

fn key(image: &Image, language: Language) -> String {
    format!("{} {language}", image.id)
}
