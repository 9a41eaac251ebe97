//! Which backend a run goes to, and what it will enforce.

use std::sync::Arc;

use belljar_core::backend::Backend;
use belljar_core::guarantee::{Enforcement, Guarantee, Unmet, concede, resolve};
use belljar_core::path::Workspace;
use belljar_core::request::{BackendChoice, BackendName, Network, SandboxRequest};
use belljar_core::{Field, Invalid};

use crate::{Engine, RunError};

/// A backend that will run a request, and what it will enforce.
#[derive(Debug)]
pub struct Placement {
    /// Where.
    pub backend: Arc<dyn Backend>,
    /// On which terms.
    pub enforcement: Enforcement,
}

/// What a request demands of a backend.
#[derive(Debug)]
pub(crate) struct Demands<'a> {
    pub(crate) backend: BackendChoice,
    pub(crate) network: &'a Network,
    /// An image that the request names.
    pub(crate) image: Option<&'a str>,
    pub(crate) waived: &'a [Guarantee],
    /// Whether secrets are to be added to its requests.
    pub(crate) secrets: bool,
    /// Whether the code is to write to its workspace.
    pub(crate) writable: bool,
}

impl<'a> From<&'a SandboxRequest> for Demands<'a> {
    fn from(request: &'a SandboxRequest) -> Demands<'a> {
        let SandboxRequest { backend, network, secrets, image, waived, workspace, .. } = request;
        let secrets = !secrets.is_empty();
        let writable = workspace.as_ref().is_some_and(Workspace::is_writable);
        Demands { backend: *backend, network, secrets, image: image.as_deref(), waived, writable }
    }
}

impl Demands<'_> {
    /// Whether to ask this backend at all. One that was named is always asked, so that it can say why it refuses.
    fn may_go_to(&self, backend: BackendName) -> bool {
        match self.backend {
            BackendChoice::Auto => backend.is_automatic() && (self.image.is_none() || backend.takes_image()),
            BackendChoice::Named(name) => backend == name,
        }
    }

    /// The refusal if there is no backend to ask.
    fn nowhere_to_go(&self) -> RunError {
        match (self.backend, self.image) {
            (BackendChoice::Named(backend), _) => RunError::NoSuchBackend { backend },
            (BackendChoice::Auto, Some(image)) => no_image(
                format!("no backend that may be used here takes the image '{}'", image.escape_debug()),
                "leave the image out; `belljar doctor --all` lists the backends",
            ),
            (BackendChoice::Auto, None) => RunError::NoBackend,
        }
    }
}

impl Engine {
    /// Chooses the backend: the one that was named, or the strongest that can enforce everything. `wasm`, in which
    /// programs behave differently, is never chosen, only named. So are `process` and `none`, which enforce next to
    /// nothing; naming one of these waives the rest.
    ///
    /// # Errors
    /// Why the named backend, or the strongest one, cannot run it. There is no weaker fallback.
    pub fn place(
        &self,
        choice: BackendChoice,
        network: &Network,
        waived: &[Guarantee],
    ) -> Result<Placement, RunError> {
        self.place_among(
            |_| true,
            &Demands { backend: choice, network, secrets: false, image: None, waived, writable: false },
        )
    }

    /// The backend of that name, whatever it can enforce; the strongest for `auto`.
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
        demands: &Demands<'_>,
    ) -> Result<Placement, RunError> {
        let network = demands.network;
        if matches!(network, Network::Allow(_))
            && !self.backends.iter().any(|backend| backend.provides(network))
        {
            return Err(not_available_here(network));
        }
        let eligible = |name: BackendName| demands.may_go_to(name) && permitted(name);
        let mut refusal = None;
        for backend in self.backends.iter().filter(|backend| eligible(backend.name())) {
            match accept(backend.as_ref(), demands) {
                Ok(enforcement) => return Ok(Placement { backend: backend.clone(), enforcement }),
                Err(refused) => refusal = refusal.or(Some(refused)),
            }
        }
        Err(refusal.unwrap_or_else(|| demands.nowhere_to_go()))
    }
}

fn accept(backend: &dyn Backend, demands: &Demands<'_>) -> Result<Enforcement, RunError> {
    let Demands { network, secrets, image, waived, writable, .. } = demands;
    if let Some(image) = image.filter(|_| !backend.name().takes_image()) {
        let message =
            format!("the {} backend takes no image, but '{}' is named", backend.name(), image.escape_debug());
        return Err(no_image(message, "leave the image out, or choose the backend docker"));
    }
    if *writable && !backend.name().layers_workspace() {
        return Err(not_writable(backend.name()));
    }
    if *secrets && !backend.adds_secrets() {
        return Err(no_secrets(backend.name()));
    }
    backend.ready()?;
    if matches!(network, Network::Allow(_)) && !backend.provides(network) && backend.provides(&Network::Full)
    {
        return Err(RunError::Unmet { backend: backend.name(), unmet: unlimited_network() });
    }
    if !backend.provides(network) {
        return Err(RunError::Invalid(Invalid {
            field: Field::Network,
            message: format!("the {} backend cannot give a box the network '{network}'", backend.name()),
            hint: network_hint(backend).to_owned(),
            too_large: false,
        }));
    }
    if backend.name().is_only_by_name() {
        return Ok(concede(backend.offer(), waived));
    }
    resolve(backend.offer(), waived).map_err(|unmet| RunError::Unmet { backend: backend.name(), unmet })
}

fn not_writable(backend: BackendName) -> RunError {
    RunError::Invalid(Invalid {
        field: Field::Writable,
        message: format!("the {backend} backend cannot make a workspace writable"),
        hint: "leave writable out and write to /sandbox, or choose the native backend".to_owned(),
        too_large: false,
    })
}

fn no_secrets(backend: BackendName) -> RunError {
    let (message, hint) = match backend == BackendName::Native {
        true => (
            "this build of belljar cannot add secrets".to_owned(),
            "build belljar with them: cargo build --release --features secrets",
        ),
        false => (
            format!("the {backend} backend cannot add secrets outside the box"),
            "leave the secrets out, or choose the native backend",
        ),
    };
    RunError::Invalid(Invalid { field: Field::Secrets, message, hint: hint.to_owned(), too_large: false })
}

fn no_image(message: String, hint: &str) -> RunError {
    RunError::Invalid(Invalid { field: Field::Image, message, hint: hint.to_owned(), too_large: false })
}

/// A backend with a network that it cannot limit to some hosts.
fn unlimited_network() -> Unmet {
    let why = "its network cannot be limited to some hosts".to_owned();
    let fix = "choose the native backend, or ask for the network none or full".to_owned();
    Unmet { missing: vec![(Guarantee::Network, why, fix)] }
}

fn not_available_here(network: &Network) -> RunError {
    RunError::Invalid(Invalid {
        field: Field::Network,
        message: format!(
            "the network '{network}' is not available here: no backend can limit a box to some hosts"
        ),
        hint: "use none, or full with a backend that has it; `belljar doctor` lists the backends".to_owned(),
        too_large: false,
    })
}

fn network_hint(backend: &dyn Backend) -> &'static str {
    match backend.provides(&Network::Full) {
        true => "leave the network out, or ask for full",
        false => "leave the network out: the code then has none",
    }
}
