//! What may run, and when. Nothing below this point accepts a request that did not come through here.

use std::fmt;
use std::sync::Arc;

use belljar_core::allowance::Allowance;
use belljar_core::backend::Backend;
use belljar_core::guarantee::Enforcement;
use belljar_core::language::Language;
use belljar_core::request::{BackendName, ExecutionRequest, RunRequest, SandboxRequest};

use crate::placement::{Demands, Placement};
use crate::recorder::{Asked, Open, Origin, with_causes};
use crate::slots::Place;
use crate::{Engine, RunError};

/// A request that may run, on a backend that accepts it, with its place in the queue. Only [`Engine::admit`] makes one;
/// dropping it gives up the place.
#[must_use]
pub struct Admitted {
    pub(crate) sandbox: SandboxRequest,
    pub(crate) execution: ExecutionRequest,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) enforcement: Enforcement,
    pub(crate) place: Place,
    pub(crate) account: Open,
}

impl Engine {
    /// Decides whether and where a request may run: checks it against what its caller may do, chooses a backend that
    /// can enforce what is demanded, and puts the request in the queue. It does no more than that; no box is touched.
    ///
    /// # Errors
    /// The caller may not, no backend can, or the queue is full.
    pub fn admit(&self, allowance: &Allowance, request: RunRequest) -> Result<Admitted, RunError> {
        self.admit_from(&Origin::default(), allowance, request)
    }

    /// The same for a request whose origin is known, which the record of the attempt names. An attempt that is refused is
    /// recorded, too.
    ///
    /// # Errors
    /// As [`admit`](Engine::admit), and that the attempt cannot be recorded.
    pub fn admit_from(
        &self,
        origin: &Origin,
        allowance: &Allowance,
        request: RunRequest,
    ) -> Result<Admitted, RunError> {
        let mut account = Open::new(self.recorder(), origin, || Asked::of(&request))?;
        let (placement, place) = match self.decide(allowance, &request) {
            Ok(decided) => decided,
            Err(error) => {
                account.refused(with_causes(&error));
                return Err(error);
            }
        };
        let RunRequest { sandbox, execution } = request;
        let (backend, enforcement) = (placement.backend, placement.enforcement);
        account.place(backend.name());
        Ok(Admitted { sandbox, execution, backend, enforcement, place, account })
    }

    /// Records an attempt that was refused before there was a request that could be admitted.
    pub fn refused(&self, origin: &Origin, asked: impl FnOnce() -> Asked, why: &str) {
        // If it cannot be recorded, it was refused all the same.
        if let Ok(account) = Open::new(self.recorder(), origin, asked) {
            account.refused(why.to_owned());
        }
    }

    fn decide(&self, allowance: &Allowance, request: &RunRequest) -> Result<(Placement, Place), RunError> {
        allowance.permits(request)?;
        let permitted = |name: BackendName| allowance.backends.contains(&name);
        let placement = self.place_among(permitted, &Demands::from(&request.sandbox))?;
        Ok((placement, Place::join(self.slots())?))
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

    /// The guarantees that will be enforced while it runs.
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
