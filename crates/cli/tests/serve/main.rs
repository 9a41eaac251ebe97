//! `belljar serve`, end to end: the real binary, real sockets, real boxes.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

mod asynchronous;
mod backends;
mod bad_input;
mod compiling;
mod defaults;
mod differential;
mod exile;
mod failures;
mod keys;
mod lifecycle;
mod observed;
mod overload;
mod pool;
mod runs;
mod sameness;
mod server;
mod soak;
mod storm;
mod streams;
mod zygote;
