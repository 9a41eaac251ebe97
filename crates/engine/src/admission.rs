//! What may run, and when. Nothing below this point accepts a request that did not come through here.

use std::fmt;
use std::sync::Arc;

use belljar_core::allowance::Allowance;
use belljar_core::backend::Backend;
use belljar_core::guarantee::Enforcement;
use belljar_core::language::Language;
use belljar_core::request::{BackendName, ExecutionRequest, RunRequest, SandboxRequest};

use crate::slots::Place;
use crate::{Engine, RunError};

/// A request that may run, on a backend that will take it, with its place in the queue. Only [`Engine::admit`] makes
/// one; dropping it gives the place up.
#[must_use]
pub struct Admitted {
    pub(crate) sandbox: SandboxRequest,
    pub(crate) execution: ExecutionRequest,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) enforcement: Enforcement,
    pub(crate) place: Place,
}

impl Engine {
    /// Decides whether and where a request may run: it is held against what its caller may do, a backend is chosen
    /// that can keep what is demanded, and the request joins the queue. Costs no more than that; no box is touched.
    ///
    /// # Errors
    /// That the caller may not, that no backend can, or that the queue is full.
    pub fn admit(&self, allowance: &Allowance, request: RunRequest) -> Result<Admitted, RunError> {
        allowance.permits(&request)?;
        let RunRequest { sandbox, execution } = request;
        let permitted = |name: BackendName| allowance.backends.contains(&name);
        let placement = self.place_among(permitted, sandbox.backend, &sandbox.network, &sandbox.waived)?;
        let place = Place::join(self.slots())?;
        let (backend, enforcement) = (placement.backend, placement.enforcement);
        Ok(Admitted { sandbox, execution, backend, enforcement, place })
    }
}

impl Admitted {
    /// What the code is written in.
    #[must_use]
    pub fn language(&self) -> Language {
        self.execution.language
    }

    /// Where it will run.
    #[must_use]
    pub fn backend(&self) -> BackendName {
        self.backend.name()
    }

    /// What will be kept while it runs.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Admitted { sandbox, execution, backend, .. } = self;
        f.debug_struct("Admitted")
            .field("sandbox", sandbox)
            .field("execution", execution)
            .field("backend", &backend.name())
            .finish_non_exhaustive()
    }
}
