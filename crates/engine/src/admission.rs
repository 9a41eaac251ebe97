//! What may run. Nothing below this point accepts a request that did not come through here.

use belljar_core::request::{ExecutionRequest, RunRequest, SandboxRequest};

/// A request that may run; only [`admit`] makes one.
#[must_use]
pub(crate) struct Admitted(RunRequest);

/// Admits every request that could be parsed: no policy is configured that would say otherwise.
pub(crate) fn admit(request: RunRequest) -> Admitted {
    Admitted(request)
}

impl Admitted {
    pub(crate) fn into_parts(self) -> (SandboxRequest, ExecutionRequest) {
        (self.0.sandbox, self.0.execution)
    }
}
