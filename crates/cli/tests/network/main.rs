//! Boxes with a network, against servers in a network namespace that the test makes.
//!
//! The tests need a network that is theirs alone, so this program starts itself again in a new namespace, which plays the
//! host; a second one, behind a pair of virtual devices, plays the internet (`world.rs`). Nothing leaves the two. That takes
//! root; for anybody else the tests are listed as ignored. The boxes are started as root, and as an ordinary user.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test with a main of its own, which clippy takes for a program"
)]

#[cfg(feature = "secrets")]
mod api;
mod cases;
mod client;
mod clients;
mod endings;
mod internet;
#[cfg_attr(not(feature = "secrets"), path = "no_secrets.rs")]
mod secrets;
mod served;
mod server;
mod shown;
mod world;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use belljar_conformance::User;
use libtest_mimic::{Arguments, Trial};

/// Which part of the world this process plays.
const ROLE: &str = "BELLJAR_TEST_ROLE";

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("internet") => internet::serve(),
        Ok("host") => run(),
        _ if lists() || !rustix::process::geteuid().is_root() => run(),
        _ => start_again(),
    }
}

fn lists() -> bool {
    std::env::args().any(|word| word == "--list")
}

fn start_again() -> ExitCode {
    let program = std::env::current_exe().unwrap();
    let failed = Command::new("unshare")
        .arg("--net")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(ROLE, "host")
        .exec();
    eprintln!("cannot start unshare: {failed}");
    ExitCode::FAILURE
}

fn run() -> ExitCode {
    let arguments = Arguments::from_args();
    let is_root = rustix::process::geteuid().is_root();
    let trial = |name: String, user: User, case: fn()| {
        Trial::test(name, move || {
            client::as_user(user, case);
            Ok(())
        })
        .with_ignored_flag(!is_root)
    };
    let cases = || cases::ALL.iter().chain(secrets::ALL);
    let as_root = cases().map(|(name, case)| trial((*name).to_owned(), User::Root, *case));
    let as_nobody = cases().filter(|(name, _)| !cases::OF_ROOT.contains(name));
    let as_nobody = as_nobody.map(|(name, case)| trial(format!("as_nobody::{name}"), User::Nobody, *case));
    libtest_mimic::run(&arguments, as_root.chain(as_nobody).collect()).exit_code()
}
