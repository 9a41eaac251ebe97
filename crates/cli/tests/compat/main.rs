//! The protocols that clients already speak, end to end: the real binary, real sockets, real boxes. These need a host
//! that can make boxes and has the languages that `ci/tools` installs, and fail on one that does not.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

mod connect;
mod foreign;
mod fusion;
mod jupyter;
mod keys;
mod piston;
#[path = "../serve/server.rs"]
#[allow(dead_code, reason = "the tests of the contract use more of it")]
mod server;
