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
//! | `BELLJAR_WASM_MODULES` | what `belljar wasm install` has put under a state directory, for the tests to use |
//! | `DOCKER_HOST`, `BELLJAR_DOCKER_RUNTIME`, `XDG_CONFIG_HOME` | handed on to the binary |
//! | `BELLJAR_LEAK_RUNS` | how many runs the leak test makes with each ending; else 8, and an eighth of it for an ordinary user |
//! | `BELLJAR_KILL_RUNS` | in how many runs the leak test kills `belljar`; else 10 |

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test harness: it fails by panicking, tells its skips on stderr and is configured by environment"
)]

mod brief;
mod cell;
mod host;
mod probe;
mod request;
mod result;
mod served;
mod turn;
mod watch;

pub use brief::keep_failures_short;
pub use cell::{Cell, Plain, Ran, Refusal, Running, User};
pub use host::{
    PATIENCE, Scratch, Telling, belljar_of, eventually, has_program, hold, installed, process_holding,
    secret, skip, survivors,
};
pub use probe::{
    Observation, observations, outside, outside_as_nobody, outside_as_root, outside_with_env, probe_program,
    quote, spelled,
};
pub use result::{
    CollectedFile, Compile, Decision, ErrorBody, ErrorObject, Isolation, RunResult, Stage, Status, Usage,
    from_base64,
};
pub use served::Start;
pub use watch::Watch;

/// Declares that a function is a promise, held to of runs that begin in every way: as root in a box that is built for the
/// run (`name::as_root`), in one that has been waiting (`name::warm`) and with a runtime that was forked (`name::zygote`),
/// and as an ordinary user, for whom none waits (`name::as_nobody`). `promise!(name, root)` and `promise!(name, nobody)`
/// where it makes sense for one only. `promise!(name; needs filesystem, network)`: only a backend that keeps these has
/// promised it. With one that does not, nothing of it is run; that is said, and counted under
/// `target/conformance/not-promised`. `promise!(name; cold: "why")` where no run of it can be warm, by design, and
/// `promise!(name; no zygote: "why")` where none can be forked.
#[macro_export]
macro_rules! promise {
    ($name:ident $(; needs $($guarantee:ident),+)?) => {
        $crate::promise!(@ "sh" $name as_root as_nobody warm zygote; $($($guarantee)+)?);
    };
    ($name:ident $(; needs $($guarantee:ident),+)?; cold: $why:literal) => {
        $crate::promise!(@ "sh" $name as_root as_nobody; $($($guarantee)+)?);
    };
    ($name:ident $(; needs $($guarantee:ident),+)?; no zygote: $why:literal) => {
        $crate::promise!(@ "sh" $name as_root as_nobody warm; $($($guarantee)+)?);
    };
    ($name:ident, root $(; needs $($guarantee:ident),+)?) => {
        $crate::promise!(@ "sh" $name as_root warm zygote; $($($guarantee)+)?);
    };
    ($name:ident, root $(; needs $($guarantee:ident),+)?; cold: $why:literal) => {
        $crate::promise!(@ "sh" $name as_root; $($($guarantee)+)?);
    };
    ($name:ident, nobody $(; needs $($guarantee:ident),+)?) => {
        $crate::promise!(@ "sh" $name as_nobody; $($($guarantee)+)?);
    };
    (@ $language:literal $name:ident $($test:ident)+; $($guarantee:ident)*) => {
        mod $name {
            const TELLING: $crate::Telling =
                $crate::Telling { language: $language, needs: &[$(stringify!($guarantee)),*] };
            $($crate::promise!(# $test $name);)+
        }
    };
    (# as_root $name:ident) => {
        $crate::promise!(# as_root Root Cold $name);
    };
    (# as_nobody $name:ident) => {
        $crate::promise!(# as_nobody Nobody Cold $name);
    };
    (# warm $name:ident) => {
        $crate::promise!(# warm Root Warm $name);
    };
    (# zygote $name:ident) => {
        $crate::promise!(# zygote Root Zygote $name);
    };
    (# $test:ident $user:ident $start:ident $name:ident) => {
        #[test]
        fn $test() {
            let name = concat!(module_path!(), "::", stringify!($test));
            $crate::hold(TELLING, name, $crate::User::$user, $crate::Start::$start, super::$name);
        }
    };
}

/// Like [`promise!`], but told in Python, so that a backend without shells holds it, too.
#[macro_export]
macro_rules! portable {
    ($name:ident $(; needs $($guarantee:ident),+)?) => {
        $crate::promise!(@ "python" $name as_root as_nobody warm zygote; $($($guarantee)+)?);
    };
    ($name:ident $(; needs $($guarantee:ident),+)?; cold: $why:literal) => {
        $crate::promise!(@ "python" $name as_root as_nobody; $($($guarantee)+)?);
    };
    ($name:ident $(; needs $($guarantee:ident),+)?; no zygote: $why:literal) => {
        $crate::promise!(@ "python" $name as_root as_nobody warm; $($($guarantee)+)?);
    };
}
