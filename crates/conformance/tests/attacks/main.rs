//! The attack corpus. Each promise has the id of its attack, and a control which shows that the attack would work
//! where nothing prevents it. `docs/attacks.md` is the index.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod environment;
mod filesystem;
mod kernel;
mod kernel_memory;
mod layer;
mod lifecycle;
mod network;
mod resource;
