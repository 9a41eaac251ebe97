//! One suite for every backend: a harness that drives the real `belljar` binary, and the in-box probe.
//!
//! A test is a promise. It gets a [`Cell`], which stands for one backend used by one kind of user, and runs once
//! for each of them:
//!
//! ```ignore
//! /// N1
//! fn the_network_cannot_be_reached(cell: &Cell) {
//!     let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
//!     outside(&format!("connect 127.0.0.1 {port}"))[0].succeeds();                  // the control
//!     cell.probe(&format!("connect 127.0.0.1 {port}")).fails_with(&[ENETUNREACH]);
//! }
//!
//! promise!(the_network_cannot_be_reached);
//! ```
//!
//! What a backend cannot promise on this host is decided by what it declares (`isolation.kept`), never by a list
//! here: `promise!(name; needs network)`. Each promise that was not made is named, and counted under
//! `target/conformance/not-promised`. A test that could not run is a [`skip`](Cell::skip): named, counted under `target/conformance/skipped`,
//! and a failure where `CI` or `BELLJAR_REQUIRE` is set.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `BELLJAR_BIN` | the binary under test; else the `belljar` beside the tests in `target` |
//! | `BELLJAR_BACKENDS` | the backends under test, with commas between; else `native` |
//! | `DOCKER_HOST`, `BELLJAR_DOCKER_RUNTIME`, `XDG_CONFIG_HOME` | handed on to the binary |
//! | `BELLJAR_WASM_MODULES` | what `belljar wasm install` has put under a state directory, for the tests to use |
//! | `BELLJAR_LEAK_RUNS` | how many runs the leak test spreads over all endings; else 60 |
//! | `BELLJAR_KILL_RUNS` | how many runs in which `belljar` is killed; else 10 |

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test harness: it fails by panicking, tells its skips on stderr and is configured by environment"
)]

mod cell;
mod host;
mod probe;
mod result;
mod watch;

pub use cell::{Cell, Plain, Ran, Refusal, Running, User};
pub use host::{Scratch, has_program, hold, hold_in, process_holding, secret};
pub use probe::{
    Observation, observations, outside, outside_as_nobody, outside_with_env, probe_program, quote, spelled,
};
pub use result::{CollectedFile, ErrorBody, ErrorObject, Isolation, RunResult, Status, Usage, from_base64};
pub use watch::Watch;

/// Declares that a function is a promise: a test for root and one for an ordinary user, `name::as_root` and
/// `name::as_nobody`. `promise!(name, root)` and `promise!(name, nobody)` where it makes sense for one only.
/// `promise!(name; needs filesystem, network)`: only a backend that keeps these has promised it. With one that does not,
/// nothing of it is run; that is said, and counted under `target/conformance/not-promised`.
#[macro_export]
macro_rules! promise {
    ($name:ident $(; needs $($guarantee:ident),+)?) => {
        mod $name {
            $crate::promise!(@held as_root, Root, $name, [$($(stringify!($guarantee)),+)?]);
            $crate::promise!(@held as_nobody, Nobody, $name, [$($(stringify!($guarantee)),+)?]);
        }
    };
    ($name:ident, root $(; needs $($guarantee:ident),+)?) => {
        mod $name {
            $crate::promise!(@held as_root, Root, $name, [$($(stringify!($guarantee)),+)?]);
        }
    };
    ($name:ident, nobody $(; needs $($guarantee:ident),+)?) => {
        mod $name {
            $crate::promise!(@held as_nobody, Nobody, $name, [$($(stringify!($guarantee)),+)?]);
        }
    };
    (@held $test:ident, $user:ident, $name:ident, $needs:expr) => {
        #[test]
        fn $test() {
            let name = concat!(module_path!(), "::", stringify!($test));
            $crate::hold(name, $crate::User::$user, &$needs, super::$name);
        }
    };
}

/// Like [`promise!`], but told in Python, so that a backend without shells holds it, too.
#[macro_export]
macro_rules! portable {
    ($name:ident $(; needs $($guarantee:ident),+)?) => {
        mod $name {
            $crate::portable!(@held as_root, Root, $name, [$($(stringify!($guarantee)),+)?]);
            $crate::portable!(@held as_nobody, Nobody, $name, [$($(stringify!($guarantee)),+)?]);
        }
    };
    (@held $test:ident, $user:ident, $name:ident, $needs:expr) => {
        #[test]
        fn $test() {
            let name = concat!(module_path!(), "::", stringify!($test));
            $crate::hold_in("python", name, $crate::User::$user, &$needs, super::$name);
        }
    };
}
