//! The contract's sections on `run`, languages and the result object, line by line, for every backend.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod caller;
mod compiling;
mod endings;
mod files;
mod inside;
mod languages;
mod options;
mod output;
mod packages;
mod portable;
mod refusals;
mod workspace;
