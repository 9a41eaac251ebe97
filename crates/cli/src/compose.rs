//! The composition root: the only place that names concrete backends.

use std::sync::Arc;

use belljar_core::language::Preparation;
use belljar_engine::{Engine, Prepared, SyntaxError};
use belljar_native::Native;

use crate::settings::Host;

/// An engine to ask what it could do.
pub(crate) fn engine(host: Host) -> Engine {
    assemble(native(host))
}

/// An engine that is about to run something.
pub(crate) fn engine_for_a_run(host: Host) -> Engine {
    let native = native(host);
    native.stand_by();
    assemble(native)
}

fn native(host: Host) -> Native {
    Native::open(belljar_native::Settings {
        search_path: host.search_path,
        home: host.home,
        runtime_dir: host.runtime_dir,
        state_dir: host.state_dir,
        overrides: host.runtimes,
    })
}

fn assemble(native: Native) -> Engine {
    Engine::new(vec![Arc::new(native)], prepare)
}

fn prepare(preparation: Preparation, name: &str, text: &[u8]) -> Result<Prepared, SyntaxError> {
    belljar_transpile::prepare(preparation, name, text)
        .map(|prepared| Prepared { name: prepared.name, text: prepared.text })
        .map_err(|fault| SyntaxError { message: fault.message })
}
