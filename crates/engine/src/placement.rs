//! Which backend a run goes to, and what it will keep.

use std::sync::Arc;

use belljar_core::backend::Backend;
use belljar_core::guarantee::{Enforcement, Guarantee, concede, resolve};
use belljar_core::request::{BackendChoice, BackendName, Network};
use belljar_core::{Field, Invalid};

use crate::{Engine, RunError};

/// A backend that will run a request, and what it will keep while doing so.
#[derive(Debug)]
pub struct Placement {
    /// Where.
    pub backend: Arc<dyn Backend>,
    /// On which terms.
    pub enforcement: Enforcement,
}

impl Engine {
    /// Chooses the backend: the one that was named, or the strongest that can keep everything. `process` and
    /// `none` keep next to nothing, so they are never chosen, only named; and who names one does without the rest.
    ///
    /// # Errors
    /// What the named backend, or the strongest one, has against it. There is no fallback to less.
    pub fn place(
        &self,
        choice: BackendChoice,
        network: &Network,
        waived: &[Guarantee],
    ) -> Result<Placement, RunError> {
        self.place_among(|_| true, choice, network, waived)
    }

    /// The backend of that name, whatever it can keep; the strongest for `auto`.
    #[must_use]
    pub fn backend_named(&self, choice: BackendChoice) -> Option<Arc<dyn Backend>> {
        let meant = |backend: &&Arc<dyn Backend>| match choice {
            BackendChoice::Auto => true,
            BackendChoice::Named(name) => backend.name() == name,
        };
        self.backends.iter().find(meant).cloned()
    }

    /// [`place`](Engine::place), among the backends that the caller may use.
    pub(crate) fn place_among(
        &self,
        permitted: impl Fn(BackendName) -> bool,
        choice: BackendChoice,
        network: &Network,
        waived: &[Guarantee],
    ) -> Result<Placement, RunError> {
        let named = match choice {
            BackendChoice::Auto => None,
            BackendChoice::Named(name) => Some(name),
        };
        let eligible = |backend: &&Arc<dyn Backend>| match named {
            None => !backend.name().is_only_by_name(),
            Some(name) => backend.name() == name,
        };
        let mut refusal = None;
        for backend in self.backends.iter().filter(eligible).filter(|backend| permitted(backend.name())) {
            match accept(backend.as_ref(), network, waived) {
                Ok(enforcement) => return Ok(Placement { backend: backend.clone(), enforcement }),
                Err(refused) => refusal = refusal.or(Some(refused)),
            }
        }
        let absent = named.map_or(RunError::NoBackend, |backend| RunError::NoSuchBackend { backend });
        Err(refusal.unwrap_or(absent))
    }
}

fn accept(backend: &dyn Backend, network: &Network, waived: &[Guarantee]) -> Result<Enforcement, RunError> {
    backend.ready()?;
    if !backend.provides(network) {
        return Err(RunError::Invalid(Invalid {
            field: Field::Network,
            message: network_message(backend, network),
            hint: network_hint(backend).to_owned(),
            too_large: false,
        }));
    }
    if backend.name().is_only_by_name() {
        return Ok(concede(backend.offer(), waived));
    }
    resolve(backend.offer(), waived).map_err(|unmet| RunError::Unmet { backend: backend.name(), unmet })
}

fn network_message(backend: &dyn Backend, network: &Network) -> String {
    match network {
        Network::Allow(_) => format!("a network of allowed hosts is not available yet: '{network}'"),
        Network::None | Network::Full => {
            format!("the {} backend cannot give a box the network '{network}'", backend.name())
        }
    }
}

fn network_hint(backend: &dyn Backend) -> &'static str {
    match backend.provides(&Network::Full) {
        true => "leave --network out, or write --network full",
        false => "leave --network out: a box then reaches nothing but itself",
    }
}
