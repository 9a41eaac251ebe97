//! Reading code before it runs. The engine knows that somebody can; who, and in which process, is the composition's.

use std::fmt;
use std::sync::Arc;

use belljar_core::finding::Finding;
use belljar_core::language::Language;
use belljar_core::request::Code;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{Engine, RunError};

/// Reads code and says what it found. It blocks for as long as that takes, which is bounded.
pub trait Scanner: fmt::Debug + Send + Sync {
    /// Scans code.
    ///
    /// # Errors
    /// The code could not be read, for a reason that is not in the code.
    fn scan(&self, subject: &Subject) -> Result<Vec<Finding>, Unscanned>;
}

/// What is scanned.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What it is written in.
    pub language: Language,
    /// The code.
    pub code: Code,
    /// The only modules that it may import, if there are such.
    pub allowed_imports: Option<Vec<String>>,
}

/// Why code could not be scanned.
#[derive(Debug, thiserror::Error)]
#[error("cannot scan the code: {reason}")]
pub struct Unscanned {
    /// What went wrong.
    pub reason: String,
}

/// Which code is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanning {
    /// Only what somebody asks to have scanned.
    OnRequest,
    /// That of every run, too.
    EveryRun,
}

impl Engine {
    /// Lets the engine scan code.
    #[must_use]
    pub fn with_scanner(self, scanner: Arc<dyn Scanner>, scanning: Scanning) -> Engine {
        Engine { scanner: Some((scanner, scanning)), ..self }
    }

    /// Scans code.
    ///
    /// # Errors
    /// There is no scanner, or the code could not be read, for a reason that is not in the code.
    pub async fn scan(&self, subject: Subject) -> Result<Vec<Finding>, RunError> {
        let Some((scanner, _)) = self.scanner.clone() else {
            return Err(Unscanned { reason: "there is no scanner here".to_owned() }.into());
        };
        // As for a parser: not on the threads that drive runs, unless there is only one.
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Ok(scanner.scan(&subject)?);
        }
        let scanned = tokio::task::spawn_blocking(move || scanner.scan(&subject));
        Ok(scanned.await.map_err(RunError::Unprepared)??)
    }

    /// What is found in the code of a run, if that is scanned. A policy that decides by findings asks here before it admits
    /// the request.
    ///
    /// # Errors
    /// The code could not be read, for a reason that is not in the code.
    pub async fn examine(&self, language: Language, code: &Code) -> Result<Vec<Finding>, RunError> {
        match &self.scanner {
            Some((_, Scanning::EveryRun)) => {
                self.scan(Subject { language, code: code.clone(), allowed_imports: None }).await
            }
            Some((_, Scanning::OnRequest)) | None => Ok(Vec::new()),
        }
    }
}
