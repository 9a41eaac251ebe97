//! A backend that costs nothing until it is used.

use std::fmt;
use std::sync::{Arc, LazyLock};

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Execution, ExecutionSpec, PullListener, RuntimeInfo, SandboxSpec,
};
use belljar_core::guarantee::Offer;
use belljar_core::language::Language;
use belljar_core::pool::PoolStatus;
use belljar_core::request::{BackendName, Network};

type Opening = Box<dyn FnOnce() -> Arc<dyn Backend> + Send>;

/// A backend that is opened on first use. An engine has all backends, but a run goes to one of them, and opening one
/// may mean probing the whole host.
pub struct Deferred {
    name: BackendName,
    backend: LazyLock<Arc<dyn Backend>, Opening>,
}

impl Deferred {
    /// The backend of that name, which `open` will make.
    pub fn new<B: Backend + 'static>(
        name: BackendName,
        open: impl FnOnce() -> B + Send + 'static,
    ) -> Deferred {
        Deferred { name, backend: LazyLock::new(Box::new(|| Arc::new(open()))) }
    }

    /// Questions about its past do not open it.
    fn so_far(&self) -> Option<&dyn Backend> {
        LazyLock::get(&self.backend).map(AsRef::as_ref)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("name", &self.name).field("opened", &self.so_far()).finish()
    }
}

impl Backend for Deferred {
    fn name(&self) -> BackendName {
        self.name
    }

    fn ready(&self) -> Result<(), BackendError> {
        self.backend.ready()
    }

    fn leaks_cleaned(&self) -> u64 {
        self.so_far().map_or(0, Backend::leaks_cleaned)
    }

    fn offer(&self) -> &Offer {
        self.backend.offer()
    }

    fn provides(&self, network: &Network) -> bool {
        self.backend.provides(network)
    }

    fn adds_secrets(&self) -> bool {
        self.backend.adds_secrets()
    }

    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError> {
        self.backend.runtime(language)
    }

    fn start<'a>(
        &'a self,
        sandbox: SandboxSpec,
        execution: ExecutionSpec,
        waiting: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>> {
        self.backend.start(sandbox, execution, waiting)
    }

    fn upkeep(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        self.backend.clone().upkeep()
    }

    fn retire(&self) -> BoxFuture<'_, ()> {
        match self.so_far() {
            Some(backend) => backend.retire(),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn pool(&self) -> Option<PoolStatus> {
        self.so_far().and_then(Backend::pool)
    }

    fn explain(&self, sandbox: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        self.backend.explain(sandbox, execution)
    }
}
