//! The composition root: the only place that names concrete backends.

use std::sync::Arc;

use belljar_core::backend::Backend;
use belljar_core::language::Preparation;
use belljar_core::request::BackendName;
use belljar_docker::Docker;
use belljar_engine::{Absent, Deferred, Engine, Prepared, SyntaxError};
use belljar_jail::Standby;
use belljar_native::{Native, PoolSettings};

use crate::docker::Audience;
use crate::settings::Host;

/// An engine; with a box in waiting, if it is to run one thing.
pub(crate) fn engine(host: Host, standby: Option<Standby>) -> Engine {
    assemble(host, standby, None, Audience::Oneself)
}

/// An engine that keeps boxes waiting, because it is to run many things.
pub(crate) fn pooled_engine(host: Host, pool: Option<PoolSettings>) -> Engine {
    assemble(host, None, pool, Audience::Others)
}

/// All backends, strongest first. Nothing is looked at here: what a run does not use must not cost it anything.
fn assemble(host: Host, standby: Option<Standby>, pool: Option<PoolSettings>, audience: Audience) -> Engine {
    let docker = Arc::new(Docker::open(host.docker.settings(&host, audience, false)));
    Engine::new(vec![native(host, standby, pool), docker, wasm()], prepare)
}

fn native(host: Host, standby: Option<Standby>, pool: Option<PoolSettings>) -> Arc<dyn Backend> {
    let settings = belljar_native::Settings {
        search_path: host.search_path,
        home: host.home,
        runtime_dir: host.runtime_dir,
        state_dir: host.state_dir,
        overrides: host.runtimes,
        standby,
        pool,
    };
    Arc::new(Deferred::new(BackendName::Native, || Native::open(settings)))
}

fn wasm() -> Arc<dyn Backend> {
    let (reason, hint) =
        ("this belljar was built without it", "build it in: cargo build --release --features wasm");
    Arc::new(Absent::new(BackendName::Wasm, reason, hint))
}

fn prepare(preparation: Preparation, name: &str, text: &[u8]) -> Result<Prepared, SyntaxError> {
    belljar_transpile::prepare(preparation, name, text)
        .map(|prepared| Prepared { name: prepared.name, text: prepared.text })
        .map_err(|fault| SyntaxError { message: fault.message })
}
