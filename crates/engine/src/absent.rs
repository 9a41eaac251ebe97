//! A backend that this build does not have.

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::{Offer, Standing};
use belljar_core::language::Language;
use belljar_core::request::{BackendName, Network};

/// A placeholder for a missing backend, which says how to get it. It runs nothing.
#[derive(Debug)]
pub struct Absent {
    name: BackendName,
    reason: String,
    hint: String,
    offer: Offer,
}

impl Absent {
    /// Why the backend is missing, and how to get it.
    #[must_use]
    pub fn new(name: BackendName, reason: &str, hint: &str) -> Absent {
        let unmet = |_| Standing::Unmet { why: reason.to_owned(), fix: hint.to_owned() };
        Absent { name, reason: reason.to_owned(), hint: hint.to_owned(), offer: Offer::by_asking(unmet) }
    }

    fn refusal(&self) -> BackendError {
        BackendError::Unavailable { backend: self.name, reason: self.reason.clone(), hint: self.hint.clone() }
    }
}

impl Backend for Absent {
    fn name(&self) -> BackendName {
        self.name
    }

    fn ready(&self) -> Result<(), BackendError> {
        Err(self.refusal())
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn provides(&self, _: &Network) -> bool {
        false
    }

    fn runtime(&self, _: Language) -> Result<RuntimeInfo, BackendError> {
        Err(self.refusal())
    }

    fn start<'a>(
        &'a self,
        _: SandboxSpec,
        _: ExecutionSpec,
        _: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>> {
        Box::pin(std::future::ready(Err(self.refusal())))
    }

    fn explain(&self, _: &SandboxSpec, _: &ExecutionSpec) -> Result<String, BackendError> {
        Err(self.refusal())
    }
}
