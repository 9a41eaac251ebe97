//! The composition root: the only place that names concrete backends.

use std::path::PathBuf;
use std::sync::Arc;

use belljar_core::backend::Backend;
use belljar_core::outcome::Outcome;
use belljar_core::request::BackendName;
use belljar_docker::Docker;
use belljar_engine::{Absent, Deferred, Engine, Prepared, Unprepared, Unread};
use belljar_jail::Standby;
use belljar_native::{Native, PoolSettings};
use belljar_process::Subprocess;
use belljar_transpile::{Budget, TranspileError};

use crate::docker::Audience;
use crate::settings::Host;

/// An engine for one run, or a few; with the box that was made ahead for the first, if there is one.
pub(crate) fn engine(host: Host, standby: Option<Standby>) -> Engine {
    assemble(host, Runs::One(standby))
}

/// An engine for many runs, with a warm pool if one is configured.
pub(crate) fn pooled_engine(host: Host, pool: Option<PoolSettings>) -> Engine {
    assemble(host, Runs::Many(pool))
}

/// What an engine is for.
enum Runs {
    /// Or a few, one after the other; with the box that was made ahead for the first.
    One(Option<Standby>),
    /// With the settings of the warm pool.
    Many(Option<PoolSettings>),
}

/// All backends, strongest first. None is probed here: a run must not pay for backends that it does not use.
fn assemble(host: Host, runs: Runs) -> Engine {
    let settings = subprocess(&host);
    let process = Arc::new(Subprocess::limited(settings.clone()));
    let none = Arc::new(Subprocess::bare(settings));
    let (docker, wasm) = (docker(&host, &runs), wasm(host.wasm_dir.clone()));
    Engine::new(vec![native(host, runs), docker, wasm, process, none], prepare)
}

fn native(host: Host, runs: Runs) -> Arc<dyn Backend> {
    let many_runs = matches!(runs, Runs::Many(_));
    let (standby, pool) = match runs {
        Runs::One(standby) => (standby, None),
        // A pool for a backend that is not the default would never be used.
        Runs::Many(pool) => (None, pool.filter(|_| !host.docker.preferred)),
    };
    let settings = belljar_native::Settings {
        search_path: host.search_path,
        home: host.home,
        runtime_dir: host.runtime_dir,
        state_dir: host.state_dir,
        overrides: host.runtimes,
        found: host.found_runtimes,
        standby,
        many_runs,
        pool,
        swept: host.swept,
        network: host.network,
    };
    Arc::new(Deferred::new(BackendName::Native, || Native::open(settings)))
}

fn subprocess(host: &Host) -> belljar_process::Settings {
    belljar_process::Settings {
        search_path: host.search_path.clone(),
        home: host.home.clone(),
        state_dir: host.state_dir.clone(),
        overrides: host.runtimes.clone(),
        found: host.found_runtimes.clone(),
        temp_dir: host.temp_dir.clone(),
    }
}

/// Whether this binary needs no shared library (ci/rustc). Containers have their own libraries, or none.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

fn docker(host: &Host, runs: &Runs) -> Arc<dyn Backend> {
    if !IS_STATIC {
        let reason = "this belljar is linked dynamically, so it cannot start inside a container";
        let hint = "install the static C library (Debian: libc6-dev, Fedora: glibc-static) and build belljar again, \
                    or build it with: make release";
        return Arc::new(Absent::new(BackendName::Docker, reason, hint));
    }
    let (audience, pool) = match runs {
        Runs::One(_) => (Audience::Oneself, None),
        Runs::Many(pool) => (Audience::Others, pool.as_ref()),
    };
    Arc::new(Docker::open(host.docker.settings(host, audience, pool)))
}

/// Why this build has no wasm backend, and how to get one that has it.
#[cfg(not(feature = "wasm"))]
pub(crate) const WASM_REASON: &str = "this build of belljar does not include it";
#[cfg(not(feature = "wasm"))]
pub(crate) const WASM_HINT: &str = "build belljar with it: cargo build --release --features wasm";

#[cfg(not(feature = "wasm"))]
fn wasm(_: Option<PathBuf>) -> Arc<dyn Backend> {
    Arc::new(Absent::new(BackendName::Wasm, WASM_REASON, WASM_HINT))
}

#[cfg(feature = "wasm")]
fn wasm(state_dir: Option<PathBuf>) -> Arc<dyn Backend> {
    Arc::new(Deferred::new(BackendName::Wasm, || belljar_wasm::Wasm::open(state_dir)))
}

fn prepare(unread: &Unread<'_>) -> Result<Prepared, Unprepared> {
    let Unread { preparation, name, text, memory, limits } = *unread;
    let budget = Budget { memory, timeout: limits.timeout, cpu_time: limits.cpu_time };
    let (prepared, usage) = belljar_transpile::prepare(preparation, name, text, budget);
    match prepared {
        Ok(belljar_transpile::Prepared { name, text }) => Ok(Prepared { name, text, usage }),
        Err(TranspileError::Syntax(message)) => {
            Err(Unprepared { outcome: Outcome::Exited(1), message, usage })
        }
        Err(TranspileError::Limit(outcome)) => Err(Unprepared { outcome, message: String::new(), usage }),
    }
}
