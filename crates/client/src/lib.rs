//! A client of a Belljar server, over HTTP or a unix socket, with the types of [`belljar_wire`].
//!
//! ```no_run
//! # async fn example() -> Result<(), belljar_client::ClientError> {
//! use belljar_client::{Client, RunRequest};
//!
//! let client = Client::new("http://127.0.0.1:8787", None)?;
//! let request = RunRequest { language: "python".into(), code: "print(6 * 7)".into(), ..RunRequest::default() };
//! assert_eq!(client.run(&request).await?.stdout, "42\n");
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: [`address`] is where a server is, `exchange` is one request and its answer, [`Client`] has a method for
//! everything that can be asked, and [`Events`] is a run as it happens. It knows no environment and no configuration: whoever
//! uses it says where the server is and which key it wants.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod address;
mod client;
mod error;
mod events;
mod exchange;

pub use belljar_wire::{Heard as Event, RunRequest, RunResult, RunState};
pub use client::{ApprovalQuery, AuditQuery, Client, Waited};
pub use error::{ClientError, ExchangeError};
pub use events::Events;
pub use exchange::exchange;
