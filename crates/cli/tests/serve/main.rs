//! `belljar serve`, end to end: the real binary, real sockets, real boxes.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

mod approvals;
mod approved;
mod asynchronous;
mod audit;
mod backends;
mod background;
mod bad_input;
mod client;
mod compiling;
mod console;
mod debian_packages;
mod defaults;
mod differential;
mod failures;
mod files;
mod keys;
mod lifecycle;
mod observed;
mod overload;
mod pool;
mod privilege_drop;
mod runs;
mod sameness;
mod scan;
mod server;
mod shared_ledger;
mod soak;
mod storm;
mod streams;
mod templates;
mod unix;
mod virtual_environments;
mod zygote;
